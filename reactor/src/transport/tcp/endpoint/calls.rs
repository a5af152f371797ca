//! The calls of the engine.

use std::collections::VecDeque;

use fabric_core::buf::Payload;
use fabric_core::completion::{CompletionLevel, OpKind, Outcome};
use fabric_core::extension::ConnectionInfo;
use fabric_core::matching::PeerKey;
use fabric_core::stats::EndpointStats;
use fabric_core::transport::{
    ConnectionRequests, Disconnect, EndpointConnection, EndpointContext, EngineContext, OpKey,
    TransportEndpoint, TrySend, TxOp, WaitToken,
};
use fabric_core::{Address, Error, FiAddr, Result};

use super::super::connection::{QueuedTxOp, TcpConnection};
use super::{EndpointKind, TcpEndpoint, TcpToken};
use crate::transport::held_connections::TRIES_PER_PASS;

impl<E: EngineContext> TransportEndpoint<E> for TcpEndpoint {
    fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let Some(peer_index) = self.peers.with_fi_addr(tx_op.peer) else {
            return ctx.address_of(tx_op.peer).map(|_| TrySend::WouldBlock);
        };
        let peer = &self.peers[peer_index];
        let is_unacked_send = tx_op.kind == OpKind::Send && !tx_op.level.needs_ack();
        let Some(connection_index) = peer
            .tx_connection()
            .filter(|_| is_unacked_send && peer.tx_queue.is_empty())
        else {
            return Ok(TrySend::WouldBlock);
        };
        let Some(connection) = self.connections.established_mut(connection_index) else {
            return Ok(TrySend::WouldBlock);
        };
        let result = connection.try_send(ctx, tx_op, payload)?;
        // The next pass writes the batched messages, and ends the batching.
        if connection.is_batching() || connection.can_write_pending() || connection.write_closed() {
            self.connections.mark_active(connection_index);
        }
        self.submit();
        Ok(result)
    }

    fn set_batched_op(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
        len: usize,
    ) {
        let peer_index = self.peers.with_fi_addr(tx_op.peer);
        match peer_index.and_then(|peer_index| self.tx_connection_mut(peer_index)) {
            Some(connection) => connection.set_batched_op(op, len, tx_op.tag),
            None => ctx.complete(op, Outcome::failed(Error::StaleAddress(tx_op.peer))),
        }
    }

    fn write_batched(&mut self, ctx: &mut EndpointContext<'_, E>) {
        // A connection with pending bytes is active.
        let mut position = 0;
        while let Some(connection_index) = self.connections.active_at(position) {
            if let Some(connection) = self.connections.established_mut(connection_index)
                && connection.can_write_pending()
            {
                connection.write_and_complete(ctx);
            }
            position += 1;
        }
        self.submit();
    }

    fn flush(&mut self, ctx: &mut EndpointContext<'_, E>) -> Result<()> {
        self.write_batched(ctx);
        Ok(())
    }

    fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        if tx_op.kind == OpKind::Send && tx_op.level == CompletionLevel::Matched {
            return Err(Error::NotSupported(
                "FI_MATCH_COMPLETE over tcp; use delivery_complete, or shm",
            ));
        }
        let peer_index = match self.peers.with_fi_addr(tx_op.peer) {
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
                self.peers.set_fi_addr(peer_index, tx_op.peer);
                peer_index
            }
        };
        if !self.peers[peer_index].has_tx_connection() {
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
        if self.peers[peer_index].must_connect()
            && let Err(error) = self.connect(peer_index)
        {
            self.peers[peer_index].tx_queue.pop_back();
            return Err(error);
        }
        self.progress_tx(ctx, peer_index);
        self.submit();
        ctx.request_rearm();
        Ok(())
    }

    fn cancel(&mut self, ctx: &mut EndpointContext<'_, E>, op: OpKey, peer: FiAddr) -> bool {
        let Some(peer_index) = self.peer_of(ctx, peer) else {
            return false;
        };
        let queue = &mut self.peers[peer_index].tx_queue;
        let is_canceled = |send: &QueuedTxOp| send.op == op && send.bytes_sent.is_none();
        let Some(position) = queue.iter().position(is_canceled) else {
            return false;
        };
        queue.remove(position);
        ctx.request_rearm();
        true
    }

    fn queued_ops(&self, ctx: &EndpointContext<'_, E>, peer: FiAddr, into: &mut Vec<OpKey>) {
        if let Some(peer_index) = self.peer_of(ctx, peer) {
            // Several handles may lead to one peer.
            let queue = self.peers[peer_index].tx_queue.iter();
            let queued = queue.filter(|send| send.tx_op.peer == peer && send.bytes_sent.is_none());
            into.extend(queued.map(|send| send.op));
        }
    }

    fn on_rx_queue_changed(&mut self, ctx: &mut EndpointContext<'_, E>) {
        if ctx.rx_has_work() {
            ctx.request_rearm();
        }
        self.fail_recvs_if_disconnected(ctx);
        self.retry_held(ctx);
    }

    fn receive_held(&mut self, ctx: &mut EndpointContext<'_, E>, peer: PeerKey) {
        if let Some(connection_index) = self.connections.with_key(peer) {
            self.receive_held_from(ctx, connection_index);
        }
    }

    fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        let connection_index = self.connections.with_key(peer)?;
        self.connections
            .established(connection_index)?
            .peer
            .source()
    }

    fn address_inserted(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        addr: FiAddr,
        address: &Address,
    ) {
        let expected = ctx.incarnation_of(addr);
        let socket_addr = self.network.socket_addr(address).ok();
        let peer = socket_addr.and_then(|at| self.peers.at(at));
        // Only connections with this peer are visited, so inserting n addresses takes O(n) time.
        for &connection_index in peer.map_or(&[][..], |peer| self.peers[peer].established()) {
            if let Some(connection) = self.connections.established_mut(connection_index)
                && (expected.is_none() || expected == connection.incarnation())
            {
                connection.peer.assign_source(ctx, addr);
            }
        }
        self.on_rx_queue_changed(ctx);
    }

    fn address_removed(&mut self, ctx: &mut EndpointContext<'_, E>, addr: FiAddr) {
        for connection in self.connections.all_established_mut() {
            connection.peer.on_address_removed(addr);
        }
        if let Some(peer_index) = self.peers.with_fi_addr(addr) {
            self.peers.clear_fi_addr(peer_index);
            let stale = Error::StaleAddress(addr);
            self.fail_sends(ctx, peer_index, &stale);
            self.cancel_connect(peer_index);
            for &connection_index in self.peers[peer_index].established() {
                if let Some(connection) = self.connections.established_mut(connection_index) {
                    connection.fail_requests_keep_slots(ctx, &stale);
                }
            }
            self.drop_unused_peer(peer_index);
        }
    }

    fn progress(&mut self, ctx: &mut EndpointContext<'_, E>, _active_endpoints: usize) -> u32 {
        let mut moved = u32::from(self.handle_uring_completions(ctx));
        self.fail_recvs_if_disconnected(ctx);
        moved += u32::from(!ctx.shares_rx() && ctx.rx_has_work() && ctx.copy_next_chunk());
        self.connections.activate_due(ctx.changes_for_held());
        let mut position = 0;
        while let Some((connection_index, connection, received)) =
            self.connections.receive_active(position, ctx)
        {
            let peer = connection.peer_index;
            // Only one connection with a peer sends its queue: an endpoint that sends to itself has
            // a second connection, which only receives.
            let mut no_sends = VecDeque::new();
            let is_tx_connection = self.peers[peer].tx_connection() == Some(connection_index);
            let queue = if is_tx_connection {
                &mut self.peers[peer].tx_queue
            } else {
                &mut no_sends
            };
            let sent = connection.progress_tx(queue, ctx);
            moved += u32::from(received | sent);
            if connection.has_unread_rendezvous_at_end() && connection.has_held_messages() {
                // The bytes of the rendezvous messages never arrive.
                let error = self.peers[peer].connection_error(connection);
                connection.fail_rendezvous_recvs(ctx, &error);
                moved += 1;
            } else if connection.end_reason().is_some() && !connection.has_held_messages() {
                self.close_connection(ctx, connection_index);
                moved += 1;
            } else if connection.write_closed()
                && (is_tx_connection || connection.has_unanswerable_requests())
            {
                // Nothing can be sent any more, but received bytes may be unread.
                self.on_write_closed(ctx, connection_index);
                moved += 1;
                position += 1;
            } else if connection.needs_progress()
                || !self.peers[peer].tx_queue.is_empty()
                || !connection.arm_uring_recv()
            {
                position += 1;
            } else {
                self.connections.deactivate(position);
            }
        }
        if ctx.has_peers_over_budget() {
            self.report_peers_over_budget(ctx);
        }
        moved
    }

    fn is_idle(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool {
        self.connections.is_idle()
            && !matches!(self.kind, EndpointKind::Rdm)
            && (ctx.shares_rx() || !ctx.rx_is_busy())
    }

    fn ready(&mut self, ctx: &mut EndpointContext<'_, E>, token: WaitToken) {
        match token.into() {
            TcpToken::Listener => self.accept(ctx),
            TcpToken::Timer => self.on_timer(ctx),
            TcpToken::Socket(connection_index) => self.socket_ready(ctx, connection_index as usize),
        }
    }

    fn arm(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool {
        // No descriptor reports that bytes or queued operations could be sent now.
        let can_wait = |index, connection: &TcpConnection| {
            let peer = &self.peers[connection.peer_index];
            !connection.can_write_pending()
                && !connection.has_local_work()
                && (peer.tx_connection() != Some(index)
                    || peer.tx_queue.is_empty()
                    || connection.is_write_blocked()
                    || connection.is_uring_sending()
                    || connection.is_response_stalled()
                    || connection.awaits_atomic_responses(&peer.tx_queue))
        };
        // Only active connections have something to send or to process.
        debug_assert!(
            self.connections
                .all_established()
                .all(|(index, connection)| {
                    self.connections.is_active(index) || can_wait(index, connection)
                }),
            "an inactive connection has work"
        );
        let is_quiet = !ctx.rx_has_work()
            && self.connections.next_due(ctx.changes_for_held()).is_none()
            && self
                .connections
                .all_active()
                .all(|(index, connection)| can_wait(index, connection));
        is_quiet && self.arm_uring_recv()
    }

    fn disconnect(&mut self, ctx: &mut EndpointContext<'_, E>, disconnect: Disconnect<'_>) -> bool {
        self.end_connections(ctx, disconnect)
    }

    fn close(&mut self, ctx: &mut EndpointContext<'_, E>) {
        for peer_index in self.peers.positions() {
            self.fail_sends(ctx, peer_index, &Error::Canceled);
        }
        let connections: Vec<_> = self
            .connections
            .all_established()
            .map(|(connection_index, _)| connection_index)
            .collect();
        for connection_index in connections {
            self.flush_or_fail_unwritten(ctx, connection_index, &Error::Canceled);
        }
        for connection in self.connections.all_established_mut() {
            connection.fail_requests(ctx, &Error::Canceled);
            connection.discard_set_aside(ctx);
            connection.peer.report_disconnected(ctx);
        }
    }

    fn add_stats(&self, stats: &mut EndpointStats) {
        stats.peers += self.connections.established_count();
        stats.zero_copy += self.zero_copy;
        stats.zero_copy_fallbacks += self.zero_copy_fallbacks;
        stats.inbound_refused += self.connections.refused();
        stats.held_connections += self.connections.held_count();
    }

    fn connection_info(
        &mut self,
        ctx: &EndpointContext<'_, E>,
        peer: FiAddr,
    ) -> Result<Option<ConnectionInfo>> {
        let at = self.network.socket_addr(&ctx.address_of(peer)?)?;
        let Some(peer) = self.peers.at(at).map(|peer_index| &self.peers[peer_index]) else {
            return Ok(None);
        };
        let index = peer.tx_connection().or(peer.established().last().copied());
        let connection = index.and_then(|index| self.connections.established(index));
        let info = connection.map(TcpConnection::tcp_info).transpose()?;
        Ok(info.map(ConnectionInfo::Tcp))
    }

    fn describe(&self) -> String {
        if let EndpointKind::Passive(requests) = &self.kind {
            return format!("{} ({} requests)", self.name, requests.len());
        }
        let connections = self.connections.established_count();
        format!("{} ({connections} connections)", self.name)
    }

    fn requests(&mut self) -> Option<&mut dyn ConnectionRequests<E>> {
        match self.kind {
            EndpointKind::Passive(_) => Some(self),
            _ => None,
        }
    }

    fn connection(&mut self) -> Option<&mut dyn EndpointConnection<E>> {
        match self.kind {
            EndpointKind::Msg(_) => Some(self),
            _ => None,
        }
    }
}

impl TcpEndpoint {
    /// Returns the position of the peer that has this address handle, or had it before another.
    fn peer_of<E: EngineContext>(
        &self,
        ctx: &EndpointContext<'_, E>,
        peer: FiAddr,
    ) -> Option<usize> {
        let by_address = || {
            let name = ctx.address_of(peer).ok()?;
            self.peers.at(self.network.socket_addr(&name).ok()?)
        };
        self.peers.with_fi_addr(peer).or_else(by_address)
    }

    /// Tries a connection that holds a message.
    fn receive_held_from(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        if self.connections.receive(connection_index, ctx) {
            // The next pass sends replies, and reads on.
            self.connections.mark_active(connection_index);
            ctx.request_rearm();
        }
    }

    /// Tries connections that hold messages, at most as many as a pass tries. The next passes try
    /// the others.
    fn retry_held(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        for _ in 0..TRIES_PER_PASS {
            let Some(connection_index) = self.connections.next_due(ctx.changes_for_held()) else {
                return;
            };
            self.receive_held_from(ctx, connection_index);
        }
        if self.connections.next_due(ctx.changes_for_held()).is_some() {
            ctx.request_rearm();
        }
    }
}
