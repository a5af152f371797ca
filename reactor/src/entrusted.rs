//! Buffers that the kernel reads from where they lie: their operations have none for that time, and
//! end when it is over.

use fabric_core::buf::AnyBuf;
use fabric_core::completion::{Completion, Outcome};
use fabric_core::provider::{EpId, OpKey};

use crate::hub::{CounterId, CqId, Hub};
use crate::ops::Route;

/// An operation without its buffer.
#[derive(Debug, Default)]
pub(crate) struct Entrusted {
    /// How it has ended, if it has.
    outcome: Option<Outcome>,
    /// Who hears of it, if its endpoint has closed.
    heirs: Option<Heirs>,
}

/// Who hears of operations of an endpoint that has closed.
#[derive(Clone, Copy, Debug)]
struct Heirs {
    queue: Option<CqId>,
    counter: Option<CounterId>,
}

impl Hub {
    pub(crate) fn take_buffer(&mut self, key: OpKey) -> Option<AnyBuf> {
        let op = self.ops.get_mut(key)?;
        self.entrusted.insert(key, Entrusted::default());
        Some(std::mem::take(&mut op.buf))
    }

    /// Keeps the end of an operation that has no buffer now.
    #[cold]
    pub(crate) fn keep_back(&mut self, key: OpKey, outcome: Outcome) {
        if let Some(Entrusted { outcome: kept, .. }) = self.entrusted.get_mut(&key) {
            kept.get_or_insert(outcome);
        }
    }

    /// The operation has its buffer again. Returns how it has ended, if that is to be reported as
    /// usual.
    pub(crate) fn put_buffer(&mut self, key: OpKey, buf: AnyBuf) -> Option<Outcome> {
        let entrusted = self.entrusted.remove(&key);
        let (Some(Entrusted { outcome, heirs }), Some(op)) = (entrusted, self.ops.get_mut(key))
        else {
            self.later.discard(buf);
            return None;
        };
        op.buf = buf;
        match heirs {
            None => outcome,
            Some(heirs) => {
                self.bequeath(key, outcome?, heirs);
                None
            }
        }
    }

    /// An endpoint is about to be gone. What it has not got back is reported to those who would
    /// have heard of it.
    pub(crate) fn appoint_heirs(&mut self, ep: EpId) {
        let Self {
            entrusted,
            ops,
            eps,
            ..
        } = self;
        let Some(bound) = eps.get(ep.0).map(|ep| &ep.bound) else {
            return;
        };
        for (key, entrusted) in entrusted {
            if let Some(op) = ops.get(*key).filter(|op| op.ep == ep) {
                entrusted.heirs = Some(Heirs {
                    queue: bound.tx_cq,
                    counter: bound.counters.of(op.kind),
                });
            }
        }
    }

    /// What the end of an operation of such an endpoint comes to.
    fn bequeath(&mut self, key: OpKey, outcome: Outcome, Heirs { queue, counter }: Heirs) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        self.sends -= usize::from(std::mem::take(&mut op.credit));
        if let Some(spread) = op.spec.as_mut().and_then(|spec| spec.spread.take()) {
            self.spreads.try_remove(spread.0 as usize);
        }
        let (kind, route, ok) = (op.kind, op.route, outcome.error.is_none());
        if let Some(counter) = counter {
            self.count_at(counter, ok);
        }
        match route {
            Route::Future => {
                if let Some(op) = self.ops.get_mut(key) {
                    op.outcome = outcome;
                }
                self.done(key);
            }
            Route::Queue(context) | Route::Failure(context) => {
                let Some(mut op) = self.ops.remove(key) else {
                    return;
                };
                let buf = std::mem::take(&mut op.buf);
                let is_lent = ok && op.spec.is_some_and(|spec| spec.loan.is_some());
                let buf = if is_lent { self.passed_on(buf) } else { buf };
                let is_silent = ok && matches!(route, Route::Failure(_));
                let Some((queue, ring)) = queue.and_then(|id| Some((id, self.cqs.get_mut(id.0)?)))
                else {
                    return self.later.discard(buf);
                };
                if is_silent {
                    ring.unreserve();
                    self.later.discard(buf);
                    self.entries_are_free(queue);
                } else if let Some(waker) = ring.push(Completion::new(context, kind, outcome, buf))
                {
                    self.waiters -= 1;
                    self.later.wake(waker);
                }
            }
            Route::Multi(_) | Route::Nobody => drop(self.discard(key)),
        }
    }
}
