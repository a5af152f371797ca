//! Deadlines of handshakes, of retries and of connection checks, enforced by the endpoint's
//! timerfd.

use std::sync::Arc;
use std::time::Instant;

use fabric_core::Result;
use fabric_core::transport::{EndpointContext, EngineContext, WaitSet};

use super::super::handshake::HandshakeStep;
use super::{ConnectionState, TcpEndpoint};
use crate::sys::timer::Timer;

/// The timer of all deadlines of an endpoint, if it has one.
#[derive(Default)]
pub(super) struct DeadlineTimer {
    timer: Option<Timer>,
    /// The deadline to which the timer is set.
    deadline: Option<Instant>,
}

impl DeadlineTimer {
    pub(super) fn open(&mut self, wait_set: &Arc<dyn WaitSet>, token: u64) -> Result<()> {
        self.timer = Some(Timer::new(wait_set, token)?);
        Ok(())
    }

    pub(super) fn close(&mut self) {
        self.timer = None;
    }

    /// Sets the timer, or disarms it. Also clears its readiness.
    fn set(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
        if let Some(timer) = &self.timer {
            timer.set(deadline.map(|at| at.saturating_duration_since(Instant::now())));
        }
    }
}

impl TcpEndpoint {
    /// Sets the timer to the earliest deadline, or disarms the timer if there is none. Makes no
    /// system call if the timer is set to this deadline.
    pub(super) fn arm_timer(&mut self) {
        let next = self.earliest_deadline();
        if self.timer.deadline != next {
            self.timer.set(next);
        }
    }

    fn earliest_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.connections.earliest_deadline(),
            self.peers.earliest_retry(),
            self.listener_state.retry_at(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Sets the timer for the deadline that a connection has now.
    pub(super) fn arm_connection_timer(&mut self, connection_index: usize) {
        self.connections.update_deadline(connection_index);
        self.arm_timer();
    }

    /// Handles the expired timer: acts on all deadlines that have passed.
    pub(super) fn on_timer(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let now = Instant::now();
        let retry_at = self.listener_state.retry_at();
        if retry_at.is_some_and(|retry_at| retry_at <= now) {
            self.resume_accept(ctx);
        }
        while let Some(connection_index) = self.connections.pop_expired(now) {
            self.on_connection_deadline(ctx, connection_index);
        }
        while let Some(peer_index) = self.peers.pop_due_retry(now) {
            if let Err(error) = self.connect(peer_index) {
                self.fail_sends(ctx, peer_index, &error);
            }
        }
        self.timer.set(self.earliest_deadline());
    }

    /// Ends a handshake, or a probe of a peer, or checks a replaced connection, whose deadline has
    /// passed.
    fn on_connection_deadline(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        match self.connections.get(connection_index) {
            None => {}
            Some(ConnectionState::Outbound(_)) => {
                self.on_handshake_step(ctx, connection_index, HandshakeStep::TimedOut);
            }
            Some(ConnectionState::Inbound(handshake)) => {
                let error = handshake
                    .rejection("no connection request before the handshake timeout (10 s)");
                self.remove_inbound(ctx, connection_index, Some(error));
            }
            Some(ConnectionState::Established(connection))
                if self.peers[connection.peer_index].is_replaced(connection_index) =>
            {
                self.check_replaced(ctx, connection_index);
            }
            Some(ConnectionState::Established(_)) => self.end_probe(connection_index),
        }
    }
}
