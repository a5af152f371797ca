//! The memory regions of a domain: their keys, and what a program does before peers access them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;

use super::raw_key::{MappedKeys, decode_raw_key};
use super::{KEY_NOTAVAIL, RefreshedPages, Region, RegionMemory, check_range};
use crate::error::{Error, Result};
use crate::flags::{Access, MrMode};
use crate::tree::Class;

/// The regions of a domain, by key, and the keys of peers that the domain has mapped.
#[derive(Debug, Default)]
pub struct RegionTable {
    /// The bits that the domain requires.
    mr_mode: MrMode,
    regions: HashMap<u64, TableEntry>,
    mapped_keys: MappedKeys,
    key_generator: KeyGenerator,
}

#[derive(Debug)]
struct TableEntry {
    /// The region as peers see it.
    region: Region,
    /// The rights that peers have once the region is enabled.
    granted: Access,
    is_enabled: bool,
}

impl TableEntry {
    /// Checks that objects may still be bound to the region.
    fn check_not_enabled(&self) -> Result<()> {
        if !self.is_enabled {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "bind of a memory region",
            why: "the region is enabled (fi_mr_enable); bind before".into(),
        })
    }
}

/// Generates keys: keyed hashes of a counter. A peer that knows some keys cannot compute another
/// one, and a key of another run of the program is unknown.
#[derive(Debug, Default)]
struct KeyGenerator {
    /// The random keys of SipHash.
    hasher: RandomState,
    generated: u64,
}

impl KeyGenerator {
    fn next_key(&mut self) -> u64 {
        self.generated += 1;
        self.hasher.hash_one(self.generated)
    }
}

impl RegionTable {
    /// Creates the empty table of a domain that requires these bits.
    #[must_use]
    pub fn new(mr_mode: MrMode) -> Self {
        Self {
            mr_mode,
            ..Self::default()
        }
    }

    /// Inserts a region under the requested key, or under a generated one, and returns the key.
    /// Peers address the bytes by offsets that begin at `base`. They have no access before the
    /// region is [enabled](Self::enable) if the domain requires `FI_MR_ENDPOINT`, and to no page
    /// before it is [refreshed](Self::refresh) if the domain requires `FI_MR_MMU_NOTIFY`.
    ///
    /// # Errors
    /// [`Error::Key`] when the requested key is in use, or the domain selects keys
    /// (`FI_MR_PROV_KEY`); [`Error::BadFlags`] when no right is granted.
    pub fn insert(
        &mut self,
        memory: Arc<dyn RegionMemory>,
        base: u64,
        access: Access,
        key: Option<u64>,
    ) -> Result<u64> {
        if access.is_empty() {
            return Err(Error::BadFlags {
                what: "memory region",
                flags: "no right is granted; grant REMOTE_READ, REMOTE_WRITE or both".into(),
            });
        }
        let slot = match key {
            Some(key) => {
                let refused = |why| Err(Error::Key { key, why });
                match self.regions.entry(key) {
                    _ if self.mr_mode.contains(MrMode::PROV_KEY) => {
                        return refused(
                            "was requested, but the provider selects the keys (FI_MR_PROV_KEY)",
                        );
                    }
                    _ if key == KEY_NOTAVAIL => {
                        return refused("stands for no key (FI_KEY_NOTAVAIL)");
                    }
                    Entry::Occupied(_) => return refused("is in use"),
                    Entry::Vacant(slot) => slot,
                }
            }
            None => loop {
                let key = self.key_generator.next_key();
                if let Entry::Vacant(slot) = self.regions.entry(key)
                    && key != KEY_NOTAVAIL
                {
                    break slot;
                }
            },
        };
        let notifies = self.mr_mode.contains(MrMode::MMU_NOTIFY);
        let pages = notifies.then(|| Arc::new(RefreshedPages::new(memory.len())));
        let needs_enable = self.mr_mode.contains(MrMode::ENDPOINT);
        let entry = TableEntry {
            region: Region {
                memory,
                access: if needs_enable {
                    Access::empty()
                } else {
                    access
                },
                base,
                rma_events: false,
                endpoint: None,
                pages,
            },
            granted: access,
            is_enabled: false,
        };
        let key = *slot.key();
        // Peers look up keys under the lock of the table, which the caller holds.
        slot.insert(entry).region.memory.prepare_for_peers();
        Ok(key)
    }

    /// Returns the number of regions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns the region of a key, if there is one.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<&Region> {
        self.regions.get(&key).map(|entry| &entry.region)
    }

    /// Binds a region to the endpoint with this id in the object tree (`fi_mr_bind`): peers access
    /// the region only through it.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the domain does not require `FI_MR_ENDPOINT`;
    /// [`Error::Invalid`] when an endpoint is bound already, or the region is enabled;
    /// [`Error::Key`].
    pub fn bind_endpoint(&mut self, key: u64, endpoint: u64) -> Result<()> {
        if !self.mr_mode.contains(MrMode::ENDPOINT) {
            return Err(Error::NotSupported(
                "memory regions of an endpoint (the domain does not require FI_MR_ENDPOINT)",
            ));
        }
        let entry = self.entry(key)?;
        entry.check_not_enabled()?;
        if entry.region.endpoint.is_some() {
            return Err(Error::Invalid {
                what: "bind of a memory region",
                why: "an endpoint is bound already".into(),
            });
        }
        entry.region.endpoint = NonZeroU64::new(endpoint);
        Ok(())
    }

    /// Notes that a counter of remote accesses is bound to a region (`fi_mr_bind`): the owner is
    /// notified of every operation of peers from now on. If the domain requires `FI_MR_RMA_EVENT`,
    /// peers have no access before the region is [enabled](Self::enable).
    ///
    /// # Errors
    /// [`Error::Invalid`] when the region is enabled; [`Error::Key`].
    pub fn bind_counter(&mut self, key: u64) -> Result<()> {
        let needs_enable = self.mr_mode.contains(MrMode::RMA_EVENT);
        let entry = self.entry(key)?;
        entry.check_not_enabled()?;
        entry.region.rma_events = true;
        if needs_enable {
            entry.region.access = Access::empty();
        }
        Ok(())
    }

    /// Enables a region (`fi_mr_enable`): peers have access, and nothing can be bound to the region
    /// any more.
    ///
    /// # Errors
    /// [`Error::Unbound`] when the domain requires `FI_MR_ENDPOINT` and the region is bound to no
    /// endpoint; [`Error::Key`].
    pub fn enable(&mut self, key: u64) -> Result<()> {
        let needs_endpoint = self.mr_mode.contains(MrMode::ENDPOINT);
        let entry = self.entry(key)?;
        if needs_endpoint && entry.region.endpoint.is_none() {
            return Err(Error::Unbound(Class::Endpoint));
        }
        entry.region.access = entry.granted;
        entry.is_enabled = true;
        Ok(())
    }

    /// Notes that pages are behind `len` bytes of a region, from byte `at` on (`fi_mr_refresh`).
    /// Has no effect unless the domain requires `FI_MR_MMU_NOTIFY`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when the range leaves the region; [`Error::Key`].
    pub fn refresh(&mut self, key: u64, at: usize, len: usize) -> Result<()> {
        let region = &self.entry(key)?.region;
        let at = check_range(region.memory.len(), at as u64, len, 1)?;
        if let Some(pages) = &region.pages {
            pages.refresh(at..at + len, region.memory.moves());
        }
        Ok(())
    }

    /// Maps the raw key of a peer's region with this base address to the key of operations
    /// (`fi_mr_map_raw`). In a domain that does not require `FI_MR_RAW`, every key is mapped.
    ///
    /// # Errors
    /// As [`decode_raw_key`]; [`Error::TooMany`] mappings.
    pub fn map_raw(&mut self, raw_key: &[u8], base: u64) -> Result<u64> {
        let requires_raw = self.mr_mode.contains(MrMode::RAW);
        let key = decode_raw_key(raw_key, base, requires_raw)?;
        if requires_raw {
            self.mapped_keys.map(key)?;
        }
        Ok(key)
    }

    /// Removes a mapping (`fi_mr_unmap_key`).
    ///
    /// # Errors
    /// [`Error::Key`] when the key is not mapped.
    pub fn unmap_key(&mut self, key: u64) -> Result<()> {
        if self.mr_mode.contains(MrMode::RAW) {
            self.mapped_keys.unmap(key)?;
        }
        Ok(())
    }

    /// Checks that the key of an operation is mapped, in a domain that requires `FI_MR_RAW`.
    ///
    /// # Errors
    /// [`Error::Key`].
    pub fn check_mapped(&self, key: u64) -> Result<()> {
        self.mapped_keys.check(key)
    }

    fn entry(&mut self, key: u64) -> Result<&mut TableEntry> {
        let why = "is unknown";
        self.regions.get_mut(&key).ok_or(Error::Key { key, why })
    }

    /// Removes, closes and returns a region; `None` when no region has the key.
    pub fn remove(&mut self, key: u64) -> Option<Region> {
        let TableEntry { region, .. } = self.regions.remove(&key)?;
        region.memory.close();
        Some(region)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::{LocalMemory, RegionBytes};
    use super::*;
    use crate::atomic::{AtomicOp, Datatype};

    #[test]
    fn keys_are_unique_and_reusable_after_removal() {
        let mut table = RegionTable::default();
        let memory = || Arc::new(LocalMemory::new(100).unwrap());
        let key = table
            .insert(memory(), 0, Access::REMOTE_READ, Some(7))
            .unwrap();
        assert_eq!(key, 7);
        let taken = table
            .insert(memory(), 0, Access::READ, Some(7))
            .unwrap_err();
        assert_eq!(
            taken,
            Error::Key {
                key: 7,
                why: "is in use"
            }
        );
        let no_key = table.insert(memory(), 0, Access::READ, Some(KEY_NOTAVAIL));
        assert!(matches!(no_key, Err(Error::Key { .. })), "{no_key:?}");
        assert!(table.insert(memory(), 0, Access::empty(), None).is_err());
        for _ in 0..10 {
            assert_ne!(table.insert(memory(), 0, Access::READ, None).unwrap(), 7);
        }
        assert_eq!(table.get(7).map(|region| region.memory.len()), Some(100));
        assert!(table.remove(7).is_some() && table.get(7).is_none() && table.remove(7).is_none());
        assert!(table.insert(memory(), 0, Access::READ, Some(7)).is_ok());
    }

    /// Memory that counts how often it was prepared for peers, and is not accessed.
    #[derive(Debug, Default)]
    struct CountingMemory {
        prepared: AtomicUsize,
    }

    impl RegionBytes for CountingMemory {
        fn len(&self) -> usize {
            100
        }

        fn read(&self, _: usize, _: &mut [u8]) {}

        fn write(&self, _: usize, _: &[u8]) {}

        fn execute_atomic(&self, _: usize, _: AtomicOp, _: Datatype, _: u128, _: u128) -> u128 {
            0
        }

        fn is_open(&self) -> bool {
            true
        }
    }

    impl RegionMemory for CountingMemory {
        fn close(&self) {}

        fn address(&self) -> u64 {
            0
        }

        fn prepare_for_peers(&self) {
            self.prepared.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A key that peers can look up stands for memory that is prepared for them, and the memory of
    /// a refused registration is not prepared.
    #[test]
    fn memory_is_prepared_by_the_insertion_that_publishes_its_key() {
        let memory = Arc::new(CountingMemory::default());
        let prepared = || memory.prepared.load(Ordering::Relaxed);
        let mut table = RegionTable::default();
        for (access, key) in [(Access::empty(), None), (Access::READ, Some(KEY_NOTAVAIL))] {
            assert!(table.insert(memory.clone(), 0, access, key).is_err());
        }
        assert_eq!(prepared(), 0);
        for count in 1..=2 {
            let inserted = table.insert(memory.clone(), 0, Access::READ, Some(count));
            assert_eq!((inserted, prepared()), (Ok(count), count as usize));
            assert!(
                table
                    .insert(memory.clone(), 0, Access::READ, Some(count))
                    .is_err()
            );
        }
        let mut table = RegionTable::new(MrMode::PROV_KEY);
        assert!(
            table
                .insert(memory.clone(), 0, Access::READ, Some(7))
                .is_err()
        );
        assert_eq!(prepared(), 2);
    }

    #[test]
    fn provider_selects_keys_if_the_domain_requires_it() {
        let memory: Arc<dyn RegionMemory> = Arc::new(LocalMemory::new(100).unwrap());
        let mut table = RegionTable::new(MrMode::PROV_KEY | MrMode::VIRT_ADDR);
        let refused = table.insert(memory.clone(), 0, Access::READ, Some(7));
        assert!(
            matches!(refused, Err(Error::Key { key: 7, .. })),
            "{refused:?}"
        );
        let base = memory.address();
        let key = table.insert(memory, base, Access::READ, None).unwrap();
        assert_eq!(table.get(key).map(|region| region.base), Some(base));
    }

    /// A region with a duty is closed to peers until it is enabled; then nothing is bound to it.
    #[test]
    fn regions_are_bound_before_they_are_enabled() {
        let open = |mr_mode| {
            let mut table = RegionTable::new(mr_mode);
            let memory = Arc::new(LocalMemory::new(100).unwrap());
            let key = table.insert(memory, 0, Access::REMOTE_READ, None).unwrap();
            (table, key)
        };
        let access = |table: &RegionTable, key| table.get(key).unwrap().access;
        for mr_mode in [
            MrMode::empty(),
            MrMode::ENDPOINT,
            MrMode::RMA_EVENT,
            MrMode::ENDPOINT | MrMode::RMA_EVENT,
        ] {
            let (mut table, key) = open(mr_mode);
            let needs_endpoint = mr_mode.contains(MrMode::ENDPOINT);
            assert_eq!(access(&table, key).is_empty(), needs_endpoint);
            assert_eq!(table.bind_endpoint(key, 5).is_ok(), needs_endpoint);
            assert!(table.bind_endpoint(key, 6).is_err());
            assert_eq!(table.bind_counter(key), Ok(()));
            assert_eq!(access(&table, key).is_empty(), !mr_mode.is_empty());
            assert_eq!(table.enable(key), Ok(()));
            let region = table.get(key).unwrap();
            assert_eq!(
                (region.access, region.endpoint),
                (
                    Access::REMOTE_READ,
                    NonZeroU64::new(u64::from(needs_endpoint) * 5)
                )
            );
            assert!(region.rma_events && table.bind_counter(key).is_err());
            assert_eq!(access(&table, key), Access::REMOTE_READ);
        }
        let (mut table, key) = open(MrMode::ENDPOINT);
        assert_eq!(table.enable(key), Err(Error::Unbound(Class::Endpoint)));
        table.bind_endpoint(key, 5).unwrap();
        table.enable(key).unwrap();
        assert!(table.bind_endpoint(key, 5).is_err() && table.enable(!key).is_err());
    }

    /// Generated keys are unique and are not reused after their regions were closed. The difference
    /// of two keys does not tell the next one, every bit of a key varies, and two tables generate
    /// different keys.
    #[test]
    fn generated_keys_are_unpredictable() {
        const COUNT: usize = if cfg!(miri) { 200 } else { 10_000 };
        let memory: Arc<dyn RegionMemory> = Arc::new(LocalMemory::new(100).unwrap());
        let generate = |table: &mut RegionTable| {
            let key = table.insert(memory.clone(), 0, Access::READ, None);
            key.unwrap()
        };
        let (mut table, mut other) = (RegionTable::default(), RegionTable::default());
        let keys: Vec<u64> = (0..COUNT)
            .map(|index| {
                let key = generate(&mut table);
                if index % 2 == 0 {
                    table.remove(key).unwrap();
                }
                key
            })
            .collect();
        assert_eq!(table.len(), COUNT / 2);
        let distinct: HashSet<u64> = keys.iter().copied().collect();
        assert_eq!(distinct.len(), COUNT);
        let differences: HashSet<u64> = keys
            .windows(2)
            .map(|pair| pair[1].wrapping_sub(pair[0]))
            .collect();
        assert_eq!(differences.len(), COUNT - 1);
        for bit in 0..u64::BITS {
            let ones = keys.iter().filter(|key| *key >> bit & 1 == 1).count();
            assert!(
                (COUNT / 4..3 * COUNT / 4).contains(&ones),
                "bit {bit}: {ones}"
            );
        }
        assert!((0..COUNT).all(|_| !distinct.contains(&generate(&mut other))));
    }
}
