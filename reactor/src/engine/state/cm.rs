//! Connection management state of passive and connected endpoints.

use fabric_core::Result;
use fabric_core::transport::Connected;

use super::deferred::{Deferred, WakerSlot};

/// Connection management state of a passive or connected endpoint.
#[derive(Debug)]
pub(crate) struct CmState {
    role: CmRole,
    /// The task that waits for a request or for the outcome.
    pub(crate) waiter: WakerSlot,
}

/// What connection management of an endpoint is for.
#[derive(Debug)]
enum CmRole {
    /// A passive endpoint, with the number of requests that wait.
    Passive(usize),
    /// A connected endpoint, with the outcome of its connection attempt until it is taken.
    Connected(Option<Result<Connected>>),
}

impl CmState {
    pub(crate) fn passive() -> Self {
        let (role, waiter) = (CmRole::Passive(0), WakerSlot::EMPTY);
        Self { role, waiter }
    }

    pub(crate) fn connecting() -> Self {
        let (role, waiter) = (CmRole::Connected(None), WakerSlot::EMPTY);
        Self { role, waiter }
    }

    /// Counts a connection request and wakes the task that waits for it. Returns false if the
    /// endpoint is not passive.
    pub(crate) fn add_request(&mut self, deferred: &mut Deferred) -> bool {
        let CmRole::Passive(waiting) = &mut self.role else {
            return false;
        };
        *waiting += 1;
        self.waiter.wake(deferred);
        true
    }

    /// Notes that a connection request was taken.
    pub(crate) fn remove_request(&mut self) {
        if let CmRole::Passive(waiting) = &mut self.role {
            *waiting -= 1;
        }
    }

    /// Returns whether a connection request waits.
    pub(crate) fn has_request(&self) -> bool {
        matches!(self.role, CmRole::Passive(1..))
    }

    /// Stores the outcome of the connection attempt and wakes the task that waits for it.
    pub(crate) fn set_outcome(&mut self, outcome: Result<Connected>, deferred: &mut Deferred) {
        self.role = CmRole::Connected(Some(outcome));
        self.waiter.wake(deferred);
    }

    /// Takes the outcome of the connection attempt, if it is known.
    pub(crate) fn take_outcome(&mut self) -> Option<Result<Connected>> {
        match &mut self.role {
            CmRole::Passive(_) => None,
            CmRole::Connected(outcome) => outcome.take(),
        }
    }
}
