//! A domain of the simulated network: opens endpoints, and holds the regions that peers access.

use std::sync::{Arc, PoisonError};

use crate::address::Address;
use crate::error::Result;
use crate::flags::Caps;
use crate::info::Info;
use crate::mr::Region;
use crate::transport::{
    EndpointContext, EngineContext, RegionObserver, TransportDomain, TransportEndpoint, WaitSet,
};

use super::endpoint::SimEndpoint;
use super::inbound::UNEXPECTED_BUDGET;
use super::net::{self, RegionMap};

/// A domain of the simulated network.
pub(super) struct SimDomain {
    wait: Arc<dyn WaitSet>,
    regions: RegionMap,
}

impl SimDomain {
    pub(super) fn new(wait: Arc<dyn WaitSet>) -> Self {
        Self {
            wait,
            regions: RegionMap::default(),
        }
    }
}

impl<E: EngineContext> TransportDomain<E> for SimDomain {
    fn open_endpoint(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<(Box<dyn TransportEndpoint<E>>, Address)> {
        let rma_events = info.caps.contains(Caps::RMA_EVENT);
        let regions = if info.caps.is_rma_target() {
            self.regions.clone()
        } else {
            RegionMap::default()
        };
        let (node, address) = net::open(at, self.wait.clone(), (regions, rma_events))?;
        // The engine may sleep, and has not armed this endpoint.
        ctx.request_rearm();
        let endpoint = SimEndpoint::new(node, self.wait.clone());
        Ok((Box::new(endpoint), address))
    }

    fn unexpected_budget(&self) -> usize {
        UNEXPECTED_BUDGET
    }

    fn region_observer(&mut self) -> Option<&mut dyn RegionObserver> {
        Some(self)
    }

    fn describe(&self) -> String {
        "sim".into()
    }
}

impl RegionObserver for SimDomain {
    fn region_changed(&mut self, key: u64, region: &Region) {
        self.regions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, region.clone());
    }

    fn region_closed(&mut self, key: u64) {
        self.regions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key);
    }

    fn region_unlocked(&mut self, _key: u64) {
        net::wake_all();
    }
}
