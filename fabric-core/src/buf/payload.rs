//! The bytes of an operation's buffer, contiguous or in several pieces.

use super::AnyBuf;

/// Borrowed bytes of a buffer, or of part of it. A vector of buffers has several pieces.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// One contiguous slice.
    Contiguous(&'a [u8]),
    /// The pieces of several buffers.
    Vectored(VectoredPayload<'a>),
}

/// A range of the bytes of several buffers.
#[derive(Clone, Copy, Debug)]
pub struct VectoredPayload<'a> {
    parts: &'a [AnyBuf],
    from: usize,
    len: usize,
}

impl<'a> Payload<'a> {
    /// Returns all bytes of several buffers.
    pub(super) fn from_bufs(parts: &'a [AnyBuf]) -> Self {
        Self::Vectored(VectoredPayload {
            parts,
            from: 0,
            len: parts.iter().map(|part| part.bytes().len()).sum(),
        })
    }

    /// Returns the number of bytes.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Self::Contiguous(bytes) => bytes.len(),
            Self::Vectored(pieces) => pieces.len,
        }
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes as a slice, if they are contiguous.
    #[must_use]
    pub fn as_contiguous(self) -> Option<&'a [u8]> {
        match self {
            Self::Contiguous(bytes) => Some(bytes),
            Self::Vectored(_) => None,
        }
    }

    /// Returns `count` bytes from offset `from` on.
    ///
    /// # Panics
    /// When the range exceeds the payload.
    #[must_use]
    pub fn slice(self, from: usize, count: usize) -> Self {
        match self {
            Self::Contiguous(bytes) => Self::Contiguous(&bytes[from..from + count]),
            Self::Vectored(pieces) => {
                assert!(
                    from <= pieces.len && count <= pieces.len - from,
                    "the range exceeds the payload"
                );
                Self::Vectored(VectoredPayload {
                    from: pieces.from + from,
                    len: count,
                    ..pieces
                })
            }
        }
    }

    /// Calls `act` with every non-empty piece in order, and with its offset.
    #[inline(always)] // so that the loop body for a contiguous payload is inlined
    pub fn for_each(self, mut act: impl FnMut(usize, &'a [u8])) {
        match self {
            Self::Contiguous(bytes) => act(0, bytes),
            Self::Vectored(pieces) => pieces.for_each(act),
        }
    }

    /// Copies the bytes into a vector.
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
