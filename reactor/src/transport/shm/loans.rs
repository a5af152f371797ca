//! Loans: memory that the sender writes in place and the receiver reads in place.
//!
//! A *chunk* is shared memory that only its own process can write, for one message. A `ShmLoan`
//! holds a chunk for the application, which writes the message. Sending the loan lends the chunk to
//! the receiver, which may read the chunk in place and may relay the loan to further peers. When no
//! process holds the chunk any more, the receiver returns the chunk by a bit in the segment of the
//! connection, so neither side waits for the other. A returned chunk is reused, for any peer.
//!
//! A chunk that a peer held when its connection ended, directly or through relays, is *retired*:
//! never reused, because the peer may still read it. The kernel frees the memory when the last
//! process has unmapped it.
//!
//! This file has the chunks of a domain, [`LoanPool`], and `ShmLoan`. `outstanding` has the loans
//! that a peer holds, `received` the loans that peers have sent to this side. `take_free` takes a
//! free chunk without the domain's lock; only if none is free does the engine collect returned
//! chunks under the lock.
//!
//! Decision: one read-only chunk for each message. The writer has a real slice, because no other
//! process can write. A reader that borrows the bytes in place has promised, in an unsafe call,
//! that its senders do not write lent memory.
//!
//! # Safety
//!
//! [`ShmLoan`] returns the bytes of its chunk as a slice, also for writing. Each chunk is held by
//! at most one `ShmLoan`: the chunk's state contains a generation that changes each time the chunk
//! is taken, and only the loan of that generation can free the chunk. Peers have read-only
//! mappings, which the seal of the memory enforces, and the transport only reads the memory when it
//! sends. A chunk is lent only if the payload is the bytes of the loan itself
//! ([`OutstandingSlots::prepare`]), so a chunk held by another loan cannot be lent. A loan that was
//! lent returns an empty slice. So no reference to a byte exists while another thread or process
//! writes the byte.
#![allow(unsafe_code)]

mod outstanding;
mod received;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fabric_core::buf::{Loan, LoanMemory};
use fabric_core::flags::Access;
use fabric_core::transport::{LoanAllocator, WaitSet};
use fabric_core::{Error, Resource, Result};

use super::shared_memory::SharedMemory;

pub(crate) use outstanding::{CmaOffer, OutstandingSlots, PreparedLoan};
pub(crate) use received::{LoanGuard, LoanMapping, ReceivedLoans, ReturnOnDrop};

/// Minimum bytes of a chunk. Chunk sizes are powers of two, or the limit of the domain.
const MIN_CHUNK_LEN: usize = 4096;
/// Maximum bytes of all chunks of a domain, and of one loan; the application may set a lower limit.
pub(crate) const MAX_LOAN_BYTES: usize = 4 << 30;
/// Loans and CMA offers that one peer may hold at the same time. Further messages are copied into
/// the ring.
pub(crate) const SLOTS_PER_PEER: usize = 256;
/// Number of granted chunks from which the sender tells the peer to unmap those not lent now.
const MAX_GRANTED_CHUNKS: usize = 64;
/// Maximum number of chunks that one peer may grant; more are a protocol violation. `received` has
/// further limits.
const MAX_LOAN_MAPPINGS: usize = 1024;
const _: () = assert!(MAX_LOAN_MAPPINGS >= MAX_GRANTED_CHUNKS + SLOTS_PER_PEER);

// State word of a chunk: `FREE`, `HELD` or `LENT`, plus a multiple of `GENERATION`.

/// No loan holds the chunk.
const FREE: u64 = 0;
/// A `ShmLoan` of this process holds the chunk.
const HELD: u64 = 1;
/// A peer holds the chunk.
const LENT: u64 = 2;
/// Increment of the generation.
const GENERATION: u64 = 4;

/// A chunk of shared memory for loans.
#[derive(Debug)]
pub(crate) struct LoanChunk {
    memory: SharedMemory,
    /// Key under which peers are granted the chunk, unique in the domain.
    pub(crate) key: u64,
    /// State word: see [`FREE`].
    state: AtomicU64,
    freed: Arc<FreedSignal>,
}

/// The chunks of a domain; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoanPool {
    state: Arc<Mutex<LoanPoolState>>,
    freed: Arc<FreedSignal>,
}

/// Wakes tasks that wait for loan memory when memory becomes free.
#[derive(Default)]
struct FreedSignal {
    /// How often memory has become free.
    count: AtomicU64,
    /// Whether a task waits for loan memory.
    awaited: AtomicBool,
    /// The domain's epoll set. A woken domain makes a pass, which wakes the waiting tasks.
    wait_set: Option<Weak<dyn WaitSet>>,
}

impl FreedSignal {
    /// Counts that memory has become free, and wakes the domain if a task waits for memory.
    fn notify(&self) {
        // SYNC: this side writes the count and then reads the flag; a waiting task sets the flag
        // and then reads the count. So one of the two sees the other's write.
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.awaited.load(Ordering::SeqCst)
            && let Some(wait_set) = self.wait_set.as_ref().and_then(Weak::upgrade)
        {
            wait_set.wake();
        }
    }
}

impl std::fmt::Debug for FreedSignal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FreedSignal")
            .field("count", &self.count)
            .field("awaited", &self.awaited)
            .finish_non_exhaustive()
    }
}

/// The state behind the pool's lock.
#[derive(Debug)]
struct LoanPoolState {
    chunks: Vec<Arc<LoanChunk>>,
    /// Maximum bytes of all chunks.
    limit: usize,
    /// Bytes of chunks that are being created, without the lock.
    creating: usize,
    last_key: u64,
    /// Number of removed chunks, which peers need not keep mapped: chunks removed from `chunks`,
    /// and received chunks that were unmapped.
    removed: u64,
}

impl Default for LoanPoolState {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            limit: MAX_LOAN_BYTES,
            creating: 0,
            last_key: 0,
            removed: 0,
        }
    }
}

impl LoanPool {
    /// Creates the pool of the domain with this epoll set.
    pub(crate) fn new(wait_set: &Arc<dyn WaitSet>) -> Self {
        Self {
            state: Arc::default(),
            freed: Arc::new(FreedSignal {
                wait_set: Some(Arc::downgrade(wait_set)),
                ..FreedSignal::default()
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LoanPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the held chunk with this key and its state word, if `payload` is a prefix of the
    /// chunk's bytes: the same memory, not equal bytes.
    fn find_held(&self, key: u64, payload: &[u8]) -> Option<(Arc<LoanChunk>, u64)> {
        let pool = self.lock();
        let chunk = pool.chunks.iter().find(|chunk| chunk.key == key)?;
        let state = chunk.state.load(Ordering::Relaxed);
        let is_payload = chunk.memory.mapping().is_prefix(payload);
        (is_payload && state % GENERATION == HELD).then(|| (chunk.clone(), state))
    }

    /// Returns a new key, for a chunk that peers will be granted.
    fn new_key(&self) -> u64 {
        let mut pool = self.lock();
        pool.last_key += 1;
        pool.last_key
    }

    /// Returns whether both are the pool of the same domain.
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Counts a received chunk that was unmapped here. Peers may have been granted the chunk.
    fn count_removed(&self) {
        self.lock().removed += 1;
    }

    /// Removes a chunk, so that it is never reused.
    fn retire(&self, key: u64) {
        let mut pool = self.lock();
        pool.chunks.retain(|chunk| chunk.key != key);
        pool.removed += 1;
        drop(pool);
        self.freed.notify();
    }

    /// Reserves `creating` bytes for a chunk that the caller creates. Returns the size of the
    /// chunk, and free chunks of other sizes that were removed to make room, which the caller
    /// drops.
    fn reserve(&self, len: usize) -> Result<(usize, Vec<Arc<LoanChunk>>)> {
        let mut pool = self.lock();
        if len > pool.limit {
            return Err(Error::TooLong {
                what: "loan",
                len,
                limit: pool.limit,
            });
        }
        let size = pool.chunk_len(len);
        let in_use = pool.in_use();
        if size > pool.limit.saturating_sub(in_use) {
            return Err(Error::WouldBlock(Resource::LoanMemory {
                in_use,
                limit: pool.limit,
            }));
        }
        let mut unused = Vec::new();
        let chunk_bytes =
            |pool: &LoanPoolState| pool.chunks.iter().map(|chunk| chunk.len()).sum::<usize>();
        while chunk_bytes(&pool) + pool.creating + size > pool.limit {
            let Some(at) = pool
                .chunks
                .iter()
                .position(|chunk| chunk.try_hold().is_some())
            else {
                break;
            };
            unused.push(pool.chunks.swap_remove(at));
            pool.removed += 1;
        }
        pool.creating += size;
        Ok((size, unused))
    }
}

impl LoanPoolState {
    /// Returns the size of the chunk for a loan of `len` bytes: the next power of two, or the limit
    /// if the limit is less.
    fn chunk_len(&self, len: usize) -> usize {
        len.max(MIN_CHUNK_LEN)
            .next_power_of_two()
            .min(self.limit.max(len))
    }

    /// Returns the bytes of chunks that are held or lent, or are being created.
    fn in_use(&self) -> usize {
        let held = self.chunks.iter().filter(|chunk| !chunk.is_free());
        held.map(|chunk| chunk.len()).sum::<usize>() + self.creating
    }
}

/// Loans are allocated without the domain's lock, because creating memory takes long.
impl LoanAllocator for LoanPool {
    fn take_free(&self, len: usize) -> Option<Loan> {
        let pool = self.lock();
        if len > pool.limit {
            return None;
        }
        let size = pool.chunk_len(len);
        let held = |chunk: &Arc<LoanChunk>| {
            let state = (chunk.len() == size).then(|| chunk.try_hold()).flatten()?;
            Some(new_loan(chunk.clone(), state, len))
        };
        pool.chunks.iter().find_map(held)
    }

    fn allocate(&self, len: usize) -> Result<Loan> {
        let (size, unused) = self.reserve(len)?;
        // Frees memory for the new chunk.
        drop(unused);
        let memory = SharedMemory::create(size, Access::REMOTE_READ);
        let mut pool = self.lock();
        pool.creating -= size;
        let memory = match memory {
            Ok(memory) => memory,
            Err(error) => {
                drop(pool);
                self.freed.notify();
                return Err(error);
            }
        };
        pool.last_key += 1;
        let state = GENERATION + HELD;
        let chunk = Arc::new(LoanChunk {
            memory,
            key: pool.last_key,
            state: AtomicU64::new(state),
            freed: self.freed.clone(),
        });
        pool.chunks.push(chunk.clone());
        Ok(new_loan(chunk, state, len))
    }

    fn set_limit(&self, bytes: usize) {
        self.lock().limit = bytes.clamp(MIN_CHUNK_LEN, MAX_LOAN_BYTES);
    }

    fn times_freed(&self) -> u64 {
        self.freed.count.load(Ordering::SeqCst)
    }

    fn set_awaited(&self, awaited: bool) {
        self.freed.awaited.store(awaited, Ordering::SeqCst);
    }

    fn is_awaited(&self) -> bool {
        self.freed.awaited.load(Ordering::SeqCst)
    }

    fn would_block(&self) -> Error {
        let pool = self.lock();
        Error::WouldBlock(Resource::LoanMemory {
            in_use: pool.in_use(),
            limit: pool.limit,
        })
    }
}

/// Creates the loan that holds a chunk; `state` is the chunk's state word.
fn new_loan(chunk: Arc<LoanChunk>, state: u64, len: usize) -> Loan {
    Loan::new(Box::new(ShmLoan { chunk, state, len }))
}

impl LoanChunk {
    fn len(&self) -> usize {
        fabric_core::mr::RegionBytes::len(&self.memory)
    }

    /// Returns the memory, whose descriptor is passed to the peer.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) % GENERATION == FREE
    }

    /// Takes the chunk if it is free. Returns its new state word.
    fn try_hold(&self) -> Option<u64> {
        let free = self.state.load(Ordering::Relaxed);
        let held = free - free % GENERATION + GENERATION + HELD;
        // SYNC: the acquire pairs with the release by which the previous holder freed the chunk.
        let taken = free % GENERATION == FREE && self.transition(free, held);
        taken.then_some(held)
    }

    /// Frees the chunk if its state word is still `state`. The state word has changed if the chunk
    /// was lent, or was returned and taken by another loan.
    fn free(&self, state: u64) {
        if self.transition(state, state - state % GENERATION + FREE) {
            self.freed.notify();
        }
    }

    /// Changes the state word from `from` to `to`. Returns false if the state word is not `from`.
    fn transition(&self, from: u64, to: u64) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// A chunk held by the application, which writes a message into it.
struct ShmLoan {
    chunk: Arc<LoanChunk>,
    /// State word of the chunk while this value holds it.
    state: u64,
    /// Bytes of the message.
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
        // SAFETY: this value is the only one that holds the chunk, and the borrow of this value
        // excludes writers. The state word of a lent chunk differs, so its bytes are not returned.
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
    /// Returns whether this value still holds the chunk: false once the loan was sent.
    fn is_held(&self) -> bool {
        self.chunk.state.load(Ordering::Relaxed) == self.state
    }
}

impl Drop for ShmLoan {
    fn drop(&mut self) {
        self.chunk.free(self.state);
    }
}
