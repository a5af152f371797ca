//! Counters.

use std::task::Waker;

use super::bindings::CounterId;
use super::deferred::{Deferred, WakerSlot};
use super::id_map::IdMap;

/// The counters of a domain.
#[derive(Debug)]
pub(crate) struct Counters(IdMap<CounterState>);

impl Counters {
    pub(crate) const fn new() -> Self {
        Self(IdMap::new())
    }

    pub(crate) fn open(&mut self) -> CounterId {
        CounterId(self.0.insert(CounterState::default()))
    }

    /// Closes a counter and wakes its waiters.
    pub(crate) fn close(&mut self, id: CounterId, deferred: &mut Deferred) {
        if let Some(mut counter) = self.0.remove(id.0) {
            counter.wake_all(deferred);
        }
    }

    /// Returns the value and the error count of a counter; `None` when it is closed.
    pub(crate) fn read(&self, id: CounterId) -> Option<(u64, u64)> {
        let counter = self.0.get(id.0)?;
        Some((counter.value, counter.errors))
    }

    /// Counts the end of an operation, if a counter counts it.
    #[inline]
    pub(crate) fn count(&mut self, id: Option<CounterId>, ok: bool, deferred: &mut Deferred) {
        if let Some(id) = id {
            self.count_one(id, ok, deferred);
        }
    }

    #[inline(never)] // keeps the callers small: few operations are counted
    fn count_one(&mut self, id: CounterId, ok: bool, deferred: &mut Deferred) {
        self.add(id, u64::from(ok), u64::from(!ok), deferred);
    }

    /// Adds to the value and the error count of a counter.
    #[inline]
    pub(crate) fn add(
        &mut self,
        id: CounterId,
        success: u64,
        errors: u64,
        deferred: &mut Deferred,
    ) {
        if let Some(counter) = self.0.get_mut(id.0) {
            counter.add(success, errors, deferred);
        }
    }

    /// Registers a waker that is called when the counter's value reaches the threshold or its error
    /// count differs from `errors_seen`. `waiter` is `None` at the first call; then it holds the
    /// registration, which later calls update.
    pub(crate) fn register_waiter(
        &mut self,
        id: CounterId,
        waiter: &mut Option<u64>,
        (threshold, errors_seen): (u64, u64),
        waker: &Waker,
        deferred: &mut Deferred,
    ) {
        if let Some(counter) = self.0.get_mut(id.0) {
            counter.register_waiter(waiter, (threshold, errors_seen), waker, deferred);
        }
    }

    /// Removes a waiter of a counter whose future was dropped.
    pub(crate) fn remove_waiter(&mut self, id: CounterId, waiter: u64, deferred: &mut Deferred) {
        if let Some(counter) = self.0.get_mut(id.0) {
            counter.remove_waiter(waiter, deferred);
        }
    }

    /// Wakes all waiters.
    pub(crate) fn wake_all(&mut self, deferred: &mut Deferred) {
        for (_, counter) in self.0.iter_mut() {
            counter.wake_all(deferred);
        }
    }
}

/// A counter of successful and failed operations.
#[derive(Debug, Default)]
struct CounterState {
    value: u64,
    errors: u64,
    waiters: Vec<CounterWaiter>,
    next_waiter_id: u64,
}

#[derive(Debug)]
struct CounterWaiter {
    id: u64,
    threshold: u64,
    errors_seen: u64,
    task: WakerSlot,
}

impl CounterState {
    /// Adds to the counter. Wakes the waiters whose threshold is reached, and all waiters when an
    /// error is counted.
    fn add(&mut self, success: u64, errors: u64, deferred: &mut Deferred) {
        self.value = self.value.wrapping_add(success);
        self.errors = self.errors.wrapping_add(errors);
        let (value, seen) = (self.value, self.errors);
        if !self.waiters.is_empty() {
            let is_due = |w: &mut CounterWaiter| value >= w.threshold || seen != w.errors_seen;
            for mut waiter in self.waiters.extract_if(.., is_due) {
                waiter.task.wake(deferred);
            }
        }
    }

    /// Wakes all waiters.
    fn wake_all(&mut self, deferred: &mut Deferred) {
        for mut waiter in self.waiters.drain(..) {
            waiter.task.wake(deferred);
        }
    }

    /// Registers a waiter or renews its waker.
    fn register_waiter(
        &mut self,
        id: &mut Option<u64>,
        (threshold, errors_seen): (u64, u64),
        waker: &Waker,
        deferred: &mut Deferred,
    ) {
        if let Some(waiter) = self.waiters.iter_mut().find(|w| Some(w.id) == *id) {
            (waiter.threshold, waiter.errors_seen) = (threshold, errors_seen);
            return waiter.task.register(waker, deferred);
        }
        self.next_waiter_id += 1;
        *id = Some(self.next_waiter_id);
        let mut task = WakerSlot::EMPTY;
        task.register(waker, deferred);
        self.waiters.push(CounterWaiter {
            id: self.next_waiter_id,
            threshold,
            errors_seen,
            task,
        });
    }

    /// Removes a waiter whose future was dropped.
    fn remove_waiter(&mut self, id: u64, deferred: &mut Deferred) {
        if let Some(index) = self.waiters.iter().position(|w| w.id == id) {
            self.waiters.swap_remove(index).task.clear(deferred);
        }
    }
}
