//! What is spoken over TCP, byte by byte: headers as libfabric writes them, streams split anywhere,
//! and everything a peer must not say.
//!
//! | module | subject |
//! |---|---|
//! | `host` | a receive context, and a host that keeps everything in maps |
//! | `magic` | control messages, and which connection stays |
//! | `marks` | what connected endpoints of this library say of themselves, and what may be said to whom |
//! | `frames` | the headers of what follows |
//! | `streams` | whole streams, split anywhere, hostile ones among them |
//! | `onesided` | memory that is read and written, by peers of every kind |
//! | `fuzzed` | what is read from any bytes, here and by the fuzz targets |
//! | `dialects` | which of the two is spoken: questions and answers |
//! | `rxm` | the other dialect: packets, segments and offers, split anywhere, hostile ones among them |
//! | `rxm_memory` | atomic operations there, and reads and writes between the packets |
//! | `corpora` | the corpora of `fuzz`, replayed |

#![allow(unsafe_code)] // an allocator that notes what is asked of it

mod cm;
mod corpora;
mod frames;
mod fuzz_input;
mod protocol;
mod receiver;
mod rma;
mod rxm;
mod rxm_rma;
mod streams;
mod vendor_extension;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fabric_core::tcp::{PeerCaps, Supported};

thread_local! {
    static LARGEST_ALLOC: Cell<usize> = const { Cell::new(0) };
}

struct RecordingAllocator;

// SAFETY: everything is passed on to the system's allocator; the note is a constant-initialised
// thread local without a destructor, so that taking it allocates nothing itself.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_ALLOC.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;

/// The largest piece of memory that this takes.
fn largest_allocation(of: impl FnOnce()) -> usize {
    LARGEST_ALLOC.with(|largest| largest.set(0));
    of();
    LARGEST_ALLOC.with(Cell::get)
}

/// A tag for a peer that takes it.
fn supported_tag(tag: Option<u64>) -> Option<Supported<u64>> {
    PeerCaps::rdm(false).tag(tag).expect("it takes tags")
}

/// Bytes written as hexadecimal digits, with spaces where it pleases.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<_> = digits.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

/// Numbers from a seed, the same in every run.
struct SeededRng(u64);

impl SeededRng {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}
