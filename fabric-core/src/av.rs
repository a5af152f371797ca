//! The address vector: peers by number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::address::{Address, FiAddr};
use crate::error::{Error, Result};

/// Peers by number (`FI_AV_TABLE`): inserting returns the lowest free position, removing frees it,
/// and a generation beside the position makes a removed peer's number an error.
#[derive(Debug)]
#[doc(alias = "fi_av_open")]
pub struct AddressTable {
    av_id: u16,
    entries: Vec<AvEntry>,
    free: Vec<u32>,
    by_address: HashMap<Address, u32>,
}

#[derive(Debug)]
struct AvEntry {
    generation: u16,
    address: Option<Address>,
}

static NEXT_AV_ID: AtomicU16 = AtomicU16::new(0);

impl AddressTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        let av_id = NEXT_AV_ID.fetch_add(1, Ordering::Relaxed);
        Self {
            av_id,
            entries: Vec::new(),
            free: Vec::new(),
            by_address: HashMap::new(),
        }
    }

    /// Gives the address a number; an address that is in the table keeps the one it has.
    pub fn insert(&mut self, address: Address) -> FiAddr {
        if let Some(&index) = self.by_address.get(&address) {
            return self.handle(index);
        }
        // The lowest free position is used first, so numbers stay small.
        let lowest = self
            .free
            .iter()
            .enumerate()
            .min_by_key(|(_, index)| **index)
            .map(|(at, _)| at);
        let index = match lowest {
            Some(at) => self.free.swap_remove(at),
            None => {
                self.entries.push(AvEntry {
                    generation: 0,
                    address: None,
                });
                (self.entries.len() - 1) as u32
            }
        };
        self.entries[index as usize].address = Some(address.clone());
        self.by_address.insert(address, index);
        self.handle(index)
    }

    /// The address behind a number.
    ///
    /// # Errors
    /// [`Error::StaleAddress`] when the number was removed, or is of another vector.
    pub fn get(&self, addr: FiAddr) -> Result<&Address> {
        let row = self
            .entries
            .get(addr.index as usize)
            .filter(|row| addr.vector == self.av_id && row.generation == addr.generation);
        row.and_then(|row| row.address.as_ref())
            .ok_or_else(|| Error::StaleAddress(addr))
    }

    /// The number of an address, if it is in the table.
    #[must_use]
    pub fn find(&self, address: &Address) -> Option<FiAddr> {
        self.by_address
            .get(address)
            .map(|&index| self.handle(index))
    }

    /// Lets the address of this handle get another one. The handle stays valid, and is found by its
    /// address no more.
    ///
    /// # Errors
    /// [`Error::StaleAddress`].
    pub fn detach(&mut self, addr: FiAddr) -> Result<()> {
        let address = self.get(addr)?.clone();
        if self.find(&address) == Some(addr) {
            self.by_address.remove(&address);
        }
        Ok(())
    }

    /// Takes an address out; its number becomes stale. Messages on their way are not affected.
    ///
    /// # Errors
    /// [`Error::StaleAddress`].
    pub fn remove(&mut self, addr: FiAddr) -> Result<Address> {
        self.detach(addr)?;
        let row = &mut self.entries[addr.index as usize];
        // A position whose generations are used up is not used again.
        let next = row.generation.checked_add(1);
        row.generation = next.unwrap_or(row.generation);
        let address = row
            .address
            .take()
            .ok_or_else(|| Error::StaleAddress(addr))?;
        if next.is_some() {
            self.free.push(addr.index);
        }
        Ok(address)
    }

    /// Every address with its handle, in the order of the handles. Those that were
    /// [detached](Self::detach) are left out.
    pub fn iter(&self) -> impl Iterator<Item = (FiAddr, &Address)> {
        self.entries.iter().enumerate().filter_map(|(index, row)| {
            let (addr, address) = (self.handle(index as u32), row.address.as_ref()?);
            (self.find(address) == Some(addr)).then_some((addr, address))
        })
    }

    /// How many addresses are in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    fn handle(&self, index: u32) -> FiAddr {
        FiAddr {
            index,
            generation: self.entries[index as usize].generation,
            vector: self.av_id,
        }
    }
}

impl Default for AddressTable {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str) -> Address {
        format!("shm://{name}").parse().unwrap()
    }

    #[test]
    fn reused_address_index_gets_a_new_generation() {
        let mut table = AddressTable::new();
        let (a, b) = (table.insert(address("a")), table.insert(address("b")));
        assert_eq!((a.index(), b.index()), (0, 1));
        assert_eq!(table.insert(address("a")), a, "an address has one number");
        assert_eq!(table.remove(a).unwrap(), address("a"));
        assert_eq!(table.get(a), Err(Error::StaleAddress(a)));
        assert_eq!(table.remove(a), Err(Error::StaleAddress(a)));
        let c = table.insert(address("c"));
        assert_eq!(c.index(), 0, "the lowest free position is used again");
        assert_eq!(
            table.get(a),
            Err(Error::StaleAddress(a)),
            "the old number does not name the new peer"
        );
        assert_eq!(table.get(c).unwrap(), &address("c"));
        assert_eq!(table.find(&address("b")), Some(b));
        assert_eq!(
            table.iter().map(|(addr, _)| addr).collect::<Vec<_>>(),
            [c, b]
        );
    }

    #[test]
    fn detached_handle_stays_valid_beside_its_successor() {
        let mut table = AddressTable::new();
        let old = table.insert(address("a"));
        table.detach(old).unwrap();
        assert_eq!(table.find(&address("a")), None);
        let new = table.insert(address("a"));
        assert_ne!(old, new);
        assert_eq!(table.get(old), table.get(new));
        assert_eq!(table.find(&address("a")), Some(new));
        assert_eq!(table.iter().collect::<Vec<_>>(), [(new, &address("a"))]);
        assert_eq!(table.remove(old).unwrap(), address("a"));
        assert_eq!(table.find(&address("a")), Some(new), "the new one stays");
        assert_eq!(table.get(old), Err(Error::StaleAddress(old)));
    }

    #[test]
    fn address_of_another_av_is_refused() {
        let (mut one, mut two) = (AddressTable::new(), AddressTable::new());
        let (a, b) = (one.insert(address("a")), two.insert(address("a")));
        assert!(two.get(a).is_err() && one.get(b).is_err());
    }
}
