//! Receive contexts that several endpoints share (`fi_srx_context`).
//!
//! A shared context has an id among the endpoints and the bindings of one, but no transport
//! endpoint. A receive posted to it is an operation of that id, with its queue entries, counters
//! and limits. An endpoint that shares the context is called a *sharer*. The transport only knows
//! the `RxQueue` to which its endpoints deliver messages. Posting, canceling, copying in chunks and
//! sending acks, which an endpoint does for a receive queue of its own, are done here in each pass.
//!
//! The engine records at which endpoint each sender is connected, and assigns each sender a key in
//! the context. So senders are distinguished, and the completion can say which endpoint received.
//!
//! Decision: the context has a completion queue of its own. libfabric reports a receive at the
//! endpoint where the message arrives. Here a queue entry is reserved when the receive is posted,
//! so that no queue can overrun, and the endpoint is unknown then. With an entry reserved in the
//! queue of each endpoint, a shared receive would cost as many entries as there are endpoints. The
//! endpoints' counters count their own messages.
//!
//! The endpoints share one address vector, so that an address handle means the same peer at each of
//! them. Connected endpoints are the exception: each has an address vector with its peer, and the
//! context has an empty one. A message that is requeued in the context keeps its source if the
//! endpoint where the message arrived knows the handle.

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

/// The shared receive contexts of a domain: few, and mostly none.
pub(crate) type SharedRxContexts = Vec<(EpId, SharedRxQueue)>;

impl EngineState {
    /// Returns the shared receive context with this id; `None` if the id is of an endpoint.
    fn shared_rx(&self, id: EpId) -> Option<SharedRxQueue> {
        self.shared_rx_contexts
            .iter()
            .find(|(shared, _)| *shared == id)
            .map(|(_, context)| context.clone())
    }

    /// Calls `act` with the receive queue of a shared context, and requests the progress that
    /// follows from it.
    fn with_shared_rx<T>(
        &mut self,
        context: &SharedRxQueue,
        act: impl FnOnce(&mut RxQueue, &mut DomainState) -> T,
    ) -> T {
        let mut rx = context.lock();
        let result = act(&mut rx, &mut self.domain);
        if rx.has_work() {
            // The sender of a partial message waits, whether or not a task waits here.
            self.domain.progress_requested = true;
            self.domain.rearm_requested = true;
        }
        if rx.take_declined() {
            // A declined message may be accepted now.
            self.domain.follow_ups.push(FollowUp::ResumeProgress);
        }
        result
    }

    // ---- operations that a transport executes for an endpoint with a receive queue of its own

    #[inline(always)] // on the small-message path
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
        self.with_shared_rx(&context, |rx, domain| rx.post(domain, op, spec));
        true
    }

    pub(crate) fn post_multi_recv(&mut self, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.shared_rx(ep) {
            None => self
                .transport
                .post_multi_recv(&mut self.domain, ep, op, spec),
            Some(context) => {
                self.with_shared_rx(&context, |rx, domain| rx.post_multi(domain, op, spec))
            }
        }
    }

    pub(crate) fn cancel(&mut self, ep: EpId, op: OpKey) -> bool {
        match self.shared_rx(ep) {
            None => self.transport.cancel(&mut self.domain, ep, op),
            Some(context) => self.with_shared_rx(&context, |rx, domain| rx.cancel(domain, op)),
        }
    }

    pub(crate) fn detach_recv(&mut self, ep: EpId, op: OpKey) {
        match self.shared_rx(ep) {
            None => self.transport.detach_recv(&mut self.domain, ep, op),
            Some(context) => self.with_shared_rx(&context, |rx, domain| rx.detach(domain, op)),
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
                self.with_shared_rx(&context, |rx, domain| {
                    rx.requeue_message(domain, envelope, source, bytes)
                });
            }
        }
    }

    /// Calls `act` with the receive queue of an endpoint or of a shared context; `None` if it is
    /// closed.
    pub(crate) fn with_rx_queue<T>(
        &mut self,
        ep: EpId,
        act: impl FnOnce(&mut RxQueue, &mut DomainState) -> T,
    ) -> Option<T> {
        if let Some(context) = self.shared_rx(ep) {
            return Some(self.with_shared_rx(&context, act));
        }
        let result = act(self.transport.rx_queue(ep)?, &mut self.domain);
        self.transport.on_rx_queue_changed(&mut self.domain, ep);
        Some(result)
    }

    pub(crate) fn address_inserted(&mut self, ep: EpId, addr: FiAddr, address: &Address) {
        match self.shared_rx(ep) {
            None => self
                .transport
                .address_inserted(&mut self.domain, ep, addr, address),
            Some(context) => self.with_shared_rx(&context, |rx, domain| {
                rx.address_inserted(domain, addr, address)
            }),
        }
    }

    pub(crate) fn address_removed(&mut self, ep: EpId, addr: FiAddr) {
        match self.shared_rx(ep) {
            None => self.transport.address_removed(&mut self.domain, ep, addr),
            Some(context) => {
                self.with_shared_rx(&context, |rx, domain| rx.clear_source(domain, addr))
            }
        }
    }

    /// Returns whether a message with this source waits at an endpoint or shared context.
    pub(crate) fn holds_messages_from(&self, ep: EpId, source: FiAddr) -> bool {
        match self.shared_rx(ep) {
            None => self.transport.holds_messages_from(ep, source),
            Some(context) => context.lock().holds_messages_from(source),
        }
    }

    /// Returns the counters that the transport or the shared context keeps.
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

    /// Makes one pass over the transport and the shared contexts.
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
        // After the transport, so that a message that has just arrived is copied in this pass: the
        // program may not make another one.
        for index in 0..self.shared_rx_contexts.len() {
            moved |= self.copy_next_chunk(index);
        }
        moved
    }

    /// Copies a chunk of a message that is still in its sender's memory.
    fn copy_next_chunk(&mut self, index: usize) -> bool {
        let (id, context) = &self.shared_rx_contexts[index];
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
        // The endpoints that send the acks take the lock of the receive queue.
        drop(rx);
        for ep in sharers {
            self.transport.on_rx_queue_changed(&mut self.domain, ep);
        }
        copied
    }

    /// Returns whether a shared context has work to do before the driver sleeps.
    #[inline]
    pub(crate) fn shared_rx_has_work(&self) -> bool {
        self.shared_rx_contexts
            .iter()
            .any(|(_, context)| context.lock().has_work())
    }

    // ---- opening and closing

    /// Returns the shared context with which an endpoint with these bindings receives.
    ///
    /// # Errors
    /// [`Error::Closed`] when the shared context is closed.
    pub(crate) fn shared_rx_for(&self, bindings: &Bindings) -> Result<Option<SharedRxQueue>> {
        let Some(id) = bindings.shared_rx else {
            return Ok(None);
        };
        self.shared_rx(id)
            .map(Some)
            .ok_or_else(|| Error::Closed(Class::SharedReceive))
    }

    /// Closes a shared context; returns false if the id is of something else.
    pub(crate) fn close_shared_rx(&mut self, id: EpId) -> bool {
        let Some(index) = self
            .shared_rx_contexts
            .iter()
            .position(|(shared, _)| *shared == id)
        else {
            return false;
        };
        let (_, context) = self.shared_rx_contexts.swap_remove(index);
        context.lock().close(&mut self.domain);
        true
    }
}

impl DomainState {
    /// Returns the endpoints that share this context.
    fn endpoints_sharing(&self, id: EpId) -> Vec<EpId> {
        let sharers = self
            .endpoints
            .iter()
            .filter(|(_, ep)| ep.bindings.shared_rx == Some(id));
        sharers.map(|(id, _)| EpId(id)).collect()
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
        if let Some(sharer) = self.receiving_endpoint(posted_to, peer) {
            self.count_op(sharer, OpKind::Recv, 0, ok);
        }
    }

    /// Counts a received message, in number and bytes, at the sharer where it arrived, if its
    /// receive was posted to a shared context.
    #[cold]
    pub(crate) fn count_message_at_arrival_endpoint(
        &mut self,
        posted_to: EpId,
        peer: PeerKey,
        len: usize,
    ) {
        if let Some(sharer) = self.receiving_endpoint(posted_to, peer)
            && let Some(ep) = self.endpoints.get_mut(sharer.0)
        {
            ep.stats.received.record(len);
        }
    }

    /// Returns the endpoint that a peer is or was connected to, if the endpoint shares this
    /// context.
    fn receiving_endpoint(&self, context: EpId, peer: PeerKey) -> Option<EpId> {
        let sharer = *self
            .shared_rx_peers
            .get((peer.0 as usize).checked_sub(1)?)?;
        let bindings = &self.endpoints.get(sharer.0)?.bindings;
        (bindings.shared_rx == Some(context)).then_some(sharer)
    }

    /// Returns whether the endpoint that a peer is connected to, and that shares this context,
    /// knows this address handle.
    fn is_known_addr(&self, context: EpId, peer: PeerKey, addr: FiAddr) -> bool {
        let sharer = self
            .receiving_endpoint(context, peer)
            .and_then(|sharer| self.endpoints.get(sharer.0));
        sharer.is_some_and(|sharer| check_addr(&self.avs, sharer.bindings.av, addr).is_ok())
    }
}

impl DomainHandle {
    /// Opens a receive context that endpoints can share (`fi_srx_context`). Its id is among theirs.
    pub fn open_shared_rx(&self, bindings: Bindings) -> EpId {
        let mut locked = self.engine().lock();
        let state = &mut *locked;
        let id = EpId(
            state
                .domain
                .endpoints
                .insert(DomainState::new_endpoint(bindings)),
        );
        state
            .shared_rx_contexts
            .push((id, SharedRxQueue::new(id, self.pool().clone())));
        id
    }

    /// Returns the object id of the endpoint at which the message of a receive of this context
    /// arrived; `None` when that endpoint is closed.
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

/// Returns the receive queue that the transport is to use for an endpoint: its own, or a shared
/// one.
pub(crate) fn rx_source<'a>(
    shared: Option<&'a SharedRxQueue>,
    domain: &'a DomainHandle,
) -> RxSource<'a> {
    shared.map_or_else(|| RxSource::Own(domain.pool()), RxSource::Shared)
}
