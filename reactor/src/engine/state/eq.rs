//! Event queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use fabric_core::event::{Event, EventKind};

use super::bindings::Bindings;
use super::deferred::Deferred;
use crate::sys::sync::{Mutex, lock};

/// The event queue that a domain is bound to, and what its events say about the domain.
#[derive(Debug)]
pub struct DomainEq {
    /// The queue.
    pub queue: Arc<EqState>,
    /// The domain's id in the object tree.
    pub object_id: u64,
    /// The context the domain was opened with.
    pub context: u64,
}

/// The event queues that a domain reports to.
#[derive(Debug, Default)]
pub(crate) struct EventQueues {
    /// The queue for events of the domain, and of endpoints that have no queue of their own.
    of_domain: Option<DomainEq>,
    /// The queues of this domain and its endpoints: their readers wait for this domain too.
    all: Vec<Arc<EqState>>,
}

impl EventQueues {
    /// Sets the queue for events of the domain, and of endpoints that have no queue of their own.
    pub(crate) fn set_of_domain(&mut self, eq: Option<DomainEq>) {
        self.of_domain = eq;
    }

    /// Reports an event of the domain.
    pub(crate) fn push_of_domain(&self, kind: EventKind, deferred: &mut Deferred) {
        if let Some(eq) = &self.of_domain {
            let event = Event::new(eq.object_id, eq.context, kind);
            if let Some(waker) = eq.queue.push(event).waker {
                deferred.wake(waker);
            }
        }
    }

    /// Adds a queue whose reader also waits for this domain.
    pub(crate) fn register(&mut self, eq: &Arc<EqState>) {
        self.all.retain(|known| Arc::strong_count(known) > 1);
        if !self.all.iter().any(|known| Arc::ptr_eq(known, eq)) {
            self.all.push(eq.clone());
        }
    }

    /// Returns the queue for the events of an endpoint.
    pub(crate) fn for_endpoint<'a>(&'a self, bindings: &'a Bindings) -> Option<&'a EqState> {
        let of_domain = self.of_domain.as_ref().map(|eq| &eq.queue);
        bindings.eq.as_ref().or(of_domain).map(|queue| &**queue)
    }

    /// Returns whether a reader waits.
    pub(crate) fn has_waiting_reader(&self) -> bool {
        self.all.iter().any(|eq| eq.has_waiting_reader())
    }

    /// Wakes all readers.
    pub(crate) fn wake_all(&mut self, deferred: &mut Deferred) {
        for waker in self.all.iter().filter_map(|eq| eq.take_waker()) {
            deferred.wake(waker);
        }
    }
}

/// An event queue. Several domains may report to it, so it has a lock of its own, under which no
/// other lock is taken.
#[derive(Debug)]
pub struct EqState {
    capacity: usize,
    /// The queue's id in the object tree.
    object_id: u64,
    /// The context the queue was opened with.
    context: u64,
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
                earlier.object_id == event.object_id && earlier.kind.merge_refusals(&event.kind)
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
    /// are counted and reported as an overrun, with the id and the context of the queue.
    #[must_use]
    pub fn new(capacity: usize, object_id: u64, context: u64) -> Self {
        Self {
            capacity,
            object_id,
            context,
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

    /// Returns the context the queue was opened with.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Takes the next event.
    pub fn pop(&self) -> Option<Event> {
        let mut state = lock(&self.entries);
        if let Some(event) = state.take() {
            return Some(event);
        }
        let lost = std::mem::take(&mut state.lost);
        let overrun = EventKind::Overrun { lost };
        (lost > 0).then(|| Event::new(self.object_id, self.context, overrun))
    }

    /// Returns whether no event is in the queue.
    pub fn is_empty(&self) -> bool {
        let state = lock(&self.entries);
        state.events.is_empty() && state.lost == 0
    }

    /// Returns whether a reader waits, without the queue's lock. A caller that holds a domain's
    /// lock sees every reader that registered before that reader last took the domain's lock.
    fn has_waiting_reader(&self) -> bool {
        self.has_waiting_reader.load(Ordering::Relaxed)
    }

    /// Unregisters the reader: it waits no longer.
    pub fn unregister_waker(&self) {
        drop(self.take_waker());
    }

    /// Takes the waker of the waiting reader, to be woken or dropped.
    fn take_waker(&self) -> Option<Waker> {
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
        let queue = EqState::new(2, 9, 5);
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
        assert_eq!(queue.pop(), Some(Event::new(9, 5, lost)));
        assert!(queue.pop().is_none() && queue.is_empty());
    }
}
