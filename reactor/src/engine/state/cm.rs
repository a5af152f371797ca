//! Connection management state of passive and connected endpoints.

use std::task::Waker;

use fabric_core::Result;
use fabric_core::transport::{Connected, EpId};

use super::domain_state::DomainState;

/// Connection management state of a passive or connected endpoint.
#[derive(Debug, Default)]
pub(crate) struct CmState {
    /// The number of requests that wait at a passive endpoint.
    pub(crate) pending_requests: usize,
    /// The outcome of the connection attempt, until it is taken.
    pub(crate) outcome: Option<Result<Connected>>,
    waker: Option<Waker>,
}

impl CmState {
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
