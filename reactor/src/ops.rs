//! Op slots: every posted operation lives in one, with its buffer, until its one completion has been delivered.
//!
//! A slot is named by position and generation, so a late completion cannot reach a slot that is used again. The future
//! of an operation holds only the name: dropping it never frees memory that a provider may still use.

use std::task::Waker;

use fabric_core::buf::AnyBuf;
use fabric_core::completion::{OpKind, Outcome};
use fabric_core::provider::{EpId, OpKey, SendSpec};
use slab::Slab;

/// Who hears of the completion. Exactly one of these does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The future of the operation.
    Future,
    /// The completion queue of that direction, with this context.
    Queue(u64),
    /// Nobody; a failure becomes an event.
    Nobody,
}

/// How far an operation has come.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Waits for credit; the provider has not seen it.
    Waiting,
    /// The provider has it.
    Posted,
    /// It has ended and its future has not looked yet.
    Done(Outcome),
}

/// One operation.
#[derive(Debug)]
pub(crate) struct Op {
    generation: u32,
    pub(crate) ep: EpId,
    pub(crate) kind: OpKind,
    pub(crate) phase: Phase,
    pub(crate) route: Route,
    /// Set for sends.
    pub(crate) spec: Option<SendSpec>,
    /// Holds a transmit credit, or a place among the posted receives, to be given back at the end.
    pub(crate) credit: bool,
    /// Only asks for a credit and ends when it has one.
    pub(crate) permit: bool,
    pub(crate) buf: AnyBuf,
    pub(crate) waker: Option<Waker>,
}

impl Op {
    pub(crate) fn new(ep: EpId, kind: OpKind, route: Route, buf: AnyBuf) -> Self {
        Self {
            generation: 0,
            ep,
            kind,
            phase: Phase::Posted,
            route,
            spec: None,
            credit: false,
            permit: false,
            buf,
            waker: None,
        }
    }
}

/// All operations of a domain.
#[derive(Debug, Default)]
pub(crate) struct OpTable {
    slots: Slab<Op>,
    generation: u32,
}

impl OpTable {
    pub(crate) fn insert(&mut self, mut op: Op) -> OpKey {
        self.generation = self.generation.wrapping_add(1);
        op.generation = self.generation;
        OpKey { index: self.slots.insert(op) as u32, generation: self.generation }
    }

    pub(crate) fn get(&self, key: OpKey) -> Option<&Op> {
        self.slots.get(key.index as usize).filter(|op| op.generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: OpKey) -> Option<&mut Op> {
        self.slots.get_mut(key.index as usize).filter(|op| op.generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: OpKey) -> Option<Op> {
        self.get(key)?;
        Some(self.slots.remove(key.index as usize))
    }

    /// Takes every waker out.
    pub(crate) fn wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.slots.iter_mut().filter_map(|(_, op)| op.waker.take())
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stale_name_reaches_nobody() {
        let mut ops = OpTable::default();
        let op = || Op::new(EpId(0), OpKind::Recv, Route::Future, AnyBuf::None);
        let first = ops.insert(op());
        assert!(ops.remove(first).is_some());
        let second = ops.insert(op());
        assert_eq!(first.index, second.index, "the position is used again");
        assert!(ops.get(first).is_none() && ops.get_mut(first).is_none() && ops.remove(first).is_none());
        assert_eq!(ops.len(), 1);
    }
}
