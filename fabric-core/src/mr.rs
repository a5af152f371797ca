//! Memory regions: the memory behind a key, and the table of regions with their keys, access rights
//! and bounds.
//!
//! A peer names a region by its key. Every access is checked before a byte moves: the key exists,
//! the right was granted, and the range is inside the region.

mod access_error;
mod iov;
mod local;
mod pages;
mod raw_key;
mod registered;
mod table;

use std::any::Any;
use std::fmt::{self, Debug};
use std::num::NonZeroU64;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::atomic::{AtomicOp, AtomicSpec, Datatype, bits_at};
use crate::completion::OpKind;
use crate::error::{Error, Result, fi_errno};
use crate::flags::Access;

pub use access_error::AccessError;
pub use iov::RmaIov;
pub use local::{LocalBuffer, LocalUse};
pub(crate) use local::{LocalRegistration, registration_of};
pub use pages::RefreshedPages;
pub use raw_key::{RAW_KEY_LEN, decode_raw_key, encode_raw_key};
pub use registered::RegisteredMemory;
pub use table::RegionTable;

/// The memory of a region, as its owner's process holds it. Peers write it at the same time, so
/// bytes are copied in and out, never borrowed.
pub trait RegionMemory: Any + Debug + Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Returns whether the memory has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out, from byte `at` on.
    ///
    /// # Panics
    /// When the range exceeds the memory.
    fn read(&self, at: usize, out: &mut [u8]);

    /// Copies bytes in, to byte `at`.
    ///
    /// # Panics
    /// When the range exceeds the memory.
    fn write(&self, at: usize, bytes: &[u8]);

    /// Executes an atomic operation on the value at byte `at`, a multiple of the value's size, and
    /// returns the old value. Values are bit patterns, as in [`AtomicOp::compute`].
    ///
    /// # Panics
    /// When the value exceeds the memory or is not aligned to its size.
    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u128,
        comparand: u128,
    ) -> u128;

    /// Closes the memory to peers. Accesses that are in progress may still take effect.
    fn close(&self);

    /// Returns whether peers can access the memory.
    fn is_open(&self) -> bool;

    /// Returns the error of accesses to a peer's memory after the connection to the peer has ended;
    /// `None` while accesses are possible.
    fn disconnect_error(&self) -> Option<Error> {
        None
    }

    /// Returns the virtual address of the first byte in the owner's process.
    fn address(&self) -> u64 {
        0
    }

    /// Returns the virtual addresses and lengths of the pieces of a range, which is inside the
    /// memory.
    fn addresses(&self, range: Range<usize>) -> Vec<(u64, usize)> {
        vec![(self.address() + range.start as u64, range.len())]
    }

    /// Returns how often the memory was seen to have moved to other addresses.
    fn moves(&self) -> u64 {
        0
    }

    /// Checks that atomic operations on values of this type can be executed here.
    ///
    /// # Errors
    /// [`Error::NotSupported`].
    fn check_atomic(&self, datatype: Datatype) -> Result<()> {
        let _ = datatype;
        Ok(())
    }

    /// Prepares the memory for peers. The table of regions calls it when it cannot refuse the
    /// registration any more, before a peer can look up the key. The caller holds locks, so the
    /// call must be short.
    fn prepare_for_peers(&self) {}

    /// Returns whether peers reach the memory only through its owner's process.
    fn is_served_by_owner(&self) -> bool {
        false
    }

    /// Begins an access by a peer, for [`PeerAccess`]. Returns false, and begins no access, when
    /// the owner holds or has closed the memory.
    #[must_use]
    fn begin_access(&self) -> bool {
        true
    }

    /// Ends an access that [`begin_access`](Self::begin_access) began.
    fn end_access(&self) {}
}

/// An access by a peer that is in progress: the owner of the memory waits for its end, the drop.
pub struct PeerAccess<'a>(&'a dyn RegionMemory);

impl<'a> PeerAccess<'a> {
    /// Begins an access; `None` when the owner holds or has closed the memory.
    #[must_use]
    pub fn begin(memory: &'a dyn RegionMemory) -> Option<Self> {
        memory.begin_access().then(|| Self(memory))
    }

    /// Returns whether an access to the memory need not wait: its owner does not hold it, or it is
    /// closed.
    #[must_use]
    pub fn is_possible(memory: &'a dyn RegionMemory) -> bool {
        Self::begin(memory).is_some() || !memory.is_open()
    }
}

impl Deref for PeerAccess<'_> {
    type Target = dyn RegionMemory;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl Drop for PeerAccess<'_> {
    fn drop(&mut self) {
        self.0.end_access();
    }
}

impl Debug for PeerAccess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerAccess").field(&self.0).finish()
    }
}

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
    /// The memory. It reports that it is closed when its owner has closed the region or died.
    pub memory: Arc<dyn RegionMemory>,
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
    memory: &dyn RegionMemory,
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

/// The largest number of bytes copied under the lock at a time, so that an access does not block
/// other accesses for long.
const COPY_CHUNK: usize = 256 << 10;

/// Memory of this process alone: peers reach it through a transport inside this process.
#[derive(Debug)]
pub struct LocalMemory {
    bytes: std::sync::Mutex<Vec<u8>>,
    len: usize,
    closed: AtomicBool,
}

impl LocalMemory {
    /// Allocates memory of this many bytes, zeroed.
    ///
    /// # Errors
    /// [`Error::Os`] when the allocation fails.
    pub fn new(len: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len)
            .map_err(|_| Error::os("malloc", fi_errno::ENOMEM))?;
        bytes.resize(len, 0);
        Ok(Self {
            bytes: bytes.into(),
            len,
            closed: AtomicBool::new(false),
        })
    }

    /// Calls `access` with all bytes, under the lock.
    fn with_bytes<T>(&self, access: impl FnOnce(&mut [u8]) -> T) -> T {
        access(
            &mut self
                .bytes
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        )
    }
}

impl RegionMemory for LocalMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        for (index, chunk) in out.chunks_mut(COPY_CHUNK).enumerate() {
            let at = at + index * COPY_CHUNK;
            self.with_bytes(|bytes| chunk.copy_from_slice(&bytes[at..at + chunk.len()]));
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        for (index, chunk) in from.chunks(COPY_CHUNK).enumerate() {
            let at = at + index * COPY_CHUNK;
            self.with_bytes(|bytes| bytes[at..at + chunk.len()].copy_from_slice(chunk));
        }
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u128,
        comparand: u128,
    ) -> u128 {
        let size = datatype.size();
        assert_aligned(at, size);
        self.with_bytes(|bytes| {
            let bytes = &mut bytes[at..at + size];
            let old = bits_at(bytes, 0, size);
            let new = op.compute(datatype, old, operand, comparand);
            bytes.copy_from_slice(&new.to_le_bytes()[..size]);
            old
        })
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    fn address(&self) -> u64 {
        self.with_bytes(|bytes| bytes.as_ptr().addr() as u64)
    }

    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }
}

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
