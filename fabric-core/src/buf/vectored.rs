//! Vectors of buffers: one message gathered from several buffers, or scattered to several.

use super::sealed::Sealed;
use super::{AnyBuf, CopySource, FlatBuf, IoBuf, IoBufMut, Payload, RegionBuf};
use crate::error::Result;
use crate::mr::LocalUse;

/// Buffers whose bytes are sent in order as one message or one write (`fi_sendv`, `fi_writev`).
///
/// Created from an array, a vector or a tuple of buffers, or with [`Gather::with`]; at most
/// `Info::tx.iov_limit` buffers. Empty buffers count towards the limit. The operation returns the
/// value unchanged.
///
/// ```
/// # use fabric_core::buf::Gather;
/// let mut message = Gather::from((vec![1, 2], "three")).with(bytes::Bytes::from_static(b"4"));
/// assert_eq!((message.count(), message.len()), (3, 8));
/// assert_eq!(message.take::<Vec<u8>>(0), Some(vec![1, 2]));
/// let same = Gather::from([vec![1], vec![2, 3]]);
/// assert_eq!(same.into_parts::<Vec<u8>>().unwrap(), [vec![1], vec![2, 3]]);
/// ```
#[derive(Debug, Default)]
#[doc(alias = "fi_sendv")]
#[doc(alias = "fi_tsendv")]
#[doc(alias = "fi_writev")]
#[doc(alias = "iovec")]
pub struct Gather {
    parts: Vec<AnyBuf>,
}

/// Buffers that a message or read data fills in order (`fi_recvv`, `fi_readv`).
///
/// Each buffer is filled to its capacity before the next one, so a [`PooledBuf`](super::PooledBuf),
/// which grows, takes all the rest. Buffers that get no bytes come back empty. At most
/// `Info::rx.iov_limit` buffers for a message, `Info::tx.iov_limit` for a read.
///
/// The buffers can also be the segments of one memory region ([`RegionBuf`]), which come back with
/// all their bytes.
///
/// ```
/// # use fabric_core::buf::{AnyBuf, Scatter};
/// let mut scatter = Scatter::from((Vec::with_capacity(4), vec![0u8; 4].into_boxed_slice()));
/// # let mut any = fabric_core::buf::IoBuf::into_any(scatter);
/// # any.receive(&&[1u8, 2, 3, 4, 5][..]).unwrap();
/// # scatter = fabric_core::buf::IoBuf::from_any(any).unwrap();
/// // … a message of five bytes was received …
/// assert_eq!(scatter.pieces().collect::<Vec<_>>(), [&[1u8, 2, 3, 4][..], &[5]]);
/// assert_eq!(scatter.take::<Vec<u8>>(0), Some(vec![1, 2, 3, 4]));
/// ```
#[derive(Debug, Default)]
#[doc(alias = "fi_recvv")]
#[doc(alias = "fi_trecvv")]
#[doc(alias = "fi_readv")]
#[doc(alias = "iovec")]
pub struct Scatter {
    parts: Vec<AnyBuf>,
    filled: usize,
}

macro_rules! impl_vectored_buf {
    ($type:ident, $($part:ident)+) => {
        impl $type {
            /// Creates an empty vector of buffers.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            /// Appends a buffer.
            #[must_use]
            pub fn with(mut self, buf: impl $($part +)+) -> Self {
                self.parts.push(buf.into_any());
                self
            }

            /// Returns the number of buffers.
            #[must_use]
            pub fn count(&self) -> usize {
                self.parts.len()
            }

            /// Takes the buffer at this position, if it exists and is of type `B`, and leaves an
            /// empty one in its place.
            pub fn take<B: FlatBuf>(&mut self, at: usize) -> Option<B> {
                let part = self.parts.get_mut(at)?;
                B::from_any(std::mem::take(part)).map_err(|other| *part = other).ok()
            }

            /// Returns the buffers, if all of them are of type `B`.
            ///
            /// # Errors
            /// The unchanged value, when a buffer is of another type.
            pub fn into_parts<B: FlatBuf>(mut self) -> Result<Vec<B>, Self> {
                let mut parts = Vec::with_capacity(self.parts.len());
                let mut rest = std::mem::take(&mut self.parts).into_iter();
                while let Some(part) = rest.next() {
                    match B::from_any(part) {
                        Ok(part) => parts.push(part),
                        Err(other) => {
                            self.parts = parts.into_iter().map(IoBuf::into_any).collect();
                            self.parts.push(other);
                            self.parts.extend(rest);
                            return Err(self);
                        }
                    }
                }
                Ok(parts)
            }
        }

        impl<B: $($part +)+> FromIterator<B> for $type {
            fn from_iter<I: IntoIterator<Item = B>>(parts: I) -> Self {
                Self::from_parts(parts.into_iter().map(IoBuf::into_any).collect())
            }
        }

        impl<B: $($part +)+> From<Vec<B>> for $type {
            fn from(parts: Vec<B>) -> Self {
                parts.into_iter().collect()
            }
        }

        impl<B: $($part +)+, const N: usize> From<[B; N]> for $type {
            fn from(parts: [B; N]) -> Self {
                parts.into_iter().collect()
            }
        }

        impl<A: $($part +)+, B: $($part +)+> From<(A, B)> for $type {
            fn from((a, b): (A, B)) -> Self {
                Self::from_parts(vec![a.into_any(), b.into_any()])
            }
        }

        impl<A: $($part +)+, B: $($part +)+, C: $($part +)+> From<(A, B, C)> for $type {
            fn from((a, b, c): (A, B, C)) -> Self {
                Self::from_parts(vec![a.into_any(), b.into_any(), c.into_any()])
            }
        }

        impl Sealed for $type {}

        impl IoBuf for $type {
            fn payload(&self) -> Payload<'_> {
                $type::payload(self)
            }

            fn count(&self) -> usize {
                self.parts.len()
            }

            fn is_registered(&self, usage: &LocalUse<'_>) -> bool {
                self.parts.iter().all(|part| part.is_registered(usage))
            }

            fn into_any(self) -> AnyBuf {
                AnyBuf::$type(self)
            }

            fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
                if let AnyBuf::$type(parts) = any { Ok(parts) } else { Err(any) }
            }
        }
    };
}

impl_vectored_buf!(Gather, FlatBuf);
impl_vectored_buf!(Scatter, IoBufMut FlatBuf);

impl IoBufMut for Scatter {}

impl RegionBuf for Scatter {
    fn region_bytes(&self) -> Payload<'_> {
        Payload::from_bufs(&self.parts)
    }
}

impl Gather {
    fn from_parts(parts: Vec<AnyBuf>) -> Self {
        Self { parts }
    }

    /// Returns the total number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.payload().len()
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the bytes of each buffer.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(AnyBuf::bytes)
    }

    pub(super) fn payload(&self) -> Payload<'_> {
        Payload::from_bufs(&self.parts)
    }
}

impl Scatter {
    fn from_parts(parts: Vec<AnyBuf>) -> Self {
        Self { parts, filled: 0 }
    }

    pub(super) fn parts(&self) -> &[AnyBuf] {
        &self.parts
    }

    pub(super) fn parts_mut(&mut self) -> &mut [AnyBuf] {
        &mut self.parts
    }

    /// Notes that all bytes of the buffers are placed, as after the end of a memory region.
    pub(super) fn fill(&mut self) {
        self.filled = self.region_bytes().len();
    }

    /// Returns how many bytes the last operation has placed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Returns whether the last operation has placed no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Iterates over the bytes that the last operation has placed in each buffer.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.filled;
        self.parts.iter().map(move |part| {
            let bytes = part.bytes();
            let piece = &bytes[..bytes.len().min(left)];
            left -= piece.len();
            piece
        })
    }

    /// The placed bytes come first in the concatenation of all buffers.
    pub(super) fn payload(&self) -> Payload<'_> {
        let held = Payload::from_bufs(&self.parts);
        held.slice(0, self.filled.min(held.len()))
    }

    /// Returns the total capacity.
    pub(super) fn recv_capacity(&mut self) -> usize {
        self.parts
            .iter_mut()
            .fold(0, |room, part| room.saturating_add(part.recv_capacity()))
    }

    /// Prepares for a message of `len` bytes.
    ///
    /// # Errors
    /// As [`AnyBuf::begin_fill`].
    pub(super) fn begin_fill(&mut self, len: usize) -> Result<()> {
        let mut left = len;
        for part in &mut self.parts {
            part.begin_fill(left)?;
            left = left.saturating_sub(part.recv_capacity());
        }
        Ok(())
    }

    /// As [`AnyBuf::write_at`].
    pub(super) fn write_at(
        &mut self,
        at: usize,
        source: &dyn CopySource,
        from: usize,
        count: usize,
    ) {
        let (mut at, mut from, mut left) = (at, from, count);
        for part in &mut self.parts {
            let room = part.recv_capacity();
            let count = room.saturating_sub(at).min(left);
            if count > 0 {
                part.write_at(at, source, from, count);
                (from, left) = (from + count, left - count);
            }
            at = at.saturating_sub(room);
        }
        assert_eq!(left, 0, "{left} bytes exceed the buffers");
    }

    /// As [`AnyBuf::finish`].
    pub(super) fn finish(&mut self, len: usize) {
        self.filled = len;
        let mut left = len;
        for part in &mut self.parts {
            let count = part.recv_capacity().min(left);
            part.finish(count);
            left -= count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::PooledBuf;

    fn receive_into(room: Scatter, message: &[u8]) -> (Scatter, usize) {
        let mut any = room.into_any();
        let placed = any.receive(&message).unwrap();
        (Scatter::from_any(any).unwrap(), placed)
    }

    #[test]
    fn payload_slices_span_several_buffers() {
        let gather = Gather::from([&b"ab"[..], b"", b"cdef", b"g"]);
        let payload = gather.payload();
        for from in 0..=7 {
            for to in from..=7 {
                let mut seen = Vec::new();
                payload.slice(from, to - from).for_each(|at, piece| {
                    assert_eq!(at, seen.len());
                    seen.extend_from_slice(piece);
                });
                assert_eq!(seen, b"abcdefg"[from..to], "{from}..{to}");
            }
        }
        assert_eq!(payload.slice(1, 5).slice(2, 2).to_vec(), b"de");
        assert!(Gather::new().payload().is_empty());
    }

    #[test]
    fn message_fills_scatter_buffers_in_order() {
        let message: Vec<u8> = (0..20).collect();
        for len in 0..=20 {
            let room = Scatter::from((Vec::with_capacity(3), vec![9u8; 5].into_boxed_slice()))
                .with(bytes::BytesMut::with_capacity(0))
                .with(bytes::BytesMut::with_capacity(8));
            let (room, placed) = receive_into(room, &message[..len]);
            assert_eq!((placed, room.len()), (len.min(16), len.min(16)));
            assert_eq!(
                room.pieces().flatten().copied().collect::<Vec<_>>(),
                &message[..placed]
            );
            assert_eq!(room.payload().to_vec(), &message[..placed]);
        }
    }

    #[test]
    fn received_pieces_are_written_contiguously() {
        let mut any =
            Scatter::from([Vec::with_capacity(4), vec![7; 6], Vec::with_capacity(2)]).into_any();
        assert_eq!(any.recv_capacity(), 12);
        for (at, piece) in [(0, &b"abc"[..]), (3, b"defgh"), (8, b""), (8, b"ij")] {
            any.write_at(at, &piece, 0, piece.len());
        }
        any.finish(10);
        let parts = Scatter::from_any(any)
            .unwrap()
            .into_parts::<Vec<u8>>()
            .unwrap();
        assert_eq!(parts, [&b"abcd"[..], b"efghij", b""]);
    }

    #[test]
    fn growing_buffer_receives_the_rest_of_the_message() {
        let room = Scatter::from((Vec::with_capacity(2), PooledBuf::with_capacity(0)));
        let (mut room, placed) = receive_into(room, &[5; 3000]);
        assert_eq!((placed, room.take::<Vec<u8>>(0).unwrap().len()), (3000, 2));
        assert_eq!(room.take::<PooledBuf>(1).unwrap().len(), 2998);
        assert!(room.take::<PooledBuf>(1).is_none());
    }

    #[test]
    fn into_parts_of_mixed_types_returns_the_gather() {
        let mixed = Gather::from((vec![1], "two", vec![3]));
        let mixed = mixed.into_parts::<Vec<u8>>().unwrap_err();
        assert_eq!(mixed.pieces().collect::<Vec<_>>(), [&[1][..], b"two", &[3]]);
    }
}
