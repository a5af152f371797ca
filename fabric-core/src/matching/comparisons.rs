//! Counting of comparisons, by which tests show that a match does not read the whole queue.
//!
//! Outside of the unit tests of this crate nothing is counted.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

#[cfg(test)]
thread_local! {
    static COMPARISONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one comparison of an entry.
#[inline(always)]
pub(super) fn count_comparison() {
    #[cfg(test)]
    COMPARISONS.set(COMPARISONS.get() + 1);
}

/// Returns how many comparisons `run` makes in this thread.
#[cfg(test)]
pub(super) fn comparisons_of(run: impl FnOnce()) -> u64 {
    let before = COMPARISONS.get();
    run();
    COMPARISONS.get() - before
}

/// An item of an index, whose comparisons are counted.
#[derive(Clone, Copy, Debug, Eq)]
pub(super) struct IndexItem<T>(pub(super) T);

impl<T: Hash> Hash for IndexItem<T> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T: PartialEq> PartialEq for IndexItem<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        count_comparison();
        self.0 == other.0
    }
}

impl<T: Ord> Ord for IndexItem<T> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        count_comparison();
        self.0.cmp(&other.0)
    }
}

impl<T: Ord> PartialOrd for IndexItem<T> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
