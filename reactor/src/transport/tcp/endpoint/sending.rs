//! Transmit operations of an endpoint: inline sends, queues of peers, canceling and failing.

use std::net::SocketAddr;
use std::time::Instant;

use fabric_core::buf::Payload;
use fabric_core::completion::{CompletionLevel, OpKind, Outcome, Transfer};
use fabric_core::transport::{EndpointContext, EngineContext, OpKey, TrySend, TxOp};
use fabric_core::{Address, Error, FiAddr, Result};

use super::super::connection::{QueuedTxOp, TcpConnection, TrySendResult};
use super::{ConnectionState, EndpointKind, HANDSHAKE_TIMEOUT, TcpEndpoint, TcpPeer};

impl TcpEndpoint {
    /// Tries to send a short message inline, if no operation for the peer is queued.
    ///
    /// # Errors
    /// The address handle is not valid, or the peer does not support tags.
    pub(crate) fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let Some(peer_index) = self.peer_index(tx_op.peer) else {
            return ctx.address_of(tx_op.peer).map(|_| TrySend::WouldBlock);
        };
        let peer = &self.peers[peer_index];
        let is_unacked_send = tx_op.kind == OpKind::Send && !tx_op.level.needs_ack();
        let Some(connection_index) = peer
            .connection
            .filter(|_| is_unacked_send && peer.tx_queue.is_empty())
        else {
            return Ok(TrySend::WouldBlock);
        };
        let Some(connection) = self.established_mut(connection_index) else {
            return Ok(TrySend::WouldBlock);
        };
        connection.check_supported(tx_op)?;
        let result = connection.try_send(ctx, tx_op, payload);
        // The next pass writes the batched messages, and ends the batching.
        if connection.is_batching() || connection.can_write_pending() || connection.write_closed() {
            self.mark_active(connection_index);
        }
        Ok(match result {
            TrySendResult::Written => TrySend::Done,
            TrySendResult::Batched => TrySend::Batched,
            TrySendResult::WouldBlock => TrySend::WouldBlock,
        })
    }

    /// Adds a connection to those that every pass polls.
    pub(super) fn mark_active(&mut self, connection_index: usize) {
        if let Some(connection) = self.established_mut(connection_index)
            && !std::mem::replace(&mut connection.is_active, true)
        {
            self.active_connections.push(connection_index);
        }
    }

    /// Sets the operation of the message that was batched last for its peer.
    pub(crate) fn set_batched_op(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        op: OpKey,
        tx_op: &TxOp,
        len: usize,
    ) {
        let peer_index = self.peer_index(tx_op.peer);
        match peer_index.and_then(|peer_index| self.tx_connection_mut(peer_index)) {
            Some(connection) => connection.set_batched_op(op, len, tx_op.tag),
            None => ctx.complete(op, Outcome::failed(Error::StaleAddress(tx_op.peer))),
        }
    }

    /// Writes the batched messages of all connections.
    pub(crate) fn flush(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        // A connection with pending bytes is active.
        for connection_index in &self.active_connections {
            if let Some(ConnectionState::Established(connection)) =
                self.connections.get_mut(*connection_index)
                && connection.can_write_pending()
            {
                connection.write_and_complete(ctx);
            }
        }
    }

    /// Writes the batched messages of a connection, or fails them with this error.
    pub(super) fn flush_or_fail_unwritten(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        error: &Error,
    ) {
        if let Some(connection) = self.established_mut(connection_index) {
            if connection.can_write_pending() {
                connection.write_and_complete(ctx);
            }
            connection.fail_unwritten(ctx, error);
        }
    }

    /// Queues an operation for its peer, connects if needed, and sends as far as possible.
    ///
    /// # Errors
    /// Failures that are known at once; nothing was queued.
    pub(crate) fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        if tx_op.kind == OpKind::Send && tx_op.level == CompletionLevel::Matched {
            return Err(Error::NotSupported("FI_MATCH_COMPLETE over tcp"));
        }
        let peer_index = match self.peer_index(tx_op.peer) {
            Some(peer_index) => peer_index,
            None => {
                let name = ctx.address_of(tx_op.peer)?;
                let to = self.network.socket_addr(&name)?;
                let peer_index = self.find_or_add_peer(to, &name);
                if let Some(connection) = self.tx_connection_mut(peer_index)
                    && !connection.serves_addr(tx_op.peer, ctx)
                {
                    return Err(Error::PeerGone(name));
                }
                self.peers[peer_index].fi_addr = Some(tx_op.peer);
                let index = tx_op.peer.index();
                if index >= self.peer_by_fi_addr.len() {
                    self.peer_by_fi_addr.resize(index + 1, None);
                }
                self.peer_by_fi_addr[index] = Some(peer_index);
                peer_index
            }
        };
        if self.peers[peer_index].connection.is_none() {
            if matches!(self.kind, EndpointKind::Msg(_)) {
                return Err(self.disconnect_error());
            }
            // The handle may have become stale: another incarnation may have the same address.
            ctx.address_of(tx_op.peer)?;
        }
        if let Some(connection) = self.tx_connection_mut(peer_index) {
            connection.check_supported(tx_op)?;
        }
        self.peers[peer_index].tx_queue.push_back(QueuedTxOp {
            op,
            tx_op: *tx_op,
            bytes_sent: None,
        });
        if self.peers[peer_index].connection.is_none() && self.peers[peer_index].retry.is_none() {
            self.peers[peer_index].retry_deadline = Some(Instant::now() + HANDSHAKE_TIMEOUT);
            if let Err(error) = self.connect(peer_index) {
                self.peers[peer_index].tx_queue.pop_back();
                return Err(error);
            }
        }
        self.progress_tx(ctx, peer_index);
        ctx.request_rearm();
        Ok(())
    }

    /// Returns the position of the peer that listens at this address, and adds the peer if needed.
    pub(super) fn find_or_add_peer(&mut self, socket_addr: SocketAddr, name: &Address) -> usize {
        let peer = self.peer_by_socket_addr.entry(socket_addr);
        *peer.or_insert_with(|| {
            let peer = TcpPeer::new(name.clone(), socket_addr, self.protocol);
            self.peers.insert(peer)
        })
    }

    /// Returns the position of the peer with this address handle, if an operation has used the
    /// handle.
    pub(super) fn peer_index(&self, addr: FiAddr) -> Option<usize> {
        let peer_index = (*self.peer_by_fi_addr.get(addr.index())?)?;
        (self.peers[peer_index].fi_addr == Some(addr)).then_some(peer_index)
    }

    /// Progresses the transmit queue of a peer.
    pub(super) fn progress_tx(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer_index: usize,
    ) {
        let peer = &mut self.peers[peer_index];
        let Some(connection_index) = peer.connection else {
            return;
        };
        if let Some(ConnectionState::Established(connection)) =
            self.connections.get_mut(connection_index)
        {
            connection.progress_tx(&mut peer.tx_queue, ctx);
            self.mark_active(connection_index);
        }
    }

    /// Cancels a queued transmit operation. Returns whether the operation was queued and not begun.
    pub(crate) fn cancel(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        op: OpKey,
    ) -> bool {
        for (_, peer) in &mut self.peers {
            if let Some(position) = peer.tx_queue.iter().position(|send| send.op == op) {
                if peer.tx_queue[position].bytes_sent.is_some() {
                    return false;
                }
                peer.tx_queue.remove(position);
                ctx.request_rearm();
                return true;
            }
        }
        false
    }

    /// Handles a new connection with a peer: fails the operations for an earlier incarnation, whose
    /// address handle no longer leads to this peer.
    pub(super) fn fail_stale_sends(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection: &TcpConnection,
    ) {
        let peer = &mut self.peers[connection.peer];
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
        if let Some(addr) = peer
            .fi_addr
            .filter(|addr| !connection.serves_addr(*addr, ctx))
        {
            peer.fi_addr = None;
            self.peer_by_fi_addr[addr.index()] = None;
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
        self.peers[peer_index].retry = None;
        let peer = &mut self.peers[peer_index];
        if let Some(ConnectionState::Established(connection)) = peer
            .connection
            .and_then(|connection| self.connections.get_mut(connection))
        {
            connection.cancel_uring_send(&mut peer.tx_queue, ctx);
            let is_aborted = connection.abort_message();
            if connection.write_closed() {
                connection.fail_unwritten(ctx, error);
            }
            connection.complete_written(ctx);
            connection.fail_rendezvous_sends(ctx, error);
            if is_aborted && let Some(connection_index) = peer.connection.take() {
                self.mark_active(connection_index);
            }
        }
        for send in std::mem::take(&mut self.peers[peer_index].tx_queue) {
            let transfer = Transfer::sent(send.bytes_sent.unwrap_or(0), send.tx_op.tag);
            ctx.complete(send.op, Outcome::partial(transfer, error.clone()));
        }
    }
}
