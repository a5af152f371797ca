//! Buffers that the kernel reads from where they lie: their operations have none for that time, and
//! end when it is over.

use fabric_core::buf::AnyBuf;
use fabric_core::completion::{Completion, Outcome};
use fabric_core::transport::{EpId, OpKey};

use crate::domain_state::{CounterId, CqId, DomainState};
use crate::ops::CompletionTarget;

/// An operation without its buffer.
#[derive(Debug, Default)]
pub(crate) struct InFlightBuffer {
    /// How it has ended, if it has.
    outcome: Option<Outcome>,
    /// Who hears of it, if its endpoint has closed.
    orphan_target: Option<OrphanTarget>,
}

/// Who hears of operations of an endpoint that has closed.
#[derive(Clone, Copy, Debug)]
struct OrphanTarget {
    cq: Option<CqId>,
    counter: Option<CounterId>,
}

impl DomainState {
    pub(crate) fn detach_buffer(&mut self, key: OpKey) -> Option<AnyBuf> {
        let op = self.ops.get_mut(key)?;
        self.in_flight_buffers
            .insert(key, InFlightBuffer::default());
        Some(std::mem::take(&mut op.buf))
    }

    /// Keeps the end of an operation that has no buffer now.
    #[cold]
    pub(crate) fn defer_completion(&mut self, key: OpKey, outcome: Outcome) {
        if let Some(InFlightBuffer { outcome: kept, .. }) = self.in_flight_buffers.get_mut(&key) {
            kept.get_or_insert(outcome);
        }
    }

    /// The operation has its buffer again. Returns how it has ended, if that is to be reported as
    /// usual.
    pub(crate) fn reattach_buffer(&mut self, key: OpKey, buf: AnyBuf) -> Option<Outcome> {
        let entrusted = self.in_flight_buffers.remove(&key);
        let (
            Some(InFlightBuffer {
                outcome,
                orphan_target: heirs,
            }),
            Some(op),
        ) = (entrusted, self.ops.get_mut(key))
        else {
            self.deferred.drop_buffer(buf);
            return None;
        };
        op.buf = buf;
        match heirs {
            None => outcome,
            Some(heirs) => {
                self.report_orphan(key, outcome?, heirs);
                None
            }
        }
    }

    /// An endpoint is about to be gone. What it has not got back is reported to those who would
    /// have heard of it.
    pub(crate) fn orphan_endpoint(&mut self, ep: EpId) {
        let Self {
            in_flight_buffers: entrusted,
            ops,
            endpoints: eps,
            ..
        } = self;
        let Some(bound) = eps.get(ep.0).map(|ep| &ep.bindings) else {
            return;
        };
        for (key, entrusted) in entrusted {
            if let Some(op) = ops.get(*key).filter(|op| op.ep == ep) {
                entrusted.orphan_target = Some(OrphanTarget {
                    cq: bound.tx_cq,
                    counter: bound.counters.for_op(op.kind),
                });
            }
        }
    }

    /// What the end of an operation of such an endpoint comes to.
    fn report_orphan(
        &mut self,
        key: OpKey,
        outcome: Outcome,
        OrphanTarget { cq: queue, counter }: OrphanTarget,
    ) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        self.pending_sends -= usize::from(std::mem::take(&mut op.holds_credit));
        if let Some(spread) = op.spec.as_mut().and_then(|spec| spec.rma_iov_id.take()) {
            self.rma_iovs.try_remove(spread.0 as usize);
        }
        let (kind, route, ok) = (op.kind, op.target, outcome.error.is_none());
        if let Some(counter) = counter {
            self.add_to_counter(counter, ok);
        }
        match route {
            CompletionTarget::Future => {
                if let Some(op) = self.ops.get_mut(key) {
                    op.outcome = outcome;
                }
                self.complete_future(key);
            }
            CompletionTarget::Cq(context) | CompletionTarget::CqOnError(context) => {
                let Some(mut op) = self.ops.remove(key) else {
                    return;
                };
                let buf = std::mem::take(&mut op.buf);
                let is_lent = ok && op.spec.is_some_and(|spec| spec.loan.is_some());
                let buf = if is_lent { self.discard_loan(buf) } else { buf };
                let is_silent = ok && matches!(route, CompletionTarget::CqOnError(_));
                let Some((queue, ring)) = queue.and_then(|id| Some((id, self.cqs.get_mut(id.0)?)))
                else {
                    return self.deferred.drop_buffer(buf);
                };
                if is_silent {
                    ring.unreserve();
                    self.deferred.drop_buffer(buf);
                    self.on_cq_space(queue);
                } else if let Some(waker) = ring.push(Completion::new(context, kind, outcome, buf))
                {
                    self.waiters -= 1;
                    self.deferred.wake(waker);
                }
            }
            CompletionTarget::MultiRecv(_) | CompletionTarget::Discard => {
                drop(self.discard_op(key))
            }
        }
    }
}
