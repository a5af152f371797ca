//! How connections end, in either direction, and who hears of it.

use fabric_core::Error;
use fabric_core::event::{DownReason, EventKind};
use fabric_core::transport::{EngineContext, EpId};

use super::super::tx_connection::{ConnectionEnd, TxConnection};
use super::ShmEndpoint;

impl ShmEndpoint {
    /// A connection to a peer has ended. It is news unless a connection from the same peer tells,
    /// or has told, of it.
    pub(super) fn on_tx_ended(
        &mut self,
        host: &mut dyn EngineContext,
        at: usize,
        parting: ConnectionEnd,
    ) {
        let Some(mut outgoing) = self.tx_connections.lock(at) else {
            return;
        };
        let (name, addr) = (outgoing.peer_address.clone(), outgoing.addr);
        end_tx_connection(&mut outgoing, self.id, host, &parting.error);
        let Some(identity) = parting.identity else {
            return;
        };
        let reported = outgoing.is_end_reported(identity);
        drop(outgoing);
        let mut callers = self.rx_connections.peers();
        if !reported && !callers.any(|peer| peer.peer_address == name && peer.identity == identity)
        {
            let (peer, reason) = (name.clone(), parting.reason);
            host.event(
                self.id,
                EventKind::PeerDown {
                    peer,
                    source: Some(addr),
                    reason,
                },
            );
        }
        let mut callers = self.rx_connections.peers();
        if !callers.any(|peer| peer.peer_address == name && peer.source == Some(addr)) {
            self.rx
                .fail_directed(host, addr, &name, &Error::PeerGone(name.clone()));
        }
    }

    /// A connection from a peer has ended; what it left in the ring is still taken.
    pub(super) fn on_rx_ended(
        &mut self,
        host: &mut dyn EngineContext,
        at: usize,
        reason: DownReason,
    ) {
        let Some(peer) = self.rx_connections.get_mut(at) else {
            return;
        };
        // A socket that has hung up would keep everybody awake.
        peer.unwatch();
        if !peer.mark_down(reason) {
            return;
        }
        let (name, identity, source) = (peer.peer_address.clone(), peer.identity, peer.source);
        // What has not been copied of its own memory by now has gone with it, or will not be waited
        // for.
        peer.stop_cma();
        self.rx.with_queue(|rx| {
            rx.fail_unmapped_from(host, peer.peer_key, &Error::PeerGone(name.clone()))
        });
        let Some(peer) = self.rx_connections.get_mut(at) else {
            return;
        };
        let is_over = !peer.has_disconnected() && !matches!(reason, DownReason::Protocol(_));
        let mut callers = self.rx_connections.peers();
        if callers.any(|peer| {
            peer.peer_address == name && peer.identity == identity && peer.down_reason().is_none()
        }) {
            return;
        }
        self.for_each_tx(|outgoing| {
            if outgoing.peer_address != name {
                return;
            }
            outgoing.mark_end_reported(identity);
            if is_over && outgoing.identity() == Some(identity) {
                // The endpoint there is gone: what is sent from now on must not seem to have
                // arrived.
                end_tx_connection(outgoing, self.id, host, &Error::PeerGone(name.clone()));
            }
        });
        let source = source.or_else(|| host.fi_addr_of(self.id, &name));
        host.event(
            self.id,
            EventKind::PeerDown {
                peer: name,
                source,
                reason,
            },
        );
    }

    /// The connection has ended and all it left has been taken.
    pub(super) fn remove_rx_connection(&mut self, host: &mut dyn EngineContext, at: usize) {
        let Some(mut peer) = self.rx_connections.remove(at) else {
            return;
        };
        let gone = Error::PeerGone(peer.peer_address.clone());
        self.rx
            .with_queue(|rx| peer.fail_partial(rx, host, gone.clone()));
        self.rx
            .peer_departed(peer.peer_key, peer.peer_address.clone());
        peer.unwatch();
        self.counters.doorbells += peer.doorbells;
        self.counters.single_copy_rx += peer.cma_stats().unwrap_or_default();
        // With another connection from there the handle is that one's too.
        let mut others = self.rx_connections.peers();
        if let Some(source) = peer
            .source
            .filter(|source| others.all(|other| other.source != Some(*source)))
        {
            self.rx
                .fail_directed(host, source, &peer.peer_address, &gone);
        }
        host.peer_disconnected(self.id, peer.initial_addr);
    }
}

/// Ends a connection of this endpoint.
pub(super) fn end_tx_connection(
    outgoing: &mut TxConnection,
    ep: EpId,
    host: &mut dyn EngineContext,
    error: &Error,
) {
    let lent = outgoing.outstanding_loans();
    if lent > 0 {
        host.loans_lost(ep, &outgoing.peer_address, lent);
    }
    outgoing.close(host, error);
}
