//! Canceling operations that have not begun, and detaching operations whose future was dropped.

use fabric_core::Error;
use fabric_core::buf::AnyBuf;
use fabric_core::completion::{OpKind, Outcome};
use fabric_core::transport::{EpId, OpKey, RxEngine};

use super::domain::DomainHandle;
use super::progress::EngineState;
use super::state::ops::{CompletionTarget, OpPhase, OpState};
use super::state::pending_work::FollowUp;

impl EngineState {
    /// Withdraws an operation that has not begun: one that waits for a credit, a posted receive
    /// that no message has matched, or a send of which nothing was written. Its slot stays. Returns
    /// false if the operation has begun.
    pub(crate) fn try_cancel(&mut self, key: OpKey) -> bool {
        let Some(op) = self.domain.ops.get(key) else {
            return false;
        };
        let ep = op.ep;
        match op.phase() {
            OpPhase::Waiting => {
                if let Some(bound) = self.domain.endpoints.get_mut(ep) {
                    bound.tx_credits.remove(key);
                    if !bound.tx_credits.has_no_waiters() {
                        // The canceled operation may have been a fence that held the others up.
                        self.domain.pending_work.push(FollowUp::GrantCredits(ep));
                    }
                }
                true
            }
            OpPhase::Executing => self.cancel(ep, key),
            OpPhase::Done => false,
        }
    }

    /// Cancels the oldest operation of an endpoint, or shared receive context, that was posted to a
    /// completion queue with this context and has not begun, and reports it with
    /// [`Error::Canceled`]. Returns false if there is none.
    fn cancel_posted(&mut self, ep: EpId, context: u64) -> bool {
        for key in self.posted_with_context(ep, context) {
            if self.domain.is_multi_recv(key) {
                if self.cancel_multi_recv(key) {
                    return true;
                }
            } else if self.try_cancel(key) {
                let canceled = Outcome::failed(Error::Canceled);
                self.domain.complete(key, canceled);
                return true;
            }
        }
        false
    }

    /// Withdraws or detaches an operation whose future was dropped. A permit, a probe, a flush or a
    /// wait for memory of loans is withdrawn. So is a receive, and a message that it has taken
    /// goes to another receive. An operation that waits for a credit is withdrawn, except an
    /// atomic. All others go on without a future.
    pub(crate) fn detach(&mut self, key: OpKey) {
        let Some(op) = self.domain.ops.get(key) else {
            return;
        };
        let (ep, kind) = (op.ep, op.kind);
        if op.is_wait() {
            self.try_cancel(key);
            self.domain.discard_op(key);
            return;
        }
        let is_atomic = matches!(kind, OpKind::Atomic | OpKind::FetchAtomic);
        match op.phase() {
            // The post was not reported as accepted, and the operation is no atomic, which executes
            // even if its future was dropped.
            OpPhase::Waiting
                if !op.holds_credit() && op.target() == CompletionTarget::Future && !is_atomic =>
            {
                self.try_cancel(key);
                self.domain.discard_op(key);
            }
            OpPhase::Executing if kind == OpKind::Recv => {
                self.change_rx(ep, |rx, domain| rx.detach(domain, key));
                self.domain.discard_op(key);
            }
            // A queued operation with a credit is fenced and was accepted, and so was one that
            // reports to a completion queue: both go on without a result.
            OpPhase::Waiting | OpPhase::Executing => {
                if let Some(op) = self.domain.ops.get_mut(key) {
                    op.detach(&mut self.domain.deferred);
                }
            }
            OpPhase::Done => {
                let message = op.outcome().and_then(|Outcome { transfer, error }| {
                    let lost = match error.as_deref() {
                        None | Some(Error::SourceNotInserted { .. }) => 0,
                        Some(Error::Truncated { lost, .. }) => *lost,
                        Some(_) => return None,
                    };
                    Some((transfer.envelope(lost), transfer.len))
                });
                if let Some((envelope, placed)) = message.filter(|_| kind == OpKind::Recv) {
                    let (source, bytes) = (envelope.source, self.domain.take_received(key, placed));
                    self.requeue_message(ep, envelope, bytes);
                    self.domain.on_message_consumed(source);
                }
                if let Some(mut op) = self.domain.discard_op(key)
                    && kind != OpKind::Recv
                {
                    let peer = op.tx_op.map(|tx_op| tx_op.peer);
                    self.domain
                        .report_failure(ep, peer, op.take_outcome().error);
                }
            }
        }
    }
}

impl EngineState {
    /// Returns the operations of an endpoint, or shared receive context, that report to a queue
    /// with this context and have not begun, the oldest first. Takes time for the operations that
    /// the endpoint can have posted, and for the multi-receives of the domain.
    fn posted_with_context(&mut self, ep: EpId, context: u64) -> Vec<OpKey> {
        let mut keys: Vec<_> = self
            .endpoints
            .own_rx(ep)
            .map_or_else(Vec::new, |rx| rx.posted().collect());
        if let Some(bound) = self.domain.endpoints.get(ep) {
            keys.extend(bound.tx_credits.waiting_ops());
            let peers: Vec<_> = bound.tx_credits.peers_in_use().collect();
            // A shared receive context has no peers, and no transport endpoint.
            for peer in peers {
                let _ = self.with_transport(ep, |transport, ctx| {
                    transport.queued_ops(ctx, peer, &mut keys);
                });
            }
        }
        let domain = &self.domain;
        keys.retain(|key| match domain.ops.get(*key).map(OpState::target) {
            Some(CompletionTarget::Cq(other) | CompletionTarget::CqOnError(other)) => {
                other == context
            }
            _ => false,
        });
        keys.extend(domain.multi_recvs.with_context(ep, context));
        domain.ops.sort_by_age(&mut keys);
        keys
    }
}

impl DomainHandle {
    /// Cancels the oldest operation of an endpoint, or shared receive context, that was posted to a
    /// completion queue with this context and has not begun (`fi_cancel`): its entry has
    /// [`Error::Canceled`]. Returns false if there is none.
    pub fn cancel_posted(&self, ep: EpId, context: u64) -> bool {
        self.with_engine(|locked| locked.cancel_posted(ep, context))
    }

    /// Cancels an operation that has not begun (`fi_cancel`), such as a posted receive without a
    /// message, and returns its buffer; the operation will not complete.
    ///
    /// # Errors
    /// The unit value when the operation has begun or ended: it completes.
    #[allow(clippy::result_unit_err)] // there is one reason: too late
    pub fn cancel(&self, key: OpKey) -> Result<AnyBuf, ()> {
        self.with_engine(|locked| {
            let canceled = locked.try_cancel(key);
            let op = canceled.then(|| locked.domain.remove_op(key));
            op.flatten().map(|op| op.buf).ok_or(())
        })
    }
}
