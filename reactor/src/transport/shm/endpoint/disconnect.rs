//! How connections end in either direction, and which operations and events report it.
//!
//! Any process can claim a name, and a name is reused after its endpoint has closed. So a peer is
//! identified by its process, which the kernel reports, and by a random incarnation number of its
//! endpoint. When a connection ends, the connection of the opposite direction ends with it only if
//! both have the same process and incarnation. Receives directed to the peer fail only if no
//! connection leads to another endpoint of that name. So no process can end another peer's
//! connection or receives by its name, and the end of an old endpoint does not end a new one of
//! that name. (Kernels before 6.9 do not identify a process in another PID namespace: then no
//! connection ends with that of the opposite direction.) An endpoint that closes also marks its
//! rings as closed. The sender reads the mark with each message, so a message to a closed endpoint
//! fails at once.
//!
//! The connection of a connected endpoint ends in both directions at once: see `connected`.
//!
//! When a peer's process dies, directed receives fail with `PeerGone` and the death is an event. An
//! any-source receive whose sender dies midway keeps waiting.

use fabric_core::event::{DownReason, EventKind};
use fabric_core::transport::{Disconnect, EndpointContext, EngineContext};
use fabric_core::{Error, FiAddr};

use super::super::control::ControlMessage;
use super::super::rx_connection::PeerIdentity;
use super::super::tx_connection::{ConnectionEnd, TxConnection};
use super::{ShmEndpoint, ShmEndpointKind};

impl ShmEndpoint {
    /// Handles the end of a connection to a peer. Emits an event unless an incoming connection from
    /// the same peer emits it, or has emitted it.
    pub(super) fn on_tx_ended(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_index: usize,
        end: ConnectionEnd,
    ) {
        if let ShmEndpointKind::Msg(_) = self.kind {
            return self.on_msg_ended(ctx, end.reason);
        }
        let Some(mut tx) = self.tx_connections.lock(tx_index) else {
            return;
        };
        let (name, addr) = (tx.peer_address.clone(), tx.addr);
        end_tx_connection(&mut tx, ctx, &end.error, Some(ControlMessage::Disconnect));
        let Some(identity) = end.identity else {
            return;
        };
        let reported = tx.is_end_reported(identity);
        drop(tx);
        let mut peers = self.rx_connections.established();
        if !reported && !peers.any(|peer| peer.peer_address == name && peer.identity == identity) {
            let (peer, reason) = (name.clone(), end.reason);
            ctx.event(EventKind::PeerDown {
                peer,
                source: Some(addr),
                reason,
            });
        }
        let mut peers = self.rx_connections.established();
        if !peers.any(|rx| rx.peer_address == name && rx.peer.source() == Some(addr)) {
            let gone = Error::PeerGone(name.clone());
            ctx.fail_directed_to_disconnected(addr, &name, &gone);
        }
    }

    /// Handles the end of a connection from a peer; records left in the ring are still received.
    pub(super) fn on_rx_ended(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        rx_index: usize,
        reason: DownReason,
    ) {
        if let ShmEndpointKind::Msg(_) = self.kind {
            return self.on_msg_ended(ctx, reason);
        }
        // The peer's memory is gone, so records that refer to it are not held any more.
        self.rx_connections.activate(rx_index);
        let Some(rx) = self.rx_connections.get_mut(rx_index) else {
            return;
        };
        // A socket that has hung up stays readable and would keep the domain awake.
        rx.unwatch();
        if !rx.mark_down(reason) {
            return;
        }
        let (name, identity, source) = (rx.peer_address.clone(), rx.identity, rx.peer.source());
        // Memory of the peer that was not copied yet is gone with its process, or may be reused by
        // the peer.
        rx.stop_cma();
        ctx.fail_unmapped_from(rx.peer.key(), &Error::PeerGone(name.clone()));
        // The caller removes a connection that has violated the protocol.
        let has_descriptors =
            matches!(reason, DownReason::Protocol(_)) || !rx.release_descriptors(ctx);
        let has_disconnected = rx.has_disconnected();
        self.rx_limits.on_peer_ended(rx_index, has_descriptors);
        self.limit_undrained_exempt(ctx);
        let ends_both_directions = !has_disconnected && !matches!(reason, DownReason::Protocol(_));
        let mut peers = self.rx_connections.established();
        if peers.any(|peer| {
            peer.peer_address == name && peer.identity == identity && peer.down_reason().is_none()
        }) {
            return;
        }
        self.for_each_tx(|tx| {
            if tx.peer_address != name {
                return;
            }
            tx.mark_end_reported(identity);
            let is_known = identity.process.is_some();
            if ends_both_directions && is_known && tx.identity() == Some(identity) {
                // Later sends must not complete as if they had arrived.
                let gone = Error::PeerGone(name.clone());
                end_tx_connection(tx, ctx, &gone, Some(ControlMessage::Disconnect));
            }
        });
        let source = source.or_else(|| ctx.fi_addr_of(&name));
        let source = source.filter(|source| !self.leads_elsewhere(*source, identity));
        ctx.event(EventKind::PeerDown {
            peer: name,
            source,
            reason,
        });
    }

    /// Ends connections with a peer ([`TransportEndpoint::disconnect`]). What is left in the ring
    /// of a connectionless peer is not received.
    ///
    /// [`TransportEndpoint::disconnect`]: fabric_core::transport::TransportEndpoint::disconnect
    pub(super) fn end_connections(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        disconnect: Disconnect<'_>,
    ) -> bool {
        let mut incoming = Vec::new();
        let reason = disconnect.reason();
        match disconnect {
            Disconnect::Program(name) => self
                .rx_connections
                .for_each_at(name, |rx_index, _| incoming.push(rx_index)),
            Disconnect::Stalled(sender) => incoming.extend(self.rx_connections.index_of(sender)),
        }
        for &rx_index in &incoming {
            self.on_rx_ended(ctx, rx_index, reason);
            if let ShmEndpointKind::Msg(_) = self.kind {
                continue;
            }
            if let Some(rx) = self.rx_connections.get_mut(rx_index) {
                rx.close(ControlMessage::Disconnect);
            }
            self.remove_rx_connection(ctx, rx_index);
        }
        let Disconnect::Program(name) = disconnect else {
            return !incoming.is_empty();
        };
        let mut outgoing = Vec::new();
        self.for_each_tx(|tx| {
            if tx.peer_address == *name && !tx.is_closed() {
                outgoing.push((tx.addr.index(), tx.identity()));
            }
        });
        for &(tx_index, identity) in &outgoing {
            let end = ConnectionEnd {
                error: Error::PeerGone(name.clone()),
                reason,
                identity,
            };
            self.on_tx_ended(ctx, tx_index, end);
        }
        !incoming.is_empty() || !outgoing.is_empty()
    }

    /// Returns whether the connection to the peer of this handle leads to another endpoint than
    /// that of this identity: a process that has claimed the name of the peer is not the peer.
    fn leads_elsewhere(&self, addr: FiAddr, identity: PeerIdentity) -> bool {
        self.tx_connection(addr)
            .is_some_and(|tx| tx.leads_elsewhere(identity))
    }

    /// Removes a connection that has ended and whose ring is empty.
    pub(super) fn remove_rx_connection(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        rx_index: usize,
    ) {
        let Some(mut rx) = self.rx_connections.remove(rx_index) else {
            return;
        };
        let gone = Error::PeerGone(rx.peer_address.clone());
        rx.fail_partial(ctx, gone.clone());
        ctx.disconnect_peer(rx.peer.key(), rx.peer_address.clone());
        rx.unwatch();
        self.counters.doorbells += rx.doorbells;
        self.counters.single_copy_rx += rx.cma_stats().unwrap_or_default();
        // While another connection from that peer exists, its directed receives stay posted.
        let source = rx.peer.source();
        let mut others = self.rx_connections.established();
        if let Some(source) = source
            .filter(|_| others.all(|other| other.peer.source() != source))
            .filter(|source| !self.leads_elsewhere(*source, rx.identity))
        {
            ctx.fail_directed_to_disconnected(source, &rx.peer_address, &gone);
        }
        drop(others);
        rx.peer.report_disconnected(ctx);
        self.rx_limits.on_removed(rx_index);
        if let ShmEndpointKind::Msg(_) = self.kind {
            self.on_msg_drained(ctx, rx.down_reason().unwrap_or(DownReason::Closed));
        }
    }
}

/// Closes a connection to a peer: announces the end with this message, unless a connecting client
/// has none to send. The operations of the connection fail, and loans that the peer holds are
/// reported lost.
pub(super) fn end_tx_connection(
    tx: &mut TxConnection,
    ctx: &mut EndpointContext<'_, impl EngineContext>,
    error: &Error,
    announcement: Option<ControlMessage>,
) {
    if let Some(message) = announcement {
        tx.announce_end(message);
    }
    // Loans that the peer has returned are not lost.
    tx.collect_returned();
    let held_loans = tx.held_loans();
    if held_loans > 0 {
        ctx.loans_lost(&tx.peer_address, held_loans);
    }
    tx.close(ctx, error);
}
