//! Sends of an endpoint.

use std::net::SocketAddr;
use std::time::Instant;

use fabric_core::buf::Payload;
use fabric_core::completion::{CompletionLevel, OpKind, Outcome, Transfer};
use fabric_core::transport::{EngineContext, OpKey, TrySend, TxOp};
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use super::super::connection::{QueuedOp, SendResult, TcpConnection};
use super::{ConnectionState, EndpointKind, HANDSHAKE_TIMEOUT, TcpEndpoint, TcpPeer};

impl TcpEndpoint {
    pub(crate) fn try_send(
        &mut self,
        host: &mut dyn EngineContext,
        spec: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let Some(at) = self.peer_index(spec.peer) else {
            return host
                .address_of(self.id, spec.peer)
                .map(|_| TrySend::WouldBlock);
        };
        let peer = &self.peers[at];
        let is_plain = spec.kind == OpKind::Send && !spec.level.needs_ack();
        let Some(at) = peer
            .connection
            .filter(|_| is_plain && peer.tx_queue.is_empty())
        else {
            return Ok(TrySend::WouldBlock);
        };
        let Some(ConnectionState::Established(link)) = self.connections.get_mut(at) else {
            return Ok(TrySend::WouldBlock);
        };
        link.check_supported(spec)?;
        let sent = link.try_send(host, spec, payload);
        // The next pass writes what was collected, and ends the batching.
        if link.is_batching() || !link.is_flushed() || link.write_closed() {
            self.mark_active(at);
        }
        Ok(match sent {
            SendResult::Written => TrySend::Done,
            SendResult::Collected => TrySend::Collected,
            SendResult::No => TrySend::WouldBlock,
        })
    }

    /// Adds a connection to those that every pass polls.
    pub(super) fn mark_active(&mut self, at: usize) {
        if let Some(ConnectionState::Established(link)) = self.connections.get_mut(at)
            && !std::mem::replace(&mut link.is_active, true)
        {
            self.active_connections.push(at);
        }
    }

    /// Associates an operation with the message that was collected last for its peer.
    pub(crate) fn collected(
        &mut self,
        host: &mut dyn EngineContext,
        op: OpKey,
        spec: &TxOp,
        len: usize,
    ) {
        let link = self
            .peer_index(spec.peer)
            .and_then(|at| self.peers[at].connection);
        match link.and_then(|at| self.connections.get_mut(at)) {
            Some(ConnectionState::Established(link)) => link.collected(op, len, spec.tag),
            _ => host.complete(op, Outcome::failed(Error::StaleAddress(spec.peer))),
        }
    }

    /// Writes what was collected.
    pub(crate) fn flush(&mut self, host: &mut dyn EngineContext) {
        // A connection with pending bytes is active.
        for at in &self.active_connections {
            if let Some(ConnectionState::Established(link)) = self.connections.get_mut(*at)
                && !link.is_flushed()
            {
                link.write(host);
            }
        }
    }

    /// Writes the collected messages of a connection, or fails them with this error.
    pub(super) fn end_unwritten(&mut self, host: &mut dyn EngineContext, at: usize, error: &Error) {
        if let Some(ConnectionState::Established(link)) = self.connections.get_mut(at) {
            if !link.is_flushed() {
                link.write(host);
            }
            link.fail_unwritten(host, error);
        }
    }

    pub(crate) fn queue_send(
        &mut self,
        host: &mut dyn EngineContext,
        op: OpKey,
        spec: &TxOp,
    ) -> Result<()> {
        if spec.kind == OpKind::Send && spec.level == CompletionLevel::Matched {
            return Err(Error::NotSupported("FI_MATCH_COMPLETE over tcp"));
        }
        let at = match self.peer_index(spec.peer) {
            Some(at) => at,
            None => {
                let name = host.address_of(self.id, spec.peer)?;
                let Some(to) = name.socket_addr() else {
                    return Err(Error::WrongScheme {
                        provider: "tcp",
                        address: name,
                    });
                };
                let at = self.find_or_add_peer(to)?;
                if let Some(ConnectionState::Established(link)) = self.peers[at]
                    .connection
                    .and_then(|link| self.connections.get(link))
                    && !link.is_for(spec.peer, self.id, host)
                {
                    return Err(Error::PeerGone(name));
                }
                self.peers[at].fi_addr = Some(spec.peer);
                let index = spec.peer.index();
                if index >= self.peer_by_fi_addr.len() {
                    self.peer_by_fi_addr.resize(index + 1, None);
                }
                self.peer_by_fi_addr[index] = Some(at);
                at
            }
        };
        if self.peers[at].connection.is_none() {
            if matches!(self.kind, EndpointKind::Msg(_)) {
                return Err(self.disconnect_error());
            }
            // The address handle may be stale, with another incarnation at the same address.
            host.address_of(self.id, spec.peer)?;
        }
        if let Some(ConnectionState::Established(link)) = self.peers[at]
            .connection
            .and_then(|link| self.connections.get(link))
        {
            link.check_supported(spec)?;
        }
        self.peers[at].tx_queue.push_back(QueuedOp {
            op,
            spec: *spec,
            bytes_sent: None,
        });
        if self.peers[at].connection.is_none() && self.peers[at].retry.is_none() {
            self.peers[at].retry_deadline = Some(Instant::now() + HANDSHAKE_TIMEOUT);
            if let Err(error) = self.connect(at) {
                self.peers[at].tx_queue.pop_back();
                return Err(error);
            }
        }
        self.progress_tx(host, at);
        host.request_rearm();
        Ok(())
    }

    /// Returns the position of the peer that listens at this address, and adds the peer if needed.
    pub(super) fn find_or_add_peer(&mut self, at: SocketAddr) -> Result<usize> {
        if let Some(known) = self.peer_by_socket_addr.get(&at) {
            return Ok(*known);
        }
        let name = Address::from_socket_addr(Scheme::Tcp, at)?;
        let known = self.peers.insert(TcpPeer::new(name, at, self.protocol));
        self.peer_by_socket_addr.insert(at, known);
        Ok(known)
    }

    pub(super) fn peer_index(&self, addr: FiAddr) -> Option<usize> {
        let at = (*self.peer_by_fi_addr.get(addr.index())?)?;
        (self.peers[at].fi_addr == Some(addr)).then_some(at)
    }

    /// Progresses the transmit queue of a peer.
    pub(super) fn progress_tx(&mut self, host: &mut dyn EngineContext, at: usize) {
        let peer = &mut self.peers[at];
        let Some(at) = peer.connection else { return };
        if let Some(ConnectionState::Established(link)) = self.connections.get_mut(at) {
            link.progress_tx(&mut peer.tx_queue, host);
            self.mark_active(at);
        }
    }

    pub(crate) fn cancel(&mut self, host: &mut dyn EngineContext, op: OpKey) -> bool {
        if self.rx.own.cancel(host, op) {
            return true;
        }
        for (_, peer) in &mut self.peers {
            if let Some(at) = peer.tx_queue.iter().position(|send| send.op == op) {
                if peer.tx_queue[at].bytes_sent.is_some() {
                    return false;
                }
                peer.tx_queue.remove(at);
                host.request_rearm();
                return true;
            }
        }
        false
    }

    /// Handles a new connection with a peer: fails the operations for an earlier incarnation, whose
    /// address handle no longer leads to this peer.
    pub(super) fn fail_sends_to_others(
        &mut self,
        host: &mut dyn EngineContext,
        link: &TcpConnection,
    ) {
        let peer = &mut self.peers[link.peer];
        let sends = peer.tx_queue.iter();
        let others: Vec<_> = sends
            .filter(|send| !link.is_for(send.spec.peer, self.id, host))
            .map(|send| send.op)
            .collect();
        peer.tx_queue.retain(|send| !others.contains(&send.op));
        for op in others {
            // Nothing of it was sent: it was queued after the last connection had ended.
            host.complete(op, Outcome::failed(Error::PeerGone(peer.address.clone())));
        }
        if let Some(addr) = peer
            .fi_addr
            .filter(|addr| !link.is_for(*addr, self.id, host))
        {
            peer.fi_addr = None;
            self.peer_by_fi_addr[addr.index()] = None;
        }
    }

    /// Fails the queued and begun operations for a peer. A connection in the middle of a message
    /// sends nothing after it.
    pub(super) fn fail_sends(&mut self, host: &mut dyn EngineContext, at: usize, error: &Error) {
        self.peers[at].retry = None;
        let peer = &mut self.peers[at];
        if let Some(ConnectionState::Established(link)) = peer
            .connection
            .and_then(|link| self.connections.get_mut(link))
        {
            link.cancel_uring_send(&mut peer.tx_queue, host);
            let is_cut = link.abort_message();
            if link.write_closed() {
                link.fail_unwritten(host, error);
            }
            link.complete_written(host);
            link.fail_rendezvous_sends(host, error);
            if is_cut && let Some(at) = peer.connection.take() {
                self.mark_active(at);
            }
        }
        for send in std::mem::take(&mut self.peers[at].tx_queue) {
            let transfer = Transfer::sent(send.bytes_sent.unwrap_or(0), send.spec.tag);
            host.complete(send.op, Outcome::partial(transfer, error.clone()));
        }
    }
}
