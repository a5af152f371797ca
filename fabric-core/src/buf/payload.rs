//! The bytes of an operation's buffer: contiguous, in several pieces, or in memory of a peer.

use std::fmt;
use std::sync::Arc;

use super::{AnyBuf, PeerMemory};

/// Bytes of a peer's memory that are copied to the stack at a time.
pub(super) const LOANED_CHUNK_LEN: usize = 4096;

/// Borrowed bytes of a buffer, or of part of it. A vector of buffers has several pieces. The bytes
/// of a received loan can be copied but not borrowed.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// One contiguous slice.
    Contiguous(&'a [u8]),
    /// The pieces of several buffers.
    Vectored(VectoredPayload<'a>),
    /// Bytes in memory of a peer.
    Loaned(LoanedPayload<'a>),
}

/// A range of a received loan.
#[derive(Clone, Copy)]
pub struct LoanedPayload<'a> {
    memory: &'a Arc<dyn PeerMemory>,
    from: usize,
    len: usize,
}

impl<'a> LoanedPayload<'a> {
    /// Returns the first `len` bytes of this memory.
    pub(super) fn new(memory: &'a Arc<dyn PeerMemory>, len: usize) -> Self {
        Self {
            memory,
            from: 0,
            len,
        }
    }

    /// Returns the memory, if the range begins at its first byte.
    #[must_use]
    pub fn memory_from_start(self) -> Option<&'a Arc<dyn PeerMemory>> {
        (self.from == 0).then_some(self.memory)
    }
}

impl fmt::Debug for LoanedPayload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoanedPayload")
            .field("from", &self.from)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Calls `act` with `len` bytes of a peer's memory from offset `from` on, copied to the stack in
/// chunks, and with the offset of each chunk from the first byte.
#[cold]
pub(super) fn copy_in_chunks(
    memory: &dyn PeerMemory,
    from: usize,
    len: usize,
    mut act: impl FnMut(usize, &[u8]),
) {
    let mut chunk = [0; LOANED_CHUNK_LEN];
    let mut at = 0;
    while at < len {
        let chunk = &mut chunk[..(len - at).min(LOANED_CHUNK_LEN)];
        memory.copy_to_init(from + at, chunk);
        act(at, chunk);
        at += chunk.len();
    }
}

/// A range of the bytes of several buffers.
#[derive(Clone, Copy, Debug)]
pub struct VectoredPayload<'a> {
    parts: &'a [AnyBuf],
    /// The offset of the range in the concatenation of all buffers.
    from: usize,
    len: usize,
}

impl<'a> Payload<'a> {
    /// Returns all bytes of several buffers. A sum of lengths that overflows is `usize::MAX`, which
    /// exceeds every limit.
    pub(super) fn from_bufs(parts: &'a [AnyBuf]) -> Self {
        Self::Vectored(VectoredPayload {
            parts,
            from: 0,
            len: (parts.iter()).fold(0, |len, part| len.saturating_add(part.bytes().len())),
        })
    }

    /// Returns the number of bytes.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Self::Contiguous(bytes) => bytes.len(),
            Self::Vectored(pieces) => pieces.len,
            Self::Loaned(loaned) => loaned.len,
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
            Self::Vectored(_) | Self::Loaned(_) => None,
        }
    }

    /// Returns the memory of a peer in which all bytes are, from its first byte on.
    #[must_use]
    pub fn peer_memory(self) -> Option<&'a Arc<dyn PeerMemory>> {
        match self {
            Self::Loaned(loaned) => loaned.memory_from_start(),
            Self::Contiguous(_) | Self::Vectored(_) => None,
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
            Self::Loaned(loaned) => {
                assert!(
                    from <= loaned.len && count <= loaned.len - from,
                    "the range exceeds the payload"
                );
                Self::Loaned(LoanedPayload {
                    from: loaned.from + from,
                    len: count,
                    ..loaned
                })
            }
        }
    }

    /// Calls `act` with every non-empty piece in order, and with its offset. Bytes in memory of a
    /// peer are copied, in chunks.
    #[inline(always)] // so that the loop body for a contiguous payload is inlined
    pub fn for_each(self, mut act: impl FnMut(usize, &[u8])) {
        match self {
            Self::Contiguous(bytes) => act(0, bytes),
            Self::Vectored(pieces) => pieces.for_each(act),
            Self::Loaned(loaned) => copy_in_chunks(&**loaned.memory, loaned.from, loaned.len, act),
        }
    }

    /// Calls `act` with every non-empty piece in order. The pieces stay borrowed, for a system call
    /// with all of them.
    ///
    /// # Panics
    /// When the bytes are in memory of a peer, of which a piece cannot be borrowed: the engine
    /// [copies](super::IoBuf::copy_from_peer) them for a transport that has no loans.
    pub fn for_each_borrowed(self, mut act: impl FnMut(&'a [u8])) {
        match self {
            Self::Contiguous(bytes) => act(bytes),
            Self::Vectored(pieces) => pieces.for_each(|_, piece| act(piece)),
            Self::Loaned(_) => panic!("bytes in memory of a peer cannot be borrowed"),
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
    /// Calls `act` with every non-empty piece in order, and with its offset in the payload.
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
