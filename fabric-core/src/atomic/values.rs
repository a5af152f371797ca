//! Rows of values: operands, and what comes back.

use super::AtomicType;

/// The operands of one atomic operation: a value, an array of values, or a vector of them. An
/// operation on several is atomic for each value, not for the row.
pub trait AtomicValues: Clone + Send + Unpin + 'static {
    /// The type of the values.
    type Element: AtomicType;
    /// The values.
    fn elements(&self) -> &[Self::Element];
    /// A row of as many values.
    #[must_use]
    fn like_from_fn(&self, element: impl FnMut(usize) -> Self::Element) -> Self;
}

impl<T: AtomicType> AtomicValues for T {
    type Element = T;

    fn elements(&self) -> &[T] {
        std::slice::from_ref(self)
    }

    fn like_from_fn(&self, mut element: impl FnMut(usize) -> T) -> Self {
        element(0)
    }
}

impl<T: AtomicType, const N: usize> AtomicValues for [T; N] {
    type Element = T;

    fn elements(&self) -> &[T] {
        self
    }

    fn like_from_fn(&self, element: impl FnMut(usize) -> T) -> Self {
        std::array::from_fn(element)
    }
}

impl<T: AtomicType> AtomicValues for Vec<T> {
    type Element = T;

    fn elements(&self) -> &[T] {
        self
    }

    fn like_from_fn(&self, element: impl FnMut(usize) -> T) -> Self {
        (0..self.len()).map(element).collect()
    }
}

/// Puts a value's bytes behind `out`.
pub fn append_value<T: AtomicType>(value: T, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.bits().to_le_bytes()[..T::DATATYPE.size()]);
}

/// The bit pattern of value `index` in a row of values of this size. 0 beyond its end.
#[must_use]
pub fn bits_at(bytes: &[u8], index: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(value) = bytes.get(index * size..(index + 1) * size) {
        word[..size].copy_from_slice(value);
    }
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_arrays_are_little_endian() {
        let mut row = Vec::new();
        [1i16, -2, 3]
            .into_iter()
            .for_each(|value| append_value(value, &mut row));
        assert_eq!(row, [1, 0, 0xfe, 0xff, 3, 0]);
        assert_eq!(i16::from_bits(bits_at(&row, 1, 2)), -2);
        assert_eq!(bits_at(&row, 3, 2), 0);
    }
}
