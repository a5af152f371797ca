//! Peers whose messages the budget has declined. Each is reported once while it is connected.

use std::collections::HashSet;

use crate::matching::PeerKey;

/// A peer whose message the budget has declined for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBackPeer {
    /// The key of the peer.
    pub peer: PeerKey,
    /// The length of the declined message, in bytes.
    pub len: usize,
    /// What buffered messages of the peer use of the budget, in bytes.
    pub buffered: usize,
}

/// The peers that a budget has held back.
#[derive(Debug, Default)]
pub(super) struct HeldBackPeers {
    /// All of them that are connected.
    all: HashSet<PeerKey>,
    /// Those that no event has reported yet.
    unreported: Vec<HeldBackPeer>,
}

impl HeldBackPeers {
    /// Adds a peer, unless it was added before.
    #[cold]
    pub(super) fn add(&mut self, held_back: HeldBackPeer) {
        if self.all.insert(held_back.peer) {
            self.unreported.push(held_back);
        }
    }

    /// Removes a peer that has disconnected.
    pub(super) fn remove(&mut self, peer: PeerKey) {
        if self.all.remove(&peer) {
            self.unreported.retain(|other| other.peer != peer);
        }
    }

    #[inline]
    pub(super) fn has_unreported(&self) -> bool {
        !self.unreported.is_empty()
    }

    /// Takes the peers for which `report` returns true: an event has reported them.
    pub(super) fn take_reported(&mut self, mut report: impl FnMut(HeldBackPeer) -> bool) {
        self.unreported.retain(|held_back| !report(*held_back));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn held_back(peer: u32) -> HeldBackPeer {
        HeldBackPeer {
            peer: PeerKey(peer),
            len: 8,
            buffered: 0,
        }
    }

    fn take(peers: &mut HeldBackPeers) -> Vec<u32> {
        let mut taken = Vec::new();
        peers.take_reported(|held_back| {
            taken.push(held_back.peer.0);
            true
        });
        taken
    }

    #[test]
    fn connected_peer_is_reported_once() {
        let mut peers = HeldBackPeers::default();
        assert!(!peers.has_unreported());
        [1, 2, 1]
            .into_iter()
            .for_each(|peer| peers.add(held_back(peer)));
        peers.take_reported(|held_back| held_back.peer == PeerKey(2));
        assert_eq!(take(&mut peers), [1]);
        [1, 2, 3]
            .into_iter()
            .for_each(|peer| peers.add(held_back(peer)));
        // A peer that has left is not reported, and another peer gets its key.
        peers.remove(PeerKey(3));
        assert!(!peers.has_unreported());
        peers.remove(PeerKey(1));
        peers.add(held_back(1));
        assert_eq!(take(&mut peers), [1]);
    }
}
