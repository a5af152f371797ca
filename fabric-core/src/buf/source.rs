//! The source of an arriving message's bytes: a slice, or memory shared with a peer.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::PeerMemory;

/// Bytes that can be copied out but not borrowed, because a peer may own them.
pub trait CopySource {
    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `dst.len()` bytes from offset `from` on, and returns `dst`, now initialized. The
    /// returned slice is the proof of initialization: a caller that relies on it compares its
    /// address and length with those of `dst`.
    ///
    /// # Panics
    /// When the range exceeds the source.
    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8];

    /// Returns the memory itself, if it can be held instead of copied.
    fn peer_memory(&self) -> Option<Arc<dyn PeerMemory>> {
        None
    }

    /// Copies bytes from offset `from` on into initialized memory.
    ///
    /// # Panics
    /// When the range exceeds the source.
    fn copy_to_init(&self, from: usize, dst: &mut [u8]);
}

impl CopySource for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        let count = dst.len();
        dst.write_copy_of_slice(&self[from..from + count])
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        dst.copy_from_slice(&self[from..from + dst.len()]);
    }
}
