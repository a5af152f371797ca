//! Completion queues, event queues and counters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use fabric_core::completion::Completion;
use fabric_core::event::{Event, EventKind};

use super::deferred::{Deferred, WakerSlot};
use crate::sys::sync::{Mutex, lock};

/// A completion queue. It cannot overrun: every operation that will report to it reserved its entry
/// when it was posted.
///
/// The entries are a ring, which is filled in place, because an entry is large. It grows as needed.
#[derive(Debug)]
pub(crate) struct CqState {
    /// Vacant entries and completions; a power of two in number, or none.
    entries: Vec<Completion>,
    /// The index of the oldest completion.
    head: usize,
    /// The number of completions.
    len: usize,
    /// The number of completions that the last reader got with their memory.
    last_len: usize,
    reserved: usize,
    capacity: usize,
    /// The task that waits for completions.
    pub(crate) reader: WakerSlot,
}

/// The number of entries of a queue that has held few completions.
const MIN_ENTRIES: usize = 16;

impl CqState {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: Vec::new(),
            head: 0,
            len: 0,
            last_len: 0,
            reserved: 0,
            capacity,
            reader: WakerSlot::EMPTY,
        }
    }

    /// Returns the number of entries, free or not.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Reserves an entry; returns false when none is free.
    pub(crate) fn reserve(&mut self) -> bool {
        let free = self.reserved + self.len < self.capacity;
        self.reserved += usize::from(free);
        free
    }

    /// Reserves up to `count` entries; returns how many.
    pub(crate) fn reserve_up_to(&mut self, count: usize) -> usize {
        let free = self.capacity.saturating_sub(self.reserved + self.len);
        let reserved = free.min(count);
        self.reserved += reserved;
        reserved
    }

    /// Releases reserved entries.
    pub(crate) fn unreserve(&mut self, count: usize) {
        self.reserved -= count;
    }

    /// Returns the next reserved entry, which the caller fills.
    #[inline(always)] // on the small-message path
    pub(crate) fn next_entry(&mut self) -> &mut Completion {
        if self.len == self.entries.len() {
            self.add_entries();
        }
        let index = (self.head + self.len) & (self.entries.len() - 1);
        self.reserved -= 1;
        self.len += 1;
        &mut self.entries[index]
    }

    /// Doubles the number of entries, all of which hold completions.
    #[cold]
    fn add_entries(&mut self) {
        self.entries.rotate_left(self.head);
        self.head = 0;
        let count = (2 * self.len).max(MIN_ENTRIES);
        self.entries
            .reserve_exact(count.max(self.last_len) - self.len);
        self.entries.resize_with(count, || Completion::VACANT);
    }

    /// Returns whether no completion is in the queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Moves up to `max` completions out.
    pub(crate) fn drain_into(&mut self, out: &mut Vec<Completion>, max: usize) -> usize {
        let count = self.len.min(max);
        let gives_memory = count >= MIN_ENTRIES && 2 * count > self.entries.len();
        if gives_memory && count == self.len && self.head == 0 && out.is_empty() {
            // The reader gets the memory with the completions. This queue goes on with the
            // reader's.
            self.entries.truncate(count);
            std::mem::swap(&mut self.entries, out);
            (self.last_len, self.len) = (count, 0);
            return count;
        }
        let (newer, older) = self.entries.split_at_mut(self.head);
        let from_older = count.min(older.len());
        out.extend(older[..from_older].iter_mut().map(Completion::take));
        out.extend(newer[..count - from_older].iter_mut().map(Completion::take));
        self.len -= count;
        self.head = match self.len {
            // The entries that were filled last are in the cache.
            0 => 0,
            _ => (self.head + count) & (self.entries.len() - 1),
        };
        count
    }
}

/// A counter of successful and failed operations.
#[derive(Debug, Default)]
pub(crate) struct CounterState {
    pub(crate) value: u64,
    pub(crate) errors: u64,
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
    pub(crate) fn add(&mut self, success: u64, errors: u64, deferred: &mut Deferred) {
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
    pub(crate) fn wake_all(&mut self, deferred: &mut Deferred) {
        for mut waiter in self.waiters.drain(..) {
            waiter.task.wake(deferred);
        }
    }

    /// Registers a waiter or renews its waker.
    pub(crate) fn register_waiter(
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
    pub(crate) fn remove_waiter(&mut self, id: u64, deferred: &mut Deferred) {
        if let Some(index) = self.waiters.iter().position(|w| w.id == id) {
            self.waiters.swap_remove(index).task.clear(deferred);
        }
    }
}

/// An event queue. Several domains may report to it, so it has a lock of its own, under which no
/// other lock is taken.
#[derive(Debug)]
pub struct EqState {
    capacity: usize,
    /// Whether a reader waits.
    has_waiting_reader: AtomicBool,
    entries: Mutex<EqEntries>,
}

/// Number of refusals that an event queue holds beside its capacity. Refused peers cause them, so
/// they must not take the room of other events.
const MAX_REFUSALS: usize = 16;

#[derive(Debug, Default)]
struct EqEntries {
    events: VecDeque<Event>,
    /// Number of events that were taken, by which `refusals` refers to events.
    taken: u64,
    /// The refusals (`InboundRefused`) in `events`, oldest first: each is the number of events that
    /// were appended before it.
    refusals: VecDeque<u64>,
    lost: u64,
    waker: Option<Waker>,
}

/// What [`EqState::push`] has done.
#[derive(Debug)]
pub(crate) struct PushedEvent {
    /// Whether the event was counted in an earlier one.
    pub(crate) is_merged: bool,
    /// The waker of the waiting reader.
    pub(crate) waker: Option<Waker>,
}

impl EqEntries {
    /// Counts a refusal in an earlier one for the same reason. Returns false if there is none.
    fn merge_refusals(&mut self, event: &Event) -> bool {
        self.refusals.iter().any(|&position| {
            let earlier = self.events.get_mut((position - self.taken) as usize);
            earlier.is_some_and(|earlier| {
                earlier.endpoint_id == event.endpoint_id && earlier.kind.merge_refusals(&event.kind)
            })
        })
    }

    /// Appends an event, or counts it as lost if it finds no room.
    fn append(&mut self, event: Event, capacity: usize) {
        let is_refusal = matches!(event.kind, EventKind::InboundRefused { .. });
        let has_room = if is_refusal {
            self.refusals.len() < MAX_REFUSALS
        } else {
            self.events.len() - self.refusals.len() < capacity
        };
        if !has_room {
            self.lost += 1;
            return;
        }
        if is_refusal {
            let position = self.taken + self.events.len() as u64;
            self.refusals.push_back(position);
        }
        self.events.push_back(event);
    }

    /// Takes the oldest event.
    fn take(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.refusals
            .pop_front_if(|position| *position == self.taken);
        self.taken += 1;
        Some(event)
    }
}

impl EqState {
    /// Creates a queue for at most `capacity` events, and beside them 16 refusals. Further events
    /// are counted and reported as an overrun.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            has_waiting_reader: AtomicBool::new(false),
            entries: Mutex::new(EqEntries::default()),
        }
    }

    /// Appends an event, or counts a refusal in an earlier one.
    pub(crate) fn push(&self, event: Event) -> PushedEvent {
        let mut state = lock(&self.entries);
        let is_merged = state.merge_refusals(&event);
        if !is_merged {
            state.append(event, self.capacity);
        }
        self.has_waiting_reader.store(false, Ordering::Relaxed);
        let waker = state.waker.take();
        PushedEvent { is_merged, waker }
    }

    /// Takes the next event.
    pub fn pop(&self) -> Option<Event> {
        let mut state = lock(&self.entries);
        if let Some(event) = state.take() {
            return Some(event);
        }
        let lost = std::mem::take(&mut state.lost);
        (lost > 0).then(|| Event::new(0, 0, EventKind::Overrun { lost }))
    }

    /// Returns whether no event is in the queue.
    pub fn is_empty(&self) -> bool {
        let state = lock(&self.entries);
        state.events.is_empty() && state.lost == 0
    }

    /// Returns whether a reader waits, without the queue's lock. A caller that holds a domain's
    /// lock sees every reader that registered before that reader last took the domain's lock.
    pub(crate) fn has_waiting_reader(&self) -> bool {
        self.has_waiting_reader.load(Ordering::Relaxed)
    }

    /// Unregisters the reader: it waits no longer.
    pub fn unregister_waker(&self) {
        drop(self.take_waker());
    }

    /// Takes the waker of the waiting reader, to be woken or dropped.
    pub(crate) fn take_waker(&self) -> Option<Waker> {
        self.has_waiting_reader.store(false, Ordering::Relaxed);
        lock(&self.entries).waker.take()
    }

    /// Takes the next event, or registers the waker for it.
    pub fn pop_or_register(&self, waker: &Waker) -> Option<Event> {
        self.register_if_empty(waker);
        self.pop()
    }

    /// Registers the waker for the next event, unless there is one. Returns whether the waker was
    /// registered.
    pub fn register_if_empty(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.entries);
        let is_empty = state.events.is_empty() && state.lost == 0;
        let replaced = if is_empty {
            self.has_waiting_reader.store(true, Ordering::Relaxed);
            state.waker.replace(waker.clone())
        } else {
            None
        };
        drop(state);
        drop(replaced);
        is_empty
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::Error;
    use fabric_core::buf::AnyBuf;
    use fabric_core::completion::{OpKind, Outcome, Transfer};

    use super::*;

    fn refusal_of_user(theirs: u32) -> Event {
        let peer = format!("shm://process-{theirs}").parse().unwrap();
        let ours = 0;
        let error = Error::OtherUser { peer, theirs, ours };
        Event::new(1, 0, EventKind::InboundRefused { error, count: 1 })
    }

    /// Returns the user and the count of a refusal.
    fn refused(event: Option<Event>) -> (u32, u64) {
        match event.map(|event| event.kind) {
            Some(EventKind::InboundRefused {
                error: Error::OtherUser { theirs, .. },
                count,
            }) => (theirs, count),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refusals_are_counted_per_user_and_take_no_room_of_other_events() {
        let queue = EqState::new(2);
        let other_event = |lost| Event::new(1, 0, EventKind::Overrun { lost });
        for round in 0..1000 {
            let is_merged = queue.push(refusal_of_user(7)).is_merged;
            assert_eq!(is_merged, round > 0);
        }
        (0..100).for_each(|user| drop(queue.push(refusal_of_user(user))));
        // The other events find the room of the capacity.
        (0..3).for_each(|lost| drop(queue.push(other_event(lost))));
        assert_eq!(refused(queue.pop()), (7, 1001));
        // The next refusal of a user whose event was taken is a new event.
        assert!(!queue.push(refusal_of_user(7)).is_merged);
        for user in (0..7).chain(8..16) {
            assert_eq!(refused(queue.pop()), (user, 1));
        }
        assert_eq!(queue.pop(), Some(other_event(0)));
        assert_eq!(queue.pop(), Some(other_event(1)));
        assert_eq!(refused(queue.pop()), (7, 1));
        // Refusals of 84 users and one other event were discarded.
        let lost = EventKind::Overrun { lost: 85 };
        assert_eq!(queue.pop().map(|event| event.kind), Some(lost));
        assert!(queue.pop().is_none() && queue.is_empty());
    }

    #[test]
    fn reads_of_any_size_return_all_entries_in_order() {
        let mut queue = CqState::new(64);
        let (mut out, mut next) = (Vec::new(), 0);
        for round in 0..200_usize {
            while queue.reserve() {
                let done = Outcome::ok(Transfer::default());
                queue
                    .next_entry()
                    .fill(next, OpKind::Send, done, AnyBuf::None);
                next += 1;
                if next % (1 + round as u64 % 7) == 0 {
                    break;
                }
            }
            // Also into an empty vector, which gets the memory of the queue.
            let mut read = std::mem::take(&mut out);
            let into = if round % 3 == 0 { &mut out } else { &mut read };
            let (before, max) = (into.len(), round * 5 % 37);
            let count = queue.drain_into(into, max);
            assert!(count <= max && into.len() == before + count);
            read.append(&mut out);
            out = read;
        }
        while queue.drain_into(&mut out, 5) > 0 {}
        assert!(queue.is_empty() && next > 300);
        assert!(out.iter().map(|entry| entry.context).eq(0..next));
    }
}
