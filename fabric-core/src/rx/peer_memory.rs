//! Messages in the memory of their sender: received in place, or copied in chunks.
//!
//! Memory that is *mapped* into this process outlives the sender, so an unexpected message stays in
//! that memory. Memory that is not mapped is lost with the sender, and the sender waits until the
//! message is copied. Two peers that each send before they receive must not wait for each other, so
//! an unexpected message in such memory is copied as soon as the budget has room. Until then the
//! message stays in the memory of its sender, and later messages are delivered.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::Arc;

use super::budget::{UNEXPECTED_OVERHEAD, message_cost};
use super::engine::RxEngine;
use super::lost::OnLoss;
use super::multi::MatchResult;
use super::partial::PartialId;
use super::partial::{PartialMessage, PartialTarget};
use super::{Account, RxQueue, UnexpectedMessage};
use crate::buf::{CopySource, PeerMemory};
use crate::error::Error;
use crate::matching::{Envelope, PeerKey, UnexpectedKey};
use crate::op::OpKey;

/// Maximum number of bytes that one pass copies from the memory of senders.
pub(super) const COPY_CHUNK: usize = 256 << 10;

impl Account {
    /// Returns what a copy of a message of `len` bytes costs of the budget, whose entry is charged
    /// to this account. An entry beyond the budget moves to the budget with the copy.
    pub(super) fn cost_of_copy(self, len: usize) -> usize {
        match self {
            Self::Budget => message_cost(len) - UNEXPECTED_OVERHEAD,
            Self::BeyondBudget => message_cost(len),
        }
    }
}

/// An unexpected message in memory that is not mapped here.
#[derive(Clone, Copy)]
pub(super) struct UnmappedUnexpected {
    /// The arrival number of the message.
    pub(super) arrival: u64,
    pub(super) key: UnexpectedKey,
    pub(super) peer: PeerKey,
    /// What a copy of the message costs of the budget.
    pub(super) cost: usize,
}

/// Unexpected messages in memory that is not mapped here, which wait for room in the budget.
///
/// Each post and each pass tests whether the budget has room for one of them. Only the message of
/// each peer that costs least is tested: if it does not fit, no other message of the peer does.
#[derive(Default)]
struct WaitingCopies {
    by_arrival: HashMap<u64, UnmappedUnexpected>,
    /// The cost and the arrival number of each message of a peer. A peer without messages has no
    /// entry.
    by_peer: BTreeMap<PeerKey, BTreeSet<(usize, u64)>>,
}

impl WaitingCopies {
    fn len(&self) -> usize {
        self.by_arrival.len()
    }

    /// Adds a message, in place of one with the same arrival number.
    fn insert(&mut self, message: UnmappedUnexpected) {
        self.remove(message.arrival);
        let of_peer = self.by_peer.entry(message.peer).or_default();
        of_peer.insert((message.cost, message.arrival));
        self.by_arrival.insert(message.arrival, message);
    }

    /// Removes the message with this arrival number.
    fn remove(&mut self, arrival: u64) -> Option<UnmappedUnexpected> {
        let message = self.by_arrival.remove(&arrival)?;
        if let Some(of_peer) = self.by_peer.get_mut(&message.peer) {
            of_peer.remove(&(message.cost, arrival));
            if of_peer.is_empty() {
                self.by_peer.remove(&message.peer);
            }
        }
        Some(message)
    }

    /// Returns the arrival number of the first message, among the one of each peer that costs
    /// least, for which `fits` returns true.
    fn find(&self, fits: impl Fn(PeerKey, usize) -> bool) -> Option<u64> {
        let cheapest = self.by_peer.iter().filter_map(|(peer, messages)| {
            let &(cost, arrival) = messages.first()?;
            fits(*peer, cost).then_some(arrival)
        });
        cheapest.min()
    }
}

/// Messages in the memory of their senders.
#[derive(Default)]
pub(super) struct PeerCopies {
    /// Messages that are being copied.
    copies: VecDeque<(PartialId, Arc<dyn PeerMemory>)>,
    /// Unexpected messages in memory that is not mapped here, if an empty queue's budget has room
    /// for them.
    waiting: WaitingCopies,
    /// A message in memory that is not mapped was discarded uncopied; its sender must be notified.
    discarded_unmapped: bool,
}

impl PeerCopies {
    /// Returns how much has to be done now: not 0 if a message is being copied, or a sender must be
    /// notified.
    #[inline]
    pub(super) fn running(&self) -> usize {
        self.copies.len() | usize::from(self.discarded_unmapped)
    }

    /// Ends the copy of a message, and returns the memory of its sender.
    pub(super) fn take(&mut self, id: PartialId) -> Option<Arc<dyn PeerMemory>> {
        let at = self.copies.iter().position(|(copied, _)| *copied == id)?;
        self.copies.remove(at).map(|(_, memory)| memory)
    }

    /// Notes that a message was discarded uncopied if its memory is not mapped here.
    pub(super) fn note_discarded(&mut self, is_unmapped: bool) {
        self.discarded_unmapped |= is_unmapped;
    }

    pub(super) fn clear(&mut self) {
        self.copies.clear();
        self.waiting = WaitingCopies::default();
    }
}

/// A range of a peer's memory.
struct PeerMemorySlice<'a> {
    memory: &'a dyn PeerMemory,
    from: usize,
    len: usize,
}

impl CopySource for PeerMemorySlice<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.memory.copy_to(self.from + from, dst)
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        self.memory.copy_to_init(self.from + from, dst);
    }
}

/// A message in the memory of its sender, as a source that can be copied or held.
struct PeerMemorySource<'a>(&'a Arc<dyn PeerMemory>);

impl CopySource for PeerMemorySource<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.0.copy_to(from, dst)
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        self.0.copy_to_init(from, dst);
    }

    fn peer_memory(&self) -> Option<Arc<dyn PeerMemory>> {
        Some(self.0.clone())
    }
}

impl UnexpectedMessage {
    /// Returns whether the message is in memory that is not mapped here.
    pub(super) fn is_unmapped(&self) -> bool {
        self.peer_memory
            .as_ref()
            .is_some_and(|memory| !memory.is_mapped())
    }
}

impl RxQueue {
    /// Delivers a whole message in the memory of its sender. Returns false when the message is
    /// declined, as [`deliver`](Self::deliver).
    pub fn deliver_peer_memory(
        &mut self,
        engine: &mut impl RxEngine,
        mut envelope: Envelope,
        memory: &Arc<dyn PeerMemory>,
    ) -> bool {
        if envelope.len <= COPY_CHUNK && memory.is_mapped() {
            return self.deliver(engine, envelope, &PeerMemorySource(memory));
        }
        match self.take_match_multi(engine, &envelope) {
            MatchResult::Receive(receive) => {
                envelope.arrival = self.arrival_of(envelope.peer);
                self.receive_peer_memory(engine, receive, envelope, memory.clone());
                true
            }
            MatchResult::Blocked => self.decline(),
            MatchResult::NoReceive => self.deliver(engine, envelope, &PeerMemorySource(memory)),
        }
    }

    /// Delivers a message in the memory of its sender to a receive: at once if the message is
    /// mapped and short, or the receive takes the memory as a loan; otherwise copied in chunks.
    pub(super) fn receive_peer_memory(
        &mut self,
        engine: &mut impl RxEngine,
        (op, on_loss): (OpKey, OnLoss),
        mut envelope: Envelope,
        memory: Arc<dyn PeerMemory>,
    ) {
        if memory.is_mapped()
            && (envelope.len <= COPY_CHUNK || engine.accepts_loan(op, envelope.len))
        {
            engine.deliver(op, &envelope, &PeerMemorySource(&memory));
            return self.queue_ack(&envelope);
        }
        self.unsent_acks.push_match(&mut envelope);
        let capacity = match engine.begin_fill(op, envelope.len) {
            Ok(capacity) => capacity,
            Err(error) => {
                self.peer_copies.note_discarded(!memory.is_mapped());
                return self.fail_without_memory(engine, op, &envelope, error);
            }
        };
        let target = PartialTarget::Receive {
            op,
            capacity,
            written: 0,
            on_loss,
        };
        let id = self
            .partials
            .insert(PartialMessage::copied(envelope, target));
        self.peer_copies.copies.push_back((id, memory));
    }

    /// Copies the next chunk of a message in the memory of its sender, taking turns between
    /// messages. Returns false when no message is being copied.
    pub fn copy_next_chunk(&mut self, engine: &mut impl RxEngine) -> bool {
        self.peer_copies.discarded_unmapped = false;
        self.start_unmapped_copies();
        let Some((id, memory)) = self.peer_copies.copies.pop_front() else {
            return false;
        };
        if !self.copy_chunk(engine, id, &*memory) {
            self.peer_copies.copies.push_back((id, memory));
        }
        true
    }

    /// Returns whether [`RxQueue::drain_unexpected`] or [`RxQueue::copy_next_chunk`] has work, or
    /// acks are unsent.
    #[must_use]
    #[inline]
    pub fn has_work(&self) -> bool {
        // Mostly all of them are empty, which one comparison tells.
        let candidates = self.peer_copies.running()
            | self.multi_recvs.len()
            | self.peer_copies.waiting.len()
            | self.unsent_acks.len();
        candidates != 0 && self.has_due_work()
    }

    #[cold]
    fn has_due_work(&self) -> bool {
        let copies = self.peer_copies.running() != 0 || self.is_draining();
        copies || self.has_unsent_acks() || self.next_bufferable().is_some()
    }

    /// Discards the messages of this peer in memory that is not mapped here, because the peer has
    /// disconnected. A receive to which such a message was being copied fails if it is directed,
    /// and otherwise waits for the next message.
    pub fn fail_unmapped_from(&mut self, engine: &mut impl RxEngine, peer: PeerKey, error: &Error) {
        let mut lost_ids = Vec::new();
        self.peer_copies.copies.retain(|(id, memory)| {
            let from_peer = self
                .partials
                .get(*id)
                .is_some_and(|partial| partial.envelope.peer == peer);
            let is_lost = from_peer && !memory.is_mapped();
            lost_ids.extend(is_lost.then_some(*id));
            !is_lost
        });
        self.claims.fail_unmapped(peer, error);
        let of_peer = |envelope: &Envelope, message: &UnexpectedMessage| {
            envelope.peer == peer && message.is_unmapped()
        };
        for (envelope, message) in self.matcher.unexpected.take_where(of_peer) {
            self.release(&envelope, &message);
            self.remove_unmapped(envelope.arrival);
        }
        // Last, because a requeued receive must not match another message of this peer.
        for id in lost_ids {
            self.fail_partial(engine, id, error.clone());
        }
    }

    /// Copies the next chunk of this message; returns true when the message is complete or has
    /// failed.
    fn copy_chunk(
        &mut self,
        engine: &mut impl RxEngine,
        id: PartialId,
        memory: &dyn PeerMemory,
    ) -> bool {
        let Some(partial) = self.partials.get(id) else {
            return true;
        };
        let (from, remaining) = (partial.received, memory.len() - partial.received);
        let is_full = match partial.target() {
            PartialTarget::Receive {
                capacity, written, ..
            } => capacity == written,
            PartialTarget::Discard => true,
            PartialTarget::Buffer(_) | PartialTarget::Claim(_) => false,
        };
        // Bytes that do not fit into the receive are not copied.
        let len = if is_full {
            remaining
        } else {
            remaining.min(COPY_CHUNK)
        };
        self.write_piece(engine, id, &PeerMemorySlice { memory, from, len }, len);
        match memory.check() {
            Ok(()) => self.advance(engine, id, len),
            Err(error) => {
                if let Some(PartialTarget::Claim(claim)) =
                    self.partials.get(id).map(PartialMessage::target)
                    && let Some(message) = self.claims.message(claim)
                {
                    // The claim keeps the bytes of the chunks that passed the check.
                    message.bytes.vec_mut().truncate(from);
                }
                self.fail_partial(engine, id, error);
                true
            }
        }
    }

    /// Starts to copy unexpected messages in memory that is not mapped, as far as the budget has
    /// room.
    fn start_unmapped_copies(&mut self) {
        while let Some(arrival) = self.next_bufferable()
            && let Some(unmapped) = self.peer_copies.waiting.remove(arrival)
        {
            let UnmappedUnexpected {
                key, peer, cost, ..
            } = unmapped;
            let Some((envelope, message)) = self.matcher.unexpected.get_mut(key) else {
                continue;
            };
            let Some(memory) = message.peer_memory.take() else {
                continue;
            };
            let target = PartialTarget::Buffer(key);
            let partial = PartialMessage::copied(envelope.clone(), target);
            let id = self.partials.insert(partial);
            message.partial = Some(id);
            if message.account == Account::BeyondBudget {
                self.beyond_budget.release(peer, UNEXPECTED_OVERHEAD);
                message.account = Account::Budget;
            }
            self.budget.charge(peer, cost);
            self.peer_copies.copies.push_back((id, memory));
        }
    }

    /// Returns the arrival number of the next waiting message for which the budget has room.
    fn next_bufferable(&self) -> Option<u64> {
        let fits = |peer, cost| self.budget.fits(peer, cost);
        self.peer_copies.waiting.find(fits)
    }

    /// Records an unexpected message of `len` bytes in memory that is not mapped, unless the
    /// message exceeds the whole budget.
    pub(super) fn add_unmapped(&mut self, unmapped: UnmappedUnexpected, len: usize) {
        if self.budget.could_fit(message_cost(len)) {
            self.peer_copies.waiting.insert(unmapped);
        }
    }

    /// Removes the record of the message with this arrival number, which a receive or claim has
    /// taken.
    pub(super) fn remove_unmapped(&mut self, arrival: u64) {
        self.peer_copies.waiting.remove(arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::Matcher;

    /// With any number of waiting messages, the budget is asked once for each peer.
    #[test]
    fn cheapest_waiting_message_of_each_peer_is_tested() {
        let mut waiting = WaitingCopies::default();
        let mut matcher = Matcher::<(), ()>::new();
        for arrival in 0..1000 {
            let peer = PeerKey(arrival as u32 % 2);
            let cost = 5000 - arrival as usize;
            let envelope = Envelope {
                peer,
                source: None,
                tag: None,
                len: cost,
                data: None,
                arrival,
                ack: None,
            };
            let message = UnmappedUnexpected {
                arrival,
                key: matcher.unexpected.insert(envelope, ()),
                peer,
                cost,
            };
            waiting.insert(UnmappedUnexpected { cost: 1, ..message });
            waiting.insert(message);
        }
        let tested = std::cell::RefCell::new(Vec::new());
        let found = waiting.find(|peer, cost| {
            tested.borrow_mut().push((peer, cost));
            false
        });
        assert_eq!(found, None);
        let cheapest = [(PeerKey(0), 4002), (PeerKey(1), 4001)];
        assert_eq!(tested.into_inner(), cheapest);
        assert_eq!(waiting.find(|_, _| true), Some(998));
        assert_eq!(waiting.find(|peer, _| peer == PeerKey(1)), Some(999));
        for arrival in (1..1000).rev() {
            let removed = waiting.remove(arrival).unwrap();
            assert_eq!(removed.arrival, arrival);
        }
        assert!(waiting.remove(1).is_none());
        assert_eq!((waiting.len(), waiting.find(|_, _| true)), (1, Some(0)));
        waiting.remove(0);
        assert!(waiting.by_peer.is_empty());
    }
}
