//! Posted receives, in posting order.

use crate::address::FiAddr;

use super::envelope::{Envelope, RecvKey, RecvSpec};
use super::list::{EntryKey, LinkedLists, QueueKind};

/// The key of a posted receive.
///
/// Valid for one posting: once the receive has matched, was canceled or taken, the key finds
/// nothing, even if its entry in the table is reused. Valid only with the
/// [`Matcher`](super::Matcher) that returned the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostKey(EntryKey);

/// A receive's place in posting order, and the messages that the receive accepts. Kept while a
/// receive that may be restored is not in the queue.
#[derive(Clone, Copy, Debug)]
pub struct PostPlace {
    pub(super) wanted: RecvKey,
    pub(super) kind: QueueKind,
    serial: u64,
}

impl PostPlace {
    /// Returns whether the receive accepts messages of one source only.
    #[must_use]
    pub fn is_directed(&self) -> bool {
        self.wanted.from.is_some()
    }
}

/// The queue of posted receives.
pub(super) struct PostedQueue<R> {
    lists: LinkedLists<PostedEntry<R>>,
}

/// An entry of the queue. It holds the caller's id of the receive too, so that a match at the head
/// reads one entry.
#[derive(Clone, Copy)]
struct PostedEntry<R> {
    key: RecvKey,
    receive: R,
}

impl<R: Copy> PostedQueue<R> {
    pub(super) fn new() -> Self {
        Self {
            lists: LinkedLists::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    #[inline(always)] // on the fast path of small messages
    pub(super) fn push(&mut self, spec: &RecvSpec, receive: R) -> PostKey {
        PostKey(self.lists.push_back(
            spec.kind(),
            PostedEntry {
                key: spec.key(),
                receive,
            },
        ))
    }

    pub(super) fn would_match(&self, envelope: &Envelope) -> bool {
        self.search(envelope).is_some()
    }

    pub(super) fn take_match(&mut self, envelope: &Envelope) -> Option<R> {
        let index = self.search(envelope)?;
        Some(self.lists.remove(index).receive)
    }

    /// Takes the first of the untagged receives, if it accepts messages of this source.
    #[inline]
    pub(super) fn take_first(&mut self, source: Option<FiAddr>) -> Option<R> {
        let index = self.lists.first(QueueKind::Untagged)?;
        let from = self.lists.get(index).key.from;
        (from.is_none() || from == source)
            .then(|| self.lists.remove_first(index, QueueKind::Untagged).receive)
    }

    /// Returns the earliest receive that accepts this message; the receive stays queued.
    pub(super) fn find(&self, envelope: &Envelope) -> Option<(PostKey, R)> {
        let index = self.search(envelope)?;
        Some((
            PostKey(self.lists.key(index)),
            self.lists.get(index).receive,
        ))
    }

    pub(super) fn remove(&mut self, key: PostKey) -> Option<R> {
        let index = self.lists.find(key.0)?;
        Some(self.lists.remove(index).receive)
    }

    /// Returns the place of a queued receive. `None` when it is no longer queued.
    pub(super) fn place(&self, key: PostKey) -> Option<PostPlace> {
        let index = self.lists.find(key.0)?;
        Some(PostPlace {
            wanted: self.lists.get(index).key,
            kind: self.lists.kind(index),
            serial: self.lists.serial(index),
        })
    }

    /// Assigns a place to a receive that is posted now but not queued.
    pub(super) fn assign_place(&mut self, spec: &RecvSpec) -> PostPlace {
        PostPlace {
            wanted: spec.key(),
            kind: spec.kind(),
            serial: self.lists.next_serial(),
        }
    }

    /// Queues a receive again at its old place.
    pub(super) fn restore(&mut self, place: PostPlace, receive: R) -> PostKey {
        let PostPlace {
            wanted,
            kind,
            serial,
        } = place;
        let entry = PostedEntry {
            key: wanted,
            receive,
        };
        PostKey(self.lists.insert_in_order(kind, serial, entry))
    }

    pub(super) fn take_directed(&mut self, source: FiAddr) -> Vec<R> {
        self.take_where(|wanted| wanted.from == Some(source))
    }

    pub(super) fn take_all(&mut self) -> Vec<R> {
        self.take_where(|_| true)
    }

    /// Returns the index of the earliest receive that accepts this message.
    fn search(&self, envelope: &Envelope) -> Option<usize> {
        let message = envelope.key();
        self.lists
            .search(envelope.kind(), |entry| entry.key.accepts(message))
    }

    /// Removes and returns the receives that pass the test, in posting order.
    fn take_where(&mut self, test: impl Fn(&RecvKey) -> bool) -> Vec<R> {
        let mut taken = Vec::new();
        for kind in QueueKind::BOTH {
            let mut at = self.lists.first(kind);
            while let Some(index) = at {
                at = self.lists.next(index);
                if test(&self.lists.get(index).key) {
                    taken.push((self.lists.serial(index), self.lists.remove(index).receive));
                }
            }
        }
        // Each list is in posting order; the serial numbers merge both.
        taken.sort_unstable_by_key(|&(serial, _)| serial);
        taken.into_iter().map(|(_, receive)| receive).collect()
    }
}
