//! Replaced connections: another connection with the same peer has been established. The peer's
//! completed sends may still be on their way, or be held, so the endpoint receives from a replaced
//! connection until it ends.

use std::time::{Duration, Instant};

use fabric_core::transport::{EndpointContext, EngineContext};

use super::super::connection::TcpConnection;
use super::TcpEndpoint;

/// Time between two checks of a replaced connection. A connection that has received nothing between
/// two checks is closed: the kernel of the earlier process would have sent what it still has.
const REPLACED_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl TcpEndpoint {
    /// Ends the use of the connection with a peer, or of the attempt to connect, before a new
    /// connection is added. Messages of an established connection may still be on the way, or be
    /// held for lack of a receive or of room, so the endpoint receives from the connection until
    /// the end of the stream, or until nothing is held and nothing has arrived for
    /// [`REPLACED_CHECK_INTERVAL`]. A peer has one such connection: an earlier one is closed.
    pub(super) fn retire_connection(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer: usize,
    ) {
        if let Some(connecting) = self.peers[peer].connecting() {
            self.peers[peer].end_connecting();
            self.connections.take_outbound(connecting);
        }
        let Some(replaced) = self.peers[peer].tx_connection() else {
            return;
        };
        // The peer's completed sends may be among the unread bytes.
        if let Some(connection) = self.connections.drain_received(replaced, ctx)
            && connection.end_reason().is_some()
            && !connection.has_held_messages()
        {
            // Closing also fails the queued operations: part of a message may have been sent.
            return self.close_connection(ctx, replaced);
        }
        if let Some(earlier) = self.peers[peer].set_replaced(replaced) {
            self.close_and_discard_held(ctx, earlier);
        }
        self.receive_only(ctx, replaced);
    }

    /// Notes that a new connection with a peer replaces one that the peer has closed and that holds
    /// messages.
    pub(super) fn replace_receive_only(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer: usize,
    ) {
        let is_receive_only = |index: &usize| {
            let connection = self.connections.established(*index);
            !self.peers[peer].is_replaced(*index)
                && connection.is_some_and(TcpConnection::is_receive_only)
        };
        let mut established = self.peers[peer].established().iter().copied();
        if let Some(replaced) = established.find(is_receive_only)
            && let Some(earlier) = self.peers[peer].set_replaced(replaced)
        {
            self.close_and_discard_held(ctx, earlier);
        }
    }

    /// Ends the sends and requests of a replaced connection, and probes whether the peer still has
    /// it. A response that is under way is discarded: it may be behind a message that is held.
    fn receive_only(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        if let Some(connection) = self.connections.established_mut(connection_index) {
            connection.set_replaced(Instant::now() + REPLACED_CHECK_INTERVAL);
            let error = self.peers[connection.peer_index].connection_error(connection);
            connection.fail_requests_keep_slots(ctx, &error);
        }
        self.on_write_closed(ctx, connection_index);
        self.arm_connection_timer(connection_index);
        self.connections.mark_active(connection_index);
    }

    /// Closes a replaced connection that holds nothing and has received nothing since the last
    /// check.
    pub(super) fn check_replaced(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        let check_at = Instant::now() + REPLACED_CHECK_INTERVAL;
        let connection = self.connections.established_mut(connection_index);
        if connection.is_some_and(|connection| connection.recheck_replaced(check_at)) {
            self.arm_connection_timer(connection_index);
        } else {
            self.close_connection(ctx, connection_index);
        }
    }

    /// Closes a connection after receiving what has arrived, and discards the messages that it
    /// holds.
    pub(super) fn close_and_discard_held(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        if let Some(connection) = self.connections.drain_received(connection_index, ctx) {
            if connection.has_held_messages() {
                let name = self.peers[connection.peer_index].address.clone();
                let source = connection.peer.source();
                ctx.on_held_discarded(name, source, connection.unconsumed_len());
            }
            self.close_connection(ctx, connection_index);
        }
    }
}
