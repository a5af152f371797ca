//! Endpoints: opened with what they are bound to, and closed with what is under way there.

use std::sync::Arc;

use fabric_core::completion::Outcome;
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::stats::EndpointStats;
use fabric_core::transport::{EngineContext, EpId, FastPath};
use fabric_core::{Address, Error, Result};

use crate::domain::DomainHandle;
use crate::domain_state::{Bindings, DomainState};
use crate::engine::EngineState;
use crate::shared_rx::rx_source;
use crate::trace::TraceEvent;

/// What is asked of a provider for an endpoint with these bindings.
pub(crate) fn info_for_bindings(info: &Info, bound: &Bindings) -> Info {
    let mut info = info.clone();
    if !bound.counters.wants_rma_events() {
        // Peers need not tell of what nobody counts.
        info.caps -= Caps::RMA_EVENT;
    }
    info
}

impl EngineState {
    /// Tells the provider who has a number in the vector of a new endpoint.
    fn publish_existing_addrs(&mut self, id: EpId) {
        let Some(ep) = self.domain.endpoints.get(id.0) else {
            return;
        };
        let vector = self.domain.avs.get(ep.bindings.av.0);
        let known = vector.into_iter().flat_map(|vector| vector.table.iter());
        let known: Vec<_> = known
            .map(|(addr, address)| (addr, address.clone()))
            .collect();
        for (addr, address) in known {
            self.transport
                .address_inserted(&mut self.domain, id, addr, &address);
        }
    }

    /// Asks the provider for a quicker way to the peers of a new endpoint. What is counted goes
    /// through the hub.
    pub(crate) fn open_fast_path(&mut self, id: EpId) {
        let Self {
            domain: hub,
            transport: provider,
            ..
        } = self;
        if let Some(ep) = hub.endpoints.get_mut(id.0) {
            ep.fast_path = (!ep.bindings.counters.counts_local_ops())
                .then(|| provider.fast_path(id))
                .flatten();
        }
    }

    fn close_endpoint(&mut self, id: EpId) {
        self.domain.drop_cm_waiter(id);
        let Ok(ep) = self.domain.endpoint(id) else {
            return;
        };
        let (av, object) = (ep.bindings.av, ep.bindings.object_id);
        for key in ep.tx_credits.drain() {
            self.domain.complete(key, Outcome::failed(Error::Canceled));
        }
        if !self.close_shared_rx(id) {
            self.transport.close_endpoint(&mut self.domain, id);
            self.domain
                .deferred
                .trace(TraceEvent::EndpointClosed(object));
        }
        debug_assert!(
            !self.domain.has_unended(id),
            "closing an endpoint ends its operations, but for those whose buffers the kernel has"
        );
        self.domain.orphan_endpoint(id);
        self.domain.endpoints.remove(id.0);
        self.domain.recheck_departing_addrs(av);
    }
}

impl DomainHandle {
    /// Opens an endpoint.
    ///
    /// # Errors
    /// What the provider refuses; nothing is left behind.
    pub fn open_endpoint(
        &self,
        info: &Info,
        at: Option<&Address>,
        bound: Bindings,
    ) -> Result<(EpId, Address)> {
        let info = info_for_bindings(info, &bound);
        let object = bound.object_id;
        // Under auto progress the thread has to learn of the new descriptors' owner.
        self.with_engine(|state| {
            let shared = state.shared_rx_for(&bound)?;
            let id = EpId(
                state
                    .domain
                    .endpoints
                    .insert(DomainState::new_endpoint(bound)),
            );
            let receiving = rx_source(shared.as_ref(), self);
            let opened = state.transport.open_endpoint(id, &info, at, receiving);
            let address = opened.inspect_err(|_| drop(state.domain.endpoints.remove(id.0)))?;
            state.publish_existing_addrs(id);
            state.open_fast_path(id);
            state
                .domain
                .deferred
                .trace(TraceEvent::EndpointOpened(object, address.clone()));
            Ok((id, address))
        })
    }

    /// Closes an endpoint, or a shared context. Operations on it end as cancelled; their buffers
    /// come back with that.
    pub fn close_endpoint(&self, id: EpId) {
        self.with_engine(|state| state.close_endpoint(id));
    }

    /// A way to the endpoint's peers that is quicker where it can be gone, and is to be tried
    /// before.
    #[must_use]
    pub fn fast_path(&self, ep: EpId) -> Option<Arc<dyn FastPath>> {
        self.engine()
            .lock()
            .domain
            .endpoints
            .get(ep.0)?
            .fast_path
            .clone()
    }

    /// What an endpoint has done; nothing when it is closed.
    #[must_use]
    pub fn endpoint_stats(&self, ep: EpId) -> EndpointStats {
        let locked = self.engine().lock();
        let stats = locked.domain.endpoints.get(ep.0).map(|ep| ep.stats);
        stats.map_or_else(EndpointStats::default, |stats| {
            stats.with_transport(locked.transport_stats(ep))
        })
    }
}
