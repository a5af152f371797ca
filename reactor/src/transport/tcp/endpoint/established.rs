//! Established connections of an endpoint: how they are added and closed.

use fabric_core::Error;
use fabric_core::event::{DownReason, EventKind};
use fabric_core::tcp::{ByteOrder, Negotiated};
use fabric_core::transport::{Disconnect, EndpointContext, EngineContext};

use super::super::connection::TcpConnection;
use super::super::linger;
use super::super::socket::TcpSocket;
use super::{EndpointKind, TcpEndpoint, TcpToken};
use crate::transport::connected_peer::ConnectedPeer;

impl TcpEndpoint {
    /// Adds an established connection, and reports the peer to the engine. Returns its index.
    pub(super) fn add_connection(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        (peer, instance): (usize, Option<u32>),
        socket: TcpSocket,
        negotiated: (Negotiated, ByteOrder),
        trailing_bytes: Vec<u8>,
    ) -> usize {
        // This may remove a connection, whose index becomes the next one.
        self.replace_receive_only(ctx, peer);
        let token = TcpToken::Socket(self.connections.next_index() as u32).pack(self.id);
        let own_key = self.connections.generate_key();
        let name = self.peers[peer].address.clone();
        let mut connection = TcpConnection::new(
            (peer, ConnectedPeer::connect(ctx, own_key, &name)),
            socket,
            (self.wait_set.clone(), token),
            negotiated,
            trailing_bytes,
            self.uring.as_ref().map(|uring| uring.ring.clone()),
            self.batching,
        );
        connection.peer_instance = instance;
        connection.enable_rma_target(self.is_rma_target, self.rma_events);
        let options = &self.socket_config.options;
        connection.set_zero_copy_threshold(options.zero_copy_threshold, options.force_zero_copy);
        connection.update_interest();
        if matches!(self.kind, EndpointKind::Msg(_)) {
            if self.rejects_tagged() {
                connection.reject_tagged();
            }
        } else {
            let incarnation = connection.incarnation();
            connection.peer.report_connected(ctx, &name, incarnation);
            self.fail_stale_sends(ctx, &connection);
            ctx.event(EventKind::PeerConnected {
                peer: name,
                source: connection.peer.source(),
            });
        }
        let connection_index = self.connections.add_established(connection);
        self.peers[peer].add_established(connection_index);
        // The handshake has ended, and its deadline was removed.
        self.arm_timer();
        connection_index
    }

    /// Reports the peers whose messages the budget has declined.
    #[cold]
    pub(super) fn report_peers_over_budget(
        &self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        ctx.report_peers_over_budget(|key| {
            let connection_index = self.connections.with_key(key)?;
            let connection = self.connections.established(connection_index)?;
            let name = self.peers[connection.peer_index].address.clone();
            Some((name, connection.peer.source()))
        });
    }

    /// Closes a connection that has ended, after everything that it received was taken.
    pub(super) fn close_connection(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        let Some(mut connection) = self.connections.remove_established(connection_index) else {
            return;
        };
        let (peer, name) = (
            connection.peer_index,
            self.peers[connection.peer_index].address.clone(),
        );
        let has_sent = self.peers[peer].remove_established(connection_index);
        if has_sent {
            connection.cancel_uring_send(&mut self.peers[peer].tx_queue, ctx);
        }
        // Batched messages, deferred messages and pending requests end with the connection.
        let reason = connection.end_reason().unwrap_or(DownReason::Closed);
        let error = self.peers[peer].connection_error(&connection);
        connection.fail_unwritten(ctx, &error);
        connection.process_deferred(ctx);
        connection.fail_all(ctx, &error);
        ctx.disconnect_peer(connection.peer.key(), name.clone());
        // The program gets an event.
        let source = connection.peer.source();
        let source = source.or_else(|| ctx.fi_addr_of(&name));
        let is_msg = matches!(self.kind, EndpointKind::Msg(_));
        ctx.event(match name.clone() {
            peer if is_msg => EventKind::Shutdown { peer, reason },
            peer => EventKind::PeerDown {
                peer,
                source,
                reason,
            },
        });
        // Queued operations and directed receives fail.
        if has_sent {
            self.fail_sends(ctx, peer, &error);
        }
        let serves_source = |index: &usize| {
            let other = self.connections.established(*index);
            other.is_some_and(|other| other.peer.source() == source)
        };
        if let Some(source) = source
            && !self.peers[peer].established().iter().any(serves_source)
        {
            ctx.fail_directed_to_disconnected(source, &name, &error);
        }
        connection.peer.report_disconnected(ctx);
        let (socket, unsent) = connection.into_socket();
        linger::close(socket, &unsent);
        self.drop_unused_peer(peer);
        self.set_disconnected(ctx, error);
        // Messages of the peer, which has left, may be discarded for held ones.
        ctx.request_rearm();
    }

    /// Handles that nothing can be sent on a connection any more, while received bytes may be
    /// unread: fails the peer's queued operations if these use the connection, and the pending
    /// requests if no response can be among the unread bytes.
    pub(super) fn on_write_closed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        let Some(connection) = self.connections.established_mut(connection_index) else {
            return;
        };
        let peer = connection.peer_index;
        let error = self.peers[peer].connection_error(connection);
        if connection.has_no_more_responses() {
            connection.fail_requests(ctx, &error);
        }
        if self.peers[peer].tx_connection() == Some(connection_index) {
            self.fail_sends(ctx, peer, &error);
            self.peers[peer].end_tx_connection(connection_index);
        }
    }

    /// Removes a peer without address handle, connection and queued operations.
    pub(super) fn drop_unused_peer(&mut self, peer_index: usize) {
        self.peers.remove_if_unused(peer_index);
    }

    /// Ends connections with a peer ([`TransportEndpoint::disconnect`]). A connection whose
    /// messages this side delays is not ended as stalled; the check of its messages repeats.
    ///
    /// [`TransportEndpoint::disconnect`]: fabric_core::transport::TransportEndpoint::disconnect
    pub(super) fn end_connections(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        disconnect: Disconnect<'_>,
    ) -> bool {
        let (peer_index, ended) = match disconnect {
            Disconnect::Program(name) => {
                let socket_addr = self.network.socket_addr(name).ok();
                let Some(peer_index) = socket_addr.and_then(|at| self.peers.at(at)) else {
                    return false;
                };
                (
                    Some(peer_index),
                    self.peers[peer_index].established().to_vec(),
                )
            }
            Disconnect::Stalled(sender) => {
                let ended = self.connections.with_key(sender);
                if let Some(connection_index) = ended
                    && let Some(connection) = self.connections.established_mut(connection_index)
                    && !connection.has_stalled()
                {
                    return false;
                }
                (None, ended.into_iter().collect())
            }
        };
        for &connection_index in &ended {
            if let Some(connection) = self.connections.established_mut(connection_index) {
                connection.end(disconnect.reason());
            }
            self.close_connection(ctx, connection_index);
        }
        // The attempt to connect, and the operations that wait for it or for the next one. Closing
        // the last connection may have removed the peer.
        if let (Disconnect::Program(name), Some(peer_index)) = (disconnect, peer_index)
            && let Some(peer) = self.peers.get(peer_index)
        {
            let error = Error::PeerGone(name.clone());
            match peer.connecting() {
                Some(connecting) => self.remove_outbound(ctx, connecting, &error),
                None => {
                    self.fail_sends(ctx, peer_index, &error);
                    self.drop_unused_peer(peer_index);
                }
            }
        }
        !ended.is_empty()
    }
}
