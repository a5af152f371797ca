//! What one peer has of this side: chunks that were lent to it, and messages that it is to fetch.
//! Both are given back by the number of a slot.
#![deny(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use fabric_core::transport::OpKey;

use super::super::segment::{SLOT_RETURN_WORDS, Segment};
use super::{FREE, HELD, LENT, LoanChunk, LoanPool, MAX_MAPPED_BY_PEER, SLOTS_PER_PEER};

/// What a peer has.
#[derive(Debug)]
enum OutstandingSlot {
    /// A chunk, and its state then.
    Loan(Arc<LoanChunk>, u64),
    /// A message to be fetched.
    Cma(CmaOffer),
}

/// A message that a peer is to fetch: it is not sent before the peer has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmaOffer {
    pub(crate) op: OpKey,
    pub(crate) len: usize,
    pub(crate) tag: Option<u64>,
    /// What the peer is to confirm as well.
    pub(crate) ack_id: Option<u32>,
}

/// A chunk that is about to be lent.
pub(crate) struct PreparedLoan {
    pub(crate) chunk: Arc<LoanChunk>,
    state: u64,
    pub(crate) slot: usize,
}

/// What one peer has, by slot.
#[derive(Debug)]
pub(crate) struct OutstandingLoans {
    pool: LoanPool,
    slots: Vec<Option<OutstandingSlot>>,
    /// How many of them are messages to be fetched, and those that were fetched since this was
    /// asked last.
    cma_offers: usize,
    completed_cma: VecDeque<CmaOffer>,
    /// Chunks whose memory the peer has been given, by name.
    mapped_chunks: Vec<u64>,
    /// How often chunks had been given up when this was looked at last.
    seen_retired: u64,
}

impl OutstandingLoans {
    pub(crate) fn new(pool: LoanPool) -> Self {
        Self {
            pool,
            slots: Vec::new(),
            cma_offers: 0,
            completed_cma: VecDeque::new(),
            mapped_chunks: Vec::new(),
            seen_retired: 0,
        }
    }

    /// The chunk that this payload is of, and a slot for it; nothing when it is of somewhere else,
    /// or the peer has too many.
    pub(crate) fn prepare(
        &mut self,
        key: u64,
        payload: &[u8],
        segment: &Segment,
    ) -> Option<PreparedLoan> {
        let (chunk, state) = self.pool.find_held(key, payload)?;
        let slot = self.free_slot(segment)?;
        Some(PreparedLoan { chunk, state, slot })
    }

    /// A slot that is free; nothing when the peer has too much.
    pub(crate) fn free_slot(&mut self, segment: &Segment) -> Option<usize> {
        let free = |slots: &[Option<OutstandingSlot>]| slots.iter().position(Option::is_none);
        if let Some(slot) = free(&self.slots) {
            return Some(slot);
        }
        if self.slots.len() < SLOTS_PER_PEER {
            self.slots.push(None);
            return Some(self.slots.len() - 1);
        }
        self.collect_returned(segment);
        free(&self.slots)
    }

    /// This message is the peer's to fetch now.
    pub(crate) fn insert_cma_offer(&mut self, slot: usize, offered: CmaOffer) {
        self.slots[slot] = Some(OutstandingSlot::Cma(offered));
        self.cma_offers += 1;
    }

    /// Whether the peer has messages to fetch, or has fetched some of which nobody knows.
    pub(crate) fn has_cma_offers(&self) -> bool {
        self.cma_offers > 0 || !self.completed_cma.is_empty()
    }

    /// Whether the peer has fetched some of which nobody knows.
    pub(crate) fn has_completed_cma(&self) -> bool {
        !self.completed_cma.is_empty()
    }

    /// The next message that the peer has fetched, of those that were collected.
    pub(crate) fn next_completed_cma(&mut self) -> Option<CmaOffer> {
        self.completed_cma.pop_front()
    }

    /// The messages that the peer has not fetched, when it will not any more.
    pub(crate) fn take_open_cma_offers(&mut self) -> impl Iterator<Item = CmaOffer> {
        self.cma_offers = 0;
        self.slots.iter_mut().filter_map(|slot| match slot {
            Some(OutstandingSlot::Cma(offered)) => {
                let offered = *offered;
                *slot = None;
                Some(offered)
            }
            _ => None,
        })
    }

    /// Whether the peer has this memory already.
    pub(crate) fn is_mapped(&self, key: u64) -> bool {
        self.mapped_chunks.binary_search(&key).is_ok()
    }

    pub(crate) fn mark_mapped(&mut self, key: u64) {
        if let Err(at) = self.mapped_chunks.binary_search(&key) {
            self.mapped_chunks.insert(at, key);
        }
    }

    /// Names of memory that the peer need not keep: it has too much of it that it does not read.
    pub(crate) fn unneeded_mappings(&mut self) -> Vec<u64> {
        let is = |out: &OutstandingSlot, key| matches!(out, OutstandingSlot::Loan(chunk, _) if chunk.key == key);
        let out = |key: u64| self.slots.iter().flatten().any(|out| is(out, key));
        let idle = self.mapped_chunks.iter().copied().filter(|key| !out(*key));
        if self.mapped_chunks.len() >= MAX_MAPPED_BY_PEER {
            return idle.collect();
        }
        // What was given up here is nobody's any more once the peer has let go of it.
        let chunks = self.pool.lock();
        if std::mem::replace(&mut self.seen_retired, chunks.retired) == chunks.retired {
            return Vec::new();
        }
        idle.filter(|key| chunks.chunks.iter().all(|chunk| chunk.key != *key))
            .collect()
    }

    /// The peer does not have this memory any more.
    pub(crate) fn mark_unmapped(&mut self, key: u64) {
        if let Ok(at) = self.mapped_chunks.binary_search(&key) {
            self.mapped_chunks.remove(at);
        }
    }

    /// The chunk is the peer's now.
    pub(crate) fn lend(&mut self, prepared: PreparedLoan) {
        let PreparedLoan { chunk, state, slot } = prepared;
        let lent = state - HELD + LENT;
        chunk.transition(state, lent);
        self.slots[slot] = Some(OutstandingSlot::Loan(chunk, lent));
    }

    /// Takes back what the peer has given back.
    pub(crate) fn collect_returned(&mut self, segment: &Segment) {
        // All of them: a number that was never given out must not keep anybody awake.
        for word in 0..SLOT_RETURN_WORDS {
            let mut bits = segment.take_returned_slots(word);
            while bits != 0 {
                let slot = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                match self.slots.get_mut(slot).and_then(Option::take) {
                    Some(OutstandingSlot::Loan(chunk, state)) => {
                        chunk.transition(state, state - LENT + FREE);
                    }
                    Some(OutstandingSlot::Cma(offered)) => {
                        self.cma_offers -= 1;
                        self.completed_cma.push_back(offered);
                    }
                    // Given back twice, or never had.
                    None => {}
                }
            }
        }
    }

    /// How many the peer has, or has given back unnoticed.
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}

impl Drop for OutstandingLoans {
    fn drop(&mut self) {
        for out in self.slots.iter().flatten() {
            if let OutstandingSlot::Loan(chunk, _) = out {
                self.pool.retire(chunk.key);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::Error;
    use fabric_core::buf::Loan;
    use fabric_core::transport::LoanAllocator;

    use super::*;

    fn loan_key(loan: &Loan) -> u64 {
        loan.key().unwrap()
    }

    #[test]
    fn returned_loan_memory_is_reused() {
        let loans = LoanPool::default();
        assert!(loans.take_free(10).is_none());
        let mut first = loans.allocate(10).unwrap();
        first.copy_from_slice(b"0123456789");
        let name = loan_key(&first);
        assert!(loans.take_free(10).is_none(), "it is in use");
        drop(first);
        assert_eq!(
            loan_key(&loans.take_free(4096).unwrap()),
            name,
            "dropped unsent, it is used again"
        );
        assert!(loans.take_free(4097).is_none(), "another size");

        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = OutstandingLoans::new(loans.clone());
        let loan = loans.take_free(10).unwrap();
        let prepared = peer.prepare(name, &loan, &segment).unwrap();
        let slot = prepared.slot;
        assert!(!peer.is_mapped(name));
        peer.mark_mapped(name);
        peer.lend(prepared);
        assert!(
            loans.take_free(10).is_none() && peer.prepare(name, &loan, &segment).is_none(),
            "the peer has it"
        );
        peer.collect_returned(&segment);
        assert!(loans.take_free(10).is_none(), "and has not given it back");
        segment.return_slot(slot);
        segment.return_slot(200);
        peer.collect_returned(&segment);
        let second = loans.take_free(10).unwrap();
        assert_eq!(loan_key(&second), name);
        drop(loan);
        assert!(
            loans.take_free(10).is_none(),
            "who had it before has nothing to give back any more"
        );
        drop(second);

        let loan = loans.take_free(10).unwrap();
        let prepared = peer.prepare(name, &loan, &segment).unwrap();
        peer.lend(prepared);
        drop((loan, peer));
        segment.return_slot(slot);
        assert!(
            loans.take_free(10).is_none(),
            "what a peer had that is gone is not used again"
        );
    }

    #[test]
    fn foreign_and_partial_loans_are_copied_instead() {
        let (mine, others) = (LoanPool::default(), LoanPool::default());
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = OutstandingLoans::new(mine.clone());
        let (secret, foreign) = (mine.allocate(10).unwrap(), others.allocate(10).unwrap());
        assert_eq!(
            loan_key(&secret),
            loan_key(&foreign),
            "two domains count alike"
        );
        assert!(
            peer.prepare(loan_key(&foreign), &foreign, &segment)
                .is_none(),
            "it is copied"
        );
        assert!(peer.prepare(77, &secret, &segment).is_none());
        assert!(
            peer.prepare(loan_key(&secret), &secret[1..], &segment)
                .is_none()
        );
        assert!(peer.prepare(loan_key(&secret), &secret, &segment).is_some());
    }

    #[test]
    fn loan_slots_and_cached_loans_of_a_peer_are_bounded() {
        let loans = LoanPool::default();
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = OutstandingLoans::new(loans.clone());
        let lend = |peer: &mut OutstandingLoans| {
            let loan = loans
                .take_free(1)
                .unwrap_or_else(|| loans.allocate(1).unwrap());
            let prepared = peer.prepare(loan_key(&loan), &loan, &segment)?;
            let slot = prepared.slot;
            peer.mark_mapped(loan_key(&loan));
            peer.lend(prepared);
            Some(slot)
        };
        for _ in 0..SLOTS_PER_PEER {
            assert!(lend(&mut peer).is_some());
        }
        assert!(lend(&mut peer).is_none());
        segment.return_slot(77);
        assert_eq!(lend(&mut peer), Some(77));
        let surplus = peer.unneeded_mappings();
        assert_eq!(surplus.len(), 1, "what it gave back, but not what it reads");
        surplus.into_iter().for_each(|key| peer.mark_unmapped(key));
        assert!(peer.unneeded_mappings().is_empty());
        let mut another = OutstandingLoans::new(loans.clone());
        (0..3).for_each(|key| another.mark_mapped(1000 + key));
        assert!(
            another.unneeded_mappings().is_empty(),
            "few, and nothing was given up"
        );
        drop(peer);
        assert_eq!(
            another.unneeded_mappings(),
            [1000, 1001, 1002],
            "what is not there any more"
        );
        assert!(matches!(
            loans.allocate(usize::MAX),
            Err(Error::TooLong { .. })
        ));
    }
}
