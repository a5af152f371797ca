//! Connection management state of passive and connected endpoints.

use std::task::Waker;

use fabric_core::Result;
use fabric_core::transport::{Connected, EpId};

use super::deferred::WakerSlot;
use super::domain_state::{DomainState, EndpointState};
use super::id_map::IdMap;

/// Connection management state of a passive or connected endpoint.
#[derive(Debug)]
pub(crate) struct CmState {
    pub(crate) role: CmRole,
    /// The task that waits for a request or for the outcome.
    pub(crate) waiter: WakerSlot,
}

/// What connection management of an endpoint is for.
#[derive(Debug)]
pub(crate) enum CmRole {
    /// A passive endpoint, with the number of requests that wait.
    Passive(usize),
    /// A connected endpoint, with the outcome of its connection attempt until it is taken.
    Connected(Option<Result<Connected>>),
}

impl CmState {
    pub(crate) fn new(role: CmRole) -> Self {
        let waiter = WakerSlot::EMPTY;
        Self { role, waiter }
    }

    /// Takes the outcome of the connection attempt, if it is known.
    pub(crate) fn take_outcome(&mut self) -> Option<Result<Connected>> {
        match &mut self.role {
            CmRole::Passive(_) => None,
            CmRole::Connected(outcome) => outcome.take(),
        }
    }
}

/// Returns the connection management state of an endpoint.
fn cm_of(endpoints: &mut IdMap<EndpointState>, ep: EpId) -> Option<&mut CmState> {
    endpoints.get_mut(ep.0)?.cm.as_deref_mut()
}

impl DomainState {
    pub(crate) fn cm(&mut self, ep: EpId) -> Option<&mut CmState> {
        cm_of(&mut self.endpoints, ep)
    }

    /// Wakes the task that waits for a request or for the outcome.
    pub(crate) fn wake_cm(&mut self, ep: EpId) {
        if let Some(cm) = cm_of(&mut self.endpoints, ep) {
            cm.waiter.wake(&mut self.deferred);
        }
    }

    /// Drops the waker of a task that no longer waits.
    pub(crate) fn drop_connect_waker(&mut self, ep: EpId) {
        if let Some(cm) = cm_of(&mut self.endpoints, ep) {
            cm.waiter.clear(&mut self.deferred);
        }
    }

    pub(crate) fn register_cm_waker(&mut self, ep: EpId, waker: &Waker) {
        if let Some(cm) = cm_of(&mut self.endpoints, ep) {
            cm.waiter.register(waker, &mut self.deferred);
        }
    }
}
