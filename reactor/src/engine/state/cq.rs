//! Completion queues.

use std::collections::VecDeque;

use fabric_core::completion::Completion;
use fabric_core::tree::Class;
use fabric_core::{Error, Resource, Result};

use super::bindings::CqId;
use super::deferred::{Deferred, WakerSlot};
use super::id_map::IdMap;

/// The completion queues of a domain.
#[derive(Debug)]
pub(crate) struct CompletionQueues(IdMap<CqState>);

impl CompletionQueues {
    pub(crate) const fn new() -> Self {
        Self(IdMap::new())
    }

    /// Opens a queue of `capacity` entries.
    pub(crate) fn open(&mut self, capacity: usize) -> CqId {
        CqId(self.0.insert(CqState::new(capacity)))
    }

    /// Closes a queue and wakes its reader. Returns the queue with the completions in it.
    pub(crate) fn close(&mut self, id: CqId, deferred: &mut Deferred) -> Option<Box<CqState>> {
        let mut queue = self.0.remove(id.0)?;
        queue.reader.wake(deferred);
        Some(queue)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: impl Into<Option<CqId>>) -> Option<&mut CqState> {
        self.0.get_mut(id.into()?.0)
    }

    /// Reserves an entry of a queue.
    ///
    /// # Errors
    /// [`Error::Unbound`] without a queue, [`Error::Closed`]; [`Error::WouldBlock`] if no entry is
    /// free.
    #[inline]
    pub(crate) fn reserve(&mut self, id: Option<CqId>) -> Result<()> {
        let id = id.ok_or_else(|| Error::Unbound(Class::CompletionQueue))?;
        let queue = self.get_mut(id);
        let queue = queue.ok_or_else(|| Error::Closed(Class::CompletionQueue))?;
        if queue.reserve() {
            Ok(())
        } else {
            let capacity = queue.capacity();
            Err(Error::WouldBlock(Resource::CompletionEntry { capacity }))
        }
    }

    /// Wakes all readers.
    pub(crate) fn wake_all(&mut self, deferred: &mut Deferred) {
        for (_, queue) in self.0.iter_mut() {
            queue.reader.wake(deferred);
        }
    }
}

/// A completion queue. It cannot overrun: every operation that will report to it reserved its entry
/// when it was posted.
#[derive(Debug)]
pub(crate) struct CqState {
    /// The newest completions. A reader that takes all of them gets the vector.
    entries: Vec<Completion>,
    /// The completions before `entries`, which a short read has left.
    older: VecDeque<Completion>,
    reserved: usize,
    capacity: usize,
    /// The task that waits for completions.
    pub(crate) reader: WakerSlot,
}

/// The number of completions from which a reader gets them with their memory.
const MIN_WITH_MEMORY: usize = 16;

impl CqState {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: Vec::new(),
            older: VecDeque::new(),
            reserved: 0,
            capacity,
            reader: WakerSlot::EMPTY,
        }
    }

    /// Returns the number of entries, free or not.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of completions.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.older.len() + self.entries.len()
    }

    /// Returns whether no completion is in the queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reserves an entry; returns false when none is free.
    pub(crate) fn reserve(&mut self) -> bool {
        self.reserve_up_to(1) == 1
    }

    /// Reserves up to `count` entries; returns how many.
    pub(crate) fn reserve_up_to(&mut self, count: usize) -> usize {
        let free = self.capacity.saturating_sub(self.reserved + self.len());
        let reserved = free.min(count);
        self.reserved += reserved;
        reserved
    }

    /// Releases reserved entries.
    pub(crate) fn unreserve(&mut self, count: usize) {
        self.reserved -= count;
    }

    /// Adds a completion, in a reserved entry.
    #[inline(always)] // on the small-message path, and an entry is large
    pub(crate) fn push(&mut self, completion: Completion) {
        self.reserved -= 1;
        self.entries.push(completion);
    }

    /// Adds completions, in reserved entries. They are built where they stay if the iterator builds
    /// them.
    #[inline(always)] // on the small-message path, and an entry is large
    pub(crate) fn extend(&mut self, completions: impl ExactSizeIterator<Item = Completion>) {
        self.reserved -= completions.len();
        self.entries.extend(completions);
    }

    /// Moves up to `max` completions out.
    pub(crate) fn drain_into(&mut self, out: &mut Vec<Completion>, max: usize) -> usize {
        let len = self.entries.len();
        if self.older.is_empty() && len <= max {
            if out.is_empty() && len >= MIN_WITH_MEMORY && 2 * len > self.entries.capacity() {
                // The reader gets the memory with the completions. This queue goes on with the
                // reader's, and expects as many completions again.
                std::mem::swap(&mut self.entries, out);
                self.entries.reserve(len);
            } else {
                out.append(&mut self.entries);
            }
            return len;
        }
        self.older.extend(self.entries.drain(..));
        let count = self.older.len().min(max);
        out.extend(self.older.drain(..count));
        count
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::buf::AnyBuf;
    use fabric_core::completion::{OpKind, Outcome, Transfer};

    use super::*;

    #[test]
    fn reads_of_any_size_return_all_entries_in_order() {
        let mut queue = CqState::new(64);
        let (mut out, mut next) = (Vec::new(), 0);
        for round in 0..200_usize {
            while queue.reserve() {
                let done = Outcome::ok(Transfer::default());
                let entry = Completion::new(next, OpKind::Send, done, AnyBuf::None);
                queue.push(entry);
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
