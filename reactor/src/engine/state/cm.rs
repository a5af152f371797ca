//! Connection management state of passive and connected endpoints.

use std::task::Waker;

use fabric_core::Result;
use fabric_core::transport::{Connected, EpId};

use super::domain_state::DomainState;

/// Connection management state of a passive or connected endpoint.
#[derive(Debug)]
pub(crate) struct CmState {
    pub(crate) role: CmRole,
    waker: Option<Waker>,
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
        Self { role, waker: None }
    }

    /// Takes the outcome of the connection attempt, if it is known.
    pub(crate) fn take_outcome(&mut self) -> Option<Result<Connected>> {
        match &mut self.role {
            CmRole::Passive(_) => None,
            CmRole::Connected(outcome) => outcome.take(),
        }
    }

    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }
}

impl DomainState {
    pub(crate) fn cm(&mut self, ep: EpId) -> Option<&mut CmState> {
        self.endpoints.get_mut(ep.0)?.cm.as_deref_mut()
    }

    /// Wakes the task that waits for a request or for the outcome.
    pub(crate) fn wake_cm(&mut self, ep: EpId) {
        let waiter = self.cm(ep).and_then(CmState::take_waker);
        self.deferred.wake_waiter(waiter);
    }

    /// Drops the waker of a task that no longer waits.
    pub(crate) fn drop_connect_waker(&mut self, ep: EpId) {
        let waiter = self.cm(ep).and_then(CmState::take_waker);
        self.deferred.drop_waiter(waiter);
    }

    pub(crate) fn register_cm_waker(&mut self, ep: EpId, waker: &Waker) {
        let Some(cm) = self.cm(ep) else { return };
        let previous = cm.waker.replace(waker.clone());
        self.deferred.add_waiter(previous);
    }
}
