//! Buffers of a pool when the allocator has no memory.

#![allow(unsafe_code)] // an allocator that refuses long requests

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fabric_core::Error;
use fabric_core::buf::{BufferPool, PooledBuf};

thread_local! {
    /// Requests of this thread that are longer, in bytes, are refused.
    static LONGEST_ALLOWED: Cell<usize> = const { Cell::new(usize::MAX) };
}

struct RefusingAllocator;

// SAFETY: every call is forwarded to the system allocator or refused. The limit is a
// const-initialised thread local without a destructor, so accessing it allocates nothing.
unsafe impl GlobalAlloc for RefusingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LONGEST_ALLOWED.get() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: RefusingAllocator = RefusingAllocator;

#[test]
fn failed_allocation_of_any_size_is_an_error() {
    let pool = BufferPool::new();
    for len in [20_000, 1 << 20, (1 << 20) + 1] {
        let mut buf = PooledBuf::from_vec(&pool, b"kept".to_vec());
        LONGEST_ALLOWED.set(10_000);
        let refused = buf.begin_fill(len);
        LONGEST_ALLOWED.set(usize::MAX);
        assert!(
            matches!(refused, Err(Error::OutOfMemory { .. })),
            "{len}: {refused:?}"
        );
        assert_eq!(&buf[..], b"kept", "the buffer is unchanged");
        buf.begin_fill(len).unwrap();
        assert!(buf.has_room(len));
    }
}
