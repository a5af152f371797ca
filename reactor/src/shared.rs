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
use fabric_core::provider::{EpId, OpKey};
use fabric_core::rx::{Receiving, RxContext, SharedContext};
use fabric_core::stats::ProviderStats;
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use crate::domain::Domain;
use crate::engine::State;
use crate::hub::{Bindings, FollowUp, Hub, known};

/// The shared contexts of a domain: few, and mostly none.
pub(crate) type SharedContexts = Vec<(EpId, SharedContext)>;

impl State {
    /// The shared context of this number, if it is one.
    fn shared_at(&self, id: EpId) -> Option<SharedContext> {
        self.shared
            .iter()
            .find(|(shared, _)| *shared == id)
            .map(|(_, context)| context.clone())
    }

    /// Does something at a shared context.
    fn at_shared<T>(
        &mut self,
        context: &SharedContext,
        act: impl FnOnce(&mut RxContext, &mut Hub) -> T,
    ) -> T {
        let mut rx = context.lock();
        let done = act(&mut rx, &mut self.hub);
        if rx.has_chores() {
            // Its sender waits, whoever waits here.
            self.hub.goes_on = true;
            self.hub.unsettled = true;
        }
        if rx.has_declined() {
            // It may be welcome now.
            self.hub.follow_ups.push(FollowUp::Resume);
        }
        done
    }

    // ---- what providers do for a context of an endpoint's own

    #[inline(always)] // on the way of a small message
    pub(crate) fn post_recv(&mut self, ep: EpId, op: OpKey, spec: RecvSpec) {
        if self.shared.is_empty() || !self.post_to_shared(ep, op, spec) {
            self.provider.post_recv(&mut self.hub, ep, op, spec);
        }
    }

    #[cold]
    fn post_to_shared(&mut self, id: EpId, op: OpKey, spec: RecvSpec) -> bool {
        let Some(context) = self.shared_at(id) else {
            return false;
        };
        self.at_shared(&context, |rx, hub| rx.post(hub, op, spec));
        true
    }

    pub(crate) fn post_multi_recv(&mut self, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.shared_at(ep) {
            None => self.provider.post_multi_recv(&mut self.hub, ep, op, spec),
            Some(context) => self.at_shared(&context, |rx, hub| rx.post_multi(hub, op, spec)),
        }
    }

    pub(crate) fn cancel(&mut self, ep: EpId, op: OpKey) -> bool {
        match self.shared_at(ep) {
            None => self.provider.cancel(&mut self.hub, ep, op),
            Some(context) => self.at_shared(&context, |rx, hub| rx.cancel(hub, op)),
        }
    }

    pub(crate) fn abandon_recv(&mut self, ep: EpId, op: OpKey) {
        match self.shared_at(ep) {
            None => self.provider.abandon_recv(&mut self.hub, ep, op),
            Some(context) => self.at_shared(&context, |rx, hub| rx.abandon(hub, op)),
        }
    }

    pub(crate) fn put_back(&mut self, ep: EpId, envelope: Envelope, bytes: PooledBuf) {
        match self.shared_at(ep) {
            None => self.provider.put_back(&mut self.hub, ep, envelope, bytes),
            Some(context) => {
                // The context's vector does not have the one peer of a connected endpoint.
                let source = envelope
                    .source
                    .filter(|source| self.hub.is_number_of(ep, envelope.peer, *source));
                self.at_shared(&context, |rx, hub| {
                    rx.put_back(hub, envelope, source, bytes)
                });
            }
        }
    }

    /// Does something at the receive side of an endpoint, or at a shared context, unless it is
    /// closed.
    pub(crate) fn at_receive_side<T>(
        &mut self,
        ep: EpId,
        act: impl FnOnce(&mut RxContext, &mut Hub) -> T,
    ) -> Option<T> {
        if let Some(context) = self.shared_at(ep) {
            return Some(self.at_shared(&context, act));
        }
        let done = act(self.provider.receive_side(ep)?, &mut self.hub);
        self.provider.receive_side_changed(&mut self.hub, ep);
        Some(done)
    }

    pub(crate) fn address_inserted(&mut self, ep: EpId, addr: FiAddr, address: &Address) {
        match self.shared_at(ep) {
            None => self
                .provider
                .address_inserted(&mut self.hub, ep, addr, address),
            Some(context) => self.at_shared(&context, |rx, hub| rx.inserted(hub, addr, address)),
        }
    }

    pub(crate) fn address_removed(&mut self, ep: EpId, addr: FiAddr) {
        match self.shared_at(ep) {
            None => self.provider.address_removed(&mut self.hub, ep, addr),
            Some(context) => self.at_shared(&context, |rx, hub| rx.forget(hub, addr)),
        }
    }

    /// Whether a message with this source waits there.
    pub(crate) fn holds(&self, ep: EpId, source: FiAddr) -> bool {
        match self.shared_at(ep) {
            None => self.provider.holds(ep, source),
            Some(context) => context.lock().holds(source),
        }
    }

    /// What is known of its doings apart from its operations.
    pub(crate) fn provider_stats(&self, ep: EpId) -> ProviderStats {
        match self.shared_at(ep) {
            None => self.provider.stats(ep),
            Some(context) => ProviderStats {
                unexpected: context.lock().unexpected(),
                ..ProviderStats::default()
            },
        }
    }

    // ---- passes

    /// Moves what can be moved, once: what providers move, and what lies in shared contexts.
    #[inline]
    pub(crate) fn progress(&mut self) -> bool {
        if self.shared.is_empty() {
            self.provider.progress(&mut self.hub)
        } else {
            self.progress_all()
        }
    }

    #[cold]
    fn progress_all(&mut self) -> bool {
        let mut moved = false;
        for (_, context) in &self.shared {
            moved |= context.lock().serve(&mut self.hub);
        }
        moved |= self.provider.progress(&mut self.hub);
        // Behind what has just arrived, so that nobody goes away over it.
        for at in 0..self.shared.len() {
            moved |= self.copy_on(at);
        }
        moved
    }

    /// Copies a piece of what lies with its sender.
    fn copy_on(&mut self, at: usize) -> bool {
        let (id, context) = &self.shared[at];
        let mut rx = context.lock();
        if !rx.has_chores() {
            return false;
        }
        let copied = rx.copy_on(&mut self.hub);
        self.hub.goes_on |= rx.has_chores();
        let sharers = self.hub.sharers_of(*id);
        if sharers.is_empty() {
            rx.forget_receipts();
        }
        // Those who tell the sender of it take the lock.
        drop(rx);
        for ep in sharers {
            self.provider.receive_side_changed(&mut self.hub, ep);
        }
        copied
    }

    /// Whether a shared context has something to do before one sleeps.
    #[inline]
    pub(crate) fn has_shared_chores(&self) -> bool {
        self.shared
            .iter()
            .any(|(_, context)| context.lock().has_chores())
    }

    // ---- objects

    /// What an endpoint with these bindings receives with.
    ///
    /// # Errors
    /// [`Error::Closed`] when it is to share a context that is closed.
    pub(crate) fn context_of(&self, bound: &Bindings) -> Result<Option<SharedContext>> {
        let Some(id) = bound.shared else {
            return Ok(None);
        };
        self.shared_at(id)
            .map(Some)
            .ok_or_else(|| Error::Closed(Class::SharedReceive))
    }

    /// Closes a shared context, if it is one.
    pub(crate) fn close_shared(&mut self, id: EpId) -> bool {
        let Some(at) = self.shared.iter().position(|(shared, _)| *shared == id) else {
            return false;
        };
        let (_, context) = self.shared.swap_remove(at);
        context.lock().close(&mut self.hub);
        true
    }
}

impl Hub {
    /// The endpoints that share this context.
    fn sharers_of(&self, id: EpId) -> Vec<EpId> {
        let sharers = self
            .eps
            .iter()
            .filter(|(_, ep)| ep.bound.shared == Some(id));
        sharers.map(|(number, _)| EpId(number)).collect()
    }

    /// A receive has ended: if it was posted to a shared context, the endpoint that the message
    /// came to counts it too, at its counter and if it failed.
    #[cold]
    pub(crate) fn count_at_sharer(&mut self, posted_to: EpId, peer: PeerKey, ok: bool) {
        if let Some(sharer) = self.sharer(posted_to, peer) {
            self.count(sharer, OpKind::Recv, 0, ok);
        }
    }

    /// A message was received: if its receive was posted to a shared context, the endpoint that the
    /// message came to counts it too.
    #[cold]
    pub(crate) fn count_received_at_sharer(&mut self, posted_to: EpId, peer: PeerKey, len: usize) {
        if let Some(sharer) = self.sharer(posted_to, peer)
            && let Some(ep) = self.eps.get_mut(sharer.0)
        {
            ep.stats.received.add(len);
        }
    }

    /// The endpoint that a peer is, or was, connected to, if it shares this context.
    fn sharer(&self, context: EpId, peer: PeerKey) -> Option<EpId> {
        let sharer = *self.shared_peers.get((peer.0 as usize).checked_sub(1)?)?;
        let bound = &self.eps.get(sharer.0)?.bound;
        (bound.shared == Some(context)).then_some(sharer)
    }

    /// Whether the endpoint that a peer is connected to, and that shares this context, knows
    /// somebody by this number.
    fn is_number_of(&self, context: EpId, peer: PeerKey, number: FiAddr) -> bool {
        let sharer = self
            .sharer(context, peer)
            .and_then(|sharer| self.eps.get(sharer.0));
        sharer.is_some_and(|sharer| known(&self.vectors, sharer.bound.av, number).is_ok())
    }
}

impl Domain {
    /// Opens a receive context for endpoints to share. It has a number among them.
    pub fn open_shared(&self, bound: Bindings) -> EpId {
        let mut locked = self.engine().lock();
        let state = &mut *locked;
        let id = EpId(state.hub.eps.insert(Hub::new_ep(bound)));
        state
            .shared
            .push((id, SharedContext::new(id, self.pool().clone())));
        id
    }

    /// The number in the object tree of the endpoint that a message came to which was received at
    /// this context; nothing when it is closed.
    #[must_use]
    pub fn received_by(&self, context: EpId, transfer: &Transfer) -> Option<u64> {
        let locked = self.engine().lock();
        let sharer = locked.hub.sharer(context, transfer.peer())?;
        locked.hub.eps.get(sharer.0).map(|ep| ep.bound.object)
    }
}

/// What the provider is told of the context that an endpoint receives with.
pub(crate) fn receiving<'a>(
    shared: Option<&'a SharedContext>,
    domain: &'a Domain,
) -> Receiving<'a> {
    shared.map_or_else(|| Receiving::Own(domain.pool()), Receiving::Shared)
}
