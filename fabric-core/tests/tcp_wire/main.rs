//! The tcp protocols byte by byte: headers as libfabric encodes them, streams that are split at any
//! byte, and malformed input.
//!
//! | module | subject |
//! |---|---|
//! | `receiver` | a receive queue, and an engine context that keeps its state in maps |
//! | `cm` | control messages, and simultaneous connects |
//! | `vendor_extension` | capabilities of `FI_EP_MSG` endpoints of this library |
//! | `frames` | frame headers |
//! | `streams` | valid and malformed streams, split at any byte |
//! | `rma` | RMA operations of peers with and without the vendor extension |
//! | `native_atomics` | atomic operations of peers with the vendor extension |
//! | `fuzz_input` | entry points shared with the fuzz targets |
//! | `protocol` | negotiation of native protocol or RXM |
//! | `rxm` | valid and malformed RXM packets, segments and rendezvous, split at any byte |
//! | `rxm_set_aside` | RXM messages behind one over budget |
//! | `rxm_rma` | RXM atomic operations, and RMA frames between the packets |
//! | `corpora` | the corpora of `fuzz`, replayed |

#![allow(unsafe_code)] // an allocator that records the largest request

mod cm;
mod corpora;
mod frames;
mod fuzz_input;
mod native_atomics;
mod protocol;
mod receiver;
mod rma;
mod rxm;
mod rxm_rma;
mod rxm_set_aside;
mod streams;
#[path = "../common/test_engine.rs"]
mod test_engine;
mod vendor_extension;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fabric_core::tcp::{PeerCaps, Supported};

thread_local! {
    static LARGEST_ALLOC: Cell<usize> = const { Cell::new(0) };
}

struct RecordingAllocator;

// SAFETY: every call is forwarded to the system allocator. The record is a const-initialised thread
// local without a destructor, so accessing it allocates nothing.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_ALLOC.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;

/// Returns the size of the largest allocation made by `call`.
fn largest_allocation(call: impl FnOnce()) -> usize {
    LARGEST_ALLOC.with(|largest| largest.set(0));
    call();
    LARGEST_ALLOC.with(Cell::get)
}

/// Returns the tag token of a peer that supports tags.
fn supported_tag(tag: Option<u64>) -> Option<Supported<u64>> {
    PeerCaps::rdm(false)
        .tag(tag)
        .expect("RDM peers support tags")
}

/// Parses hexadecimal digits; other characters are ignored.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<_> = digits.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

/// Generator of numbers from a seed, the same in every run.
struct SeededRng(u64);

impl SeededRng {
    fn next(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}
