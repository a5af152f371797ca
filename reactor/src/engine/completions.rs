//! Completion queues and counters: opening, closing, reading and waiting.
//! Also, how the readers of event queues wait for a domain.

use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_core::Result;
use fabric_core::completion::Completion;

use super::domain::DomainHandle;
use super::driver_phase::DriverKind;
use super::progress::EngineState;
use super::state::bindings::{CounterId, CqId};
use super::state::cq::CqState;
use super::state::domain_state::DomainState;
use super::state::eq::{DomainEq, EqState};

impl EngineState {
    fn close_cq(&mut self, id: CqId) -> Option<Box<CqState>> {
        // All are closed first: a message that one leaves must not go to another that reports to
        // the same queue.
        for key in self.domain.close_multi_recvs_of_cq(id) {
            self.detach_multi_recv(key);
        }
        let domain = &self.domain;
        let reporting = domain.ops.keys_where(|op| {
            op.target().reserves_cq_entry() && domain.endpoints.cq_of(op.ep, op.kind) == Some(id)
        });
        for key in reporting {
            self.detach(key);
        }
        let domain = &mut self.domain;
        let queue = domain.cqs.close(id, &mut domain.deferred)?;
        // The closed queue no longer holds messages.
        domain.on_cq_space(id);
        Some(queue)
    }
}

impl DomainHandle {
    /// Opens a completion queue of `capacity` entries (`fi_cq_open`).
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`](fabric_core::Error::ConcurrentUse).
    pub fn open_cq(&self, capacity: usize) -> Result<CqId> {
        Ok(self.lock_or_refuse()?.domain.cqs.open(capacity))
    }

    /// Closes a completion queue and drops the completions in it. Receives that were to report to
    /// it take no more messages; sends continue.
    pub fn close_cq(&self, id: CqId) {
        let queue = self.with_engine(|locked| locked.close_cq(id));
        // The entries own buffers of user types, which are dropped without the lock.
        drop(queue);
    }

    /// Opens a counter (`fi_cntr_open`).
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`](fabric_core::Error::ConcurrentUse).
    pub fn open_counter(&self) -> Result<CounterId> {
        Ok(self.lock_or_refuse()?.domain.counters.open())
    }

    /// Closes a counter.
    pub fn close_counter(&self, id: CounterId) {
        self.with_engine(|locked| {
            let domain = &mut locked.domain;
            domain.counters.close(id, &mut domain.deferred);
        });
    }

    /// Sets the event queue for events of the domain, and of endpoints that have no queue of their
    /// own.
    pub fn set_domain_eq(&self, eq: DomainEq) {
        self.engine().lock().domain.eqs.set_of_domain(eq);
    }

    /// Unsets this queue, and removes the events of the domain from it.
    pub fn unset_domain_eq(&self) {
        self.engine().lock().domain.eqs.unset_of_domain();
    }

    /// Drives the domain until the queue has completions, and moves up to `max` of them out.
    /// Returns how many; 0 when the queue is closed.
    pub fn poll_cq(
        &self,
        cq: CqId,
        out: &mut Vec<Completion>,
        max: usize,
        cx: &mut Context<'_>,
    ) -> Poll<usize> {
        let take = |domain: &mut DomainState| match domain.take_completions(cq, out, max) {
            Some(count) => (count > 0).then_some(count),
            None => Some(0),
        };
        self.engine().poll(cx.waker(), take, |domain, waker| {
            domain.register_cq_waker(cq, waker)
        })
    }

    /// Makes one pass and moves up to `max` completions out, without waiting.
    pub fn try_read_cq(&self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> usize {
        self.with_engine(|locked| {
            locked.poll_once();
            locked.domain.take_completions(cq, out, max).unwrap_or(0)
        })
    }

    /// Returns the value and the error count of a counter.
    #[must_use]
    pub fn read_counter(&self, id: CounterId) -> (u64, u64) {
        let locked = self.engine().lock();
        locked.domain.counters.read(id).unwrap_or_default()
    }

    /// Makes progress once, unless the domain's thread does, for the reader of a counter or event
    /// queue. The pass counts as one of the driver: the reader of an event queue is no user.
    pub fn progress_if_manual(&self) {
        if self.engine().driver_kind != DriverKind::Thread {
            self.engine().lock_for_progress().progress_once();
        }
    }

    /// Adds to the value and the error count of a counter.
    pub fn add_to_counter(&self, id: CounterId, success: u64, errors: u64) {
        self.with_engine(|locked| {
            let domain = &mut locked.domain;
            let deferred = &mut domain.deferred;
            domain.counters.add(id, success, errors, deferred);
        });
    }

    /// Drives the domain until the counter's value reaches the threshold or its error count differs
    /// from `errors_seen`; `None` when the counter is closed.
    pub fn poll_counter(
        &self,
        id: CounterId,
        waiter: &mut Option<u64>,
        threshold: u64,
        errors_seen: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(u64, u64)>> {
        let ready = |domain: &mut DomainState| match domain.counters.read(id) {
            Some((value, errors)) if value < threshold && errors == errors_seen => None,
            counts => Some(counts),
        };
        self.engine().poll(cx.waker(), ready, |domain, waker| {
            let (awaited, deferred) = ((threshold, errors_seen), &mut domain.deferred);
            let counters = &mut domain.counters;
            counters.register_waiter(id, waiter, awaited, waker, deferred);
        })
    }

    /// Removes a waiter of a counter whose future was dropped.
    pub fn remove_counter_waiter(&self, id: CounterId, waiter: u64) {
        let mut locked = self.engine().lock();
        let domain = &mut locked.domain;
        let deferred = &mut domain.deferred;
        domain.counters.remove_waiter(id, waiter, deferred);
    }

    /// Adds an event queue whose reader also waits for this domain.
    pub fn register_eq(&self, eq: &Arc<EqState>) {
        self.engine().lock().domain.eqs.register(eq);
    }

    /// Makes a pass, as the driver does, and ensures that the domain is driven, before the reader
    /// of an event queue waits. Returns true when the reader must wake itself again, because
    /// nothing else drives the domain.
    #[must_use]
    pub fn progress_before_wait(&self) -> bool {
        let mut locked = self.engine().lock_for_progress();
        locked.poll_once();
        locked.ensure_driven_for_waiter()
    }
}
