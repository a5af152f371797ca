//! Endpoints: opened with what they are bound to, and closed with what is under way there.

use std::sync::Arc;

use fabric_core::completion::Outcome;
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::provider::{EpId, Express, Host};
use fabric_core::stats::EndpointStats;
use fabric_core::{Address, Error, Result};

use crate::domain::Domain;
use crate::engine::State;
use crate::hub::{Bindings, Hub};
use crate::notes::Note;
use crate::shared::receiving;

/// What is asked of a provider for an endpoint with these bindings.
pub(crate) fn heeded(info: &Info, bound: &Bindings) -> Info {
    let mut info = info.clone();
    if !bound.counters.heed_peers() {
        // Peers need not tell of what nobody counts.
        info.caps -= Caps::RMA_EVENT;
    }
    info
}

impl State {
    /// Tells the provider who has a number in the vector of a new endpoint.
    fn tell_numbers(&mut self, id: EpId) {
        let Some(ep) = self.hub.eps.get(id.0) else {
            return;
        };
        let vector = self.hub.vectors.get(ep.bound.av.0);
        let known = vector.into_iter().flat_map(|vector| vector.table.iter());
        let known: Vec<_> = known
            .map(|(addr, address)| (addr, address.clone()))
            .collect();
        for (addr, address) in known {
            self.provider
                .address_inserted(&mut self.hub, id, addr, &address);
        }
    }

    /// Asks the provider for a quicker way to the peers of a new endpoint. What is counted goes
    /// through the hub.
    pub(crate) fn ask_express(&mut self, id: EpId) {
        let Self { hub, provider, .. } = self;
        if let Some(ep) = hub.eps.get_mut(id.0) {
            ep.express = (!ep.bound.counters.heed_own())
                .then(|| provider.express(id))
                .flatten();
        }
    }

    fn close_endpoint(&mut self, id: EpId) {
        self.hub.leave_door(id);
        let Ok(ep) = self.hub.ep(id) else { return };
        let (av, object) = (ep.bound.av, ep.bound.object);
        for key in ep.transmit.drain() {
            self.hub.complete(key, Outcome::failed(Error::Canceled));
        }
        if !self.close_shared(id) {
            self.provider.close_endpoint(&mut self.hub, id);
            self.hub.later.note(Note::Closed(object));
        }
        debug_assert!(
            !self.hub.has_unended(id),
            "closing an endpoint ends its operations, but for those whose buffers the kernel has"
        );
        self.hub.appoint_heirs(id);
        self.hub.eps.remove(id.0);
        self.hub.seen_all(av);
    }
}

impl Domain {
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
        let info = heeded(info, &bound);
        let object = bound.object;
        // Under auto progress the thread has to learn of the new descriptors' owner.
        self.with(|state| {
            let shared = state.context_of(&bound)?;
            let id = EpId(state.hub.eps.insert(Hub::new_ep(bound)));
            let receiving = receiving(shared.as_ref(), self);
            let opened = state.provider.open_endpoint(id, &info, at, receiving);
            let address = opened.inspect_err(|_| drop(state.hub.eps.remove(id.0)))?;
            state.tell_numbers(id);
            state.ask_express(id);
            state.hub.later.note(Note::Opened(object, address.clone()));
            Ok((id, address))
        })
    }

    /// Closes an endpoint, or a shared context. Operations on it end as cancelled; their buffers
    /// come back with that.
    pub fn close_endpoint(&self, id: EpId) {
        self.with(|state| state.close_endpoint(id));
    }

    /// A way to the endpoint's peers that is quicker where it can be gone, and is to be tried
    /// before.
    #[must_use]
    pub fn express(&self, ep: EpId) -> Option<Arc<dyn Express>> {
        self.engine().lock().hub.eps.get(ep.0)?.express.clone()
    }

    /// What an endpoint has done; nothing when it is closed.
    #[must_use]
    pub fn endpoint_stats(&self, ep: EpId) -> EndpointStats {
        let locked = self.engine().lock();
        let stats = locked.hub.eps.get(ep.0).map(|ep| ep.stats);
        stats.map_or_else(EndpointStats::default, |stats| {
            stats.with(locked.provider_stats(ep))
        })
    }
}
