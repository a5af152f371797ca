//! What becomes of messages when their senders get a number, lose it, or go.

use crate::address::{Address, FiAddr};
use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::transport::EngineContext;

use super::RxQueue;
use super::partial::PartialMessage;

/// Departed peers whose messages can still be told apart.
const MAX_DEPARTED_PEERS: usize = 256;

impl RxQueue {
    /// A peer has a handle now. What waits without a source from those that are connected under this
    /// name, where endpoints share the context, gets it; and so does what waits from those that are
    /// gone, if the program inserted the handle, which stands for the name then.
    pub fn address_inserted(
        &mut self,
        host: &mut dyn EngineContext,
        source: FiAddr,
        peer: &Address,
    ) {
        let is_auto_inserted = host.incarnation_of(self.ep, source).is_some();
        let keys: Vec<_> = self
            .known_peers()
            .filter(|(key, name)| *name == peer && !(is_auto_inserted && self.is_gone(*key)))
            .map(|(key, _)| key)
            .collect();
        if !keys.is_empty() {
            self.assign_source_all(host, &keys, source);
        }
        self.request_rearm_if_work(host);
    }

    /// Peers whose names are known here.
    pub(super) fn known_peers(&self) -> impl Iterator<Item = (PeerKey, &Address)> {
        let present = self
            .connected_peers
            .iter()
            .map(|(key, name, _)| (*key, name));
        self.departed_peers
            .iter()
            .map(|(key, name)| (*key, name))
            .chain(present)
    }

    fn is_gone(&self, peer: PeerKey) -> bool {
        self.departed_peers.iter().any(|(key, _)| *key == peer)
    }

    /// Waiting messages of this peer now have a number.
    pub fn assign_source(&mut self, host: &mut dyn EngineContext, peer: PeerKey, source: FiAddr) {
        self.assign_source_all(host, &[peer], source);
    }

    /// Waiting messages of these, who are one, now have a number: they are offered in the order
    /// they arrived.
    fn assign_source_all(
        &mut self,
        host: &mut dyn EngineContext,
        peers: &[PeerKey],
        source: FiAddr,
    ) {
        for (_, landing) in &mut self.partials {
            if peers.contains(&landing.envelope.peer) {
                landing.envelope.source.get_or_insert(source);
            }
        }
        for envelope in self
            .claimed_envelopes()
            .filter(|envelope| peers.contains(&envelope.peer))
        {
            envelope.source.get_or_insert(source);
        }
        let renamed = self.matcher.assign_source(peers, source);
        self.match_keys(host, renamed);
        self.check_probes(host);
    }

    /// A number is no longer valid: waiting messages that carry it become those of a stranger, and
    /// receives directed at it fail.
    pub fn clear_source(&mut self, host: &mut dyn EngineContext, source: FiAddr) {
        self.matcher.clear_source(source);
        for (_, landing) in &mut self.partials {
            if landing.envelope.source == Some(source) {
                landing.envelope.source = None;
            }
        }
        for envelope in self
            .claimed_envelopes()
            .filter(|envelope| envelope.source == Some(source))
        {
            envelope.source = None;
        }
        self.fail_directed(host, source, &Error::StaleAddress(source));
        self.request_rearm_if_work(host);
    }

    /// Receives directed at this peer will get nothing: it is gone.
    pub fn fail_directed(&mut self, host: &mut dyn EngineContext, source: FiAddr, error: &Error) {
        self.fail_probes(host, |spec| {
            (spec.from == Some(source)).then(|| error.clone())
        });
        let mut retired = false;
        for op in self.matcher.take_directed(source) {
            self.posted[op.index as usize] = None;
            retired |= self.retire_multi(op);
            host.complete(op, Outcome::failed(error.clone()));
        }
        if retired {
            self.match_unexpected(host);
        }
    }

    /// A peer has gone, and everything it sent has been taken in. What waits of it is still told
    /// apart.
    pub fn peer_departed(&mut self, peer: PeerKey, name: Address) {
        self.connected_peers
            .retain(|(present, ..)| *present != peer);
        if self.departed_peers.len() == MAX_DEPARTED_PEERS {
            self.departed_peers.pop_front();
        }
        self.departed_peers.push_back((peer, name));
    }

    /// Whether a message of this source waits.
    #[must_use]
    pub fn holds_messages_from(&self, source: FiAddr) -> bool {
        // One that is being copied is not looked at yet, and may outlive its connection.
        let arriving = |landing: &PartialMessage| landing.envelope.source == Some(source);
        self.matcher.holds_messages_from(source)
            || self.has_claim_from(source)
            || self.partials.iter().any(|(_, landing)| arriving(landing))
    }
}
