//! The endpoints that passes poll.

use fabric_core::transport::{EpId, TransportDomain};

use super::state::domain_state::{DomainState, EndpointState};

/// The endpoints that passes poll.
#[derive(Debug)]
pub(crate) struct ActiveEndpoints {
    /// The active endpoints; their state has `is_active` set. A closed endpoint is removed by the
    /// next pass.
    pub(super) ids: Vec<EpId>,
    /// Whether the endpoints share a descriptor.
    pub(super) shares_descriptor: bool,
    /// Number of endpoints up to which none becomes inactive.
    pub(super) always_active: usize,
    /// Whether each pass polls an inactive endpoint, in turn.
    pub(super) polls_idle: bool,
    /// Position of the inactive endpoint that was polled last.
    pub(super) idle_cursor: usize,
    /// Scratch memory of a pass: endpoints that have become ready.
    pub(super) ready: Vec<EpId>,
}

impl ActiveEndpoints {
    pub(crate) fn new(transport: &dyn TransportDomain<DomainState>) -> Self {
        Self {
            ids: Vec::new(),
            shares_descriptor: transport.shares_descriptor(),
            always_active: transport.always_active(),
            polls_idle: transport.polls_idle_endpoints(),
            idle_cursor: 0,
            ready: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Makes passes poll an endpoint.
    #[inline]
    pub(crate) fn activate(&mut self, ep: EpId, state: &mut EndpointState) {
        if !std::mem::replace(&mut state.is_active, true) {
            self.ids.push(ep);
        }
    }
}
