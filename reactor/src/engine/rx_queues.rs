//! The receive queues of a domain: access, posting, canceling, closing.
//!
//! Each endpoint has a receive queue of its own, or uses the queue of a shared receive context
//! (`shared_rx`).
//!
//! The transport delivers messages to the queue in its passes. The engine reports each of its own
//! changes to the transport
//! ([`on_rx_queue_changed`](fabric_core::transport::TransportEndpoint::on_rx_queue_changed)), apart
//! from two cases: a posted receive is not reported if the transport has turned these reports off
//! ([`set_post_reports`](RxQueue::set_post_reports)) and the queue has no work, and a change of a
//! shared context's queue requests a pass instead.

use fabric_core::buf::PooledBuf;
use fabric_core::completion::{OpKind, Outcome};
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::rx::RxQueue;
use fabric_core::transport::{EpId, OpKey, RxEngine};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result};

use super::progress::EngineState;
use super::state::domain_state::DomainState;
use super::state::ops::OpState;

impl DomainState {
    /// Posts a receive. Returns whether the change is to be reported to the transport.
    #[inline(never)] // inlined, it takes more instructions to save the caller's registers
    fn post_to_queue(&mut self, queue: &mut RxQueue, op: OpKey, spec: RecvSpec) -> bool {
        queue.post(self, op, spec);
        queue.must_report_post()
    }
}

impl EngineState {
    /// Does what follows from a change of the receive queue of an endpoint or of a shared context.
    ///
    /// # Errors
    /// [`Error::Closed`] when the endpoint is closed.
    pub(crate) fn after_rx_change(&mut self, ep: EpId) -> Result<()> {
        if self.endpoints.is_shared_context(ep) {
            self.after_shared_rx_change(ep);
            return Ok(());
        }
        self.with_transport(ep, |transport, ctx| transport.on_rx_queue_changed(ctx))
    }

    /// Calls `act` with the receive queue of an endpoint or of a shared context; `None` when it is
    /// closed.
    pub(crate) fn with_rx<T>(
        &mut self,
        ep: EpId,
        act: impl FnOnce(&mut RxQueue, &mut DomainState) -> T,
    ) -> Option<T> {
        let rx = self.endpoints.rx_mut(ep)?;
        Some(act(rx, &mut self.domain))
    }

    /// Changes the receive queue of an endpoint or of a shared context; `None` when it is closed.
    pub(crate) fn change_rx<T>(
        &mut self,
        ep: EpId,
        act: impl FnOnce(&mut RxQueue, &mut DomainState) -> T,
    ) -> Option<T> {
        let result = self.with_rx(ep, act)?;
        // Fails only for a closed endpoint, which has no transport endpoint to notify.
        let _ = self.after_rx_change(ep);
        Some(result)
    }

    /// Posts a receive to its queue.
    #[inline(always)] // on the small-message path
    pub(crate) fn post_recv(&mut self, ep: EpId, op: OpKey, spec: RecvSpec) {
        let Some(queue) = self.endpoints.rx_mut(ep) else {
            return self.fail_posted(ep, op, Error::Closed(Class::Endpoint));
        };
        if self.domain.post_to_queue(queue, op, spec) {
            self.report_post(ep, op);
        }
    }

    /// Posts a multi-receive or a probe to the queue, as `post` does.
    pub(crate) fn post_to_rx(
        &mut self,
        ep: EpId,
        op: OpKey,
        post: impl FnOnce(&mut RxQueue, &mut DomainState),
    ) {
        match self.with_rx(ep, post) {
            Some(()) => self.report_post(ep, op),
            None => self.fail_posted(ep, op, Error::Closed(Class::Endpoint)),
        }
    }

    /// Does what follows from a post.
    #[cold]
    fn report_post(&mut self, ep: EpId, op: OpKey) {
        self.receive_next_held(ep);
        if let Err(error) = self.after_rx_change(ep) {
            self.fail_posted(ep, op, error);
        }
    }

    /// Delivers unexpected messages to the multi-receives of all queues, within a bound. Returns
    /// whether any message moved.
    #[cold]
    pub(crate) fn drain_multi_recvs(&mut self) -> bool {
        let mut moved = 0;
        let mut position = 0;
        while let Some(ep) = self.endpoints.multi_recv_queue_at(position) {
            moved += u64::from(self.with_rx(ep, RxQueue::drain_unexpected) == Some(true));
            self.receive_next_held(ep);
            if self.with_rx(ep, |rx, _| rx.has_multi_recvs()) == Some(true) {
                position += 1;
            } else {
                self.endpoints.remove_multi_recv_queue(position);
            }
        }
        self.moved_connections += moved;
        moved > 0
    }

    /// Delivers the held message that is next, if there is one. Returns whether the queue has
    /// declined the message again.
    pub(crate) fn receive_next_held(&mut self, ep: EpId) -> bool {
        let Some(peer) = self.with_rx(ep, |rx, _| rx.next_held()).flatten() else {
            return false;
        };
        let holder = if self.endpoints.is_shared_context(ep) {
            self.domain.endpoints.arrival_endpoint(ep, peer)
        } else {
            Some(ep)
        };
        if let Some(holder) = holder {
            // An endpoint that is closed holds nothing.
            let _ = self.with_transport(holder, |transport, ctx| transport.receive_held(ctx, peer));
        }
        self.with_rx(ep, |rx, domain| rx.end_next_held(domain)) == Some(true)
    }

    /// Fails a receive that was just posted, unless it has ended.
    #[cold]
    fn fail_posted(&mut self, ep: EpId, op: OpKey, error: Error) {
        let canceled = self.with_rx(ep, |rx, domain| rx.cancel(domain, op));
        if canceled != Some(false) {
            self.domain.complete(op, Outcome::failed(error));
        }
    }

    /// Cancels an operation that the transport or a receive queue has. Returns false if it has
    /// begun.
    pub(crate) fn cancel(&mut self, ep: EpId, op: OpKey) -> bool {
        let is_in_queue = |op: &OpState| op.kind == OpKind::Recv || op.is_wait();
        if !self.domain.ops.get(op).is_some_and(is_in_queue) {
            let tx_op = self.domain.ops.get(op).and_then(|op| op.tx_op);
            return tx_op.is_some_and(|tx_op| {
                self.with_transport(ep, |transport, ctx| transport.cancel(ctx, op, tx_op.peer))
                    == Ok(true)
            });
        }
        self.change_rx(ep, |rx, domain| rx.cancel(domain, op)) == Some(true)
    }

    /// Returns a message that was received and not consumed to its old place in the queue, with the
    /// current address handle of its sender.
    pub(crate) fn requeue_message(&mut self, ep: EpId, envelope: Envelope, bytes: PooledBuf) {
        let source = if self.endpoints.is_shared_context(ep) {
            // The context's vector does not have the one peer of a connected endpoint.
            let is_known = |source: &FiAddr| self.domain.is_known_addr(ep, envelope.peer, *source);
            envelope.source.filter(is_known)
        } else {
            let transport = self.endpoints.transport(ep);
            transport.and_then(|transport| transport.source_of(envelope.peer))
        };
        self.change_rx(ep, |rx, domain| {
            rx.requeue_message(domain, envelope, source, bytes);
        });
    }

    /// Closes the receive queue of an endpoint whose transport has closed the endpoint, or of a
    /// shared context. A queue that other endpoints share stays open.
    pub(crate) fn close_rx(&mut self, ep: EpId) {
        debug_assert!(self.domain.endpoints.sharing(ep).is_empty());
        let context = self.domain.endpoints.rx_context_of(ep);
        self.with_rx(ep, |rx, domain| match context {
            None => rx.close(domain),
            Some(_) => rx.on_sharing_endpoint_closed(domain, ep),
        });
        self.endpoints.remove(ep);
        if let Some(context) = context {
            // The endpoint's incomplete messages have left the budget.
            self.after_shared_rx_change(context);
        }
    }
}
