//! The state of a domain: operations, what they are charged to, queues, counters, address vectors.
//!
//! Each part is a type that owns its fields, in a module of its own. The methods of
//! [`DomainState`], here and in the modules of the parts, change several parts together.
//!
//! Transports and receive queues see [`DomainState`] as their
//! [`EngineContext`](fabric_core::transport::EngineContext). It lives under the domain's lock.

use std::task::Waker;

use fabric_core::buf::AnyBuf;
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::matching::PeerKey;
use fabric_core::transport::{EpId, OpKey};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result};

use super::access_changes::AccessChanges;
use super::arrival_timer::ArrivalTimer;
use super::av::{AddressVectors, Av};
use super::counter::Counters;
use super::cq::CompletionQueues;
use super::deferred::Deferred;
use super::endpoints::Endpoints;
use super::eq::EventQueues;
use super::flush::Flushes;
use super::loans::LoanWaiters;
use super::multi_recv::MultiRecvs;
use super::ops::{OpResult, OpState, OpTable};
use super::pending_work::{FollowUp, PendingWork};
use super::regions::{Regions, SharedRegions};

/// The state of a domain, apart from the endpoints of its transport and their receive queues.
#[derive(Debug)]
pub struct DomainState {
    pub(crate) endpoints: Endpoints,
    pub(crate) ops: OpTable,
    pub(crate) cqs: CompletionQueues,
    pub(crate) counters: Counters,
    pub(crate) eqs: EventQueues,
    pub(crate) avs: AddressVectors,
    pub(crate) regions: Regions,
    pub(crate) deferred: Deferred,
    pub(crate) pending_work: PendingWork,
    pub(crate) access_changes: AccessChanges,
    pub(crate) arrival_timer: ArrivalTimer,
    pub(crate) multi_recvs: MultiRecvs,
    pub(crate) flushes: Flushes,
    pub(crate) loan_waiters: LoanWaiters,
}

impl Default for DomainState {
    fn default() -> Self {
        Self::new(SharedRegions::default())
    }
}

impl DomainState {
    pub(crate) fn new(regions: SharedRegions) -> Self {
        Self {
            ops: OpTable::default(),
            endpoints: Endpoints::new(),
            cqs: CompletionQueues::new(),
            counters: Counters::new(),
            eqs: EventQueues::default(),
            avs: AddressVectors::new(),
            regions: Regions::new(regions),
            deferred: Deferred::default(),
            pending_work: PendingWork::default(),
            access_changes: AccessChanges::default(),
            arrival_timer: ArrivalTimer::new(),
            multi_recvs: MultiRecvs::default(),
            flushes: Flushes::default(),
            loan_waiters: LoanWaiters::default(),
        }
    }

    /// Returns whether an operation of this endpoint has not ended. Operations whose buffers the
    /// kernel still reads do not count, nor do multi-receives, which end when their last message is
    /// taken.
    pub(crate) fn has_pending_ops(&self, ep: EpId) -> bool {
        let mut pending = self.ops.pending_of(ep);
        pending.any(|key| !self.is_multi_recv(key))
    }

    /// Checks that an address handle is one of the endpoint's vector.
    pub(crate) fn check_address(&self, ep: EpId, addr: FiAddr) -> Result<()> {
        self.av_of(ep)?.table().get(addr).map(drop)
    }

    /// Returns the address vector of an endpoint.
    pub(crate) fn av_of(&self, ep: EpId) -> Result<&Av> {
        let ep = self.endpoints.get(ep);
        let ep = ep.ok_or_else(|| Error::Closed(Class::Endpoint))?;
        self.avs.get(ep.bindings().av)
    }

    /// Returns whether the endpoint that a peer is connected to, and that shares this context,
    /// knows this address handle.
    pub(crate) fn is_known_addr(&self, context: EpId, peer: PeerKey, addr: FiAddr) -> bool {
        let sharer = self.endpoints.arrival_endpoint(context, peer);
        sharer.is_some_and(|sharer| self.check_address(sharer, addr).is_ok())
    }

    /// Removes an operation and its waker, and releases its resources; the buffer is dropped after
    /// unlocking.
    pub(crate) fn discard_op(&mut self, key: OpKey) -> Option<OpState> {
        let mut op = self.remove_op(key)?;
        self.deferred.drop_buffer(std::mem::take(&mut op.buf));
        Some(op)
    }

    /// Removes an operation and its waker, and releases its resources.
    pub(crate) fn remove_op(&mut self, key: OpKey) -> Option<OpState> {
        self.release_op_resources(key);
        let mut op = self.ops.remove(key)?;
        op.waiter.clear(&mut self.deferred);
        Some(op)
    }

    /// Releases the resources of an operation: its credit or its place among the posted receives,
    /// and its remote segments.
    pub(crate) fn release_op_resources(&mut self, key: OpKey) {
        let held_credit = self.ops.take_credit(key);
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let (ep, kind, peer) = (op.ep, op.kind, op.tx_op.map(|tx_op| tx_op.peer));
        if let Some(id) = op.tx_op.as_mut().and_then(|tx_op| tx_op.rma_iov_id.take()) {
            self.ops.remove_rma_iovs(id);
        }
        if held_credit {
            self.release_credit(ep, kind, peer);
        }
    }

    /// Returns whether the domain needs a driver. Waiting tasks may keep themselves runnable, but
    /// sends, and copies for which a sender waits, need a driver all the same.
    pub(crate) fn needs_driver(&self, tasks_stay_runnable: bool) -> bool {
        let has_waiters = || self.deferred.waiting() > 0 || self.eqs.has_waiting_reader();
        self.ops.pending_sends() > 0
            || self.pending_work.needs_pass()
            || (!tasks_stay_runnable && has_waiters())
    }

    /// Releases a transmit credit, or a place among the posted receives.
    pub(crate) fn release_credit(&mut self, ep: EpId, kind: OpKind, peer: Option<FiAddr>) {
        let Some(state) = self.endpoints.get_mut(ep) else {
            return;
        };
        if kind == OpKind::Recv {
            state.release_recv(true);
        } else if let Some(peer) = peer {
            state.tx_credits.release(peer);
            if !state.tx_credits.has_no_waiters() {
                self.pending_work.push(FollowUp::GrantCredits(ep));
            }
        }
    }

    /// Takes the waker of an operation while its task polls.
    #[inline]
    pub(crate) fn take_op_waker(&mut self, key: OpKey) -> Option<Waker> {
        self.ops.get_mut(key)?.waiter.take(&mut self.deferred)
    }

    /// Registers the waker of an operation's future: `registered`, which was taken before, if it
    /// wakes the same task.
    pub(crate) fn restore_op_waker(
        &mut self,
        key: OpKey,
        waker: &Waker,
        registered: Option<Waker>,
    ) {
        if let Some(op) = self.ops.get_mut(key) {
            op.waiter.restore(registered, waker, &mut self.deferred);
        } else if let Some(unused) = registered {
            self.deferred.drop_waker(unused);
        }
    }

    /// Registers the waker of an operation's future.
    pub(crate) fn register_op_waker(&mut self, key: OpKey, waker: &Waker) {
        if let Some(op) = self.ops.get_mut(key) {
            op.waiter.register(waker, &mut self.deferred);
        }
    }

    /// Ends an operation without a transfer, because its condition holds, and wakes its future.
    pub(crate) fn end_wait(&mut self, key: OpKey) {
        if let Some(op) = self.ops.get_mut(key) {
            op.finish_ok(Transfer::default(), &mut self.deferred);
        }
    }

    /// Takes the result of an operation that has ended, and frees its slot.
    pub(crate) fn take_op_result(&mut self, key: OpKey) -> Option<OpResult> {
        let is_done = self.ops.is_done(key);
        is_done.then(|| {
            let (buf, transfer, error) = self.take_done_result(key, |buf| buf);
            OpResult {
                transfer,
                error,
                buf,
            }
        })
    }

    /// Takes the result of an operation that is known to have ended, with its buffer as `convert`
    /// returns it.
    #[inline(always)] // on the small-message path, and the result is large
    pub(crate) fn take_done_result<B>(
        &mut self,
        key: OpKey,
        convert: impl FnOnce(AnyBuf) -> B,
    ) -> (B, Transfer, Option<Box<Error>>) {
        let op = self.ops.free_done(key);
        let buf = convert(std::mem::take(&mut op.buf));
        let Outcome { transfer, error } = op.take_outcome();
        let (ep, kind) = (op.ep, op.kind);
        op.waiter.clear(&mut self.deferred);
        if kind == OpKind::Recv && error.is_none() {
            self.endpoints.count_received(ep, &transfer);
        }
        self.on_message_consumed(transfer.source);
        (buf, transfer, error)
    }

    /// Wakes all waiting tasks, and the readers of the event queues.
    pub(crate) fn wake_all(&mut self) {
        self.ops.wake_all(&mut self.deferred);
        self.cqs.wake_all(&mut self.deferred);
        self.counters.wake_all(&mut self.deferred);
        self.eqs.wake_all(&mut self.deferred);
        self.endpoints.wake_all(&mut self.deferred);
        debug_assert_eq!(self.deferred.waiting(), 0, "each waiting task has a waker");
    }
}
