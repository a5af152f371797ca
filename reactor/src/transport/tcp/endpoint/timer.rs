//! Deadlines of handshakes, of retries and of connection checks, enforced by the endpoint's
//! timerfd.

use std::time::Instant;

use fabric_core::transport::{EndpointContext, EngineContext};

use super::super::handshake::HandshakeStep;
use super::{ConnectionState, HANDSHAKE_TIMEOUT, TcpEndpoint};

impl TcpEndpoint {
    /// Sets the timer to the earliest deadline, or disarms the timer if there is none. Makes no
    /// system call if the timer is set to this deadline.
    pub(super) fn arm_timer(&mut self) {
        let next = self.earliest_deadline();
        if self.timer_deadline != next {
            self.set_timer(next);
        }
    }

    fn earliest_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.connection_deadlines.earliest(),
            self.retry_deadlines.earliest(),
            self.listener_state.retry_at(),
        ];
        deadlines.into_iter().flatten().min()
    }

    fn set_timer(&mut self, deadline: Option<Instant>) {
        self.timer_deadline = deadline;
        if let Some(timer) = &self.timer {
            timer.set(deadline.map(|at| at.saturating_duration_since(Instant::now())));
        }
    }

    /// Sets the timer for the deadline of a connection, if it has one.
    pub(super) fn arm_connection_timer(&mut self, connection_index: usize) {
        let state = self.connections.get(connection_index);
        if let Some(deadline) = state.and_then(ConnectionState::deadline) {
            self.connection_deadlines.set(connection_index, deadline);
            self.arm_timer();
        }
    }

    /// Handles the expired timer: acts on all deadlines that have passed.
    pub(super) fn on_timer(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let now = Instant::now();
        let retry_at = self.listener_state.retry_at();
        if retry_at.is_some_and(|retry_at| retry_at <= now) {
            self.resume_accept(ctx);
        }
        while let Some(connection_index) = self.connection_deadlines.pop_expired(now) {
            self.on_connection_deadline(ctx, connection_index, now);
        }
        while let Some(peer_index) = self.retry_deadlines.pop_expired(now) {
            self.on_retry_deadline(ctx, peer_index, now);
        }
        // Setting the timer also clears its readiness.
        self.set_timer(self.earliest_deadline());
    }

    /// Handles a deadline of a connection: ends a handshake or a probe, or checks a replaced
    /// connection. The deadline that has passed may be that of an earlier connection with this
    /// index.
    fn on_connection_deadline(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        now: Instant,
    ) {
        let Some(state) = self.connections.get(connection_index) else {
            return;
        };
        match (state.deadline(), state) {
            (None, _) => {}
            (Some(deadline), _) if deadline > now => {
                self.connection_deadlines.set(connection_index, deadline);
            }
            (_, ConnectionState::Outbound(_)) => {
                self.on_handshake_step(ctx, connection_index, HandshakeStep::TimedOut);
            }
            (_, ConnectionState::Inbound(handshake)) => {
                let error = handshake
                    .rejection("no connection request before the handshake timeout (10 s)");
                self.remove_inbound(ctx, connection_index, Some(error));
            }
            (_, ConnectionState::Established(connection))
                if self.peers[connection.peer].receive_only == Some(connection_index) =>
            {
                self.check_replaced(ctx, connection_index);
            }
            (_, ConnectionState::Established(_)) => self.end_probe(connection_index),
        }
    }

    /// Sends a connection request again to a peer whose retry is due.
    fn on_retry_deadline(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer_index: usize,
        now: Instant,
    ) {
        let retry = self.peers.get(peer_index).and_then(|peer| peer.retry);
        let Some((at, delay)) = retry else { return };
        if at > now {
            self.retry_deadlines.set(peer_index, at);
        } else if self.peers[peer_index].connection.is_some() {
            self.peers[peer_index].retry = None;
        } else if let Err(error) = self.connect(peer_index) {
            self.fail_sends(ctx, peer_index, &error);
        } else {
            // `connect` has cleared the retry; the delay continues to grow from its last value.
            let retry_at = now + HANDSHAKE_TIMEOUT;
            self.peers[peer_index].retry = Some((retry_at, delay));
            self.retry_deadlines.set(peer_index, retry_at);
        }
    }
}

impl ConnectionState {
    /// Returns the deadline for the endpoint's timer; `None` if there is none, or the kernel
    /// enforces the deadline.
    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Inbound(handshake) => Some(handshake.deadline),
            Self::Outbound(handshake) => handshake.local_deadline(),
            Self::Established(connection) => connection.probe_deadline(),
        }
    }
}
