//! Free buffers for messages that are received without a buffer of the user.
//!
//! A thread keeps free buffers of its own, so that a thread that receives and drops messages takes
//! no lock and executes no atomic read-modify-write. Buffers beyond these are shared by the
//! threads of the process.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, TryLockError};
use std::{fmt, mem};

use bytes::Bytes;

use super::CopySource;
use crate::error::{Error, Result};

/// Base-2 logarithms of the smallest and largest size that are kept.
const MIN_CLASS_SHIFT: u32 = 8;
const MAX_CLASS_SHIFT: u32 = 20;
/// The size classes: powers of two from 256 B to 1 MiB. Larger buffers are allocated and freed.
const CLASSES: usize = (MAX_CLASS_SHIFT - MIN_CLASS_SHIFT + 1) as usize;
/// The most bytes that threads share in one size class.
const MAX_SHARED_BYTES: usize = 1 << 22;
/// The most bytes and buffers that a thread keeps for itself in one size class.
const MAX_OWN_BYTES: usize = 1 << 18;
const MAX_OWN_BUFFERS: usize = 32;

/// Free buffers of one size class.
type FreeList = Vec<Vec<u8>>;

/// The free buffers of a thread, by size class. When the thread ends, they are shared.
struct OwnLists([FreeList; CLASSES]);

/// The free buffers that threads share, by size class.
///
/// A thread that finds a list locked goes without: in a process that was forked, the lock may
/// stay held.
static SHARED: [Mutex<FreeList>; CLASSES] = [const { Mutex::new(Vec::new()) }; CLASSES];

thread_local! {
    static OWN: RefCell<OwnLists> = const {
        RefCell::new(OwnLists([const { Vec::new() }; CLASSES]))
    };
}

impl Drop for OwnLists {
    fn drop(&mut self) {
        for (class, own) in self.0.iter_mut().enumerate() {
            share(class, own, 0);
        }
    }
}

/// Returns how many buffers of a size class a thread keeps for itself.
fn own_limit(class: usize) -> usize {
    MAX_OWN_BUFFERS.min(MAX_OWN_BYTES >> (class as u32 + MIN_CLASS_SHIFT))
}

/// Calls `access` with this thread's buffers of a size class. `None` in a thread that ends, and
/// for an allocator that uses pooled buffers itself while buffers are freed here.
fn with_own<T>(class: usize, access: impl FnOnce(&mut FreeList) -> T) -> Option<T> {
    let with_lists = |own: &RefCell<OwnLists>| {
        let mut own = own.try_borrow_mut().ok()?;
        Some(access(&mut own.0[class]))
    };
    OWN.try_with(with_lists).ok().flatten()
}

/// Calls `access` with the shared buffers of a size class, unless another thread has locked them.
fn with_shared<T>(class: usize, access: impl FnOnce(&mut FreeList) -> T) -> Option<T> {
    match SHARED[class].try_lock() {
        Ok(mut shared) => Some(access(&mut shared)),
        Err(TryLockError::Poisoned(shared)) => Some(access(&mut shared.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Shares buffers of a size class with other threads as far as there is room, all but `keep`.
fn share(class: usize, buffers: &mut FreeList, keep: usize) {
    with_shared(class, |shared| {
        let limit = MAX_SHARED_BYTES >> (class as u32 + MIN_CLASS_SHIFT);
        let room = limit.saturating_sub(shared.len());
        let count = buffers.len().saturating_sub(keep).min(room);
        shared.extend(buffers.drain(buffers.len() - count..));
    });
}

/// Takes a free buffer of a size class. A thread that has none takes several of the shared ones.
fn take_free(class: usize) -> Option<Vec<u8>> {
    let refill = |own: &mut FreeList| {
        with_shared(class, |shared| {
            let taken = shared.pop();
            let more = (own_limit(class) / 2).min(shared.len());
            own.extend(shared.drain(shared.len() - more..));
            taken
        })?
    };
    with_own(class, |own| own.pop().or_else(|| refill(own)))?
}

/// Keeps a free buffer of a size class, or frees it. A thread that has too many shares half of
/// them.
fn keep_free(class: usize, data: Vec<u8>) {
    let limit = own_limit(class);
    let mut data = Some(data);
    with_own(class, |own| {
        if own.len() == limit {
            share(class, own, limit / 2);
        }
        if own.len() < limit {
            own.extend(data.take());
        }
    });
    if let Some(data) = data {
        share(class, &mut vec![data], 0);
    }
}

/// Returns the capacity of a buffer that is taken for `len` bytes.
pub(crate) fn buffer_size(len: usize) -> usize {
    if len > 1 << MAX_CLASS_SHIFT {
        len
    } else {
        len.next_power_of_two().max(1 << MIN_CLASS_SHIFT)
    }
}

/// Takes an empty vector with a capacity of at least `len` bytes.
fn take_vec(len: usize) -> Vec<u8> {
    // Aborts the process when the allocation fails, because this function returns no error.
    try_take_vec(len).unwrap_or_else(|_| Vec::with_capacity(len))
}

/// As [`take_vec`], with [`Error::OutOfMemory`] when the allocation fails.
fn try_take_vec(len: usize) -> Result<Vec<u8>> {
    let size = buffer_size(len);
    if size > 1 << MAX_CLASS_SHIFT {
        return allocate(size);
    }
    match take_free((size.trailing_zeros() - MIN_CLASS_SHIFT) as usize) {
        Some(data) => Ok(data),
        None => allocate(size),
    }
}

/// Keeps the memory of a vector, or frees that of a vector of another size than the classes.
fn recycle(mut data: Vec<u8>) {
    let capacity = data.capacity();
    if (1 << MIN_CLASS_SHIFT..=1 << MAX_CLASS_SHIFT).contains(&capacity)
        && capacity.is_power_of_two()
    {
        data.clear();
        keep_free((capacity.trailing_zeros() - MIN_CLASS_SHIFT) as usize, data);
    }
}

/// Allocates an empty vector with a capacity of `len` bytes.
fn allocate(len: usize) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    match data.try_reserve_exact(len) {
        Ok(()) => Ok(data),
        Err(_) => Err(Error::OutOfMemory {
            what: "buffer",
            len,
        }),
    }
}

/// A buffer that returns to the free buffers of the process when it is dropped.
///
/// A buffer for a message is reserved once, at the length that the message's header announces, and
/// is neither zero-filled nor copied to a larger one. For a large buffer the allocator reserves
/// address space; the kernel provides pages as bytes arrive. So an announced length costs address
/// space, and memory only for the bytes that a peer really sends.
///
/// Dereferences to its bytes. [`PooledBuf::into_bytes`] converts it to `Bytes` without copying.
#[derive(Default)]
pub struct PooledBuf(Vec<u8>);

impl PooledBuf {
    /// Creates a buffer without memory; it takes memory when a message arrives.
    #[doc(hidden)]
    #[must_use]
    pub const fn empty() -> Self {
        Self(Vec::new())
    }

    /// Creates a buffer from a vector, without copying.
    #[doc(hidden)]
    #[must_use]
    pub const fn from_vec(data: Vec<u8>) -> Self {
        Self(data)
    }

    /// Takes an empty buffer with a capacity of at least `len` bytes.
    #[doc(hidden)]
    #[must_use]
    pub fn with_capacity(len: usize) -> Self {
        Self(take_vec(len))
    }

    /// Converts the buffer to `Bytes` without copying. The drop of the last clone keeps the memory
    /// for reuse.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Converts the buffer to a vector without copying.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        mem::take(&mut self.0)
    }

    /// Shortens the buffer to at most `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.vec_mut().truncate(len);
    }

    /// Appends bytes. A buffer without capacity for them is reallocated, to at least twice its
    /// size.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.grow(self.0.len(), bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// Reserves capacity for a message of `len` bytes. A buffer that is too small is replaced by a
    /// larger one, and its bytes are discarded; one that is large enough keeps its bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the allocation fails. The buffer is unchanged then.
    #[doc(hidden)]
    pub fn begin_fill(&mut self, len: usize) -> Result<()> {
        if self.0.capacity() >= len && self.0.capacity() > 0 {
            return Ok(());
        }
        recycle(mem::replace(&mut self.0, try_take_vec(len)?));
        Ok(())
    }

    /// Returns whether a message of `len` bytes fits without another allocation.
    #[doc(hidden)]
    #[must_use]
    pub fn has_room(&self, len: usize) -> bool {
        self.0.capacity() >= len
    }

    /// Makes room for `count` bytes after offset `at`, amortized by doubling; bytes from `at` on
    /// may be discarded. Capacity that [`begin_fill`](Self::begin_fill) reserved is enough for its
    /// message, so no allocation happens then.
    pub(crate) fn grow(&mut self, at: usize, count: usize) {
        if at + count > self.0.capacity() {
            self.0.truncate(at);
            let needed = (at + count).max(2 * self.0.capacity());
            if self.0.capacity() > 1 << MAX_CLASS_SHIFT {
                // The allocator may remap pages (mremap(2)) instead of copying bytes.
                return self.0.reserve_exact(needed - at);
            }
            let mut larger = take_vec(needed);
            larger.extend_from_slice(&self.0);
            recycle(mem::replace(&mut self.0, larger));
        }
    }

    /// Copies `count` bytes of `source`, from offset `from` on, to offset `at`, after growing the
    /// buffer; bytes from `at` on are discarded.
    pub(crate) fn write_at(
        &mut self,
        at: usize,
        source: &dyn CopySource,
        from: usize,
        count: usize,
    ) {
        self.grow(at, count);
        super::append(&mut self.0, at, source, from, count);
    }

    pub(crate) fn vec_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        recycle(mem::take(&mut self.0));
    }
}

impl Deref for PooledBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl AsRef<[u8]> for PooledBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for PooledBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
