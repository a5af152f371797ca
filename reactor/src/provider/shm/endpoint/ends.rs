//! How connections end, in either direction, and who hears of it.

use fabric_core::Error;
use fabric_core::event::{DownReason, EventKind};
use fabric_core::provider::{EpId, Host};

use super::super::outgoing::{Outgoing, Parting};
use super::Endpoint;

impl Endpoint {
    /// A connection to a peer has ended. It is news unless a connection from the same peer tells,
    /// or has told, of it.
    pub(super) fn outgoing_ended(&mut self, host: &mut dyn Host, at: usize, parting: Parting) {
        let Some(mut outgoing) = self.lanes.lock(at) else {
            return;
        };
        let (name, addr) = (outgoing.peer.clone(), outgoing.addr);
        end(&mut outgoing, self.id, host, &parting.error);
        let Some(identity) = parting.identity else {
            return;
        };
        let reported = outgoing.is_reported(identity);
        drop(outgoing);
        let mut callers = self.callers.peers();
        if !reported && !callers.any(|peer| peer.peer == name && peer.identity == identity) {
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
        let mut callers = self.callers.peers();
        if !callers.any(|peer| peer.peer == name && peer.source == Some(addr)) {
            self.rx
                .fail_directed(host, addr, &name, &Error::PeerGone(name.clone()));
        }
    }

    /// A connection from a peer has ended; what it left in the ring is still taken.
    pub(super) fn caller_ended(&mut self, host: &mut dyn Host, at: usize, reason: DownReason) {
        let Some(peer) = self.callers.get(at) else {
            return;
        };
        // A socket that has hung up would keep everybody awake.
        peer.unwatch();
        if !peer.lost(reason) {
            return;
        }
        let (name, identity, source) = (peer.peer.clone(), peer.identity, peer.source);
        // What has not been copied of its own memory by now has gone with it, or will not be waited
        // for.
        peer.stop_fetching();
        self.rx
            .with(|rx| rx.lose(host, peer.key, &Error::PeerGone(name.clone())));
        let Some(peer) = self.callers.get(at) else {
            return;
        };
        let is_over = !peer.has_left() && !matches!(reason, DownReason::Protocol(_));
        let mut callers = self.callers.peers();
        if callers
            .any(|peer| peer.peer == name && peer.identity == identity && peer.down().is_none())
        {
            return;
        }
        self.each(|outgoing| {
            if outgoing.peer != name {
                return;
            }
            outgoing.report(identity);
            if is_over && outgoing.identity() == Some(identity) {
                // The endpoint there is gone: what is sent from now on must not seem to have
                // arrived.
                end(outgoing, self.id, host, &Error::PeerGone(name.clone()));
            }
        });
        let source = source.or_else(|| host.number_of(self.id, &name));
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
    pub(super) fn end_caller(&mut self, host: &mut dyn Host, at: usize) {
        let Some(mut peer) = self.callers.remove(at) else {
            return;
        };
        let gone = Error::PeerGone(peer.peer.clone());
        self.rx.with(|rx| peer.end(rx, host, gone.clone()));
        self.rx.departed(peer.key, peer.peer.clone());
        peer.unwatch();
        self.done.doorbells += peer.doorbells;
        self.done.fetched += peer.fetched().unwrap_or_default();
        // With another connection from there the handle is that one's too.
        let mut others = self.callers.peers();
        if let Some(source) = peer
            .source
            .filter(|source| others.all(|other| other.source != Some(*source)))
        {
            self.rx.fail_directed(host, source, &peer.peer, &gone);
        }
        host.peer_disconnected(self.id, peer.number);
    }
}

/// Ends a connection of this endpoint.
pub(super) fn end(outgoing: &mut Outgoing, ep: EpId, host: &mut dyn Host, error: &Error) {
    let lent = outgoing.out();
    if lent > 0 {
        host.gave_up(ep, &outgoing.peer, lent);
    }
    outgoing.end(host, error);
}
