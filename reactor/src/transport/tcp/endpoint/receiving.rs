//! Receives of an endpoint, and the address handles of the peers that send to it.

use fabric_core::matching::PeerKey;
use fabric_core::transport::{EndpointContext, EngineContext};
use fabric_core::{Address, Error, FiAddr};

use super::{ConnectionState, TcpEndpoint};

impl TcpEndpoint {
    /// Handles that a receive was posted or a message was discarded: a held message may match now.
    pub(crate) fn on_rx_queue_changed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        if ctx.rx_has_work() {
            ctx.request_rearm();
        }
        self.fail_recvs_if_disconnected(ctx);
        for connection_index in &self.active_connections {
            if let Some(ConnectionState::Established(connection)) =
                self.connections.get_mut(*connection_index)
                && connection.has_held_messages()
                && connection.progress_rx(&mut self.scratch, ctx)
            {
                ctx.request_rearm();
            }
        }
    }

    /// Returns the address handle of a connected peer, if it has one.
    pub(crate) fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        self.established()
            .find(|connection| connection.peer_key == peer)?
            .source
    }

    /// Assigns an inserted address handle to the connections with the peer at this address.
    pub(crate) fn address_inserted(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        addr: FiAddr,
        address: &Address,
    ) {
        let expected = ctx.incarnation_of(addr);
        let socket_addr = self.network.socket_addr(address).ok();
        let peer = socket_addr.and_then(|at| self.peer_by_socket_addr.get(&at));
        // Only connections with this peer are visited, so inserting n addresses takes O(n) time.
        for &connection_index in peer.map_or(&[][..], |&peer| &self.peers[peer].established) {
            if let Some(ConnectionState::Established(connection)) =
                self.connections.get_mut(connection_index)
                && connection.source.is_none()
                && (expected.is_none() || expected == connection.incarnation())
            {
                connection.source = Some(addr);
                ctx.assign_source(connection.peer_key, addr);
            }
        }
        self.on_rx_queue_changed(ctx);
    }

    /// Handles that an address handle is no longer valid: fails the operations that use the handle.
    pub(crate) fn address_removed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        addr: FiAddr,
    ) {
        for connection in self.all_established_mut() {
            connection.source = connection.source.filter(|source| *source != addr);
        }
        if let Some(peer_index) = self.peer_index(addr) {
            self.peer_by_fi_addr[addr.index()] = None;
            self.peers[peer_index].fi_addr = None;
            let stale = Error::StaleAddress(addr);
            self.fail_sends(ctx, peer_index, &stale);
            self.cancel_connect(peer_index);
            for connection in self.all_established_mut() {
                if connection.peer == peer_index {
                    connection.fail_requests_keep_slots(ctx, &stale);
                }
            }
            self.drop_unused_peer(peer_index);
        }
    }
}
