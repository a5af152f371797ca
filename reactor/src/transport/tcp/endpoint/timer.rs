//! Deadlines of handshakes and of retries, enforced by the endpoint's timerfd.

use std::time::Instant;

use fabric_core::transport::{EndpointContext, EngineContext};

use super::super::handshake::HandshakeStep;
use super::{ConnectionState, HANDSHAKE_TIMEOUT, TcpEndpoint, TcpPeer};

impl TcpEndpoint {
    /// Sets the timer to the earliest deadline, or disarms the timer if there is none.
    pub(super) fn arm_timer(&self) {
        let handshakes = self
            .connections
            .iter()
            .filter_map(|(_, state)| state.deadline());
        let retry = self
            .peers
            .iter()
            .filter_map(|(_, peer)| peer.retry.map(|(at, _)| at));
        let next = handshakes
            .chain(retry)
            .chain(self.listener_state.retry_at())
            .min();
        let Some(timer) = &self.timer else { return };
        timer.set(next.map(|next| next.saturating_duration_since(Instant::now())));
    }

    /// Handles the expired timer: acts on all deadlines that have passed.
    pub(super) fn on_timer(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let now = Instant::now();
        let retry_at = self.listener_state.retry_at();
        if retry_at.is_some_and(|retry_at| retry_at <= now) {
            self.resume_accept(ctx);
        }
        self.expire_handshakes(ctx, now);
        self.retry_connects(ctx, now);
        self.arm_timer();
    }

    /// Ends the handshakes whose deadline has passed.
    fn expire_handshakes(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        now: Instant,
    ) {
        let is_expired =
            |state: &ConnectionState| state.deadline().is_some_and(|deadline| deadline <= now);
        let expired: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, state)| is_expired(state))
            .map(|(connection_index, _)| connection_index)
            .collect();
        for connection_index in expired {
            match self.connections.get(connection_index) {
                Some(ConnectionState::Outbound(_)) => {
                    self.on_handshake_step(ctx, connection_index, HandshakeStep::TimedOut)
                }
                Some(ConnectionState::Inbound(handshake)) => {
                    let error = handshake
                        .rejection("no connection request before the handshake timeout (10 s)");
                    self.remove_inbound(ctx, connection_index, Some(error));
                }
                _ => {}
            }
        }
    }

    /// Sends connection requests again to the peers whose retry is due.
    fn retry_connects(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>, now: Instant) {
        let due: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_retry_due(now))
            .map(|(peer_index, _)| peer_index)
            .collect();
        for peer_index in due {
            let retry = self.peers[peer_index].retry;
            if self.peers[peer_index].connection.is_some() {
                self.peers[peer_index].retry = None;
            } else if let Err(error) = self.connect(peer_index) {
                self.fail_sends(ctx, peer_index, &error);
            } else {
                // `connect` has cleared the retry; the delay continues to grow from its last value.
                self.peers[peer_index].retry =
                    retry.map(|(_, delay)| (now + HANDSHAKE_TIMEOUT, delay));
            }
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
            Self::Established(_) => None,
        }
    }
}

impl TcpPeer {
    /// Returns whether a connection request is to be sent again now.
    fn is_retry_due(&self, now: Instant) -> bool {
        self.retry.is_some_and(|(at, _)| at <= now)
    }
}
