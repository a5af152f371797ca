//! Peers that connect and disconnect, and the address handles of their messages.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::address::{Address, FiAddr};
use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, PeerKey};
use crate::op::EpId;

use super::RxQueue;
use super::budget::BudgetGroup;
use super::engine::RxEngine;

/// Maximum number of disconnected peers whose names are kept.
const MAX_DISCONNECTED_PEERS: usize = 256;

/// The peers that a queue knows.
#[derive(Debug, Default)]
pub(super) struct QueuePeers {
    /// Disconnected peers, whose messages may still be queued or be requeued.
    disconnected: VecDeque<(PeerKey, Address)>,
    /// Connected peers, and the endpoint of each, if endpoints share the queue. Empty otherwise:
    /// the transport keeps the peers of the one endpoint.
    connected: HashMap<PeerKey, (Address, EpId)>,
}

impl QueuePeers {
    /// Adds a peer of an endpoint that shares the queue.
    pub(super) fn connect(&mut self, peer: PeerKey, name: Address, ep: EpId) {
        self.connected.insert(peer, (name, ep));
    }

    /// Moves a peer to the disconnected ones. If they are too many, forgets the one that has
    /// disconnected first, of those without messages if there are any.
    fn disconnect(
        &mut self,
        (peer, name): (PeerKey, Address),
        has_messages: impl Fn(PeerKey) -> bool,
    ) {
        self.connected.remove(&peer);
        if self.disconnected.len() == MAX_DISCONNECTED_PEERS {
            let mut disconnected = self.disconnected.iter();
            let unused = disconnected.position(|(key, _)| !has_messages(*key));
            self.disconnected.remove(unused.unwrap_or(0));
        }
        self.disconnected.push_back((peer, name));
    }

    /// Removes and returns the connected peers of an endpoint.
    pub(super) fn take_peers_of(&mut self, ep: EpId) -> Vec<(PeerKey, Address)> {
        let of_ep = self.connected.extract_if(|_, (_, other)| *other == ep);
        of_ep.map(|(key, (name, _))| (key, name)).collect()
    }

    pub(super) fn clear_connected(&mut self) {
        self.connected.clear();
    }

    /// Returns whether a peer with this name is connected to an endpoint that shares the queue.
    pub(super) fn is_connected(&self, name: &Address) -> bool {
        self.connected.values().any(|(other, _)| other == name)
    }

    /// Returns the endpoint to which a peer is connected.
    pub(super) fn endpoint_of(&self, peer: PeerKey) -> Option<EpId> {
        self.connected.get(&peer).map(|(_, ep)| *ep)
    }

    fn is_disconnected(&self, peer: PeerKey) -> bool {
        self.disconnected.iter().any(|(key, _)| *key == peer)
    }

    /// Iterates over the disconnected peers, and over the connected peers of a shared queue.
    pub(super) fn known(&self) -> impl Iterator<Item = (PeerKey, &Address)> {
        let connected = self.connected.iter();
        let connected = connected.map(|(key, (name, _))| (*key, name));
        let disconnected = self.disconnected.iter().map(|(key, name)| (*key, name));
        disconnected.chain(connected)
    }
}

/// The number of messages of each source, among those that the owner keeps.
#[derive(Debug, Default)]
pub(super) struct SourceCounts(BTreeMap<FiAddr, usize>);

impl SourceCounts {
    /// Counts a message with this source.
    pub(super) fn add(&mut self, source: Option<FiAddr>) {
        if let Some(source) = source {
            *self.0.entry(source).or_default() += 1;
        }
    }

    /// Takes a counted message with this source from the count.
    pub(super) fn remove(&mut self, source: Option<FiAddr>) {
        if let Some(source) = source
            && let Some(count) = self.0.get_mut(&source)
        {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&source);
            }
        }
    }

    pub(super) fn contains(&self, source: FiAddr) -> bool {
        self.0.contains_key(&source)
    }

    /// Sets the source of those of the counted messages that are of these peers and have none.
    pub(super) fn assign<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a mut Envelope>,
        peers: &[PeerKey],
        source: FiAddr,
    ) {
        for envelope in messages {
            if envelope.source.is_none() && peers.contains(&envelope.peer) {
                envelope.source = Some(source);
                self.add(Some(source));
            }
        }
    }

    /// Clears this source of the counted messages that have it.
    pub(super) fn clear<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a mut Envelope>,
        source: FiAddr,
    ) {
        if self.0.remove(&source).is_some() {
            for envelope in messages.filter(|envelope| envelope.source == Some(source)) {
                envelope.source = None;
            }
        }
    }
}

/// Unexpected messages that were discarded, because their senders have disconnected and the budget
/// was used up, or the program disconnected the sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscardedMessages {
    /// The peer that had sent the most bytes, if its name is still known.
    pub peer: Option<Address>,
    /// The number of peers.
    pub peers: usize,
    /// The number of messages.
    pub messages: usize,
    /// The bytes of the messages.
    pub bytes: usize,
    /// The handles of the peers.
    pub sources: Vec<FiAddr>,
}

impl RxQueue {
    /// Discards messages of disconnected peers: of those that use most.
    #[cold]
    pub(super) fn discard_from_disconnected(&mut self, engine: &mut impl RxEngine) {
        let peers: HashSet<_> = self.budget.take_disconnected().into_iter().collect();
        self.discard_messages_of(engine, &peers);
    }

    /// Discards the buffered messages of the peers with this name that have disconnected.
    pub fn discard_from(&mut self, engine: &mut impl RxEngine, name: &Address) {
        let disconnected = self.peers.disconnected.iter();
        let of_name = disconnected.filter(|(_, other)| other == name);
        let peers: HashSet<_> = of_name.map(|(key, _)| *key).collect();
        self.discard_messages_of(engine, &peers);
        self.request_rearm_if_work(engine);
    }

    /// Discards the buffered messages of these peers, apart from those that are arriving, and
    /// reports it.
    pub(super) fn discard_messages_of(
        &mut self,
        engine: &mut impl RxEngine,
        peers: &HashSet<PeerKey>,
    ) {
        if peers.is_empty() {
            return;
        }
        let discarded = self.matcher.unexpected.take_where(|envelope, message| {
            message.partial.is_none() && peers.contains(&envelope.peer)
        });
        if discarded.is_empty() {
            return;
        }
        let mut bytes_of: HashMap<PeerKey, usize> = HashMap::new();
        let mut sources = HashSet::new();
        for (envelope, message) in &discarded {
            self.release(envelope, message);
            *bytes_of.entry(envelope.peer).or_default() += envelope.len;
            sources.extend(envelope.source);
        }
        let largest = bytes_of.iter().max_by_key(|(_, bytes)| **bytes);
        let largest = largest.map(|(peer, _)| *peer);
        let name = self.peers.known().find(|(peer, _)| Some(*peer) == largest);
        let report = DiscardedMessages {
            peer: name.map(|(_, name)| name.clone()),
            peers: bytes_of.len(),
            messages: discarded.len(),
            bytes: bytes_of.values().sum(),
            sources: sources.into_iter().collect(),
        };
        engine.on_discarded(self.ep, &report);
    }

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
        self.other_changes += 1;
        self.partials.assign_source(peers, source);
        self.claims.assign_source(peers, source);
        self.held.assign_source(peers, source);
        let updated = self.matcher.unexpected.assign_source(peers, source);
        self.match_keys(engine, updated);
        self.check_probes(engine);
    }

    /// Invalidates a handle: the sender of messages with this source becomes unknown, and receives
    /// directed to the handle fail.
    pub fn clear_source(&mut self, engine: &mut impl RxEngine, source: FiAddr) {
        self.matcher.unexpected.clear_source(source);
        self.held.clear_source(source);
        self.partials.clear_source(source);
        self.claims.clear_source(source);
        self.fail_directed(engine, source, &Error::StaleAddress(source));
        self.request_rearm_if_work(engine);
    }

    /// Fails receives and probes directed to this peer.
    pub fn fail_directed(&mut self, engine: &mut impl RxEngine, source: FiAddr, error: &Error) {
        self.fail_probes(engine, |spec| {
            (spec.from == Some(source)).then(|| error.clone())
        });
        let mut retired = false;
        for op in self.matcher.posted.take_directed(source) {
            retired |= self.retire_multi(op);
            engine.complete(op, Outcome::failed(error.clone()));
        }
        if retired {
            self.match_unexpected(engine);
        }
    }

    /// Records that a peer has disconnected, after all its messages were delivered. A handle that
    /// is inserted later is still assigned to the peer's unexpected messages.
    pub fn disconnect_peer(&mut self, peer: PeerKey, name: Address) {
        self.peers.disconnect((peer, name), |peer| {
            self.budget.used_by(peer) + self.beyond_budget.used_by(peer) > 0
        });
        self.budget.on_disconnect(peer);
        self.beyond_budget.on_disconnect(peer);
        self.over_budget.remove(peer);
        self.held.remove(peer);
    }

    /// Sets the group of a connected peer that the program has not inserted.
    pub fn set_budget_group(&mut self, peer: PeerKey, group: BudgetGroup) {
        self.budget.set_group(peer, group);
        self.beyond_budget.set_group(peer, group);
    }

    /// Charges bytes that the transport holds for a peer. Returns false, with nothing charged, if
    /// the budget has no room for this peer.
    #[must_use]
    pub fn charge_peer(&mut self, peer: PeerKey, bytes: usize) -> bool {
        let fits = self.budget.fits(peer, bytes);
        if fits {
            self.budget.charge(peer, bytes);
        }
        fits
    }

    /// Returns bytes that were charged with [`charge_peer`](Self::charge_peer).
    pub fn release_peer(&mut self, peer: PeerKey, bytes: usize) {
        self.budget.release(peer, bytes);
    }

    /// Returns whether a message of this source is unexpected, claimed or arriving.
    #[must_use]
    pub fn holds_messages_from(&mut self, source: FiAddr) -> bool {
        // A message that is being copied from the sender's memory may outlive the connection.
        self.matcher.unexpected.holds_messages_from(source)
            || self.claims.has_source(source)
            || self.partials.has_source(source)
    }
}
