//! Multicast groups of an endpoint.

use fabric_core::transport::EpId;
use fabric_core::{Address, Result};

use crate::domain::DomainHandle;

impl DomainHandle {
    /// Has an endpoint join a group; returns what to leave it with.
    ///
    /// # Errors
    /// [`Error::Invalid`](fabric_core::Error::Invalid) when it is not the address of a group;
    /// [`Error::NotSupported`](fabric_core::Error::NotSupported);
    /// [`Error::Os`](fabric_core::Error::Os).
    pub fn join_group(&self, ep: EpId, group: &Address) -> Result<u32> {
        // The driver has a further socket to sleep on, and may find something there already.
        self.with_engine(|locked| locked.transport.join_group(ep, group))
    }

    /// Has it leave the group again.
    pub fn leave_group(&self, ep: EpId, group: u32) {
        self.with_engine(|locked| locked.transport.leave_group(ep, group));
    }
}
