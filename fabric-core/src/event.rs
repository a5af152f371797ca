//! What an event queue reports: things that happened without being asked for.

use crate::address::{Address, FiAddr};
use crate::error::Error;

/// An entry of an event queue (`fi_eq_entry`, `fi_eq_err_entry`).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_eq_entry")]
pub struct Event {
    /// The number of the endpoint it happened on, which `Endpoint::id` tells; 0 for the queue itself.
    pub object: u64,
    /// The context that object was opened with.
    pub context: u64,
    /// What happened.
    pub kind: EventKind,
}

impl Event {
    /// An event; for the progress engine.
    #[doc(hidden)]
    #[must_use]
    pub fn new(object: u64, context: u64, kind: EventKind) -> Self {
        Self { object, context, kind }
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
    /// It closed its endpoint.
    Closed,
    /// Its process died, or was killed.
    Died,
    /// It broke the protocol, as the text says, and this side ended the connection.
    Protocol(&'static str),
}
