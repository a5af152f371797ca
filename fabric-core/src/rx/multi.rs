//! Receives that take several messages each.
//!
//! Such a receive stays in the queue, at its place, while messages are split off it. When the host
//! has no place to report a further one, it is *held*: what arrives for it stays with its sender,
//! and what is put back for it waits. Whoever is posted behind it gets nothing of that; when it
//! leaves the queue, they do.

use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, PostKey, RecvSpec, WaitKey};
use crate::provider::{Host, OpKey, Split};

use super::RxContext;
use super::lent::COPIED_AT_ONCE;
use super::lost::OnLoss;

/// Waiting messages that are given to a receive in one go.
const SERVED_AT_ONCE: usize = 64;

/// A receive that takes several messages.
#[derive(Debug)]
pub(super) struct Multi {
    op: OpKey,
    key: PostKey,
    spec: RecvSpec,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It takes what arrives; nothing waits for it.
    Open,
    /// The host has no place for a further message.
    Held,
    /// Messages that wait are being given to it, by and by.
    Serving,
    /// It has left the queue. What it held back may be welcome to others: the next pass looks, and
    /// forgets it.
    Gone,
}

/// Who takes a message.
pub(super) enum Match<T = OpKey> {
    Receive(T),
    /// Somebody will, but not now.
    Held,
    Nobody,
}

impl RxContext {
    /// Posts a receive that takes several messages; those that wait for it are given to it first.
    pub fn post_multi(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        if let Some(from) = spec.from
            && let Some(peer) = host.leaving(from)
            && self.matcher.peek(&spec).is_none()
        {
            return host.complete(
                op,
                crate::completion::Outcome::failed(crate::Error::PeerGone(peer)),
            );
        }
        let key = self.matcher.queue(spec, op);
        self.note(op, key);
        self.multis.push(Multi {
            op,
            key,
            spec,
            state: State::Serving,
        });
        self.serve_one(host, self.multis.len() - 1);
    }

    /// Gives messages that wait to the receives they wait for, within a bound. Returns whether any
    /// moved.
    #[inline]
    pub fn serve(&mut self, host: &mut dyn Host) -> bool {
        !self.multis.is_empty() && self.serve_all(host)
    }

    /// Whether the host may get a place for a message that waits for a receive.
    #[must_use]
    pub fn waits_for_place(&self) -> bool {
        self.multis.iter().any(|multi| multi.state == State::Held)
    }

    #[cold]
    fn serve_all(&mut self, host: &mut dyn Host) -> bool {
        let mut moved = false;
        for at in 0..self.multis.len() {
            let multi = &self.multis[at];
            if multi.state == State::Serving
                || (multi.state == State::Held && host.has_place(multi.op))
            {
                moved |= self.serve_one(host, at);
            }
        }
        let before = self.multis.len();
        self.multis.retain(|multi| multi.state != State::Gone);
        moved | (self.multis.len() < before)
    }

    /// Gives the receive what waits for it, within a bound.
    fn serve_one(&mut self, host: &mut dyn Host, at: usize) -> bool {
        let (op, key, spec) = (
            self.multis[at].op,
            self.multis[at].key,
            self.multis[at].spec,
        );
        let mut bytes = 0;
        for served in 0..SERVED_AT_ONCE {
            let Some((waiting, envelope)) = self.matcher.waiting_for(&spec, key) else {
                self.multis[at].state = State::Open;
                return served > 0;
            };
            bytes += envelope.len;
            let (part, is_last) = match host.split(op, envelope) {
                Split::Part(part) => (Some(part), false),
                Split::Last(part) => (Some(part), true),
                Split::Used => (None, true),
                Split::Full => {
                    self.multis[at].state = State::Held;
                    return served > 0;
                }
            };
            if let Some(part) = part
                && let Some((envelope, message)) = self.matcher.take_message(waiting)
            {
                self.give(host, (part, OnLoss::of_part(&spec)), envelope, message);
            }
            if is_last {
                self.unqueue(op);
                self.retire(op);
                self.rematch(host);
                return true;
            }
            if bytes > COPIED_AT_ONCE {
                break;
            }
        }
        self.multis[at].state = State::Serving;
        true
    }

    /// The receive that takes this message, where some of those that are posted take several, or
    /// the message may never be complete; and what becomes of the receive then.
    #[cold]
    pub(super) fn matched_among(
        &mut self,
        host: &mut dyn Host,
        envelope: &Envelope,
    ) -> Match<(OpKey, OnLoss)> {
        while let Some((key, op)) = self.matcher.find(envelope) {
            let Some(at) = self.multis.iter().position(|multi| multi.op == op) else {
                let on_loss = self.matcher.place(key).map_or(OnLoss::Fail, OnLoss::of);
                self.unqueue(op);
                return Match::Receive((op, on_loss));
            };
            let on_loss = OnLoss::of_part(&self.multis[at].spec);
            if self.multis[at].state != State::Open {
                return Match::Held;
            }
            match host.split(op, envelope) {
                Split::Part(part) => return Match::Receive((part, on_loss)),
                Split::Last(part) => {
                    self.unqueue(op);
                    self.retire(op);
                    return Match::Receive((part, on_loss));
                }
                Split::Full => {
                    self.multis[at].state = State::Held;
                    return Match::Held;
                }
                Split::Used => {
                    self.unqueue(op);
                    self.retire(op);
                }
            }
        }
        Match::Nobody
    }

    /// Posts a receive where others take several messages, and some may be waiting for one of
    /// those.
    #[cold]
    pub(super) fn post_behind(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        let key = self.matcher.queue(spec, op);
        let waiting = self
            .matcher
            .waiting_for(&spec, key)
            .map(|(waiting, _)| waiting);
        match waiting.and_then(|waiting| self.matcher.take_message(waiting)) {
            Some((envelope, message)) => {
                let on_loss = self.matcher.place(key).map_or(OnLoss::Fail, OnLoss::of);
                self.matcher.withdraw(key);
                self.give(host, (op, on_loss), envelope, message);
            }
            None => self.queued(host, op, spec, key),
        }
    }

    /// Says of a receive that has left the queue that it takes no more messages. False if it took
    /// one only.
    pub(super) fn retire(&mut self, op: OpKey) -> bool {
        let multi = self.multis.iter_mut().find(|multi| multi.op == op);
        multi.is_some_and(|multi| std::mem::replace(&mut multi.state, State::Gone) != State::Gone)
    }

    /// Nothing more will come: receives for which nothing waits fail, and probes. What waits stays
    /// where it is.
    pub fn fail_posted(&mut self, host: &mut dyn Host, error: &Error) {
        if self.matcher.waiting_len() > 0 && !self.multis.is_empty() {
            // A receive of several messages has not taken yet what falls to it.
            return;
        }
        self.fail_probes(host, |_| Some(error.clone()));
        for op in self.matcher.take_posted() {
            self.posted[op.index as usize] = None;
            self.retire(op);
            host.complete(op, Outcome::failed(error.clone()));
        }
    }

    /// Whether passes have something to do here: copying, or receives that take several messages.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.has_chores() || !self.multis.is_empty()
    }

    /// After a receive has left the queue for which messages waited: others may take them.
    pub(super) fn rematch(&mut self, host: &mut dyn Host) {
        if self.matcher.waiting_len() > 0 && self.matcher.posted_len() > 0 {
            let waiting = self.matcher.waiting_keys();
            self.offer(host, waiting);
        }
        // What fell to it may be nobody's now, and there to be found.
        self.noticed(host);
    }

    /// Offers messages that wait to the posted receives.
    pub(super) fn offer(&mut self, host: &mut dyn Host, waiting: Vec<WaitKey>) {
        for key in waiting {
            let Some(envelope) = self.matcher.message(key).cloned() else {
                continue;
            };
            if let Match::Receive(receive) = self.matched_among(host, &envelope)
                && let Some((envelope, message)) = self.matcher.take_message(key)
            {
                self.give(host, receive, envelope, message);
            }
        }
    }

    /// Whether there is something for [`RxContext::serve`] to do, or for the pass that it begins.
    pub(super) fn is_serving(&self) -> bool {
        self.multis
            .iter()
            .any(|multi| matches!(multi.state, State::Serving | State::Gone))
    }

    /// Whether what arrives for this receive stays with its sender.
    pub(super) fn is_held(&self, op: OpKey) -> bool {
        self.multis
            .iter()
            .any(|multi| multi.op == op && multi.state != State::Open)
    }
}
