//! The peers of shared receive contexts, by the endpoints at which they connect.
//!
//! Each peer gets a key that is unique in the domain. Messages, completions and transfers in the
//! hands of the program have the key of their sender, also after the sender has disconnected, so
//! the endpoint of a key is known as long as the endpoint is open. Keys are given to endpoints in
//! blocks: what is kept grows by one entry for [`BLOCK_LEN`] connections, and is freed when the
//! endpoint closes.

use std::collections::{BTreeMap, HashMap};

use fabric_core::matching::PeerKey;
use fabric_core::transport::EpId;

/// The number of keys of a block.
const BLOCK_LEN: u32 = 256;
const MAX_BLOCK: u32 = u32::MAX / BLOCK_LEN;

/// The keys of the peers of shared receive contexts.
#[derive(Debug, Default)]
pub(super) struct SharedPeers {
    /// The endpoint of each block that has been given to one. Block 0 is not used: its first key is
    /// that of no peer.
    blocks: BTreeMap<u32, EpId>,
    /// The key that each endpoint has given to a peer last.
    last_keys: HashMap<EpId, u32>,
    /// The block that was given last.
    last_block: u32,
}

impl SharedPeers {
    /// Adds a peer that has connected to this endpoint. Returns the key of the peer.
    pub(super) fn add(&mut self, ep: EpId) -> PeerKey {
        let last = self.last_keys.get(&ep).copied();
        let key = match last.filter(|key| key % BLOCK_LEN != BLOCK_LEN - 1) {
            Some(last) => last + 1,
            None => self.take_block(ep) * BLOCK_LEN,
        };
        self.last_keys.insert(ep, key);
        PeerKey(key)
    }

    /// Gives an unused block to an endpoint: blocks of closed endpoints are reused last.
    fn take_block(&mut self, ep: EpId) -> u32 {
        let mut candidates = (0..MAX_BLOCK).map(|more| (self.last_block + more) % MAX_BLOCK + 1);
        let unused = candidates.find(|block| !self.blocks.contains_key(block));
        // If none is unused, open endpoints have had 2^32 connections: the oldest block is reused.
        self.last_block = unused.unwrap_or(self.last_block % MAX_BLOCK + 1);
        self.blocks.insert(self.last_block, ep);
        self.last_block
    }

    /// Returns the endpoint that a peer is or was connected to; `None` if it is closed.
    pub(super) fn endpoint_of(&self, peer: PeerKey) -> Option<EpId> {
        self.blocks.get(&(peer.0 / BLOCK_LEN)).copied()
    }

    /// Removes the peers of an endpoint that closes.
    pub(super) fn remove(&mut self, ep: EpId) {
        if self.last_keys.remove(&ep).is_some() {
            self.blocks.retain(|_, other| *other != ep);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn memory_for_peers_is_bounded_and_freed_with_their_endpoint() {
        let mut peers = SharedPeers::default();
        assert_eq!(peers.endpoint_of(PeerKey::default()), None);
        let mut keys = HashSet::new();
        for number in 0..100_000 {
            let ep = EpId(number % 3);
            let key = peers.add(ep);
            assert!(keys.insert(key), "{key:?} is unique");
            assert_eq!(peers.endpoint_of(key), Some(ep));
        }
        assert_eq!(peers.blocks.len(), 3 * (100_000usize / 3).div_ceil(256));
        let of = |ep: u32, peers: &SharedPeers| {
            let of_ep = keys
                .iter()
                .filter(|key| peers.endpoint_of(**key) == Some(EpId(ep)));
            of_ep.count()
        };
        assert_eq!([0, 1, 2].map(|ep| of(ep, &peers)), [33_334, 33_333, 33_333]);
        peers.remove(EpId(1));
        assert_eq!([0, 1, 2].map(|ep| of(ep, &peers)), [33_334, 0, 33_333]);
        peers.remove(EpId(0));
        peers.remove(EpId(2));
        assert!(peers.is_empty() && peers.last_keys.is_empty());
    }

    #[test]
    fn keys_of_open_endpoints_are_not_given_again() {
        let mut peers = SharedPeers::default();
        let first = peers.add(EpId(1));
        assert_eq!(first, PeerKey(BLOCK_LEN));
        peers.last_block = MAX_BLOCK;
        let second = peers.add(EpId(2));
        assert_eq!(second, PeerKey(2 * BLOCK_LEN), "block 1 has an endpoint");
        peers.last_block = MAX_BLOCK - 1;
        assert_eq!(peers.add(EpId(3)), PeerKey(MAX_BLOCK * BLOCK_LEN));
        peers.remove(EpId(1));
        assert_eq!(peers.add(EpId(4)), first);
        // The last key of the last block is the largest number.
        for _ in 1..BLOCK_LEN {
            peers.add(EpId(3));
        }
        assert_eq!(peers.endpoint_of(PeerKey(u32::MAX)), Some(EpId(3)));
        assert_eq!(peers.add(EpId(3)), PeerKey(3 * BLOCK_LEN));
    }
}
