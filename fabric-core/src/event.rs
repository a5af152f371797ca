//! What an event queue reports: things that happened without being asked for.

use crate::address::{Address, FiAddr};
use crate::error::Error;

/// An entry of an event queue (`fi_eq_entry`, `fi_eq_err_entry`).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_eq_entry")]
pub struct Event {
    /// The number of the endpoint it happened on, which `Endpoint::id` tells; 0 for the queue
    /// itself.
    pub endpoint_id: u64,
    /// The context that object was opened with.
    pub context: u64,
    /// What happened.
    pub kind: EventKind,
}

impl Event {
    /// An event; for the progress engine.
    #[doc(hidden)]
    #[must_use]
    pub fn new(endpoint_id: u64, context: u64, kind: EventKind) -> Self {
        Self {
            endpoint_id,
            context,
            kind,
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// A peer connected to this endpoint and may send to it.
    PeerConnected {
        /// The name it gave.
        peer: Address,
        /// Its number in the address vector, if it has one.
        source: Option<FiAddr>,
    },
    /// A peer that was connected is not any more.
    PeerDown {
        /// Its name.
        peer: Address,
        /// Its number in the address vector, if it had one.
        source: Option<FiAddr>,
        /// How it ended.
        reason: DownReason,
    },
    /// Somebody wants to be connected with this passive endpoint (`FI_CONNREQ`). The request itself
    /// is taken from there.
    #[doc(alias = "FI_CONNREQ")]
    ConnectionRequest {
        /// Where it calls from.
        peer: Address,
        /// Its private data.
        data: Vec<u8>,
    },
    /// This endpoint is connected with its peer (`FI_CONNECTED`).
    #[doc(alias = "FI_CONNECTED")]
    Connected {
        /// With whom.
        peer: Address,
        /// The private data that the peer has answered with; empty where this side has accepted,
        /// and has it from the request.
        data: Vec<u8>,
    },
    /// This endpoint has not been connected, whoever waits for it.
    ConnectFailed {
        /// Why. [`Error::Rejected`] has the private data of the peer.
        error: Error,
    },
    /// The connection of this endpoint has ended (`FI_SHUTDOWN`). What has come before is still
    /// received.
    #[doc(alias = "FI_SHUTDOWN")]
    Shutdown {
        /// With whom it was.
        peer: Address,
        /// How it ended.
        reason: DownReason,
    },
    /// An attempt to connect was refused.
    Rejected {
        /// Why.
        error: Error,
    },
    /// An operation nobody waits for failed: an inject, or one whose future was dropped.
    OperationFailed {
        /// The peer it was meant for, if there was one.
        peer: Option<FiAddr>,
        /// Why.
        error: Error,
    },
    /// The queue was full and this many events were not kept.
    Overrun {
        /// How many.
        lost: u64,
    },
}

/// How a peer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DownReason {
    /// It closed its endpoint; over TCP also when its process was killed between two messages.
    Closed,
    /// Its process died, or was killed.
    Died,
    /// It broke the protocol, as the text says, and this side ended the connection.
    Protocol(&'static str),
}
