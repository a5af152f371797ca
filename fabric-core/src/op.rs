//! Identifiers of operations, operations on a peer, and accesses of a peer.

use crate::address::FiAddr;
use crate::completion::{CompletionLevel, OpKind};
use crate::mr::RmaIov;

/// Identifier of an operation: index and generation of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpKey {
    /// Index of the slot; small, and reused.
    pub index: u32,
    /// Distinguishes successive operations in the same slot.
    pub generation: u32,
}

/// Identifier of an endpoint, or of a shared receive context, within its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpId(pub u32);

impl EpId {
    /// Number of bits of the index; the bits above distinguish successive endpoints with the same
    /// index.
    #[doc(hidden)]
    pub const INDEX_BITS: u32 = 20;

    /// Index among the endpoints of the domain: less than their maximum number, and unique while
    /// the endpoint is open.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }
}

/// Operation on a peer: a message, an access to its memory, or only a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxOp {
    /// Kind of the operation.
    pub kind: OpKind,
    /// Address handle of the peer.
    pub peer: FiAddr,
    /// Tag of a tagged message.
    pub tag: Option<u64>,
    /// CQ data for the receiver's completion.
    pub data: Option<u64>,
    /// Remote range of an RMA operation. For an operation with
    /// [several](crate::transport::EngineContext::rma_iovs) ranges this is the first.
    pub remote: Option<RmaIov>,
    /// Identifier of the remote ranges, if the operation has several. Such an operation is queued,
    /// never tried inline.
    pub rma_iov_id: Option<RmaIovId>,
    /// Key of the loan that is the payload: the receiver may take the loan instead of a copy.
    pub loan: Option<u64>,
    /// The operation begins when all operations posted before it for that peer have completed
    /// (`FI_FENCE`). The engine holds back the operation, and those behind it, until then, so a
    /// [`FastPath`](crate::transport::FastPath) refuses fenced operations, and endpoints ignore
    /// this field.
    pub fence: bool,
    /// When a message completes. A transport that does not offer the level fails the message with
    /// [`Error::NotSupported`](crate::Error::NotSupported). RMA operations complete when the peer's
    /// memory has been accessed, whatever the level.
    pub level: CompletionLevel,
    /// More operations follow under the same lock, and then
    /// [`TransportEndpoint::flush`](crate::transport::TransportEndpoint::flush): the receiver need
    /// not be notified of this operation (`FI_MORE`).
    pub more: bool,
}

/// Identifier of the remote ranges of an operation, assigned by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmaIovId(pub u32);

impl TxOp {
    /// Returns whether the operation is a plain message: without tag, CQ data, loan and `FI_FENCE`,
    /// and complete when sent.
    #[must_use]
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.kind == OpKind::Send
            && self.tag.is_none()
            && self.data.is_none()
            && self.loan.is_none()
            && !self.fence
            && !self.level.needs_ack()
    }

    /// Returns an operation on a peer without optional fields, which completes when transmitted.
    #[must_use]
    pub fn new(kind: OpKind, peer: FiAddr) -> Self {
        Self {
            kind,
            peer,
            tag: None,
            data: None,
            remote: None,
            rma_iov_id: None,
            loan: None,
            fence: false,
            level: CompletionLevel::Transmitted,
            more: false,
        }
    }

    /// Returns an RMA or atomic operation.
    #[must_use]
    pub fn one_sided(kind: OpKind, peer: FiAddr, remote: RmaIov) -> Self {
        Self {
            remote: Some(remote),
            ..Self::new(kind, peer)
        }
    }
}

/// Kind of access of a peer to memory of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// A write, or an atomic operation that fetches no values.
    Write,
    /// A read, or a fetching atomic operation.
    Read,
}

impl RemoteAccess {
    /// Returns the kind of access of the peer's operation.
    #[must_use]
    pub fn from_kind(kind: OpKind) -> Self {
        if kind.fills_buffer() {
            Self::Read
        } else {
            Self::Write
        }
    }
}
