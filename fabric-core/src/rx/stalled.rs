//! Messages that have begun to arrive, and whose senders send no more.
//!
//! The engine [checks](RxQueue::check_arrivals) the arriving messages at intervals. A message of
//! which nothing has arrived since the check before the last one is *stalled*: another message may
//! take its receive, and the stalled message is buffered. If a message waits for that receive and
//! the stalled one is too long to be buffered, the engine ends the connection of the stalled one.
//! It does so after [`CHECKS_PER_TIMEOUT`] checks in any case. A message that this side copies is
//! not checked.

use super::budget::message_cost;
use super::engine::RxEngine;
use super::lost::OnLoss;
use super::partial::{PartialId, PartialMessage, PartialReceive, PartialTarget};
use super::{RxQueue, UnexpectedMessage};
use crate::buf::PooledBuf;
use crate::matching::{Envelope, PeerKey, PostPlace};
use crate::op::{EpId, OpKey};

/// The number of checks without a byte after which a message has timed out.
pub const CHECKS_PER_TIMEOUT: u32 = 16;

/// The number of checks without a byte after which a message is stalled.
const CHECKS_UNTIL_STALLED: u32 = 2;

impl PartialMessage {
    /// Returns whether nothing has arrived since the check before the last one.
    fn is_stalled(&self) -> bool {
        self.received == self.received_at_check && self.idle_checks >= CHECKS_UNTIL_STALLED
    }
}

impl RxQueue {
    /// Checks which messages have made progress since the last call. Appends the senders of
    /// messages that have timed out to `timed_out`, each with the endpoint that it is connected to.
    /// Returns whether a message is arriving, so that another check is needed.
    pub fn check_arrivals(
        &mut self,
        engine: &mut impl RxEngine,
        timed_out: &mut Vec<(EpId, PeerKey)>,
    ) -> bool {
        let mut stalled = Vec::new();
        let mut any = false;
        for (id, partial) in self.partials.iter_with_ids_mut() {
            if self.peer_copies.has(id) {
                continue;
            }
            any = true;
            if partial.received != partial.received_at_check {
                partial.received_at_check = partial.received;
                partial.idle_checks = 0;
                continue;
            }
            partial.idle_checks += 1;
            if partial.idle_checks >= CHECKS_PER_TIMEOUT {
                let peer = partial.envelope.peer;
                timed_out.push((self.peers.endpoint_of(peer).unwrap_or(self.ep), peer));
            } else if partial.is_stalled() {
                stalled.push((id, partial.envelope.peer));
            }
        }
        self.partials.has_stalled = !stalled.is_empty();
        for (id, peer) in stalled {
            if !self.serve_waiting(engine, id, peer) {
                timed_out.push((self.peers.endpoint_of(peer).unwrap_or(self.ep), peer));
            }
        }
        any
    }

    /// Gives the receive of a stalled message to the earliest buffered message that it accepts.
    /// Returns false if there is such a message and the stalled one cannot be buffered.
    fn serve_waiting(&mut self, engine: &mut impl RxEngine, id: PartialId, peer: PeerKey) -> bool {
        let Some(place) = self.partials.receive_of(id).and_then(restorable) else {
            return true;
        };
        let is_other = |envelope: &Envelope| envelope.peer != peer;
        let Some(waiting) = self.matcher.unexpected_for_place(&place, is_other) else {
            return true;
        };
        let Some(receive) = self.release_stalled(engine, id) else {
            return false;
        };
        if let Some((envelope, message)) = self.matcher.take_message(waiting) {
            self.deliver_buffered(engine, receive, envelope, message);
        }
        self.check_probes(engine);
        true
    }

    /// Returns whether a stalled message has a receive that accepts this message.
    pub(super) fn has_stalled_receive_for(&self, envelope: &Envelope) -> bool {
        self.partials.has_stalled && self.stalled_receive_for(envelope).is_some()
    }

    /// Takes a receive that accepts this message from a stalled message, which is buffered.
    #[inline]
    pub(super) fn take_stalled_receive(
        &mut self,
        engine: &mut impl RxEngine,
        envelope: &Envelope,
    ) -> Option<(OpKey, OnLoss)> {
        if !self.partials.has_stalled {
            return None;
        }
        let id = self.stalled_receive_for(envelope)?;
        let receive = self.release_stalled(engine, id);
        self.check_probes(engine);
        receive
    }

    /// Returns a stalled message that can be buffered, and whose receive accepts this message of
    /// another peer.
    #[cold]
    fn stalled_receive_for(&self, envelope: &Envelope) -> Option<PartialId> {
        let accepts = |receive: &&PartialReceive| {
            let Some(partial) = self.partials.get(receive.partial) else {
                return false;
            };
            partial.is_stalled()
                && partial.envelope.peer != envelope.peer
                && !self.peer_copies.has(receive.partial)
                && self.can_buffer(&partial.envelope)
                && restorable(receive).is_some_and(|place| place.accepts(envelope))
        };
        let mut receives = self.partials.receives();
        receives.find(accepts).map(|receive| receive.partial)
    }

    /// Returns whether the share of its sender has room for a stalled message.
    fn can_buffer(&self, envelope: &Envelope) -> bool {
        self.budget.fits(envelope.peer, message_cost(envelope.len))
    }

    /// Buffers a stalled message, and returns its receive. `None` if the sender's share of the
    /// budget has no room for the message.
    fn release_stalled(
        &mut self,
        engine: &mut impl RxEngine,
        id: PartialId,
    ) -> Option<(OpKey, OnLoss)> {
        let partial = self.partials.get(id)?;
        let PartialTarget::Receive { op, written, .. } = partial.target else {
            return None;
        };
        let envelope = partial.envelope.clone();
        let mut bytes = PooledBuf::empty(&self.pool);
        if !self.can_buffer(&envelope) || bytes.begin_fill(envelope.len).is_err() {
            return None;
        }
        engine.copy_received(op, written, &mut bytes);
        let receive = self.partials.take_receive(op)?;
        engine.repost(op);
        let message = UnexpectedMessage {
            bytes,
            peer_memory: None,
            partial: Some(id),
        };
        let key = self.add_unexpected(envelope, message);
        if let Some(partial) = self.partials.get_mut(id) {
            partial.truncated = written < partial.received;
            partial.target = PartialTarget::Buffer(key);
        }
        Some((op, receive.on_loss))
    }
}

/// Returns the place in posting order of a receive that another message may take.
fn restorable(receive: &PartialReceive) -> Option<PostPlace> {
    match receive.on_loss {
        OnLoss::Restore(place) => Some(place),
        OnLoss::Discard | OnLoss::Fail => None,
    }
}
