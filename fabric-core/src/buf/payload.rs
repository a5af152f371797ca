//! The bytes that an operation gives away: in one place, or in several.

use super::AnyBuf;

/// Borrowed bytes of a buffer, or of part of it. A vector of buffers has them in pieces.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In one place.
    Whole(&'a [u8]),
    /// In several.
    Pieces(Pieces<'a>),
}

/// Part of what a row of buffers holds.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a> {
    parts: &'a [AnyBuf],
    from: usize,
    len: usize,
}

impl<'a> Payload<'a> {
    /// All bytes of a row of buffers.
    pub(super) fn of(parts: &'a [AnyBuf]) -> Self {
        Self::Pieces(Pieces {
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
            Self::Whole(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The bytes as a slice, if they lie in one place.
    #[must_use]
    pub fn whole(self) -> Option<&'a [u8]> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::Pieces(_) => None,
        }
    }

    /// `count` bytes from position `from` on.
    ///
    /// # Panics
    /// When the range lies outside.
    #[must_use]
    pub fn part(self, from: usize, count: usize) -> Self {
        match self {
            Self::Whole(bytes) => Self::Whole(&bytes[from..from + count]),
            Self::Pieces(pieces) => {
                assert!(
                    from <= pieces.len && count <= pieces.len - from,
                    "a part outside of the payload"
                );
                Self::Pieces(Pieces {
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
            Self::Whole(bytes) => act(0, bytes),
            Self::Pieces(pieces) => pieces.for_each(act),
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

impl<'a> Pieces<'a> {
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
