//! The bytes that an operation gives away: in one place, or in several.

use super::AnyBuf;

/// Borrowed bytes of a buffer, or of part of it. A vector of buffers has them in pieces.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In one place.
    Contiguous(&'a [u8]),
    /// In several.
    Vectored(VectoredPayload<'a>),
}

/// Part of what a row of buffers holds.
#[derive(Clone, Copy, Debug)]
pub struct VectoredPayload<'a> {
    parts: &'a [AnyBuf],
    from: usize,
    len: usize,
}

impl<'a> Payload<'a> {
    /// All bytes of a row of buffers.
    pub(super) fn from_bufs(parts: &'a [AnyBuf]) -> Self {
        Self::Vectored(VectoredPayload {
            parts,
            from: 0,
            len: parts.iter().map(|part| part.bytes().len()).sum(),
        })
    }

    /// How many bytes there are.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Self::Contiguous(bytes) => bytes.len(),
            Self::Vectored(pieces) => pieces.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The bytes as a slice, if they lie in one place.
    #[must_use]
    pub fn as_contiguous(self) -> Option<&'a [u8]> {
        match self {
            Self::Contiguous(bytes) => Some(bytes),
            Self::Vectored(_) => None,
        }
    }

    /// `count` bytes from position `from` on.
    ///
    /// # Panics
    /// When the range lies outside.
    #[must_use]
    pub fn slice(self, from: usize, count: usize) -> Self {
        match self {
            Self::Contiguous(bytes) => Self::Contiguous(&bytes[from..from + count]),
            Self::Vectored(pieces) => {
                assert!(
                    from <= pieces.len && count <= pieces.len - from,
                    "a part outside of the payload"
                );
                Self::Vectored(VectoredPayload {
                    from: pieces.from + from,
                    len: count,
                    ..pieces
                })
            }
        }
    }

    /// Calls `act` with every piece that is not empty, in order, and with its position.
    #[inline(always)] // so that what is done with bytes in one place is compiled in place
    pub fn for_each(self, mut act: impl FnMut(usize, &'a [u8])) {
        match self {
            Self::Contiguous(bytes) => act(0, bytes),
            Self::Vectored(pieces) => pieces.for_each(act),
        }
    }

    /// A copy of the bytes, in one place.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len());
        self.for_each(|_, piece| copy.extend_from_slice(piece));
        copy
    }
}

impl<'a> VectoredPayload<'a> {
    #[cold]
    fn for_each(self, mut act: impl FnMut(usize, &'a [u8])) {
        let (mut skip, mut at) = (self.from, 0);
        for part in self.parts {
            let bytes = part.bytes();
            let from = skip.min(bytes.len());
            skip -= from;
            let piece = &bytes[from..from + (bytes.len() - from).min(self.len - at)];
            if !piece.is_empty() {
                act(at, piece);
                at += piece.len();
            }
        }
    }
}
