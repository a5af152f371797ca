//! The memory regions of a domain that peers can access.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric_core::flags::MrMode;
use fabric_core::mr::{Region, RegionTable};
use fabric_core::transport::RemoteAccess;
use fabric_core::{Error, Result};

use super::bindings::{CounterBindings, CounterId};

/// The memory regions of a domain, which its engines share.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedRegions(Arc<Mutex<RegionTable>>);

impl SharedRegions {
    /// Creates the regions of a domain that requires these bits.
    pub(crate) fn new(mr_mode: MrMode) -> Self {
        Self(Arc::new(Mutex::new(RegionTable::new(mr_mode))))
    }

    /// Locks the table. Only locks of memory are taken under this one.
    pub(crate) fn lock(&self) -> MutexGuard<'_, RegionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory regions of a domain as an engine sees them, with the counters of remote accesses
/// through the engine's endpoints.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    shared: SharedRegions,
    /// By region key.
    counters: HashMap<u64, CounterBindings>,
}

impl Regions {
    pub(crate) fn new(shared: SharedRegions) -> Self {
        Self {
            shared,
            counters: HashMap::new(),
        }
    }

    pub(crate) fn get(&self, key: u64) -> Option<Region> {
        self.shared.lock().get(key).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.shared.lock().len()
    }

    /// Binds the counters of remote accesses in `counters` to a region. `None` keeps the present
    /// binding.
    pub(crate) fn bind_counters(&mut self, key: u64, counters: CounterBindings) -> Result<()> {
        let current = self.counters.get(&key).copied().unwrap_or_default();
        let conflict =
            |old: Option<CounterId>, new: Option<CounterId>| old.is_some() && new.is_some();
        if conflict(current.remote_read, counters.remote_read)
            || conflict(current.remote_write, counters.remote_write)
        {
            return Err(Error::Invalid {
                what: "memory region counter",
                why: "a counter for the same access is already bound".into(),
            });
        }
        self.shared.lock().bind_counter(key)?;
        let bound = CounterBindings {
            remote_read: current.remote_read.or(counters.remote_read),
            remote_write: current.remote_write.or(counters.remote_write),
            ..current
        };
        self.counters.insert(key, bound);
        Ok(())
    }

    /// Returns the counter of remote accesses to a region.
    pub(crate) fn counter(&self, key: u64, access: RemoteAccess) -> Option<CounterId> {
        self.counters.get(&key)?.for_remote_access(access)
    }

    /// Removes the counters of a region that was closed.
    pub(crate) fn unbind_counters(&mut self, key: u64) {
        self.counters.remove(&key);
    }
}
