//! The bytes of a region, as an access sees them: at the owner, or in a mapping of a peer.

use std::fmt::Debug;

use crate::atomic::{AtomicOp, Datatype};
use crate::error::Result;

/// The bytes of a region. Several processes access them at the same time, so bytes are copied in
/// and out, never borrowed.
pub trait RegionBytes: Debug + Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Returns whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out, from byte `at` on.
    ///
    /// # Panics
    /// When the range exceeds the region.
    fn read(&self, at: usize, out: &mut [u8]);

    /// Copies bytes in, to byte `at`.
    ///
    /// # Panics
    /// When the range exceeds the region.
    fn write(&self, at: usize, bytes: &[u8]);

    /// Executes an atomic operation on the value at byte `at`, a multiple of the value's size, and
    /// returns the old value. Values are bit patterns, as in [`AtomicOp::compute`].
    ///
    /// # Panics
    /// When the value exceeds the region or is not aligned to its size.
    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u128,
        comparand: u128,
    ) -> u128;

    /// Checks that atomic operations on values of this type can be executed here.
    ///
    /// # Errors
    /// [`Error::NotSupported`](crate::error::Error::NotSupported).
    fn check_atomic(&self, datatype: Datatype) -> Result<()> {
        let _ = datatype;
        Ok(())
    }

    /// Returns whether the owner has not closed the memory to peers.
    fn is_open(&self) -> bool;
}
