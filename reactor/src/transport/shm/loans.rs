//! Loans: memory that the sender writes in place and the receiver reads in place.
//!
//! A chunk is shared memory that peers can only read. Its writer owns it until it is lent; then the
//! receiver holds it, may pass it on to further peers, and returns it by a bit in the segment of
//! the connection when no process holds it any more. A returned chunk is reused, also for other peers.
//! A chunk that a peer held when its connection ended, here or further down a chain, is never
//! reused: it may still be read. The kernel frees the memory when the last process has unmapped it.
//!
//! This module holds the chunks of a domain and their writers; `outstanding` records what a peer
//! holds, `received` what peers lend to this side.
//!
//! Decision: a loan is memory that peers can only read, one chunk for each message, and reused
//! after it was returned. Its writer has a real slice, because no other process can write; a reader
//! that uses it in place has promised, in an unsafe call, that its senders keep to that. The reader
//! returns it by a bit in the segment, so neither side waits for the other. `take_free` takes a
//! free chunk without the domain's lock; only if none is free are returned chunks collected under
//! the lock.
//!
//! # Safety
//!
//! [`ShmLoan`] hands out the bytes of its chunk as a slice, also for writing. Each chunk is held by
//! at most one `ShmLoan`: the chunk's state contains a generation that changes each time it is
//! taken, and only the loan of that generation can release it. Peers have read-only mappings, which
//! the seal of the memory enforces, and the transport only reads the memory when it sends. A chunk
//! is lent only on presentation of the loan's own bytes ([`OutstandingSlots::prepare`]), so a chunk
//! held by another loan cannot be lent. A loan that was lent does not hand out its bytes again. So
//! no reference to a byte exists while another party writes it.
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

/// The smallest chunk. Chunk sizes are powers of two.
const MIN_CHUNK_LEN: usize = 4096;
/// Bytes of a domain that may be lent or free at the same time, and so the largest loan; a domain
/// may set less.
pub(crate) const MAX_LOAN_BYTES: usize = 4 << 30;
/// Chunks that one peer may hold at the same time. Further messages are copied.
pub(crate) const SLOTS_PER_PEER: usize = 256;
/// Chunks that a peer keeps mapped after it has returned them, and the most mappings that are
/// accepted from a peer that does not observe that.
const MAX_GRANTED_CHUNKS: usize = 64;
pub(crate) const MAX_LOAN_MAPPINGS: usize = 1024;
const _: () = assert!(MAX_LOAN_MAPPINGS >= MAX_GRANTED_CHUNKS + SLOTS_PER_PEER);

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
    freed: Arc<FreedSignal>,
}

/// All chunks of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoanPool {
    state: Arc<Mutex<LoanPoolState>>,
    freed: Arc<FreedSignal>,
}

/// Tells those that wait for memory that some has become free.
#[derive(Default)]
struct FreedSignal {
    count: AtomicU64,
    awaited: AtomicBool,
    /// The wait set of the domain, whose passes wake those that wait.
    wait_set: Option<Weak<dyn WaitSet>>,
}

impl FreedSignal {
    /// Notes that memory has become free.
    fn notify(&self) {
        // SYNC: the count is before the flag here, and behind it for one that begins to wait, so
        // one of the two sees the other.
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
    /// Bytes of all chunks that may exist, and of those that are being created.
    limit: usize,
    creating: usize,
    last_key: u64,
    /// Number of chunks that were given up, here or by their owners.
    retired: u64,
}

impl Default for LoanPoolState {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            limit: MAX_LOAN_BYTES,
            creating: 0,
            last_key: 0,
            retired: 0,
        }
    }
}

impl LoanPool {
    /// Creates the pool of a domain with this wait set.
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
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Notes that a chunk of another process is gone, which peers may have been granted.
    fn count_removed(&self) {
        self.lock().retired += 1;
    }

    /// Gives up a chunk: it is not used again.
    fn retire(&self, key: u64) {
        let mut pool = self.lock();
        pool.chunks.retain(|chunk| chunk.key != key);
        pool.retired += 1;
        drop(pool);
        self.freed.notify();
    }
}

impl LoanPoolState {
    /// Returns the size of the chunk for a loan of `len` bytes: a power of two, unless the limit is
    /// between `len` and that.
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

impl LoanPool {
    /// Reserves room for a chunk that is about to be created. Returns its size, and free chunks of
    /// other sizes that made room.
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
        let used =
            |pool: &LoanPoolState| pool.chunks.iter().map(|chunk| chunk.len()).sum::<usize>();
        while used(&pool) + pool.creating + size > pool.limit {
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
        pool.creating += size;
        Ok((size, unused))
    }
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

    /// Frees a chunk that is in this state. The state has changed if the chunk was lent, or was
    /// returned and taken by another loan.
    fn free(&self, state: u64) {
        if self.transition(state, state - state % GENERATION + FREE) {
            self.freed.notify();
        }
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
        self.chunk.free(self.state);
    }
}
