//! The names of the senders of an endpoint that reports unknown ones (`FI_SOURCE_ERR`).

use std::collections::{HashMap, VecDeque};

use fabric_core::completion::{OpKind, Transfer};
use fabric_core::matching::PeerKey;
use fabric_core::transport::EpId;
use fabric_core::{Address, Error};

use super::endpoints::Endpoints;

/// Maximum number of disconnected peers whose names are kept, as in a receive queue.
const MAX_DISCONNECTED: usize = 256;

/// The names of the peers of a receive queue.
#[derive(Debug, Default)]
pub(crate) struct SenderNames {
    connected: HashMap<PeerKey, Address>,
    /// Disconnected peers, whose messages may still be received, the oldest first.
    disconnected: VecDeque<(PeerKey, Address)>,
}

impl SenderNames {
    /// Adds a peer that has connected.
    pub(crate) fn connect(&mut self, peer: PeerKey, name: &Address) {
        self.connected.insert(peer, name.clone());
    }

    /// Moves a peer to the disconnected ones. If they are too many, forgets the oldest.
    pub(crate) fn disconnect(&mut self, peer: PeerKey) {
        let Some(name) = self.connected.remove(&peer) else {
            return;
        };
        if self.disconnected.len() == MAX_DISCONNECTED {
            self.disconnected.pop_front();
        }
        self.disconnected.push_back((peer, name));
    }

    /// Returns the name of a peer, unless it was forgotten.
    fn find(&self, peer: PeerKey) -> Option<&Address> {
        self.connected.get(&peer).or_else(|| {
            let mut disconnected = self.disconnected.iter();
            let found = disconnected.find(|(key, _)| *key == peer);
            found.map(|(_, name)| name)
        })
    }
}

impl Endpoints {
    /// Returns the names of the peers of an endpoint, if it reports unknown senders.
    pub(crate) fn sender_names_of(&mut self, ep: EpId) -> Option<&mut SenderNames> {
        self.get_mut(ep)?.sender_names_mut()
    }

    /// Returns the error of a received message: that of an unknown sender, if the endpoint reports
    /// these (`FI_SOURCE_ERR`).
    #[inline]
    pub(crate) fn source_error(
        &self,
        ep: EpId,
        kind: OpKind,
        transfer: &Transfer,
    ) -> Option<Box<Error>> {
        let names = self.get(ep)?.sender_names()?;
        let is_unknown = kind == OpKind::Recv && transfer.source.is_none();
        is_unknown.then(|| {
            let address = names.find(transfer.peer()).cloned();
            Box::new(Error::SourceNotInserted { address })
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn oldest_disconnected_peer_is_forgotten() {
        let mut names = SenderNames::default();
        let name: Address = "shm://peer".parse().expect("the address is valid");
        let count = MAX_DISCONNECTED as u32 + 1;
        for peer in 1..=count {
            names.connect(PeerKey(peer), &name);
            names.disconnect(PeerKey(peer));
            names.disconnect(PeerKey(peer));
        }
        names.connect(PeerKey(count + 1), &name);
        assert_eq!(names.find(PeerKey(1)), None);
        for known in [2, count, count + 1] {
            assert_eq!(names.find(PeerKey(known)), Some(&name), "{known}");
        }
        assert_eq!(names.disconnected.len(), MAX_DISCONNECTED);
    }
}
