//! Memory that receives are given when something comes, and leases of it.
//!
//! The kernel takes a buffer from a ring of them when it has bytes for it, and says which one it
//! was. From then on the bytes are this side's, until the buffer is put back into the ring.
//!
//! # Safety
//!
//! The memory is mapped once, shared with the kernel, and unmapped when neither a ring nor a lease
//! is left; a ring that did not see all its operations end keeps it for ever (`ring`). Of each
//! buffer there is one lease at most, made from a completion that names it, and the kernel does not
//! touch the buffer before the lease has put it back. The entries of the ring are written by this
//! side only, under a lock, and published by its tail.
#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The number of the one group of buffers that a ring has.
pub(super) const BUFFER_GROUP: u16 = 0;
const PAGE_SIZE: usize = 4096;

/// Buffers of one length, and the ring in which the kernel finds them.
#[derive(Debug)]
pub(super) struct ProvidedBuffers {
    memory: NonNull<u8>,
    mapped_len: usize,
    /// Where the first buffer begins: the entries come before it.
    first_offset: usize,
    count: u16,
    len: usize,
    /// How many entries were ever filled.
    tail: Mutex<u16>,
}

// SAFETY: the memory belongs to no thread; entries are written under the lock, buffers by whoever
// has them.
unsafe impl Send for ProvidedBuffers {}
// SAFETY: likewise.
unsafe impl Sync for ProvidedBuffers {}

impl ProvidedBuffers {
    /// So many buffers of this length; the count is to be a power of two.
    pub(super) fn new(count: u16, len: usize) -> io::Result<Self> {
        let first = (usize::from(count) * size_of::<BufRingEntry>()).next_multiple_of(PAGE_SIZE);
        let mapped = first + usize::from(count) * len;
        // SAFETY: new memory, anywhere.
        let memory = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            memory,
            mapped_len: mapped,
            first_offset: first,
            count,
            len,
            tail: Mutex::new(0),
        })
    }

    /// Tells the kernel of them, and gives it all.
    pub(super) fn register(&self, submitter: &Submitter<'_>) -> io::Result<()> {
        // SAFETY: the entries are at the start of a page, there are as many, and they stay while a
        // ring is left.
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

    /// A lease of what the kernel has put there.
    pub(super) fn lease(self: &Arc<Self>, id: u16, len: usize) -> LeasedBuffer {
        assert!(
            id < self.count && len <= self.len,
            "the kernel names a buffer that there is not"
        );
        LeasedBuffer {
            source: BufferSource::Provided(self.clone(), id),
            offset: 0,
            len,
        }
    }

    fn buffer(&self, id: u16) -> *mut u8 {
        // SAFETY: within the memory, as `id` is below `count`.
        unsafe {
            self.memory
                .as_ptr()
                .add(self.first_offset + usize::from(id) * self.len)
        }
    }

    /// The kernel may use a buffer again.
    fn recycle(&self, id: u16) {
        let mut filled = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = self.memory.as_ptr().cast::<BufRingEntry>();
        // SAFETY: within the memory, and nobody else writes entries. The kernel reads this one
        // after the tail says so.
        unsafe {
            let entry = &mut *entries.add(usize::from(*filled & (self.count - 1)));
            entry.set_addr(self.buffer(id) as u64);
            entry.set_len(self.len as u32);
            entry.set_bid(id);
        }
        *filled = filled.wrapping_add(1);
        // SAFETY: the tail is a field of the first entry that is none of those written above, and
        // aligned.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        // SYNC: the kernel loads the tail with acquire before it reads entries.
        tail.store(*filled, Ordering::Release);
    }
}

impl Drop for ProvidedBuffers {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has any of it any more.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.mapped_len) };
    }
}

/// Bytes that have come. Dropping it lets the kernel use their memory again.
#[derive(Debug)]
pub(crate) struct LeasedBuffer {
    source: BufferSource,
    offset: usize,
    len: usize,
}

#[derive(Debug)]
enum BufferSource {
    Provided(Arc<ProvidedBuffers>, u16),
    Owned(Box<[u8]>),
}

impl LeasedBuffer {
    /// The first bytes were used.
    pub(crate) fn advance(&mut self, count: usize) {
        self.offset = self.len.min(self.offset + count);
    }

    /// The same bytes in memory of their own, so that the kernel's is free for others.
    pub(crate) fn into_owned(self) -> Self {
        if matches!(self.source, BufferSource::Owned(_)) {
            return self;
        }
        let own: Box<[u8]> = (*self).into();
        Self {
            offset: 0,
            len: own.len(),
            source: BufferSource::Owned(own),
        }
    }
}

impl Deref for LeasedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all = match &self.source {
            // SAFETY: the kernel has written so many bytes there, and does not touch them before
            // they are put back.
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
