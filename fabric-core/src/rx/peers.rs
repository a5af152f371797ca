//! What becomes of messages when their senders get a number, lose it, or go.

use crate::address::{Address, FiAddr};
use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::provider::Host;

use super::RxContext;
use super::landing::Landing;

/// Departed peers whose messages can still be told apart.
const REMEMBERED: usize = 256;

impl RxContext {
    /// A peer has a handle now. What waits without a source from those that are connected under this
    /// name, where endpoints share the context, gets it; and so does what waits from those that are
    /// gone, if the program inserted the handle, which stands for the name then.
    pub fn inserted(&mut self, host: &mut dyn Host, source: FiAddr, peer: &Address) {
        let is_auto_inserted = host.incarnation_of(self.ep, source).is_some();
        let keys: Vec<_> = self
            .known()
            .filter(|(key, name)| *name == peer && !(is_auto_inserted && self.is_gone(*key)))
            .map(|(key, _)| key)
            .collect();
        if !keys.is_empty() {
            self.resolve_all(host, &keys, source);
        }
        self.tell_of_chores(host);
    }

    /// Peers whose names are known here.
    pub(super) fn known(&self) -> impl Iterator<Item = (PeerKey, &Address)> {
        let present = self.present.iter().map(|(key, name, _)| (*key, name));
        self.gone
            .iter()
            .map(|(key, name)| (*key, name))
            .chain(present)
    }

    fn is_gone(&self, peer: PeerKey) -> bool {
        self.gone.iter().any(|(key, _)| *key == peer)
    }

    /// Waiting messages of this peer now have a number.
    pub fn resolve(&mut self, host: &mut dyn Host, peer: PeerKey, source: FiAddr) {
        self.resolve_all(host, &[peer], source);
    }

    /// Waiting messages of these, who are one, now have a number: they are offered in the order
    /// they arrived.
    fn resolve_all(&mut self, host: &mut dyn Host, peers: &[PeerKey], source: FiAddr) {
        for (_, landing) in &mut self.landings {
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
        let renamed = self.matcher.rename(peers, source);
        self.offer(host, renamed);
        self.noticed(host);
    }

    /// A number is no longer valid: waiting messages that carry it become those of a stranger, and
    /// receives directed at it fail.
    pub fn forget(&mut self, host: &mut dyn Host, source: FiAddr) {
        self.matcher.forget(source);
        for (_, landing) in &mut self.landings {
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
        self.tell_of_chores(host);
    }

    /// Receives directed at this peer will get nothing: it is gone.
    pub fn fail_directed(&mut self, host: &mut dyn Host, source: FiAddr, error: &Error) {
        self.fail_probes(host, |spec| {
            (spec.from == Some(source)).then(|| error.clone())
        });
        let mut retired = false;
        for op in self.matcher.take_directed(source) {
            self.posted[op.index as usize] = None;
            retired |= self.retire(op);
            host.complete(op, Outcome::failed(error.clone()));
        }
        if retired {
            self.rematch(host);
        }
    }

    /// A peer has gone, and everything it sent has been taken in. What waits of it is still told
    /// apart.
    pub fn depart(&mut self, peer: PeerKey, name: Address) {
        self.present.retain(|(present, ..)| *present != peer);
        if self.gone.len() == REMEMBERED {
            self.gone.pop_front();
        }
        self.gone.push_back((peer, name));
    }

    /// Whether a message of this source waits.
    #[must_use]
    pub fn holds(&self, source: FiAddr) -> bool {
        // One that is being copied is not looked at yet, and may outlive its connection.
        let arriving = |landing: &Landing| landing.envelope.source == Some(source);
        self.matcher.holds(source)
            || self.holds_claim_of(source)
            || self.landings.iter().any(|(_, landing)| arriving(landing))
    }
}
