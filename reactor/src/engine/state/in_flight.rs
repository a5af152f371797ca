//! Buffers that the kernel reads in place: zero-copy sends over io_uring.
//!
//! The buffer is taken out of its operation while the kernel reads it (`take_buffer`), also after
//! the operation, the connection, the endpoint or the domain has ended. The completion of the
//! operation is deferred until the kernel no longer reads the buffer (`return_buffer`). If the
//! endpoint has closed meanwhile, the completion goes to the queue and the counter that the
//! endpoint was bound to.

use fabric_core::buf::AnyBuf;
use fabric_core::completion::Outcome;
use fabric_core::transport::{EpId, OpKey};

use super::bindings::{CounterId, CqId};
use super::domain_state::DomainState;
use super::ops::CompletionTarget;

/// The state of an operation whose buffer the kernel holds.
#[derive(Debug, Default)]
pub(crate) struct InFlightBuffer {
    /// The outcome, if the operation has ended.
    outcome: Option<Outcome>,
    /// Where the completion goes if the endpoint has closed.
    orphan_target: Option<OrphanTarget>,
}

/// Where an operation is reported whose endpoint has closed.
#[derive(Clone, Copy, Debug)]
struct OrphanTarget {
    cq: Option<CqId>,
    counter: Option<CounterId>,
}

impl DomainState {
    /// Takes the buffer out of its operation, for the kernel to read.
    pub(crate) fn detach_buffer(&mut self, key: OpKey) -> Option<AnyBuf> {
        let op = self.ops.get_mut(key)?;
        self.in_flight_buffers
            .insert(key, InFlightBuffer::default());
        Some(std::mem::take(&mut op.buf))
    }

    /// Stores the outcome of an operation until its buffer is returned.
    #[cold]
    pub(crate) fn defer_completion(&mut self, key: OpKey, outcome: Outcome) {
        if let Some(InFlightBuffer { outcome: kept, .. }) = self.in_flight_buffers.get_mut(&key) {
            kept.get_or_insert(outcome);
        }
    }

    /// Puts the buffer back into its operation. Returns the outcome if it is to be reported as
    /// usual.
    pub(crate) fn reattach_buffer(&mut self, key: OpKey, buf: AnyBuf) -> Option<Outcome> {
        let in_flight = self.in_flight_buffers.remove(&key);
        let (
            Some(InFlightBuffer {
                outcome,
                orphan_target: orphan,
            }),
            Some(op),
        ) = (in_flight, self.ops.get_mut(key))
        else {
            self.deferred.drop_buffer(buf);
            return None;
        };
        op.buf = buf;
        match orphan {
            None => outcome,
            Some(orphan) => {
                self.report_orphan(key, outcome?, orphan);
                None
            }
        }
    }

    /// Sets the orphan target of an endpoint's in-flight operations before the endpoint is removed:
    /// its completion queue and counter.
    pub(crate) fn redirect_in_flight_completions(&mut self, ep: EpId) {
        let Self {
            in_flight_buffers,
            ops,
            endpoints,
            ..
        } = self;
        let Some(bindings) = endpoints.get(ep.0).map(|ep| &ep.bindings) else {
            return;
        };
        for (key, in_flight) in in_flight_buffers {
            if let Some(op) = ops.get(*key).filter(|op| op.ep == ep) {
                in_flight.orphan_target = Some(OrphanTarget {
                    cq: bindings.tx_cq,
                    counter: bindings.counters.for_op(op.kind),
                });
            }
        }
    }

    /// Reports an operation whose endpoint has closed.
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
        if let Some(id) = op.tx_op.as_mut().and_then(|tx_op| tx_op.rma_iov_id.take()) {
            self.rma_iovs.try_remove(id.0 as usize);
        }
        let (kind, target, ok) = (op.kind, op.target, outcome.error.is_none());
        if let Some(counter) = counter {
            self.add_to_counter(counter, ok);
        }
        match target {
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
                let buf = if ok {
                    self.completion_buffer(kind, buf)
                } else {
                    buf
                };
                let unreported = ok && matches!(target, CompletionTarget::CqOnError(_));
                let Some((queue, cq_state)) =
                    queue.and_then(|id| Some((id, self.cqs.get_mut(id.0)?)))
                else {
                    return self.deferred.drop_buffer(buf);
                };
                if unreported {
                    cq_state.unreserve();
                    self.deferred.drop_buffer(buf);
                    self.on_cq_space(queue);
                } else {
                    let waiter = cq_state.push(context, kind, outcome, buf);
                    self.deferred.wake_waiter(waiter);
                }
            }
            CompletionTarget::MultiRecv(_) | CompletionTarget::Discard => {
                drop(self.discard_op(key))
            }
        }
    }
}
