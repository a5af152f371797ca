//! Shared memory regions: memory that its owner grants to peers, which map and access it directly.
//!
//! The owner creates the memory (a memfd), seals its size, and passes the descriptor to peers that
//! request its key. A peer maps it only if it is sealed and has the announced size, so no access
//! within it can fault, whatever the owner does. Memory that peers may only read is sealed against
//! further writable mappings once its owner has one.
//!
//! The first page holds a word that says whether the region is valid. Every access of a peer checks
//! it, in its own cache as long as nothing changes; loans are returned in another way (`loans`). A
//! peer with write permission can corrupt what it may write, and that word; the owner relies on
//! neither.
//!
//! Decision: a region's validity is a word in its first page, which every access checks. Revoking a
//! key therefore needs no round trip to the peers.
//!
//! # Safety
//!
//! This module holds raw access to memory that others write concurrently. As in `segment`, `base`
//! is a mapping of one page and `len` bytes that lives as long as the value; words are accessed as
//! atomics; bytes are copied by raw pointer after the range was checked, and never borrowed, except
//! by `loans`, which has an argument of its own.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use fabric_core::atomic::{AtomicCell, AtomicOp, Datatype};
use fabric_core::buf::CopySource;
use fabric_core::flags::Access;
use fabric_core::mr::RegionMemory;
use fabric_core::{Error, Result};
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::memfd;
use crate::transport::fork_guard::ForkGuard;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Offset of the bytes; in front of them is the validity word.
const DATA_OFFSET: usize = 4096;
/// Maximum bytes of a region.
const MAX_REGION_LEN: usize = 1 << 40;

/// Larger regions are refused if the machine lacks that much memory: the kernel would kill
/// processes to find it, since shared memory is charged to none.
const MEMORY_CHECK_THRESHOLD: usize = 64 << 20;
const ENOMEM: i32 = 12;

const STATE_VALID: u32 = 1;
const STATE_REVOKED: u32 = 0;

/// A mapped region or chunk.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access to it is atomic or by raw
// copy.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

/// Shared memory at its owner, with the descriptor to pass to peers.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    mapping: SharedMapping,
    fd: OwnedFd,
    fork_guard: ForkGuard,
}

impl SharedMemory {
    /// Creates shared memory of `len` bytes, zeroed and allocated.
    pub(crate) fn create(len: usize, access: Access) -> Result<Self> {
        if len > MAX_REGION_LEN {
            return Err(Error::TooLong {
                what: "memory region",
                len,
                limit: MAX_REGION_LEN,
            });
        }
        if len > MEMORY_CHECK_THRESHOLD
            && available_memory().is_some_and(|available| len as u64 > available)
        {
            return Err(Error::os("fallocate", ENOMEM));
        }
        let os_error = |call| move |errno: rustix::io::Errno| Error::os(call, errno.raw_os_error());
        let fd = memfd::create("fabric-region", (DATA_OFFSET + len) as u64, "fallocate")?;
        // All pages are allocated now: a missing page would raise SIGBUS later, here and at peers.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, (DATA_OFFSET + len) as u64)
            .map_err(os_error("fallocate"))?;
        let mapping = SharedMapping::map(&fd, len, true)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if !access.contains(Access::REMOTE_WRITE) {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(os_error("fcntl(F_ADD_SEALS)"))?;
        mapping.state_word().store(STATE_VALID, Ordering::Release);
        Ok(Self {
            mapping,
            fd,
            fork_guard: ForkGuard::current_process(),
        })
    }

    pub(crate) fn mapping(&self) -> &SharedMapping {
        &self.mapping
    }

    /// Returns the descriptor, for peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the available memory in bytes, as the kernel estimates it.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

impl RegionMemory for SharedMemory {
    fn len(&self) -> usize {
        self.mapping.len
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.mapping.read(at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.mapping.write(at, bytes);
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        comparand: u64,
    ) -> u64 {
        self.mapping.execute(at, op, datatype, operand, comparand)
    }

    fn close(&self) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        self.mapping
            .state_word()
            .store(STATE_REVOKED, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.mapping.is_valid()
    }

    fn address(&self) -> u64 {
        self.mapping.ptr_at(0, 0).addr().get() as u64
    }
}

impl SharedMapping {
    /// Maps memory that a peer granted. The error says what is wrong with the grant.
    pub(crate) fn map_from_peer(
        fd: &OwnedFd,
        len: usize,
        writable: bool,
    ) -> Result<Self, &'static str> {
        if len > MAX_REGION_LEN {
            return Err("grants a region that is too large");
        }
        let seals =
            rustix::fs::fcntl_get_seals(fd).map_err(|_| "grants memory that cannot be sealed")?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::SEAL) {
            return Err("grants memory that is not sealed");
        }
        // Huge pages can be missing when they are touched, despite the seals.
        const TMPFS: u64 = 0x0102_1994;
        let system =
            rustix::fs::fstatfs(fd).map_err(|_| "grants memory of an unknown file system")?;
        if system.f_type as u64 != TMPFS {
            return Err("grants memory that is not in tmpfs");
        }
        let size = rustix::fs::fstat(fd)
            .map_err(|_| "grants memory without a size")?
            .st_size;
        if usize::try_from(size) != Ok(DATA_OFFSET + len) {
            return Err("grants memory of another size than announced");
        }
        Self::map(fd, len, writable).map_err(|_| "grants memory that cannot be mapped")
    }

    fn map(fd: impl AsFd, len: usize, writable: bool) -> Result<Self> {
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        let size = DATA_OFFSET + len;
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size,
                protection,
                MapFlags::SHARED,
                fd,
                0,
            )
        };
        let base = base.map_err(|errno| Error::os("mmap", errno.raw_os_error()))?;
        let base = NonNull::new(base.cast()).ok_or(Error::os("mmap", 12))?;
        Ok(Self {
            base,
            len,
            writable,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the owner has not revoked the region.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.state_word().load(Ordering::Acquire) == STATE_VALID
    }

    fn state_word(&self) -> &AtomicU32 {
        // SAFETY: the first page is mapped and aligned; the word is only accessed as an atomic, and
        // only loaded where the mapping is not writable.
        unsafe { self.base.cast().as_ref() }
    }

    /// Returns the address of byte `at`, after checking that `len` bytes from there are in the
    /// region.
    #[inline]
    fn ptr_at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(
            at <= self.len && len <= self.len - at,
            "access outside of the region"
        );
        // SAFETY: within the mapping, by the assertion above.
        unsafe { self.base.add(DATA_OFFSET + at) }
    }

    /// Copies bytes into the region. One aligned word is written atomically.
    #[inline]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "write to a read-only mapping");
        let to = self.ptr_at(at, bytes.len());
        match <[u8; 8]>::try_from(bytes) {
            Ok(word) if at.is_multiple_of(8) => {
                // SAFETY: eight mapped bytes at a multiple of eight, since the mapping begins at a
                // page.
                let cell: &AtomicU64 = unsafe { to.cast().as_ref() };
                cell.store(u64::from_ne_bytes(word), Ordering::Release);
            }
            // SAFETY: `ptr_at` checked the range; `bytes` is ordinary memory, so the two do not
            // overlap.
            _ => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) },
        }
    }

    /// Copies bytes from the region. One aligned word is read atomically.
    #[inline]
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: initialised bytes are valid as possibly uninitialised ones, and `copy_out` only
        // initialises.
        self.copy_out(at, unsafe {
            &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<u8>])
        });
    }

    #[inline]
    fn copy_out(&self, at: usize, out: &mut [MaybeUninit<u8>]) {
        let from = self.ptr_at(at, out.len());
        if out.len() == 8 && at.is_multiple_of(8) {
            // SAFETY: eight mapped bytes at a multiple of eight.
            let cell: &AtomicU64 = unsafe { from.cast().as_ref() };
            let word = cell.load(Ordering::Acquire).to_ne_bytes();
            // SAFETY: `out` has room for eight bytes.
            return unsafe {
                std::ptr::copy_nonoverlapping(word.as_ptr(), out.as_mut_ptr().cast(), 8)
            };
        }
        // SAFETY: `ptr_at` checked the range; `out` is ordinary memory, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr().cast(), out.len()) };
    }

    /// Borrows the first `len` bytes.
    ///
    /// # Safety
    /// The bytes must not be written while the result lives, neither here nor in another process.
    pub(crate) unsafe fn slice(&self, len: usize) -> &[u8] {
        let start = self.ptr_at(0, len);
        // SAFETY: mapped, by the check above; unchanged, by the caller's guarantee.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Borrows the first `len` bytes for writing.
    ///
    /// # Safety
    /// No other code may access the bytes while the result lives, except peers that only copy them.
    #[allow(clippy::mut_from_ref)] // the caller guarantees exclusive access
    pub(crate) unsafe fn slice_mut(&self, len: usize) -> &mut [u8] {
        assert!(self.writable, "write to a read-only mapping");
        let start = self.ptr_at(0, len);
        // SAFETY: mapped and writable, by the checks above; the only reference, by the caller's
        // guarantee.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// Returns whether these bytes are the first bytes of this mapping.
    pub(crate) fn is_prefix(&self, bytes: &[u8]) -> bool {
        std::ptr::eq(self.ptr_at(0, 0).as_ptr(), bytes.as_ptr()) && bytes.len() <= self.len
    }

    /// Returns a part of the region, to be copied out.
    pub(crate) fn range(&self, start: usize, len: usize) -> MappedRange<'_> {
        let _ = self.ptr_at(start, len);
        MappedRange {
            mapping: self,
            start,
            len,
        }
    }

    /// Executes an atomic operation on the value at byte `at`.
    #[inline]
    pub(crate) fn execute(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        comparand: u64,
    ) -> u64 {
        let size = datatype.size();
        assert!(
            at.is_multiple_of(size),
            "atomic operation on an unaligned value"
        );
        assert!(
            self.writable || op == AtomicOp::Read,
            "atomic update of a read-only mapping"
        );
        let ptr = self.ptr_at(at, size);
        // SAFETY: mapped and aligned, by the checks above; other processes access the value as an
        // atomic too, or corrupt it.
        let cell = unsafe {
            match size {
                1 => AtomicCell::U8(ptr.cast::<AtomicU8>().as_ref()),
                2 => AtomicCell::U16(ptr.cast::<AtomicU16>().as_ref()),
                4 => AtomicCell::U32(ptr.cast::<AtomicU32>().as_ref()),
                _ => AtomicCell::U64(ptr.cast::<AtomicU64>().as_ref()),
            }
        };
        cell.execute(op, datatype, operand, comparand)
    }
}

/// A mapping is region memory for its owner and for peers; only the owner closes the region.
impl RegionMemory for SharedMapping {
    fn len(&self) -> usize {
        SharedMapping::len(self)
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        SharedMapping::read(self, at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        SharedMapping::write(self, at, bytes);
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        comparand: u64,
    ) -> u64 {
        SharedMapping::execute(self, at, op, datatype, operand, comparand)
    }

    fn close(&self) {}

    fn is_open(&self) -> bool {
        self.is_valid()
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), DATA_OFFSET + self.len) };
    }
}

/// A range of bytes in a mapping.
#[derive(Debug)]
pub(crate) struct MappedRange<'a> {
    mapping: &'a SharedMapping,
    start: usize,
    len: usize,
}

impl MappedRange<'_> {
    /// Writes `len` bytes from offset `from` on to a descriptor, with one `write(2)`.
    pub(crate) fn write_to(
        &self,
        fd: BorrowedFd<'_>,
        from: usize,
        len: usize,
    ) -> std::io::Result<usize> {
        assert!(
            from <= self.len && len <= self.len - from,
            "access beyond the range"
        );
        let start = self.mapping.ptr_at(self.start + from, len);
        // SAFETY: `len` mapped bytes, which the kernel reads; this process makes no reference to
        // them.
        let written = unsafe { libc::write(fd.as_raw_fd(), start.as_ptr().cast(), len) };
        usize::try_from(written).map_err(|_| std::io::Error::last_os_error())
    }
}

impl CopySource for MappedRange<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "access beyond the range"
        );
        self.mapping.copy_out(self.start + from, dst);
        // SAFETY: `copy_out` initialised all of it.
        unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), dst.len()) }
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "access beyond the range"
        );
        self.mapping.read(self.start + from, dst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

    fn map_as_peer(owner: &SharedMemory, writable: bool) -> Result<SharedMapping, &'static str> {
        let fd = owner.fd().try_clone_to_owned().unwrap();
        SharedMapping::map_from_peer(&fd, owner.len(), writable)
    }

    #[test]
    fn writes_are_visible_through_both_mappings() {
        let owner = SharedMemory::create(10_000, READ_WRITE).unwrap();
        let mapping = map_as_peer(&owner, true).unwrap();
        assert!(mapping.is_valid());
        let bytes: Vec<u8> = (0..5000).map(|at| at as u8).collect();
        mapping.write(17, &bytes);
        let mut back = vec![0; 5000];
        owner.read(17, &mut back);
        assert_eq!(back, bytes);
        owner.write(64, &7u64.to_le_bytes());
        assert_eq!(mapping.execute(64, AtomicOp::Sum, Datatype::U64, 5, 0), 7);
        assert_eq!(
            owner.execute_atomic(64, AtomicOp::Read, Datatype::U64, 0, 0),
            12
        );
        assert_eq!(mapping.execute(67, AtomicOp::Write, Datatype::U8, 1, 0), 0);
        assert_eq!(
            owner.execute_atomic(64, AtomicOp::Read, Datatype::U32, 0, 0),
            12 + (1 << 24)
        );
        let mut copy = Vec::with_capacity(20);
        copy.extend_from_slice(&[0; 20]);
        mapping.range(17, 20).copy_to_init(0, &mut copy);
        assert_eq!(copy, bytes[..20]);
        owner.close();
        assert!(!mapping.is_valid());
        drop(owner);
        mapping.write(0, b"mapped memory outlives its owner");
    }

    /// Read-only memory cannot be mapped writable, neither by this code nor by a peer that skips
    /// its checks.
    #[test]
    fn read_only_memory_cannot_be_mapped_writable() {
        let owner = SharedMemory::create(100, Access::REMOTE_READ).unwrap();
        assert!(map_as_peer(&owner, false).is_ok());
        assert_eq!(
            map_as_peer(&owner, true).unwrap_err(),
            "grants memory that cannot be mapped"
        );
    }

    #[test]
    fn only_sealed_memory_of_announced_size_is_mapped() {
        let owner = SharedMemory::create(100, READ_WRITE).unwrap();
        let fd = owner.fd().try_clone_to_owned().unwrap();
        assert!(
            SharedMapping::map_from_peer(&fd, 101, true)
                .unwrap_err()
                .contains("another size")
        );
        assert!(
            SharedMapping::map_from_peer(&fd, usize::MAX, true)
                .unwrap_err()
                .contains("too large")
        );
        let bare = memfd::create("bare", 0, "ftruncate").unwrap();
        rustix::fs::ftruncate(&bare, (DATA_OFFSET + 100) as u64).unwrap();
        assert!(
            SharedMapping::map_from_peer(&bare, 100, true)
                .unwrap_err()
                .contains("not sealed")
        );
        assert!(
            SharedMapping::map_from_peer(
                &std::fs::File::open("/dev/null").unwrap().into(),
                0,
                false
            )
            .is_err()
        );
        assert!(matches!(
            SharedMemory::create(usize::MAX, READ_WRITE),
            Err(Error::TooLong { .. })
        ));
    }

    #[test]
    fn out_of_bounds_access_panics() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let owner = SharedMemory::create(100, READ_WRITE).unwrap();
        let outside = |access: &dyn Fn()| catch_unwind(AssertUnwindSafe(access)).is_err();
        assert!(outside(&|| owner.write(93, &[0; 8])));
        assert!(outside(&|| owner.read(usize::MAX, &mut [0; 8])));
        assert!(outside(&|| assert!(owner.mapping.range(101, 0).is_empty())));
        assert!(outside(&|| {
            let _ = owner.execute_atomic(96, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(outside(&|| {
            let _ = owner.execute_atomic(4, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(owner.mapping.range(100, 0).is_empty());
    }
}
