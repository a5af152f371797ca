//! Objects by number. A number is never used twice, so that a handle of a closed object names nobody.

/// Objects by number. It takes as much memory as there are objects, however many there have been.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// In the order of their numbers.
    rows: Vec<(u32, Box<T>)>,
    next: u32,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { rows: Vec::new(), next: 0 }
    }

    /// # Panics
    /// When four thousand million objects have been here: there is no number left.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let number = self.next;
        self.next = number.checked_add(1).expect("a number that nobody has had");
        self.rows.push((number, Box::new(value)));
        number
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        Some(&self.rows[self.position(number)?].1)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let at = self.position(number)?;
        Some(&mut self.rows[at].1)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Box<T>> {
        Some(self.rows.remove(self.position(number)?).1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.rows.iter().map(|(number, row)| (*number, &**row))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.rows.iter_mut().map(|(_, row)| &mut **row)
    }

    /// Where it is: mostly none was ever removed before it.
    #[inline]
    fn position(&self, number: u32) -> Option<usize> {
        match self.rows.get(number as usize) {
            Some((there, _)) if *there == number => Some(number as usize),
            _ => self.search(number),
        }
    }

    fn search(&self, number: u32) -> Option<usize> {
        self.rows.binary_search_by_key(&number, |(there, _)| *there).ok()
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
            assert_eq!((table.remove(goes), table.remove(goes)), (Some(Box::new(round)), None));
            assert_eq!((table.get(stays), table.get(goes)), (Some(&round), None));
            assert_eq!(table.get_mut(first), Some(&mut 0));
            assert_eq!(table.iter().collect::<Vec<_>>(), [(first, &0), (stays, &round)]);
            assert_eq!(table.remove(stays), Some(Box::new(round)));
        }
        assert_eq!((table.rows.len(), table.insert(7)), (1, 1999));
        assert!(table.rows.capacity() < 10, "{} places", table.rows.capacity());
    }
}
