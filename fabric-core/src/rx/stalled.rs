//! Messages that have begun to arrive, and whose senders send no more.
//!
//! The engine [checks](RxQueue::check_arrivals) the arriving messages at intervals. A message makes
//! progress if at least [`MIN_PROGRESS`] bytes arrive. A message without progress in two checks is
//! *stalled*: a whole message of another peer may take its receive, and the stalled message goes to
//! another receive that accepts it or is buffered. A peer's message does not pass an earlier
//! message of the same peer.
//!
//! A message that is arriving in a buffer has memory for all of its bytes and needs no receive to
//! go on. So a posted receive takes a whole message of another peer first, if it finds one among
//! the first [`MAX_EXAMINED`], and the arriving one at its old place when it is whole.
//!
//! The engine ends the connection of a message that times out. It does so after an eighth of the
//! timeout if the message is too long to be buffered and another one waits for its receive. A
//! message that this side copies is not checked.
//!
//! A message that arrives is compared with the receives of stalled messages only: peers can begin
//! any number of messages, but the program posts the receives.

use std::cell::Cell;

use super::budget::message_cost;
use super::engine::RxEngine;
use super::lost::OnLoss;
use super::partial::{PartialId, PartialMessage, PartialTarget};
use super::{RxQueue, UnexpectedMessage};
use crate::buf::PooledBuf;
use crate::matching::{Envelope, PeerKey, PostPlace, UnexpectedKey};
use crate::op::{EpId, OpKey};

/// The number of checks without progress after which a message is stalled.
const CHECKS_UNTIL_STALLED: u32 = 2;

/// The number of bytes that are progress. A peer could otherwise hold a receive by one byte now and
/// then.
const MIN_PROGRESS: usize = 4 << 10;

/// The number of messages that a posted receive examines for a whole one. Peers can begin any
/// number of messages.
const MAX_EXAMINED: usize = 64;

/// What the checks have found of one message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ArrivalProgress {
    /// The bytes that had arrived at the last check that found progress.
    received: usize,
    /// The number of checks since then.
    idle_checks: u32,
}

/// Returns the progress of a message that has just stalled.
#[cfg(test)]
pub(super) fn stalled_progress() -> ArrivalProgress {
    ArrivalProgress {
        received: 0,
        idle_checks: CHECKS_UNTIL_STALLED,
    }
}

impl ArrivalProgress {
    /// Returns whether a message of which `received` bytes have arrived has made progress since
    /// the check that found some.
    fn has_advanced(self, received: usize) -> bool {
        received - self.received >= MIN_PROGRESS
    }
}

impl PartialMessage {
    /// Returns whether the last check has found the message stalled.
    pub(super) fn was_stalled(&self) -> bool {
        let progress = self.progress;
        progress.is_some_and(|progress| progress.idle_checks >= CHECKS_UNTIL_STALLED)
    }

    fn is_stalled(&self) -> bool {
        let progress = self.progress.filter(|_| self.was_stalled());
        progress.is_some_and(|progress| !progress.has_advanced(self.received))
    }

    /// Returns the place in posting order of the message's receive, if another message may take
    /// the receive, which accepts messages of any source.
    pub(super) fn place_to_give(&self) -> Option<PostPlace> {
        match self.target() {
            PartialTarget::Receive { on_loss, .. } => on_loss.place(),
            _ => None,
        }
    }

    /// Returns whether the message has a receive that no other message may take, or is claimed.
    fn keeps_receive(&self) -> bool {
        match self.target() {
            PartialTarget::Receive { on_loss, .. } => on_loss.place().is_none(),
            PartialTarget::Claim(_) => true,
            PartialTarget::Buffer(_) | PartialTarget::Discard => false,
        }
    }
}

impl RxQueue {
    /// Checks which messages have made progress since the last call. A message has timed out after
    /// `checks_per_timeout` checks without progress. Appends the senders of messages that have
    /// timed out to `timed_out`, each with the endpoint that it is connected to. Returns whether a
    /// message is arriving, so that another check is needed.
    pub fn check_arrivals(
        &mut self,
        engine: &mut impl RxEngine,
        checks_per_timeout: u32,
        timed_out: &mut Vec<(EpId, PeerKey)>,
    ) -> bool {
        let mut stalled = Vec::new();
        let mut any = false;
        self.partials.check_all(|id, partial| {
            let keeps_receive = partial.keeps_receive();
            let Some(progress) = &mut partial.progress else {
                return;
            };
            any = true;
            if progress.has_advanced(partial.received) {
                *progress = ArrivalProgress {
                    received: partial.received,
                    idle_checks: 0,
                };
                return;
            }
            progress.idle_checks += 1;
            let peer = partial.envelope.peer;
            if progress.idle_checks >= checks_per_timeout {
                if keeps_receive {
                    self.held.on_stalled();
                }
                timed_out.push((self.peers.endpoint_of(peer).unwrap_or(self.ep), peer));
            } else if progress.idle_checks >= CHECKS_UNTIL_STALLED {
                stalled.push((id, peer, progress.idle_checks >= checks_per_timeout / 8));
            }
        });
        self.partials.has_stalled = !stalled.is_empty();
        self.other_changes += u64::from(self.partials.has_stalled);
        for (id, peer, may_end) in stalled {
            if !self.give_receive_to_waiting(engine, id) && may_end {
                self.held.on_stalled();
                timed_out.push((self.peers.endpoint_of(peer).unwrap_or(self.ep), peer));
            }
        }
        any
    }

    /// Delivers the earliest whole message of another peer that a receive with this place accepts.
    /// The arriving message, which was taken for the receive, returns to its old place. Delivers
    /// the arriving message if there is no other one, or this side copies it.
    #[cold]
    pub(super) fn deliver_whole_first(
        &mut self,
        engine: &mut impl RxEngine,
        (receive, place): ((OpKey, OnLoss), PostPlace),
        (id, envelope, message): (PartialId, Envelope, UnexpectedMessage),
    ) {
        let partial = self.partials.get(id);
        if partial.is_none_or(PartialMessage::is_copied) {
            return self.deliver_buffered(engine, receive, envelope, message);
        }
        let waiting = self.whole_message_for(&place, envelope.peer, MAX_EXAMINED);
        let Some((whole, bytes)) = waiting.and_then(|key| self.matcher.unexpected.take(key)) else {
            return self.deliver_buffered(engine, receive, envelope, message);
        };
        let key = self.matcher.unexpected.insert(envelope, message);
        self.partials.set_target(id, PartialTarget::Buffer(key));
        self.count_passed(Some(place), whole.arrival);
        self.deliver_buffered(engine, receive, whole, bytes);
    }

    /// Returns the earliest whole message for a receive with this place, of another peer than this
    /// one, after examining at most this many messages. It does not pass an earlier message of its
    /// own peer.
    fn whole_message_for(
        &mut self,
        place: &PostPlace,
        other: PeerKey,
        max_examined: usize,
    ) -> Option<UnexpectedKey> {
        let may_take = |envelope: &Envelope| {
            let first = self.partials.first_buffered_of(envelope.peer);
            envelope.peer != other && first.is_none_or(|first| envelope.arrival < first)
        };
        let examined = Cell::new(0);
        let found = self.matcher.unexpected_for_place(place, |envelope| {
            examined.set(examined.get() + 1);
            examined.get() >= max_examined || may_take(envelope)
        })?;
        let is_whole = self.matcher.unexpected.get(found).is_some_and(may_take);
        is_whole.then_some(found)
    }

    /// Gives the receive of a stalled message to the earliest whole message of another peer that
    /// the receive accepts. Returns false if there is such a message and the stalled one cannot be
    /// buffered.
    fn give_receive_to_waiting(&mut self, engine: &mut impl RxEngine, id: PartialId) -> bool {
        let Some(partial) = self.partials.get(id) else {
            return true;
        };
        let (peer, Some(place)) = (partial.envelope.peer, partial.place_to_give()) else {
            return true;
        };
        let Some(waiting) = self.whole_message_for(&place, peer, usize::MAX) else {
            return true;
        };
        let Some((receive, released)) = self.release_stalled(engine, id) else {
            return false;
        };
        if let Some((envelope, message)) = self.matcher.unexpected.take(waiting) {
            self.count_passed(Some(place), envelope.arrival);
            self.deliver_buffered(engine, receive, envelope, message);
        }
        self.match_or_buffer(engine, released.0, released.1);
        true
    }

    /// Returns whether a stalled message has a receive that accepts this message.
    pub(super) fn has_stalled_receive_for(&self, envelope: &Envelope) -> bool {
        self.partials.has_stalled && self.stalled_receive_for(envelope).is_some()
    }

    /// Takes a receive that accepts this message from a stalled message, which goes to another
    /// receive or is buffered.
    #[inline]
    pub(super) fn take_stalled_receive(
        &mut self,
        engine: &mut impl RxEngine,
        envelope: &Envelope,
    ) -> Option<(OpKey, OnLoss)> {
        if !self.partials.has_stalled {
            return None;
        }
        let mut id = self.stalled_receive_for(envelope)?;
        loop {
            self.give_receive_to_waiting(engine, id);
            let next = self.stalled_receive_for(envelope)?;
            if next == id {
                break;
            }
            id = next;
        }
        let (receive, released) = self.release_stalled(engine, id)?;
        self.match_or_buffer(engine, released.0, released.1);
        Some(receive)
    }

    /// Returns a stalled message that can be buffered, and whose receive accepts this message of
    /// another peer.
    #[cold]
    fn stalled_receive_for(&self, envelope: &Envelope) -> Option<PartialId> {
        if self.partials.first_buffered_of(envelope.peer).is_some() {
            return None;
        }
        self.partials.find_stalled_receive(|partial| {
            let place = partial.place_to_give();
            place.is_some_and(|place| place.accepts(envelope))
                && partial.is_stalled()
                && partial.envelope.peer != envelope.peer
                && self.can_buffer(&partial.envelope)
        })
    }

    /// Returns whether the share of its sender has room for a stalled message.
    fn can_buffer(&self, envelope: &Envelope) -> bool {
        self.budget.fits(envelope.peer, message_cost(envelope.len))
    }

    /// Takes the receive of a stalled message. Returns the receive, and the message for another
    /// receive or the buffer. `None` if the sender's share of the budget has no room for the
    /// message.
    fn release_stalled(
        &mut self,
        engine: &mut impl RxEngine,
        id: PartialId,
    ) -> Option<((OpKey, OnLoss), (Envelope, UnexpectedMessage))> {
        let partial = self.partials.get(id)?;
        let PartialTarget::Receive {
            op,
            written,
            on_loss,
            ..
        } = partial.target()
        else {
            return None;
        };
        let envelope = partial.envelope.clone();
        let mut bytes = PooledBuf::empty();
        if !self.can_buffer(&envelope) || bytes.begin_fill(envelope.len).is_err() {
            return None;
        }
        engine.copy_received(op, written, &mut bytes);
        engine.repost(op);
        if let Some(partial) = self.partials.get_mut(id) {
            // As `detach_partial`: bytes that did not fit into the receive are lost.
            partial.truncated = written < partial.received;
        }
        let message = UnexpectedMessage::new(bytes, Some(id));
        Some(((op, on_loss), (envelope, message)))
    }
}
