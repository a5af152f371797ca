//! The receive queues of a domain: posting and canceling receives, and passes over shared contexts.
//!
//! Each endpoint has a receive queue of its own, or uses the queue of a shared receive context.
//! While a queue is in use ([`EngineContext::with_rx`]), it is taken out of [`RxQueues`], so that
//! the queue can complete operations of the domain.
//!
//! The transport delivers messages to the queue in its passes. The engine reports each of its own
//! changes to the transport
//! ([`on_rx_queue_changed`](fabric_core::transport::TransportDomain::on_rx_queue_changed)), apart
//! from two cases: a posted receive is not reported if the transport has turned these reports off
//! ([`set_post_reports`](RxQueue::set_post_reports)) and the queue has no work, and a change of a
//! shared context's queue requests a pass instead.

use fabric_core::buf::PooledBuf;
use fabric_core::completion::{OpKind, Outcome};
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::rx::RxQueue;
use fabric_core::transport::{EngineContext, EpId, OpKey};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use super::domain_state::{Bindings, DomainState, FollowUp};
use super::ops::OpState;
use super::progress::EngineState;

/// The receive queues of a domain.
#[derive(Debug, Default)]
pub(crate) struct RxQueues {
    /// By the [index](EpId::index) of the endpoint or shared context.
    slots: Vec<QueueSlot>,
}

#[derive(Debug, Default)]
struct QueueSlot {
    /// The open endpoint or shared context. The index of a closed one is reused.
    id: Option<EpId>,
    /// The queue of the endpoint or shared context; `None` while the queue is in use.
    queue: Option<Box<RxQueue>>,
    /// The shared context whose queue the endpoint uses.
    context: Option<EpId>,
}

impl RxQueues {
    fn fill_slot(&mut self, id: EpId, queue: Option<Box<RxQueue>>, context: Option<EpId>) {
        let index = id.index();
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, QueueSlot::default);
        }
        self.slots[index] = QueueSlot {
            id: Some(id),
            queue,
            context,
        };
    }

    /// Adds the queue of an endpoint or of a shared context.
    pub(crate) fn insert(&mut self, queue: RxQueue) {
        self.fill_slot(queue.ep(), Some(Box::new(queue)), None);
    }

    /// Adds an endpoint that uses the queue of a shared context.
    fn insert_sharer(&mut self, id: EpId, context: EpId) {
        self.fill_slot(id, None, Some(context));
    }

    /// Removes the queue of an endpoint or of a shared context. Does nothing if it is closed.
    fn remove(&mut self, id: EpId) {
        if let Some(slot) = self.slots.get_mut(id.index())
            && slot.id == Some(id)
        {
            *slot = QueueSlot::default();
        }
    }

    /// Returns the shared context whose queue an open endpoint uses.
    fn context_of(&self, id: EpId) -> Option<EpId> {
        let slot = self.slots.get(id.index())?;
        slot.context.filter(|_| slot.id == Some(id))
    }

    /// Returns the queue of an endpoint that shares none, or of a shared context.
    pub(crate) fn own(&self, id: EpId) -> Option<&RxQueue> {
        let queue = self.slots.get(id.index())?.queue.as_deref();
        queue.filter(|queue| queue.ep() == id)
    }

    /// Returns the queue of an endpoint or of a shared context.
    fn get(&self, id: EpId) -> Option<&RxQueue> {
        self.own(self.context_of(id).unwrap_or(id))
    }

    /// Takes the queue of an endpoint or of a shared context. `None` when the queue is closed or in
    /// use.
    #[inline(always)] // on the small-message path
    pub(crate) fn take(&mut self, id: EpId) -> Option<Box<RxQueue>> {
        let slot = self.slots.get_mut(id.index())?;
        match &slot.queue {
            Some(queue) if queue.ep() == id => slot.queue.take(),
            _ => self.take_shared(id),
        }
    }

    #[cold]
    fn take_shared(&mut self, id: EpId) -> Option<Box<RxQueue>> {
        let context = self.context_of(id)?;
        let queue = &mut self.slots.get_mut(context.index())?.queue;
        queue.take_if(|queue| queue.ep() == context)
    }

    /// Puts a queue back that was taken.
    #[inline(always)] // on the small-message path
    pub(crate) fn put_back(&mut self, queue: Box<RxQueue>) {
        let slot = &mut self.slots[queue.ep().index()];
        let vacant = slot.queue.replace(queue);
        debug_assert!(vacant.is_none());
        // The check whether there is something to drop is saved.
        std::mem::forget(vacant);
    }
}

impl DomainState {
    /// Opens an endpoint with these bindings, and its receive queue with this budget for unexpected
    /// messages.
    ///
    /// # Errors
    /// [`Error::Closed`] when the shared receive context of the bindings is closed.
    pub(crate) fn insert_endpoint(&mut self, bindings: Bindings, budget: usize) -> Result<EpId> {
        let shared = bindings.shared_rx;
        if let Some(context) = shared {
            self.try_with_rx(context, |rx, _| rx.raise_budget(budget))
                .ok_or_else(|| Error::Closed(Class::SharedReceive))?;
        }
        let id = EpId(self.endpoints.insert(Self::new_endpoint(bindings)));
        if let Some(context) = shared {
            self.rx_queues.insert_sharer(id, context);
        } else {
            let queue = RxQueue::new(id, budget, self.pool.clone());
            self.rx_queues.insert(queue);
        }
        Ok(id)
    }

    /// Removes an endpoint that could not be opened.
    pub(crate) fn remove_endpoint(&mut self, id: EpId) {
        if self.rx_queues.context_of(id).is_some() {
            // The shared context may know the peer of a connection that failed.
            self.try_with_rx(id, |rx, domain| rx.sharer_closed(domain, id));
        }
        self.rx_queues.remove(id);
        self.endpoints.remove(id.0);
    }

    /// Calls `act` with the receive queue of an endpoint or of a shared context; `None` when it is
    /// closed.
    pub(crate) fn try_with_rx<T>(
        &mut self,
        ep: EpId,
        act: impl FnOnce(&mut RxQueue, &mut Self) -> T,
    ) -> Option<T> {
        let mut queue = self.rx_queues.take(ep)?;
        let result = act(&mut queue, self);
        self.rx_queues.put_back(queue);
        Some(result)
    }

    /// Posts a receive. Returns whether the change is to be reported to the transport.
    #[inline(never)] // inlined, it takes more instructions to save the caller's registers
    fn post_to_queue(&mut self, queue: &mut RxQueue, op: OpKey, spec: RecvSpec) -> bool {
        queue.post(self, op, spec);
        queue.must_report_post()
    }

    /// Returns whether the id is of an endpoint with a queue of its own, or of a shared context.
    fn has_own_rx(&self, id: EpId) -> bool {
        self.rx_queues.own(id).is_some()
    }

    /// Requests the progress that follows from a change of a shared context's queue.
    fn after_shared_rx_change(&mut self, context: EpId) {
        let changes = self.try_with_rx(context, |rx, _| (rx.has_work(), rx.take_declined()));
        let (has_work, declined) = changes.unwrap_or_default();
        if has_work {
            // The sender of a partial message waits, whether or not a task waits here.
            self.progress_requested = true;
            self.rearm_requested = true;
        }
        if declined {
            // A declined message may be accepted now.
            self.follow_ups.push(FollowUp::ResumeProgress);
        }
    }
}

impl EngineState {
    /// Returns whether the id is of a shared receive context.
    #[inline]
    pub(crate) fn is_shared_rx_context(&self, id: EpId) -> bool {
        self.shared_rx_contexts.contains(&id)
    }

    /// Does what follows from a change of the receive queue of an endpoint or of a shared context.
    ///
    /// # Errors
    /// [`Error::Closed`] when the endpoint cannot receive.
    fn after_rx_change(&mut self, ep: EpId) -> Result<()> {
        if self.is_shared_rx_context(ep) {
            self.domain.after_shared_rx_change(ep);
            return Ok(());
        }
        self.with_transport(ep, |transport, domain| {
            transport.on_rx_queue_changed(domain)
        })
    }

    /// Changes the receive queue of an endpoint or of a shared context; `None` when it is closed.
    pub(crate) fn change_rx<T>(
        &mut self,
        ep: EpId,
        act: impl FnOnce(&mut RxQueue, &mut DomainState) -> T,
    ) -> Option<T> {
        let result = self.domain.try_with_rx(ep, act)?;
        // An endpoint that cannot receive has no peers to which the change matters.
        let _ = self.after_rx_change(ep);
        Some(result)
    }

    /// Posts a receive to its queue.
    #[inline(always)] // on the small-message path
    pub(crate) fn post_recv(&mut self, ep: EpId, op: OpKey, spec: RecvSpec) {
        let Some(mut queue) = self.domain.rx_queues.take(ep) else {
            return self.fail_posted(ep, op, Error::Closed(Class::Endpoint));
        };
        let must_report = self.domain.post_to_queue(&mut queue, op, spec);
        self.domain.rx_queues.put_back(queue);
        if must_report {
            self.report_post(ep, op);
        }
    }

    /// Posts a multi-receive or a probe to the queue, as `post` does.
    fn post_to_rx(
        &mut self,
        ep: EpId,
        op: OpKey,
        post: impl FnOnce(&mut RxQueue, &mut DomainState),
    ) {
        match self.domain.try_with_rx(ep, post) {
            Some(()) => self.report_post(ep, op),
            None => self.fail_posted(ep, op, Error::Closed(Class::Endpoint)),
        }
    }

    /// Does what follows from a post.
    #[cold]
    fn report_post(&mut self, ep: EpId, op: OpKey) {
        if let Err(error) = self.after_rx_change(ep) {
            self.fail_posted(ep, op, error);
        }
    }

    /// Fails a receive that was just posted, unless it has ended.
    #[cold]
    fn fail_posted(&mut self, ep: EpId, op: OpKey, error: Error) {
        let canceled = self
            .domain
            .try_with_rx(ep, |rx, domain| rx.cancel(domain, op));
        if canceled != Some(false) {
            self.domain.complete(op, Outcome::failed(error));
        }
    }

    pub(crate) fn post_multi_recv(&mut self, ep: EpId, op: OpKey, spec: RecvSpec) {
        self.post_to_rx(ep, op, |rx, domain| rx.post_multi(domain, op, spec));
    }

    pub(crate) fn post_probe(&mut self, ep: EpId, op: OpKey, spec: RecvSpec) {
        self.post_to_rx(ep, op, |rx, domain| rx.probe(domain, op, spec));
    }

    /// Cancels an operation that the transport or a receive queue has. Returns false if it has
    /// begun.
    pub(crate) fn cancel(&mut self, ep: EpId, op: OpKey) -> bool {
        let is_in_queue = |op: &OpState| op.kind == OpKind::Recv || op.no_transfer;
        if !self.domain.ops.get(op).is_some_and(is_in_queue) {
            let canceled =
                self.with_transport(ep, |transport, domain| transport.cancel(domain, op));
            return canceled == Ok(true);
        }
        self.change_rx(ep, |rx, domain| rx.cancel(domain, op)) == Some(true)
    }

    /// Detaches a receive whose future was dropped: a message that is arriving in it goes to
    /// another receive.
    pub(crate) fn detach_recv(&mut self, ep: EpId, op: OpKey) {
        self.change_rx(ep, |rx, domain| rx.detach(domain, op));
    }

    /// Returns a message that was received and not consumed to its old place in the queue, with the
    /// current address handle of its sender.
    pub(crate) fn requeue_message(&mut self, ep: EpId, envelope: Envelope, bytes: PooledBuf) {
        let source = if self.is_shared_rx_context(ep) {
            // The context's vector does not have the one peer of a connected endpoint.
            let is_known = |source: &FiAddr| self.domain.is_known_addr(ep, envelope.peer, *source);
            envelope.source.filter(is_known)
        } else {
            let state = self.domain.endpoints.get(ep.0);
            let transport = state.and_then(|state| state.transport.as_ref());
            transport.and_then(|transport| transport.source_of(envelope.peer))
        };
        self.change_rx(ep, |rx, domain| {
            rx.requeue_message(domain, envelope, source, bytes);
        });
    }

    pub(crate) fn address_inserted(&mut self, ep: EpId, addr: FiAddr, address: &Address) {
        if !self.is_shared_rx_context(ep) {
            let _ = self.with_transport(ep, |transport, domain| {
                transport.address_inserted(domain, addr, address);
            });
        }
        if self.domain.has_own_rx(ep) {
            let changed = self
                .domain
                .try_with_rx(ep, |rx, domain| rx.address_inserted(domain, addr, address));
            if changed == Some(true) {
                let _ = self.after_rx_change(ep);
            }
        }
    }

    pub(crate) fn address_removed(&mut self, ep: EpId, addr: FiAddr) {
        // Handles of other vectors than the context's mean nothing in its queue.
        if self.domain.has_own_rx(ep) {
            self.domain
                .try_with_rx(ep, |rx, domain| rx.clear_source(domain, addr));
        }
        if !self.is_shared_rx_context(ep) {
            let _ = self.with_transport(ep, |transport, domain| {
                transport.address_removed(domain, addr);
            });
        }
        // A receive that fails makes room for messages that were held back for it.
        let _ = self.after_rx_change(ep);
    }

    /// Returns whether a message with this source waits at an endpoint or shared context.
    pub(crate) fn holds_messages_from(&self, ep: EpId, source: FiAddr) -> bool {
        let queue = self.domain.rx_queues.get(ep);
        queue.is_some_and(|rx| rx.holds_messages_from(source))
    }

    // ---- passes

    /// Makes a pass over the shared contexts and the endpoints.
    #[cold]
    pub(crate) fn progress_with_shared_rx(&mut self) -> bool {
        let mut moved = false;
        for context in &self.shared_rx_contexts {
            let drained = self.domain.try_with_rx(*context, RxQueue::drain_unexpected);
            moved |= drained == Some(true);
        }
        moved |= self.poll_endpoints();
        // After the transport, so that a message that has just arrived is copied in this pass: the
        // program may not make another one.
        for index in 0..self.shared_rx_contexts.len() {
            moved |= self.copy_next_chunk(self.shared_rx_contexts[index]);
        }
        moved
    }

    /// Copies a chunk of a message of a shared context that is still in its sender's memory.
    fn copy_next_chunk(&mut self, context: EpId) -> bool {
        let sharers = self.domain.endpoints_sharing(context);
        let copied = self.domain.try_with_rx(context, |rx, domain| {
            if !rx.has_work() {
                return None;
            }
            let copied = rx.copy_next_chunk(domain);
            domain.progress_requested |= rx.has_work();
            if sharers.is_empty() {
                rx.clear_acks();
            }
            Some(copied)
        });
        let Some(copied) = copied.flatten() else {
            return false;
        };
        for ep in sharers {
            // The endpoints send the acks to their peers.
            let _ = self.with_transport(ep, |transport, domain| {
                transport.on_rx_queue_changed(domain)
            });
        }
        copied
    }

    /// Returns whether a shared context has work to do before the driver sleeps.
    #[inline]
    pub(crate) fn shared_rx_has_work(&self) -> bool {
        let mut queues = self
            .shared_rx_contexts
            .iter()
            .filter_map(|context| self.domain.rx_queues.own(*context));
        queues.any(RxQueue::has_work)
    }

    /// Closes the receive queue of an endpoint whose transport has closed the endpoint, or of a
    /// shared context. A queue that other endpoints share stays open.
    pub(crate) fn close_rx(&mut self, ep: EpId) {
        debug_assert!(self.domain.endpoints_sharing(ep).is_empty());
        let context = self.domain.rx_queues.context_of(ep);
        self.domain.try_with_rx(ep, |rx, domain| match context {
            None => rx.close(domain),
            Some(_) => rx.sharer_closed(domain, ep),
        });
        self.shared_rx_contexts.retain(|context| *context != ep);
        self.domain.rx_queues.remove(ep);
        if let Some(context) = context {
            // The endpoint's incomplete messages have left the budget.
            self.domain.after_shared_rx_change(context);
        }
    }
}
