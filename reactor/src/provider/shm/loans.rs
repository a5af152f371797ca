//! Loans: memory that is written in place and read where it lies.
//!
//! A chunk is an area that peers can only read. Its writer has it alone until it is lent; then it belongs to the receiver,
//! who gives it back by a bit in the segment of the connection. A chunk that is given back is used again, also for other
//! peers. One that a peer had when its connection ended is not: nobody can tell whether it is still being read. The memory
//! goes with the last process that has it mapped.
//!
//! # Safety
//!
//! [`Chunk`] hands out its bytes as a slice, and for writing. It is held by one [`ShmLoan`] at a time (`state`), peers
//! have read-only mappings (the seal of its area sees to that), and the provider only reads it when it sends. So no
//! reference to a byte exists while another party writes it.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric_core::buf::{LentMemory, Loan, LoanMemory, Source};
use fabric_core::flags::Access;
use fabric_core::{Error, Result, Scarce};

use super::area::{Area, Lent};
use super::segment::Segment;

/// The smallest chunk. They come in powers of two.
const SMALLEST: usize = 4096;
/// Bytes of a domain that may be lent or free at the same time.
const MOST_BYTES: usize = 4 << 30;
/// Chunks that one peer may have at the same time.
pub(crate) const SLOTS: usize = 256;

const FREE: u8 = 0;
const HELD: u8 = 1;
const LENT: u8 = 2;

/// Memory of a loan.
#[derive(Debug)]
pub(crate) struct Chunk {
    memory: Lent,
    pub(crate) key: u64,
    state: AtomicU8,
}

/// All chunks of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loans(Arc<Mutex<Chunks>>);

#[derive(Debug, Default)]
struct Chunks {
    all: Vec<Arc<Chunk>>,
    next: u64,
}

impl Loans {
    fn chunks(&self) -> MutexGuard<'_, Chunks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory that is free, of this many bytes or somewhat more.
    pub(crate) fn reuse(&self, len: usize) -> Option<Loan> {
        if len > MOST_BYTES {
            return None;
        }
        let size = size_of_chunk(len);
        let chunks = self.chunks();
        let free = |chunk: &&Arc<Chunk>| chunk.len() == size && chunk.move_to(FREE, HELD);
        chunks.all.iter().find(free).map(|chunk| loan(chunk.clone(), len))
    }

    /// Fresh memory.
    pub(crate) fn grow(&self, len: usize) -> Result<Loan> {
        if len > MOST_BYTES {
            return Err(Error::TooLong { what: "loan", len, limit: MOST_BYTES });
        }
        let size = size_of_chunk(len);
        let mut chunks = self.chunks();
        let used: usize = chunks.all.iter().map(|chunk| chunk.len()).sum();
        if used + size > MOST_BYTES {
            return Err(Error::Again(Scarce::LendingMemory));
        }
        chunks.next += 1;
        let memory = Lent::create(size, Access::REMOTE_READ)?;
        let chunk = Arc::new(Chunk { memory, key: chunks.next, state: AtomicU8::new(HELD) });
        chunks.all.push(chunk.clone());
        Ok(loan(chunk, len))
    }

    /// The chunk of this name, if its writer has it.
    pub(crate) fn held(&self, key: u64) -> Option<Arc<Chunk>> {
        let chunks = self.chunks();
        chunks
            .all
            .iter()
            .find(|chunk| chunk.key == key && chunk.state.load(Ordering::Relaxed) == HELD)
            .cloned()
    }

    /// This chunk is not used again.
    fn forget(&self, key: u64) {
        self.chunks().all.retain(|chunk| chunk.key != key);
    }
}

fn size_of_chunk(len: usize) -> usize {
    len.max(SMALLEST).next_power_of_two()
}

fn loan(chunk: Arc<Chunk>, len: usize) -> Loan {
    Loan::new(Box::new(ShmLoan { chunk, len }))
}

impl Chunk {
    fn len(&self) -> usize {
        fabric_core::mr::Memory::len(&self.memory)
    }

    /// The descriptor, for the peer.
    pub(crate) fn memory(&self) -> &Lent {
        &self.memory
    }

    fn move_to(&self, from: u8, to: u8) -> bool {
        // SYNC: who gives memory back has released it; who takes it acquires.
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// A chunk in the hands of its writer.
struct ShmLoan {
    chunk: Arc<Chunk>,
    len: usize,
}

impl LoanMemory for ShmLoan {
    fn key(&self) -> Option<u64> {
        Some(self.chunk.key)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: this value is the only one of a chunk that is held, and a borrow of it keeps writers away; what was
        // lent is not reached any more, since lending takes the value.
        unsafe { self.chunk.memory.area().slice(self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; peers cannot write.
        unsafe { self.chunk.memory.area().slice_mut(self.len) }
    }
}

impl Drop for ShmLoan {
    fn drop(&mut self) {
        // What was lent stays so.
        self.chunk.move_to(HELD, FREE);
    }
}

/// What one peer has, by slot.
#[derive(Debug)]
pub(crate) struct Borrowed {
    loans: Loans,
    slots: Vec<Option<Arc<Chunk>>>,
    /// Chunks whose memory the peer has been given, by name.
    given: Vec<u64>,
}

impl Borrowed {
    pub(crate) fn new(loans: Loans) -> Self {
        Self { loans, slots: Vec::new(), given: Vec::new() }
    }

    /// The chunk of this name, and a slot for it; nothing when the peer has too many.
    pub(crate) fn prepare(&mut self, key: u64, segment: &Segment) -> Option<(Arc<Chunk>, usize)> {
        let chunk = self.loans.held(key)?;
        let free = |slots: &[Option<Arc<Chunk>>]| slots.iter().position(Option::is_none);
        let slot = match free(&self.slots) {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => {
                self.collect(segment);
                free(&self.slots)?
            }
        };
        Some((chunk, slot))
    }

    /// Whether the peer has this memory already.
    pub(crate) fn was_given(&self, key: u64) -> bool {
        self.given.binary_search(&key).is_ok()
    }

    pub(crate) fn give(&mut self, key: u64) {
        if let Err(at) = self.given.binary_search(&key) {
            self.given.insert(at, key);
        }
    }

    /// The chunk is the peer's now.
    pub(crate) fn lend(&mut self, chunk: Arc<Chunk>, slot: usize) {
        chunk.move_to(HELD, LENT);
        self.slots[slot] = Some(chunk);
    }

    /// Takes back what the peer has given back.
    pub(crate) fn collect(&mut self, segment: &Segment) {
        for (word, slots) in self.slots.chunks_mut(64).enumerate() {
            let mut bits = segment.take_returned(word);
            while bits != 0 {
                let slot = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(chunk) = slots.get_mut(slot).and_then(Option::take) {
                    chunk.move_to(LENT, FREE);
                }
            }
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        for chunk in self.slots.iter().flatten() {
            self.loans.forget(chunk.key);
        }
    }
}

/// A message in memory of its sender, held until this is dropped.
pub(crate) struct Borrow {
    area: Arc<Area>,
    len: usize,
    /// Where it is given back, and under which number.
    segment: Segment,
    slot: usize,
}

impl Borrow {
    /// `None` when the message does not lie within the memory, or there is no such slot.
    pub(crate) fn new(area: Arc<Area>, len: usize, segment: Segment, slot: usize) -> Option<Self> {
        (len <= area.len() && slot < SLOTS).then_some(Self { area, len, segment, slot })
    }
}

impl Borrow {
    /// Ends this without giving anything back.
    pub(crate) fn keep(mut self) {
        self.slot = SLOTS;
    }
}

impl Source for Borrow {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.area.part(0, self.len).copy_to(from, dst)
    }

    fn copy_over(&self, from: usize, dst: &mut [u8]) {
        self.area.part(0, self.len).copy_over(from, dst);
    }
}

impl LentMemory for Borrow {
    fn bytes(&self) -> &[u8] {
        // SAFETY: whoever receives into a `Lent` has promised that its senders do not write what they have lent
        // (`Endpoint::recv_lent` is unsafe for that); our own sender does not, as long as this has not given it back.
        unsafe { self.area.slice(self.len) }
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        if self.slot < SLOTS {
            self.segment.give_back(self.slot);
        }
    }
}

/// A borrow that may be copied from, or held.
pub(crate) struct Offer(pub(crate) Arc<Borrow>);

impl Source for Offer {
    fn len(&self) -> usize {
        self.0.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.0.copy_to(from, dst)
    }

    fn copy_over(&self, from: usize, dst: &mut [u8]) {
        self.0.copy_over(from, dst);
    }

    fn lent(&self) -> Option<Arc<dyn LentMemory>> {
        Some(self.0.clone())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_round() {
        let loans = Loans::default();
        assert!(loans.reuse(10).is_none());
        let mut first = loans.grow(10).unwrap();
        first.copy_from_slice(b"0123456789");
        let key = first.key().unwrap();
        assert!(loans.reuse(10).is_none(), "it is in use");
        drop(first);
        assert_eq!(loans.reuse(4096).unwrap().key(), Some(key), "dropped unsent, it is used again");
        assert!(loans.reuse(4097).is_none(), "another size");

        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = Borrowed::new(loans.clone());
        let loan = loans.reuse(10).unwrap();
        let (chunk, slot) = peer.prepare(key, &segment).unwrap();
        assert!(!peer.was_given(key));
        peer.give(key);
        peer.lend(chunk, slot);
        drop(loan);
        assert!(loans.reuse(10).is_none() && loans.held(key).is_none(), "the peer has it");
        peer.collect(&segment);
        assert!(loans.reuse(10).is_none(), "and has not given it back");
        segment.give_back(slot);
        segment.give_back(200);
        peer.collect(&segment);
        assert_eq!(loans.reuse(10).unwrap().key(), Some(key));

        let loan = loans.reuse(10).unwrap();
        let (chunk, slot) = peer.prepare(key, &segment).unwrap();
        peer.lend(chunk, slot);
        drop((loan, peer));
        segment.give_back(slot);
        assert!(loans.reuse(10).is_none(), "what a peer had that is gone is not used again");
    }

    #[test]
    fn a_peer_has_no_more_than_its_slots() {
        let loans = Loans::default();
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = Borrowed::new(loans.clone());
        for _ in 0..SLOTS {
            let loan = loans.grow(1).unwrap();
            let (chunk, slot) = peer.prepare(loan.key().unwrap(), &segment).unwrap();
            peer.lend(chunk, slot);
        }
        let loan = loans.grow(1).unwrap();
        assert!(peer.prepare(loan.key().unwrap(), &segment).is_none());
        segment.give_back(77);
        assert_eq!(peer.prepare(loan.key().unwrap(), &segment).map(|(_, slot)| slot), Some(77));
        assert!(matches!(loans.grow(usize::MAX), Err(Error::TooLong { .. })));
    }
}
