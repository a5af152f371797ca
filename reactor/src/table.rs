//! Objects by number. A number is never used twice, so that a handle of a closed object names nobody.

/// Objects by number.
#[derive(Debug)]
pub(crate) struct Table<T> {
    rows: Vec<Option<Box<T>>>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { rows: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.rows.push(Some(Box::new(value)));
        (self.rows.len() - 1) as u32
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.rows.get(number as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.rows.get_mut(number as usize)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Box<T>> {
        self.rows.get_mut(number as usize)?.take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.rows.iter().enumerate().filter_map(|(number, row)| Some((number as u32, row.as_deref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.rows.iter_mut().filter_map(Option::as_deref_mut)
    }
}
