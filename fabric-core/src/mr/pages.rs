//! The pages of a region that its owner has refreshed (`FI_MR_MMU_NOTIFY`).

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a page. Pages count from the start of the region.
const PAGE_LEN: usize = 4096;

/// The pages of a region whose owner tells which pages are behind it. An access to another page
/// fails.
#[derive(Debug)]
pub struct RefreshedPages {
    /// For each page, how often the region had moved when the page was refreshed last.
    moves: Mutex<Vec<Option<u64>>>,
}

impl RefreshedPages {
    /// Returns the pages of a region of `len` bytes, of which none was refreshed.
    pub(super) fn new(len: usize) -> Self {
        Self {
            moves: Mutex::new(vec![None; len.div_ceil(PAGE_LEN)]),
        }
    }

    /// Notes that the pages of these bytes are behind the region, which has moved this often
    /// (`fi_mr_refresh`).
    pub(super) fn refresh(&self, bytes: Range<usize>, moves: u64) {
        self.lock()[pages_of(bytes)].fill(Some(moves));
    }

    /// Returns whether the pages of these bytes were refreshed since the region has moved this
    /// often.
    pub(super) fn are_current(&self, bytes: Range<usize>, moves: u64) -> bool {
        let refreshed = self.lock();
        let mut pages = refreshed[pages_of(bytes)].iter();
        pages.all(|refreshed| *refreshed == Some(moves))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the pages that these bytes touch.
fn pages_of(bytes: Range<usize>) -> Range<usize> {
    if bytes.is_empty() {
        return 0..0;
    }
    bytes.start / PAGE_LEN..bytes.end.div_ceil(PAGE_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_current_until_the_region_moves() {
        let pages = RefreshedPages::new(3 * PAGE_LEN + 1);
        assert!(pages.are_current(5..5, 1) && !pages.are_current(0..1, 1));
        pages.refresh(PAGE_LEN - 1..PAGE_LEN + 1, 1);
        assert!(pages.are_current(0..2 * PAGE_LEN, 1));
        assert!(!pages.are_current(0..2 * PAGE_LEN + 1, 1));
        assert!(!pages.are_current(0..1, 2));
        pages.refresh(0..3 * PAGE_LEN + 1, 2);
        assert!(pages.are_current(0..3 * PAGE_LEN + 1, 2) && !pages.are_current(0..1, 1));
    }
}
