//! What operations are called, what is to be done at a peer, and what a peer has done here.

use crate::address::FiAddr;
use crate::atomic::AtomicSpec;
use crate::completion::{CompletionLevel, OpKind};

/// The name of an operation: position and generation of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpKey {
    /// Position; small and used again.
    pub index: u32,
    /// Which use of the position.
    pub generation: u32,
}

/// The name of an endpoint within its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpId(pub u32);

impl EpId {
    /// Bits of the number that say the place; those above tell apart who had it.
    #[doc(hidden)]
    pub const INDEX_BITS: u32 = 20;

    /// Its place among the endpoints of the domain: as small as they are few, and nobody else's
    /// while it is open.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }
}

/// What is to be done at a peer: a message sent, its memory accessed, or only a connection made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxOp {
    /// What.
    pub kind: OpKind,
    /// To whom.
    pub peer: FiAddr,
    /// The tag, of tagged messages.
    pub tag: Option<u64>,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
    /// Where, of one-sided operations. Of one with several [places](super::Host::places) this is
    /// where the first of them is.
    pub remote: Option<RmaIov>,
    /// The number of its places, where it has several. It is not tried at once, but queued.
    pub rma_iov_id: Option<RmaIovId>,
    /// The payload is a loan of this name: the receiver may have it instead of a copy.
    pub loan: Option<u64>,
    /// It begins when everything that was posted before it for that peer has ended. Providers need
    /// not look at this: they are not given the operation, nor those behind it, before.
    pub fence: bool,
    /// When a message has ended well. A provider that does not offer the level fails it with
    /// [`Error::NotSupported`](crate::Error::NotSupported). One-sided operations end when the
    /// peer's memory has been accessed, whatever this says.
    pub level: CompletionLevel,
    /// More follows under the same lock, and then
    /// [`TransportDomain::flush`](super::TransportDomain::flush): nobody need be woken for this one.
    pub more: bool,
}

/// The number of several places that an operation is about, as the host counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmaIovId(pub u32);

/// A place in a peer's memory, and what is done there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmaIov {
    /// The key of the region.
    pub key: u64,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes accessed.
    pub len: usize,
    /// The operation, if it is atomic.
    pub atomic: Option<AtomicSpec>,
}

impl TxOp {
    /// Whether it is a message with nothing to say but its bytes, which has ended when it is sent.
    #[must_use]
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.kind == OpKind::Send
            && self.tag.is_none()
            && self.data.is_none()
            && self.loan.is_none()
            && !self.fence
            && !self.more
            && !self.level.needs_ack()
    }

    /// Something to be done at a peer that needs no more than that.
    #[must_use]
    pub fn new(kind: OpKind, peer: FiAddr) -> Self {
        let level = CompletionLevel::Transmitted;
        let (tag, data, remote, rma_iov_id, loan) = (None, None, None, None, None);
        Self {
            kind,
            peer,
            tag,
            data,
            remote,
            rma_iov_id,
            loan,
            fence: false,
            level,
            more: false,
        }
    }

    /// A one-sided operation.
    #[must_use]
    pub fn one_sided(kind: OpKind, peer: FiAddr, remote: RmaIov) -> Self {
        Self {
            remote: Some(remote),
            ..Self::new(kind, peer)
        }
    }
}

/// What a peer has done to memory of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// Written it, or changed it atomically.
    Write,
    /// Read it, or fetched what it changed.
    Read,
}

impl RemoteAccess {
    /// What an operation of the peer is here.
    #[must_use]
    pub fn from_kind(kind: OpKind) -> Self {
        if kind.fills_buffer() {
            Self::Read
        } else {
            Self::Write
        }
    }
}
