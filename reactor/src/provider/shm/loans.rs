//! Loans: memory that is written in place and read where it lies.
//!
//! A chunk is an area that peers can only read. Its writer has it alone until it is lent; then it belongs to the receiver,
//! who gives it back by a bit in the segment of the connection. A chunk that is given back is used again, also for other
//! peers. One that a peer had when its connection ended is not: nobody can tell whether it is still being read. The memory
//! goes with the last process that has it mapped.
//!
//! # Safety
//!
//! [`ShmLoan`] hands out the bytes of its chunk as a slice, and for writing. A chunk is held by one of them at a time: its
//! state has a number that is new each time it is held, and only the loan of that number can end the holding. Peers have
//! read-only mappings (the seal of its area sees to that), and the provider only reads it when it sends. A loan is lent
//! only by showing its own bytes ([`Borrowed::prepare`]), so nobody lends what somebody else holds. Whoever has lent a
//! loan does not hand out its bytes again. So no reference to a byte exists while another party writes it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric_core::buf::{LentMemory, Loan, LoanMemory, Source};
use fabric_core::flags::Access;
use fabric_core::provider::{Lender, OpKey};
use fabric_core::{Error, Result, Scarce};

use super::area::{Area, Lent};
use super::segment::{RETURN_WORDS, Segment};
use crate::provider::origin::Origin;

/// The smallest chunk. They come in powers of two.
const SMALLEST: usize = 4096;
/// Bytes of a domain that may be lent or free at the same time, and so the largest loan.
pub(crate) const MOST_BYTES: usize = 4 << 30;
/// Chunks that one peer may have at the same time. What is more is copied.
pub(crate) const SLOTS: usize = 256;
/// Chunks whose memory a peer keeps mapped when it has given them back; and the most that are taken from one that does
/// not keep to that.
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
    memory: Lent,
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
            return Err(Error::TooLong { what: "loan", len, limit: MOST_BYTES });
        }
        let size = size_of_chunk(len);
        let used = |chunks: &Chunks| chunks.all.iter().map(|chunk| chunk.len()).sum::<usize>() + size;
        let mut unused = Vec::new();
        {
            let mut chunks = self.chunks();
            let out: usize =
                chunks.all.iter().filter(|chunk| !chunk.is_free()).map(|chunk| chunk.len()).sum();
            if out + size > MOST_BYTES {
                return Err(Error::Again(Scarce::LendingMemory));
            }
            // What is free of other sizes makes room.
            while used(&chunks) > MOST_BYTES {
                let Some(at) = chunks.all.iter().position(|chunk| chunk.hold().is_some()) else { break };
                unused.push(chunks.all.swap_remove(at));
                chunks.given_up += 1;
            }
        }
        drop(unused);
        let memory = Lent::create(size, Access::REMOTE_READ)?;
        let mut chunks = self.chunks();
        chunks.next += 1;
        let state = NUMBER + HELD;
        let chunk = Arc::new(Chunk { memory, key: chunks.next, state: AtomicU64::new(state) });
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
    pub(crate) fn memory(&self) -> &Lent {
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
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
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
        // SAFETY: this value is the only one of a chunk that is held, and a borrow of it keeps writers away; what was
        // lent is not reached any more, since lending takes the value.
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

/// What a peer has.
#[derive(Debug)]
enum Out {
    /// A chunk, and its state then.
    Chunk(Arc<Chunk>, u64),
    /// A message to be fetched.
    Message(Offered),
}

/// A message that a peer is to fetch: it is not sent before the peer has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    pub(crate) op: OpKey,
    pub(crate) len: usize,
    pub(crate) tag: Option<u64>,
    /// What the peer is to confirm as well.
    pub(crate) receipt: Option<u32>,
}

/// A chunk that is about to be lent.
pub(crate) struct Prepared {
    pub(crate) chunk: Arc<Chunk>,
    state: u64,
    pub(crate) slot: usize,
}

/// What one peer has, by slot.
#[derive(Debug)]
pub(crate) struct Borrowed {
    loans: Loans,
    slots: Vec<Option<Out>>,
    /// How many of them are messages to be fetched, and those that were fetched since this was asked last.
    offered: usize,
    fetched: VecDeque<Offered>,
    /// Chunks whose memory the peer has been given, by name.
    given: Vec<u64>,
    /// How often chunks had been given up when this was looked at last.
    given_up: u64,
}

impl Borrowed {
    pub(crate) fn new(loans: Loans) -> Self {
        Self {
            loans,
            slots: Vec::new(),
            offered: 0,
            fetched: VecDeque::new(),
            given: Vec::new(),
            given_up: 0,
        }
    }

    /// The chunk that this payload is of, and a slot for it; nothing when it is of somewhere else, or the peer has too
    /// many.
    pub(crate) fn prepare(&mut self, key: u64, payload: &[u8], segment: &Segment) -> Option<Prepared> {
        let (chunk, state) = self.loans.held(key, payload)?;
        let slot = self.vacant(segment)?;
        Some(Prepared { chunk, state, slot })
    }

    /// A slot that is free; nothing when the peer has too much.
    pub(crate) fn vacant(&mut self, segment: &Segment) -> Option<usize> {
        let free = |slots: &[Option<Out>]| slots.iter().position(Option::is_none);
        if let Some(slot) = free(&self.slots) {
            return Some(slot);
        }
        if self.slots.len() < SLOTS {
            self.slots.push(None);
            return Some(self.slots.len() - 1);
        }
        self.collect(segment);
        free(&self.slots)
    }

    /// This message is the peer's to fetch now.
    pub(crate) fn offer(&mut self, slot: usize, offered: Offered) {
        self.slots[slot] = Some(Out::Message(offered));
        self.offered += 1;
    }

    /// Whether the peer has messages to fetch, or has fetched some of which nobody knows.
    pub(crate) fn is_fetching(&self) -> bool {
        self.offered > 0 || !self.fetched.is_empty()
    }

    /// Whether the peer has fetched some of which nobody knows.
    pub(crate) fn has_fetched(&self) -> bool {
        !self.fetched.is_empty()
    }

    /// The next message that the peer has fetched, of those that were collected.
    pub(crate) fn next_fetched(&mut self) -> Option<Offered> {
        self.fetched.pop_front()
    }

    /// The messages that the peer has not fetched, when it will not any more.
    pub(crate) fn unfetched(&mut self) -> impl Iterator<Item = Offered> {
        self.offered = 0;
        self.slots.iter_mut().filter_map(|slot| match slot {
            Some(Out::Message(offered)) => {
                let offered = *offered;
                *slot = None;
                Some(offered)
            }
            _ => None,
        })
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

    /// Names of memory that the peer need not keep: it has too much of it that it does not read.
    pub(crate) fn surplus(&mut self) -> Vec<u64> {
        let is = |out: &Out, key| matches!(out, Out::Chunk(chunk, _) if chunk.key == key);
        let out = |key: u64| self.slots.iter().flatten().any(|out| is(out, key));
        let idle = self.given.iter().copied().filter(|key| !out(*key));
        if self.given.len() >= MOST_GIVEN {
            return idle.collect();
        }
        // What was given up here is nobody's any more once the peer has let go of it.
        let chunks = self.loans.chunks();
        if std::mem::replace(&mut self.given_up, chunks.given_up) == chunks.given_up {
            return Vec::new();
        }
        idle.filter(|key| chunks.all.iter().all(|chunk| chunk.key != *key)).collect()
    }

    /// The peer does not have this memory any more.
    pub(crate) fn forget(&mut self, key: u64) {
        if let Ok(at) = self.given.binary_search(&key) {
            self.given.remove(at);
        }
    }

    /// The chunk is the peer's now.
    pub(crate) fn lend(&mut self, prepared: Prepared) {
        let Prepared { chunk, state, slot } = prepared;
        let lent = state - HELD + LENT;
        chunk.change(state, lent);
        self.slots[slot] = Some(Out::Chunk(chunk, lent));
    }

    /// Takes back what the peer has given back.
    pub(crate) fn collect(&mut self, segment: &Segment) {
        // All of them: a number that was never given out must not keep anybody awake.
        for word in 0..RETURN_WORDS {
            let mut bits = segment.take_returned(word);
            while bits != 0 {
                let slot = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                match self.slots.get_mut(slot).and_then(Option::take) {
                    Some(Out::Chunk(chunk, state)) => {
                        chunk.change(state, state - LENT + FREE);
                    }
                    Some(Out::Message(offered)) => {
                        self.offered -= 1;
                        self.fetched.push_back(offered);
                    }
                    // Given back twice, or never had.
                    None => {}
                }
            }
        }
    }
}

impl Borrowed {
    /// How many the peer has, or has given back unnoticed.
    pub(crate) fn out(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        for out in self.slots.iter().flatten() {
            if let Out::Chunk(chunk, _) = out {
                self.loans.forget(chunk.key);
            }
        }
    }
}

/// How many pieces of memory peers lend to an endpoint, those of messages that wait or are held among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adopted(Arc<AtomicUsize>);

/// The most of them.
const MOST_ADOPTED: usize = 32_768;

impl Adopted {
    /// Memory that a peer is going to lend.
    pub(crate) fn adopt(&self, area: Area) -> Option<Arc<Foreign>> {
        if self.0.fetch_add(1, Ordering::Relaxed) >= MOST_ADOPTED {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Arc::new(Foreign { area, counted: self.clone() }))
    }
}

/// Memory of a peer, counted as long as it is mapped.
#[derive(Debug)]
pub(crate) struct Foreign {
    area: Area,
    counted: Adopted,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.counted.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message in memory of its sender, held until this is dropped.
pub(crate) struct Borrow {
    area: Arc<Foreign>,
    len: usize,
    /// Where it is given back, and under which number.
    segment: Segment,
    slot: usize,
    origin: Origin,
}

impl Borrow {
    /// `None` when the message does not lie within the memory, or there is no such slot.
    pub(crate) fn new(area: Arc<Foreign>, len: usize, segment: Segment, slot: usize) -> Option<Self> {
        (len <= area.area.len() && slot < SLOTS).then_some(Self {
            area,
            len,
            segment,
            slot,
            origin: Origin::here(),
        })
    }
}

/// What is given back when it is dropped.
pub(crate) trait Keep {
    /// Ends this without giving anything back.
    fn keep(self);
}

impl Keep for Borrow {
    fn keep(mut self) {
        self.slot = SLOTS;
    }
}

impl Source for Borrow {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.area.area.part(0, self.len).copy_to(from, dst)
    }

    fn copy_over(&self, from: usize, dst: &mut [u8]) {
        self.area.area.part(0, self.len).copy_over(from, dst);
    }
}

impl LentMemory for Borrow {
    fn bytes(&self) -> &[u8] {
        // SAFETY: whoever receives into a `Lent` has promised that its senders do not write what they have lent
        // (`Endpoint::recv_lent` is unsafe for that); our own sender does not, as long as this has not given it back.
        unsafe { self.area.area.slice(self.len) }
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        if self.slot < SLOTS && self.origin.is_here() {
            self.segment.give_back(self.slot);
        }
    }
}

/// A message that lies with its sender: it may be copied from, or held.
pub(crate) struct Offer<M>(pub(crate) Arc<M>);

impl<M: LentMemory> Source for Offer<M> {
    fn len(&self) -> usize {
        self.0.len()
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

    fn key(loan: &Loan) -> u64 {
        loan.key().unwrap()
    }

    #[test]
    fn memory_goes_round() {
        let loans = Loans::default();
        assert!(loans.reuse(10).is_none());
        let mut first = loans.grow(10).unwrap();
        first.copy_from_slice(b"0123456789");
        let name = key(&first);
        assert!(loans.reuse(10).is_none(), "it is in use");
        drop(first);
        assert_eq!(key(&loans.reuse(4096).unwrap()), name, "dropped unsent, it is used again");
        assert!(loans.reuse(4097).is_none(), "another size");

        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = Borrowed::new(loans.clone());
        let loan = loans.reuse(10).unwrap();
        let prepared = peer.prepare(name, &loan, &segment).unwrap();
        let slot = prepared.slot;
        assert!(!peer.was_given(name));
        peer.give(name);
        peer.lend(prepared);
        assert!(
            loans.reuse(10).is_none() && peer.prepare(name, &loan, &segment).is_none(),
            "the peer has it"
        );
        peer.collect(&segment);
        assert!(loans.reuse(10).is_none(), "and has not given it back");
        segment.give_back(slot);
        segment.give_back(200);
        peer.collect(&segment);
        let second = loans.reuse(10).unwrap();
        assert_eq!(key(&second), name);
        drop(loan);
        assert!(loans.reuse(10).is_none(), "who had it before has nothing to give back any more");
        drop(second);

        let loan = loans.reuse(10).unwrap();
        let prepared = peer.prepare(name, &loan, &segment).unwrap();
        peer.lend(prepared);
        drop((loan, peer));
        segment.give_back(slot);
        assert!(loans.reuse(10).is_none(), "what a peer had that is gone is not used again");
    }

    #[test]
    fn nobody_lends_what_another_holds() {
        let (mine, others) = (Loans::default(), Loans::default());
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = Borrowed::new(mine.clone());
        let (secret, foreign) = (mine.grow(10).unwrap(), others.grow(10).unwrap());
        assert_eq!(key(&secret), key(&foreign), "two domains count alike");
        assert!(peer.prepare(key(&foreign), &foreign, &segment).is_none(), "it is copied");
        assert!(peer.prepare(77, &secret, &segment).is_none());
        assert!(peer.prepare(key(&secret), &secret[1..], &segment).is_none());
        assert!(peer.prepare(key(&secret), &secret, &segment).is_some());
    }

    #[test]
    fn a_peer_has_no_more_than_its_slots_and_keeps_no_more_than_it_may() {
        let loans = Loans::default();
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = Borrowed::new(loans.clone());
        let lend = |peer: &mut Borrowed| {
            let loan = loans.reuse(1).unwrap_or_else(|| loans.grow(1).unwrap());
            let prepared = peer.prepare(key(&loan), &loan, &segment)?;
            let slot = prepared.slot;
            peer.give(key(&loan));
            peer.lend(prepared);
            Some(slot)
        };
        for _ in 0..SLOTS {
            assert!(lend(&mut peer).is_some());
        }
        assert!(lend(&mut peer).is_none());
        segment.give_back(77);
        assert_eq!(lend(&mut peer), Some(77));
        let surplus = peer.surplus();
        assert_eq!(surplus.len(), 1, "what it gave back, but not what it reads");
        surplus.into_iter().for_each(|key| peer.forget(key));
        assert!(peer.surplus().is_empty());
        let mut another = Borrowed::new(loans.clone());
        (0..3).for_each(|key| another.give(1000 + key));
        assert!(another.surplus().is_empty(), "few, and nothing was given up");
        drop(peer);
        assert_eq!(another.surplus(), [1000, 1001, 1002], "what is not there any more");
        assert!(matches!(loans.grow(usize::MAX), Err(Error::TooLong { .. })));
    }

    #[test]
    fn peers_lend_a_bounded_number_of_pieces() {
        let adopted = Adopted::default();
        let area = || {
            let lent = Lent::create(1, Access::REMOTE_READ).unwrap();
            Area::adopt(&lent.fd().try_clone_to_owned().unwrap(), 1, false).unwrap()
        };
        let mut held: Vec<_> = (0..MOST_ADOPTED).map(|_| adopted.adopt(area())).collect();
        assert!(held.iter().all(Option::is_some) && adopted.adopt(area()).is_none());
        held.pop();
        assert!(adopted.adopt(area()).is_some());
    }
}
