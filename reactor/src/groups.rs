//! Multicast groups of an endpoint.

use fabric_core::provider::EpId;
use fabric_core::{Address, Result};

use crate::domain::Domain;

impl Domain {
    /// Has an endpoint join a group; returns what to leave it with.
    ///
    /// # Errors
    /// [`Error::Invalid`](fabric_core::Error::Invalid) when it is not the address of a group;
    /// [`Error::NotSupported`](fabric_core::Error::NotSupported);
    /// [`Error::Os`](fabric_core::Error::Os).
    pub fn join(&self, ep: EpId, group: &Address) -> Result<u32> {
        // The driver has a further socket to sleep on, and may find something there already.
        self.with(|locked| locked.provider.join(ep, group))
    }

    /// Has it leave the group again.
    pub fn leave(&self, ep: EpId, group: u32) {
        self.with(|locked| locked.provider.leave(ep, group));
    }
}
