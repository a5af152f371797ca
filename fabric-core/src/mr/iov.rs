//! Ranges of a peer's memory.

use super::required_access;
use crate::atomic::AtomicSpec;
use crate::completion::OpKind;
use crate::flags::Access;

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

impl RmaIov {
    /// Returns the alignment of the range: the size of an atomic value, 1 for a read or write.
    #[must_use]
    #[inline]
    pub fn align(&self) -> usize {
        self.atomic.map_or(1, |atomic| atomic.datatype.size())
    }

    /// Returns the access rights that an operation of this kind on the range needs.
    #[must_use]
    #[inline]
    pub fn required_access(&self, kind: OpKind) -> Access {
        required_access(kind, self.atomic.map(|atomic| atomic.op))
    }
}
