//! How many mappings of shared memory this process has.
//!
//! Linux limits the mappings of a process (`vm.max_map_count`, 65,530 by default). A process that
//! reaches the limit cannot allocate memory or start threads, and aborts. Peers cause mappings: of
//! their segments, their regions and their loans. So all mappings of shared memory together take at
//! most a quarter of the limit, whatever the number of endpoints and peers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Part of `vm.max_map_count` that shared memory may take.
const SHARE: usize = 4;
/// `vm.max_map_count` if it cannot be read: the default of Linux.
const DEFAULT_MAX_MAP_COUNT: usize = 65_530;

/// Mappings that exist or are being made. A forked child inherits the mappings and the count.
static MAPPINGS: MappingCount = MappingCount::new();

/// A number of mappings of one kind.
#[derive(Debug, Default)]
pub(crate) struct MappingCount(AtomicUsize);

/// The permission for one mapping, which is counted until this value is dropped.
#[derive(Debug)]
pub(crate) struct MappingPermit(&'static MappingCount);

/// Returns how many mappings of shared memory this process may have.
pub(crate) fn max_mappings() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let count = text.ok().and_then(|text| text.trim().parse().ok());
        count.unwrap_or(DEFAULT_MAX_MAP_COUNT) / SHARE
    })
}

impl MappingCount {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Counts a mapping; `None`, without counting it, if there are `limit` mappings.
    pub(crate) fn acquire(&'static self, limit: usize) -> Option<MappingPermit> {
        let added = |count| (count < limit).then_some(count + 1);
        let order = Ordering::Relaxed;
        let previous = self.0.fetch_update(order, order, added);
        // A permit that is created and not returned would be counted as removed.
        previous.is_ok().then(|| MappingPermit(self))
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl MappingPermit {
    /// Counts a mapping of this process; `None` if there are as many as permitted.
    pub(crate) fn acquire() -> Option<Self> {
        MAPPINGS.acquire(max_mappings())
    }
}

impl Drop for MappingPermit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_counted_up_to_the_limit_while_they_exist() {
        static COUNT: MappingCount = MappingCount::new();
        let mut held: Vec<_> = (0..3).map_while(|_| COUNT.acquire(3)).collect();
        assert_eq!((held.len(), COUNT.get()), (3, 3));
        for _ in 0..2 {
            assert!(COUNT.acquire(3).is_none());
            assert_eq!(COUNT.get(), 3);
        }
        held.pop();
        assert_eq!(COUNT.get(), 2);
        assert!(COUNT.acquire(3).is_some());
        assert_eq!(COUNT.get(), 2);
    }
}
