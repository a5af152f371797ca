//! Calls of the transport's endpoints, and passes over those that are active.

use fabric_core::transport::{Disconnect, EndpointContext, EpId, WaitToken};
use fabric_core::tree::Class;
use fabric_core::{Error, Result};

use super::endpoint_table::EngineTransportEndpoint;
use super::progress::EngineState;
use super::state::domain_state::DomainState;

impl EngineState {
    /// Calls `act` with a transport endpoint, and makes passes poll the endpoint.
    ///
    /// # Errors
    /// [`Error::Closed`] if the endpoint is closed, or in a forked child process.
    #[inline(always)] // on the small-message path
    pub(crate) fn with_transport<T>(
        &mut self,
        ep: EpId,
        act: impl FnOnce(&mut EngineTransportEndpoint, &mut EndpointContext<'_, DomainState>) -> T,
    ) -> Result<T> {
        if !self.fork_guard.in_original_process() {
            return Err(Error::Closed(Class::Endpoint));
        }
        self.endpoints.activate(ep);
        match self.endpoints.for_call(ep, &mut self.domain) {
            Some((transport, mut ctx)) => Ok(act(transport, &mut ctx)),
            None => Err(Error::Closed(Class::Endpoint)),
        }
    }

    /// Makes one pass over the transport and the shared contexts.
    #[inline]
    pub(crate) fn progress_transport(&mut self) -> bool {
        if !self.fork_guard.in_original_process() {
            // The connections belong to the parent process.
            return false;
        }
        let drained = self.endpoints.has_multi_recvs() && self.drain_multi_recvs();
        let moved = if self.endpoints.shared_contexts().is_empty() {
            self.poll_endpoints()
        } else {
            self.progress_with_shared_rx()
        };
        moved | drained
    }

    /// Polls the active endpoints, and distributes first what has arrived for them on a shared
    /// descriptor.
    #[inline(always)] // on the small-message path
    pub(crate) fn poll_endpoints(&mut self) -> bool {
        let mut moved = self.endpoints.shares_descriptor() && self.collect_shared();
        let active_count = self.endpoints.active_count();
        let mut position = 0;
        while let Some(ep) = self.endpoints.active_at(position) {
            let may_deactivate = self.endpoints.may_deactivate();
            let Some((transport, mut ctx)) = self.endpoints.for_call(ep, &mut self.domain) else {
                self.endpoints.deactivate(position);
                continue;
            };
            let moved_here = transport.progress(&mut ctx, active_count);
            self.moved_connections += u64::from(moved_here);
            moved |= moved_here > 0;
            if may_deactivate && transport.is_idle(&mut ctx) {
                transport.on_idle(&mut ctx);
                self.endpoints.deactivate(position);
            } else {
                position += 1;
            }
        }
        if self.endpoints.polls_inactive() {
            moved |= self.poll_inactive_endpoint();
        }
        if self.endpoints.shares_descriptor() {
            self.transport.submit_shared();
        }
        moved
    }

    /// Distributes what has arrived on the shared descriptor. Returns whether anything has.
    fn collect_shared(&mut self) -> bool {
        let (transport, domain) = (&mut self.transport, &mut self.domain);
        self.endpoints
            .activate_ready(|ready| transport.collect_shared(domain, ready))
    }

    /// Polls the next inactive endpoint.
    fn poll_inactive_endpoint(&mut self) -> bool {
        let Some(ep) = self.endpoints.next_inactive() else {
            return false;
        };
        let active_count = self.endpoints.active_count();
        let Some((transport, mut ctx)) = self.endpoints.for_call(ep, &mut self.domain) else {
            return false;
        };
        let moved = transport.progress(&mut ctx, active_count);
        self.moved_connections += u64::from(moved);
        if transport.is_idle(&mut ctx) {
            transport.on_idle(&mut ctx);
        } else {
            self.endpoints.activate(ep);
        }
        moved > 0
    }

    /// Handles a ready descriptor of the transport. A pass follows.
    pub(crate) fn on_ready(&mut self, token: u64) {
        match token {
            WaitToken::SHARED => return self.transport.shared_ready(),
            WaitToken::ARRIVAL_TIMER => return self.check_arrivals(),
            _ => {}
        }
        let token = WaitToken::unpack(token);
        // The endpoint may have been closed since its descriptor was reported.
        let _ = self.with_transport(token.ep, |transport, ctx| transport.ready(ctx, token));
    }

    /// Checks the arriving messages of all receive queues, because the timer has expired. Ends the
    /// connections of messages that have timed out.
    fn check_arrivals(&mut self) {
        // A forked child shares the timer with its parent, whose connections it must not end.
        if !self.fork_guard.in_original_process() {
            return;
        }
        let mut timed_out = Vec::new();
        let mut any = false;
        let checks = self.domain.arrival_timer.checks_per_timeout();
        for rx in self.endpoints.all_rx_mut() {
            any |= rx.check_arrivals(&mut self.domain, checks, &mut timed_out);
        }
        self.domain.arrival_timer.set_running(any);
        for (ep, peer) in timed_out {
            let _ = self.with_transport(ep, |transport, ctx| {
                transport.disconnect(ctx, Disconnect::Stalled(peer))
            });
        }
    }

    /// Arms the doorbells of the active endpoints. Returns false, with none armed, when there is
    /// work.
    pub(crate) fn arm_transport(&mut self) -> bool {
        if !self.fork_guard.in_original_process() {
            return true;
        }
        let mut position = 0;
        let mut is_quiet = true;
        while is_quiet && let Some(ep) = self.endpoints.active_at(position) {
            if let Some((transport, mut ctx)) = self.endpoints.for_call(ep, &mut self.domain) {
                is_quiet = transport.arm(&mut ctx);
            }
            position += 1;
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
        let mut position = 0;
        while let Some(ep) = self.endpoints.active_at(position) {
            if let Some(transport) = self.endpoints.transport_mut(ep) {
                transport.disarm();
            }
            position += 1;
        }
    }

    /// Describes the transport and its endpoints.
    pub(crate) fn describe_transport(&self) -> String {
        let transports = self.endpoints.transports();
        let endpoints: Vec<_> = transports.map(|transport| transport.describe()).collect();
        format!(
            "{} [{}], {} active endpoints",
            self.transport.describe(),
            endpoints.join(", "),
            self.endpoints.active_count()
        )
    }
}
