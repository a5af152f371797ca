//! Mappings of raw keys (`FI_MR_RAW`).

#[cfg(doc)]
use fabric_core::Error;
use fabric_core::Result;

use crate::domain::Domain;
use crate::remote_region::RemoteRegion;
use crate::thread_model::ThreadModel;

/// # Raw keys
impl<M: ThreadModel> Domain<M> {
    /// Maps the raw key of a peer's region to a key for operations of this domain and its resource
    /// domains (`fi_mr_map_raw`), and returns the region's description with that key.
    ///
    /// Required in a domain that requires [`MrMode::RAW`](crate::info::MrMode::RAW): writes, reads
    /// and atomic operations with another key fail with [`Error::Key`] when they are posted. In
    /// other domains the raw key is the key, and needs no mapping, so a program is the same with
    /// and without the bit.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::info::MrMode;
    /// use fabric_async::{Access, Fabric, Hints, RemoteRegion, discover};
    /// let hints = Hints::new().provider("sim").domain_name("sim+RAW").mr_mode(MrMode::RAW);
    /// let info = discover(&hints)?.swap_remove(0);
    /// let domain = Fabric::open(&info)?.domain(&info)?;
    /// let av = domain.address_vector()?;
    /// let ep = domain.endpoint(&info)?.bind_av(&av)?.enable()?;
    /// let region = domain.alloc(64, Access::REMOTE_WRITE)?;
    /// // The owner sends both to its peers.
    /// let (described, raw_key) = (region.remote().to_bytes(), region.raw_key());
    /// assert_eq!(raw_key.len(), info.domain.mr_key_size);
    ///
    /// let remote = domain.map_raw(RemoteRegion::from_bytes(&described)?, &raw_key)?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// ep.write(me, remote.at(8), "hello").await?;
    /// domain.unmap_key(remote.key)?;
    /// assert!(ep.write(me, remote.at(8), "hello").await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] when these bytes are not the raw key of a region with the description's
    /// base address, or in a domain that requires raw keys are the 8 bytes of a key;
    /// [`Error::TooMany`] above 65,536 mappings; [`Error::Closed`].
    #[doc(alias = "fi_mr_map_raw")]
    #[doc(alias = "FI_MR_RAW")]
    pub fn map_raw(&self, region: RemoteRegion, raw_key: &[u8]) -> Result<RemoteRegion> {
        self.inner.node.check_open()?;
        let key = self.inner.engine.map_raw(raw_key, region.base)?;
        Ok(RemoteRegion { key, ..region })
    }

    /// Ends a mapping of a raw key (`fi_mr_unmap_key`). A key that was mapped several times is
    /// mapped until as many calls.
    ///
    /// The call affects operations that are posted later, which fail: those that were posted before
    /// continue. Closing the domain ends its mappings. In a domain that does not require
    /// [`MrMode::RAW`](crate::info::MrMode::RAW) the call has no effect.
    ///
    /// # Errors
    /// [`Error::Key`] when the key is not mapped; [`Error::Closed`].
    #[doc(alias = "fi_mr_unmap_key")]
    pub fn unmap_key(&self, key: u64) -> Result<()> {
        self.inner.node.check_open()?;
        self.inner.engine.unmap_key(key)
    }
}
