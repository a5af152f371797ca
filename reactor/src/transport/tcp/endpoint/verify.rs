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
//! At most 16 connects verify at a time, and at most 4 for the claims of one source; beyond that
//! only the kernel probes. A connection that a verification establishes counts as an accepted one.
//!
//! A peer that was rejected requests again, so it is connected by one of the three. When both sides
//! connect at the same time, the request that loses may arrive after the connection is established:
//! it is rejected without a verification, because libfabric 1.17 accepts the request that verifies
//! and closes the connection.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fabric_core::tcp::ConnectReply;
use fabric_core::transport::{EndpointContext, EngineContext};

use super::super::connection::TcpConnection;
use super::super::handshake::HandshakeStep;
use super::TcpEndpoint;
use super::inbound_handshakes::InboundSource;

/// Duration of a probe: the kernel sends the first keepalive probe within a second.
const PROBE_DURATION: Duration = Duration::from_secs(2);
/// Maximum number of verifying connects at a time, of one source and of all.
const MAX_VERIFICATIONS: (usize, usize) = (4, 16);

/// The outbound connections that verify established ones, each with the source of the claim.
///
/// A connection counts until it is established or has ended, also if sends use it meanwhile.
#[derive(Debug, Default)]
pub(super) struct Verifications {
    sources: HashMap<usize, InboundSource>,
}

impl Verifications {
    /// Returns whether one more verification for claims of a source may begin.
    pub(super) fn has_room(&self, source: InboundSource) -> bool {
        let (max_per_source, max) = MAX_VERIFICATIONS;
        let of_source = self.sources.values().filter(|other| **other == source);
        self.sources.len() < max && of_source.count() < max_per_source
    }

    /// Adds an outbound connection.
    pub(super) fn begin(&mut self, connection_index: usize, source: InboundSource) {
        self.sources.insert(connection_index, source);
    }

    /// Removes an outbound connection that is no longer outbound.
    pub(super) fn end(&mut self, connection_index: usize) {
        self.sources.remove(&connection_index);
    }
}

impl TcpEndpoint {
    /// Returns whether the peer has closed the established connection that sends use.
    pub(super) fn is_closed_by_peer(&self, peer_index: usize) -> bool {
        let connection = self.peers[peer_index].tx_connection();
        let connection = connection.and_then(|index| self.connections.established(index));
        connection.is_some_and(TcpConnection::is_closed_by_peer)
    }

    /// Begins to verify the established connection of a peer, whose address a rejected request
    /// from this instance has claimed. A request that the peer sent at the same time as this side
    /// begins no verification.
    pub(super) fn verify_connection(&mut self, peer_index: usize, instance: u32) {
        let now = Instant::now();
        if let Some(connection_index) = self.peers[peer_index].tx_connection()
            && let Some(connection) = self.connections.established_mut(connection_index)
        {
            if connection.take_simultaneous_request(instance) {
                return;
            }
            connection.probe_peer(now + PROBE_DURATION);
            self.arm_connection_timer(connection_index);
        }
        let peer = &self.peers[peer_index];
        let source = InboundSource::new(peer.socket_addr);
        if !peer.may_verify(now) || !self.connections.may_verify(source) {
            return;
        }
        // If the connect cannot start, a later request starts it.
        let outbound = self.start_rdm_connect(peer_index, Some(source)).ok();
        self.peers[peer_index].on_verification_begun(outbound, now);
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
                self.retire_connection(ctx, peer);
                let reply = (negotiated, instance);
                self.establish_outbound(ctx, connection_index, reply, (byte_order, trailing_bytes));
            }
            // The established connection stays: the process at the address has it, too, or no
            // process can be reached there.
            other => {
                self.connections.take_outbound(connection_index);
                let has_reply = matches!(other, HandshakeStep::Reply(..));
                self.peers[peer].end_verification(has_reply);
                if let HandshakeStep::Reply(ConnectReply::RetryWith(protocol), ..) = other {
                    self.peers[peer].set_protocol(protocol);
                }
                self.drop_unused_peer(peer);
            }
        }
    }

    /// Ends the probe of a peer.
    pub(super) fn end_probe(&mut self, connection_index: usize) {
        if let Some(connection) = self.connections.established_mut(connection_index) {
            connection.end_probe(&self.socket_config);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn verifications_are_limited_per_source_and_in_all() {
        let source = |number| InboundSource::new(SocketAddr::from(([192, 0, 2, number], 9)));
        let mut verifications = Verifications::default();
        for number in 0..4 {
            for index in 0..4 {
                assert!(verifications.has_room(source(number)));
                verifications.begin(usize::from(number) * 4 + index, source(number));
            }
            assert!(!verifications.has_room(source(number)));
        }
        assert!(!verifications.has_room(source(9)), "sixteen in all");
        for _ in 0..2 {
            verifications.end(5);
        }
        assert!(verifications.has_room(source(1)) && verifications.has_room(source(9)));
        assert!(!verifications.has_room(source(2)), "four of the source");
    }
}
