//! The keys by which the receive queue knows the peers of an endpoint.

use std::collections::HashMap;

use fabric_core::matching::PeerKey;

/// The keys of the peers of an endpoint: its established connections, or the senders of its
/// datagrams. Each key has the index of its peer in the endpoint's table.
#[derive(Debug, Default)]
pub(crate) struct PeerKeys {
    last: u32,
    by_key: HashMap<PeerKey, usize>,
}

impl PeerKeys {
    /// Returns a key that no peer has. After 2^32 peers, keys are used again.
    pub(crate) fn generate(&mut self) -> PeerKey {
        loop {
            self.last = self.last.wrapping_add(1);
            let key = PeerKey(self.last);
            if key != PeerKey::default() && !self.by_key.contains_key(&key) {
                return key;
            }
        }
    }

    /// Adds the key of a peer: a generated one, or the one that a shared receive queue has
    /// assigned.
    pub(crate) fn insert(&mut self, key: PeerKey, index: usize) {
        self.by_key.insert(key, index);
    }

    /// Removes the key of a peer that has left.
    pub(crate) fn remove(&mut self, key: PeerKey) {
        self.by_key.remove(&key);
    }

    /// Returns the index of the peer with this key.
    pub(crate) fn index_of(&self, key: PeerKey) -> Option<usize> {
        self.by_key.get(&key).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_present_peers_are_not_used_again() {
        let mut keys = PeerKeys::default();
        for index in 0..3 {
            let key = keys.generate();
            keys.insert(key, index);
        }
        keys.remove(PeerKey(2));
        // So many peers came and left.
        keys.last = u32::MAX - 1;
        let generated: Vec<_> = (0..3).map(|_| keys.generate().0).collect();
        assert_eq!(generated, [u32::MAX, 2, 4]);
        assert_eq!(keys.index_of(PeerKey(3)), Some(2));
        assert_eq!(keys.index_of(PeerKey(2)), None);
    }
}
