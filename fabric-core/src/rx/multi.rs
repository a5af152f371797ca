//! Receives that take several messages each.
//!
//! Such a receive stays in the queue, at its place, while messages are split off it. When the host
//! has no place to report a further one, it is *held*: what arrives for it stays with its sender,
//! and what is put back for it waits. Whoever is posted behind it gets nothing of that; when it
//! leaves the queue, they do.

use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, PostKey, RecvSpec, UnexpectedKey};
use crate::transport::{EngineContext, MultiRecvSplit, OpKey};

use super::RxQueue;
use super::lost::OnLoss;
use super::peer_memory::COPY_CHUNK;

/// Waiting messages that are given to a receive in one go.
const MAX_MESSAGES_PER_PASS: usize = 64;

/// A receive that takes several messages.
#[derive(Debug)]
pub(super) struct QueuedMultiRecv {
    op: OpKey,
    key: PostKey,
    spec: RecvSpec,
    state: MultiRecvState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MultiRecvState {
    /// It takes what arrives; nothing waits for it.
    Open,
    /// The host has no place for a further message.
    Blocked,
    /// Messages that wait are being given to it, by and by.
    Draining,
    /// It has left the queue. What it held back may be welcome to others: the next pass looks, and
    /// forgets it.
    Retired,
}

/// Who takes a message.
pub(super) enum MatchResult<T = OpKey> {
    Receive(T),
    /// Somebody will, but not now.
    Blocked,
    NoReceive,
}

impl RxQueue {
    /// Posts a receive that takes several messages; those that wait for it are given to it first.
    pub fn post_multi(&mut self, host: &mut dyn EngineContext, op: OpKey, spec: RecvSpec) {
        if let Some(from) = spec.from
            && let Some(peer) = host.departing_address(from)
            && self.matcher.peek(&spec).is_none()
        {
            return host.complete(
                op,
                crate::completion::Outcome::failed(crate::Error::PeerGone(peer)),
            );
        }
        let key = self.matcher.queue(spec, op);
        self.record_post_key(op, key);
        self.multi_recvs.push(QueuedMultiRecv {
            op,
            key,
            spec,
            state: MultiRecvState::Draining,
        });
        self.drain_to(host, self.multi_recvs.len() - 1);
    }

    /// Gives messages that wait to the receives they wait for, within a bound. Returns whether any
    /// moved.
    #[inline]
    pub fn drain_unexpected(&mut self, host: &mut dyn EngineContext) -> bool {
        !self.multi_recvs.is_empty() && self.drain_all(host)
    }

    /// Whether the host may get a place for a message that waits for a receive.
    #[must_use]
    pub fn waits_for_cq_room(&self) -> bool {
        self.multi_recvs
            .iter()
            .any(|multi| multi.state == MultiRecvState::Blocked)
    }

    #[cold]
    fn drain_all(&mut self, host: &mut dyn EngineContext) -> bool {
        let mut moved = false;
        for at in 0..self.multi_recvs.len() {
            let multi = &self.multi_recvs[at];
            if multi.state == MultiRecvState::Draining
                || (multi.state == MultiRecvState::Blocked && host.has_cq_room(multi.op))
            {
                moved |= self.drain_to(host, at);
            }
        }
        let before = self.multi_recvs.len();
        self.multi_recvs
            .retain(|multi| multi.state != MultiRecvState::Retired);
        moved | (self.multi_recvs.len() < before)
    }

    /// Gives the receive what waits for it, within a bound.
    fn drain_to(&mut self, host: &mut dyn EngineContext, at: usize) -> bool {
        let (op, key, spec) = (
            self.multi_recvs[at].op,
            self.multi_recvs[at].key,
            self.multi_recvs[at].spec,
        );
        let mut bytes = 0;
        for served in 0..MAX_MESSAGES_PER_PASS {
            let Some((waiting, envelope)) = self.matcher.unexpected_for(&spec, key) else {
                self.multi_recvs[at].state = MultiRecvState::Open;
                return served > 0;
            };
            bytes += envelope.len;
            let (part, is_last) = match host.split_multi_recv(op, envelope) {
                MultiRecvSplit::Part(part) => (Some(part), false),
                MultiRecvSplit::Last(part) => (Some(part), true),
                MultiRecvSplit::Exhausted => (None, true),
                MultiRecvSplit::CqFull => {
                    self.multi_recvs[at].state = MultiRecvState::Blocked;
                    return served > 0;
                }
            };
            if let Some(part) = part
                && let Some((envelope, message)) = self.matcher.take_message(waiting)
            {
                self.deliver_buffered(host, (part, OnLoss::of_part(&spec)), envelope, message);
            }
            if is_last {
                self.remove_posted(op);
                self.retire_multi(op);
                self.match_unexpected(host);
                return true;
            }
            if bytes > COPY_CHUNK {
                break;
            }
        }
        self.multi_recvs[at].state = MultiRecvState::Draining;
        true
    }

    /// The receive that takes this message, where some of those that are posted take several, or
    /// the message may never be complete; and what becomes of the receive then.
    #[cold]
    pub(super) fn take_match_multi(
        &mut self,
        host: &mut dyn EngineContext,
        envelope: &Envelope,
    ) -> MatchResult<(OpKey, OnLoss)> {
        while let Some((key, op)) = self.matcher.find_receive(envelope) {
            let Some(at) = self.multi_recvs.iter().position(|multi| multi.op == op) else {
                let on_loss = self.matcher.place(key).map_or(OnLoss::Fail, OnLoss::of);
                self.remove_posted(op);
                return MatchResult::Receive((op, on_loss));
            };
            let on_loss = OnLoss::of_part(&self.multi_recvs[at].spec);
            if self.multi_recvs[at].state != MultiRecvState::Open {
                return MatchResult::Blocked;
            }
            match host.split_multi_recv(op, envelope) {
                MultiRecvSplit::Part(part) => return MatchResult::Receive((part, on_loss)),
                MultiRecvSplit::Last(part) => {
                    self.remove_posted(op);
                    self.retire_multi(op);
                    return MatchResult::Receive((part, on_loss));
                }
                MultiRecvSplit::CqFull => {
                    self.multi_recvs[at].state = MultiRecvState::Blocked;
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

    /// Posts a receive where others take several messages, and some may be waiting for one of
    /// those.
    #[cold]
    pub(super) fn post_after_multi(
        &mut self,
        host: &mut dyn EngineContext,
        op: OpKey,
        spec: RecvSpec,
    ) {
        let key = self.matcher.queue(spec, op);
        let waiting = self
            .matcher
            .unexpected_for(&spec, key)
            .map(|(waiting, _)| waiting);
        match waiting.and_then(|waiting| self.matcher.take_message(waiting)) {
            Some((envelope, message)) => {
                let on_loss = self.matcher.place(key).map_or(OnLoss::Fail, OnLoss::of);
                self.matcher.remove_posted(key);
                self.deliver_buffered(host, (op, on_loss), envelope, message);
            }
            None => self.record_queued(host, op, spec, key),
        }
    }

    /// Says of a receive that has left the queue that it takes no more messages. False if it took
    /// one only.
    pub(super) fn retire_multi(&mut self, op: OpKey) -> bool {
        let multi = self.multi_recvs.iter_mut().find(|multi| multi.op == op);
        multi.is_some_and(|multi| {
            std::mem::replace(&mut multi.state, MultiRecvState::Retired) != MultiRecvState::Retired
        })
    }

    /// Nothing more will come: receives for which nothing waits fail, and probes. What waits stays
    /// where it is.
    pub fn fail_posted(&mut self, host: &mut dyn EngineContext, error: &Error) {
        if self.matcher.unexpected_len() > 0 && !self.multi_recvs.is_empty() {
            // A receive of several messages has not taken yet what falls to it.
            return;
        }
        self.fail_probes(host, |_| Some(error.clone()));
        for op in self.matcher.take_posted() {
            self.posted[op.index as usize] = None;
            self.retire_multi(op);
            host.complete(op, Outcome::failed(error.clone()));
        }
    }

    /// Whether passes have something to do here: copying, or receives that take several messages.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.has_work() || !self.multi_recvs.is_empty()
    }

    /// After a receive has left the queue for which messages waited: others may take them.
    pub(super) fn match_unexpected(&mut self, host: &mut dyn EngineContext) {
        if self.matcher.unexpected_len() > 0 && self.matcher.posted_len() > 0 {
            let waiting = self.matcher.unexpected_keys();
            self.match_keys(host, waiting);
        }
        // What fell to it may be nobody's now, and there to be found.
        self.check_probes(host);
    }

    /// Offers messages that wait to the posted receives.
    pub(super) fn match_keys(&mut self, host: &mut dyn EngineContext, waiting: Vec<UnexpectedKey>) {
        for key in waiting {
            let Some(envelope) = self.matcher.message(key).cloned() else {
                continue;
            };
            if let MatchResult::Receive(receive) = self.take_match_multi(host, &envelope)
                && let Some((envelope, message)) = self.matcher.take_message(key)
            {
                self.deliver_buffered(host, receive, envelope, message);
            }
        }
    }

    /// Whether there is something for [`RxQueue::drain_unexpected`] to do, or for the pass that it begins.
    pub(super) fn is_draining(&self) -> bool {
        self.multi_recvs.iter().any(|multi| {
            matches!(
                multi.state,
                MultiRecvState::Draining | MultiRecvState::Retired
            )
        })
    }

    /// Whether what arrives for this receive stays with its sender.
    pub(super) fn is_blocked(&self, op: OpKey) -> bool {
        self.multi_recvs
            .iter()
            .any(|multi| multi.op == op && multi.state != MultiRecvState::Open)
    }
}
