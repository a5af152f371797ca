//! Loans: memory that the sender writes in place and the receiver reads in place.
//!
//! A chunk is shared memory that peers can only read. Its writer owns it until it is lent; then the
//! receiver holds it, may pass it on to further peers, and returns it by a bit in the segment of the
//! connection when nobody holds it any more. A returned chunk is reused, also for other peers. A
//! chunk that a peer held when its connection ended, here or further down a chain, is never reused:
//! it may still be read. The kernel frees the memory when the last process has unmapped it.
//!
//! This module holds the chunks of a domain and their writers; `outstanding` records what a peer
//! holds, `received` what peers lend to this side.
//!
//! Decision: a loan is memory that peers can only read, one chunk for each message, and reused after
//! it was returned. Its writer has a real slice, because no other process can
//! write; a reader that uses it in place has promised, in an unsafe call, that its senders keep to
//! that. The reader returns it by a bit in the segment, so neither side waits for the other.
//! `take_free` takes a free chunk without the domain's lock; only if none is free are returned
//! chunks collected under the lock.
//!
//! # Safety
//!
//! [`ShmLoan`] hands out the bytes of its chunk as a slice, also for writing. Each chunk is held by
//! at most one `ShmLoan`: the chunk's state contains a generation that changes each time it is
//! taken, and only the loan of that generation can release it. Peers have read-only mappings, which
//! the seal of the memory enforces, and the transport only reads the memory when it sends. A chunk
//! is lent only on presentation of the loan's own bytes ([`OutstandingLoans::prepare`]), so a chunk
//! held by another loan cannot be lent. A loan that was lent does not hand out its bytes again. So
//! no reference to a byte exists while another party writes it.
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

pub(crate) use outstanding::{CmaOffer, OutstandingLoans, PreparedLoan};
pub(crate) use received::{LoanGuard, LoanMapping, ReceivedLoans, ReturnOnDrop};

/// The smallest chunk. Chunk sizes are powers of two.
const MIN_CHUNK_LEN: usize = 4096;
/// Bytes of a domain that may be lent or free at the same time, and so the largest loan.
pub(crate) const MAX_LOAN_BYTES: usize = 4 << 30;
/// Chunks that one peer may hold at the same time. Further messages are copied.
pub(crate) const SLOTS_PER_PEER: usize = 256;
/// Chunks that a peer keeps mapped after it has returned them, and the most mappings that are
/// accepted from a peer that does not observe that.
const MAX_MAPPED_BY_PEER: usize = 64;
pub(crate) const MAX_LOAN_MAPPINGS: usize = 1024;
const _: () = assert!(MAX_LOAN_MAPPINGS >= MAX_MAPPED_BY_PEER + SLOTS_PER_PEER);

/// State of a chunk, in the low bits of its state word; the generation is above them.
const FREE: u64 = 0;
const HELD: u64 = 1;
const LENT: u64 = 2;
const GENERATION: u64 = 4;

/// A chunk of shared memory for loans.
#[derive(Debug)]
pub(crate) struct LoanChunk {
    memory: SharedMemory,
    pub(crate) key: u64,
    state: AtomicU64,
}

/// All chunks of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoanPool(Arc<Mutex<LoanPoolState>>);

/// The state behind the pool's lock.
#[derive(Debug, Default)]
struct LoanPoolState {
    chunks: Vec<Arc<LoanChunk>>,
    last_key: u64,
    /// Number of chunks that were given up, here or by their owners.
    retired: u64,
}

impl LoanPool {
    fn lock(&self) -> MutexGuard<'_, LoanPoolState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the held chunk with this key, and its state, if `payload` is a prefix of its bytes.
    fn find_held(&self, key: u64, payload: &[u8]) -> Option<(Arc<LoanChunk>, u64)> {
        let pool = self.lock();
        let chunk = pool.chunks.iter().find(|chunk| chunk.key == key)?;
        let state = chunk.state.load(Ordering::Relaxed);
        let same = chunk.memory.mapping().is_prefix(payload);
        (same && state % GENERATION == HELD).then(|| (chunk.clone(), state))
    }

    /// Returns a new key for a chunk that peers are granted.
    fn new_key(&self) -> u64 {
        let mut pool = self.lock();
        pool.last_key += 1;
        pool.last_key
    }

    /// Returns whether both are the pool of one domain.
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Notes that a chunk of another process is gone, which peers may have been granted.
    fn note_retired(&self) {
        self.lock().retired += 1;
    }

    /// Gives up a chunk: it is not used again.
    fn retire(&self, key: u64) {
        let mut pool = self.lock();
        pool.chunks.retain(|chunk| chunk.key != key);
        pool.retired += 1;
    }
}

/// Loans are allocated without the domain's lock, because creating memory takes long.
impl LoanAllocator for LoanPool {
    fn take_free(&self, len: usize) -> Option<Loan> {
        if len > MAX_LOAN_BYTES {
            return None;
        }
        let size = chunk_len(len);
        let pool = self.lock();
        let held = |chunk: &Arc<LoanChunk>| {
            let state = (chunk.len() == size).then(|| chunk.try_hold()).flatten()?;
            Some(new_loan(chunk.clone(), state, len))
        };
        pool.chunks.iter().find_map(held)
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
        let used = |pool: &LoanPoolState| {
            pool.chunks.iter().map(|chunk| chunk.len()).sum::<usize>() + size
        };
        let mut unused = Vec::new();
        {
            let mut pool = self.lock();
            let in_use: usize = pool
                .chunks
                .iter()
                .filter(|chunk| !chunk.is_free())
                .map(|chunk| chunk.len())
                .sum();
            if in_use + size > MAX_LOAN_BYTES {
                return Err(Error::WouldBlock(Resource::LoanMemory));
            }
            // Free chunks of other sizes make room.
            while used(&pool) > MAX_LOAN_BYTES {
                let Some(at) = pool
                    .chunks
                    .iter()
                    .position(|chunk| chunk.try_hold().is_some())
                else {
                    break;
                };
                unused.push(pool.chunks.swap_remove(at));
                pool.retired += 1;
            }
        }
        drop(unused);
        let memory = SharedMemory::create(size, Access::REMOTE_READ)?;
        let mut pool = self.lock();
        pool.last_key += 1;
        let state = GENERATION + HELD;
        let chunk = Arc::new(LoanChunk {
            memory,
            key: pool.last_key,
            state: AtomicU64::new(state),
        });
        pool.chunks.push(chunk.clone());
        Ok(new_loan(chunk, state, len))
    }
}

/// Returns the size of the chunk for a loan of `len` bytes.
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

    /// Returns the memory, whose descriptor is passed to the peer.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) % GENERATION == FREE
    }

    /// Takes a free chunk. Returns its new state.
    fn try_hold(&self) -> Option<u64> {
        let free = self.state.load(Ordering::Relaxed);
        let held = free - free % GENERATION + GENERATION + HELD;
        // SYNC: the acquire pairs with the release by which the previous holder freed the chunk.
        let taken = free % GENERATION == FREE && self.transition(free, held);
        taken.then_some(held)
    }

    fn transition(&self, from: u64, to: u64) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// A chunk held by its writer.
struct ShmLoan {
    chunk: Arc<LoanChunk>,
    /// State of the chunk while this value holds it.
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
        // SAFETY: this value is the only one that holds the chunk, and a borrow of it excludes
        // writers; bytes of a lent chunk are not reached, since its state differs then.
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
    /// Returns whether the chunk has not been lent.
    fn is_held(&self) -> bool {
        self.chunk.state.load(Ordering::Relaxed) == self.state
    }
}

impl Drop for ShmLoan {
    fn drop(&mut self) {
        // The exchange fails if the chunk was lent, or was returned and taken by another loan.
        self.chunk.transition(self.state, self.state - HELD + FREE);
    }
}
