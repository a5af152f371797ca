//! Loans: memory that is written in place and read where it lies.
//!
//! A chunk is an area that peers can only read. Its writer has it alone until it is lent; then it
//! belongs to the receiver, who gives it back by a bit in the segment of the connection. A chunk
//! that is given back is used again, also for other peers. One that a peer had when its connection
//! ended is not: nobody can tell whether it is still being read. The memory goes with the last
//! process that has it mapped.
//!
//! Here are the chunks of a domain and their writers; in `borrowed` what a peer has of them, in
//! `adopted` what peers lend to this side.
//!
//! # Safety
//!
//! [`ShmLoan`] hands out the bytes of its chunk as a slice, and for writing. A chunk is held by one
//! of them at a time: its state has a number that is new each time it is held, and only the loan of
//! that number can end the holding. Peers have read-only mappings (the seal of its area sees to
//! that), and the provider only reads it when it sends. A loan is lent only by showing its own
//! bytes ([`Borrowed::prepare`]), so nobody lends what somebody else holds. Whoever has lent a loan
//! does not hand out its bytes again. So no reference to a byte exists while another party writes
//! it.
#![allow(unsafe_code)]

mod adopted;
mod borrowed;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric_core::buf::{Loan, LoanMemory};
use fabric_core::flags::Access;
use fabric_core::provider::Lender;
use fabric_core::{Error, Result, Scarce};

use super::area::OwnArea;

pub(crate) use adopted::{Adopted, Borrow, Foreign, Keep};
pub(crate) use borrowed::{Borrowed, Offered};

/// The smallest chunk. They come in powers of two.
const SMALLEST: usize = 4096;
/// Bytes of a domain that may be lent or free at the same time, and so the largest loan.
pub(crate) const MOST_BYTES: usize = 4 << 30;
/// Chunks that one peer may have at the same time. What is more is copied.
pub(crate) const SLOTS: usize = 256;
/// Chunks whose memory a peer keeps mapped when it has given them back; and the most that are taken
/// from one that does not keep to that.
const MOST_GIVEN: usize = 64;
pub(crate) const MOST_LENT: usize = 1024;
const _: () = assert!(MOST_LENT >= MOST_GIVEN + SLOTS);

/// What a chunk is, in the low bits of its state; above them is the number of the holding.
const FREE: u64 = 0;
const HELD: u64 = 1;
const LENT: u64 = 2;
const NUMBER: u64 = 4;

/// Memory of a loan.
#[derive(Debug)]
pub(crate) struct Chunk {
    memory: OwnArea,
    pub(crate) key: u64,
    state: AtomicU64,
}

/// All chunks of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loans(Arc<Mutex<Chunks>>);

#[derive(Debug, Default)]
struct Chunks {
    all: Vec<Arc<Chunk>>,
    next: u64,
    /// How often chunks were given up.
    given_up: u64,
}

impl Loans {
    fn chunks(&self) -> MutexGuard<'_, Chunks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunk of this name that this payload is the beginning of, if its writer has it.
    fn held(&self, key: u64, payload: &[u8]) -> Option<(Arc<Chunk>, u64)> {
        let chunks = self.chunks();
        let chunk = chunks.all.iter().find(|chunk| chunk.key == key)?;
        let state = chunk.state.load(Ordering::Relaxed);
        let same = chunk.memory.area().starts(payload);
        (same && state % NUMBER == HELD).then(|| (chunk.clone(), state))
    }

    /// This chunk is not used again.
    fn forget(&self, key: u64) {
        let mut chunks = self.chunks();
        chunks.all.retain(|chunk| chunk.key != key);
        chunks.given_up += 1;
    }
}

/// Loans are made without the lock of the domain: fresh memory takes its time.
impl Lender for Loans {
    fn reuse(&self, len: usize) -> Option<Loan> {
        if len > MOST_BYTES {
            return None;
        }
        let size = size_of_chunk(len);
        let chunks = self.chunks();
        let held = |chunk: &Arc<Chunk>| {
            let state = (chunk.len() == size).then(|| chunk.hold()).flatten()?;
            Some(loan(chunk.clone(), state, len))
        };
        chunks.all.iter().find_map(held)
    }

    fn grow(&self, len: usize) -> Result<Loan> {
        if len > MOST_BYTES {
            return Err(Error::TooLong {
                what: "loan",
                len,
                limit: MOST_BYTES,
            });
        }
        let size = size_of_chunk(len);
        let used =
            |chunks: &Chunks| chunks.all.iter().map(|chunk| chunk.len()).sum::<usize>() + size;
        let mut unused = Vec::new();
        {
            let mut chunks = self.chunks();
            let out: usize = chunks
                .all
                .iter()
                .filter(|chunk| !chunk.is_free())
                .map(|chunk| chunk.len())
                .sum();
            if out + size > MOST_BYTES {
                return Err(Error::Again(Scarce::LendingMemory));
            }
            // What is free of other sizes makes room.
            while used(&chunks) > MOST_BYTES {
                let Some(at) = chunks.all.iter().position(|chunk| chunk.hold().is_some()) else {
                    break;
                };
                unused.push(chunks.all.swap_remove(at));
                chunks.given_up += 1;
            }
        }
        drop(unused);
        let memory = OwnArea::create(size, Access::REMOTE_READ)?;
        let mut chunks = self.chunks();
        chunks.next += 1;
        let state = NUMBER + HELD;
        let chunk = Arc::new(Chunk {
            memory,
            key: chunks.next,
            state: AtomicU64::new(state),
        });
        chunks.all.push(chunk.clone());
        Ok(loan(chunk, state, len))
    }
}

fn size_of_chunk(len: usize) -> usize {
    len.max(SMALLEST).next_power_of_two()
}

fn loan(chunk: Arc<Chunk>, state: u64, len: usize) -> Loan {
    Loan::new(Box::new(ShmLoan { chunk, state, len }))
}

impl Chunk {
    fn len(&self) -> usize {
        fabric_core::mr::Memory::len(&self.memory)
    }

    /// The descriptor, for the peer.
    pub(crate) fn memory(&self) -> &OwnArea {
        &self.memory
    }

    fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) % NUMBER == FREE
    }

    /// Takes a free chunk; returns its state then.
    fn hold(&self) -> Option<u64> {
        let free = self.state.load(Ordering::Relaxed);
        let held = free - free % NUMBER + NUMBER + HELD;
        // SYNC: acquires what whoever gave it back has released.
        let taken = free % NUMBER == FREE && self.change(free, held);
        taken.then_some(held)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// A chunk in the hands of its writer.
struct ShmLoan {
    chunk: Arc<Chunk>,
    /// The state of the chunk as long as this holds it.
    state: u64,
    len: usize,
}

impl LoanMemory for ShmLoan {
    fn key(&self) -> Option<u64> {
        Some(self.chunk.key)
    }

    fn bytes(&self) -> &[u8] {
        if !self.is_held() {
            return &[];
        }
        // SAFETY: this value is the only one of a chunk that is held, and a borrow of it keeps
        // writers away; what was lent is not reached any more, since lending takes the value.
        unsafe { self.chunk.memory.area().slice(self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if !self.is_held() {
            return &mut [];
        }
        // SAFETY: as above; peers cannot write.
        unsafe { self.chunk.memory.area().slice_mut(self.len) }
    }
}

impl ShmLoan {
    /// Whether it has not been lent.
    fn is_held(&self) -> bool {
        self.chunk.state.load(Ordering::Relaxed) == self.state
    }
}

impl Drop for ShmLoan {
    fn drop(&mut self) {
        // What was lent stays so, and what came back and is held anew is another's.
        self.chunk.change(self.state, self.state - HELD + FREE);
    }
}
