//! Where the bytes of an arriving message lie: in a slice, or in memory shared with a peer.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::PeerMemory;

/// Bytes that can be copied out, but not borrowed: a peer may own them.
pub trait CopySource {
    /// How many bytes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `dst.len()` bytes from position `from` on, and returns `dst`, now initialised. The
    /// returned slice is the proof: whoever relies on it compares its address and length with those
    /// of `dst`.
    ///
    /// # Panics
    /// When the range lies outside of the source.
    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8];

    /// The memory itself, if it can be held instead of copied.
    fn peer_memory(&self) -> Option<Arc<dyn PeerMemory>> {
        None
    }

    /// Copies over bytes that are initialised already.
    ///
    /// # Panics
    /// When the range lies outside of the source.
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
