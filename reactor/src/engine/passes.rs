//! The endpoints of the transport: calls of one, and passes over those that are active.
//!
//! Passes poll the *active* endpoints. An endpoint becomes active when the program uses it or one of
//! its descriptors is ready. Beyond the number of endpoints that the transport keeps active, a pass
//! makes idle endpoints inactive, so a pass costs O(active endpoints).

use fabric_core::transport::{EpId, WaitToken};
use fabric_core::tree::Class;
use fabric_core::{Error, Result};

use super::progress::EngineState;
use super::state::domain_state::{DomainState, EngineTransportEndpoint};

impl DomainState {
    /// Takes the transport's part of an endpoint for a call. `None` if the endpoint is closed, or a
    /// shared receive context.
    #[inline(always)] // on the small-message path
    fn take_transport(&mut self, ep: EpId) -> Option<Box<EngineTransportEndpoint>> {
        self.endpoints.get_mut(ep.0)?.transport.take()
    }

    /// Puts the transport's part of an endpoint back.
    #[inline(always)] // on the small-message path
    pub(crate) fn put_transport(&mut self, ep: EpId, transport: Box<EngineTransportEndpoint>) {
        if let Some(state) = self.endpoints.get_mut(ep.0) {
            state.transport = Some(transport);
        }
    }
}

impl EngineState {
    /// Gives an endpoint its transport's part.
    pub(crate) fn attach_transport(&mut self, ep: EpId, transport: Box<EngineTransportEndpoint>) {
        if let Some(state) = self.domain.endpoints.get_mut(ep.0) {
            state.transport = Some(transport);
            self.active.activate(ep, state);
        }
    }

    /// Calls `act` with the transport's part of an endpoint, and makes passes poll the endpoint.
    ///
    /// # Errors
    /// [`Error::Closed`] if the endpoint is closed, or in a forked child process.
    #[inline(always)] // on the small-message path
    pub(crate) fn with_transport<T>(
        &mut self,
        ep: EpId,
        act: impl FnOnce(&mut EngineTransportEndpoint, &mut DomainState) -> T,
    ) -> Result<T> {
        if !self.fork_guard.in_original_process() {
            return Err(Error::Closed(Class::Endpoint));
        }
        let taken = self.domain.endpoints.get_mut(ep.0).and_then(|state| {
            self.active.activate(ep, state);
            state.transport.take()
        });
        let Some(mut transport) = taken else {
            return Err(Error::Closed(Class::Endpoint));
        };
        let result = act(&mut *transport, &mut self.domain);
        self.domain.put_transport(ep, transport);
        Ok(result)
    }

    /// Makes one pass over the transport and the shared contexts.
    #[inline]
    pub(crate) fn progress_transport(&mut self) -> bool {
        if !self.fork_guard.in_original_process() {
            // The connections belong to the parent process.
            return false;
        }
        if self.shared_rx_contexts.is_empty() {
            self.poll_endpoints()
        } else {
            self.progress_with_shared_rx()
        }
    }

    /// Polls the active endpoints, and distributes first what has arrived for them on a shared
    /// descriptor.
    #[inline]
    pub(crate) fn poll_endpoints(&mut self) -> bool {
        let mut moved = self.active.shares_descriptor && self.collect_shared();
        let active_count = self.active.len();
        let mut index = 0;
        while let Some(&ep) = self.active.ids.get(index) {
            let Some(mut transport) = self.domain.take_transport(ep) else {
                self.active.ids.swap_remove(index);
                continue;
            };
            moved |= transport.progress(&mut self.domain, active_count);
            if self.active.len() > self.active.always_active && transport.is_idle(&mut self.domain)
            {
                transport.on_idle(&mut self.domain);
                if let Some(state) = self.domain.endpoints.get_mut(ep.0) {
                    state.is_active = false;
                }
                self.active.ids.swap_remove(index);
            } else {
                index += 1;
            }
            self.domain.put_transport(ep, transport);
        }
        if self.active.polls_idle && self.active.len() < self.domain.endpoints.len() {
            moved |= self.poll_idle_endpoint();
        }
        if self.active.shares_descriptor {
            self.transport.submit_shared();
        }
        moved
    }

    /// Distributes what has arrived on the shared descriptor. Returns whether anything has.
    fn collect_shared(&mut self) -> bool {
        self.transport
            .collect_shared(&mut self.domain, &mut self.active.ready);
        let any = !self.active.ready.is_empty();
        while let Some(ep) = self.active.ready.pop() {
            if let Some(state) = self.domain.endpoints.get_mut(ep.0) {
                self.active.activate(ep, state);
            }
        }
        any
    }

    /// Polls the next inactive endpoint.
    fn poll_idle_endpoint(&mut self) -> bool {
        let next = self.domain.endpoints.next_id(&mut self.active.idle_cursor);
        let Some(ep) = next.map(EpId) else {
            return false;
        };
        let is_active = self.domain.endpoints.get(ep.0).map(|state| state.is_active);
        if is_active != Some(false) {
            return false;
        }
        let Some(mut transport) = self.domain.take_transport(ep) else {
            return false;
        };
        let moved = transport.progress(&mut self.domain, self.active.len());
        let is_idle = transport.is_idle(&mut self.domain);
        if is_idle {
            transport.on_idle(&mut self.domain);
        }
        self.domain.put_transport(ep, transport);
        if !is_idle && let Some(state) = self.domain.endpoints.get_mut(ep.0) {
            self.active.activate(ep, state);
        }
        moved
    }

    /// Handles a ready descriptor of the transport.
    pub(crate) fn on_ready(&mut self, token: u64) {
        if token == WaitToken::SHARED {
            self.transport.shared_ready();
            self.progress_transport();
            return;
        }
        let token = WaitToken::unpack(token);
        // The endpoint may have been closed since its descriptor was reported.
        let _ = self.with_transport(token.ep, |transport, domain| {
            transport.ready(domain, token);
        });
    }

    /// Arms the doorbells of the active endpoints. Returns false, with none armed, when there is
    /// work.
    pub(crate) fn arm_transport(&mut self) -> bool {
        if !self.fork_guard.in_original_process() {
            return true;
        }
        let mut is_quiet = true;
        for index in 0..self.active.len() {
            let ep = self.active.ids[index];
            let Some(mut transport) = self.domain.take_transport(ep) else {
                continue;
            };
            is_quiet = transport.arm(&mut self.domain);
            self.domain.put_transport(ep, transport);
            if !is_quiet {
                break;
            }
        }
        is_quiet = is_quiet && self.transport.arm_shared();
        if !is_quiet {
            self.disarm_transport();
        }
        is_quiet
    }

    /// Disarms the doorbells of the active endpoints.
    pub(crate) fn disarm_transport(&mut self) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        for ep in &self.active.ids {
            let state = self.domain.endpoints.get_mut(ep.0);
            if let Some(transport) = state.and_then(|state| state.transport.as_mut()) {
                transport.disarm();
            }
        }
    }

    /// Describes the transport and its endpoints.
    pub(crate) fn describe_transport(&self) -> String {
        let transports = self.domain.endpoints.iter();
        let endpoints: Vec<_> = transports
            .filter_map(|(_, state)| Some(state.transport.as_ref()?.describe()))
            .collect();
        format!(
            "{} [{}], {} active endpoints",
            self.transport.describe(),
            endpoints.join(", "),
            self.active.len()
        )
    }
}
