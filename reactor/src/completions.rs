//! Where operations report: completion queues and counters, and those who read them or wait there.
//! Of event queues, how their readers wait for a domain.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fabric_core::buf::AnyBuf;
use fabric_core::completion::{Completion, OpKind, Outcome, Transfer};
use fabric_core::transport::EpId;
use fabric_core::tree::Class;
use fabric_core::{Error, Resource, Result};

use crate::domain::DomainHandle;
use crate::domain_state::{CounterId, CqId, DomainState, FollowUp};
use crate::engine::EngineGuard;
use crate::id_map::IdMap;
use crate::ops::CompletionTarget;
use crate::queues::{CounterState, CqState, EqState};

/// Reserves an entry of a queue.
#[inline]
pub(crate) fn reserve_cq_entry(cqs: &mut IdMap<CqState>, id: Option<CqId>) -> Result<()> {
    let id = id.ok_or_else(|| Error::Unbound(Class::CompletionQueue))?;
    let ring = cqs
        .get_mut(id.0)
        .ok_or_else(|| Error::Closed(Class::CompletionQueue))?;
    if ring.reserve() {
        Ok(())
    } else {
        Err(Error::WouldBlock(Resource::CompletionEntry))
    }
}

impl DomainState {
    /// The queue an operation of this kind reports to.
    #[inline]
    pub(crate) fn cq_of(&self, ep: EpId, kind: OpKind) -> Option<CqId> {
        let bound = &self.endpoints.get(ep.0)?.bindings;
        if kind.is_rx() {
            bound.rx_cq
        } else {
            bound.tx_cq
        }
    }

    pub(crate) fn cq(&mut self, id: CqId) -> Option<&mut CqState> {
        self.cqs.get_mut(id.0)
    }

    /// Reserves the entry an operation will report to.
    pub(crate) fn reserve_entry(&mut self, ep: EpId, kind: OpKind) -> Result<()> {
        let queue = self.cq_of(ep, kind);
        reserve_cq_entry(&mut self.cqs, queue)
    }

    /// Gives an entry back that was reserved and is not needed.
    pub(crate) fn unreserve_entry(&mut self, ep: EpId, kind: OpKind) {
        if let Some(id) = self.cq_of(ep, kind)
            && let Some(ring) = self.cq(id)
        {
            ring.unreserve();
            self.on_cq_space(id);
        }
    }

    /// Reports an operation to the queue where it reserved an entry.
    pub(crate) fn report_completion(
        &mut self,
        ep: EpId,
        kind: OpKind,
        context: u64,
        outcome: Outcome,
        buf: AnyBuf,
    ) {
        let queue = self.cq_of(ep, kind);
        self.report_to_cq(queue, kind, context, outcome, buf);
    }

    /// Likewise, to the queue of that kind of operations of its endpoint.
    #[inline(always)] // on the way of a small message, and an entry is large
    pub(crate) fn report_to_cq(
        &mut self,
        queue: Option<CqId>,
        kind: OpKind,
        context: u64,
        outcome: Outcome,
        buf: AnyBuf,
    ) {
        self.on_message_consumed(outcome.transfer.source);
        let Some(ring) = queue.and_then(|id| self.cq(id)) else {
            return self.deferred.drop_buffer(buf);
        };
        let waiter = ring.push(Completion::new(context, kind, outcome, buf));
        self.wake_waiter(waiter);
    }

    /// Counts an operation that has ended. The message of a receive is counted by
    /// [`DomainState::count_received`].
    #[inline]
    pub(crate) fn count_op(&mut self, ep: EpId, kind: OpKind, len: usize, ok: bool) {
        let Some(ep) = self.endpoints.get_mut(ep.0) else {
            return;
        };
        if ok {
            if kind != OpKind::Recv {
                ep.stats.record(kind, len);
            }
        } else {
            ep.stats.failed += 1;
        }
        if let Some(counter) = ep.bindings.counters.for_op(kind) {
            self.add_to_counter(counter, ok);
        }
    }

    /// Whether a future or a stream takes the messages of this route, and may be dropped before it
    /// has done so.
    pub(crate) fn is_taken_later(&self, route: CompletionTarget) -> bool {
        match route {
            CompletionTarget::Future => true,
            CompletionTarget::MultiRecv(number) => self.is_stream(number),
            CompletionTarget::Cq(_)
            | CompletionTarget::CqOnError(_)
            | CompletionTarget::Discard => false,
        }
    }

    /// Counts a message as received.
    ///
    /// Each message is counted once: when it has been reported to a queue, or when its future or
    /// stream takes it. Those can be dropped instead, and then the message goes to another receive.
    #[inline]
    pub(crate) fn count_received(&mut self, ep: EpId, transfer: &Transfer) {
        if let Some(ep) = self.endpoints.get_mut(ep.0) {
            ep.stats.received.record(transfer.len);
        }
        if !self.shared_rx_peers.is_empty() {
            self.count_received_at_sharer(ep, transfer.peer(), transfer.len);
        }
    }

    pub(crate) fn add_to_counter(&mut self, counter: CounterId, ok: bool) {
        if let Some(cell) = self.counters.get_mut(counter.0) {
            let woken = cell.add(u64::from(ok), u64::from(!ok), &mut self.deferred);
            self.waiters -= woken;
        }
    }

    /// Moves completions out of a queue, up to `max`; nothing when it is closed.
    pub(crate) fn take_completions(
        &mut self,
        cq: CqId,
        out: &mut Vec<Completion>,
        max: usize,
    ) -> Option<usize> {
        let count = self.cq(cq)?.drain_into(out, max);
        if count > 0 {
            self.on_cq_space(cq);
        }
        Some(count)
    }

    /// A completion queue has room: what was held back because of one may go on.
    pub(crate) fn on_cq_space(&mut self, cq: CqId) {
        if !self.multi_recvs.is_empty() {
            self.reserve_multi_recv_entries(cq);
        }
        if std::mem::take(&mut self.blocked_on_cq) {
            self.follow_ups.push(FollowUp::ResumeProgress);
        }
    }

    pub(crate) fn register_cq_waker(&mut self, cq: CqId, waker: &Waker) {
        let Some(ring) = self.cq(cq) else { return };
        let before = ring.waker.replace(waker.clone());
        self.add_waiter(before);
    }
}

impl EngineGuard<'_> {
    fn close_cq(&mut self, id: CqId) -> Option<Box<CqState>> {
        self.detach_multi_recvs_of_cq(id);
        for key in self.domain.ops.keys_reporting_to_cqs() {
            let op = self.domain.ops.get(key);
            if op.is_some_and(|op| self.domain.cq_of(op.ep, op.kind) == Some(id)) {
                self.detach(key);
            }
        }
        let hub = &mut self.domain;
        let mut ring = hub.cqs.remove(id.0)?;
        let waiter = ring.waker.take();
        hub.wake_waiter(waiter);
        if std::mem::take(&mut hub.blocked_on_cq) {
            // Nobody holds it up any more.
            hub.follow_ups.push(FollowUp::ResumeProgress);
        }
        Some(ring)
    }
}

impl DomainHandle {
    /// Opens a completion queue of this many entries.
    #[must_use]
    pub fn open_cq(&self, capacity: usize) -> CqId {
        CqId(
            self.engine()
                .lock()
                .domain
                .cqs
                .insert(CqState::new(capacity)),
        )
    }

    /// Closes a completion queue; completions in it are lost. Receives that were to report to it
    /// take no more messages, sends go on.
    pub fn close_cq(&self, id: CqId) {
        let ring = self.with_engine(|locked| locked.close_cq(id));
        // Its entries own buffers of the user's types: they are dropped without the lock.
        drop(ring);
    }

    /// Opens a counter.
    #[must_use]
    pub fn open_counter(&self) -> CounterId {
        CounterId(
            self.engine()
                .lock()
                .domain
                .counters
                .insert(CounterState::default()),
        )
    }

    /// Closes a counter.
    pub fn close_counter(&self, id: CounterId) {
        self.with_engine(|locked| {
            let hub = &mut locked.domain;
            if let Some(mut cell) = hub.counters.remove(id.0) {
                hub.waiters -= cell.waiter_count();
                cell.wake_all(&mut hub.deferred);
            }
        });
    }

    /// The queue that gets the events of endpoints which have none of their own.
    pub fn set_domain_eq(&self, eq: Option<Arc<EqState>>) {
        self.engine().lock().domain.domain_eq = eq;
    }

    /// Drives until the queue has completions, and moves up to `max` of them out.
    pub fn poll_cq(
        &self,
        cq: CqId,
        out: &mut Vec<Completion>,
        max: usize,
        cx: &mut Context<'_>,
    ) -> Poll<usize> {
        let take = |hub: &mut DomainState| match hub.take_completions(cq, out, max) {
            Some(count) => (count > 0).then_some(count),
            None => Some(0),
        };
        self.engine().poll(cx.waker(), take, |hub, waker| {
            hub.register_cq_waker(cq, waker)
        })
    }

    /// Makes a pass and moves what is in the queue out, without waiting.
    pub fn try_read_cq(&self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> usize {
        self.with_engine(|locked| {
            locked.poll_once();
            locked.domain.take_completions(cq, out, max).unwrap_or(0)
        })
    }

    /// The value and the error count of a counter.
    #[must_use]
    pub fn read_counter(&self, id: CounterId) -> (u64, u64) {
        let locked = self.engine().lock();
        locked
            .domain
            .counters
            .get(id.0)
            .map_or((0, 0), |cell| (cell.value, cell.errors))
    }

    /// Adds to a counter.
    pub fn add_to_counter(&self, id: CounterId, success: u64, errors: u64) {
        self.with_engine(|locked| {
            let hub = &mut locked.domain;
            if let Some(cell) = hub.counters.get_mut(id.0) {
                hub.waiters -= cell.add(success, errors, &mut hub.deferred);
            }
        });
    }

    /// Drives until the counter reaches the threshold, or its error count is no longer
    /// `errors_seen`.
    pub fn poll_counter(
        &self,
        id: CounterId,
        waiter: &mut Option<u64>,
        threshold: u64,
        errors_seen: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(u64, u64)>> {
        let ready = |hub: &mut DomainState| match hub.counters.get(id.0) {
            Some(cell) if cell.value >= threshold || cell.errors != errors_seen => {
                Some(Some((cell.value, cell.errors)))
            }
            Some(_) => None,
            None => Some(None),
        };
        self.engine().poll(cx.waker(), ready, |hub, waker| {
            if let Some(cell) = hub.counters.get_mut(id.0) {
                hub.waiters += usize::from(cell.register_waiter(
                    waiter,
                    threshold,
                    errors_seen,
                    waker,
                    &mut hub.deferred,
                ));
            }
        })
    }

    /// A waiter of a counter gave up.
    pub fn remove_counter_waiter(&self, id: CounterId, waiter: u64) {
        let mut locked = self.engine().lock();
        let hub = &mut locked.domain;
        if let Some(cell) = hub.counters.get_mut(id.0) {
            hub.waiters -= usize::from(cell.remove_waiter(waiter, &mut hub.deferred));
        }
    }

    /// Lets the reader of an event queue wait for this domain as well.
    pub fn register_eq(&self, eq: &Arc<EqState>) {
        let mut locked = self.engine().lock();
        locked
            .domain
            .event_queues
            .retain(|known| Arc::strong_count(known) > 1);
        if !locked
            .domain
            .event_queues
            .iter()
            .any(|known| Arc::ptr_eq(known, eq))
        {
            locked.domain.event_queues.push(eq.clone());
        }
    }

    /// The reader of an event queue is about to wait: makes a pass, and sees to it that the domain
    /// goes on. True when the reader must keep itself runnable.
    #[must_use]
    pub fn progress_before_wait(&self) -> bool {
        let mut locked = self.engine().lock();
        locked.poll_once();
        locked.ensure_driven_for_waiter()
    }
}
