//! Arrays as buffers: short ones are stored in the operation itself, long ones on the heap.

use super::{AnyBuf, FlatBuf, IoBuf, IoBufMut, Payload, sealed};

/// The bytes of a short array, stored in the value itself.
///
/// The bytes move with the value, unlike those of other buffers. A transport must not keep a
/// pointer to a payload of up to [`CAPACITY`](Self::CAPACITY) bytes beyond the call that got it.
/// Exception: short parts of a [`Gather`](super::Gather) are on the heap and stay in place.
#[derive(Clone, Copy)]
pub struct InlineBuf {
    len: u8,
    bytes: [u8; Self::CAPACITY],
}

impl std::fmt::Debug for InlineBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InlineBuf({} bytes)", self.len)
    }
}

impl InlineBuf {
    /// The longest array in bytes that is stored inline: with one more, [`AnyBuf`], which is moved
    /// with every message, would be larger.
    pub const CAPACITY: usize = 31;

    /// Copies an array; `None` when it is longer than [`CAPACITY`](Self::CAPACITY).
    fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::CAPACITY];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self {
            len: from.len() as u8,
            bytes,
        })
    }

    /// Returns the bytes.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the bytes for writing.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }
}

impl<const N: usize> sealed::Sealed for [u8; N] {}

impl<const N: usize> FlatBuf for [u8; N] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl<const N: usize> IoBufMut for [u8; N] {}

impl<const N: usize> IoBuf for [u8; N] {
    #[inline]
    fn payload(&self) -> Payload<'_> {
        Payload::Contiguous(self)
    }

    fn into_any(self) -> AnyBuf {
        match InlineBuf::new(&self) {
            Some(inline) => AnyBuf::Inline(inline),
            None => AnyBuf::Boxed(Box::new(self)),
        }
    }

    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
        match any {
            AnyBuf::Inline(inline) => inline.as_slice().try_into().map_err(|_| any),
            AnyBuf::Boxed(boxed) if N > InlineBuf::CAPACITY => Box::<[u8; N]>::try_from(boxed)
                .map(|array| *array)
                .map_err(AnyBuf::Boxed),
            other => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_buffers_do_not_enlarge_any_buf() {
        assert_eq!(size_of::<AnyBuf>(), 40);
    }

    #[test]
    fn short_arrays_are_inline_and_long_ones_on_the_heap() {
        assert!(matches!(
            [1; InlineBuf::CAPACITY].into_any(),
            AnyBuf::Inline(_)
        ));
        assert!(matches!(
            [1; InlineBuf::CAPACITY + 1].into_any(),
            AnyBuf::Boxed(_)
        ));
    }
}
