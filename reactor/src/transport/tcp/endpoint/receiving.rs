//! Receives of an endpoint, and the address handles of those who send to it.

use fabric_core::buf::PooledBuf;
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::rx::RxQueue;
use fabric_core::transport::{EngineContext, OpKey};
use fabric_core::{Address, Error, FiAddr};

use super::{ConnectionState, TcpEndpoint};

impl TcpEndpoint {
    pub(crate) fn post_recv(&mut self, host: &mut dyn EngineContext, op: OpKey, spec: RecvSpec) {
        self.rx.own.post(host, op, spec);
        self.on_rx_queue_changed(host);
    }

    pub(crate) fn post_multi_recv(
        &mut self,
        host: &mut dyn EngineContext,
        op: OpKey,
        spec: RecvSpec,
    ) {
        self.rx.own.post_multi(host, op, spec);
        self.on_rx_queue_changed(host);
    }

    pub(crate) fn rx_queue(&mut self) -> &mut RxQueue {
        &mut self.rx.own
    }

    /// Handles that a receive was posted or a message was discarded: a held message may match now.
    pub(crate) fn on_rx_queue_changed(&mut self, host: &mut dyn EngineContext) {
        if self.rx.own.has_work() {
            host.request_rearm();
        }
        self.fail_recvs_if_disconnected(host);
        for at in 0..self.active_connections.len() {
            if let Some(ConnectionState::Established(connection)) = self
                .active_connections
                .get(at)
                .and_then(|at| self.connections.get_mut(*at))
                && connection.has_held_messages()
                && self
                    .rx
                    .with_queue(|rx| connection.progress_rx(&mut self.scratch, rx, host))
            {
                host.request_rearm();
            }
        }
    }

    pub(crate) fn detach_recv(&mut self, host: &mut dyn EngineContext, op: OpKey) {
        self.rx.own.detach(host, op);
    }

    pub(crate) fn requeue_message(
        &mut self,
        host: &mut dyn EngineContext,
        envelope: Envelope,
        bytes: PooledBuf,
    ) {
        // The sender's address handle may have been assigned or removed meanwhile.
        let source = self
            .established()
            .find(|connection| connection.peer_key == envelope.peer)
            .and_then(|connection| connection.source);
        self.rx.own.requeue_message(host, envelope, source, bytes);
    }

    pub(crate) fn holds_messages_from(&self, source: FiAddr) -> bool {
        self.rx.own.holds_messages_from(source)
    }

    pub(crate) fn address_inserted(
        &mut self,
        host: &mut dyn EngineContext,
        addr: FiAddr,
        address: &Address,
    ) {
        let bound = host.incarnation_of(self.id, addr);
        let peer = address
            .socket_addr()
            .and_then(|at| self.peer_by_socket_addr.get(&at));
        // Only connections with this peer are looked at: adding n peers takes n steps.
        for &at in peer.map_or(&[][..], |&peer| &self.peers[peer].established) {
            if let Some(ConnectionState::Established(connection)) = self.connections.get_mut(at)
                && connection.source.is_none()
                && (bound.is_none() || bound == connection.incarnation())
            {
                connection.source = Some(addr);
                self.rx.own.assign_source(host, connection.peer_key, addr);
            }
        }
        self.rx.own.address_inserted(host, addr, address);
        self.on_rx_queue_changed(host);
    }

    pub(crate) fn address_removed(&mut self, host: &mut dyn EngineContext, addr: FiAddr) {
        self.rx.own.clear_source(host, addr);
        for (_, state) in &mut self.connections {
            if let ConnectionState::Established(connection) = state {
                connection.source = connection.source.filter(|source| *source != addr);
            }
        }
        if let Some(at) = self.peer_index(addr) {
            self.peer_by_fi_addr[addr.index()] = None;
            self.peers[at].fi_addr = None;
            let stale = Error::StaleAddress(addr);
            self.fail_sends(host, at, &stale);
            self.cancel_connect(at);
            for (_, state) in &mut self.connections {
                if let ConnectionState::Established(connection) = state
                    && connection.peer == at
                {
                    connection.fail_requests_keep_slots(host, &stale);
                }
            }
            self.drop_unused_peer(at);
        }
    }
}
