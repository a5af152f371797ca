//! Completion queues, event queues and counters: where completions wait for their reader.

use std::collections::VecDeque;
use std::task::Waker;

use fabric_core::completion::Completion;
use fabric_core::event::{Event, EventKind};

use crate::later::Later;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::{Mutex, lock};

/// A completion queue. It cannot overrun: every operation that will report here reserved its entry
/// when it was posted.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    entries: VecDeque<Completion>,
    reserved: usize,
    capacity: usize,
    pub(crate) waker: Option<Waker>,
}

impl CompletionRing {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(capacity),
            reserved: 0,
            capacity,
            waker: None,
        }
    }

    /// How many entries there are, free or not.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Reserves an entry; false when all are taken.
    pub(crate) fn reserve(&mut self) -> bool {
        let free = self.reserved + self.entries.len() < self.capacity;
        self.reserved += usize::from(free);
        free
    }

    /// Gives a reserved entry back.
    pub(crate) fn unreserve(&mut self) {
        self.reserved -= 1;
    }

    /// Fills a reserved entry.
    #[inline(always)] // on the way of a small message, and an entry is large
    pub(crate) fn push(&mut self, completion: Completion) -> Option<Waker> {
        self.reserved -= 1;
        self.entries.push_back(completion);
        self.waker.take()
    }

    /// Moves up to `max` entries out.
    pub(crate) fn take(&mut self, out: &mut Vec<Completion>, max: usize) -> usize {
        let count = self.entries.len();
        if count > max {
            out.extend(self.entries.drain(..max));
            return max;
        }
        if count > 0 {
            // All in one go: an entry is large, and a deque gives them out one by one.
            let mut all = Vec::from(std::mem::take(&mut self.entries));
            out.append(&mut all);
            self.entries = all.into();
        }
        count
    }
}

/// A counter: how many operations ended well, and how many badly.
#[derive(Debug, Default)]
pub(crate) struct CounterCell {
    pub(crate) value: u64,
    pub(crate) errors: u64,
    waiters: Vec<Waiter>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    threshold: u64,
    errors_seen: u64,
    waker: Waker,
}

impl CounterCell {
    /// Adds; wakes whoever waited for the value reached, and everybody when an error is counted.
    pub(crate) fn add(&mut self, success: u64, errors: u64, later: &mut Later) -> usize {
        self.value = self.value.wrapping_add(success);
        self.errors = self.errors.wrapping_add(errors);
        let (value, seen) = (self.value, self.errors);
        let before = self.waiters.len();
        if before > 0 {
            for waiter in self
                .waiters
                .extract_if(.., |w| value >= w.threshold || seen != w.errors_seen)
            {
                later.wake(waiter.waker);
            }
        }
        before - self.waiters.len()
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Wakes everybody.
    pub(crate) fn wake_all(&mut self, later: &mut Later) {
        self.waiters
            .drain(..)
            .for_each(|waiter| later.wake(waiter.waker));
    }

    /// Registers a waiter, or renews its waker. True when it is new.
    pub(crate) fn wait(
        &mut self,
        id: &mut Option<u64>,
        threshold: u64,
        errors_seen: u64,
        waker: &Waker,
        later: &mut Later,
    ) -> bool {
        if let Some(waiter) = self.waiters.iter_mut().find(|w| Some(w.id) == *id) {
            if !waiter.waker.will_wake(waker) {
                later.discard_waker(std::mem::replace(&mut waiter.waker, waker.clone()));
            }
            return false;
        }
        self.next += 1;
        *id = Some(self.next);
        self.waiters.push(Waiter {
            id: self.next,
            threshold,
            errors_seen,
            waker: waker.clone(),
        });
        true
    }

    /// A waiter gave up. True when it was registered.
    pub(crate) fn forget(&mut self, id: u64, later: &mut Later) -> bool {
        let at = self.waiters.iter().position(|w| w.id == id);
        if let Some(at) = at {
            later.discard_waker(self.waiters.swap_remove(at).waker);
        }
        at.is_some()
    }
}

/// An event queue. Several domains may report to it, so it has a lock of its own, a leaf.
#[derive(Debug)]
pub struct EventRing {
    capacity: usize,
    /// A reader waits.
    awaited: AtomicBool,
    state: Mutex<EventState>,
}

#[derive(Debug, Default)]
struct EventState {
    events: VecDeque<Event>,
    lost: u64,
    waker: Option<Waker>,
}

impl EventRing {
    /// A queue that keeps at most `capacity` events; those beyond are counted and reported as an
    /// overrun.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            awaited: AtomicBool::new(false),
            state: Mutex::new(EventState::default()),
        }
    }

    /// Appends an event and returns whom to wake.
    pub(crate) fn push(&self, event: Event) -> Option<Waker> {
        let mut state = lock(&self.state);
        if state.events.len() < self.capacity {
            state.events.push_back(event);
        } else {
            state.lost += 1;
        }
        self.awaited.store(false, Ordering::Relaxed);
        state.waker.take()
    }

    /// Takes the next event.
    pub fn pop(&self) -> Option<Event> {
        let mut state = lock(&self.state);
        if let Some(event) = state.events.pop_front() {
            return Some(event);
        }
        let lost = std::mem::take(&mut state.lost);
        (lost > 0).then(|| Event::new(0, 0, EventKind::Overrun { lost }))
    }

    /// Whether a reader waits. Exact under the lock of a domain whose reader has registered before
    /// taking that lock.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    /// Nobody waits any more.
    pub fn unregister(&self) {
        drop(self.take_waker());
    }

    /// Takes out who waits, to be woken or forgotten.
    pub(crate) fn take_waker(&self) -> Option<Waker> {
        self.awaited.store(false, Ordering::Relaxed);
        lock(&self.state).waker.take()
    }

    /// Takes the next event, or remembers whom to wake for it.
    pub fn pop_or_register(&self, waker: &Waker) -> Option<Event> {
        let replaced = {
            let mut state = lock(&self.state);
            if state.events.is_empty() && state.lost == 0 {
                self.awaited.store(true, Ordering::Relaxed);
                state.waker.replace(waker.clone())
            } else {
                None
            }
        };
        drop(replaced);
        self.pop()
    }
}
