//! Op slots: every posted operation lives in one, with its buffer, until its one completion has
//! been delivered.
//!
//! A slot is named by position and generation, so a late completion cannot reach a slot that is
//! used again. The future of an operation holds only the name: dropping it never frees memory that
//! a provider may still use.

use std::task::Waker;

use fabric_core::buf::AnyBuf;
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::transport::{EpId, OpKey, TxOp};
use fabric_core::{Error, FiAddr};

/// Who hears of the completion. Exactly one of these does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionTarget {
    /// The future of the operation.
    Future,
    /// The completion queue of that direction, with this context.
    Cq(u64),
    /// That queue, with this context, if it fails; nobody, if it ends well.
    CqOnError(u64),
    /// Nobody; a failure becomes an event.
    Discard,
    /// The receive of this number that takes several messages: of that receive itself, and of its
    /// parts.
    MultiRecv(u32),
}

impl CompletionTarget {
    /// Whether it may come to need an entry of a queue, which is reserved at the post.
    #[inline]
    pub(crate) fn reserves_cq_entry(self) -> bool {
        matches!(self, Self::Cq(_) | Self::CqOnError(_))
    }
}

/// Whether a post may queue for credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditMode {
    /// Without a free credit the post fails with [`Error::WouldBlock`].
    NoWait,
    /// Without a free credit the operation waits for one, in the order of posting.
    Wait,
    /// The post uses up a permit, which holds a credit.
    FromPermit,
}

/// What an operation became when it was posted.
#[derive(Debug)]
pub enum PostResult<B> {
    /// It has ended already.
    Done(Transfer, B),
    /// It is under way, or reports to a queue.
    Pending(OpKey),
    /// It has ended already, and its completion is in the queue.
    Reported,
}

/// How an operation ended, with its buffer.
#[derive(Debug)]
pub struct OpResult {
    /// What was moved.
    pub transfer: Transfer,
    /// Why it failed, if it did.
    pub error: Option<Box<Error>>,
    /// The buffer it was given.
    pub buf: AnyBuf,
}

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpPhase {
    /// Waits for credit; the provider has not seen it.
    Queued,
    /// The provider has it.
    Posted,
    /// It has ended, as its outcome says, and its future has not looked yet.
    Done,
}

/// One operation.
#[derive(Debug)]
pub(crate) struct OpState {
    generation: u32,
    pub(crate) ep: EpId,
    pub(crate) kind: OpKind,
    pub(crate) phase: OpPhase,
    /// How it ended, once it is done.
    pub(crate) outcome: Outcome,
    pub(crate) target: CompletionTarget,
    /// Set for everything that is done at a peer.
    pub(crate) spec: Option<TxOp>,
    /// Holds a transmit credit, or a place among the posted receives, to be given back at the end.
    pub(crate) holds_credit: bool,
    /// Only asks, for a credit or whether a message waits, and ends when there is one.
    pub(crate) no_transfer: bool,
    /// Its bytes were handed over, and it waits for its peer's word.
    pub(crate) has_left: bool,
    pub(crate) buf: AnyBuf,
    pub(crate) waker: Option<Waker>,
}

impl OpState {
    pub(crate) fn new(ep: EpId, kind: OpKind, target: CompletionTarget, buf: AnyBuf) -> Self {
        Self {
            generation: 0,
            ep,
            kind,
            phase: OpPhase::Posted,
            outcome: Outcome::ok(Transfer::default()),
            target,
            spec: None,
            holds_credit: false,
            no_transfer: false,
            has_left: false,
            buf,
            waker: None,
        }
    }
}

/// The generation of a slot that is free.
const FREE_GENERATION: u32 = 0;

/// All operations of a domain. Slots are filled and emptied in place: an operation is large, and
/// moving it about is what a small message would spend most of its time on.
#[derive(Debug, Default)]
pub(crate) struct OpTable {
    slots: Vec<OpState>,
    free: Vec<u32>,
    generation: u32,
}

impl OpTable {
    pub(crate) fn insert(&mut self, op: OpState) -> OpKey {
        let key = self.next_key();
        match self.slots.get_mut(key.index as usize) {
            Some(slot) => *slot = op,
            None => self.slots.push(op),
        }
        self.slots[key.index as usize].generation = key.generation;
        key
    }

    /// Fills a slot with a posted receive.
    #[inline(always)] // on the way of a small message
    pub(crate) fn insert_recv(&mut self, ep: EpId, route: CompletionTarget, buf: AnyBuf) -> OpKey {
        let key = self.next_key();
        let Some(slot) = self.slots.get_mut(key.index as usize) else {
            let mut op = OpState::new(ep, OpKind::Recv, route, buf);
            op.generation = key.generation;
            op.holds_credit = true;
            self.slots.push(op);
            return key;
        };
        slot.generation = key.generation;
        slot.ep = ep;
        slot.kind = OpKind::Recv;
        slot.phase = OpPhase::Posted;
        slot.target = route;
        slot.spec = None;
        slot.holds_credit = true;
        slot.no_transfer = false;
        slot.has_left = false;
        // A slot that is free has none: there is nothing to drop, and no need to find that out.
        let none = std::mem::replace(&mut slot.buf, buf);
        debug_assert!(matches!(none, AnyBuf::None));
        std::mem::forget(none);
        key
    }

    /// Fills a slot with an operation that the provider has.
    #[inline(always)] // on the way of a small message
    pub(crate) fn insert_send(
        &mut self,
        ep: EpId,
        spec: &TxOp,
        route: CompletionTarget,
        buf: AnyBuf,
        credit: bool,
    ) -> OpKey {
        let key = self.next_key();
        let Some(slot) = self.slots.get_mut(key.index as usize) else {
            let mut op = OpState::new(ep, spec.kind, route, buf);
            op.generation = key.generation;
            op.spec = Some(*spec);
            op.holds_credit = credit;
            self.slots.push(op);
            return key;
        };
        slot.generation = key.generation;
        slot.ep = ep;
        slot.kind = spec.kind;
        slot.phase = OpPhase::Posted;
        slot.target = route;
        slot.spec = Some(*spec);
        slot.holds_credit = credit;
        slot.no_transfer = false;
        slot.has_left = false;
        // As above: there is nothing to drop.
        let none = std::mem::replace(&mut slot.buf, buf);
        debug_assert!(matches!(none, AnyBuf::None));
        std::mem::forget(none);
        key
    }

    #[inline]
    fn next_key(&mut self) -> OpKey {
        self.generation = self
            .generation
            .checked_add(1)
            .unwrap_or(FREE_GENERATION + 1);
        OpKey {
            index: self.free.pop().unwrap_or(self.slots.len() as u32),
            generation: self.generation,
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: OpKey) -> Option<&OpState> {
        self.slots
            .get(key.index as usize)
            .filter(|op| op.generation == key.generation)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: OpKey) -> Option<&mut OpState> {
        self.slots
            .get_mut(key.index as usize)
            .filter(|op| op.generation == key.generation)
    }

    /// Whether it has ended, and its future has not looked.
    #[inline]
    pub(crate) fn is_done(&self, key: OpKey) -> bool {
        self.get(key).is_some_and(|op| op.phase == OpPhase::Done)
    }

    pub(crate) fn remove(&mut self, key: OpKey) -> Option<OpState> {
        let slot = self.get_mut(key)?;
        let vacant = OpState {
            generation: FREE_GENERATION,
            ..OpState::new(slot.ep, slot.kind, slot.target, AnyBuf::None)
        };
        let op = std::mem::replace(slot, vacant);
        self.free.push(key.index);
        Some(op)
    }

    /// Empties the slot of an operation whose end has been reported: its buffer and waker have been
    /// taken out.
    #[inline]
    pub(crate) fn free(&mut self, key: OpKey) {
        if let Some(slot) = self.get_mut(key) {
            debug_assert!(slot.waker.is_none() && matches!(slot.buf, AnyBuf::None));
            slot.generation = FREE_GENERATION;
            self.free.push(key.index);
        }
    }

    /// Frees the slot of an operation that has ended, and shows what is left in it: its result and
    /// its waker, to be taken out now.
    #[inline]
    pub(crate) fn free_done(&mut self, key: OpKey) -> &mut OpState {
        let slot = &mut self.slots[key.index as usize];
        assert!(
            slot.generation == key.generation,
            "an operation that has ended has its slot"
        );
        slot.generation = FREE_GENERATION;
        self.free.push(key.index);
        slot
    }

    /// Whether the provider has something to do at this peer. Looks at all operations: only for
    /// those that are fenced.
    pub(crate) fn has_posted_ops_to(&self, ep: EpId, peer: FiAddr) -> bool {
        self.slots.iter().any(|op| {
            op.generation != FREE_GENERATION
                && op.phase == OpPhase::Posted
                && op.ep == ep
                && op.spec.is_some_and(|spec| spec.peer == peer)
        })
    }

    /// The operations of this endpoint that have not ended.
    pub(crate) fn unended(&self, ep: EpId) -> impl Iterator<Item = OpKey> {
        let slots = self.slots.iter().zip(0..);
        let unended = slots.filter(move |(op, _)| {
            op.generation != FREE_GENERATION && op.ep == ep && op.phase != OpPhase::Done
        });
        unended.map(|(op, index)| OpKey {
            index,
            generation: op.generation,
        })
    }

    /// The operations of which this is true.
    pub(crate) fn keys_of(&self, is_meant: impl Fn(&OpState) -> bool) -> Vec<OpKey> {
        let slots = self.slots.iter().zip(0..);
        let meant = slots.filter(|(op, _)| op.generation != FREE_GENERATION && is_meant(op));
        meant
            .map(|(op, index)| OpKey {
                index,
                generation: op.generation,
            })
            .collect()
    }

    /// The operations that report to queues.
    pub(crate) fn keys_reporting_to_cqs(&self) -> Vec<OpKey> {
        self.keys_of(|op| op.target.reserves_cq_entry())
    }

    /// Takes every waker out.
    pub(crate) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.slots.iter_mut().filter_map(|op| op.waker.take())
    }

    /// Whether a message of this source lies in a receive that nobody has looked at.
    pub(crate) fn has_unconsumed(&self, endpoints: &[EpId], source: FiAddr) -> bool {
        self.slots.iter().any(|op| {
            op.generation != FREE_GENERATION
                && op.phase == OpPhase::Done
                && op.outcome.transfer.source == Some(source)
                && endpoints.contains(&op.ep)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
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
        assert_eq!(first.index, second.index, "the position is used again");
        assert!(
            ops.get(first).is_none() && ops.get_mut(first).is_none() && ops.remove(first).is_none()
        );
        assert_eq!(ops.len(), 1);
    }
}
