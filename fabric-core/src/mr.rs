//! Memory regions: the memory behind a key, and the table of regions with their keys, access rights
//! and bounds.
//!
//! A peer names a region by its key. Every access is checked before a byte moves: the key exists,
//! the right was granted, and the range is inside the region.

mod access_error;
mod bytes;
mod iov;
mod local;
mod local_memory;
mod memory;
mod pages;
mod raw_key;
mod registered;
mod table;

use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use crate::atomic::{AtomicOp, AtomicSpec, bits_at};
use crate::completion::OpKind;
use crate::error::{Error, Result};
use crate::flags::Access;

pub use access_error::AccessError;
pub use bytes::RegionBytes;
pub use iov::RmaIov;
pub use local::{LocalBuffer, LocalUse};
pub(crate) use local::{LocalRegistration, registration_of};
pub use local_memory::LocalMemory;
pub use memory::{PeerAccess, RegionMemory};
pub use pages::RefreshedPages;
pub use raw_key::{RAW_KEY_LEN, decode_raw_key, encode_raw_key};
pub use registered::RegisteredMemory;
pub use table::RegionTable;

/// A memory region: what a key stands for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Region {
    /// The memory.
    pub memory: Arc<dyn RegionMemory>,
    /// The access rights of peers: none before a region is enabled that has to be.
    pub access: Access,
    /// The offset of the first byte in peers' addressing: 0, or its virtual address
    /// (`FI_MR_VIRT_ADDR`).
    pub base: u64,
    /// Whether the owner is notified of every operation of peers on the region (`FI_RMA_EVENT`).
    pub rma_events: bool,
    /// The id of the only endpoint through which peers access the region (`FI_MR_ENDPOINT`).
    pub endpoint: Option<NonZeroU64>,
    /// The pages that peers can access, if the owner tells them (`FI_MR_MMU_NOTIFY`).
    pub pages: Option<Arc<RefreshedPages>>,
}

impl Region {
    /// Returns the offset in the memory at which an access begins, after checking its range and the
    /// alignment of atomic values.
    ///
    /// # Errors
    /// As [`check_range`].
    pub fn checked_offset(&self, offset: u64, len: usize, align: usize) -> Result<usize> {
        check_range(
            self.memory.len(),
            offset.wrapping_sub(self.base),
            len,
            align,
        )
    }
}

/// A region of a peer that this process can access without help of the peer's process.
#[derive(Clone, Debug)]
pub struct DirectRegion {
    /// The bytes. They report that they are closed when their owner has closed the region.
    pub memory: Arc<dyn RegionBytes>,
    /// The error of accesses after the end of the connection to the owner; unset before.
    pub disconnected: Arc<OnceLock<Error>>,
    /// The granted access rights.
    pub access: Access,
}

impl DirectRegion {
    /// The error for a region that its owner's process serves.
    #[doc(hidden)]
    pub const NOT_MAPPABLE: Error = Error::NotSupported(
        "windows of a registered buffer or of a region without REMOTE_READ; use read and write",
    );

    /// The error for a region whose owner counts remote accesses.
    #[doc(hidden)]
    pub const NEEDS_RMA_EVENTS: Error = Error::NotSupported(
        "windows of a region whose owner counts remote accesses; use read and write",
    );
}

/// Checks a range of a region of `region_len` bytes and the alignment of atomic values, and returns
/// the offset at which the range begins.
///
/// # Errors
/// [`Error::OutOfBounds`] when the range exceeds the region, [`Error::Invalid`] when the offset is
/// not a multiple of `align`.
#[inline]
pub fn check_range(region_len: usize, offset: u64, len: usize, align: usize) -> Result<usize> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    match start.checked_add(len) {
        Some(end) if end <= region_len => {}
        _ => {
            return Err(Error::OutOfBounds {
                offset,
                len,
                limit: region_len,
            });
        }
    }
    if !start.is_multiple_of(align) {
        return Err(misaligned_error(offset, align));
    }
    Ok(start)
}

/// Returns the error of an atomic operation whose offset is not a multiple of the value's size.
fn misaligned_error(offset: u64, size: usize) -> Error {
    Error::Invalid {
        what: "offset of an atomic operation",
        why: format!("{offset} is not a multiple of {size}, the size of a value"),
    }
}

/// Returns the access rights that an operation needs.
#[must_use]
#[inline]
pub fn required_access(kind: OpKind, atomic: Option<AtomicOp>) -> Access {
    match (kind, atomic) {
        (OpKind::Read, _) | (_, Some(AtomicOp::Read)) => Access::REMOTE_READ,
        (OpKind::FetchAtomic, _) => Access::REMOTE_READ.union(Access::REMOTE_WRITE),
        _ => Access::REMOTE_WRITE,
    }
}

/// Checks that the granted access rights include the required ones.
///
/// # Errors
/// [`Error::Key`] when a required right is not granted.
#[inline]
pub fn check_access(key: u64, granted: Access, required: Access) -> Result<()> {
    if granted.contains(required) {
        return Ok(());
    }
    Err(not_granted_error(key, required.difference(granted)))
}

/// Returns the error of an access to a region that does not grant all of these rights.
#[cold]
fn not_granted_error(key: u64, missing: Access) -> Error {
    let why = if missing.contains(Access::REMOTE_READ | Access::REMOTE_WRITE) {
        "does not grant both REMOTE_READ and REMOTE_WRITE"
    } else if missing.contains(Access::REMOTE_READ) {
        "does not grant REMOTE_READ"
    } else {
        "does not grant REMOTE_WRITE"
    };
    Error::Key { key, why }
}

/// Executes an atomic operation on an array of values from byte `at` on. `operands` holds the
/// operands, followed by the comparands of a compare operation. `result` receives each old value
/// that fits.
pub fn execute_atomic_array(
    memory: &dyn RegionBytes,
    at: usize,
    remote: &RmaIov,
    operands: &[u8],
    result: &mut [u8],
) {
    let Some(AtomicSpec { op, datatype, .. }) = remote.atomic else {
        return;
    };
    let size = datatype.size();
    let count = remote.len / size;
    for index in 0..count {
        let (operand, comparand) = (
            bits_at(operands, index, size),
            bits_at(operands, count + index, size),
        );
        let old = memory.execute_atomic(at + index * size, op, datatype, operand, comparand);
        if let Some(result) = result.get_mut(index * size..(index + 1) * size) {
            result.copy_from_slice(&old.to_le_bytes()[..size]);
        }
    }
}

/// Panics unless byte `at` is aligned to the size of an atomic value.
fn assert_aligned(at: usize, size: usize) {
    assert!(
        at.is_multiple_of(size),
        "byte {at} is not aligned to the {size} bytes of an atomic value"
    );
}

/// The key of a region that has none yet (`FI_KEY_NOTAVAIL`); no region has it.
pub const KEY_NOTAVAIL: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_rights_and_ranges_are_checked() {
        let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
        assert_eq!(required_access(OpKind::Read, None), read);
        assert_eq!(required_access(OpKind::Write, None), write);
        assert_eq!(required_access(OpKind::Atomic, Some(AtomicOp::Sum)), write);
        assert_eq!(
            required_access(OpKind::FetchAtomic, Some(AtomicOp::Sum)),
            read | write
        );
        assert_eq!(
            required_access(OpKind::FetchAtomic, Some(AtomicOp::Read)),
            read
        );
        assert!(check_access(1, read | write, write).is_ok());
        assert!(
            check_access(1, read, write).is_err() && check_access(1, write, read | write).is_err()
        );
        assert_eq!(check_range(100, 100, 0, 1), Ok(100));
        assert_eq!(check_range(100, 0, 100, 1), Ok(0));
        for (offset, len) in [
            (1, 100),
            (100, 1),
            (u64::MAX, 2),
            (u64::MAX, 0),
            (3, usize::MAX),
        ] {
            assert!(check_range(100, offset, len, 1).is_err(), "{offset} {len}");
        }
        assert_eq!(check_range(100, 96, 4, 4), Ok(96));
        assert!(matches!(
            check_range(100, 94, 4, 4),
            Err(Error::Invalid { .. })
        ));
    }
}
