//! Ranges of a peer's memory.

use crate::atomic::AtomicSpec;

/// Range of a peer's memory, and the atomic operation on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmaIov {
    /// Key of the region.
    pub key: u64,
    /// Offset from the start of the region, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
    /// The atomic operation on the range; `None` for a read or write.
    pub atomic: Option<AtomicSpec>,
}
