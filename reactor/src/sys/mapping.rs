//! Shared mappings: memory that other processes map and access at the same time.
//!
//! A mapping has a *control page*, for control words, and *data*. Usually both are in one memory.
//! The data can also be a memory of its own, whose control page is in another one
//! ([`SharedMapping::map_data`]). Everything here is bounds-checked, so that users need no unsafe
//! code. Only borrowing the bytes in place is unsafe ([`SharedMapping::slice`]).
//!
//! # Safety
//!
//! A [`DataRange`] is only used while its mapping exists. The bytes of a [`SharedMapping`] are
//! accessed as atomics, because threads of this process and other processes may access them at the
//! same time: such an access yields wrong bytes at most. The bytes of a [`WordMapping`] are
//! accessed as atomics or by raw copy: no two threads of this process access the same bytes by raw
//! copy at the same time, and another process that does can only corrupt the bytes. All accesses
//! are of types for which every bit pattern is valid, and no reference exists to bytes that may
//! change.
//!
//! A mapping that is not writable is never accessed by a store, by a read-modify-write, or by a
//! load that may be compiled as one: it is only accessed by relaxed loads.
//!
//! No access faults if the memory has the mapped size, is allocated or was populated, and is sealed
//! against shrinking (`sys::memfd`).
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU8, AtomicU16, Ordering, fence};

use fabric_core::atomic::{AtomicCell, AtomicOp, Datatype};
use fabric_core::buf::CopySource;
use fabric_core::mr::RegionBytes;
use fabric_core::{Error, Result};
use portable_atomic::AtomicU128;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::atomic_copy;
use super::closer;
use super::fork_guard::ForkGuard;
use super::mapping_limit::MappingPermit;
use super::os_error::os_error;
use super::sync::{AtomicU32, AtomicU64};

/// Bytes of the control page.
pub(crate) const CONTROL_LEN: usize = 4096;

/// The data of a mapping, or a part of it.
#[derive(Clone, Copy, Debug)]
struct DataRange {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread. All access to it is atomic, by raw
// copy of a `WordMapping`, or by the contract of `SharedMapping::slice`.
unsafe impl Send for DataRange {}
// SAFETY: as above.
unsafe impl Sync for DataRange {}

impl DataRange {
    /// Returns the address of byte `at`, after checking that `len` bytes from there are in the
    /// data.
    #[inline(always)] // fast path of small messages
    fn ptr_at(self, at: usize, len: usize) -> NonNull<u8> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            panic_out_of_bounds(at, len, self.len);
        }
        // SAFETY: within the mapping, by the check above.
        unsafe { self.start.add(at) }
    }
}

#[cold]
fn panic_out_of_bounds(at: usize, len: usize, data_len: usize) -> ! {
    panic!("access of {len} bytes at byte {at} of shared memory of {data_len} bytes")
}

/// The pages of a mapping, which are unmapped on drop.
#[derive(Debug)]
pub(crate) struct MappedPages {
    start: NonNull<u8>,
    size: usize,
    /// Dropped after the pages were unmapped.
    _permit: MappingPermit,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for MappedPages {}
// SAFETY: as above.
unsafe impl Sync for MappedPages {}

impl MappedPages {
    /// Maps the first `size` bytes of this memory.
    ///
    /// # Errors
    /// Errors of `mmap`, and `ENOMEM` if this process has as many mappings as `mapping_limit`
    /// permits.
    fn map(memory: impl AsFd, size: usize, writable: bool) -> Result<Self> {
        let permit = MappingPermit::acquire().ok_or_else(|| os_error("mmap")(Errno::NOMEM))?;
        let protection = match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let any = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let start = unsafe { rustix::mm::mmap(any, size, protection, MapFlags::SHARED, memory, 0) };
        Ok(Self {
            // SAFETY: the kernel chooses no address near 0.
            start: unsafe { NonNull::new_unchecked(start.map_err(os_error("mmap"))?.cast()) },
            size,
            _permit: permit,
        })
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

/// Which process has created the memory of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryOwner {
    ThisProcess,
    /// A peer, which chooses how much memory its release frees. So a closer unmaps the memory.
    Peer,
}

/// A shared mapping, which is removed on drop.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    data: DataRange,
    validity: ValidityWord,
    /// Whether the data, and a control page in the same memory, can be written.
    writable: bool,
    owner: MemoryOwner,
    fork_guard: ForkGuard,
    control_page: ControlPage,
    /// The pages of the data, and of a control page in the same memory. Some until the drop.
    pages: Option<MappedPages>,
}

/// Where the control page of a mapping is, whose first word is the validity word.
#[derive(Debug)]
enum ControlPage {
    /// Before the data, in the same memory.
    BeforeData,
    /// In another memory, which is mapped for reading.
    Separate(MappedPages),
    /// There is none: the mapping is always valid.
    Absent,
}

/// The word of a control page that tells whether the memory is valid.
#[derive(Clone, Copy, Debug)]
struct ValidityWord(NonNull<atomic::AtomicU32>);

// SAFETY: a mapping belongs to the process, not to a thread. The word is only accessed as an
// atomic.
unsafe impl Send for ValidityWord {}
// SAFETY: as above.
unsafe impl Sync for ValidityWord {}

/// The validity word of memory without a control page.
static ALWAYS_VALID: atomic::AtomicU32 = atomic::AtomicU32::new(1);

impl SharedMapping {
    /// Maps the control page and `len` bytes of data of this memory, which is sealed and has that
    /// size.
    ///
    /// # Errors
    /// Errors of `mmap`, and `ENOMEM` if this process has as many mappings as `mapping_limit`
    /// permits.
    pub(crate) fn map(
        memory: impl AsFd,
        len: usize,
        writable: bool,
        owner: MemoryOwner,
    ) -> Result<Self> {
        let size = CONTROL_LEN
            .checked_add(len)
            .ok_or_else(|| os_error("mmap")(Errno::NOMEM))?;
        let pages = MappedPages::map(memory, size, writable)?;
        let control_page = ControlPage::BeforeData;
        Ok(Self::new(pages, len, control_page, writable, owner))
    }

    /// Maps `len` bytes of memory whose pages have `page_len` bytes, as data without a control
    /// page. The memory is sealed and has that size. The validity word is in `control_page`, the
    /// sealed control page of another memory, which is mapped for reading; without one, the mapping
    /// is always valid.
    ///
    /// # Errors
    /// Those of [`map`](Self::map).
    pub(crate) fn map_data(
        memory: impl AsFd,
        (len, page_len): (usize, usize),
        control_page: Option<BorrowedFd<'_>>,
        writable: bool,
        owner: MemoryOwner,
    ) -> Result<Self> {
        let size = len.checked_next_multiple_of(page_len);
        let size = size.ok_or_else(|| os_error("mmap")(Errno::NOMEM))?;
        let control_page = match control_page {
            Some(memory) => ControlPage::Separate(MappedPages::map(memory, CONTROL_LEN, false)?),
            None => ControlPage::Absent,
        };
        let pages = MappedPages::map(memory, size, writable)?;
        Ok(Self::new(pages, len, control_page, writable, owner))
    }

    /// Creates the mapping with these pages, which have `len` bytes of data.
    fn new(
        pages: MappedPages,
        len: usize,
        control_page: ControlPage,
        writable: bool,
        owner: MemoryOwner,
    ) -> Self {
        let (data_at, validity) = match &control_page {
            ControlPage::BeforeData => (CONTROL_LEN, pages.start.cast()),
            ControlPage::Separate(page) => (0, page.start.cast()),
            ControlPage::Absent => (0, NonNull::from(&ALWAYS_VALID)),
        };
        assert!(data_at + len <= pages.size, "data outside of its pages");
        Self {
            data: DataRange {
                // SAFETY: the pages have the data, after a control page that is in them.
                start: unsafe { pages.start.add(data_at) },
                len,
            },
            validity: ValidityWord(validity),
            writable,
            owner,
            fork_guard: ForkGuard::current_process(),
            control_page,
            pages: Some(pages),
        }
    }

    /// Returns whether `bytes` is a slice of the first bytes of the data: the same memory, not
    /// equal bytes.
    pub(crate) fn is_prefix(&self, bytes: &[u8]) -> bool {
        std::ptr::eq(self.data.start.as_ptr(), bytes.as_ptr()) && bytes.len() <= self.data.len
    }

    /// Returns the virtual address of the first byte of the data.
    pub(crate) fn address(&self) -> u64 {
        self.data.start.addr().get() as u64
    }

    /// Stores in the validity word whether the memory is valid, with release.
    ///
    /// # Panics
    /// If the mapping is not writable, or has no control page of its own.
    pub(crate) fn set_valid(&self, valid: bool) {
        assert!(
            self.writable && matches!(self.control_page, ControlPage::BeforeData),
            "write to a read-only mapping"
        );
        // SAFETY: the control page is mapped and writable.
        unsafe { self.validity() }.store(u32::from(valid), Ordering::Release);
    }

    /// Returns the validity word, the first word of the control page.
    ///
    /// # Safety
    /// If the control page is not writable, the word is only accessed by relaxed loads.
    #[inline]
    unsafe fn validity(&self) -> &atomic::AtomicU32 {
        // SAFETY: the control page is mapped and begins at a page, or the word is a static; the
        // word is only accessed as an atomic.
        unsafe { self.validity.0.as_ref() }
    }

    /// Returns `len` bytes from byte `start` of the data, to be copied out.
    ///
    /// # Panics
    /// If the range is not within the data.
    #[inline]
    pub(crate) fn range(&self, start: usize, len: usize) -> SharedRange<'_> {
        SharedRange {
            bytes: DataRange {
                start: self.data.ptr_at(start, len),
                len,
            },
            mapping: PhantomData,
        }
    }

    /// Borrows the first `len` bytes of the data.
    ///
    /// # Panics
    /// If the data is shorter.
    ///
    /// # Safety
    /// The bytes must not be written while the result lives, neither here nor in another process.
    pub(crate) unsafe fn slice(&self, len: usize) -> &[u8] {
        let start = self.data.ptr_at(0, len);
        // SAFETY: mapped, by the check above; unchanged, by the caller's guarantee.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Borrows the first `len` bytes of the data for writing.
    ///
    /// # Panics
    /// If the data is shorter, or the mapping is not writable.
    ///
    /// # Safety
    /// No other code may access the bytes while the result lives, except peers that only copy them.
    #[allow(clippy::mut_from_ref)] // the caller guarantees exclusive access
    pub(crate) unsafe fn slice_mut(&self, len: usize) -> &mut [u8] {
        assert!(self.writable, "write to a read-only mapping");
        let start = self.data.ptr_at(0, len);
        // SAFETY: mapped and writable, by the checks above; the only reference, by the caller's
        // guarantee.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }
}

impl RegionBytes for SharedMapping {
    fn len(&self) -> usize {
        self.data.len
    }

    /// Copies bytes from byte `at` of the data on, as [`SharedRange`] does.
    ///
    /// # Panics
    /// If the range is not within the data.
    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) {
        self.range(at, out.len()).copy_to_init(0, out);
    }

    /// Copies bytes to byte `at` of the data. Eight bytes at a multiple of eight are stored as one
    /// atomic word with release, other bytes as by [`atomic_copy::store`].
    ///
    /// # Panics
    /// If the range is not within the data, or the mapping is not writable.
    #[inline]
    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "write to a read-only mapping");
        let to = self.data.ptr_at(at, bytes.len());
        match <[u8; 8]>::try_from(bytes) {
            Ok(word) if at.is_multiple_of(8) => {
                // SAFETY: eight mapped bytes at a multiple of eight, since the data begins at a
                // page.
                let cell: &atomic::AtomicU64 = unsafe { to.cast().as_ref() };
                cell.store(u64::from_ne_bytes(word), Ordering::Release);
            }
            // SAFETY: `ptr_at` checked the range; `bytes` is ordinary memory, so the two do not
            // overlap.
            _ => unsafe { atomic_copy::store(bytes.as_ptr(), to.as_ptr(), bytes.len()) },
        }
    }

    /// # Panics
    /// As the trait states, and if the operation writes and the mapping is not writable.
    #[inline]
    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u128,
        comparand: u128,
    ) -> u128 {
        let size = datatype.size();
        assert!(
            at.is_multiple_of(size),
            "atomic operation on an unaligned value"
        );
        assert!(
            self.writable || op == AtomicOp::Read,
            "atomic update of a read-only mapping"
        );
        let ptr = self.data.ptr_at(at, size);
        // SAFETY: mapped and aligned, by the checks above. Other processes access the value as an
        // atomic too; a process that does not can only corrupt the value. If the mapping is not
        // writable, the value is only loaded, relaxed.
        let cell = unsafe {
            match size {
                1 => AtomicCell::U8(ptr.cast::<AtomicU8>().as_ref()),
                2 => AtomicCell::U16(ptr.cast::<AtomicU16>().as_ref()),
                4 => AtomicCell::U32(ptr.cast::<atomic::AtomicU32>().as_ref()),
                8 => AtomicCell::U64(ptr.cast::<atomic::AtomicU64>().as_ref()),
                _ => AtomicCell::U128(ptr.cast::<AtomicU128>().as_ref()),
            }
        };
        if self.writable {
            return cell.execute(op, datatype, operand, comparand);
        }
        fence(Ordering::SeqCst);
        let value = match cell {
            AtomicCell::U8(cell) => cell.load(Ordering::Relaxed).into(),
            AtomicCell::U16(cell) => cell.load(Ordering::Relaxed).into(),
            AtomicCell::U32(cell) => cell.load(Ordering::Relaxed).into(),
            AtomicCell::U64(cell) => cell.load(Ordering::Relaxed).into(),
            AtomicCell::U128(_) => panic!("atomic read of 16 bytes of a read-only mapping"),
        };
        fence(Ordering::Acquire);
        value
    }

    // A processor may load 16 bytes atomically only by an instruction that also stores.
    fn check_atomic(&self, datatype: Datatype) -> Result<()> {
        if self.writable || datatype.size() <= 8 {
            return Ok(());
        }
        Err(Error::NotSupported(
            "atomic operations on values of 16 bytes of memory without REMOTE_WRITE",
        ))
    }

    #[inline]
    fn is_open(&self) -> bool {
        // SAFETY: the word is only loaded, relaxed.
        let valid = unsafe { self.validity() }.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        valid == 1
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        if self.owner == MemoryOwner::Peer
            && self.fork_guard.in_original_process()
            && let Some(pages) = self.pages.take()
        {
            let control_page = std::mem::replace(&mut self.control_page, ControlPage::Absent);
            closer::release_memory((pages, control_page));
        }
    }
}

/// Checks that a word of `size` bytes at this offset lies within the control page and is aligned.
/// For a constant offset, the compiler makes the check.
#[inline(always)] // fast path of small messages
fn check_control_offset(offset: usize, size: usize) {
    assert!(
        offset <= CONTROL_LEN - size && offset.is_multiple_of(size),
        "word outside of the control page of shared memory"
    );
}

/// A writable mapping whose words are accessed as atomics; clones share the mapping.
#[derive(Clone, Debug)]
pub(crate) struct WordMapping {
    /// The data of `mapping`, in place so that an access follows one pointer less.
    data: DataRange,
    /// Offset of the last word.
    last_word: usize,
    _mapping: Arc<SharedMapping>,
}

impl WordMapping {
    /// Maps memory as [`SharedMapping::map`] does. The length of the data is a power of two.
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub(crate) fn map(memory: impl AsFd, len: usize, owner: MemoryOwner) -> Result<Self> {
        assert!(
            len.is_power_of_two() && len >= 8,
            "length of shared memory is not a power of two"
        );
        let mapping = SharedMapping::map(memory, len, true, owner)?;
        Ok(Self {
            data: mapping.data,
            last_word: len - 8,
            _mapping: Arc::new(mapping),
        })
    }

    /// Returns the bytes of the data.
    pub(crate) fn len(&self) -> usize {
        self.data.len
    }

    /// Populates the pages of the data from byte `start`, a multiple of the page size, to its end.
    /// If `write`, the pages are also allocated for the file. Returns false if there is no memory,
    /// or if the kernel is older than Linux 5.14.
    ///
    /// # Panics
    /// If the range is not within the data.
    pub(crate) fn populate_from(&self, start: usize, write: bool) -> bool {
        let advice = match write {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        let len = self.data.len - start;
        let start = self.data.ptr_at(start, len);
        // SAFETY: the pages are mapped, by the check in `ptr_at`. Populating pages does not change
        // their bytes.
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, advice) }.is_ok()
    }

    /// Returns the word of eight bytes at this offset of the control page.
    #[inline(always)] // fast path of small messages
    pub(crate) fn control_u64(&self, offset: usize) -> &AtomicU64 {
        check_control_offset(offset, 8);
        // SAFETY: mapped and aligned, by the check above, writable, and only accessed as an atomic.
        unsafe { self.data.start.sub(CONTROL_LEN - offset).cast().as_ref() }
    }

    /// Returns the word of four bytes at this offset of the control page.
    #[inline(always)] // fast path of small messages
    pub(crate) fn control_u32(&self, offset: usize) -> &AtomicU32 {
        check_control_offset(offset, 4);
        // SAFETY: as in `control_u64`.
        unsafe { self.data.start.sub(CONTROL_LEN - offset).cast().as_ref() }
    }

    /// Returns the word of eight bytes that holds byte `at`, modulo the length, of the data. The
    /// word may also be written by raw copy (`write`); then a load returns any value.
    #[inline(always)] // fast path of small messages
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        let at = at & self.last_word;
        // SAFETY: `at` is at most `last_word`, and a multiple of eight like `last_word`. So the
        // word is mapped and aligned, since the data begins at a page.
        unsafe { self.data.start.add(at).cast().as_ref() }
    }

    /// Returns `len` bytes from byte `start` of the data, to be copied out; `None` if they are not
    /// within the data.
    #[inline(always)] // fast path of small messages
    pub(crate) fn get(&self, start: usize, len: usize) -> Option<MappedRange<'_>> {
        let end = start.checked_add(len)?;
        (end <= self.data.len).then(|| MappedRange {
            bytes: DataRange {
                start: self.data.ptr_at(start, len),
                len,
            },
            mapping: PhantomData,
        })
    }

    /// Copies bytes to byte `at` of the data.
    ///
    /// # Panics
    /// If the range is not within the data.
    #[inline(always)] // fast path of small messages
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.data.ptr_at(at, bytes.len());
        // SAFETY: `ptr_at` checked the range; `bytes` is ordinary memory, so the two do not
        // overlap.
        unsafe { copy_bytes(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// Prefetches the cache line of byte `at` of the data, for reading.
    #[inline(always)] // fast path of small messages
    pub(crate) fn prefetch(&self, at: usize) {
        let line = self.data.start.as_ptr().wrapping_add(at);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch accesses nothing, wherever the pointer leads.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.cast_const().cast());
        }
        let _ = line;
    }

    /// Prefetches the cache line of byte `at` of the data, for writing.
    #[inline(always)] // fast path of small messages
    pub(crate) fn prefetch_for_write(&self, at: usize) {
        let line = self.data.start.as_ptr().wrapping_add(at);
        // Inline assembly, because the intrinsic has no hint for writing on the baseline processor.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch accesses nothing, wherever the pointer leads, and is a no-op on
        // processors without `prefetchw`.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) line,
                options(nostack, preserves_flags, readonly)
            );
        }
        let _ = line;
    }
}

/// A range of bytes of a [`SharedMapping`], to be copied out. Eight bytes at a multiple of eight
/// are loaded as one atomic word with acquire, other bytes as by [`atomic_copy::load`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedRange<'a> {
    bytes: DataRange,
    mapping: PhantomData<&'a SharedMapping>,
}

impl SharedRange<'_> {
    /// Copies `count` bytes from byte `from` of the range to `to`.
    ///
    /// # Panics
    /// If these bytes are not within the range.
    ///
    /// # Safety
    /// `to` is ordinary memory that is valid for writes of `count` bytes.
    #[inline(always)] // a window's read of one word
    unsafe fn copy_raw(&self, from: usize, to: *mut u8, count: usize) {
        let source = self.bytes.ptr_at(from, count);
        // SAFETY: `ptr_at` checked the range; the caller guarantees `to`.
        unsafe {
            if count == 8 && source.cast::<u64>().is_aligned() {
                load_word(source, to);
            } else {
                atomic_copy::load(source.as_ptr(), to, count);
            }
        }
    }

    /// Writes `len` bytes from byte `from` of the range to a descriptor, with one `write(2)`.
    /// Returns the number of bytes written.
    ///
    /// # Panics
    /// If these bytes are not within the range.
    pub(crate) fn write_to(
        &self,
        fd: BorrowedFd<'_>,
        from: usize,
        len: usize,
    ) -> io::Result<usize> {
        let start = self.bytes.ptr_at(from, len);
        // SAFETY: `len` mapped bytes, which the kernel reads; this process makes no reference to
        // them.
        let written = unsafe { libc::write(fd.as_raw_fd(), start.as_ptr().cast(), len) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }
}

impl CopySource for SharedRange<'_> {
    fn len(&self) -> usize {
        self.bytes.len
    }

    #[inline]
    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        let (to, count) = (dst.as_mut_ptr().cast::<u8>(), dst.len());
        // SAFETY: `dst` is ordinary memory of `count` bytes, which the copy initialises.
        unsafe {
            self.copy_raw(from, to, count);
            std::slice::from_raw_parts_mut(to, count)
        }
    }

    #[inline]
    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        // SAFETY: as in `copy_to`.
        unsafe { self.copy_raw(from, dst.as_mut_ptr(), dst.len()) };
    }
}

/// A range of bytes of a [`WordMapping`], to be copied out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRange<'a> {
    bytes: DataRange,
    mapping: PhantomData<&'a WordMapping>,
}

impl CopySource for MappedRange<'_> {
    #[inline(always)] // fast path of small messages
    fn len(&self) -> usize {
        self.bytes.len
    }

    #[inline]
    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        let (to, count) = (dst.as_mut_ptr().cast::<u8>(), dst.len());
        let source = self.bytes.ptr_at(from, count);
        // SAFETY: `ptr_at` checked the range; `dst` is ordinary memory of `count` bytes, which the
        // copy initialises.
        unsafe {
            load_bytes(source, to, count);
            std::slice::from_raw_parts_mut(to, count)
        }
    }

    #[inline]
    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        let source = self.bytes.ptr_at(from, dst.len());
        // SAFETY: as in `copy_to`.
        unsafe { load_bytes(source, dst.as_mut_ptr(), dst.len()) };
    }
}

/// Loads an aligned word of a mapping with acquire, and writes it to `to`.
///
/// # Safety
/// The word is mapped, and `to` is valid for writes of eight bytes.
#[inline(always)] // fast path of small messages
unsafe fn load_word(from: NonNull<u8>, to: *mut u8) {
    // SAFETY: the caller guarantees both.
    unsafe {
        let word = from.cast::<atomic::AtomicU64>().as_ref();
        to.cast::<u64>()
            .write_unaligned(word.load(Ordering::Relaxed));
    }
    fence(Ordering::Acquire);
}

/// Copies `count` bytes from a [`WordMapping`]; eight bytes at a multiple of eight as one atomic
/// word with acquire.
///
/// # Safety
/// The contract of `std::ptr::copy_nonoverlapping`.
#[inline(always)] // fast path of small messages
unsafe fn load_bytes(from: NonNull<u8>, to: *mut u8, count: usize) {
    // SAFETY: the caller guarantees both ranges.
    unsafe {
        if count == 8 && from.cast::<u64>().is_aligned() {
            load_word(from, to);
        } else {
            copy_bytes(from.as_ptr(), to, count);
        }
    }
}

/// Copies `count` bytes; 8 to 16 bytes as two words, which may overlap, without a call of `memcpy`.
///
/// # Safety
/// The contract of `std::ptr::copy_nonoverlapping`.
#[inline(always)] // fast path of small messages
unsafe fn copy_bytes(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller guarantees both ranges, and each access lies within them: the second word
    // ends where the range ends.
    unsafe {
        if (8..=16).contains(&count) {
            let last = count - 8;
            let words = (
                from.cast::<u64>().read_unaligned(),
                from.add(last).cast::<u64>().read_unaligned(),
            );
            to.cast::<u64>().write_unaligned(words.0);
            to.add(last).cast::<u64>().write_unaligned(words.1);
        } else {
            std::ptr::copy_nonoverlapping(from, to, count);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::memfd;
    use super::*;

    fn panics<R>(access: impl FnOnce() -> R) -> bool {
        catch_unwind(AssertUnwindSafe(access)).is_err()
    }

    #[test]
    fn accesses_outside_of_a_word_mapping_panic_or_wrap() {
        let memory = memfd::create("words", CONTROL_LEN + 64).unwrap();
        let mapping = WordMapping::map(&memory, 64, MemoryOwner::ThisProcess).unwrap();
        mapping.write(56, &7u64.to_ne_bytes());
        for at in [56, 63, 120, usize::MAX] {
            assert_eq!(mapping.word(at).load(Ordering::Relaxed), 7, "byte {at}");
        }
        let mut copy = [0; 8];
        mapping.get(56, 8).unwrap().copy_to_init(0, &mut copy);
        assert_eq!(u64::from_ne_bytes(copy), 7);
        assert!(mapping.get(57, 8).is_none() && mapping.get(usize::MAX, 2).is_none());
        assert!(panics(|| mapping.write(57, &[0; 8])));
        assert!(panics(|| mapping.write(usize::MAX, &[0; 8])));
        mapping
            .control_u64(CONTROL_LEN - 8)
            .store(1, Ordering::Relaxed);
        assert!(panics(|| mapping.control_u64(CONTROL_LEN)));
        assert!(panics(|| mapping.control_u32(2)));
        assert!(panics(|| WordMapping::map(
            &memory,
            65,
            MemoryOwner::ThisProcess
        )));
        assert!(SharedMapping::map(&memory, usize::MAX, true, MemoryOwner::ThisProcess).is_err());
    }

    #[test]
    fn read_only_mapping_is_read_and_not_written() {
        let memory = memfd::create("read-only", CONTROL_LEN + 64).unwrap();
        let writable = SharedMapping::map(&memory, 64, true, MemoryOwner::ThisProcess).unwrap();
        writable.write(8, &7u64.to_ne_bytes());
        writable.set_valid(true);
        let mapping = SharedMapping::map(&memory, 64, false, MemoryOwner::ThisProcess).unwrap();
        assert!(mapping.is_open());
        let read = |datatype| mapping.execute_atomic(8, AtomicOp::Read, datatype, 0, 0);
        for datatype in [Datatype::U8, Datatype::U16, Datatype::U32, Datatype::U64] {
            assert_eq!(read(datatype), 7);
        }
        assert!(panics(|| mapping.write(8, &[1])));
        assert!(panics(|| mapping.set_valid(false)));
        assert!(panics(|| mapping.execute_atomic(
            8,
            AtomicOp::Sum,
            Datatype::U64,
            1,
            0
        )));
    }
}
