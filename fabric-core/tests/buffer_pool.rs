//! Buffers that are kept for reuse: how many, by which threads, and without memory.

#![allow(unsafe_code)] // an allocator that counts requests and refuses long ones

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use fabric_core::Error;
use fabric_core::buf::PooledBuf;

thread_local! {
    /// Requests of this thread that are longer, in bytes, are refused.
    static LONGEST_ALLOWED: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The length of the buffers that are counted: no other test uses it.
const COUNTED_LEN: usize = 1 << 16;
/// Allocations of this length that were not freed.
static COUNTED: AtomicUsize = AtomicUsize::new(0);

struct TestAllocator;

// SAFETY: every call is forwarded to the system allocator or refused. The limit is a
// const-initialised thread local without a destructor, so accessing it allocates nothing.
unsafe impl GlobalAlloc for TestAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LONGEST_ALLOWED.get() {
            return std::ptr::null_mut();
        }
        if layout.size() == COUNTED_LEN {
            COUNTED.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if layout.size() == COUNTED_LEN {
            COUNTED.fetch_sub(1, Ordering::Relaxed);
        }
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: TestAllocator = TestAllocator;

#[test]
fn failed_allocation_of_any_size_is_an_error() {
    for len in [20_000, 1 << 20, (1 << 20) + 1] {
        let mut buf = PooledBuf::from_vec(b"kept".to_vec());
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

/// A thread keeps 256 KiB of each size class, and the threads of the process share 4 MiB.
#[test]
fn free_buffers_are_bounded_and_shared() {
    const KEPT: usize = ((1 << 18) + (1 << 22)) / COUNTED_LEN;
    let take = |count: usize| -> Vec<_> {
        let buffers = (0..count).map(|_| PooledBuf::with_capacity(COUNTED_LEN));
        buffers.collect()
    };
    drop(take(2 * KEPT));
    assert_eq!(COUNTED.load(Ordering::Relaxed), KEPT);
    // Another thread takes the shared ones, and shares its own again when it ends.
    let of_another_thread = thread::spawn(move || {
        let taken = take(KEPT / 2);
        assert_eq!(
            COUNTED.load(Ordering::Relaxed),
            KEPT,
            "nothing is allocated"
        );
        taken
    });
    let moved = of_another_thread.join().expect("no panic");
    assert_eq!(COUNTED.load(Ordering::Relaxed), KEPT);
    drop(moved);
    assert_eq!(COUNTED.load(Ordering::Relaxed), KEPT);
    drop(take(2 * KEPT));
    assert_eq!(COUNTED.load(Ordering::Relaxed), KEPT);
}
