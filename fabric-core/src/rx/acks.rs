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
use crate::matching::{AckRequest, Envelope, PeerKey};
use crate::op::EpId;

use super::RxQueue;

/// Acks to send: the peer, and the id of the ack.
#[derive(Debug, Default)]
pub(super) struct UnsentAcks(Vec<(PeerKey, u32)>);

impl UnsentAcks {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Queues the ack of a message that a receive has matched before it is complete, if the sender
    /// requested the ack for the match.
    pub(super) fn push_match(&mut self, envelope: &mut Envelope) {
        let requested = |ack: &mut AckRequest| ack.level == CompletionLevel::Matched;
        if let Some(ack) = envelope.ack.take_if(requested) {
            self.0.push((envelope.peer, ack.ack_id));
        }
    }

    /// Takes an ack for a peer that is connected to this endpoint. Acks for disconnected peers are
    /// discarded.
    fn pop_for(
        &mut self,
        ep: EpId,
        endpoint_of: impl Fn(PeerKey) -> Option<EpId>,
    ) -> Option<(PeerKey, u32)> {
        let mut index = self.0.len();
        while index > 0 {
            index -= 1;
            match endpoint_of(self.0[index].0) {
                Some(other) if other != ep => {}
                of_ep => {
                    let ack = self.0.swap_remove(index);
                    if of_ep.is_some() {
                        return Some(ack);
                    }
                }
            }
        }
        None
    }
}

impl RxQueue {
    /// Queues the ack of a message that was received or discarded, if its sender requested one.
    /// Call once per message: [`UnsentAcks::push_match`] removes the request from the envelope.
    #[inline]
    pub(super) fn queue_ack(&mut self, envelope: &Envelope) {
        if let Some(ack) = envelope.ack {
            self.unsent_acks.0.push((envelope.peer, ack.ack_id));
        }
    }

    /// Returns whether there are acks to send.
    #[must_use]
    #[inline]
    pub fn has_unsent_acks(&self) -> bool {
        !self.unsent_acks.0.is_empty()
    }

    /// Discards the acks to send, when no sender is connected any more.
    pub fn clear_acks(&mut self) {
        self.unsent_acks.clear();
    }

    /// Takes an ack to send to a peer of this endpoint: the sender of the message, and the id of
    /// the ack.
    pub fn pop_ack(&mut self, ep: EpId) -> Option<(PeerKey, u32)> {
        if self.shared {
            return self
                .unsent_acks
                .pop_for(ep, |peer| self.peers.endpoint_of(peer));
        }
        self.unsent_acks.0.pop()
    }
}
