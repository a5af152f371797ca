//! The values of an atomic operation: operands, comparands and results.

use super::AtomicType;

/// The operands of one atomic operation: a value, an array or a vector of values. An operation on
/// several values is atomic for each value, not for all together.
pub trait AtomicValues: Clone + Send + Unpin + 'static {
    /// The type of the values.
    type Element: AtomicType;
    /// Returns the values.
    fn elements(&self) -> &[Self::Element];
    /// Creates values of the same number, where `element` returns the value at each index.
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

/// Returns the bit pattern of value `index` in an array of values of `size` bytes; 0 beyond its
/// end.
#[must_use]
pub fn bits_at(bytes: &[u8], index: usize, size: usize) -> u128 {
    let mut word = [0; 16];
    if let Some(value) = bytes.get(index * size..(index + 1) * size) {
        word[..size].copy_from_slice(value);
    }
    u128::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_arrays_are_little_endian() {
        let array = [1, 0, 0xfe, 0xff, 3, 0];
        let values = [0, 1, 2].map(|index| i16::from_bits(bits_at(&array, index, 2)));
        assert_eq!(values, [1, -2, 3]);
        assert_eq!(bits_at(&array, 3, 2), 0);
    }
}
