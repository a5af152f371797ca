//! Verifying established connections.
//!
//! The address in a connection request proves nothing, so a request does not replace an established
//! connection with the peer that has this address. The initiator may still be that peer: it has
//! been restarted, or has lost the connection, without this side being told. So this side rejects
//! the request, and then
//!
//! * closes its connection, before it decides, if the peer has closed or reset the connection;
//! * lets the kernel probe whether the peer still has the connection: the kernel of a machine that
//!   has not answers with a reset;
//! * connects to the claimed address. The process that listens there accepts only if it has no
//!   connection with this endpoint, and then the new connection replaces the established one.
//!
//! A peer that was rejected requests again, so it is connected by one of the three. When both sides
//! connect at the same time, the request that loses may arrive after the connection is established:
//! it is rejected without a verification, because libfabric 1.17 accepts the request that verifies
//! and closes the connection.

use std::time::{Duration, Instant};

use fabric_core::tcp::ConnectReply;
use fabric_core::transport::{EndpointContext, EngineContext};

use super::super::handshake::HandshakeStep;
use super::inbound::InboundSource;
use super::{ConnectionState, TcpEndpoint};

/// Minimum time between the beginnings of two verifications of a peer's connections. Requests with
/// the address of a peer make this endpoint connect to that peer no more often.
const VERIFICATION_INTERVAL: Duration = Duration::from_millis(100);
/// Duration of a probe: the kernel sends the first keepalive probe within a second.
const PROBE_DURATION: Duration = Duration::from_secs(2);

impl TcpEndpoint {
    /// Returns whether the peer has closed the established connection that sends use.
    pub(super) fn is_closed_by_peer(&self, peer_index: usize) -> bool {
        let connection = self.peers[peer_index].connection;
        let state = connection.and_then(|connection| self.connections.get(connection));
        let connection = state.and_then(ConnectionState::established);
        connection.is_some_and(|connection| connection.is_closed_by_peer())
    }

    /// Begins to verify the established connection of a peer, whose address a rejected request
    /// from this instance has claimed. A request that has crossed the request of this side begins
    /// no verification.
    pub(super) fn verify_connection(&mut self, peer_index: usize, instance: u32) {
        let now = Instant::now();
        if let Some(connection_index) = self.peers[peer_index].connection
            && let Some(connection) = self.established_mut(connection_index)
        {
            if connection.take_crossing_request(instance) {
                return;
            }
            connection.probe_peer(now + PROBE_DURATION);
            self.arm_connection_timer(connection_index);
        }
        let peer = &mut self.peers[peer_index];
        let is_too_early = peer.next_verification.is_some_and(|next| now < next);
        if peer.verification.is_some() || is_too_early {
            return;
        }
        peer.next_verification = Some(now + VERIFICATION_INTERVAL);
        // If the connect cannot start, the next request starts it.
        self.peers[peer_index].verification = self.start_rdm_connect(peer_index).ok();
    }

    /// Handles a step of the outbound handshake that verifies the connection of a peer.
    pub(super) fn on_verification_step(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        (peer, connection_index): (usize, usize),
        step: HandshakeStep,
    ) {
        match step {
            HandshakeStep::Pending => {}
            HandshakeStep::Reply(
                ConnectReply::Accepted(negotiated, instance),
                byte_order,
                trailing_bytes,
            ) => {
                // The verifying connection becomes the one that sends use, so the peer stays.
                self.close_replaced(ctx, peer);
                let reply = (negotiated, instance);
                self.establish_outbound(ctx, connection_index, reply, (byte_order, trailing_bytes));
                // The request of the peer has caused this connection, as an accepted one.
                let to = &self.peers[peer];
                if ctx.fi_addr_of(&to.address).is_none()
                    && let Some(connection_index) = to.connection
                {
                    let source = InboundSource::new(to.socket_addr);
                    self.inbound.add_established(connection_index, source);
                }
            }
            // The established connection stays: the process at the address has it, too, or no
            // process can be reached there.
            other => {
                self.take_outbound(connection_index);
                self.peers[peer].verification = None;
                if let HandshakeStep::Reply(ConnectReply::RetryWith(protocol), ..) = other {
                    self.peers[peer].protocol = protocol;
                }
                self.drop_unused_peer(peer);
            }
        }
    }

    /// Ends the probe of a peer.
    pub(super) fn end_probe(&mut self, connection_index: usize) {
        if let Some(ConnectionState::Established(connection)) =
            self.connections.get_mut(connection_index)
        {
            connection.end_probe(&self.socket_config);
        }
    }
}
