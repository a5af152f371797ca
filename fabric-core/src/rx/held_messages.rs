//! Messages that the queue has declined, because the budget has no room or there is no memory for
//! them, and that transports hold: one of each peer.
//!
//! A held message keeps its place in the order of arrival. A posted receive that accepts it and no
//! buffered message is for the held message that has arrived first: the transport delivers it.
//! Buffered messages that have arrived later pass it. But of the receives that they and it could
//! take, one in [`MIN_INTERVAL`] is for the held message: otherwise a peer whose messages fill its
//! share would get each receive for a buffered message, and the room for a new one, and the held
//! message of another peer would wait without end.
//!
//! Parts of multi-receives, probes and claims count as receives do:
//!
//! * A multi-receive that takes buffered messages stops at the turn of a held one, and accepts
//!   nothing else until the transport has delivered that message. The next multi-receive has the
//!   turn if the message does not fit into this one.
//! * A probe finds the held message whose turn it is, and the transport goes on holding it. The
//!   message that a probe has found is for the next receive or claim that accepts it. For a claim
//!   the held message is buffered, beyond the budget if need be and there is room; without room the
//!   claim takes a buffered message. The message goes
//!   to its old place and is the first one there, so that the claim takes this message.
//! * A receive that a buffered message takes outside of a post, because another message was lost or
//!   is stalled or a multi-receive has ended, is counted, and the turn is that of a later post: the
//!   transport cannot be called then. The program has posted a limited number of such receives.
//!
//! A held message may stop after its beginning, and keep its receive for a part of the progress
//! timeout. Each one that does makes the interval longer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::address::FiAddr;
use crate::completion::Transfer;
use crate::matching::{
    Envelope, PeerKey, PostKey, PostPlace, RecvSpec, UnexpectedKey, UnexpectedQueue,
};
use crate::op::OpKey;

use super::RxQueue;
use super::engine::RxEngine;

/// Of this number of receives that a held message and a later buffered one accept, one is for the
/// held message.
const MIN_INTERVAL: u32 = 64;
/// The number after many messages have stalled.
const MAX_INTERVAL: u32 = 1 << 16;

/// The held messages of a queue.
pub(super) struct HeldMessages {
    /// Each with whether a probe has found it.
    queue: UnexpectedQueue<bool>,
    keys: HashMap<PeerKey, UnexpectedKey>,
    /// What the next held message is for, while the transport delivers the message.
    next: Option<(NextHeld, NextFor)>,
    /// The number of receives between [`MIN_INTERVAL`] and [`MAX_INTERVAL`] of which one is for a
    /// held message.
    interval: u32,
    /// Receives that buffered messages have taken since the last one for a held message.
    passed: u32,
}

/// A held message that is next.
#[derive(Clone, Copy)]
pub(super) struct NextHeld {
    peer: PeerKey,
    key: UnexpectedKey,
    /// Whether buffered messages could be next.
    is_turn: bool,
    /// Whether the queue has declined the message again.
    is_declined: bool,
}

/// What a held message is next for: it is queued.
#[derive(Clone, Copy)]
pub(super) enum NextFor {
    Receive(OpKey, RecvSpec),
    MultiRecv(OpKey),
    Claim,
}

impl NextHeld {
    pub(super) fn peer(self) -> PeerKey {
        self.peer
    }
}

impl HeldMessages {
    pub(super) fn new() -> Self {
        Self {
            queue: UnexpectedQueue::new(),
            keys: HashMap::new(),
            next: None,
            interval: MIN_INTERVAL,
            passed: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a declined message, unless it was added before. `arrival` returns the next arrival
    /// number. Returns whether the message was added.
    #[cold]
    pub(super) fn add(&mut self, envelope: &Envelope, arrival: impl FnOnce() -> u64) -> bool {
        if let Some((next, _)) = &mut self.next {
            // Not a later message of the peer, which has another key.
            next.is_declined |= self.keys.get(&envelope.peer) == Some(&next.key);
        }
        let Entry::Vacant(entry) = self.keys.entry(envelope.peer) else {
            return false;
        };
        let mut envelope = envelope.clone();
        envelope.arrival = arrival();
        entry.insert(self.queue.insert(envelope, false));
        true
    }

    /// Removes the message of a peer, and returns its arrival number.
    #[cold]
    pub(super) fn remove(&mut self, peer: PeerKey) -> Option<u64> {
        let key = self.keys.remove(&peer)?;
        self.queue.take(key).map(|(envelope, _)| envelope.arrival)
    }

    /// Counts a receive for which a later buffered message competes with a held one. Returns
    /// whether the receive is for the held message.
    fn count_receive(&mut self) -> bool {
        self.passed = self.passed.saturating_add(1);
        self.passed >= self.interval
    }

    /// Returns the length of a message that is next.
    pub(super) fn len_of(&self, next: NextHeld) -> usize {
        self.queue.get(next.key).map_or(0, |envelope| envelope.len)
    }

    /// Sets what the held message is next for.
    pub(super) fn set_next(&mut self, next: NextHeld, next_for: NextFor) {
        debug_assert!(self.next.is_none(), "the last one was not delivered");
        self.next = Some((next, next_for));
    }

    /// Returns whether the held message of this peer is next for this multi-receive.
    pub(super) fn is_next(&self, peer: PeerKey, multi: OpKey) -> bool {
        self.next.is_some_and(|(next, next_for)| {
            matches!(next_for, NextFor::MultiRecv(op) if op == multi)
                && self.keys.get(&peer) == Some(&next.key)
        })
    }

    /// Returns whether the held message of this peer is next for a claim.
    pub(super) fn is_next_for_claim(&self, peer: PeerKey) -> bool {
        self.next.is_some_and(|(next, next_for)| {
            matches!(next_for, NextFor::Claim) && self.keys.get(&peer) == Some(&next.key)
        })
    }

    /// Notes that a probe has found this message. Returns the description of the message.
    pub(super) fn set_probed(&mut self, next: NextHeld) -> Option<Transfer> {
        if next.is_turn {
            self.end_turn();
        }
        let (envelope, is_probed) = self.queue.get_mut(next.key)?;
        *is_probed = true;
        Some(Transfer::received(envelope, envelope.len))
    }

    /// Ends the turn of a held message.
    fn end_turn(&mut self) {
        self.passed = 0;
        self.interval = (self.interval / 2).max(MIN_INTERVAL);
    }

    /// Notes that the connection of a stalled message ends: another message waits, or the receive
    /// of the message could not be given to another one.
    pub(super) fn on_stalled(&mut self) {
        self.interval = (self.interval * 4).min(MAX_INTERVAL);
    }

    /// Sets the source of messages of these peers that have none.
    pub(super) fn assign_source(&mut self, peers: &[PeerKey], source: FiAddr) {
        // The transport offers its messages itself.
        let _ = self.queue.assign_source(peers, source);
    }

    pub(super) fn clear_source(&mut self, source: FiAddr) {
        self.queue.clear_source(source);
    }
}

impl RxQueue {
    /// Returns the arrival number of a message that is accepted now: of a held message the number
    /// that it got when it was declined.
    #[inline(always)] // on the fast path of small messages
    pub(super) fn arrival_of(&mut self, peer: PeerKey) -> u64 {
        if !self.held.is_empty()
            && let Some(arrival) = self.held.remove(peer)
        {
            return arrival;
        }
        self.matcher.next_arrival()
    }

    /// Posts a receive while messages are held. If a held message is next, the receive is queued
    /// for that message: the engine has [`next_held`](Self::next_held) delivered, and calls
    /// [`end_next_held`](Self::end_next_held).
    #[cold]
    pub(super) fn post_with_held(&mut self, engine: &mut impl RxEngine, op: OpKey, spec: RecvSpec) {
        let buffered = self.matcher.unexpected_for_new(&spec).map(|(key, _)| key);
        let next = self.find_next_held(engine, (&spec, None), buffered);
        let Some(next) = next.filter(|_| self.post_reports) else {
            return self.queue_and_match(engine, op, spec);
        };
        self.held.set_next(next, NextFor::Receive(op, spec));
        let key = self.matcher.posted.push(&spec, op);
        self.record_post_key(op, key);
    }

    /// Returns the held message that is next for a receive, given by its spec and by its key if it
    /// is queued. `buffered` is the first buffered message for the receive.
    #[cold]
    pub(super) fn find_next_held(
        &mut self,
        engine: &impl RxEngine,
        (spec, key): (&RecvSpec, Option<PostKey>),
        buffered: Option<UnexpectedKey>,
    ) -> Option<NextHeld> {
        if self.held.is_empty() {
            return None;
        }
        let departing = spec.from.and_then(|from| engine.departing_address(from));
        if departing.is_some() {
            return None;
        }
        let posted = &mut self.matcher.posted;
        let is_for = |envelope: &Envelope| posted.find(envelope).map(|(key, _)| key) == key;
        let held_key = self.held.queue.find(spec, is_for)?.0;
        let (held, is_probed) = self.held.queue.get_mut(held_key)?;
        let (peer, arrival, is_probed) = (held.peer, held.arrival, *is_probed);
        let buffered = buffered.and_then(|key| self.matcher.unexpected.get_mut(key));
        let is_turn = buffered.is_some() && !is_probed;
        let is_next = buffered.is_none_or(|(envelope, message)| {
            envelope.arrival > arrival
                && !message.is_probed
                && (is_probed || self.held.count_receive())
        });
        is_next.then_some(NextHeld {
            peer,
            key: held_key,
            is_turn,
            is_declined: false,
        })
    }

    /// Counts a receive that a buffered message with this arrival number takes outside of a post,
    /// or before an arriving message, if a held message has arrived first. `place` is that of the
    /// receive; a directed one has none, and is not counted.
    pub(super) fn count_passed(&mut self, place: Option<PostPlace>, arrival: u64) {
        // The first one that the receive accepts is the oldest.
        if let Some(place) = place
            && let Some(key) = self.held.queue.find_for_place(&place, |_| true)
            && let Some(oldest) = self.held.queue.get(key)
            && oldest.arrival < arrival
        {
            self.held.count_receive();
        }
    }

    /// Returns the peer whose held message is next: for the receive or multi-receive that was just
    /// posted, a multi-receive that takes unexpected messages, or a claim. The transport delivers
    /// the message, if it still holds it, before it delivers any other one.
    #[must_use]
    #[inline]
    pub fn next_held(&self) -> Option<PeerKey> {
        self.held.next.map(|(next, _)| next.peer)
    }

    /// Ends what [`next_held`](Self::next_held) began: a receive that has got no message takes a
    /// buffered one, and a multi-receive goes on. Returns whether the queue has declined the
    /// message again: there is no memory for a claim, or no room in a multi-receive.
    pub fn end_next_held(&mut self, engine: &mut impl RxEngine) -> bool {
        let Some((next, next_for)) = self.held.next.take() else {
            return false;
        };
        if !next.is_declined {
            if self.held.keys.get(&next.peer) == Some(&next.key) {
                // The transport does not hold the message any more.
                self.held.remove(next.peer);
            }
            if next.is_turn {
                self.held.end_turn();
            }
        }
        match next_for {
            NextFor::Receive(op, spec) if self.remove_posted(op) => {
                self.queue_and_match(engine, op, spec);
            }
            NextFor::Claim if let Some((_, is_probed)) = self.held.queue.get_mut(next.key) => {
                *is_probed = false;
            }
            // Other receives get the unexpected messages that waited for it.
            NextFor::MultiRecv(op) if !self.is_queued_multi(op) => self.match_unexpected(engine),
            _ => {}
        }
        next.is_declined
    }
}
