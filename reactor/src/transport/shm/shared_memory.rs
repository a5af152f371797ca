//! An area: memory that its owner lends to peers, who map it and reach it by themselves.
//!
//! The owner makes it (a memfd), seals it so that its size can never change, and passes it on to
//! whoever asks with a key. A peer maps it only if it is sealed and as large as it says, so no
//! access within it can fault, whatever the owner does. An area that peers may only read is sealed
//! against writable mappings once its owner has one.
//!
//! Its first page says whether a region is still lent. Every access of a peer to a region looks
//! there first, in its own cache as long as nothing changes; loans have their own way back
//! (`loans`). A peer with the right to write can spoil what it may write, and that word with it;
//! the owner never reads it.
//!
//! # Safety
//!
//! This module holds raw access to memory that others write at the same time. The argument is that
//! of `segment`: `base` is a mapping of one page and `len` bytes, alive as long as the value; words
//! are reached as atomics; bytes are copied from and to it by raw pointer, after the range was
//! checked, and never borrowed, except by `loans`, whose argument stands there.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// Where the bytes begin; in front of them is the word that says whether the area is lent.
const DATA_OFFSET: usize = 4096;
/// The largest area.
const MAX_REGION_LEN: usize = 1 << 40;

/// Larger areas are refused when the machine has not so much memory. The kernel would end processes
/// to find it: shared memory belongs to none.
const MEMORY_CHECK_THRESHOLD: usize = 64 << 20;
const ENOMEM: i32 = 12;

const STATE_VALID: u32 = 1;
const STATE_REVOKED: u32 = 0;

/// A mapped area.
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

/// An area as its owner has it: with the descriptor to pass on.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    mapping: SharedMapping,
    fd: OwnedFd,
    fork_guard: ForkGuard,
}

impl SharedMemory {
    /// Makes an area of this many bytes, zeroed and backed by memory.
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
        let failed = |call| move |errno: rustix::io::Errno| Error::os(call, errno.raw_os_error());
        let fd = memfd::create("fabric-region", (DATA_OFFSET + len) as u64, "fallocate")?;
        // All of it now: memory that is missing later would be a SIGBUS, here and at peers.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, (DATA_OFFSET + len) as u64)
            .map_err(failed("fallocate"))?;
        let area = SharedMapping::map(&fd, len, true)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if !access.contains(Access::REMOTE_WRITE) {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        area.state_word().store(STATE_VALID, Ordering::Release);
        Ok(Self {
            mapping: area,
            fd,
            fork_guard: ForkGuard::current_process(),
        })
    }

    pub(crate) fn mapping(&self) -> &SharedMapping {
        &self.mapping
    }

    /// The descriptor, for a peer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes of memory that can be had, as the kernel estimates.
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
    /// Maps what an owner passed on. The text says what is wrong with it.
    pub(crate) fn map_from_peer(
        fd: &OwnedFd,
        len: usize,
        writable: bool,
    ) -> Result<Self, &'static str> {
        if len > MAX_REGION_LEN {
            return Err("a region that is too large");
        }
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| "memory that cannot be sealed")?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::SEAL) {
            return Err("memory that is not sealed");
        }
        // Memory of huge pages can be missing when it is touched, whatever was sealed.
        const TMPFS: u64 = 0x0102_1994;
        let system = rustix::fs::fstatfs(fd).map_err(|_| "memory of no kind")?;
        if system.f_type as u64 != TMPFS {
            return Err("memory of another kind");
        }
        let size = rustix::fs::fstat(fd)
            .map_err(|_| "memory without a size")?
            .st_size;
        if usize::try_from(size) != Ok(DATA_OFFSET + len) {
            return Err("memory of another size than announced");
        }
        Self::map(fd, len, writable).map_err(|_| "memory that cannot be mapped")
    }

    fn map(fd: impl AsFd, len: usize, writable: bool) -> Result<Self> {
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        let size = DATA_OFFSET + len;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
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

    /// Whether its owner still lends it.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.state_word().load(Ordering::Acquire) == STATE_VALID
    }

    fn state_word(&self) -> &AtomicU32 {
        // SAFETY: the first page is mapped and aligned; the word is only accessed as an atomic, and
        // only loaded where the mapping is not writable.
        unsafe { self.base.cast().as_ref() }
    }

    /// The address of byte `at`, from which `len` bytes lie within the area.
    #[inline]
    fn ptr_at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(
            at <= self.len && len <= self.len - at,
            "an access outside of its region"
        );
        // SAFETY: within the mapping, by the line above.
        unsafe { self.base.add(DATA_OFFSET + at) }
    }

    /// Copies bytes in. One aligned word is written as one: nobody sees half of it.
    #[inline]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "a write to what can only be read");
        let to = self.ptr_at(at, bytes.len());
        match <[u8; 8]>::try_from(bytes) {
            Ok(word) if at.is_multiple_of(8) => {
                // SAFETY: eight mapped bytes at a multiple of eight, since the mapping begins with
                // a page.
                let cell: &AtomicU64 = unsafe { to.cast().as_ref() };
                cell.store(u64::from_ne_bytes(word), Ordering::Release);
            }
            // SAFETY: `at` checked the range; `bytes` is ordinary memory, so the two do not
            // overlap.
            _ => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) },
        }
    }

    /// Copies bytes out. One aligned word is read as one.
    #[inline]
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: a slice of initialised bytes is one of bytes that may be, and `copy_out` only
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
        // SAFETY: `at` checked the range; `out` is ordinary memory, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr().cast(), out.len()) };
    }

    /// The first bytes.
    ///
    /// # Safety
    /// Nobody writes them as long as the result lives, neither here nor in another process.
    pub(crate) unsafe fn slice(&self, len: usize) -> &[u8] {
        let start = self.ptr_at(0, len);
        // SAFETY: mapped, by the line above; unchanged, by the caller.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// The first bytes, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes them as long as the result lives, but peers that only copy.
    #[allow(clippy::mut_from_ref)] // the caller's duty
    pub(crate) unsafe fn slice_mut(&self, len: usize) -> &mut [u8] {
        assert!(self.writable, "a write to what can only be read");
        let start = self.ptr_at(0, len);
        // SAFETY: mapped and writable, by the lines above; the only reference, by the caller.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// Whether these bytes are the first of this mapping.
    pub(crate) fn is_prefix(&self, bytes: &[u8]) -> bool {
        std::ptr::eq(self.ptr_at(0, 0).as_ptr(), bytes.as_ptr()) && bytes.len() <= self.len
    }

    /// Part of it, to be copied out.
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
            "a value lies at a multiple of its size"
        );
        assert!(
            self.writable || op == AtomicOp::Read,
            "a change of what can only be read"
        );
        let place = self.ptr_at(at, size);
        // SAFETY: mapped and aligned, by the lines above; others reach it as an atomic too, or
        // spoil it.
        let cell = unsafe {
            match size {
                1 => AtomicCell::U8(place.cast::<AtomicU8>().as_ref()),
                2 => AtomicCell::U16(place.cast::<AtomicU16>().as_ref()),
                4 => AtomicCell::U32(place.cast::<AtomicU32>().as_ref()),
                _ => AtomicCell::U64(place.cast::<AtomicU64>().as_ref()),
            }
        };
        cell.execute(op, datatype, operand, comparand)
    }
}

/// An area is memory for its owner and its peers alike; only the owner takes it back.
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
        // SAFETY: the mapping is this value's own, and nobody can reach it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), DATA_OFFSET + self.len) };
    }
}

/// Bytes of an area.
#[derive(Debug)]
pub(crate) struct MappedRange<'a> {
    mapping: &'a SharedMapping,
    start: usize,
    len: usize,
}

impl CopySource for MappedRange<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "within the part"
        );
        self.mapping.copy_out(self.start + from, dst);
        // SAFETY: `copy_out` initialised all of it.
        unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), dst.len()) }
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "within the part"
        );
        self.mapping.read(self.start + from, dst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

    fn map_as_peer(lent: &SharedMemory, writable: bool) -> Result<SharedMapping, &'static str> {
        let fd = lent.fd().try_clone_to_owned().unwrap();
        SharedMapping::map_from_peer(&fd, lent.len(), writable)
    }

    #[test]
    fn writes_are_visible_through_both_mappings() {
        let lent = SharedMemory::create(10_000, READ_WRITE).unwrap();
        let area = map_as_peer(&lent, true).unwrap();
        assert!(area.is_valid());
        let bytes: Vec<u8> = (0..5000).map(|at| at as u8).collect();
        area.write(17, &bytes);
        let mut back = vec![0; 5000];
        lent.read(17, &mut back);
        assert_eq!(back, bytes);
        lent.write(64, &7u64.to_le_bytes());
        assert_eq!(area.execute(64, AtomicOp::Sum, Datatype::U64, 5, 0), 7);
        assert_eq!(
            lent.execute_atomic(64, AtomicOp::Read, Datatype::U64, 0, 0),
            12
        );
        assert_eq!(area.execute(67, AtomicOp::Write, Datatype::U8, 1, 0), 0);
        assert_eq!(
            lent.execute_atomic(64, AtomicOp::Read, Datatype::U32, 0, 0),
            12 + (1 << 24)
        );
        let mut copy = Vec::with_capacity(20);
        copy.extend_from_slice(&[0; 20]);
        area.range(17, 20).copy_to_init(0, &mut copy);
        assert_eq!(copy, bytes[..20]);
        lent.close();
        assert!(!area.is_valid());
        drop(lent);
        area.write(0, b"the memory stays as long as somebody has it");
    }

    /// What may only be read cannot be mapped for writing by who passes the check in our code, or
    /// leaves it out.
    #[test]
    fn read_only_memory_cannot_be_mapped_writable() {
        let lent = SharedMemory::create(100, Access::REMOTE_READ).unwrap();
        assert!(map_as_peer(&lent, false).is_ok());
        assert_eq!(
            map_as_peer(&lent, true).unwrap_err(),
            "memory that cannot be mapped"
        );
    }

    #[test]
    fn only_sealed_memory_of_announced_size_is_mapped() {
        let lent = SharedMemory::create(100, READ_WRITE).unwrap();
        let fd = lent.fd().try_clone_to_owned().unwrap();
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
        let lent = SharedMemory::create(100, READ_WRITE).unwrap();
        let outside = |access: &dyn Fn()| catch_unwind(AssertUnwindSafe(access)).is_err();
        assert!(outside(&|| lent.write(93, &[0; 8])));
        assert!(outside(&|| lent.read(usize::MAX, &mut [0; 8])));
        assert!(outside(&|| assert!(lent.mapping.range(101, 0).is_empty())));
        assert!(outside(&|| {
            let _ = lent.execute_atomic(96, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(outside(&|| {
            let _ = lent.execute_atomic(4, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(lent.mapping.range(100, 0).is_empty());
    }
}
