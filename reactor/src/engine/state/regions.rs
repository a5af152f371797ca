//! The memory regions of a domain that peers can access.

use std::collections::HashMap;
use std::sync::Arc;

use fabric_core::flags::Access;
use fabric_core::mr::{Region, RegionMemory, RegionTable};
use fabric_core::transport::RemoteAccess;
use fabric_core::{Error, Result};

use super::bindings::{CounterBindings, CounterId};

/// The memory regions of a domain, with the counters of remote accesses to single regions.
#[derive(Debug)]
pub(crate) struct Regions {
    table: RegionTable,
    /// By region key.
    counters: HashMap<u64, CounterBindings>,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self {
            table: RegionTable::new(),
            counters: HashMap::new(),
        }
    }

    /// Registers memory under the requested key or a generated one. Returns the key.
    pub(crate) fn insert(
        &mut self,
        memory: Arc<dyn RegionMemory>,
        access: Access,
        key: Option<u64>,
        by_address: bool,
    ) -> Result<u64> {
        self.table.insert(memory, access, key, by_address)
    }

    pub(crate) fn get(&self, key: u64) -> Option<&Region> {
        self.table.get(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
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
        self.table.enable_rma_events(key).ok_or(Error::Key {
            key,
            why: "is unknown",
        })?;
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

    /// Removes a region. Returns false if the key is unknown.
    pub(crate) fn remove(&mut self, key: u64) -> bool {
        self.counters.remove(&key);
        self.table.remove(key).is_some()
    }
}
