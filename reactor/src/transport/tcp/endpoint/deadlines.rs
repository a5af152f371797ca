//! Deadlines in order of time, so that the earliest one is found without visiting the others.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// At most one deadline for each key, a position in a slab.
///
/// A deadline whose key was removed from the slab may stay until it has passed or the position is
/// used again: the caller that pops a key checks what is at that position.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    ordered: BTreeSet<(Instant, usize)>,
    by_key: HashMap<usize, Instant>,
}

impl Deadlines {
    /// Sets the deadline of a key, and replaces an earlier one.
    pub(super) fn set(&mut self, key: usize, deadline: Instant) {
        if let Some(replaced) = self.by_key.insert(key, deadline) {
            self.ordered.remove(&(replaced, key));
        }
        self.ordered.insert((deadline, key));
    }

    /// Removes the deadline of a key.
    pub(super) fn remove(&mut self, key: usize) {
        if let Some(removed) = self.by_key.remove(&key) {
            self.ordered.remove(&(removed, key));
        }
    }

    /// Returns the earliest deadline.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.ordered.first().map(|(deadline, _)| *deadline)
    }

    /// Removes the earliest deadline that has passed, and returns its key.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<usize> {
        let (deadline, key) = *self.ordered.first()?;
        if deadline > now {
            return None;
        }
        self.ordered.pop_first();
        self.by_key.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn deadlines_expire_in_order_and_once_for_each_key() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deadlines = Deadlines::default();
        for (key, seconds) in [(7, 5), (3, 2), (9, 9), (7, 1), (3, 4)] {
            deadlines.set(key, at(seconds));
        }
        assert_eq!(deadlines.earliest(), Some(at(1)));
        assert_eq!(deadlines.pop_expired(at(0)), None);
        deadlines.set(5, at(3));
        deadlines.remove(5);
        let mut expired = Vec::new();
        while let Some(key) = deadlines.pop_expired(at(5)) {
            expired.push(key);
        }
        assert_eq!(expired, [7, 3]);
        assert_eq!(deadlines.earliest(), Some(at(9)));
        assert_eq!(deadlines.by_key.len(), 1);
    }
}
