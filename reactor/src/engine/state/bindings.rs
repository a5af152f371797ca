//! The ids of a domain's objects, and which of them an endpoint is bound to.

use std::sync::Arc;

use fabric_core::completion::OpKind;
use fabric_core::transport::{EpId, RemoteAccess};
use fabric_core::{Error, Result};

use super::eq::EqState;

/// The id of a completion queue within its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqId(pub(crate) u32);

/// The id of a counter within its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterId(pub(crate) u32);

/// The id of an address vector within its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvId(pub(crate) u32);

/// The objects that an endpoint is bound to, and its limits.
#[derive(Debug)]
pub struct Bindings {
    /// The endpoint's id in the object tree, which comes with its events.
    pub object_id: u64,
    /// The context the endpoint was opened with.
    pub context: u64,
    /// The address vector.
    pub av: AvId,
    /// The completion queue of transmit operations.
    pub tx_cq: Option<CqId>,
    /// The completion queue of receives.
    pub rx_cq: Option<CqId>,
    /// The counters, by kind of operation.
    pub counters: CounterBindings,
    /// The shared receive context that the endpoint uses.
    pub shared_rx: Option<EpId>,
    /// The event queue.
    pub eq: Option<Arc<EqState>>,
    /// The limit of transmit operations under way.
    pub tx_size: usize,
    /// The limit of receives that are posted to a queue or started.
    pub rx_size: usize,
    /// The longest message in bytes.
    pub max_msg_size: usize,
    /// The longest message that can be injected, in bytes.
    pub inject_size: usize,
    /// Whether the receive of a message of an unknown sender is an error (`FI_SOURCE_ERR`).
    pub source_err: bool,
}

impl Bindings {
    /// Returns the bindings of an endpoint of which tests set what they need.
    #[cfg(test)]
    pub(crate) fn for_tests(av: AvId) -> Self {
        Self {
            object_id: 1,
            context: 0,
            av,
            tx_cq: None,
            rx_cq: None,
            counters: CounterBindings::default(),
            shared_rx: None,
            eq: None,
            tx_size: 1,
            rx_size: 1,
            max_msg_size: 1,
            inject_size: 1,
            source_err: false,
        }
    }

    /// Checks the length of a message against `max_msg_size`.
    #[inline]
    pub(crate) fn check_len(&self, len: usize) -> Result<()> {
        let limit = self.max_msg_size;
        if len > limit {
            Err(Error::TooLong {
                what: "message",
                len,
                limit,
            })
        } else {
            Ok(())
        }
    }
}

/// The counters of an endpoint, by the operations they count.
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterBindings {
    /// Sends.
    pub send: Option<CounterId>,
    /// Receives.
    pub recv: Option<CounterId>,
    /// Reads and fetching atomics.
    pub read: Option<CounterId>,
    /// Writes and non-fetching atomics.
    pub write: Option<CounterId>,
    /// Reads by peers (`FI_REMOTE_READ`).
    pub remote_read: Option<CounterId>,
    /// Writes by peers (`FI_REMOTE_WRITE`).
    pub remote_write: Option<CounterId>,
}

impl CounterBindings {
    /// Returns whether remote accesses by peers are counted.
    pub(crate) fn wants_rma_events(&self) -> bool {
        self.remote_read.is_some() || self.remote_write.is_some()
    }

    /// Returns the counter of a remote access by a peer.
    pub(crate) fn for_remote_access(&self, access: RemoteAccess) -> Option<CounterId> {
        match access {
            RemoteAccess::Write => self.remote_write,
            RemoteAccess::Read => self.remote_read,
        }
    }

    /// Returns whether any transmit operation of the endpoint is counted.
    pub(crate) fn counts_local_ops(&self) -> bool {
        self.send.is_some() || self.read.is_some() || self.write.is_some()
    }

    pub(crate) fn for_op(&self, kind: OpKind) -> Option<CounterId> {
        match kind {
            OpKind::Send => self.send,
            OpKind::Recv => self.recv,
            OpKind::Read | OpKind::FetchAtomic => self.read,
            OpKind::Write | OpKind::Atomic => self.write,
            _ => None,
        }
    }
}
