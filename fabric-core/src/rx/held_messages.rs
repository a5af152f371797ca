//! Messages that the budget has declined, and that transports hold: one of each peer.
//!
//! A held message keeps its place in the order of arrival. A posted receive that accepts it and no
//! buffered message is for the held message that has arrived first: the transport delivers it.
//! Buffered messages that have arrived later pass it. But of the receives that they and it could
//! take, one in [`MIN_INTERVAL`] is for the held message: otherwise a peer whose messages fill its
//! share would get each receive for a buffered message, and the room for a new one, and the held
//! message of another peer would wait without end.
//!
//! A held message may stop after its beginning, and keep its receive for a part of the progress
//! timeout. Each one that does makes the interval longer.

use std::collections::HashMap;

use crate::address::FiAddr;
use crate::matching::{Envelope, PeerKey, RecvSpec, UnexpectedKey, UnexpectedQueue};
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
    queue: UnexpectedQueue<()>,
    keys: HashMap<PeerKey, UnexpectedKey>,
    /// The receive that the next held message is for, while the transport delivers the message.
    next: Option<NextHeld>,
    /// The number of receives between [`MIN_INTERVAL`] and [`MAX_INTERVAL`] of which one is for a
    /// held message.
    interval: u32,
    /// Receives that buffered messages have taken since the last one for a held message.
    passed: u32,
}

/// A held message that is next, and its receive, which is queued.
#[derive(Clone, Copy)]
struct NextHeld {
    peer: PeerKey,
    key: UnexpectedKey,
    op: OpKey,
    spec: RecvSpec,
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
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a declined message, unless it was added before. `arrival` returns the next arrival
    /// number.
    #[cold]
    pub(super) fn add(&mut self, envelope: &Envelope, arrival: impl FnOnce() -> u64) {
        self.keys.entry(envelope.peer).or_insert_with(|| {
            let mut envelope = envelope.clone();
            envelope.arrival = arrival();
            self.queue.insert(envelope, ())
        });
    }

    /// Removes the message of a peer, and returns its arrival number.
    #[cold]
    pub(super) fn remove(&mut self, peer: PeerKey) -> Option<u64> {
        let key = self.keys.remove(&peer)?;
        self.queue.take(key).map(|(envelope, ())| envelope.arrival)
    }

    /// Counts a receive for which a later buffered message competes with a held one. Returns
    /// whether the receive is for the held message.
    fn take_turn(&mut self) -> bool {
        self.passed += 1;
        let is_turn = self.passed >= self.interval;
        if is_turn {
            self.passed = 0;
            self.interval = (self.interval / 2).max(MIN_INTERVAL);
        }
        is_turn
    }

    /// Notes that a message has stalled, and its connection ends because another message waits.
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
        debug_assert!(self.held.next.is_none(), "a post was not reported");
        let next = self.find_next_held(engine, &spec);
        let Some((peer, key)) = next.filter(|_| self.post_reports) else {
            return self.post_after_others(engine, op, spec);
        };
        let next = NextHeld {
            peer,
            key,
            op,
            spec,
        };
        self.held.next = Some(next);
        let key = self.matcher.posted.push(&spec, op);
        self.record_post_key(op, key);
    }

    /// Returns the held message that is next for this receive, and its peer.
    fn find_next_held(
        &mut self,
        engine: &impl RxEngine,
        spec: &RecvSpec,
    ) -> Option<(PeerKey, UnexpectedKey)> {
        let held = self.held.queue.peek(spec)?;
        let (peer, arrival) = (held.peer, held.arrival);
        let departing = spec.from.and_then(|from| engine.departing_address(from));
        let buffered = self.matcher.unexpected.peek(spec);
        let is_next = departing.is_none()
            && buffered.is_none_or(|buffered| buffered.arrival > arrival && self.held.take_turn());
        is_next.then_some((peer, *self.held.keys.get(&peer)?))
    }

    /// Returns the peer whose held message is for the receive that was just posted: the transport
    /// delivers the message, if it still holds it, before it delivers any other one.
    #[must_use]
    pub fn next_held(&self) -> Option<PeerKey> {
        self.held.next.map(|next| next.peer)
    }

    /// Ends what [`next_held`](Self::next_held) began: a receive that has got no message takes a
    /// buffered one.
    pub fn end_next_held(&mut self, engine: &mut impl RxEngine) {
        let Some(next) = self.held.next.take() else {
            return;
        };
        if self.remove_posted(next.op) {
            if self.held.keys.get(&next.peer) == Some(&next.key) {
                // The transport does not hold the message any more.
                self.held.remove(next.peer);
            }
            self.post_after_others(engine, next.op, next.spec);
        }
    }
}
