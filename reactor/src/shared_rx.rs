//! Receive contexts that several endpoints share (`fi_srx_context`).
//!
//! Such a context has a number among the endpoints, and the bindings of one: what is posted to it
//! is an operation of that number, with its entries, counters and limits. The provider knows
//! nothing of it but the matching engine that its endpoints bring their messages to. What an
//! endpoint's provider does for a context of the endpoint's own is done here: posting, taking back,
//! copying by and by.

use fabric_core::buf::PooledBuf;
use fabric_core::completion::{OpKind, Transfer};
use fabric_core::matching::{Envelope, PeerKey, RecvSpec};
use fabric_core::rx::{RxQueue, RxSource, SharedRxQueue};
use fabric_core::stats::TransportStats;
use fabric_core::transport::{EpId, OpKey};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use crate::domain::DomainHandle;
use crate::domain_state::{Bindings, DomainState, FollowUp, check_addr};
use crate::engine::EngineState;

/// The shared contexts of a domain: few, and mostly none.
pub(crate) type SharedRxContexts = Vec<(EpId, SharedRxQueue)>;

impl EngineState {
    /// The shared context of this number, if it is one.
    fn shared_rx(&self, id: EpId) -> Option<SharedRxQueue> {
        self.shared_rx_contexts
            .iter()
            .find(|(shared, _)| *shared == id)
            .map(|(_, context)| context.clone())
    }

    /// Does something at a shared context.
    fn with_shared_rx<T>(
        &mut self,
        context: &SharedRxQueue,
        act: impl FnOnce(&mut RxQueue, &mut DomainState) -> T,
    ) -> T {
        let mut rx = context.lock();
        let done = act(&mut rx, &mut self.domain);
        if rx.has_work() {
            // Its sender waits, whoever waits here.
            self.domain.progress_requested = true;
            self.domain.rearm_requested = true;
        }
        if rx.take_declined() {
            // It may be welcome now.
            self.domain.follow_ups.push(FollowUp::ResumeProgress);
        }
        done
    }

    // ---- what providers do for a context of an endpoint's own

    #[inline(always)] // on the way of a small message
    pub(crate) fn post_recv(&mut self, ep: EpId, op: OpKey, spec: RecvSpec) {
        if self.shared_rx_contexts.is_empty() || !self.post_to_shared_rx(ep, op, spec) {
            self.transport.post_recv(&mut self.domain, ep, op, spec);
        }
    }

    #[cold]
    fn post_to_shared_rx(&mut self, id: EpId, op: OpKey, spec: RecvSpec) -> bool {
        let Some(context) = self.shared_rx(id) else {
            return false;
        };
        self.with_shared_rx(&context, |rx, hub| rx.post(hub, op, spec));
        true
    }

    pub(crate) fn post_multi_recv(&mut self, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.shared_rx(ep) {
            None => self
                .transport
                .post_multi_recv(&mut self.domain, ep, op, spec),
            Some(context) => self.with_shared_rx(&context, |rx, hub| rx.post_multi(hub, op, spec)),
        }
    }

    pub(crate) fn cancel(&mut self, ep: EpId, op: OpKey) -> bool {
        match self.shared_rx(ep) {
            None => self.transport.cancel(&mut self.domain, ep, op),
            Some(context) => self.with_shared_rx(&context, |rx, hub| rx.cancel(hub, op)),
        }
    }

    pub(crate) fn detach_recv(&mut self, ep: EpId, op: OpKey) {
        match self.shared_rx(ep) {
            None => self.transport.detach_recv(&mut self.domain, ep, op),
            Some(context) => self.with_shared_rx(&context, |rx, hub| rx.detach(hub, op)),
        }
    }

    pub(crate) fn requeue_message(&mut self, ep: EpId, envelope: Envelope, bytes: PooledBuf) {
        match self.shared_rx(ep) {
            None => self
                .transport
                .requeue_message(&mut self.domain, ep, envelope, bytes),
            Some(context) => {
                // The context's vector does not have the one peer of a connected endpoint.
                let source = envelope
                    .source
                    .filter(|source| self.domain.is_known_addr(ep, envelope.peer, *source));
                self.with_shared_rx(&context, |rx, hub| {
                    rx.requeue_message(hub, envelope, source, bytes)
                });
            }
        }
    }

    /// Does something at the receive side of an endpoint, or at a shared context, unless it is
    /// closed.
    pub(crate) fn with_rx_queue<T>(
        &mut self,
        ep: EpId,
        act: impl FnOnce(&mut RxQueue, &mut DomainState) -> T,
    ) -> Option<T> {
        if let Some(context) = self.shared_rx(ep) {
            return Some(self.with_shared_rx(&context, act));
        }
        let done = act(self.transport.rx_queue(ep)?, &mut self.domain);
        self.transport.on_rx_queue_changed(&mut self.domain, ep);
        Some(done)
    }

    pub(crate) fn address_inserted(&mut self, ep: EpId, addr: FiAddr, address: &Address) {
        match self.shared_rx(ep) {
            None => self
                .transport
                .address_inserted(&mut self.domain, ep, addr, address),
            Some(context) => {
                self.with_shared_rx(&context, |rx, hub| rx.address_inserted(hub, addr, address))
            }
        }
    }

    pub(crate) fn address_removed(&mut self, ep: EpId, addr: FiAddr) {
        match self.shared_rx(ep) {
            None => self.transport.address_removed(&mut self.domain, ep, addr),
            Some(context) => self.with_shared_rx(&context, |rx, hub| rx.clear_source(hub, addr)),
        }
    }

    /// Whether a message with this source waits there.
    pub(crate) fn holds_messages_from(&self, ep: EpId, source: FiAddr) -> bool {
        match self.shared_rx(ep) {
            None => self.transport.holds_messages_from(ep, source),
            Some(context) => context.lock().holds_messages_from(source),
        }
    }

    /// What is known of its doings apart from its operations.
    pub(crate) fn transport_stats(&self, ep: EpId) -> TransportStats {
        match self.shared_rx(ep) {
            None => self.transport.stats(ep),
            Some(context) => TransportStats {
                unexpected: context.lock().unexpected(),
                ..TransportStats::default()
            },
        }
    }

    // ---- passes

    /// Moves what can be moved, once: what providers move, and what lies in shared contexts.
    #[inline]
    pub(crate) fn progress_transport(&mut self) -> bool {
        if self.shared_rx_contexts.is_empty() {
            self.transport.progress(&mut self.domain)
        } else {
            self.progress_shared_rx()
        }
    }

    #[cold]
    fn progress_shared_rx(&mut self) -> bool {
        let mut moved = false;
        for (_, context) in &self.shared_rx_contexts {
            moved |= context.lock().drain_unexpected(&mut self.domain);
        }
        moved |= self.transport.progress(&mut self.domain);
        // Behind what has just arrived, so that nobody goes away over it.
        for at in 0..self.shared_rx_contexts.len() {
            moved |= self.copy_next_chunk(at);
        }
        moved
    }

    /// Copies a piece of what lies with its sender.
    fn copy_next_chunk(&mut self, at: usize) -> bool {
        let (id, context) = &self.shared_rx_contexts[at];
        let mut rx = context.lock();
        if !rx.has_work() {
            return false;
        }
        let copied = rx.copy_next_chunk(&mut self.domain);
        self.domain.progress_requested |= rx.has_work();
        let sharers = self.domain.endpoints_sharing(*id);
        if sharers.is_empty() {
            rx.clear_acks();
        }
        // Those who tell the sender of it take the lock.
        drop(rx);
        for ep in sharers {
            self.transport.on_rx_queue_changed(&mut self.domain, ep);
        }
        copied
    }

    /// Whether a shared context has something to do before one sleeps.
    #[inline]
    pub(crate) fn shared_rx_has_work(&self) -> bool {
        self.shared_rx_contexts
            .iter()
            .any(|(_, context)| context.lock().has_work())
    }

    // ---- objects

    /// What an endpoint with these bindings receives with.
    ///
    /// # Errors
    /// [`Error::Closed`] when it is to share a context that is closed.
    pub(crate) fn shared_rx_for(&self, bound: &Bindings) -> Result<Option<SharedRxQueue>> {
        let Some(id) = bound.shared_rx else {
            return Ok(None);
        };
        self.shared_rx(id)
            .map(Some)
            .ok_or_else(|| Error::Closed(Class::SharedReceive))
    }

    /// Closes a shared context, if it is one.
    pub(crate) fn close_shared_rx(&mut self, id: EpId) -> bool {
        let Some(at) = self
            .shared_rx_contexts
            .iter()
            .position(|(shared, _)| *shared == id)
        else {
            return false;
        };
        let (_, context) = self.shared_rx_contexts.swap_remove(at);
        context.lock().close(&mut self.domain);
        true
    }
}

impl DomainState {
    /// The endpoints that share this context.
    fn endpoints_sharing(&self, id: EpId) -> Vec<EpId> {
        let sharers = self
            .endpoints
            .iter()
            .filter(|(_, ep)| ep.bindings.shared_rx == Some(id));
        sharers.map(|(number, _)| EpId(number)).collect()
    }

    /// A receive has ended: if it was posted to a shared context, the endpoint that the message
    /// came to counts it too, at its counter and if it failed.
    #[cold]
    pub(crate) fn count_at_receiving_endpoint(&mut self, posted_to: EpId, peer: PeerKey, ok: bool) {
        if let Some(sharer) = self.receiving_endpoint(posted_to, peer) {
            self.count_op(sharer, OpKind::Recv, 0, ok);
        }
    }

    /// A message was received: if its receive was posted to a shared context, the endpoint that the
    /// message came to counts it too.
    #[cold]
    pub(crate) fn count_received_at_sharer(&mut self, posted_to: EpId, peer: PeerKey, len: usize) {
        if let Some(sharer) = self.receiving_endpoint(posted_to, peer)
            && let Some(ep) = self.endpoints.get_mut(sharer.0)
        {
            ep.stats.received.record(len);
        }
    }

    /// The endpoint that a peer is, or was, connected to, if it shares this context.
    fn receiving_endpoint(&self, context: EpId, peer: PeerKey) -> Option<EpId> {
        let sharer = *self
            .shared_rx_peers
            .get((peer.0 as usize).checked_sub(1)?)?;
        let bound = &self.endpoints.get(sharer.0)?.bindings;
        (bound.shared_rx == Some(context)).then_some(sharer)
    }

    /// Whether the endpoint that a peer is connected to, and that shares this context, knows
    /// somebody by this number.
    fn is_known_addr(&self, context: EpId, peer: PeerKey, number: FiAddr) -> bool {
        let sharer = self
            .receiving_endpoint(context, peer)
            .and_then(|sharer| self.endpoints.get(sharer.0));
        sharer.is_some_and(|sharer| check_addr(&self.avs, sharer.bindings.av, number).is_ok())
    }
}

impl DomainHandle {
    /// Opens a receive context for endpoints to share. It has a number among them.
    pub fn open_shared_rx(&self, bound: Bindings) -> EpId {
        let mut locked = self.engine().lock();
        let state = &mut *locked;
        let id = EpId(
            state
                .domain
                .endpoints
                .insert(DomainState::new_endpoint(bound)),
        );
        state
            .shared_rx_contexts
            .push((id, SharedRxQueue::new(id, self.pool().clone())));
        id
    }

    /// The number in the object tree of the endpoint that a message came to which was received at
    /// this context; nothing when it is closed.
    #[must_use]
    pub fn received_by(&self, context: EpId, transfer: &Transfer) -> Option<u64> {
        let locked = self.engine().lock();
        let sharer = locked.domain.receiving_endpoint(context, transfer.peer())?;
        locked
            .domain
            .endpoints
            .get(sharer.0)
            .map(|ep| ep.bindings.object_id)
    }
}

/// What the provider is told of the context that an endpoint receives with.
pub(crate) fn rx_source<'a>(
    shared: Option<&'a SharedRxQueue>,
    domain: &'a DomainHandle,
) -> RxSource<'a> {
    shared.map_or_else(|| RxSource::Own(domain.pool()), RxSource::Shared)
}
