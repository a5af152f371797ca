//! The resources whose lack is `Error::WouldBlock`, and the text of that error.

use std::fmt;

use crate::address::FiAddr;

/// The resource that was missing when a post failed with
/// [`Error::WouldBlock`](super::Error::WouldBlock), and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// A transmit credit. One peer can hold a quarter of the endpoint's credits, and an operation
    /// waits behind earlier ones to its peer, also where credits are free. Await the operation; or,
    /// for a send, await `Endpoint::reserve` and post with the `Permit`.
    TransmitCredit {
        /// The peer of the operation.
        peer: FiAddr,
        /// Credits that operations to this peer hold.
        in_use: usize,
        /// Credits that operations to one peer can hold.
        peer_limit: usize,
        /// Credits of the endpoint that are free.
        free: usize,
    },
    /// An entry in the queue of posted receives of an endpoint or shared receive context. A receive
    /// frees its entry when it completes, not when its completion is taken out of the queue. Post
    /// again when an earlier receive has completed, or await the receive: only started and posted
    /// ones are refused, and multi-receives.
    ReceiveEntry {
        /// The number of entries, all in use.
        limit: usize,
    },
    /// An entry in the completion queue. Take completions out of the queue.
    CompletionEntry {
        /// The number of entries: each holds a completion or is reserved by a pending operation.
        capacity: usize,
    },
    /// An entry of the event queue for an event that the program writes (`fi_eq_write`), or for a
    /// registration that it posts (`FI_REG_MR`). Read events from the queue.
    EventEntry {
        /// The number of such entries of each kind, beside other events.
        capacity: usize,
    },
    /// Memory for a loan. Peers return it when they drop the messages.
    LoanMemory {
        /// Bytes that are lent or to be written. Memory is taken in powers of two from 4 KiB.
        in_use: usize,
        /// The most bytes that a domain lends.
        limit: usize,
    },
    /// Room to buffer a claimed message beyond the budget for unexpected messages. Receive or
    /// discard claimed messages, and receive the messages of claims and receives that were dropped;
    /// or receive the message without a claim, which needs no room.
    BufferBeyondBudget {
        /// The length of the message.
        len: usize,
        /// Bytes that messages beyond the budget use.
        in_use: usize,
        /// The most bytes that they use, apart from one message that may be longer. One peer can
        /// use half of what other peers leave.
        limit: usize,
    },
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TransmitCredit {
                peer,
                in_use,
                peer_limit,
                free,
            } if in_use < peer_limit && *free > 0 => write!(
                f,
                "earlier operations to address handle {peer} still wait (FI_EAGAIN): use .await, \
                 or send with a Permit from Endpoint::reserve"
            ),
            Self::TransmitCredit {
                peer,
                in_use,
                peer_limit,
                free,
            } => write!(
                f,
                "no transmit credit for address handle {peer} ({in_use} of {peer_limit} in use, \
                 {free} free; FI_EAGAIN): use .await, or send with a Permit from \
                 Endpoint::reserve"
            ),
            Self::ReceiveEntry { limit } => write!(
                f,
                "no free entry in the receive queue ({limit} receives are pending; FI_EAGAIN): use \
                 .await, or post again when one has completed"
            ),
            Self::CompletionEntry { capacity } => write!(
                f,
                "no free entry in the completion queue ({capacity} reserved or filled; FI_EAGAIN): \
                 take completions, then try again"
            ),
            Self::EventEntry { capacity } => write!(
                f,
                "no free entry in the event queue (all {capacity} for events of the program or \
                 for registrations are in use; FI_EAGAIN): read events, then try again"
            ),
            Self::LoanMemory { in_use, limit } => write!(
                f,
                "no loan memory ({in_use} of {limit} bytes in use; FI_EAGAIN): wait until peers \
                 drop loaned messages, then try again"
            ),
            Self::BufferBeyondBudget { len, in_use, limit } => write!(
                f,
                "no room for a claimed message of {len} bytes beyond the budget ({in_use} of \
                 {limit} bytes in use; FI_EAGAIN): receive claimed messages, then try again"
            ),
        }
    }
}
