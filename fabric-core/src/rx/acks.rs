//! Acks that senders wait for.
//!
//! A message may carry an [`AckRequest`](crate::matching::AckRequest): its send completes when a
//! receive has matched it, or has all of it. The ack is sent once per message, whatever happens
//! afterwards: if the receive is dropped and its message is requeued, the sender gets no second
//! ack. A discarded message is acknowledged too. A message that can never be complete is not
//! acknowledged: its sender sees the connection end.
//!
//! The queue holds the acks until the transport takes them to send them.

use crate::completion::CompletionLevel;
use crate::matching::{Envelope, PeerKey};
use crate::transport::EpId;

use super::RxQueue;

impl RxQueue {
    /// Queues the ack of a message that was received or discarded, if its sender requested one.
    /// Call once per message: [`ack_match`] removes the request from the envelope.
    #[inline]
    pub(super) fn queue_ack(&mut self, envelope: &Envelope) {
        if let Some(ack) = envelope.ack {
            self.unsent_acks.push((envelope.peer, ack.ack_id));
        }
    }

    /// Returns whether there are acks to send.
    #[must_use]
    #[inline]
    pub fn has_unsent_acks(&self) -> bool {
        !self.unsent_acks.is_empty()
    }

    /// Discards the acks to send, when no sender is connected any more.
    pub fn clear_acks(&mut self) {
        self.unsent_acks.clear();
    }

    /// Takes an ack to send to a peer of this endpoint: the sender of the message, and the id of the
    /// ack.
    pub fn pop_ack(&mut self, ep: EpId) -> Option<(PeerKey, u32)> {
        if self.shared {
            return self.pop_shared_ack(ep);
        }
        self.unsent_acks.pop()
    }
}

/// Queues the ack of a message that a receive has matched before it is complete, if the sender
/// requested the ack for the match.
pub(super) fn ack_match(acks: &mut Vec<(PeerKey, u32)>, envelope: &mut Envelope) {
    if let Some(ack) = envelope
        .ack
        .take_if(|ack| ack.level == CompletionLevel::Matched)
    {
        acks.push((envelope.peer, ack.ack_id));
    }
}
