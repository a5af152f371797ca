//! What one peer has of this side: chunks that were lent to it, and messages that it is to fetch.
//! Both are given back by the number of a slot.
#![deny(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use fabric_core::provider::OpKey;

use super::super::segment::{RETURN_WORDS, Segment};
use super::{Chunk, FREE, HELD, LENT, Loans, MOST_GIVEN, SLOTS};

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
    /// How many of them are messages to be fetched, and those that were fetched since this was
    /// asked last.
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

    /// The chunk that this payload is of, and a slot for it; nothing when it is of somewhere else,
    /// or the peer has too many.
    pub(crate) fn prepare(
        &mut self,
        key: u64,
        payload: &[u8],
        segment: &Segment,
    ) -> Option<Prepared> {
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
        idle.filter(|key| chunks.all.iter().all(|chunk| chunk.key != *key))
            .collect()
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

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::Error;
    use fabric_core::buf::Loan;
    use fabric_core::provider::Lender;

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
        assert_eq!(
            key(&loans.reuse(4096).unwrap()),
            name,
            "dropped unsent, it is used again"
        );
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
        assert!(
            loans.reuse(10).is_none(),
            "who had it before has nothing to give back any more"
        );
        drop(second);

        let loan = loans.reuse(10).unwrap();
        let prepared = peer.prepare(name, &loan, &segment).unwrap();
        peer.lend(prepared);
        drop((loan, peer));
        segment.give_back(slot);
        assert!(
            loans.reuse(10).is_none(),
            "what a peer had that is gone is not used again"
        );
    }

    #[test]
    fn nobody_lends_what_another_holds() {
        let (mine, others) = (Loans::default(), Loans::default());
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = Borrowed::new(mine.clone());
        let (secret, foreign) = (mine.grow(10).unwrap(), others.grow(10).unwrap());
        assert_eq!(key(&secret), key(&foreign), "two domains count alike");
        assert!(
            peer.prepare(key(&foreign), &foreign, &segment).is_none(),
            "it is copied"
        );
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
        assert!(
            another.surplus().is_empty(),
            "few, and nothing was given up"
        );
        drop(peer);
        assert_eq!(
            another.surplus(),
            [1000, 1001, 1002],
            "what is not there any more"
        );
        assert!(matches!(loans.grow(usize::MAX), Err(Error::TooLong { .. })));
    }
}
