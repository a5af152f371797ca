//! A pool of buffers for messages that are received without a buffer of the user.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::{fmt, mem};

use bytes::Bytes;

use super::CopySource;
use crate::error::{Error, Result};

/// Base-2 logarithms of the smallest and largest size that the pool keeps.
const MIN_CLASS_SHIFT: u32 = 8;
const MAX_CLASS_SHIFT: u32 = 20;
/// The most bytes that the pool keeps free in one size class.
const MAX_FREE_BYTES: usize = 1 << 22;

/// Free buffers by size class, powers of two from 256 B to 1 MiB. Larger buffers are allocated and
/// freed.
///
/// A buffer for a message is reserved once, at the length that the message's header announces, and
/// is neither zero-filled nor copied to a larger one. For a large buffer the allocator reserves
/// address space; the kernel provides pages as bytes arrive. So an announced length costs address
/// space, and memory only for the bytes that a peer really sends.
pub struct BufferPool {
    /// The free buffers of each size class, the smallest class first.
    free: [Mutex<Vec<Vec<u8>>>; (MAX_CLASS_SHIFT - MIN_CLASS_SHIFT + 1) as usize],
}

impl BufferPool {
    /// Creates an empty pool.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            free: Default::default(),
        })
    }

    /// Takes an empty buffer with a capacity of at least `len` bytes.
    #[must_use]
    pub fn take(self: &Arc<Self>, len: usize) -> PooledBuf {
        PooledBuf {
            data: self.take_vec(len),
            pool: Some(self.clone()),
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
    fn take_vec(&self, len: usize) -> Vec<u8> {
        // Aborts the process when the allocation fails, because this function returns no error.
        self.try_take_vec(len)
            .unwrap_or_else(|_| Vec::with_capacity(len))
    }

    /// As [`take_vec`](Self::take_vec), with [`Error::OutOfMemory`] when the allocation fails.
    fn try_take_vec(&self, len: usize) -> Result<Vec<u8>> {
        if len > 1 << MAX_CLASS_SHIFT {
            return allocate(len);
        }
        let class = len
            .next_power_of_two()
            .trailing_zeros()
            .saturating_sub(MIN_CLASS_SHIFT);
        let kept = self.free[class as usize]
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .pop();
        match kept {
            Some(data) => Ok(data),
            None => allocate(1 << (class + MIN_CLASS_SHIFT)),
        }
    }

    /// Returns a vector to the pool. Frees a vector of another size than the classes, or of a full
    /// class.
    fn recycle(&self, mut data: Vec<u8>) {
        let capacity = data.capacity();
        if !(1 << MIN_CLASS_SHIFT..=1 << MAX_CLASS_SHIFT).contains(&capacity)
            || !capacity.is_power_of_two()
        {
            return;
        }
        let class = capacity.trailing_zeros() - MIN_CLASS_SHIFT;
        data.clear();
        let mut free = self.free[class as usize]
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        if (free.len() + 1) * capacity <= MAX_FREE_BYTES {
            free.push(data);
        }
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

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BufferPool")
    }
}

/// A buffer of a domain's pool; returns to the pool when it is dropped.
///
/// Dereferences to its bytes. [`PooledBuf::into_bytes`] converts it to `Bytes` without copying.
pub struct PooledBuf {
    data: Vec<u8>,
    /// The pool that the memory returns to; `None` for memory that is freed.
    pool: Option<Arc<BufferPool>>,
}

impl PooledBuf {
    /// Creates a buffer without memory; it takes memory when a message arrives.
    #[doc(hidden)]
    #[must_use]
    pub fn empty(pool: &Arc<BufferPool>) -> Self {
        Self::empty_in(Some(pool.clone()))
    }

    /// Creates a buffer of this pool from a vector, without copying.
    #[doc(hidden)]
    #[must_use]
    pub fn from_vec(pool: &Arc<BufferPool>, data: Vec<u8>) -> Self {
        Self {
            data,
            pool: Some(pool.clone()),
        }
    }

    /// Creates a buffer without memory; it returns to `pool`, if there is one.
    pub(super) fn empty_in(pool: Option<Arc<BufferPool>>) -> Self {
        Self {
            data: Vec::new(),
            pool,
        }
    }

    pub(super) fn pool(&self) -> Option<&Arc<BufferPool>> {
        self.pool.as_ref()
    }

    /// Converts the buffer to `Bytes` without copying: the memory returns to the pool with the last
    /// clone.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Converts the buffer to a vector without copying: the memory leaves the pool.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        self.pool = None;
        mem::take(&mut self.data)
    }

    /// Shortens the buffer to at most `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.vec_mut().truncate(len);
    }

    /// Appends bytes. A buffer without capacity for them is reallocated, to at least twice its
    /// size.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.grow(self.data.len(), bytes.len());
        self.data.extend_from_slice(bytes);
    }

    /// Reserves capacity for a message of `len` bytes. A buffer that is too small is replaced by a
    /// larger one, and its bytes are discarded; one that is large enough keeps its bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the allocation fails. The buffer is unchanged then.
    #[doc(hidden)]
    pub fn begin_fill(&mut self, len: usize) -> Result<()> {
        if self.data.capacity() >= len && self.data.capacity() > 0 {
            return Ok(());
        }
        let larger = match &self.pool {
            Some(pool) => pool.try_take_vec(len)?,
            None => allocate(len)?,
        };
        let old = mem::replace(&mut self.data, larger);
        if let Some(pool) = &self.pool {
            pool.recycle(old);
        }
        Ok(())
    }

    /// Returns whether a message of `len` bytes fits without another allocation.
    #[doc(hidden)]
    #[must_use]
    pub fn has_room(&self, len: usize) -> bool {
        self.data.capacity() >= len
    }

    /// Makes room for `count` bytes after offset `at`, amortized by doubling; bytes from `at` on
    /// may be discarded. Capacity that [`begin_fill`](Self::begin_fill) reserved is enough for its
    /// message, so no allocation happens then.
    pub(crate) fn grow(&mut self, at: usize, count: usize) {
        if at + count > self.data.capacity() {
            self.data.truncate(at);
            let needed = (at + count).max(2 * self.data.capacity());
            if self.data.capacity() > 1 << MAX_CLASS_SHIFT {
                // The allocator may remap pages (mremap(2)) instead of copying bytes.
                return self.data.reserve_exact(needed - at);
            }
            let mut larger = self
                .pool
                .as_ref()
                .map_or_else(Vec::new, |pool| pool.take_vec(needed));
            larger.reserve(needed);
            larger.extend_from_slice(&self.data);
            let old = mem::replace(&mut self.data, larger);
            if let Some(pool) = &self.pool {
                pool.recycle(old);
            }
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
        super::append(&mut self.data, at, source, from, count);
    }

    pub(crate) fn vec_mut(&mut self) -> &mut Vec<u8> {
        &mut self.data
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.recycle(mem::take(&mut self.data));
        }
    }
}

impl Deref for PooledBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data
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
