//! Event queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use fabric_core::error::Resource;
use fabric_core::event::{Event, EventKind};
use fabric_core::{Error, Result};

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
    pub(crate) fn set_of_domain(&mut self, eq: DomainEq) {
        self.of_domain = Some(eq);
    }

    /// Unsets the queue, and removes the events of the domain from it.
    pub(crate) fn unset_of_domain(&mut self) {
        if let Some(eq) = self.of_domain.take() {
            eq.queue.remove_events_of(eq.object_id);
        }
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
    /// The number of events in `events` that the program has written.
    written: usize,
    /// The number of reserved entries: those of pending registrations, and those whose events
    /// (`MrComplete`, `MrFailed`) are in `events`.
    reserved: usize,
    /// The number of events in `events` that fill a reserved entry.
    filled: usize,
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
            let others = self.refusals.len() + self.written + self.filled;
            self.events.len() - others < capacity
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
        self.written -= usize::from(is_written(&event));
        if is_reserved(&event) {
            self.filled -= 1;
            self.reserved -= 1;
        }
        Some(event)
    }

    /// Removes the events that `keep` does not accept, none of which the program has written.
    fn retain(&mut self, keep: impl FnMut(&Event) -> bool) {
        self.events.retain(keep);
        let filled = self.events.iter().filter(|event| is_reserved(event));
        let filled = filled.count();
        self.reserved -= self.filled - filled;
        self.filled = filled;
        let is_refusal = |event: &Event| matches!(event.kind, EventKind::InboundRefused { .. });
        let refusals = self.events.iter().zip(self.taken..);
        let refusals = refusals.filter(|(event, _)| is_refusal(event));
        self.refusals = refusals.map(|(_, position)| position).collect();
    }
}

/// Returns whether the program has written the event.
fn is_written(event: &Event) -> bool {
    matches!(event.kind, EventKind::User { .. })
}

/// Returns whether the event fills the entry that a [`ReservedEvent`] has reserved.
fn is_reserved(event: &Event) -> bool {
    matches!(
        event.kind,
        EventKind::MrComplete { .. } | EventKind::MrFailed { .. }
    )
}

/// A reserved entry of an event queue, for the end of a registration (`FI_REG_MR`). The drop
/// releases the entry, and removes the event if it is still in the queue.
#[derive(Debug)]
pub struct ReservedEvent {
    queue: Arc<EqState>,
    /// The region's id in the object tree.
    object_id: u64,
    /// The context of the registration.
    context: u64,
    is_reported: bool,
}

impl ReservedEvent {
    /// Appends the event, `MrComplete` or `MrFailed`. Returns the waker of the waiting reader.
    ///
    /// # Panics
    /// When the event was reported before.
    pub fn report(&mut self, kind: EventKind) -> Option<Waker> {
        let was_reported = std::mem::replace(&mut self.is_reported, true);
        assert!(!was_reported, "a registration ends once");
        let event = Event::new(self.object_id, self.context, kind);
        let mut state = lock(&self.queue.entries);
        state.filled += 1;
        state.events.push_back(event);
        self.queue.take_waker_of(&mut state)
    }
}

impl Drop for ReservedEvent {
    fn drop(&mut self) {
        if self.is_reported {
            self.queue.remove_events_of(self.object_id);
        } else {
            lock(&self.queue.entries).reserved -= 1;
        }
    }
}

impl EqState {
    /// Creates a queue for at most `capacity` events, and beside them 16 refusals, `capacity`
    /// events that the program writes, and `capacity` registrations. Further events are counted and
    /// reported as an overrun, with the id and the context of the queue.
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
        let waker = self.take_waker_of(&mut state);
        PushedEvent { is_merged, waker }
    }

    /// Appends an event of the program, and wakes the reader.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when the queue holds `capacity` events of the program.
    pub fn write(&self, context: u64, data: Vec<u8>) -> Result<()> {
        let mut state = lock(&self.entries);
        let capacity = self.capacity;
        if state.written == capacity {
            return Err(Error::WouldBlock(Resource::EventEntry { capacity }));
        }
        state.written += 1;
        let event = Event::new(self.object_id, context, EventKind::User { data });
        state.events.push_back(event);
        let waker = self.take_waker_of(&mut state);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Reserves an entry for the end of the registration of this region.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when `capacity` registrations are pending or have events in the queue.
    pub fn reserve(self: &Arc<Self>, object_id: u64, context: u64) -> Result<ReservedEvent> {
        let mut state = lock(&self.entries);
        let capacity = self.capacity;
        if state.reserved == capacity {
            return Err(Error::WouldBlock(Resource::EventEntry { capacity }));
        }
        state.reserved += 1;
        Ok(ReservedEvent {
            queue: self.clone(),
            object_id,
            context,
            is_reported: false,
        })
    }

    /// Removes the events of an object that is closed. Its failure to connect stays: the program
    /// had no handle of such an endpoint.
    pub(crate) fn remove_events_of(&self, object_id: u64) {
        lock(&self.entries).retain(|event| {
            event.object_id != object_id || matches!(event.kind, EventKind::ConnectFailed { .. })
        });
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
        let overrun = self.overrun(&state);
        state.lost = 0;
        overrun
    }

    /// Returns a copy of the next event, which stays in the queue.
    pub fn peek(&self) -> Option<Event> {
        let state = lock(&self.entries);
        let oldest = state.events.front().cloned();
        oldest.or_else(|| self.overrun(&state))
    }

    /// Returns the event that reports the discarded events; `None` if there are none.
    fn overrun(&self, state: &EqEntries) -> Option<Event> {
        let kind = EventKind::Overrun { lost: state.lost };
        (state.lost > 0).then(|| Event::new(self.object_id, self.context, kind))
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
        self.take_waker_of(&mut lock(&self.entries))
    }

    /// Takes the waker of the waiting reader of these entries, which are the queue's.
    fn take_waker_of(&self, entries: &mut EqEntries) -> Option<Waker> {
        self.has_waiting_reader.store(false, Ordering::Relaxed);
        entries.waker.take()
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
    fn removed_events_leave_the_others_in_order() {
        let queue = EqState::new(2, 9, 5);
        let of = |object_id, lost| Event::new(object_id, 0, EventKind::Overrun { lost });
        drop(queue.push(of(3, 1)));
        drop(queue.push(refusal_of_user(7)));
        let mut other_refusal = refusal_of_user(7);
        other_refusal.object_id = 3;
        drop(queue.push(other_refusal.clone()));
        drop(queue.push(of(1, 2)));
        queue.write(6, vec![4]).unwrap();
        let failed = EventKind::ConnectFailed {
            error: Error::ShutDown,
        };
        let failed = Event::new(3, 0, failed);
        drop(queue.push(failed.clone()));
        assert_eq!(queue.pop(), Some(of(3, 1)));
        drop(queue.push(failed.clone()));
        queue.remove_events_of(3);
        // The refusal that stays still counts further ones, a removed one does not.
        assert!(queue.push(refusal_of_user(7)).is_merged);
        assert!(!queue.push(other_refusal).is_merged);
        assert_eq!(refused(queue.peek()), (7, 2));
        assert_eq!(refused(queue.pop()), (7, 2));
        assert_eq!(queue.pop(), Some(of(1, 2)));
        let data = vec![4];
        assert_eq!(
            queue.pop(),
            Some(Event::new(9, 6, EventKind::User { data }))
        );
        assert_eq!(queue.pop(), Some(failed));
        assert_eq!(refused(queue.pop()), (7, 1));
        let lost = EventKind::Overrun { lost: 1 };
        assert_eq!(queue.peek(), Some(Event::new(9, 5, lost.clone())));
        assert_eq!(queue.pop(), Some(Event::new(9, 5, lost)));
        assert_eq!(
            (queue.peek(), queue.pop(), queue.is_empty()),
            (None, None, true)
        );
    }

    #[test]
    fn registrations_have_reserved_entries() {
        let queue = Arc::new(EqState::new(2, 9, 5));
        let complete = |key| EventKind::MrComplete { key };
        let other = |lost| Event::new(1, 0, EventKind::Overrun { lost });
        let full = Err(Error::WouldBlock(Resource::EventEntry { capacity: 2 }));
        let mut first = queue.reserve(3, 30).unwrap();
        let mut second = queue.reserve(4, 40).unwrap();
        assert_eq!(queue.reserve(6, 60).map(drop), full);
        // Other events have the room of the capacity, and take none of the reserved entries.
        drop((queue.push(other(0)), queue.push(other(1))));
        assert!(first.report(complete(1)).is_none());
        drop(queue.push(other(2)));
        assert!(second.report(complete(2)).is_none());
        assert_eq!(queue.reserve(6, 60).map(drop), full);
        // The drop of a reported one removes its event, a taken event frees its entry.
        drop(first);
        assert_eq!((queue.pop(), queue.pop()), (Some(other(0)), Some(other(1))));
        assert_eq!(queue.pop(), Some(Event::new(4, 40, complete(2))));
        drop(second);
        let lost = EventKind::Overrun { lost: 1 };
        assert_eq!(queue.pop(), Some(Event::new(9, 5, lost)));
        let unreported = [queue.reserve(3, 0).unwrap(), queue.reserve(4, 0).unwrap()];
        assert_eq!(queue.reserve(6, 60).map(drop), full);
        drop(unreported);
        assert_eq!((queue.pop(), queue.reserve(6, 60).is_ok()), (None, true));
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
