//! The endpoints of the transport with their receive queues, and which of them passes poll.
//!
//! Bindings, credits and statistics of an endpoint are in [`DomainState`], which a call of the
//! transport endpoint borrows beside this table.

use fabric_core::rx::RxQueue;
use fabric_core::transport::{EndpointContext, EpId, TransportDomain, TransportEndpoint};

use super::state::domain_state::DomainState;

/// A transport endpoint under this engine.
pub(crate) type EngineTransportEndpoint = dyn TransportEndpoint<DomainState>;

/// The receive queue of an endpoint.
#[derive(Debug)]
pub(crate) enum RxSource {
    /// A queue of the endpoint's own, or of a shared receive context.
    Own(Box<RxQueue>),
    /// The queue of this shared receive context.
    Shared(EpId),
}

/// An endpoint, or a shared receive context, which has a queue only.
struct EndpointEntry {
    id: EpId,
    rx: RxSource,
    transport: Option<Box<EngineTransportEndpoint>>,
    /// Whether passes poll the endpoint.
    is_active: bool,
}

/// The endpoints and shared receive contexts of a domain, by the ids that the domain's state has
/// assigned.
///
/// Passes poll the *active* endpoints. An endpoint becomes active when the program uses it or one
/// of its descriptors is ready. Beyond the number of endpoints that the transport keeps active, a
/// pass makes idle endpoints inactive, so a pass costs O(active endpoints).
pub(crate) struct EndpointTable {
    /// At the index of each id.
    entries: Vec<Option<EndpointEntry>>,
    /// Number of entries with a transport endpoint.
    transport_count: usize,
    /// The shared receive contexts: few, and mostly none.
    shared_contexts: Vec<EpId>,
    /// The queues to which multi-receives are posted: mostly none.
    multi_recv_queues: Vec<EpId>,
    /// The active endpoints. A closed endpoint is removed by the next pass.
    active: Vec<EpId>,
    /// Number of endpoints up to which none becomes inactive.
    always_active: usize,
    /// Whether each pass polls an inactive endpoint, in turn.
    polls_inactive: bool,
    /// Index of the entry that `next_inactive` has examined last.
    inactive_cursor: usize,
    /// Whether the endpoints share a descriptor.
    shares_descriptor: bool,
    /// Scratch memory of `activate_ready`.
    ready: Vec<EpId>,
}

impl EndpointTable {
    pub(crate) fn new(transport: &dyn TransportDomain<DomainState>) -> Self {
        Self {
            entries: Vec::new(),
            transport_count: 0,
            shared_contexts: Vec::new(),
            multi_recv_queues: Vec::new(),
            active: Vec::new(),
            always_active: transport.always_active(),
            polls_inactive: transport.polls_inactive_endpoints(),
            inactive_cursor: 0,
            shares_descriptor: transport.shares_descriptor(),
            ready: Vec::new(),
        }
    }

    /// Adds an endpoint that has no transport endpoint yet, or a shared receive context.
    pub(crate) fn insert(&mut self, id: EpId, rx: RxSource) {
        if let RxSource::Own(rx) = &rx
            && rx.is_shared()
        {
            self.shared_contexts.push(id);
        }
        if self.entries.len() <= id.index() {
            self.entries.resize_with(id.index() + 1, || None);
        }
        self.entries[id.index()] = Some(EndpointEntry {
            id,
            rx,
            transport: None,
            is_active: false,
        });
    }

    pub(crate) fn remove(&mut self, id: EpId) {
        if let Some(entry) = self.get(id) {
            self.transport_count -= usize::from(entry.transport.is_some());
            self.entries[id.index()] = None;
            self.shared_contexts.retain(|context| *context != id);
        }
    }

    #[inline(always)] // on the small-message path
    fn get(&self, id: EpId) -> Option<&EndpointEntry> {
        let entry = self.entries.get(id.index())?.as_ref()?;
        (entry.id == id).then_some(entry)
    }

    #[inline(always)] // on the small-message path
    fn get_mut(&mut self, id: EpId) -> Option<&mut EndpointEntry> {
        let entry = self.entries.get_mut(id.index())?.as_mut()?;
        (entry.id == id).then_some(entry)
    }

    /// Sets the transport endpoint, and activates the endpoint.
    pub(crate) fn attach(&mut self, id: EpId, transport: Box<EngineTransportEndpoint>) {
        if let Some(entry) = self.get_mut(id) {
            entry.transport = Some(transport);
            self.transport_count += 1;
            self.activate(id);
        }
    }

    /// Makes passes poll an endpoint.
    #[inline]
    pub(crate) fn activate(&mut self, id: EpId) {
        // Not written if it is set: a call that follows need not look up the entry again.
        if let Some(entry) = self.get_mut(id)
            && !entry.is_active
        {
            entry.is_active = true;
            self.active.push(id);
        }
    }

    /// Returns whether the endpoints share a descriptor.
    #[inline]
    pub(crate) fn shares_descriptor(&self) -> bool {
        self.shares_descriptor
    }

    /// Makes passes poll the endpoints that `collect` adds. Returns whether there is any.
    pub(crate) fn activate_ready(&mut self, collect: impl FnOnce(&mut Vec<EpId>)) -> bool {
        collect(&mut self.ready);
        let any = !self.ready.is_empty();
        while let Some(ep) = self.ready.pop() {
            self.activate(ep);
        }
        any
    }

    /// Returns a transport endpoint, and the context for calls of it. `None` if the endpoint is
    /// closed, or a shared receive context.
    #[inline(always)] // on the small-message path
    pub(crate) fn for_call<'a>(
        &'a mut self,
        id: EpId,
        domain: &'a mut DomainState,
    ) -> Option<(
        &'a mut EngineTransportEndpoint,
        EndpointContext<'a, DomainState>,
    )> {
        if let RxSource::Shared(context) = self.get(id)?.rx {
            return self.for_call_sharing(id, context, domain);
        }
        let entry = self.get_mut(id)?;
        let RxSource::Own(rx) = &mut entry.rx else {
            return None;
        };
        let ctx = EndpointContext::new(id, rx, domain);
        Some((entry.transport.as_deref_mut()?, ctx))
    }

    #[cold]
    fn for_call_sharing<'a>(
        &'a mut self,
        id: EpId,
        context: EpId,
        domain: &'a mut DomainState,
    ) -> Option<(
        &'a mut EngineTransportEndpoint,
        EndpointContext<'a, DomainState>,
    )> {
        let pair = [id.index(), context.index()];
        let Ok([Some(entry), Some(shared)]) = self.entries.get_disjoint_mut(pair) else {
            return None;
        };
        let RxSource::Own(rx) = &mut shared.rx else {
            return None;
        };
        let ctx = EndpointContext::new(id, rx, domain);
        Some((entry.transport.as_deref_mut()?, ctx))
    }

    /// Returns a transport endpoint, and its queue. `None` if it has no queue of its own.
    #[inline(always)] // on the small-message path
    pub(crate) fn for_recv(
        &mut self,
        id: EpId,
    ) -> Option<(&mut RxQueue, &mut EngineTransportEndpoint)> {
        let entry = self.get_mut(id)?;
        match &mut entry.rx {
            RxSource::Own(rx) => Some((rx, entry.transport.as_deref_mut()?)),
            RxSource::Shared(_) => None,
        }
    }

    /// Returns a transport endpoint.
    #[inline]
    pub(crate) fn transport(&self, id: EpId) -> Option<&EngineTransportEndpoint> {
        self.get(id)?.transport.as_deref()
    }

    /// Returns a transport endpoint.
    #[inline]
    pub(crate) fn transport_mut(&mut self, id: EpId) -> Option<&mut EngineTransportEndpoint> {
        self.get_mut(id)?.transport.as_deref_mut()
    }

    /// Returns all transport endpoints.
    pub(crate) fn transports(&self) -> impl Iterator<Item = &EngineTransportEndpoint> {
        let entries = self.entries.iter().flatten();
        entries.filter_map(|entry| entry.transport.as_deref())
    }

    /// Returns all transport endpoints, with their ids.
    pub(crate) fn transports_mut(
        &mut self,
    ) -> impl Iterator<Item = (EpId, &mut EngineTransportEndpoint)> {
        let entries = self.entries.iter_mut().flatten();
        entries.filter_map(|entry| Some((entry.id, entry.transport.as_deref_mut()?)))
    }

    /// Returns the queue of an endpoint that shares none, or of a shared context.
    #[inline]
    pub(crate) fn own_rx(&self, id: EpId) -> Option<&RxQueue> {
        match &self.get(id)?.rx {
            RxSource::Own(rx) => Some(rx),
            RxSource::Shared(_) => None,
        }
    }

    /// Returns the queue of an endpoint that shares none, or of a shared context.
    #[inline(always)] // on the small-message path
    pub(crate) fn own_rx_mut(&mut self, id: EpId) -> Option<&mut RxQueue> {
        match &mut self.get_mut(id)?.rx {
            RxSource::Own(rx) => Some(rx),
            RxSource::Shared(_) => None,
        }
    }

    /// Returns the queue of an endpoint or of a shared context.
    #[inline(always)] // on the small-message path
    pub(crate) fn rx_mut(&mut self, id: EpId) -> Option<&mut RxQueue> {
        let owner = match self.get(id)?.rx {
            RxSource::Own(_) => id,
            RxSource::Shared(context) => context,
        };
        self.own_rx_mut(owner)
    }

    /// Returns all receive queues.
    pub(crate) fn all_rx_mut(&mut self) -> impl Iterator<Item = &mut RxQueue> {
        let entries = self.entries.iter_mut().flatten();
        entries.filter_map(|entry| match &mut entry.rx {
            RxSource::Own(rx) => Some(&mut **rx),
            RxSource::Shared(_) => None,
        })
    }

    /// Returns whether the id is of a shared receive context.
    pub(crate) fn is_shared_context(&self, id: EpId) -> bool {
        self.shared_contexts.contains(&id)
    }

    /// Returns the shared receive contexts.
    #[inline]
    pub(crate) fn shared_contexts(&self) -> &[EpId] {
        &self.shared_contexts
    }

    /// Adds the queue of an endpoint or of a shared context to those with multi-receives.
    pub(crate) fn add_multi_recv_queue(&mut self, id: EpId) {
        if !self.multi_recv_queues.contains(&id) {
            self.multi_recv_queues.push(id);
        }
    }

    /// Returns whether a queue may have multi-receives.
    #[inline]
    pub(crate) fn has_multi_recvs(&self) -> bool {
        !self.multi_recv_queues.is_empty()
    }

    /// Returns the queue at this position of the list of those with multi-receives.
    pub(crate) fn multi_recv_queue_at(&self, position: usize) -> Option<EpId> {
        self.multi_recv_queues.get(position).copied()
    }

    /// Removes the queue at this position from the list of those with multi-receives. The last one
    /// takes the position.
    pub(crate) fn remove_multi_recv_queue(&mut self, position: usize) {
        self.multi_recv_queues.swap_remove(position);
    }

    /// Returns the number of active endpoints.
    pub(crate) fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Returns the active endpoint at this position of the list.
    #[inline]
    pub(crate) fn active_at(&self, position: usize) -> Option<EpId> {
        self.active.get(position).copied()
    }

    /// Removes the endpoint at this position from the list of active endpoints. The last one takes
    /// the position.
    pub(crate) fn deactivate(&mut self, position: usize) {
        let id = self.active.swap_remove(position);
        if let Some(entry) = self.get_mut(id) {
            entry.is_active = false;
        }
    }

    /// Returns whether more endpoints are active than stay so while they are idle.
    #[inline]
    pub(crate) fn may_deactivate(&self) -> bool {
        self.active.len() > self.always_active
    }

    /// Returns whether a pass has to poll an inactive endpoint.
    #[inline]
    pub(crate) fn polls_inactive(&self) -> bool {
        self.polls_inactive && self.active.len() < self.transport_count
    }

    /// Moves the cursor over the endpoints, and returns the endpoint there, if it is inactive.
    pub(crate) fn next_inactive(&mut self) -> Option<EpId> {
        self.inactive_cursor += 1;
        if self.inactive_cursor >= self.entries.len() {
            self.inactive_cursor = 0;
        }
        let entry = self.entries.get(self.inactive_cursor)?.as_ref()?;
        (!entry.is_active && entry.transport.is_some()).then_some(entry.id)
    }
}
