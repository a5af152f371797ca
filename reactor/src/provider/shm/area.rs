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

use fabric_core::atomic::{AtomicOp, Cell, Datatype};
use fabric_core::buf::Source;
use fabric_core::flags::Access;
use fabric_core::mr::Memory;
use fabric_core::{Error, Result};
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::memfd;
use crate::provider::origin::Origin;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Where the bytes begin; in front of them is the word that says whether the area is lent.
const BYTES_AT: usize = 4096;
/// The largest area.
const MOST_BYTES: usize = 1 << 40;

/// Larger areas are refused when the machine has not so much memory. The kernel would end processes
/// to find it: shared memory belongs to none.
const UNASKED: usize = 64 << 20;
const ENOMEM: i32 = 12;

const LENT: u32 = 1;
const WITHDRAWN: u32 = 0;

/// A mapped area.
#[derive(Debug)]
pub(crate) struct Area {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access to it is atomic or by raw
// copy.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

/// An area as its owner has it: with the descriptor to pass on.
#[derive(Debug)]
pub(crate) struct OwnArea {
    area: Area,
    fd: OwnedFd,
    origin: Origin,
}

impl OwnArea {
    /// Makes an area of this many bytes, zeroed and backed by memory.
    pub(crate) fn create(len: usize, access: Access) -> Result<Self> {
        if len > MOST_BYTES {
            return Err(Error::TooLong {
                what: "memory region",
                len,
                limit: MOST_BYTES,
            });
        }
        if len > UNASKED && available().is_some_and(|available| len as u64 > available) {
            return Err(Error::os("fallocate", ENOMEM));
        }
        let failed = |call| move |errno: rustix::io::Errno| Error::os(call, errno.raw_os_error());
        let fd = memfd::create("fabric-region", (BYTES_AT + len) as u64, "fallocate")?;
        // All of it now: memory that is missing later would be a SIGBUS, here and at peers.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, (BYTES_AT + len) as u64)
            .map_err(failed("fallocate"))?;
        let area = Area::map(&fd, len, true)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if !access.contains(Access::REMOTE_WRITE) {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        area.word().store(LENT, Ordering::Release);
        Ok(Self {
            area,
            fd,
            origin: Origin::here(),
        })
    }

    pub(crate) fn area(&self) -> &Area {
        &self.area
    }

    /// The descriptor, for a peer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes of memory that can be had, as the kernel estimates.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

impl Memory for OwnArea {
    fn len(&self) -> usize {
        self.area.len
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.area.read(at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.area.write(at, bytes);
    }

    fn execute(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        comparand: u64,
    ) -> u64 {
        self.area.execute(at, op, datatype, operand, comparand)
    }

    fn close(&self) {
        if !self.origin.is_here() {
            return;
        }
        self.area.word().store(WITHDRAWN, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.area.is_lent()
    }

    fn address(&self) -> u64 {
        self.area.at(0, 0).addr().get() as u64
    }
}

impl Area {
    /// Maps what an owner passed on. The text says what is wrong with it.
    pub(crate) fn adopt(fd: &OwnedFd, len: usize, writable: bool) -> Result<Self, &'static str> {
        if len > MOST_BYTES {
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
        if usize::try_from(size) != Ok(BYTES_AT + len) {
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
        let size = BYTES_AT + len;
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
    pub(crate) fn is_lent(&self) -> bool {
        self.word().load(Ordering::Acquire) == LENT
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the first page is mapped and aligned; the word is only accessed as an atomic, and
        // only loaded where the mapping is not writable.
        unsafe { self.base.cast().as_ref() }
    }

    /// The address of byte `at`, from which `len` bytes lie within the area.
    #[inline]
    fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(
            at <= self.len && len <= self.len - at,
            "an access outside of its region"
        );
        // SAFETY: within the mapping, by the line above.
        unsafe { self.base.add(BYTES_AT + at) }
    }

    /// Copies bytes in. One aligned word is written as one: nobody sees half of it.
    #[inline]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "a write to what can only be read");
        let to = self.at(at, bytes.len());
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
        let from = self.at(at, out.len());
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
        let start = self.at(0, len);
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
        let start = self.at(0, len);
        // SAFETY: mapped and writable, by the lines above; the only reference, by the caller.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// Whether these bytes are the first of this mapping.
    pub(crate) fn starts(&self, bytes: &[u8]) -> bool {
        std::ptr::eq(self.at(0, 0).as_ptr(), bytes.as_ptr()) && bytes.len() <= self.len
    }

    /// Part of it, to be copied out.
    pub(crate) fn part(&self, start: usize, len: usize) -> Part<'_> {
        let _ = self.at(start, len);
        Part {
            area: self,
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
        let place = self.at(at, size);
        // SAFETY: mapped and aligned, by the lines above; others reach it as an atomic too, or
        // spoil it.
        let cell = unsafe {
            match size {
                1 => Cell::One(place.cast::<AtomicU8>().as_ref()),
                2 => Cell::Two(place.cast::<AtomicU16>().as_ref()),
                4 => Cell::Four(place.cast::<AtomicU32>().as_ref()),
                _ => Cell::Eight(place.cast::<AtomicU64>().as_ref()),
            }
        };
        cell.execute(op, datatype, operand, comparand)
    }
}

/// An area is memory for its owner and its peers alike; only the owner takes it back.
impl Memory for Area {
    fn len(&self) -> usize {
        Area::len(self)
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        Area::read(self, at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        Area::write(self, at, bytes);
    }

    fn execute(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        comparand: u64,
    ) -> u64 {
        Area::execute(self, at, op, datatype, operand, comparand)
    }

    fn close(&self) {}

    fn is_open(&self) -> bool {
        self.is_lent()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nobody can reach it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), BYTES_AT + self.len) };
    }
}

/// Bytes of an area.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    area: &'a Area,
    start: usize,
    len: usize,
}

impl Source for Part<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "within the part"
        );
        self.area.copy_out(self.start + from, dst);
        // SAFETY: `copy_out` initialised all of it.
        unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), dst.len()) }
    }

    fn copy_over(&self, from: usize, dst: &mut [u8]) {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "within the part"
        );
        self.area.read(self.start + from, dst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

    fn adopt(lent: &OwnArea, writable: bool) -> Result<Area, &'static str> {
        let fd = lent.fd().try_clone_to_owned().unwrap();
        Area::adopt(&fd, lent.len(), writable)
    }

    #[test]
    fn what_one_side_does_the_other_sees() {
        let lent = OwnArea::create(10_000, BOTH).unwrap();
        let area = adopt(&lent, true).unwrap();
        assert!(area.is_lent());
        let bytes: Vec<u8> = (0..5000).map(|at| at as u8).collect();
        area.write(17, &bytes);
        let mut back = vec![0; 5000];
        lent.read(17, &mut back);
        assert_eq!(back, bytes);
        lent.write(64, &7u64.to_le_bytes());
        assert_eq!(area.execute(64, AtomicOp::Sum, Datatype::U64, 5, 0), 7);
        assert_eq!(lent.execute(64, AtomicOp::Read, Datatype::U64, 0, 0), 12);
        assert_eq!(area.execute(67, AtomicOp::Write, Datatype::U8, 1, 0), 0);
        assert_eq!(
            lent.execute(64, AtomicOp::Read, Datatype::U32, 0, 0),
            12 + (1 << 24)
        );
        let mut copy = Vec::with_capacity(20);
        copy.extend_from_slice(&[0; 20]);
        area.part(17, 20).copy_over(0, &mut copy);
        assert_eq!(copy, bytes[..20]);
        lent.close();
        assert!(!area.is_lent());
        drop(lent);
        area.write(0, b"the memory stays as long as somebody has it");
    }

    /// What may only be read cannot be mapped for writing by who passes the check in our code, or
    /// leaves it out.
    #[test]
    fn rights_hold_against_who_does_not_ask() {
        let lent = OwnArea::create(100, Access::REMOTE_READ).unwrap();
        assert!(adopt(&lent, false).is_ok());
        assert_eq!(
            adopt(&lent, true).unwrap_err(),
            "memory that cannot be mapped"
        );
    }

    #[test]
    fn only_sealed_memory_of_the_announced_size_is_mapped() {
        let lent = OwnArea::create(100, BOTH).unwrap();
        let fd = lent.fd().try_clone_to_owned().unwrap();
        assert!(
            Area::adopt(&fd, 101, true)
                .unwrap_err()
                .contains("another size")
        );
        assert!(
            Area::adopt(&fd, usize::MAX, true)
                .unwrap_err()
                .contains("too large")
        );
        let bare = memfd::create("bare", 0, "ftruncate").unwrap();
        rustix::fs::ftruncate(&bare, (BYTES_AT + 100) as u64).unwrap();
        assert!(
            Area::adopt(&bare, 100, true)
                .unwrap_err()
                .contains("not sealed")
        );
        assert!(Area::adopt(&std::fs::File::open("/dev/null").unwrap().into(), 0, false).is_err());
        assert!(matches!(
            OwnArea::create(usize::MAX, BOTH),
            Err(Error::TooLong { .. })
        ));
    }

    #[test]
    fn nothing_reaches_outside() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let lent = OwnArea::create(100, BOTH).unwrap();
        let outside = |access: &dyn Fn()| catch_unwind(AssertUnwindSafe(access)).is_err();
        assert!(outside(&|| lent.write(93, &[0; 8])));
        assert!(outside(&|| lent.read(usize::MAX, &mut [0; 8])));
        assert!(outside(&|| assert!(lent.area.part(101, 0).is_empty())));
        assert!(outside(&|| {
            let _ = lent.execute(96, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(outside(&|| {
            let _ = lent.execute(4, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(lent.area.part(100, 0).is_empty());
    }
}
