//! A map from ids to the objects of a domain. The map owns the objects and assigns the ids. An id
//! is never assigned twice, so a handle with the id of a closed object finds nothing.
//!
//! The low bits of an id are an index into the map's entries. The high bits count how often that
//! index was assigned before.

use fabric_core::transport::EpId;

/// Maximum number of objects in a map.
const MAX_ENTRIES: usize = 1 << EpId::INDEX_BITS;

/// A map from ids to objects of one kind.
///
/// Its memory grows with the largest number of objects that it held, and is not given back. The
/// index of a removed object is assigned again with the next id, until its ids are used up.
#[derive(Debug)]
pub(crate) struct IdMap<T> {
    entries: Vec<IdMapEntry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct IdMapEntry<T> {
    /// Id of the object, or, in a free entry, of the next object.
    id: u32,
    value: Option<Box<T>>,
}

impl<T> IdMap<T> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Inserts an object and returns its id.
    ///
    /// # Panics
    /// If the map holds [`MAX_ENTRIES`] objects already.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let value = Some(Box::new(value));
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            entry.value = value;
            return entry.id;
        }
        let id = self.entries.len() as u32;
        assert!(
            self.entries.len() < MAX_ENTRIES,
            "more than {MAX_ENTRIES} objects in one domain"
        );
        self.entries.push(IdMapEntry { id, value });
        id
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        let entry = self.entries.get(Self::index(id))?;
        if entry.id != id {
            return None;
        }
        entry.value.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let entry = self.entries.get_mut(Self::index(id))?;
        if entry.id != id {
            return None;
        }
        entry.value.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Box<T>> {
        let entry = self
            .entries
            .get_mut(Self::index(id))
            .filter(|entry| entry.id == id)?;
        let value = entry.value.take()?;
        // An index whose ids are used up stays empty.
        if let Some(next) = id.checked_add(MAX_ENTRIES as u32) {
            entry.id = next;
            self.free.push(Self::index(id) as u32);
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries
            .iter()
            .filter_map(|entry| Some((entry.id, entry.value.as_deref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries
            .iter_mut()
            .filter_map(|entry| Some((entry.id, entry.value.as_deref_mut()?)))
    }

    fn index(id: u32) -> usize {
        id as usize % MAX_ENTRIES
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The pattern of a server that opens and closes an endpoint per client.
    #[test]
    fn removed_entries_free_their_slot_and_ids_go_stale() {
        let mut map = IdMap::new();
        let first = map.insert(0);
        for round in 1..1000 {
            let (kept, removed) = (map.insert(round), map.insert(round));
            assert_eq!(
                (map.remove(removed), map.remove(removed)),
                (Some(Box::new(round)), None)
            );
            assert_eq!((map.get(kept), map.get(removed)), (Some(&round), None));
            assert_eq!(map.get_mut(first), Some(&mut 0));
            assert_eq!(
                map.iter().collect::<Vec<_>>(),
                [(first, &0), (kept, &round)]
            );
            assert_eq!(map.remove(kept), Some(Box::new(round)));
        }
        assert_eq!((map.entries.len(), map.iter().count()), (3, 1));
    }

    #[test]
    fn ids_are_never_reused() {
        let mut map = IdMap::new();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let id = map.insert(());
            assert!(seen.insert(id), "id {id} used twice");
            map.remove(id);
            assert_eq!(map.remove(id), None);
        }
        // The ids of the first index are used up, and the second index is in use.
        assert!(map.entries.len() > 1 && seen.iter().all(|id| map.get(*id).is_none()));
    }
}
