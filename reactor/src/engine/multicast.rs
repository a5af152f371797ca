//! Multicast groups of an endpoint.

use fabric_core::transport::EpId;
use fabric_core::{Address, Error, Result};

use super::domain::DomainHandle;

impl DomainHandle {
    /// Joins an endpoint to a multicast group (`fi_join`); returns the id to leave the group with.
    ///
    /// # Errors
    /// [`Error::Invalid`](fabric_core::Error::Invalid) when the address is not a multicast group;
    /// [`Error::NotSupported`](fabric_core::Error::NotSupported);
    /// [`Error::Os`](fabric_core::Error::Os).
    pub fn join_group(&self, ep: EpId, group: &Address) -> Result<u32> {
        // `with_engine_or_refuse` ensures that the domain is driven: datagrams may wait on the
        // group's socket already.
        self.with_engine_or_refuse(|locked| {
            let joined = locked.with_transport(ep, |transport, _| {
                let groups = transport.multicast();
                groups
                    .ok_or(Error::NotSupported("multicast groups"))?
                    .join_group(group)
            });
            joined.flatten()
        })
    }

    /// Leaves a multicast group.
    pub fn leave_group(&self, ep: EpId, group: u32) {
        self.with_engine(|locked| {
            // A closed endpoint has left its groups.
            let _ = locked.with_transport(ep, |transport, _| {
                if let Some(groups) = transport.multicast() {
                    groups.leave_group(group);
                }
            });
        });
    }
}
