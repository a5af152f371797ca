//! Reporting of operations that have ended: to futures, completion queues, multi-receives, counters
//! and statistics.

use std::task::Waker;

use fabric_core::buf::{AnyBuf, Loan};
use fabric_core::completion::{Completion, OpKind, Outcome};
use fabric_core::event::EventKind;
use fabric_core::matching::PeerKey;
use fabric_core::transport::{EngineContext, EpId, OpKey};
use fabric_core::{Error, FiAddr, Result};

use super::bindings::CqId;
use super::domain_state::DomainState;
use super::ops::CompletionTarget;
use super::pending_work::FollowUp;

impl DomainState {
    /// Reserves the entry that an operation will report to, and returns the queue.
    pub(crate) fn reserve_entry(&mut self, ep: EpId, kind: OpKind) -> Result<Option<CqId>> {
        let queue = self.endpoints.cq_of(ep, kind);
        self.cqs.reserve(queue)?;
        Ok(queue)
    }

    /// Releases a reserved entry that is not needed.
    pub(crate) fn unreserve_entry(&mut self, queue: Option<CqId>) {
        if let Some(id) = queue
            && let Some(queue) = self.cqs.get_mut(id)
        {
            queue.unreserve(1);
            self.on_cq_space(id);
        }
    }

    /// Reports an operation that has ended to its target. `queue` is the completion queue of its
    /// kind at its endpoint.
    pub(crate) fn report_op(&mut self, key: OpKey, outcome: Outcome, queue: Option<CqId>) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let (ep, kind, ok) = (op.ep, op.kind, outcome.error.is_none());
        match op.target() {
            CompletionTarget::Future => op.finish(outcome, &mut self.deferred),
            CompletionTarget::CqOnError(_) if ok => {
                self.on_message_consumed(outcome.transfer.source);
                self.discard_op(key);
                self.unreserve_entry(queue);
            }
            CompletionTarget::Cq(context) | CompletionTarget::CqOnError(context) => {
                let mut buf = std::mem::take(&mut op.buf);
                self.ops.free(key);
                if ok {
                    buf = self.completion_buffer(kind, buf);
                }
                self.report_to_cq(queue, kind, context, outcome, buf);
            }
            CompletionTarget::MultiRecv(id) => self.on_multi_recv_message(id, key, outcome),
            CompletionTarget::Discard => {
                let peer = op.tx_op.map(|tx_op| tx_op.peer);
                self.discard_op(key);
                self.report_failure(ep, peer, outcome.error);
            }
        }
    }

    /// Reports the failure of an operation without a future as an event, unless it was canceled.
    pub(crate) fn report_failure(
        &mut self,
        ep: EpId,
        peer: Option<FiAddr>,
        error: Option<Box<Error>>,
    ) {
        if let Some(error) = error.filter(|error| **error != Error::Canceled) {
            let error = *error;
            self.event(ep, EventKind::OperationFailed { peer, error });
        }
    }

    /// Removes the events of an endpoint that is closed from its event queue (`fi_close`).
    pub(crate) fn remove_events_of(&self, ep: EpId) {
        if let Some(bindings) = self.endpoints.get(ep).map(|ep| ep.bindings())
            && let Some(eq) = self.eqs.for_endpoint(bindings)
        {
            eq.remove_events_of(bindings.object_id);
        }
    }

    /// Reports an operation to `queue`, the completion queue of its kind at its endpoint. If the
    /// queue is closed, the buffer is dropped.
    #[inline(always)] // on the small-message path, and an entry is large
    pub(crate) fn report_to_cq(
        &mut self,
        queue: Option<CqId>,
        kind: OpKind,
        context: u64,
        outcome: Outcome,
        buf: AnyBuf,
    ) {
        self.on_message_consumed(outcome.transfer.source);
        let Some(queue) = self.cqs.get_mut(queue) else {
            return self.deferred.drop_buffer(buf);
        };
        queue.push(Completion::new(context, kind, outcome, buf));
        queue.reader.wake(&mut self.deferred);
    }

    /// Counts an operation that has ended. The message of a receive is counted by
    /// [`Endpoints::count_received`](super::endpoints::Endpoints::count_received).
    #[inline]
    pub(crate) fn count_op(&mut self, ep: EpId, kind: OpKind, len: usize, ok: bool) {
        let Some(ep) = self.endpoints.get_mut(ep) else {
            return;
        };
        if ok {
            if kind != OpKind::Recv {
                ep.record(kind, len);
            }
        } else {
            ep.record_failure();
        }
        let counter = ep.bindings().counters.for_op(kind);
        self.counters.count(counter, ok, &mut self.deferred);
    }

    /// Counts the end of a receive that was posted to a shared context, at the sharer where the
    /// message arrived: in its counter, and in its failures.
    #[cold]
    pub(crate) fn count_recv_at_arrival_endpoint(
        &mut self,
        posted_to: EpId,
        peer: PeerKey,
        ok: bool,
    ) {
        if let Some(sharer) = self.endpoints.arrival_endpoint(posted_to, peer) {
            self.count_op(sharer, OpKind::Recv, 0, ok);
        }
    }

    /// Moves up to `max` completions out of a queue; `None` when the queue is closed.
    pub(crate) fn take_completions(
        &mut self,
        cq: CqId,
        out: &mut Vec<Completion>,
        max: usize,
    ) -> Option<usize> {
        let count = self.cqs.get_mut(cq)?.drain_into(out, max);
        if count > 0 {
            self.on_cq_space(cq);
        }
        Some(count)
    }

    /// Gives the free entries of a completion queue to multi-receives that wait for one, and
    /// resumes the progress of messages that were held because a queue was full.
    pub(crate) fn on_cq_space(&mut self, cq: CqId) {
        if !self.multi_recvs.is_empty() {
            self.reserve_multi_recv_entries(cq);
        }
        if self.access_changes.on_cq_space() {
            self.pending_work.push(FollowUp::MakePass);
        }
    }

    pub(crate) fn register_cq_waker(&mut self, cq: CqId, waker: &Waker) {
        if let Some(queue) = self.cqs.get_mut(cq) {
            queue.reader.register(waker, &mut self.deferred);
        }
    }

    /// Returns the buffer for the completion of a successful operation: an empty loan for a loan
    /// that was sent, since its memory belongs to the peer now.
    #[inline(always)] // on the small-message path
    pub(crate) fn completion_buffer(&mut self, kind: OpKind, buf: AnyBuf) -> AnyBuf {
        if kind == OpKind::Send && matches!(buf, AnyBuf::Loan(_)) {
            self.discard_loan(buf)
        } else {
            buf
        }
    }

    #[cold]
    fn discard_loan(&mut self, loan: AnyBuf) -> AnyBuf {
        self.deferred.drop_buffer(loan);
        AnyBuf::Loan(Loan::empty())
    }
}
