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
//! bytes ([`OutstandingLoans::prepare`]), so nobody lends what somebody else holds. Whoever has lent a loan
//! does not hand out its bytes again. So no reference to a byte exists while another party writes
//! it.
#![allow(unsafe_code)]

mod outstanding;
mod received;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric_core::buf::{Loan, LoanMemory};
use fabric_core::flags::Access;
use fabric_core::transport::LoanAllocator;
use fabric_core::{Error, Resource, Result};

use super::shared_memory::SharedMemory;

pub(crate) use outstanding::{CmaOffer, OutstandingLoans};
pub(crate) use received::{LoanGuard, LoanMapping, ReceivedLoans, ReturnOnDrop};

/// The smallest chunk. They come in powers of two.
const MIN_CHUNK_LEN: usize = 4096;
/// Bytes of a domain that may be lent or free at the same time, and so the largest loan.
pub(crate) const MAX_LOAN_BYTES: usize = 4 << 30;
/// Chunks that one peer may have at the same time. What is more is copied.
pub(crate) const SLOTS_PER_PEER: usize = 256;
/// Chunks whose memory a peer keeps mapped when it has given them back; and the most that are taken
/// from one that does not keep to that.
const MAX_MAPPED_BY_PEER: usize = 64;
pub(crate) const MAX_LOAN_MAPPINGS: usize = 1024;
const _: () = assert!(MAX_LOAN_MAPPINGS >= MAX_MAPPED_BY_PEER + SLOTS_PER_PEER);

/// What a chunk is, in the low bits of its state; above them is the number of the holding.
const FREE: u64 = 0;
const HELD: u64 = 1;
const LENT: u64 = 2;
const GENERATION: u64 = 4;

/// Memory of a loan.
#[derive(Debug)]
pub(crate) struct LoanChunk {
    memory: SharedMemory,
    pub(crate) key: u64,
    state: AtomicU64,
}

/// All chunks of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoanPool(Arc<Mutex<LoanPoolState>>);

#[derive(Debug, Default)]
struct LoanPoolState {
    chunks: Vec<Arc<LoanChunk>>,
    last_key: u64,
    /// How often chunks were given up.
    retired: u64,
}

impl LoanPool {
    fn lock(&self) -> MutexGuard<'_, LoanPoolState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunk of this name that this payload is the beginning of, if its writer has it.
    fn find_held(&self, key: u64, payload: &[u8]) -> Option<(Arc<LoanChunk>, u64)> {
        let chunks = self.lock();
        let chunk = chunks.chunks.iter().find(|chunk| chunk.key == key)?;
        let state = chunk.state.load(Ordering::Relaxed);
        let same = chunk.memory.mapping().is_prefix(payload);
        (same && state % GENERATION == HELD).then(|| (chunk.clone(), state))
    }

    /// This chunk is not used again.
    fn retire(&self, key: u64) {
        let mut chunks = self.lock();
        chunks.chunks.retain(|chunk| chunk.key != key);
        chunks.retired += 1;
    }
}

/// Loans are made without the lock of the domain: fresh memory takes its time.
impl LoanAllocator for LoanPool {
    fn take_free(&self, len: usize) -> Option<Loan> {
        if len > MAX_LOAN_BYTES {
            return None;
        }
        let size = chunk_len(len);
        let chunks = self.lock();
        let held = |chunk: &Arc<LoanChunk>| {
            let state = (chunk.len() == size).then(|| chunk.try_hold()).flatten()?;
            Some(new_loan(chunk.clone(), state, len))
        };
        chunks.chunks.iter().find_map(held)
    }

    fn allocate(&self, len: usize) -> Result<Loan> {
        if len > MAX_LOAN_BYTES {
            return Err(Error::TooLong {
                what: "loan",
                len,
                limit: MAX_LOAN_BYTES,
            });
        }
        let size = chunk_len(len);
        let used = |chunks: &LoanPoolState| {
            chunks.chunks.iter().map(|chunk| chunk.len()).sum::<usize>() + size
        };
        let mut unused = Vec::new();
        {
            let mut chunks = self.lock();
            let out: usize = chunks
                .chunks
                .iter()
                .filter(|chunk| !chunk.is_free())
                .map(|chunk| chunk.len())
                .sum();
            if out + size > MAX_LOAN_BYTES {
                return Err(Error::WouldBlock(Resource::LoanMemory));
            }
            // What is free of other sizes makes room.
            while used(&chunks) > MAX_LOAN_BYTES {
                let Some(at) = chunks
                    .chunks
                    .iter()
                    .position(|chunk| chunk.try_hold().is_some())
                else {
                    break;
                };
                unused.push(chunks.chunks.swap_remove(at));
                chunks.retired += 1;
            }
        }
        drop(unused);
        let memory = SharedMemory::create(size, Access::REMOTE_READ)?;
        let mut chunks = self.lock();
        chunks.last_key += 1;
        let state = GENERATION + HELD;
        let chunk = Arc::new(LoanChunk {
            memory,
            key: chunks.last_key,
            state: AtomicU64::new(state),
        });
        chunks.chunks.push(chunk.clone());
        Ok(new_loan(chunk, state, len))
    }
}

fn chunk_len(len: usize) -> usize {
    len.max(MIN_CHUNK_LEN).next_power_of_two()
}

fn new_loan(chunk: Arc<LoanChunk>, state: u64, len: usize) -> Loan {
    Loan::new(Box::new(ShmLoan { chunk, state, len }))
}

impl LoanChunk {
    fn len(&self) -> usize {
        fabric_core::mr::RegionMemory::len(&self.memory)
    }

    /// The descriptor, for the peer.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) % GENERATION == FREE
    }

    /// Takes a free chunk; returns its state then.
    fn try_hold(&self) -> Option<u64> {
        let free = self.state.load(Ordering::Relaxed);
        let held = free - free % GENERATION + GENERATION + HELD;
        // SYNC: acquires what whoever gave it back has released.
        let taken = free % GENERATION == FREE && self.transition(free, held);
        taken.then_some(held)
    }

    fn transition(&self, from: u64, to: u64) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// A chunk in the hands of its writer.
struct ShmLoan {
    chunk: Arc<LoanChunk>,
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
        unsafe { self.chunk.memory.mapping().slice(self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if !self.is_held() {
            return &mut [];
        }
        // SAFETY: as above; peers cannot write.
        unsafe { self.chunk.memory.mapping().slice_mut(self.len) }
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
        self.chunk.transition(self.state, self.state - HELD + FREE);
    }
}
