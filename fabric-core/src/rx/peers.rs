//! Senders that connect and disconnect, and the address handles of their messages.

use std::collections::VecDeque;

use crate::address::{Address, FiAddr};
use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::op::EpId;

use super::RxQueue;
use super::engine::RxEngine;
use super::partial::PartialMessage;

/// Maximum number of disconnected peers whose names are kept.
const MAX_DISCONNECTED_PEERS: usize = 256;

/// The peers that a queue knows.
#[derive(Debug, Default)]
pub(super) struct QueuePeers {
    /// Disconnected peers, whose messages may still be queued or be requeued.
    disconnected: VecDeque<(PeerKey, Address)>,
    /// Connected peers, and the endpoint of each, if endpoints share the queue. Empty otherwise:
    /// the transport keeps the peers of the one endpoint.
    connected: Vec<(PeerKey, Address, EpId)>,
}

impl QueuePeers {
    /// Adds a peer of an endpoint that shares the queue.
    pub(super) fn connect(&mut self, peer: PeerKey, name: Address, ep: EpId) {
        self.connected.push((peer, name, ep));
    }

    /// Moves a peer to the disconnected ones, and forgets the one that has disconnected first.
    fn disconnect(&mut self, peer: PeerKey, name: Address) {
        self.connected.retain(|(connected, ..)| *connected != peer);
        if self.disconnected.len() == MAX_DISCONNECTED_PEERS {
            self.disconnected.pop_front();
        }
        self.disconnected.push_back((peer, name));
    }

    /// Removes and returns the connected peers of an endpoint.
    pub(super) fn take_peers_of(&mut self, ep: EpId) -> Vec<(PeerKey, Address)> {
        let of_ep = self.connected.extract_if(.., |(.., other)| *other == ep);
        of_ep.map(|(key, name, _)| (key, name)).collect()
    }

    pub(super) fn clear_connected(&mut self) {
        self.connected.clear();
    }

    /// Returns whether a peer with this name is connected to an endpoint that shares the queue.
    pub(super) fn is_connected(&self, name: &Address) -> bool {
        self.connected.iter().any(|(_, other, _)| other == name)
    }

    /// Returns the endpoint to which a peer is connected.
    pub(super) fn endpoint_of(&self, peer: PeerKey) -> Option<EpId> {
        let connected = self.connected.iter().find(|(key, ..)| *key == peer);
        connected.map(|(.., ep)| *ep)
    }

    fn is_disconnected(&self, peer: PeerKey) -> bool {
        self.disconnected.iter().any(|(key, _)| *key == peer)
    }

    /// Iterates over the disconnected peers, and over the connected peers of a shared queue.
    pub(super) fn known(&self) -> impl Iterator<Item = (PeerKey, &Address)> {
        let connected = self.connected.iter().map(|(key, name, _)| (*key, name));
        let disconnected = self.disconnected.iter().map(|(key, name)| (*key, name));
        disconnected.chain(connected)
    }
}

impl RxQueue {
    /// Assigns an inserted handle to the unexpected messages without a source that the peer with
    /// this name has sent.
    ///
    /// A handle that the program inserted stands for the name, so messages of disconnected peers
    /// with that name get the handle too. An auto-inserted handle stands for one connected peer. Of
    /// the connected peers, the queue knows only those of endpoints that share the queue; for those
    /// of an endpoint's own queue the transport calls [`assign_source`](Self::assign_source).
    /// Returns whether the queue knows a peer with this name, so that the queue may have changed.
    pub fn address_inserted(
        &mut self,
        engine: &mut impl RxEngine,
        source: FiAddr,
        peer: &Address,
    ) -> bool {
        let is_auto_inserted = engine.incarnation_of(self.ep, source).is_some();
        let keys: Vec<_> = self
            .peers
            .known()
            .filter(|(key, name)| {
                *name == peer && !(is_auto_inserted && self.peers.is_disconnected(*key))
            })
            .map(|(key, _)| key)
            .collect();
        if keys.is_empty() {
            return false;
        }
        self.assign_source_all(engine, &keys, source);
        self.request_rearm_if_work(engine);
        true
    }

    /// Assigns a handle to the messages without a source of this peer, and offers the unexpected
    /// ones to posted receives. A shared queue ignores the call: it knows its connected peers, and
    /// has an address vector of its own.
    pub fn assign_source(&mut self, engine: &mut impl RxEngine, peer: PeerKey, source: FiAddr) {
        if !self.shared {
            self.assign_source_all(engine, &[peer], source);
        }
    }

    /// As [`assign_source`](Self::assign_source), for a peer that has several keys. Messages are
    /// offered in the order of arrival.
    fn assign_source_all(&mut self, engine: &mut impl RxEngine, peers: &[PeerKey], source: FiAddr) {
        for partial in self.partials.iter_mut() {
            if peers.contains(&partial.envelope.peer) {
                partial.envelope.source.get_or_insert(source);
            }
        }
        for envelope in self
            .claimed_envelopes()
            .filter(|envelope| peers.contains(&envelope.peer))
        {
            envelope.source.get_or_insert(source);
        }
        let updated = self.matcher.assign_source(peers, source);
        self.match_keys(engine, updated);
        self.check_probes(engine);
    }

    /// Invalidates a handle: the sender of messages with this source becomes unknown, and receives
    /// directed to the handle fail.
    pub fn clear_source(&mut self, engine: &mut impl RxEngine, source: FiAddr) {
        self.matcher.clear_source(source);
        for partial in self.partials.iter_mut() {
            if partial.envelope.source == Some(source) {
                partial.envelope.source = None;
            }
        }
        for envelope in self
            .claimed_envelopes()
            .filter(|envelope| envelope.source == Some(source))
        {
            envelope.source = None;
        }
        self.fail_directed(engine, source, &Error::StaleAddress(source));
        self.request_rearm_if_work(engine);
    }

    /// Fails receives and probes directed to this peer.
    pub fn fail_directed(&mut self, engine: &mut impl RxEngine, source: FiAddr, error: &Error) {
        self.fail_probes(engine, |spec| {
            (spec.from == Some(source)).then(|| error.clone())
        });
        let mut retired = false;
        for op in self.matcher.take_directed(source) {
            retired |= self.retire_multi(op);
            engine.complete(op, Outcome::failed(error.clone()));
        }
        if retired {
            self.match_unexpected(engine);
        }
    }

    /// Records that a peer has disconnected, after all its messages were delivered. A handle that
    /// is inserted later is still assigned to the peer's unexpected messages.
    pub fn peer_disconnected(&mut self, peer: PeerKey, name: Address) {
        self.peers.disconnect(peer, name);
    }

    /// Returns whether a message of this source is unexpected, claimed or arriving.
    #[must_use]
    pub fn holds_messages_from(&mut self, source: FiAddr) -> bool {
        // A message that is being copied from the sender's memory may outlive the connection.
        let arriving = |partial: &PartialMessage| partial.envelope.source == Some(source);
        self.matcher.holds_messages_from(source)
            || self.has_claim_from(source)
            || self.partials.iter().any(|(_, partial)| arriving(partial))
    }
}
