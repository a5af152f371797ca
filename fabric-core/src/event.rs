//! Entries of an event queue: asynchronous events of endpoints, connections and domains.

use crate::address::{Address, FiAddr};
use crate::error::Error;

/// An entry of an event queue (`fi_eq_entry`, `fi_eq_err_entry`).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_eq_entry")]
pub struct Event {
    /// The id of the object that the event is about (`fid`): of an endpoint, a passive endpoint, a
    /// shared receive context or a memory region; for [`EventKind::DriverEnded`] of the domain or
    /// passive endpoint, for [`EventKind::ConcurrentUse`] of the domain, for
    /// [`EventKind::Overrun`] and [`EventKind::User`] of the event queue.
    #[doc(alias = "fid")]
    pub object_id: u64,
    /// The context value that this object was opened with, or its registration was posted with;
    /// for [`EventKind::User`] the value that was written.
    pub context: u64,
    /// The event.
    pub kind: EventKind,
}

impl Event {
    /// Creates an event; for the progress engine.
    #[doc(hidden)]
    #[must_use]
    pub fn new(object_id: u64, context: u64, kind: EventKind) -> Self {
        Self {
            object_id,
            context,
            kind,
        }
    }
}

/// The kind of an event.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// A peer connected to this endpoint and may send to it.
    PeerConnected {
        /// The peer's name.
        peer: Address,
        /// The peer's handle in the address vector, if it has one.
        source: Option<FiAddr>,
    },
    /// The connection to a peer of this connectionless endpoint ended. The event may be read before
    /// the last messages and queue entries of the peer.
    PeerDown {
        /// The peer's name.
        peer: Address,
        /// The peer's handle in the address vector, if it had one. `None` also if the process that
        /// has disconnected had the name of another process, to which the handle leads.
        source: Option<FiAddr>,
        /// Why the connection ended.
        reason: DownReason,
    },
    /// The endpoint does not read the next message of a peer: no posted receive accepts the
    /// message, and the budget for unexpected messages has no room for it.
    ///
    /// Everything behind the message in the connection waits: messages with other tags, remote
    /// accesses, and over `tcp` also acknowledgements and responses to operations of this side. The
    /// endpoint reads on when a receive takes the message or room in the budget is freed. The
    /// program can end the connection with `Endpoint::disconnect`.
    ///
    /// Reported once, and again if the endpoint holds a message of the peer after all buffered
    /// messages of the peer were received.
    /// [`EndpointStats::held_connections`](crate::stats::EndpointStats::held_connections) counts
    /// the connections that wait now, without names.
    PeerOverBudget {
        /// The peer's name.
        peer: Address,
        /// The peer's handle in the address vector, if it has one.
        source: Option<FiAddr>,
        /// The length of the declined message, in bytes.
        len: usize,
        /// What buffered messages of the peer use of the budget, in bytes. If this is little, the
        /// message is longer than the share of the peer, or other peers of the same source use the
        /// share of the source.
        buffered: usize,
    },
    /// A peer requests a connection to this passive endpoint (`FI_CONNREQ`). The passive endpoint
    /// itself returns the request to accept or reject.
    #[doc(alias = "FI_CONNREQ")]
    ConnectionRequest {
        /// The address that the request came from.
        peer: Address,
        /// The private data of the request.
        data: Vec<u8>,
    },
    /// This endpoint is connected to its peer (`FI_CONNECTED`).
    #[doc(alias = "FI_CONNECTED")]
    Connected {
        /// The peer's name.
        peer: Address,
        /// The private data of the peer's accept; empty on the accepting side, which has the
        /// private data of the request.
        data: Vec<u8>,
    },
    /// This endpoint could not be connected. The event is queued even if a task awaits the connect.
    ConnectFailed {
        /// The reason. [`Error::RejectedByPeer`] holds the private data of the peer.
        error: Error,
    },
    /// The connection of this endpoint has ended (`FI_SHUTDOWN`). Messages that arrived before can
    /// still be received.
    #[doc(alias = "FI_SHUTDOWN")]
    Shutdown {
        /// The peer's name.
        peer: Address,
        /// Why the connection ended.
        reason: DownReason,
    },
    /// This endpoint refused connections of peers. (Where the peer refuses, the connect of this
    /// endpoint fails: [`EventKind::ConnectFailed`].)
    ///
    /// While the event is in the queue, further refusals of the endpoint for the same reason, or of
    /// the same other user, are counted in it. An event queue holds up to 16 of these events beside
    /// its capacity, so refused peers cannot fill the queue.
    InboundRefused {
        /// The reason of the first refusal. It names the peer, except at a limit of connections.
        error: Error,
        /// The number of refused connections.
        count: u64,
    },
    /// Unexpected messages of peers that had left were discarded, because the budget for unexpected
    /// messages was used up, because the limit of connections was reached, or because the program
    /// disconnected the peer.
    MessagesDiscarded {
        /// The name of the peer that had sent most of the bytes, if it is still known.
        peer: Option<Address>,
        /// The number of peers that had sent the messages.
        peers: usize,
        /// The number of messages. Of a connection that was closed to make room, only the first
        /// message is counted.
        messages: usize,
        /// The bytes of the messages that had been read.
        bytes: usize,
    },
    /// An operation failed, and no future or completion queue reports the failure: the operation is
    /// an inject, or its future was dropped.
    OperationFailed {
        /// The destination peer, if there was one.
        peer: Option<FiAddr>,
        /// The reason.
        error: Error,
    },
    /// The posted registration of a memory region is complete (`FI_MR_COMPLETE`): peers that get
    /// the key can access the region. The program takes the region with `PendingRegion::try_take`.
    #[doc(alias = "FI_MR_COMPLETE")]
    MrComplete {
        /// The key; `u64::MAX` in a domain that requires `FI_MR_RAW`.
        key: u64,
    },
    /// The posted registration of a memory region has failed.
    MrFailed {
        /// The reason.
        error: Error,
    },
    /// The driver of the domain or passive endpoint has ended before its object: its Tokio runtime
    /// was shut down, or the driver panicked. From now on the object makes progress only while the
    /// program polls it. The event goes to the queue that the object is bound to.
    DriverEnded,
    /// Two threads used this domain of thread model `Serial` at the same time. The later call was
    /// refused with [`Error::ConcurrentUse`], or has waited for the other. Reported once per
    /// domain; [`DomainStats::concurrent_uses`](crate::stats::DomainStats::concurrent_uses) counts
    /// the calls.
    ConcurrentUse,
    /// The program has written this event to the queue (`fi_eq_write`), with
    /// `EventWriter::write`.
    #[doc(alias = "FI_NOTIFY")]
    User {
        /// What the program has written.
        data: Vec<u8>,
    },
    /// The queue was full, and events were discarded.
    Overrun {
        /// The number of discarded events.
        lost: u64,
    },
}

impl EventKind {
    /// Adds the refusals of `other` to this event. Returns false, without a change, unless both are
    /// refusals for the same reason or of the same other user; for the progress engine.
    #[doc(hidden)]
    pub fn merge_refusals(&mut self, other: &Self) -> bool {
        let (
            Self::InboundRefused { error, count },
            Self::InboundRefused {
                error: other_error,
                count: added,
            },
        ) = (self, other)
        else {
            return false;
        };
        let merges = match (&*error, other_error) {
            (Error::OtherUser { theirs, .. }, Error::OtherUser { theirs: other, .. }) => {
                theirs == other
            }
            (Error::Protocol { what, .. }, Error::Protocol { what: other, .. }) => what == other,
            (
                Error::ConnectionRefused { reason, .. },
                Error::ConnectionRefused { reason: other, .. },
            ) => reason == other,
            (error, other) => error == other,
        };
        *count += if merges { *added } else { 0 };
        merges
    }
}

/// Why a connection to a peer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DownReason {
    /// The peer or this side closed the endpoint or shut down the connection, or the peer's program
    /// disconnected this side; over TCP also when the peer's process was killed between two
    /// messages.
    Closed,
    /// The peer's process died or was killed.
    Died,
    /// The peer violated the protocol, as the text says, and this side ended the connection.
    Protocol(&'static str),
    /// This side ended the connection. A message of the peer had begun to arrive and then made too
    /// little progress within the progress timeout.
    Stalled,
    /// This side's program disconnected the peer.
    Disconnected,
}
