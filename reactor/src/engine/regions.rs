//! Memory regions: keys, and counters of remote accesses.

use std::sync::Arc;

use fabric_core::Result;
use fabric_core::flags::Access;
use fabric_core::mr::RegionMemory;
use fabric_core::transport::WaitSet;

use super::domain::DomainHandle;
use super::state::bindings::CounterBindings;

impl DomainHandle {
    /// Registers memory under the requested key or a generated one (`fi_mr_reg`). Peers address the
    /// bytes by offsets that begin at `base`.
    ///
    /// # Errors
    /// As [`RegionTable::insert`](fabric_core::mr::RegionTable::insert).
    pub fn open_region(
        &self,
        memory: Arc<dyn RegionMemory>,
        base: u64,
        access: Access,
        key: Option<u64>,
    ) -> Result<u64> {
        let _locked = self.lock_or_refuse()?;
        let mut regions = self.regions().lock();
        regions.insert(memory, base, access, key)
    }

    /// Binds a region to the endpoint with this id in the object tree (`fi_mr_bind`).
    ///
    /// # Errors
    /// As [`RegionTable::bind_endpoint`](fabric_core::mr::RegionTable::bind_endpoint).
    pub fn bind_region_endpoint(&self, key: u64, endpoint: u64) -> Result<()> {
        let _locked = self.lock_or_refuse()?;
        self.regions().lock().bind_endpoint(key, endpoint)
    }

    /// Enables a region (`fi_mr_enable`).
    ///
    /// # Errors
    /// As [`RegionTable::enable`](fabric_core::mr::RegionTable::enable).
    pub fn enable_region(&self, key: u64) -> Result<()> {
        let _locked = self.lock_or_refuse()?;
        self.regions().lock().enable(key)
    }

    /// Notes that pages are behind `len` bytes of a region, from byte `at` on (`fi_mr_refresh`).
    ///
    /// # Errors
    /// As [`RegionTable::refresh`](fabric_core::mr::RegionTable::refresh).
    pub fn refresh_region(&self, key: u64, at: usize, len: usize) -> Result<()> {
        let _locked = self.lock_or_refuse()?;
        self.regions().lock().refresh(key, at, len)
    }

    /// Binds counters of remote accesses to a region (`fi_mr_bind`): accesses are counted from now
    /// on, if they come through an endpoint of this engine.
    ///
    /// # Errors
    /// [`Error::Invalid`](fabric_core::Error::Invalid) when a counter for the same access is bound
    /// already, or the region is enabled; [`Error::Key`](fabric_core::Error::Key).
    pub fn bind_region_counters(&self, key: u64, counters: CounterBindings) -> Result<()> {
        let locked = &mut *self.lock_or_refuse()?;
        locked.domain.regions.bind_counters(key, counters)
    }

    /// Closes a region (`fi_close`): its key is no longer valid for peers.
    pub fn close_region(&self, key: u64) {
        let engine = self.engine();
        let removed = {
            // Under the lock: another region may get the key, and counters, at once.
            let domain = &mut engine.lock().domain;
            domain.regions.unbind_counters(key);
            // A response to a peer, or an access, may wait for the region.
            domain.access_changes.on_region_changed();
            self.regions().lock().remove(key)
        };
        if removed.is_none() {
            return;
        }
        engine.wait_set.wake();
        self.engines().region_changed(engine);
    }

    /// Maps the raw key of a peer's region with this base address (`fi_mr_map_raw`), for all
    /// engines of the domain.
    ///
    /// # Errors
    /// As [`RegionTable::map_raw`](fabric_core::mr::RegionTable::map_raw).
    pub fn map_raw(&self, raw_key: &[u8], base: u64) -> Result<u64> {
        let _locked = self.lock_or_refuse()?;
        self.regions().lock().map_raw(raw_key, base)
    }

    /// Removes a mapping of a raw key (`fi_mr_unmap_key`).
    ///
    /// # Errors
    /// As [`RegionTable::unmap_key`](fabric_core::mr::RegionTable::unmap_key).
    pub fn unmap_key(&self, key: u64) -> Result<()> {
        let _locked = self.lock_or_refuse()?;
        self.regions().lock().unmap_key(key)
    }

    /// Checks that the key of an operation is mapped.
    ///
    /// # Errors
    /// As [`RegionTable::check_mapped`](fabric_core::mr::RegionTable::check_mapped).
    pub fn check_mapped_key(&self, key: u64) -> Result<()> {
        self.regions().lock().check_mapped(key)
    }

    /// Resumes remote operations that waited because the region was locked by its owner.
    pub fn region_unlocked(&self) {
        let engine = self.engine();
        engine.lock().domain.access_changes.on_region_changed();
        engine.progress();
        self.engines().region_changed(engine);
    }
}
