//! The senders to shared receive contexts.

use fabric_core::matching::PeerKey;
use fabric_core::transport::EpId;

/// The endpoint at which each sender to a shared receive context has connected.
///
/// A few bytes are kept for each connection ever made: messages from it may still wait somewhere.
#[derive(Debug, Default)]
pub(crate) struct SharedSenders {
    /// At the sender's key less one.
    endpoints: Vec<EpId>,
}

impl SharedSenders {
    /// Adds a sender that has connected to this endpoint. Returns the key of the sender, which is
    /// unique in the domain.
    pub(crate) fn add(&mut self, ep: EpId) -> PeerKey {
        self.endpoints.push(ep);
        PeerKey(self.endpoints.len() as u32)
    }

    /// Returns the endpoint at which the sender has connected.
    pub(crate) fn endpoint_of(&self, sender: PeerKey) -> Option<EpId> {
        let index = (sender.0 as usize).checked_sub(1)?;
        self.endpoints.get(index).copied()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }
}
