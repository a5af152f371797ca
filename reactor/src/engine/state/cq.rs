//! Completion queues.

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
