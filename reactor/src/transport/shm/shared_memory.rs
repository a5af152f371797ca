//! Shared memory that its owner grants to peers, which map and access it directly: regions, chunks
//! of loans, and bounce buffers.
//!
//! The owner creates the memory (a memfd), seals its size, and sends the descriptor in a grant. A
//! peer maps the memory only if it is sealed and has the announced size. So no access within the
//! mapping can fault, whatever the owner does. Memory that peers may only read is sealed against
//! writable mappings other than the owner's.
//!
//! Decision: the validity of a region is a word in its first page, which every access of a peer
//! checks, in its own cache as long as the word does not change. So revoking a key needs no round
//! trip to the peers. (Loans do not use the word.) A peer with write permission can corrupt the
//! bytes that it may write, and the word; the owner relies on neither.
//!
//! # Safety
//!
//! This module holds raw access to memory that other processes write concurrently. As in `segment`,
//! `SharedMapping::base` is a mapping of `DATA_OFFSET + len` bytes that lives as long as the value.
//! Words are accessed as atomics. Bytes are copied by raw pointer after the range was checked, and
//! never borrowed, except by `loans`, whose head argues why that is sound.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use fabric_core::atomic::{AtomicCell, AtomicOp, Datatype};
use fabric_core::buf::CopySource;
use fabric_core::flags::Access;
use fabric_core::mr::RegionMemory;
use fabric_core::{Error, Result};
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::sys::fork_guard::ForkGuard;
use crate::sys::memfd;
use crate::sys::os_error::os_error;

/// Offset of the data in the memory; the page before holds the validity word.
const DATA_OFFSET: usize = 4096;
/// Maximum bytes of data.
const MAX_REGION_LEN: usize = 1 << 40;

/// Length above which memory is created only if the machine has that much available. Otherwise the
/// OOM killer might end processes, to no avail since shared memory is charged to no process.
const MEMORY_CHECK_THRESHOLD: usize = 64 << 20;

// Values of the validity word.
const STATE_VALID: u32 = 1;
const STATE_REVOKED: u32 = 0;

/// Mapped shared memory, at its owner or at a peer.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    base: NonNull<u8>,
    /// Bytes of data.
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access to it is atomic or by raw
// copy.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

/// Shared memory at its owner.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    mapping: SharedMapping,
    /// Descriptor that peers are granted.
    fd: OwnedFd,
    /// A forked child must not revoke the memory of its parent.
    fork_guard: ForkGuard,
}

impl SharedMemory {
    /// Creates shared memory with `len` bytes of data, zeroed and allocated. Peers can write the
    /// memory only if `access` has `REMOTE_WRITE`.
    ///
    /// # Errors
    /// [`Error::TooLong`], and errors of the operating system, such as `ENOMEM`.
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
            return Err(Error::os("fallocate", Errno::NOMEM.raw_os_error()));
        }
        let fd = memfd::create("fabric-region", (DATA_OFFSET + len) as u64, "fallocate")?;
        // All pages are allocated now: touching a page that cannot be allocated raises SIGBUS.
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

    /// Returns the descriptor to grant to peers.
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
    /// Maps memory with `len` bytes of data that a peer granted.
    ///
    /// # Errors
    /// The defect of the grant, or that this process cannot map it.
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
        // Memory in hugetlbfs can raise SIGBUS when it is touched, despite the seals.
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        let file_system =
            rustix::fs::fstatfs(fd).map_err(|_| "grants memory of an unknown file system")?;
        if file_system.f_type as u64 != TMPFS_MAGIC {
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

    /// Maps the validity word and `len` bytes of data.
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
        let base =
            NonNull::new(base.cast()).ok_or(Error::os("mmap", Errno::NOMEM.raw_os_error()))?;
        Ok(Self {
            base,
            len,
            writable,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the owner has not revoked the memory.
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
            "access of {len} bytes at byte {at} of shared memory of {} bytes",
            self.len
        );
        // SAFETY: within the mapping, by the assertion above.
        unsafe { self.base.add(DATA_OFFSET + at) }
    }

    /// Copies bytes to byte `at` of the data. Eight bytes at a multiple of eight are stored as one
    /// atomic word with release.
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

    /// Copies bytes from byte `at` of the data on. Eight bytes at a multiple of eight are loaded as
    /// one atomic word with acquire.
    #[inline]
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: initialised bytes are valid as possibly uninitialised ones, and `copy_out` only
        // initialises.
        self.copy_out(at, unsafe {
            &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<u8>])
        });
    }

    /// Initialises `out` as [`read`](Self::read) does.
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

    /// Borrows the first `len` bytes of the data.
    ///
    /// # Safety
    /// The bytes must not be written while the result lives, neither here nor in another process.
    pub(crate) unsafe fn slice(&self, len: usize) -> &[u8] {
        let start = self.ptr_at(0, len);
        // SAFETY: mapped, by the check above; unchanged, by the caller's guarantee.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Borrows the first `len` bytes of the data for writing.
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

    /// Returns whether `bytes` is a slice of the first bytes of the data: the same memory, not
    /// equal bytes.
    pub(crate) fn is_prefix(&self, bytes: &[u8]) -> bool {
        std::ptr::eq(self.ptr_at(0, 0).as_ptr(), bytes.as_ptr()) && bytes.len() <= self.len
    }

    /// Returns `len` bytes from byte `start` of the data, to be copied out.
    ///
    /// # Panics
    /// If the range is not within the data.
    pub(crate) fn range(&self, start: usize, len: usize) -> MappedRange<'_> {
        let _ = self.ptr_at(start, len);
        MappedRange {
            mapping: self,
            start,
            len,
        }
    }

    /// Executes an atomic operation on the value at byte `at`. Returns the value before.
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
        // SAFETY: mapped and aligned, by the checks above. Other processes access the value as an
        // atomic too; a process that does not can only corrupt the value.
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

/// Lets `execute_atomic_array` access a mapping at a peer, which cannot close the region.
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

/// A range of the data of a mapping.
#[derive(Debug)]
pub(crate) struct MappedRange<'a> {
    mapping: &'a SharedMapping,
    start: usize,
    len: usize,
}

impl MappedRange<'_> {
    /// Writes `len` bytes from byte `from` of the range to a descriptor, with one `write(2)`.
    /// Returns the number of bytes written.
    pub(crate) fn write_to(
        &self,
        fd: BorrowedFd<'_>,
        from: usize,
        len: usize,
    ) -> std::io::Result<usize> {
        assert!(
            from <= self.len && len <= self.len - from,
            "access of {} bytes at byte {from} of a range of {} bytes",
            len,
            self.len
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
            "access of {} bytes at byte {from} of a range of {} bytes",
            dst.len(),
            self.len
        );
        self.mapping.copy_out(self.start + from, dst);
        // SAFETY: `copy_out` initialised all of it.
        unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), dst.len()) }
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "access of {} bytes at byte {from} of a range of {} bytes",
            dst.len(),
            self.len
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
    fn writes_and_atomics_are_visible_through_both_mappings() {
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
        // The mapping outlives its owner.
        mapping.write(0, b"bytes");
    }

    /// The kernel refuses a writable mapping, also to a peer that does not check the grant.
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
        let unsealed = memfd::create("unsealed", 0, "ftruncate").unwrap();
        rustix::fs::ftruncate(&unsealed, (DATA_OFFSET + 100) as u64).unwrap();
        assert!(
            SharedMapping::map_from_peer(&unsealed, 100, true)
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
    fn out_of_bounds_and_unaligned_accesses_panic() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let owner = SharedMemory::create(100, READ_WRITE).unwrap();
        let panics = |access: &dyn Fn()| catch_unwind(AssertUnwindSafe(access)).is_err();
        assert!(panics(&|| owner.write(93, &[0; 8])));
        assert!(panics(&|| owner.read(usize::MAX, &mut [0; 8])));
        assert!(panics(&|| assert!(owner.mapping.range(101, 0).is_empty())));
        assert!(panics(&|| {
            let _ = owner.execute_atomic(96, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(panics(&|| {
            let _ = owner.execute_atomic(4, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(owner.mapping.range(100, 0).is_empty());
    }
}
