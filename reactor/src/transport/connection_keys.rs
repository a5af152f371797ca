//! The keys by which the receive queue knows the established connections of an endpoint.

use std::collections::HashMap;

use fabric_core::matching::PeerKey;

/// The keys of the established connections, each with the index of its connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionKeys {
    last: u32,
    by_key: HashMap<PeerKey, usize>,
}

impl ConnectionKeys {
    /// Returns a key that no established connection has. After 2^32 connections, keys are used
    /// again.
    pub(crate) fn generate(&mut self) -> PeerKey {
        loop {
            self.last = self.last.wrapping_add(1);
            let key = PeerKey(self.last);
            if key != PeerKey::default() && !self.by_key.contains_key(&key) {
                return key;
            }
        }
    }

    /// Adds the key of a connection: a generated one, or the one that a shared receive queue has
    /// assigned.
    pub(crate) fn insert(&mut self, key: PeerKey, index: usize) {
        self.by_key.insert(key, index);
    }

    /// Removes the key of a connection that has ended.
    pub(crate) fn remove(&mut self, key: PeerKey) {
        self.by_key.remove(&key);
    }

    /// Returns the index of the connection with this key.
    pub(crate) fn connection(&self, key: PeerKey) -> Option<usize> {
        self.by_key.get(&key).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_established_connections_are_not_used_again() {
        let mut keys = ConnectionKeys::default();
        for index in 0..3 {
            let key = keys.generate();
            keys.insert(key, index);
        }
        keys.remove(PeerKey(2));
        // So many connections were established and have ended.
        keys.last = u32::MAX - 1;
        let generated: Vec<_> = (0..3).map(|_| keys.generate().0).collect();
        assert_eq!(generated, [u32::MAX, 2, 4]);
        assert_eq!(keys.connection(PeerKey(3)), Some(2));
        assert_eq!(keys.connection(PeerKey(2)), None);
    }
}
