//! Objects by number. A number is never used twice, so that a handle of a closed object names
//! nobody.

use fabric_core::provider::EpId;

/// How many there can be at once. The bits of a number above that of its place count how often it
/// was taken before.
const PLACES: usize = 1 << EpId::PLACE_BITS;

/// Objects by number. It takes as much memory as there were objects at once. A place is used again
/// under other numbers, until it has had all that it can have.
#[derive(Debug)]
pub(crate) struct Table<T> {
    rows: Vec<Row<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Row<T> {
    /// Of what is here, or will be next.
    number: u32,
    value: Option<Box<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            rows: Vec::new(),
            free: Vec::new(),
        }
    }

    /// # Panics
    /// With a million objects: there is no place left.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let value = Some(Box::new(value));
        if let Some(place) = self.free.pop() {
            let row = &mut self.rows[place as usize];
            row.value = value;
            return row.number;
        }
        let number = self.rows.len() as u32;
        assert!(self.rows.len() < PLACES, "a place for another object");
        self.rows.push(Row { number, value });
        number
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let row = self
            .rows
            .get(Self::place(number))
            .filter(|row| row.number == number)?;
        row.value.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let row = self
            .rows
            .get_mut(Self::place(number))
            .filter(|row| row.number == number)?;
        row.value.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Box<T>> {
        let row = self
            .rows
            .get_mut(Self::place(number))
            .filter(|row| row.number == number)?;
        let value = row.value.take()?;
        // A place that has had its last number stays empty.
        if let Some(next) = number.checked_add(PLACES as u32) {
            row.number = next;
            self.free.push(Self::place(number) as u32);
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.rows
            .iter()
            .filter_map(|row| Some((row.number, row.value.as_deref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.rows
            .iter_mut()
            .filter_map(|row| row.value.as_deref_mut())
    }

    fn place(number: u32) -> usize {
        number as usize % PLACES
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A server opens and closes an endpoint for everybody who calls.
    #[test]
    fn what_has_gone_takes_no_place_and_its_number_names_nobody() {
        let mut table = Table::new();
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
        assert_eq!((table.rows.len(), table.iter().count()), (3, 1));
    }

    #[test]
    fn no_number_is_used_twice() {
        let mut table = Table::new();
        let mut before = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let number = table.insert(());
            assert!(before.insert(number), "{number} again");
            table.remove(number);
            assert_eq!(table.remove(number), None);
        }
        // The first place has had all its numbers, and the second one has begun.
        assert!(table.rows.len() > 1 && before.iter().all(|number| table.get(*number).is_none()));
    }
}
