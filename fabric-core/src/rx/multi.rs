//! Multi-receives (`FI_MULTI_RECV`): each takes several messages.
//!
//! A multi-receive stays at its place in the queue while receives for single messages are split off
//! its buffer. When the completion queue has no room for another message, the multi-receive is
//! *blocked*: new messages that match the multi-receive are declined, and unexpected ones stay
//! queued. Receives that were posted later do not get these messages until the blocked
//! multi-receive has left the queue.

use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, PostKey, RecvSpec, UnexpectedKey};
use crate::op::OpKey;

use super::RxQueue;
use super::engine::{MultiRecvSplit, RxEngine};
use super::held_messages::NextFor;
use super::lost::OnLoss;
use super::peer_memory::COPY_CHUNK;

/// Maximum number of unexpected messages that are delivered to one multi-receive in one pass.
const MAX_MESSAGES_PER_PASS: usize = 64;

/// A queued multi-receive.
#[derive(Debug)]
struct QueuedMultiRecv {
    op: OpKey,
    key: PostKey,
    spec: RecvSpec,
    state: MultiRecvState,
}

/// State of a multi-receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MultiRecvState {
    /// The multi-receive takes messages as they arrive; no unexpected message waits for it.
    Open,
    /// The completion queue has no room for another message.
    Blocked,
    /// Unexpected messages are being delivered to the multi-receive, over several passes.
    Draining,
    /// The multi-receive has left the queue. The next pass removes this entry.
    Retired,
}

/// The posted multi-receives, and those that the next pass removes.
#[derive(Debug, Default)]
pub(super) struct QueuedMultiRecvs(Vec<QueuedMultiRecv>);

impl QueuedMultiRecvs {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The result of matching a message.
pub(super) enum MatchResult<T = OpKey> {
    /// This receive takes the message, and has left the queue if it takes one message only.
    Receive(T),
    /// A blocked or draining multi-receive will take the message later.
    Blocked,
    NoReceive,
}

impl RxQueue {
    /// Posts a multi-receive, and delivers unexpected messages that match to it. If a held message
    /// is next, the engine has [`next_held`](Self::next_held) delivered, and calls
    /// [`end_next_held`](Self::end_next_held).
    pub fn post_multi(&mut self, engine: &mut impl RxEngine, op: OpKey, spec: RecvSpec) {
        if let Some(from) = spec.from
            && let Some(peer) = engine.departing_address(from)
            && self.matcher.unexpected.peek(&spec).is_none()
        {
            return engine.complete(op, Outcome::failed(Error::PeerGone(peer)));
        }
        let key = self.matcher.posted.push(&spec, op);
        self.record_post_key(op, key);
        self.multi_recvs.0.push(QueuedMultiRecv {
            op,
            key,
            spec,
            state: MultiRecvState::Draining,
        });
        self.drain_to(engine, self.multi_recvs.len() - 1);
    }

    /// Returns whether a multi-receive is posted, or was since the last
    /// [`drain_unexpected`](Self::drain_unexpected).
    #[must_use]
    pub fn has_multi_recvs(&self) -> bool {
        !self.multi_recvs.is_empty()
    }

    /// Returns whether a multi-receive waits for room in its completion queue.
    #[must_use]
    pub fn waits_for_cq_room(&self) -> bool {
        self.multi_recvs
            .0
            .iter()
            .any(|multi| multi.state == MultiRecvState::Blocked)
    }

    /// Delivers unexpected messages to each multi-receive that can take some, within a bound, and
    /// removes retired entries. Returns whether any message moved or any entry was removed. If so,
    /// a held message may be next, as after [`post_multi`](Self::post_multi).
    #[cold]
    pub fn drain_unexpected(&mut self, engine: &mut impl RxEngine) -> bool {
        let mut moved = false;
        for index in 0..self.multi_recvs.len() {
            if self.next_held().is_some() {
                break;
            }
            let multi = &self.multi_recvs.0[index];
            if multi.state == MultiRecvState::Draining
                || (multi.state == MultiRecvState::Blocked && engine.reserve_cq_room(multi.op))
            {
                moved |= self.drain_to(engine, index);
            }
        }
        let before = self.multi_recvs.len();
        self.multi_recvs
            .0
            .retain(|multi| multi.state != MultiRecvState::Retired);
        moved | (self.multi_recvs.len() < before)
    }

    /// Delivers unexpected messages to the multi-receive at `index`, within a bound. Returns
    /// whether any message moved.
    fn drain_to(&mut self, engine: &mut impl RxEngine, index: usize) -> bool {
        let (op, key, spec) = (
            self.multi_recvs.0[index].op,
            self.multi_recvs.0[index].key,
            self.multi_recvs.0[index].spec,
        );
        let mut bytes = 0;
        for delivered in 0..MAX_MESSAGES_PER_PASS {
            let waiting = self.matcher.unexpected_for(&spec, key).map(|(key, _)| key);
            if waiting.is_some()
                && !self.held.is_empty()
                && engine.reserve_cq_room(op)
                && let Some(next) = self.find_next_held(engine, (&spec, Some(key)), waiting)
            {
                self.held.set_next(next, NextFor::MultiRecv(op));
                break;
            }
            let Some((waiting, envelope)) =
                waiting.and_then(|key| Some((key, self.matcher.unexpected.get(key)?)))
            else {
                self.multi_recvs.0[index].state = MultiRecvState::Open;
                self.other_changes += 1;
                return delivered > 0;
            };
            bytes += envelope.len;
            let (part, is_last) = match engine.split_multi_recv(op, envelope) {
                MultiRecvSplit::Part(part) => (Some(part), false),
                MultiRecvSplit::Last(part) => (Some(part), true),
                MultiRecvSplit::Exhausted => (None, true),
                MultiRecvSplit::CqFull => {
                    self.multi_recvs.0[index].state = MultiRecvState::Blocked;
                    return delivered > 0;
                }
            };
            if let Some(part) = part
                && let Some((envelope, message)) = self.matcher.unexpected.take(waiting)
            {
                self.deliver_buffered(engine, (part, OnLoss::for_part(&spec)), envelope, message);
            }
            if is_last {
                self.remove_posted(op);
                self.retire_multi(op);
                self.match_unexpected(engine);
                return true;
            }
            if bytes > COPY_CHUNK {
                break;
            }
        }
        self.multi_recvs.0[index].state = MultiRecvState::Draining;
        true
    }

    /// As [`take_match`](Self::take_match), and also says what happens to the receive if the rest
    /// of the message never arrives. Slower, but correct while multi-receives are posted too.
    #[cold]
    pub(super) fn take_match_multi(
        &mut self,
        engine: &mut impl RxEngine,
        envelope: &Envelope,
    ) -> MatchResult<(OpKey, OnLoss)> {
        while let Some((key, op)) = self.matcher.posted.find(envelope) {
            let Some(index) = self.multi_recvs.0.iter().position(|multi| multi.op == op) else {
                let on_loss = self
                    .matcher
                    .posted
                    .place(key)
                    .map_or(OnLoss::Fail, OnLoss::for_receive);
                self.remove_posted(op);
                return MatchResult::Receive((op, on_loss));
            };
            let on_loss = OnLoss::for_part(&self.multi_recvs.0[index].spec);
            if self.is_blocked(op, envelope) {
                return MatchResult::Blocked;
            }
            match engine.split_multi_recv(op, envelope) {
                MultiRecvSplit::Part(part) => return MatchResult::Receive((part, on_loss)),
                MultiRecvSplit::Last(part) => {
                    self.remove_posted(op);
                    self.retire_multi(op);
                    return MatchResult::Receive((part, on_loss));
                }
                MultiRecvSplit::CqFull => {
                    self.multi_recvs.0[index].state = MultiRecvState::Blocked;
                    return MatchResult::Blocked;
                }
                MultiRecvSplit::Exhausted => {
                    self.remove_posted(op);
                    self.retire_multi(op);
                }
            }
        }
        MatchResult::NoReceive
    }

    /// Queues a receive for one message, and delivers the first unexpected message to it that no
    /// earlier receive accepts. A multi-receive may be posted before, or messages may be held.
    #[cold]
    pub(super) fn queue_and_match(
        &mut self,
        engine: &mut impl RxEngine,
        op: OpKey,
        spec: RecvSpec,
    ) {
        let key = self.matcher.posted.push(&spec, op);
        let waiting = self
            .matcher
            .unexpected_for(&spec, key)
            .map(|(waiting, _)| waiting);
        match waiting.and_then(|waiting| self.matcher.unexpected.take(waiting)) {
            Some((envelope, message)) => {
                let on_loss = self
                    .matcher
                    .posted
                    .place(key)
                    .map_or(OnLoss::Fail, OnLoss::for_receive);
                self.matcher.posted.remove(key);
                self.deliver_to_receive(engine, (op, on_loss), envelope, message);
            }
            None => self.record_queued(engine, op, spec, key),
        }
    }

    /// Marks a multi-receive that has left the queue as retired. Returns false if `op` is not a
    /// multi-receive, or was retired before.
    pub(super) fn retire_multi(&mut self, op: OpKey) -> bool {
        let multi = self.multi_recvs.0.iter_mut().find(|multi| multi.op == op);
        let is_retired = multi.is_some_and(|multi| {
            std::mem::replace(&mut multi.state, MultiRecvState::Retired) != MultiRecvState::Retired
        });
        self.other_changes += u64::from(is_retired);
        is_retired
    }

    /// Fails the posted receives and probes after the connection of an `FI_EP_MSG` endpoint has
    /// ended. Unexpected messages stay queued. Does nothing while a multi-receive is posted and
    /// unexpected messages, which may be for the multi-receive, are queued: the caller tries again.
    pub fn fail_posted(&mut self, engine: &mut impl RxEngine, error: &Error) {
        if !self.matcher.unexpected.is_empty() && !self.multi_recvs.is_empty() {
            return;
        }
        self.fail_probes(engine, |_| Some(error.clone()));
        for op in self.matcher.posted.take_all() {
            self.retire_multi(op);
            engine.complete(op, Outcome::failed(error.clone()));
        }
    }

    /// Returns whether the queue [has work](Self::has_work), or has multi-receives, which get work
    /// when their completion queue has room.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.has_work() || !self.multi_recvs.is_empty()
    }

    /// Offers all unexpected messages to the posted receives, after a multi-receive for which
    /// messages may have waited has left the queue.
    pub(super) fn match_unexpected(&mut self, engine: &mut impl RxEngine) {
        if !self.matcher.unexpected.is_empty() && !self.matcher.posted.is_empty() {
            // Other multi-receives take the messages in passes, in turns with held ones.
            for multi in &mut self.multi_recvs.0 {
                if multi.state == MultiRecvState::Open {
                    multi.state = MultiRecvState::Draining;
                }
            }
            let waiting = self.matcher.unexpected.keys();
            self.match_keys(engine, waiting);
        }
        // A message that waited for the multi-receive, and matches no other receive, is visible to
        // probes now.
        self.check_probes(engine);
    }

    /// Offers these unexpected messages to the posted receives.
    pub(super) fn match_keys(&mut self, engine: &mut impl RxEngine, waiting: Vec<UnexpectedKey>) {
        for key in waiting {
            let Some(envelope) = self.matcher.unexpected.get(key).cloned() else {
                continue;
            };
            if let MatchResult::Receive(receive) = self.take_match_multi(engine, &envelope)
                && let Some((envelope, message)) = self.matcher.unexpected.take(key)
            {
                self.count_passed(receive.1.place(), envelope.arrival);
                self.deliver_buffered(engine, receive, envelope, message);
            }
        }
    }

    /// Returns whether [`RxQueue::drain_unexpected`] has work: messages to deliver, or retired
    /// entries to remove.
    pub(super) fn is_draining(&self) -> bool {
        self.multi_recvs.0.iter().any(|multi| {
            matches!(
                multi.state,
                MultiRecvState::Draining | MultiRecvState::Retired
            )
        })
    }

    /// Returns whether `op` is a multi-receive that does not take this new message now.
    pub(super) fn is_blocked(&self, op: OpKey, envelope: &Envelope) -> bool {
        let mut multi_recvs = self.multi_recvs.0.iter();
        multi_recvs.any(|multi| multi.op == op && multi.state != MultiRecvState::Open)
            && !self.held.is_next(envelope.peer, op)
    }

    /// Returns whether `op` is a multi-receive that has not left the queue.
    pub(super) fn is_queued_multi(&self, op: OpKey) -> bool {
        let mut multi_recvs = self.multi_recvs.0.iter();
        multi_recvs.any(|multi| multi.op == op && multi.state != MultiRecvState::Retired)
    }
}
