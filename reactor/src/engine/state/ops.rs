//! Op slots: an operation that does not complete in its post is in a slot until its one completion
//! has been delivered. The slot holds its buffer, unless io_uring does.
//!
//! A slot is named by index and generation, so a late completion cannot reach a slot that was
//! reused. The future of an operation holds only the key: dropping the future never frees memory
//! that a transport may still use.

use std::cmp::Reverse;
use std::collections::HashMap;

use fabric_core::buf::AnyBuf;
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::transport::{EpId, OpKey, RmaIov, RmaIovId, TxOp};
use fabric_core::{Error, FiAddr};
use slab::Slab;

use super::deferred::{Deferred, WakerSlot};
use super::in_flight::InFlight;

/// Where the completion of an operation is reported. There is exactly one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionTarget {
    /// The future of the operation.
    Future,
    /// The completion queue of the operation's direction, with this context.
    Cq(u64),
    /// The completion queue with this context if the operation fails; no report if it succeeds.
    CqOnError(u64),
    /// No report; a failure becomes an event.
    Discard,
    /// The multi-receive with this id: the target of the multi-receive itself and of each message
    /// that it receives.
    MultiRecv(u32),
}

impl CompletionTarget {
    /// Returns whether the target may need an entry of a completion queue, which is reserved by the
    /// post.
    #[inline]
    pub(crate) fn reserves_cq_entry(self) -> bool {
        matches!(self, Self::Cq(_) | Self::CqOnError(_))
    }
}

/// Whether a post may wait for a credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditMode {
    /// Without a free credit the post fails with [`Error::WouldBlock`].
    NoWait,
    /// Without a free credit the operation waits for one, in posting order.
    Wait,
    /// The post uses a permit, which holds a credit.
    FromPermit,
}

/// The outcome of posting an operation.
#[derive(Debug)]
pub enum PostResult<B> {
    /// The operation has completed, with its buffer.
    Done(Transfer, B),
    /// The operation has not completed; its completion goes to its [`CompletionTarget`] later.
    Pending(OpKey),
    /// The operation has completed, and its completion is in the completion queue.
    Reported,
}

/// The result of an operation, with its buffer.
#[derive(Debug)]
pub struct OpResult {
    /// The bytes that were transferred, and the envelope of a received message.
    pub transfer: Transfer,
    /// The failure, if there was one.
    pub error: Option<Box<Error>>,
    /// The buffer that was posted.
    pub buf: AnyBuf,
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpPhase {
    /// The operation waits for a credit or behind a fence, or is a permit, a flush or a wait for
    /// memory of loans; the transport has not seen it.
    Waiting,
    /// The transport executes the operation, or a receive queue has it: a receive or a probe.
    Executing,
    /// The operation has ended with its outcome, and its future has not taken the result.
    Done,
}

/// An operation.
#[derive(Debug)]
pub(crate) struct OpState {
    generation: u32,
    /// Index of the next free slot, in a free slot; [`NO_SLOT`] in the last one.
    next_free: u32,
    pub(crate) ep: EpId,
    pub(crate) kind: OpKind,
    phase: OpPhase,
    /// The outcome, once the phase is `Done`; until then without an error.
    outcome: Outcome,
    target: CompletionTarget,
    /// The transmit operation; none for receives and probes.
    pub(crate) tx_op: Option<TxOp>,
    /// Whether the operation holds a transmit credit, or a place among the posted receives, which
    /// is released when it ends.
    holds_credit: bool,
    /// Whether this is a permit, a probe, a flush or a wait for memory of loans: it transfers
    /// nothing and ends when a condition holds.
    is_wait: bool,
    /// Whether the payload was handed over, so that the operation waits only for the peer's ack.
    payload_sent: bool,
    pub(crate) buf: AnyBuf,
    /// The task that waits for the operation.
    pub(crate) waiter: WakerSlot,
}

impl OpState {
    pub(crate) fn new(ep: EpId, kind: OpKind, target: CompletionTarget, buf: AnyBuf) -> Self {
        Self {
            generation: FREE_GENERATION,
            next_free: NO_SLOT,
            ep,
            kind,
            phase: OpPhase::Executing,
            outcome: Outcome::ok(Transfer::default()),
            target,
            tx_op: None,
            holds_credit: false,
            is_wait: false,
            payload_sent: false,
            buf,
            waiter: WakerSlot::EMPTY,
        }
    }

    /// Returns a transmit operation that the transport does not execute inline.
    pub(crate) fn queued(
        ep: EpId,
        tx_op: TxOp,
        target: CompletionTarget,
        buf: AnyBuf,
        phase: OpPhase,
        holds_credit: bool,
    ) -> Self {
        Self {
            phase,
            tx_op: Some(tx_op),
            holds_credit,
            ..Self::new(ep, tx_op.kind, target, buf)
        }
    }

    /// Returns a permit for an operation to this peer, which may have its credit already.
    pub(crate) fn permit(ep: EpId, peer: FiAddr, holds_credit: bool) -> Self {
        let phase = if holds_credit {
            OpPhase::Done
        } else {
            OpPhase::Waiting
        };
        Self {
            tx_op: Some(TxOp::new(OpKind::Send, peer)),
            holds_credit,
            ..Self::wait(Some(ep), phase)
        }
    }

    /// Returns an operation without a transfer, which ends when a condition holds: a permit, a
    /// probe, a flush, or a wait for memory of loans. `ep` is `None` for one of the whole domain.
    pub(crate) fn wait(ep: Option<EpId>, phase: OpPhase) -> Self {
        let ep = ep.unwrap_or(EpId(u32::MAX));
        // The kind has no effect: nothing is transferred or counted.
        let op = Self::new(ep, OpKind::Send, CompletionTarget::Future, AnyBuf::None);
        Self {
            phase,
            is_wait: true,
            ..op
        }
    }

    /// Returns whether the operation holds a transmit credit, or a place among the posted receives.
    #[inline]
    pub(crate) fn holds_credit(&self) -> bool {
        self.holds_credit
    }

    /// Returns the progress of the operation.
    pub(crate) fn phase(&self) -> OpPhase {
        self.phase
    }

    /// Returns where the completion of the operation is reported.
    #[inline]
    pub(crate) fn target(&self) -> CompletionTarget {
        self.target
    }

    /// Returns whether this is a permit, a probe, a flush or a wait for memory of loans.
    pub(crate) fn is_wait(&self) -> bool {
        self.is_wait
    }

    /// Returns the outcome of an operation that has ended.
    #[inline]
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        (self.phase == OpPhase::Done).then_some(&self.outcome)
    }

    /// Returns whether bytes of a transmit operation have still to be handed over.
    pub(crate) fn is_unsent(&self) -> bool {
        let transmits = matches!(self.kind, OpKind::Send | OpKind::Write | OpKind::Atomic);
        transmits && !self.is_wait && !self.payload_sent && self.phase != OpPhase::Done
    }

    /// Notes that the payload was handed over: the operation waits only for the peer's ack.
    pub(crate) fn set_payload_sent(&mut self) {
        self.payload_sent = true;
    }

    /// Notes that the transport executes an operation that has waited for a credit or a fence.
    pub(crate) fn execute(&mut self) {
        self.phase = OpPhase::Executing;
    }

    /// Ends the operation with this outcome, and wakes its future.
    pub(crate) fn finish(&mut self, outcome: Outcome, deferred: &mut Deferred) {
        self.outcome.error = outcome.error;
        self.finish_ok(outcome.transfer, deferred);
    }

    /// Ends the operation successfully, and wakes its future.
    #[inline(always)] // on the small-message path
    pub(crate) fn finish_ok(&mut self, transfer: Transfer, deferred: &mut Deferred) {
        self.outcome.transfer = transfer;
        self.phase = OpPhase::Done;
        self.waiter.wake(deferred);
    }

    /// Takes the outcome of an operation that has ended.
    #[inline(always)] // on the small-message path
    pub(crate) fn take_outcome(&mut self) -> Outcome {
        Outcome {
            transfer: self.outcome.transfer,
            error: self.outcome.error.take(),
        }
    }

    /// Lets an operation without a transfer, which has ended, wait for its condition again.
    pub(crate) fn wait_again(&mut self) {
        debug_assert!(self.is_wait);
        self.phase = OpPhase::Waiting;
    }

    /// Detaches an operation, which goes on, from its future or completion queue: only its failure
    /// is reported, as an event.
    pub(crate) fn detach(&mut self, deferred: &mut Deferred) {
        self.target = CompletionTarget::Discard;
        self.waiter.clear(deferred);
    }

    /// Takes the place of a receive among the posted receives. Returns whether it had one.
    #[inline]
    pub(crate) fn take_recv_place(&mut self) -> bool {
        debug_assert_eq!(self.kind, OpKind::Recv);
        std::mem::take(&mut self.holds_credit)
    }

    /// Returns whether this is a transmit operation, other than a permit, that holds a credit: the
    /// transport has not finished it.
    fn is_pending_send(&self) -> bool {
        self.holds_credit && self.kind != OpKind::Recv && !self.is_wait
    }

    /// Frees the slot of an operation that was reported: its buffer and waker have been taken out.
    #[inline(always)] // on the small-message path
    pub(crate) fn free(&mut self, key: OpKey, first_free: &mut u32) {
        debug_assert!(self.waiter.is_empty() && matches!(self.buf, AnyBuf::None));
        self.link_free(key, first_free);
    }

    /// Adds the slot to the free slots.
    #[inline(always)] // on the small-message path
    fn link_free(&mut self, key: OpKey, first_free: &mut u32) {
        self.generation = FREE_GENERATION;
        self.next_free = std::mem::replace(first_free, key.index);
    }
}

/// The generation of a free slot.
const FREE_GENERATION: u32 = 0;
/// The index of no slot.
const NO_SLOT: u32 = u32::MAX;

/// All operations of a domain. Slots are filled and emptied in place: an operation is large, and
/// moving it would dominate the cost of a small message.
///
/// Three methods empty a slot: [`remove`](Self::remove) moves the whole operation out;
/// [`free_done`](Self::free_done) returns the slot of a completed operation, whose result is then
/// taken in place; [`free`](Self::free) is for a slot whose buffer and waker were taken before.
#[derive(Debug)]
pub(crate) struct OpTable {
    slots: Vec<OpState>,
    /// Index of the first free slot; [`NO_SLOT`] if there is none.
    first_free: u32,
    generation: u32,
    /// The number of transmit operations that hold a credit.
    pending_sends: usize,
    /// The remote segments of operations that have several (`fi_rma_iov`).
    rma_iovs: Slab<Box<[RmaIov]>>,
    /// The operations whose buffers the kernel reads. The buffers are not in the slots.
    in_flight: HashMap<OpKey, InFlight>,
}

impl Default for OpTable {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            first_free: NO_SLOT,
            generation: FREE_GENERATION,
            pending_sends: 0,
            rma_iovs: Slab::new(),
            in_flight: HashMap::new(),
        }
    }
}

impl OpTable {
    /// Fills a slot with an operation of any kind.
    pub(crate) fn insert(&mut self, op: OpState) -> OpKey {
        self.pending_sends += usize::from(op.is_pending_send());
        let generation = self.next_generation();
        let op = OpState { generation, ..op };
        match self.slots.get_mut(self.first_free as usize) {
            Some(slot) => {
                let index = std::mem::replace(&mut self.first_free, slot.next_free);
                *slot = op;
                OpKey { index, generation }
            }
            None => self.push(op),
        }
    }

    /// Fills a slot with a posted receive.
    #[inline(always)] // on the small-message path
    pub(crate) fn insert_recv(&mut self, ep: EpId, target: CompletionTarget, buf: AnyBuf) -> OpKey {
        self.fill(ep, OpKind::Recv, None, target, buf, true)
    }

    /// Fills a slot with a transmit operation that the transport executes.
    #[inline(always)] // on the small-message path
    pub(crate) fn insert_tx(
        &mut self,
        ep: EpId,
        tx_op: &TxOp,
        target: CompletionTarget,
        buf: AnyBuf,
        has_credit: bool,
    ) -> OpKey {
        self.pending_sends += usize::from(has_credit);
        self.fill(ep, tx_op.kind, Some(tx_op), target, buf, has_credit)
    }

    /// Fills a slot with an operation that the transport or a receive queue has.
    #[inline(always)] // on the small-message path
    fn fill(
        &mut self,
        ep: EpId,
        kind: OpKind,
        tx_op: Option<&TxOp>,
        target: CompletionTarget,
        buf: AnyBuf,
        holds_credit: bool,
    ) -> OpKey {
        let generation = self.next_generation();
        let Some(slot) = self.slots.get_mut(self.first_free as usize) else {
            return self.push(OpState {
                generation,
                tx_op: tx_op.copied(),
                holds_credit,
                ..OpState::new(ep, kind, target, buf)
            });
        };
        let index = std::mem::replace(&mut self.first_free, slot.next_free);
        slot.generation = generation;
        slot.ep = ep;
        slot.kind = kind;
        slot.phase = OpPhase::Executing;
        slot.target = target;
        slot.tx_op = tx_op.copied();
        slot.holds_credit = holds_credit;
        slot.is_wait = false;
        slot.payload_sent = false;
        // A free slot has no buffer, so there is nothing to drop; `forget` saves the check.
        let vacant_buf = std::mem::replace(&mut slot.buf, buf);
        debug_assert!(matches!(vacant_buf, AnyBuf::None));
        std::mem::forget(vacant_buf);
        OpKey { index, generation }
    }

    /// Adds a slot, because none is free.
    #[cold]
    fn push(&mut self, op: OpState) -> OpKey {
        let (index, generation) = (self.slots.len() as u32, op.generation);
        self.slots.push(op);
        OpKey { index, generation }
    }

    #[inline]
    fn next_generation(&mut self) -> u32 {
        let next = self.generation.checked_add(1);
        self.generation = next.unwrap_or(FREE_GENERATION + 1);
        self.generation
    }

    #[inline]
    pub(crate) fn get(&self, key: OpKey) -> Option<&OpState> {
        let slot = self.slots.get(key.index as usize)?;
        (slot.generation == key.generation).then_some(slot)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: OpKey) -> Option<&mut OpState> {
        let slot = self.slots.get_mut(key.index as usize)?;
        (slot.generation == key.generation).then_some(slot)
    }

    /// Returns an operation, and the first free slot for [`OpState::free`].
    #[inline(always)] // on the small-message path
    pub(crate) fn get_with_free_slots(&mut self, key: OpKey) -> Option<(&mut OpState, &mut u32)> {
        let slot = self.slots.get_mut(key.index as usize)?;
        (slot.generation == key.generation).then_some((slot, &mut self.first_free))
    }

    /// Returns whether an operation has ended and its result was not taken.
    #[inline]
    pub(crate) fn is_done(&self, key: OpKey) -> bool {
        self.get(key).is_some_and(|op| op.outcome().is_some())
    }

    /// Removes an operation and returns it, with its buffer and its waker.
    pub(crate) fn remove(&mut self, key: OpKey) -> Option<OpState> {
        let (slot, first_free) = self.get_with_free_slots(key)?;
        let mut vacant = OpState::new(slot.ep, slot.kind, slot.target, AnyBuf::None);
        vacant.link_free(key, first_free);
        Some(std::mem::replace(slot, vacant))
    }

    /// Frees the slot of an operation that was reported: its buffer and waker have been taken out.
    #[inline]
    pub(crate) fn free(&mut self, key: OpKey) {
        if let Some((slot, first_free)) = self.get_with_free_slots(key) {
            slot.free(key, first_free);
        }
    }

    /// Frees the slot of an operation that has ended, and returns the slot. The caller must take
    /// the result and the waker before the slot is used again.
    #[inline]
    pub(crate) fn free_done(&mut self, key: OpKey) -> &mut OpState {
        let slot = &mut self.slots[key.index as usize];
        assert!(
            slot.generation == key.generation,
            "result taken from a slot that holds another operation"
        );
        slot.link_free(key, &mut self.first_free);
        slot
    }

    /// Returns the number of transmit operations the transport has not finished.
    #[inline]
    pub(crate) fn pending_sends(&self) -> usize {
        self.pending_sends
    }

    /// Records that a waiting operation has got a credit, if it had none. Returns the operation.
    pub(crate) fn grant_credit(&mut self, key: OpKey) -> Option<&mut OpState> {
        let (slots, pending_sends) = (&mut self.slots, &mut self.pending_sends);
        let op = slots.get_mut(key.index as usize)?;
        let op = Some(op).filter(|op| op.generation == key.generation)?;
        if !std::mem::replace(&mut op.holds_credit, true) {
            *pending_sends += usize::from(op.is_pending_send());
        }
        Some(op)
    }

    /// Adds the remote segments of an operation that is about to be posted.
    pub(crate) fn insert_rma_iovs(&mut self, iovs: &[RmaIov]) -> RmaIovId {
        RmaIovId(self.rma_iovs.insert(iovs.into()) as u32)
    }

    /// Returns the remote segments of an operation.
    pub(crate) fn rma_iovs(&self, id: RmaIovId) -> &[RmaIov] {
        let iovs = self.rma_iovs.get(id.0 as usize);
        iovs.map_or(&[], |iovs| iovs)
    }

    /// Removes the remote segments of an operation that has ended or was not posted.
    pub(crate) fn remove_rma_iovs(&mut self, id: RmaIovId) {
        self.rma_iovs.try_remove(id.0 as usize);
    }

    /// Takes the buffer of an operation for the kernel, until it is
    /// [returned](Self::return_buffer).
    pub(crate) fn take_buffer(&mut self, key: OpKey) -> Option<AnyBuf> {
        let buf = std::mem::take(&mut self.get_mut(key)?.buf);
        self.in_flight.insert(key, InFlight::default());
        Some(buf)
    }

    /// Puts the buffer back into its operation. Returns what has happened to the operation
    /// meanwhile.
    ///
    /// # Errors
    /// The buffer, if the operation was removed.
    pub(crate) fn return_buffer(&mut self, key: OpKey, buf: AnyBuf) -> Result<InFlight, AnyBuf> {
        let in_flight = self.in_flight.remove(&key);
        let (Some(in_flight), Some(op)) = (in_flight, self.get_mut(key)) else {
            return Err(buf);
        };
        op.buf = buf;
        Ok(in_flight)
    }

    /// Returns whether the kernel reads the buffer of any operation.
    #[inline]
    pub(crate) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Returns the state of an operation whose buffer the kernel reads.
    pub(crate) fn in_flight_mut(&mut self, key: OpKey) -> Option<&mut InFlight> {
        self.in_flight.get_mut(&key)
    }

    /// Returns the operations of an endpoint whose buffers the kernel reads, with their kinds.
    pub(crate) fn in_flight_of(
        &mut self,
        ep: EpId,
    ) -> impl Iterator<Item = (OpKind, &mut InFlight)> {
        let slots = &self.slots;
        self.in_flight.iter_mut().filter_map(move |(key, state)| {
            let op = slots.get(key.index as usize)?;
            (op.generation == key.generation && op.ep == ep).then_some((op.kind, state))
        })
    }

    /// Returns the operations of an endpoint that have not ended, other than those whose buffers
    /// the kernel reads.
    pub(crate) fn pending_of(&self, ep: EpId) -> impl Iterator<Item = OpKey> {
        let pending = self.iter().filter(move |(key, op)| {
            op.ep == ep && op.phase != OpPhase::Done && !self.in_flight.contains_key(key)
        });
        pending.map(|(key, _)| key)
    }

    /// Takes the credit of an operation, or its place among the posted receives. Returns whether it
    /// had one.
    pub(crate) fn take_credit(&mut self, key: OpKey) -> bool {
        let Some(op) = self.get_mut(key) else {
            return false;
        };
        let was_pending_send = op.is_pending_send();
        let held_credit = std::mem::take(&mut op.holds_credit);
        self.pending_sends -= usize::from(was_pending_send);
        held_credit
    }

    /// Returns all operations.
    fn iter(&self) -> impl Iterator<Item = (OpKey, &OpState)> {
        let slots = self.slots.iter().zip(0..);
        let live = slots.filter(|(op, _)| op.generation != FREE_GENERATION);
        live.map(|(op, index)| {
            let generation = op.generation;
            (OpKey { index, generation }, op)
        })
    }

    /// Returns whether the transport executes an operation to this peer. Scans all operations, so
    /// it is for fenced operations only.
    pub(crate) fn has_executing_ops_to(&self, ep: EpId, peer: FiAddr) -> bool {
        self.iter().any(|(_, op)| {
            op.phase == OpPhase::Executing
                && op.ep == ep
                && op.tx_op.is_some_and(|tx_op| tx_op.peer == peer)
        })
    }

    /// Returns whether the operation is fenced and an earlier operation to its peer has not ended.
    #[inline]
    pub(crate) fn is_blocked_by_fence(&self, ep: EpId, tx_op: &TxOp) -> bool {
        tx_op.fence && self.has_executing_ops_to(ep, tx_op.peer)
    }

    /// Returns the operations that match a predicate.
    pub(crate) fn keys_where(&self, predicate: impl Fn(&OpState) -> bool) -> Vec<OpKey> {
        let matching = self.iter().filter(|(_, op)| predicate(op));
        matching.map(|(key, _)| key).collect()
    }

    /// Sorts operations by the time of their posts, the oldest first.
    pub(crate) fn sort_by_age(&self, keys: &mut [OpKey]) {
        // Generations count the posts, and wrap around.
        keys.sort_unstable_by_key(|key| Reverse(self.generation.wrapping_sub(key.generation)));
    }

    /// Wakes all waiting tasks.
    pub(crate) fn wake_all(&mut self, deferred: &mut Deferred) {
        for op in &mut self.slots {
            op.waiter.wake(deferred);
        }
    }

    /// Returns whether a message of this source is in a completed receive whose result was not
    /// taken.
    pub(crate) fn has_unconsumed(&self, endpoints: &[EpId], source: FiAddr) -> bool {
        self.iter().any(|(_, op)| {
            let outcome = op.outcome();
            outcome.is_some_and(|outcome| outcome.transfer.source == Some(source))
                && endpoints.contains(&op.ep)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn stale_op_key_finds_no_operation() {
        let mut ops = OpTable::default();
        let op = || {
            OpState::new(
                EpId(0),
                OpKind::Recv,
                CompletionTarget::Future,
                AnyBuf::None,
            )
        };
        let first = ops.insert(op());
        assert!(ops.remove(first).is_some());
        let second = ops.insert(op());
        assert_eq!(first.index, second.index, "the slot is reused");
        assert!(
            ops.get(first).is_none() && ops.get_mut(first).is_none() && ops.remove(first).is_none()
        );
        assert_eq!(ops.len(), 1);
    }
}
