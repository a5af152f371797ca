//! The loans and CMA offers that one peer holds, by slot.
//!
//! The sending end of each connection has an [`OutstandingSlots`]. A loan or an offer takes a slot
//! when its record is sent, and keeps the slot until the peer sets the slot's bit in the segment.
//! `OutstandingSlots` also records which chunks the peer was granted, so that a chunk's descriptor
//! is sent once.
#![deny(unsafe_code)]

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use fabric_core::buf::PeerMemory;
use fabric_core::transport::{LoanAllocator, OpKey};

use super::super::segment::{SLOT_BITMAP_WORDS, Segment};
use super::{
    HELD, LENT, LoanChunk, LoanGuard, LoanMapping, LoanPool, MAX_GRANTED_CHUNKS, SLOTS_PER_PEER,
};

/// The content of a slot that the peer holds.
#[derive(Debug)]
enum OutstandingSlot {
    Loan(LentChunk),
    Cma(CmaOffer),
}

/// A message that the peer copies from this process. The send completes when the peer has returned
/// the slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmaOffer {
    pub(crate) op: OpKey,
    pub(crate) len: usize,
    pub(crate) tag: Option<u64>,
    /// Id of the ack that the send waits for too, if it needs one.
    pub(crate) ack_id: Option<u32>,
}

/// A lent chunk.
enum LentChunk {
    /// A chunk of this domain, and its state word.
    Own(Arc<LoanChunk>, u64),
    /// A received loan that is relayed, and the key under which this side grants its chunk.
    Relayed(Arc<LoanGuard>, u64),
}

/// A loan that is about to be sent, with a free slot. A chunk of this domain is in state `HELD`.
pub(crate) struct PreparedLoan {
    chunk: LentChunk,
    pub(crate) slot: usize,
}

/// A chunk that was granted to the peer.
#[derive(Debug)]
struct GrantedChunk {
    key: u64,
    /// The mapping of a relayed chunk; `None` for a chunk of this domain.
    relayed: Option<Weak<LoanMapping>>,
}

impl LentChunk {
    /// Returns the key under which the peer is granted the chunk.
    fn key(&self) -> u64 {
        match self {
            Self::Own(chunk, _) => chunk.key,
            Self::Relayed(_, key) => *key,
        }
    }
}

impl std::fmt::Debug for LentChunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LentChunk({})", self.key())
    }
}

impl PreparedLoan {
    /// Returns the key under which the peer is granted the chunk.
    pub(crate) fn key(&self) -> u64 {
        self.chunk.key()
    }

    /// Returns the length of the chunk and its descriptor; `None` if the descriptor of a relayed
    /// chunk was not kept.
    pub(crate) fn memory(&self) -> Option<(usize, BorrowedFd<'_>)> {
        match &self.chunk {
            LentChunk::Own(chunk, _) => Some((chunk.len(), chunk.memory().fd())),
            LentChunk::Relayed(guard, _) => {
                let mapping = guard.mapping();
                Some((mapping.len(), mapping.relay_source()?.1))
            }
        }
    }
}

/// The loans and CMA offers that one peer holds, by slot.
#[derive(Debug)]
pub(crate) struct OutstandingSlots {
    pool: LoanPool,
    /// By slot; `None` is a free slot.
    slots: Vec<Option<OutstandingSlot>>,
    /// Number of slots with offers.
    held_cma_offers: usize,
    /// Offers whose slots were collected and whose sends were not completed yet.
    returned_cma_offers: VecDeque<CmaOffer>,
    /// Number of slots with relayed loans.
    relays: usize,
    /// The chunks that were granted to the peer, sorted by key.
    granted_chunks: Vec<GrantedChunk>,
    /// `removed` of the pool at the last call of `unneeded_grants`.
    seen_removed: u64,
}

impl OutstandingSlots {
    pub(crate) fn new(pool: LoanPool) -> Self {
        Self {
            pool,
            slots: Vec::new(),
            held_cma_offers: 0,
            returned_cma_offers: VecDeque::new(),
            relays: 0,
            granted_chunks: Vec::new(),
            seen_removed: 0,
        }
    }

    /// Finds the chunk with this key and a slot. `None` if `payload` is not in that chunk, or if
    /// all slots are in use.
    pub(crate) fn prepare(
        &mut self,
        key: u64,
        payload: &[u8],
        segment: &Segment,
    ) -> Option<PreparedLoan> {
        let (chunk, state) = self.pool.find_held(key, payload)?;
        let slot = self.find_free_slot(segment)?;
        let chunk = LentChunk::Own(chunk, state);
        Some(PreparedLoan { chunk, slot })
    }

    /// Finds the chunk of a received loan, to relay the loan, and a slot. `None` if the descriptor
    /// of the chunk was not kept, the loan was received in another domain, or all slots are in use.
    pub(crate) fn prepare_relay(
        &mut self,
        memory: &Arc<dyn PeerMemory>,
        segment: &Segment,
    ) -> Option<PreparedLoan> {
        let memory: Arc<dyn Any + Send + Sync> = memory.clone();
        let guard = memory.downcast::<LoanGuard>().ok()?;
        if !guard.mapping().belongs_to(&self.pool) {
            return None;
        }
        let (key, _) = guard.mapping().relay_source()?;
        let slot = self.find_free_slot(segment)?;
        let chunk = LentChunk::Relayed(guard, key);
        Some(PreparedLoan { chunk, slot })
    }

    /// Returns a free slot, after collecting returned slots if needed; `None` if all slots are in
    /// use.
    pub(crate) fn find_free_slot(&mut self, segment: &Segment) -> Option<usize> {
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

    /// Records an offer whose record was sent, in a free slot.
    pub(crate) fn insert_cma_offer(&mut self, slot: usize, offer: CmaOffer) {
        self.slots[slot] = Some(OutstandingSlot::Cma(offer));
        self.held_cma_offers += 1;
    }

    /// Returns whether the peer holds an offer, or the send of a returned offer is not completed.
    pub(crate) fn has_cma_offers(&self) -> bool {
        self.held_cma_offers > 0 || !self.returned_cma_offers.is_empty()
    }

    /// Returns whether the peer holds relayed loans, whose owners wait for the return.
    pub(crate) fn has_relays(&self) -> bool {
        self.relays > 0
    }

    /// Returns whether the peer holds a loan whose return is waited for: a relayed loan, or any
    /// loan while the domain waits for loan memory.
    pub(crate) fn has_awaited_loans(&self) -> bool {
        self.has_relays() || self.is_pool_awaited() && lent_chunks(&self.slots).next().is_some()
    }

    /// Returns whether the domain waits for loan memory.
    pub(crate) fn is_pool_awaited(&self) -> bool {
        self.pool.is_awaited()
    }

    /// Returns whether the send of a returned offer is not completed.
    pub(crate) fn has_returned_cma_offers(&self) -> bool {
        !self.returned_cma_offers.is_empty()
    }

    /// Takes the oldest returned offer, for completion.
    pub(crate) fn pop_returned_cma_offer(&mut self) -> Option<CmaOffer> {
        self.returned_cma_offers.pop_front()
    }

    /// Takes the offers that the peer still holds, because the connection ends.
    pub(crate) fn take_held_cma_offers(&mut self) -> impl Iterator<Item = CmaOffer> {
        self.held_cma_offers = 0;
        self.slots.iter_mut().filter_map(|slot| match slot {
            Some(OutstandingSlot::Cma(offer)) => {
                let offer = *offer;
                *slot = None;
                Some(offer)
            }
            _ => None,
        })
    }

    /// Returns the index of the granted chunk with this key, or where to insert it.
    fn find_grant(&self, key: u64) -> Result<usize, usize> {
        self.granted_chunks
            .binary_search_by_key(&key, |chunk| chunk.key)
    }

    /// Returns whether the chunk was granted to the peer.
    pub(crate) fn is_granted(&self, prepared: &PreparedLoan) -> bool {
        self.find_grant(prepared.key()).is_ok()
    }

    /// Records that the chunk was granted to the peer.
    pub(crate) fn mark_granted(&mut self, prepared: &PreparedLoan) {
        let key = prepared.key();
        let relayed = match &prepared.chunk {
            LentChunk::Relayed(guard, _) => Some(Arc::downgrade(guard.mapping())),
            LentChunk::Own(..) => None,
        };
        if let Err(at) = self.find_grant(key) {
            self.granted_chunks
                .insert(at, GrantedChunk { key, relayed });
        }
    }

    /// Returns the keys of granted chunks that the peer need not keep mapped. These are not lent
    /// now and, unless the peer has [`MAX_GRANTED_CHUNKS`], were removed from the pool.
    pub(crate) fn unneeded_grants(&mut self) -> Vec<u64> {
        let is_lent = |key: u64| lent_chunks(&self.slots).any(|chunk| chunk.key() == key);
        let idle = self
            .granted_chunks
            .iter()
            .filter(|chunk| !is_lent(chunk.key));
        if self.granted_chunks.len() >= MAX_GRANTED_CHUNKS {
            return idle.map(|chunk| chunk.key).collect();
        }
        // The kernel frees a removed chunk once the peer has unmapped it.
        let pool = self.pool.lock();
        if std::mem::replace(&mut self.seen_removed, pool.removed) == pool.removed {
            return Vec::new();
        }
        let exists = |chunk: &GrantedChunk| match &chunk.relayed {
            Some(mapping) => mapping.strong_count() > 0,
            None => pool.chunks.iter().any(|own| own.key == chunk.key),
        };
        idle.filter(|chunk| !exists(chunk))
            .map(|chunk| chunk.key)
            .collect()
    }

    /// Records that the peer was told to unmap the chunk.
    pub(crate) fn remove_grant(&mut self, key: u64) {
        if let Ok(at) = self.find_grant(key) {
            self.granted_chunks.remove(at);
        }
    }

    /// Records a loan whose record was sent: the chunk is lent.
    pub(crate) fn insert_loan(&mut self, PreparedLoan { mut chunk, slot }: PreparedLoan) {
        match &mut chunk {
            LentChunk::Own(chunk, state) => {
                let lent = *state - HELD + LENT;
                chunk.transition(*state, lent);
                *state = lent;
            }
            LentChunk::Relayed(..) => self.relays += 1,
        }
        self.slots[slot] = Some(OutstandingSlot::Loan(chunk));
    }

    /// Collects the slots that the peer has returned: frees or retires chunks, and queues offers
    /// for completion. Returns whether relayed loans were returned.
    pub(crate) fn collect_returned(&mut self, segment: &Segment) -> bool {
        let relays = self.relays;
        // All words are read, also those without slots in use: a bit that a hostile peer has set in
        // such a word would otherwise keep `Segment::has_returned_slots` true and the domain awake.
        for word in 0..SLOT_BITMAP_WORDS {
            let mut bits = segment.take_returned_slots(word);
            while bits != 0 {
                let slot = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let retired = segment.take_retired_slot(slot);
                match self.slots.get_mut(slot).and_then(Option::take) {
                    Some(OutstandingSlot::Loan(chunk)) => {
                        self.relays -= usize::from(matches!(chunk, LentChunk::Relayed(..)));
                        match chunk {
                            chunk if retired => self.retire(&chunk),
                            LentChunk::Own(chunk, state) => chunk.free(state),
                            // Dropping the guard returns the loan to its owner.
                            LentChunk::Relayed(..) => {}
                        }
                    }
                    Some(OutstandingSlot::Cma(offer)) => {
                        self.held_cma_offers -= 1;
                        self.returned_cma_offers.push_back(offer);
                    }
                    // The peer has returned the slot twice, or has returned a free slot.
                    None => {}
                }
            }
        }
        self.relays < relays
    }

    /// Retires a chunk that another process may still read: neither this side nor the owner of a
    /// relayed chunk reuses it.
    fn retire(&self, chunk: &LentChunk) {
        match chunk {
            LentChunk::Own(chunk, _) => self.pool.retire(chunk.key),
            LentChunk::Relayed(guard, _) => guard.mark_retired(),
        }
    }

    /// Returns the number of loans that the peer holds. A returned loan counts until
    /// `collect_returned`.
    pub(crate) fn held_loans(&self) -> usize {
        lent_chunks(&self.slots).count()
    }
}

impl Drop for OutstandingSlots {
    fn drop(&mut self) {
        // The connection has ended, and the peer may still read these chunks.
        lent_chunks(&self.slots).for_each(|chunk| self.retire(chunk));
    }
}

/// Returns the lent chunks among these slots.
fn lent_chunks(slots: &[Option<OutstandingSlot>]) -> impl Iterator<Item = &LentChunk> {
    slots.iter().flatten().filter_map(|slot| match slot {
        OutstandingSlot::Loan(chunk) => Some(chunk),
        OutstandingSlot::Cma(_) => None,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use fabric_core::Error;
    use fabric_core::buf::Loan;

    fn loan_key(loan: &Loan) -> u64 {
        loan.key().unwrap()
    }

    #[test]
    fn returned_loan_memory_is_reused() {
        let loans = LoanPool::default();
        assert!(loans.take_free(10).is_none());
        let mut first = loans.allocate(10).unwrap();
        first.copy_from_slice(b"0123456789");
        let key = loan_key(&first);
        assert!(loans.take_free(10).is_none(), "chunk is in use");
        drop(first);
        assert_eq!(
            loan_key(&loans.take_free(4096).unwrap()),
            key,
            "the chunk of a loan that is dropped unsent is reused"
        );
        assert!(loans.take_free(4097).is_none(), "chunk is too short");

        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = OutstandingSlots::new(loans.clone());
        let loan = loans.take_free(10).unwrap();
        let prepared = peer.prepare(key, &loan, &segment).unwrap();
        let slot = prepared.slot;
        assert!(!peer.is_granted(&prepared));
        peer.mark_granted(&prepared);
        peer.insert_loan(prepared);
        assert!(
            loans.take_free(10).is_none() && peer.prepare(key, &loan, &segment).is_none(),
            "the peer holds the chunk"
        );
        peer.collect_returned(&segment);
        assert!(
            loans.take_free(10).is_none(),
            "the peer has not returned the chunk"
        );
        segment.return_slot(slot);
        segment.return_slot(200);
        peer.collect_returned(&segment);
        let second = loans.take_free(10).unwrap();
        assert_eq!(loan_key(&second), key);
        drop(loan);
        assert!(
            loans.take_free(10).is_none(),
            "a loan that was lent cannot free the chunk"
        );
        drop(second);

        let loan = loans.take_free(10).unwrap();
        let prepared = peer.prepare(key, &loan, &segment).unwrap();
        peer.insert_loan(prepared);
        drop((loan, peer));
        segment.return_slot(slot);
        assert!(
            loans.take_free(10).is_none(),
            "a chunk that the peer held when the connection ended is not reused"
        );
    }

    #[test]
    fn only_prefixes_of_own_loans_are_lent() {
        let (own_pool, foreign_pool) = (LoanPool::default(), LoanPool::default());
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = OutstandingSlots::new(own_pool.clone());
        let (own, foreign) = (
            own_pool.allocate(10).unwrap(),
            foreign_pool.allocate(10).unwrap(),
        );
        assert_eq!(
            loan_key(&own),
            loan_key(&foreign),
            "both pools count keys from the same start"
        );
        assert!(
            peer.prepare(loan_key(&foreign), &foreign, &segment)
                .is_none(),
            "a loan of another domain"
        );
        assert!(peer.prepare(77, &own, &segment).is_none(), "unknown key");
        assert!(
            peer.prepare(loan_key(&own), &own[1..], &segment).is_none(),
            "not a prefix"
        );
        assert!(peer.prepare(loan_key(&own), &own, &segment).is_some());
    }

    #[test]
    fn slots_and_granted_chunks_of_a_peer_are_bounded() {
        let loans = LoanPool::default();
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut peer = OutstandingSlots::new(loans.clone());
        let lend = |peer: &mut OutstandingSlots| {
            let loan = loans
                .take_free(1)
                .unwrap_or_else(|| loans.allocate(1).unwrap());
            let prepared = peer.prepare(loan_key(&loan), &loan, &segment)?;
            let slot = prepared.slot;
            peer.mark_granted(&prepared);
            peer.insert_loan(prepared);
            Some(slot)
        };
        for _ in 0..SLOTS_PER_PEER {
            assert!(lend(&mut peer).is_some());
        }
        assert!(lend(&mut peer).is_none());
        segment.return_slot(77);
        assert_eq!(lend(&mut peer), Some(77));
        let unneeded = peer.unneeded_grants();
        assert_eq!(unneeded.len(), 1, "only the returned chunk is not lent");
        unneeded.into_iter().for_each(|key| peer.remove_grant(key));
        assert!(peer.unneeded_grants().is_empty());
        let mut another = OutstandingSlots::new(loans.clone());
        (0..3).for_each(|key| {
            another.granted_chunks.push(GrantedChunk {
                key: 1000 + key,
                relayed: None,
            });
        });
        assert!(
            another.unneeded_grants().is_empty(),
            "few grants, and no chunk was removed"
        );
        drop(peer);
        assert_eq!(
            another.unneeded_grants(),
            [1000, 1001, 1002],
            "chunks that do not exist any more"
        );
        assert!(matches!(
            loans.allocate(usize::MAX),
            Err(Error::TooLong { .. })
        ));
    }
}
