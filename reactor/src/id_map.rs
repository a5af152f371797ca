//! Objects by number. A number is never used twice, so that a handle of a closed object names
//! nobody.

use fabric_core::transport::EpId;

/// How many there can be at once. The bits of a number above that of its place count how often it
/// was taken before.
const MAX_ENTRIES: usize = 1 << EpId::INDEX_BITS;

/// Objects by number. It takes as much memory as there were objects at once. A place is used again
/// under other numbers, until it has had all that it can have.
#[derive(Debug)]
pub(crate) struct IdMap<T> {
    entries: Vec<IdMapEntry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct IdMapEntry<T> {
    /// Of what is here, or will be next.
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

    /// # Panics
    /// With a million objects: there is no place left.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let value = Some(Box::new(value));
        if let Some(place) = self.free.pop() {
            let row = &mut self.entries[place as usize];
            row.value = value;
            return row.id;
        }
        let number = self.entries.len() as u32;
        assert!(
            self.entries.len() < MAX_ENTRIES,
            "a place for another object"
        );
        self.entries.push(IdMapEntry { id: number, value });
        number
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let row = self
            .entries
            .get(Self::index(number))
            .filter(|row| row.id == number)?;
        row.value.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let row = self
            .entries
            .get_mut(Self::index(number))
            .filter(|row| row.id == number)?;
        row.value.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Box<T>> {
        let row = self
            .entries
            .get_mut(Self::index(number))
            .filter(|row| row.id == number)?;
        let value = row.value.take()?;
        // A place that has had its last number stays empty.
        if let Some(next) = number.checked_add(MAX_ENTRIES as u32) {
            row.id = next;
            self.free.push(Self::index(number) as u32);
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries
            .iter()
            .filter_map(|row| Some((row.id, row.value.as_deref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries
            .iter_mut()
            .filter_map(|row| row.value.as_deref_mut())
    }

    fn index(number: u32) -> usize {
        number as usize % MAX_ENTRIES
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A server opens and closes an endpoint for everybody who calls.
    #[test]
    fn removed_entries_free_their_slot_and_ids_go_stale() {
        let mut table = IdMap::new();
        let first = table.insert(0);
        for round in 1..1000 {
            let (stays, goes) = (table.insert(round), table.insert(round));
            assert_eq!(
                (table.remove(goes), table.remove(goes)),
                (Some(Box::new(round)), None)
            );
            assert_eq!((table.get(stays), table.get(goes)), (Some(&round), None));
            assert_eq!(table.get_mut(first), Some(&mut 0));
            assert_eq!(
                table.iter().collect::<Vec<_>>(),
                [(first, &0), (stays, &round)]
            );
            assert_eq!(table.remove(stays), Some(Box::new(round)));
        }
        assert_eq!((table.entries.len(), table.iter().count()), (3, 1));
    }

    #[test]
    fn ids_are_never_reused() {
        let mut table = IdMap::new();
        let mut before = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let number = table.insert(());
            assert!(before.insert(number), "{number} again");
            table.remove(number);
            assert_eq!(table.remove(number), None);
        }
        // The first place has had all its numbers, and the second one has begun.
        assert!(
            table.entries.len() > 1 && before.iter().all(|number| table.get(*number).is_none())
        );
    }
}
