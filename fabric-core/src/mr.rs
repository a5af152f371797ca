//! The table of memory regions: keys, rights and bounds.
//!
//! A peer names a region by its key. Every access is checked here before a byte moves: the key exists, the right was
//! granted, and the range lies inside the region.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::flags::Access;

/// What a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Region {
    /// Bytes in the region.
    pub len: usize,
    /// What the owner granted.
    pub access: Access,
}

/// Regions by key.
#[derive(Debug, Default)]
pub struct RegionTable {
    regions: HashMap<u64, Region>,
    next: u64,
}

impl RegionTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a region under the requested key, or under a fresh one.
    ///
    /// # Errors
    /// [`Error::Key`] when the requested key is taken; [`Error::BadFlags`] when no right is granted.
    pub fn insert(&mut self, len: usize, access: Access, key: Option<u64>) -> Result<u64> {
        if access.is_empty() {
            return Err(Error::BadFlags { what: "memory region", flags: "no access right".into() });
        }
        let key = match key {
            Some(key) if self.regions.contains_key(&key) => {
                return Err(Error::Key { key, why: "is in use" });
            }
            Some(key) => key,
            None => loop {
                let key = self.next;
                self.next = self.next.wrapping_add(1);
                if !self.regions.contains_key(&key) {
                    break key;
                }
            },
        };
        self.regions.insert(key, Region { len, access });
        Ok(key)
    }

    /// Takes a region out; later accesses by its key fail.
    pub fn remove(&mut self, key: u64) -> Option<Region> {
        self.regions.remove(&key)
    }

    /// Checks an access of a peer and returns the region.
    ///
    /// # Errors
    /// [`Error::Key`] when the key is unknown or the right missing; [`Error::TooLong`] when the range leaves the
    /// region.
    pub fn check(&self, key: u64, offset: u64, len: usize, wanted: Access) -> Result<&Region> {
        let region = self.regions.get(&key).ok_or(Error::Key { key, why: "is unknown" })?;
        if !region.access.contains(wanted) {
            return Err(Error::Key { key, why: "does not grant this access" });
        }
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(len));
        match end {
            Some(end) if end <= region.len => Ok(region),
            _ => Err(Error::TooLong {
                what: "access to a memory region",
                len: end.unwrap_or(usize::MAX),
                limit: region.len,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_rights_and_bounds_are_checked() {
        let mut table = RegionTable::new();
        let key = table.insert(100, Access::REMOTE_READ, Some(7)).unwrap();
        assert_eq!(key, 7);
        assert_eq!(table.insert(1, Access::READ, Some(7)), Err(Error::Key { key: 7, why: "is in use" }));
        assert!(table.insert(1, Access::empty(), None).is_err());
        assert_ne!(table.insert(1, Access::READ, None).unwrap(), 7);
        assert!(table.check(7, 0, 100, Access::REMOTE_READ).is_ok());
        assert!(table.check(7, 100, 0, Access::REMOTE_READ).is_ok());
        assert!(table.check(7, 1, 100, Access::REMOTE_READ).is_err());
        assert!(table.check(7, u64::MAX, 2, Access::REMOTE_READ).is_err());
        assert!(table.check(7, 0, 1, Access::REMOTE_WRITE).is_err());
        assert!(table.check(8, 0, 0, Access::REMOTE_READ).is_err());
        table.remove(7);
        assert!(table.check(7, 0, 1, Access::REMOTE_READ).is_err());
    }
}
