//! Provided buffers for receives, and leases of them.
//!
//! The kernel takes a buffer from the buffer ring when bytes arrive, and the completion names the
//! buffer. From then on the buffer belongs to its lease, until the lease is dropped and puts the
//! buffer back into the buffer ring.
//!
//! # Safety
//!
//! The memory is mapped once, shared with the kernel, and unmapped when neither an instance nor a
//! lease is left. An instance whose operations did not all end leaks the memory (`instance`). Each
//! buffer has at most one lease, made from the completion that names it, and the kernel does not
//! touch the buffer before the lease has put it back. The entries of the buffer ring are written by
//! this side only, under a lock, and published by its tail.
#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The id of the one buffer group of an instance.
pub(super) const BUFFER_GROUP: u16 = 0;
const PAGE_SIZE: usize = 4096;

/// Buffers of equal length, and the buffer ring in which the kernel finds them.
#[derive(Debug)]
pub(super) struct ProvidedBuffers {
    memory: NonNull<u8>,
    mapped_len: usize,
    /// The offset of the first buffer, behind the entries of the buffer ring.
    first_offset: usize,
    /// The number of buffers, a power of two.
    count: u16,
    /// The length of each buffer, in bytes.
    buffer_len: usize,
    /// The number of entries that were ever filled, modulo 2^16.
    tail: Mutex<u16>,
}

// SAFETY: the memory belongs to no thread; entries are written under the lock, and each buffer by
// the holder of its lease or by the kernel.
unsafe impl Send for ProvidedBuffers {}
// SAFETY: as for `Send`.
unsafe impl Sync for ProvidedBuffers {}

impl ProvidedBuffers {
    /// Maps `count` buffers of `buffer_len` bytes. The count must be a power of two, or registering
    /// fails.
    pub(super) fn new(count: u16, buffer_len: usize) -> io::Result<Self> {
        let first_offset =
            (usize::from(count) * size_of::<BufRingEntry>()).next_multiple_of(PAGE_SIZE);
        let mapped_len = first_offset + usize::from(count) * buffer_len;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let memory = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                mapped_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            memory,
            mapped_len,
            first_offset,
            count,
            buffer_len,
            tail: Mutex::new(0),
        })
    }

    /// Registers the buffer ring with the kernel, and fills it with all buffers.
    pub(super) fn register(&self, submitter: &Submitter<'_>) -> io::Result<()> {
        // SAFETY: the entries are at the start of a page, there are `count` of them, and they stay
        // mapped while an instance is left.
        unsafe {
            submitter.register_buf_ring_with_flags(
                self.memory.as_ptr() as u64,
                self.count,
                BUFFER_GROUP,
                0,
            )?;
        }
        (0..self.count).for_each(|id| self.recycle(id));
        Ok(())
    }

    /// Returns a lease of the `len` bytes that the kernel has put into a buffer.
    ///
    /// # Panics
    /// The kernel names a buffer or length that does not exist.
    pub(super) fn lease(self: &Arc<Self>, id: u16, len: usize) -> LeasedBuffer {
        assert!(
            id < self.count && len <= self.buffer_len,
            "completion names buffer {id} with {len} bytes, which is out of range"
        );
        LeasedBuffer {
            source: BufferSource::Provided(self.clone(), id),
            offset: 0,
            len,
        }
    }

    /// Returns the address of a buffer.
    fn buffer(&self, id: u16) -> *mut u8 {
        // SAFETY: within the mapping, as `id` is below `count`.
        unsafe {
            self.memory
                .as_ptr()
                .add(self.first_offset + usize::from(id) * self.buffer_len)
        }
    }

    /// Gives a buffer back to the kernel.
    fn recycle(&self, id: u16) {
        let mut filled = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = self.memory.as_ptr().cast::<BufRingEntry>();
        // SAFETY: within the mapping, and the lock excludes other writers. The kernel reads this
        // entry only after the tail covers it.
        unsafe {
            let entry = &mut *entries.add(usize::from(*filled & (self.count - 1)));
            entry.set_addr(self.buffer(id) as u64);
            entry.set_len(self.buffer_len as u32);
            entry.set_bid(id);
        }
        *filled = filled.wrapping_add(1);
        // SAFETY: the tail is an aligned field of the first entry. The code above does not write
        // this field.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        // SYNC: the kernel loads the tail with acquire before it reads entries.
        tail.store(*filled, Ordering::Release);
    }
}

impl Drop for ProvidedBuffers {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no instance or lease uses the mapping any more.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.mapped_len) };
    }
}

/// Received bytes. Dropping the lease returns the buffer to the kernel.
#[derive(Debug)]
pub(crate) struct LeasedBuffer {
    source: BufferSource,
    /// The number of bytes at the front that were consumed.
    offset: usize,
    /// The number of received bytes, consumed ones included.
    len: usize,
}

/// The memory of a lease.
#[derive(Debug)]
enum BufferSource {
    /// The buffer with this id.
    Provided(Arc<ProvidedBuffers>, u16),
    Owned(Box<[u8]>),
}

impl LeasedBuffer {
    /// Skips the first `count` bytes, which were consumed.
    pub(crate) fn advance(&mut self, count: usize) {
        self.offset = self.len.min(self.offset + count);
    }

    /// Copies the remaining bytes to the heap, and returns the buffer to the kernel.
    pub(crate) fn into_owned(self) -> Self {
        if matches!(self.source, BufferSource::Owned(_)) {
            return self;
        }
        let owned: Box<[u8]> = (*self).into();
        Self {
            offset: 0,
            len: owned.len(),
            source: BufferSource::Owned(owned),
        }
    }
}

impl Deref for LeasedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all = match &self.source {
            // SAFETY: the kernel has written `len` bytes there, and does not touch the buffer
            // before it is put back.
            BufferSource::Provided(buffers, id) => unsafe {
                std::slice::from_raw_parts(buffers.buffer(*id), self.len)
            },
            BufferSource::Owned(bytes) => bytes,
        };
        &all[self.offset..]
    }
}

impl Drop for LeasedBuffer {
    fn drop(&mut self) {
        if let BufferSource::Provided(buffers, id) = &self.source {
            buffers.recycle(*id);
        }
    }
}
