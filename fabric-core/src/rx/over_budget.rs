//! Peers whose messages the budget has declined. Each is reported while it is connected, and again
//! when its messages have all been received and then fill its share again.

use std::collections::HashMap;

use crate::matching::PeerKey;

/// A peer whose message the budget has declined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerOverBudget {
    /// The key of the peer.
    pub peer: PeerKey,
    /// The length of the declined message, in bytes.
    pub len: usize,
    /// What buffered messages of the peer use of the budget, in bytes.
    pub buffered: usize,
}

/// The peers whose messages a budget has declined.
#[derive(Debug, Default)]
pub(super) struct PeersOverBudget {
    /// All of them that are connected, each with the number of its account in the budget
    /// ([`UnexpectedBudget::account_number`]) when it was added last.
    ///
    /// [`UnexpectedBudget::account_number`]: super::budget::UnexpectedBudget::account_number
    all: HashMap<PeerKey, u64>,
    /// Those that no event has reported yet.
    unreported: Vec<PeerOverBudget>,
}

impl PeersOverBudget {
    /// Adds a peer, unless it was added before with this account. A peer that has no account was
    /// added with any.
    #[cold]
    pub(super) fn add(&mut self, over_budget: PeerOverBudget, account: u64) {
        let previous = self.all.get(&over_budget.peer).copied();
        if previous.is_some_and(|previous| account == 0 || account == previous) {
            return;
        }
        self.all.insert(over_budget.peer, account);
        self.unreported
            .retain(|other| other.peer != over_budget.peer);
        self.unreported.push(over_budget);
    }

    /// Removes a peer that has disconnected.
    pub(super) fn remove(&mut self, peer: PeerKey) {
        if self.all.remove(&peer).is_some() {
            self.unreported.retain(|other| other.peer != peer);
        }
    }

    #[inline]
    pub(super) fn has_unreported(&self) -> bool {
        !self.unreported.is_empty()
    }

    /// Takes the peers for which `report` returns true: an event has reported them.
    pub(super) fn take_reported(&mut self, mut report: impl FnMut(PeerOverBudget) -> bool) {
        self.unreported.retain(|over_budget| !report(*over_budget));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn over_budget(peer: u32) -> PeerOverBudget {
        PeerOverBudget {
            peer: PeerKey(peer),
            len: 8,
            buffered: 0,
        }
    }

    fn take(peers: &mut PeersOverBudget) -> Vec<u32> {
        let mut taken = Vec::new();
        peers.take_reported(|over_budget| {
            taken.push(over_budget.peer.0);
            true
        });
        taken
    }

    #[test]
    fn connected_peer_is_reported_once_for_each_account() {
        let mut peers = PeersOverBudget::default();
        assert!(!peers.has_unreported());
        [1, 2, 1]
            .into_iter()
            .for_each(|peer| peers.add(over_budget(peer), 5));
        peers.take_reported(|over_budget| over_budget.peer == PeerKey(2));
        assert_eq!(take(&mut peers), [1]);
        [1, 2, 3]
            .into_iter()
            .for_each(|peer| peers.add(over_budget(peer), 5));
        // A peer that has left is not reported, and another peer gets its key.
        peers.remove(PeerKey(3));
        assert!(!peers.has_unreported());
        peers.remove(PeerKey(1));
        peers.add(over_budget(1), 5);
        assert_eq!(take(&mut peers), [1]);
        // It uses nothing any more, and then has another account.
        peers.add(over_budget(1), 0);
        assert_eq!(take(&mut peers), []);
        peers.add(over_budget(1), 6);
        assert_eq!(take(&mut peers), [1]);
    }
}
