//! Buffers that are used again: received messages without a buffer of the user's land in them.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::{fmt, mem};

use bytes::Bytes;

/// Smallest and largest size that is kept, as powers of two.
const SMALLEST: u32 = 8;
const LARGEST: u32 = 20;
/// How many bytes of each size are kept at most.
const KEPT_BYTES: usize = 1 << 22;
/// Memory taken at once on a peer's word; beyond it a buffer grows as bytes arrive.
const TRUSTED: usize = 1 << LARGEST;

/// Free buffers by size, powers of two from 256 B to 1 MiB. Larger ones come from the allocator and
/// go back to it.
pub struct Pool {
    free: [Mutex<Vec<Vec<u8>>>; (LARGEST - SMALLEST + 1) as usize],
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            free: Default::default(),
        })
    }

    /// An empty buffer with room for `len` bytes.
    #[must_use]
    pub fn take(self: &Arc<Self>, len: usize) -> PooledBuf {
        PooledBuf {
            data: self.take_vec(len),
            pool: Some(self.clone()),
        }
    }

    fn take_vec(&self, len: usize) -> Vec<u8> {
        if len > 1 << LARGEST {
            return Vec::with_capacity(len);
        }
        let class = len
            .next_power_of_two()
            .trailing_zeros()
            .saturating_sub(SMALLEST);
        let kept = self.free[class as usize]
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .pop();
        kept.unwrap_or_else(|| Vec::with_capacity(1 << (class + SMALLEST)))
    }

    fn give(&self, mut data: Vec<u8>) {
        let capacity = data.capacity();
        if !(1 << SMALLEST..=1 << LARGEST).contains(&capacity) || !capacity.is_power_of_two() {
            return;
        }
        let class = capacity.trailing_zeros() - SMALLEST;
        data.clear();
        let mut free = self.free[class as usize]
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        if (free.len() + 1) * capacity <= KEPT_BYTES {
            free.push(data);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

/// A buffer of a domain's pool; goes back there when it is dropped.
///
/// Dereferences to its bytes. [`PooledBuf::into_bytes`] makes it a `Bytes` without copying.
pub struct PooledBuf {
    data: Vec<u8>,
    pool: Option<Arc<Pool>>,
}

impl PooledBuf {
    /// A buffer without memory yet; it takes some when a message arrives.
    #[doc(hidden)]
    #[must_use]
    pub fn empty(pool: &Arc<Pool>) -> Self {
        Self::of(Some(pool.clone()))
    }

    /// Likewise, of the pool of another, if that has one.
    pub(super) fn of(pool: Option<Arc<Pool>>) -> Self {
        Self {
            data: Vec::new(),
            pool,
        }
    }

    pub(super) fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }

    /// The bytes as `Bytes`, without copying: the memory returns to the pool with the last clone.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// The bytes as a vector, without copying: the memory leaves the pool.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        self.pool = None;
        mem::take(&mut self.data)
    }

    /// Keeps the first `len` bytes at most.
    pub fn truncate(&mut self, len: usize) {
        self.vec_mut().truncate(len);
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.grow(self.data.len(), bytes.len());
        self.data.extend_from_slice(bytes);
    }

    /// Takes memory for a message of `len` bytes, if the buffer is empty; no more than 1 MiB on a
    /// peer's word.
    pub(crate) fn expect(&mut self, len: usize) {
        if self.data.capacity() == 0
            && let Some(pool) = &self.pool
        {
            self.data = pool.take_vec(len.min(TRUSTED));
        }
    }

    /// Makes room for `count` bytes behind position `at`; amortised by doubling.
    pub(crate) fn grow(&mut self, at: usize, count: usize) {
        if at + count > self.data.capacity() {
            self.data.truncate(at);
            let needed = (at + count).max(2 * self.data.capacity());
            let mut larger = self
                .pool
                .as_ref()
                .map_or_else(Vec::new, |pool| pool.take_vec(needed));
            larger.reserve(needed);
            larger.extend_from_slice(&self.data);
            let old = mem::replace(&mut self.data, larger);
            if let Some(pool) = &self.pool {
                pool.give(old);
            }
        }
    }

    pub(crate) fn vec_mut(&mut self) -> &mut Vec<u8> {
        &mut self.data
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.give(mem::take(&mut self.data));
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
