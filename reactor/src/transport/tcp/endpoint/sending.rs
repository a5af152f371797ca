//! Transmit queues of an endpoint's peers: progress, and failing of queued operations.

use std::net::SocketAddr;

use fabric_core::completion::{Outcome, Transfer};
use fabric_core::transport::{EndpointContext, EngineContext};
use fabric_core::{Address, Error};

use super::super::connection::TcpConnection;
use super::TcpEndpoint;

impl TcpEndpoint {
    /// Writes the batched messages of a connection, or fails them with this error.
    pub(super) fn flush_or_fail_unwritten(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        error: &Error,
    ) {
        if let Some(connection) = self.connections.established_mut(connection_index) {
            if connection.can_write_pending() {
                connection.write_and_complete(ctx);
            }
            connection.fail_unwritten(ctx, error);
        }
    }

    /// Returns the position of the peer that listens at this address, and adds the peer if needed.
    pub(super) fn find_or_add_peer(&mut self, socket_addr: SocketAddr, name: &Address) -> usize {
        self.peers.find_or_add(socket_addr, name, self.protocol)
    }

    /// Progresses the transmit queue of a peer.
    pub(super) fn progress_tx(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer_index: usize,
    ) {
        let peer = &mut self.peers[peer_index];
        if let Some(connection_index) = peer.tx_connection()
            && let Some(connection) = self.connections.established_mut(connection_index)
        {
            connection.progress_tx(&mut peer.tx_queue, ctx);
            self.connections.mark_active(connection_index);
        }
    }

    /// Handles a new connection with a peer: fails the operations for an earlier incarnation, whose
    /// address handle no longer leads to this peer.
    pub(super) fn fail_stale_sends(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection: &TcpConnection,
    ) {
        let peer = &mut self.peers[connection.peer_index];
        let stale: Vec<_> = peer
            .tx_queue
            .iter()
            .filter(|send| !connection.serves_addr(send.tx_op.peer, ctx))
            .map(|send| send.op)
            .collect();
        peer.tx_queue.retain(|send| !stale.contains(&send.op));
        for op in stale {
            // Nothing of the operation was sent: it was queued after the last connection had ended.
            ctx.complete(op, Outcome::failed(Error::PeerGone(peer.address.clone())));
        }
        let addr = self.peers.fi_addr(connection.peer_index);
        if addr.is_some_and(|addr| !connection.serves_addr(addr, ctx)) {
            self.peers.clear_fi_addr(connection.peer_index);
        }
    }

    /// Fails the queued and begun operations for a peer. A connection that has sent part of a
    /// message sends nothing after that part.
    pub(super) fn fail_sends(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer_index: usize,
        error: &Error,
    ) {
        let peer = &mut self.peers[peer_index];
        peer.cancel_retry();
        if let Some(connection_index) = peer.tx_connection()
            && let Some(connection) = self.connections.established_mut(connection_index)
        {
            connection.cancel_uring_send(&mut peer.tx_queue, ctx);
            let is_aborted = connection.abort_message();
            if connection.write_closed() {
                connection.fail_unwritten(ctx, error);
            }
            connection.complete_written(ctx);
            connection.fail_rendezvous_sends(ctx, error);
            if is_aborted {
                peer.end_tx_connection(connection_index);
                self.connections.mark_active(connection_index);
            }
        }
        for send in std::mem::take(&mut self.peers[peer_index].tx_queue) {
            let transfer = Transfer::sent(send.bytes_sent.unwrap_or(0), send.tx_op.tag);
            ctx.complete(send.op, Outcome::partial(transfer, error.clone()));
        }
    }
}
