//! The address vector: a table of peer addresses and their handles.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::address::{Address, FiAddr};
use crate::error::{Error, Result};

/// A table of addresses by handle (`FI_AV_TABLE`).
///
/// An inserted address gets the lowest free index, and a removed address frees its index. The
/// generation in a handle distinguishes the peers that had the same index.
#[derive(Clone, Debug)]
#[doc(alias = "fi_av_open")]
pub struct AddressTable {
    av_id: NonZeroU16,
    entries: Vec<AvEntry>,
    /// Free indices, the lowest first.
    free: BinaryHeap<Reverse<u32>>,
    /// The index of each address that is not detached.
    by_address: HashMap<Address, u32>,
}

/// A position of the table.
#[derive(Clone, Debug)]
struct AvEntry {
    /// The generation of the handle that the position has or gets next.
    generation: u16,
    /// `None` while the position is free.
    address: Option<Address>,
}

static NEXT_AV_ID: AtomicU16 = AtomicU16::new(0);

/// Returns an id for a table; ids wrap around.
fn next_av_id() -> NonZeroU16 {
    let next = || NonZeroU16::new(NEXT_AV_ID.fetch_add(1, Ordering::Relaxed));
    next().or_else(next).unwrap_or(NonZeroU16::MIN)
}

impl AddressTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self {
            av_id: next_av_id(),
            entries: Vec::new(),
            free: BinaryHeap::new(),
            by_address: HashMap::new(),
        }
    }

    /// Inserts an address and returns its handle; an address that is in the table keeps its handle.
    pub fn insert(&mut self, address: Address) -> FiAddr {
        if let Some(&index) = self.by_address.get(&address) {
            return self.handle(index);
        }
        // The lowest free index is reused first, so that the table stays dense.
        let index = match self.free.pop() {
            Some(Reverse(lowest)) => lowest,
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

    /// Returns the address of a handle.
    ///
    /// # Errors
    /// [`Error::StaleAddress`] when the address was removed, or the handle is of another table.
    pub fn get(&self, addr: FiAddr) -> Result<&Address> {
        let entry = self
            .entries
            .get(addr.index())
            .filter(|entry| addr == FiAddr::new(addr.index() as u32, entry.generation, self.av_id));
        entry
            .and_then(|entry| entry.address.as_ref())
            .ok_or_else(|| Error::StaleAddress(addr))
    }

    /// Returns the handle of an address, if it is in the table.
    #[must_use]
    pub fn find(&self, address: &Address) -> Option<FiAddr> {
        self.by_address
            .get(address)
            .map(|&index| self.handle(index))
    }

    /// Detaches a handle from its address: the handle stays valid, but [`find`](Self::find) does
    /// not return it any more, and the next [`insert`](Self::insert) of the address returns a new
    /// handle.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn detach(&mut self, addr: FiAddr) -> Result<()> {
        let address = self.get(addr)?.clone();
        if self.find(&address) == Some(addr) {
            self.by_address.remove(&address);
        }
        Ok(())
    }

    /// Removes an address; its handle becomes stale. Messages in flight are not affected.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn remove(&mut self, addr: FiAddr) -> Result<Address> {
        self.detach(addr)?;
        let entry = &mut self.entries[addr.index()];
        // A position whose generations are used up is not freed.
        let next_generation = entry.generation.checked_add(1);
        entry.generation = next_generation.unwrap_or(entry.generation);
        let address = entry
            .address
            .take()
            .ok_or_else(|| Error::StaleAddress(addr))?;
        if next_generation.is_some() {
            self.free.push(Reverse(addr.index() as u32));
        }
        Ok(address)
    }

    /// Iterates over addresses with their handles, in the order of the indices.
    /// [Detached](Self::detach) handles are left out.
    pub fn iter(&self) -> impl Iterator<Item = (FiAddr, &Address)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| {
                let (addr, address) = (self.handle(index as u32), entry.address.as_ref()?);
                (self.find(address) == Some(addr)).then_some((addr, address))
            })
    }

    /// Returns the number of addresses, without those of detached handles.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Returns whether [`len`](Self::len) is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Returns the current handle of a position.
    fn handle(&self, index: u32) -> FiAddr {
        FiAddr::new(index, self.entries[index as usize].generation, self.av_id)
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
        assert_eq!(table.insert(address("a")), a, "an address has one handle");
        assert_eq!(table.remove(a).unwrap(), address("a"));
        assert_eq!(table.get(a), Err(Error::StaleAddress(a)));
        assert_eq!(table.remove(a), Err(Error::StaleAddress(a)));
        let c = table.insert(address("c"));
        assert_eq!(c.index(), 0, "the lowest free index is reused");
        assert_eq!(
            table.get(a),
            Err(Error::StaleAddress(a)),
            "the old handle does not name the new peer"
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
        assert_eq!(
            table.find(&address("a")),
            Some(new),
            "the new handle stays valid"
        );
        assert_eq!(table.get(old), Err(Error::StaleAddress(old)));
    }

    #[test]
    fn handle_of_another_table_is_stale() {
        let (mut one, mut two) = (AddressTable::new(), AddressTable::new());
        let (a, b) = (one.insert(address("a")), two.insert(address("a")));
        assert!(two.get(a).is_err() && one.get(b).is_err());
    }
}
