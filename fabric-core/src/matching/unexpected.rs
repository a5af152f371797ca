//! Unexpected messages, in arrival order.

use crate::address::FiAddr;

use super::envelope::{Envelope, EnvelopeKey, PeerKey, RecvSpec};
use super::list::{EntryKey, LinkedLists, QueueKind};
use super::posted::PostPlace;

/// The key of an unexpected message.
///
/// Valid for one insertion: once the message was taken or matched, the key finds nothing, even if
/// the same message was requeued since. Valid only with the [`Matcher`](super::Matcher) that
/// returned the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnexpectedKey(EntryKey);

/// The queue of unexpected messages.
pub(super) struct UnexpectedQueue<M> {
    lists: LinkedLists<UnexpectedEntry>,
    /// The messages, at the index of their entry in `lists`. Separate from `lists`, so that scans
    /// read only entries.
    messages: Vec<Option<(Envelope, M)>>,
}

/// The part of a message that scans read.
#[derive(Clone, Copy)]
struct UnexpectedEntry {
    key: EnvelopeKey,
    arrival: u64,
    peer: PeerKey,
}

impl<M> UnexpectedQueue<M> {
    pub(super) fn new() -> Self {
        Self {
            lists: LinkedLists::new(),
            messages: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    /// Inserts a message at the place that its arrival number gives it.
    pub(super) fn insert(&mut self, envelope: Envelope, message: M) -> UnexpectedKey {
        let (kind, arrival) = (envelope.kind(), envelope.arrival);
        let entry = UnexpectedEntry {
            key: envelope.key(),
            arrival,
            peer: envelope.peer,
        };
        let in_order = self
            .lists
            .last(kind)
            .is_none_or(|last| self.lists.get(last).arrival <= arrival);
        // A requeued message was at or near the head when it matched, so the search begins there.
        let before = if in_order {
            None
        } else {
            self.lists.search(kind, |entry| entry.arrival > arrival)
        };
        let key = match before {
            Some(index) => self.lists.insert_before(kind, index, entry),
            None => self.lists.push_back(kind, entry),
        };
        let message = Some((envelope, message));
        match self
            .messages
            .get_mut(LinkedLists::<UnexpectedEntry>::index(key))
        {
            Some(slot) => *slot = message,
            None => self.messages.push(message),
        }
        UnexpectedKey(key)
    }

    /// Returns the earliest message that this receive accepts.
    pub(super) fn peek(&self, spec: &RecvSpec) -> Option<&Envelope> {
        self.envelope(self.search(spec)?)
    }

    /// Removes and returns the earliest message that this receive accepts.
    pub(super) fn take_match(&mut self, spec: &RecvSpec) -> Option<(Envelope, M)> {
        let index = self.search(spec)?;
        self.remove(index)
    }

    pub(super) fn get(&self, key: UnexpectedKey) -> Option<&Envelope> {
        self.envelope(self.lists.find(key.0)?)
    }

    pub(super) fn get_mut(&mut self, key: UnexpectedKey) -> Option<(&Envelope, &mut M)> {
        let index = self.lists.find(key.0)?;
        self.messages[index]
            .as_mut()
            .map(|(envelope, message)| (&*envelope, message))
    }

    pub(super) fn take(&mut self, key: UnexpectedKey) -> Option<(Envelope, M)> {
        let index = self.lists.find(key.0)?;
        self.remove(index)
    }

    /// Returns the earliest message that this receive accepts and that passes the test.
    pub(super) fn find(
        &self,
        spec: &RecvSpec,
        mut test: impl FnMut(&Envelope) -> bool,
    ) -> Option<(UnexpectedKey, &Envelope)> {
        let wanted = spec.key();
        let index = self.lists.search_indexed(spec.kind(), |index, entry| {
            wanted.accepts(entry.key) && self.envelope(index).is_some_and(&mut test)
        })?;
        self.envelope(index)
            .map(|envelope| (UnexpectedKey(self.lists.key(index)), envelope))
    }

    /// As [`find`](Self::find), for a receive that is restored at this place.
    pub(super) fn find_for_place(
        &self,
        place: &PostPlace,
        mut test: impl FnMut(&Envelope) -> bool,
    ) -> Option<UnexpectedKey> {
        let wanted = place.wanted;
        let index = self.lists.search_indexed(place.kind, |index, entry| {
            wanted.accepts(entry.key) && self.envelope(index).is_some_and(&mut test)
        })?;
        Some(UnexpectedKey(self.lists.key(index)))
    }

    /// Returns the keys of all messages, in arrival order.
    pub(super) fn keys(&self) -> Vec<UnexpectedKey> {
        self.keys_where(|_| true)
    }

    /// Sets the source of the messages of these peers that have none, and returns their keys in
    /// arrival order.
    pub(super) fn assign_source(
        &mut self,
        peers: &[PeerKey],
        source: FiAddr,
    ) -> Vec<UnexpectedKey> {
        let updated =
            self.keys_where(|entry| entry.key.source.is_none() && peers.contains(&entry.peer));
        for key in &updated {
            self.set_source(LinkedLists::<UnexpectedEntry>::index(key.0), Some(source));
        }
        updated
    }

    /// Returns the keys of the messages that pass the test, in arrival order.
    fn keys_where(&self, test: impl Fn(&UnexpectedEntry) -> bool) -> Vec<UnexpectedKey> {
        let mut found = Vec::new();
        for kind in QueueKind::BOTH {
            let mut at = self.lists.first(kind);
            while let Some(index) = at {
                at = self.lists.next(index);
                let entry = self.lists.get(index);
                if test(entry) {
                    found.push((entry.arrival, UnexpectedKey(self.lists.key(index))));
                }
            }
        }
        found.sort_by_key(|(arrival, _)| *arrival);
        found.into_iter().map(|(_, key)| key).collect()
    }

    pub(super) fn holds_messages_from(&self, source: FiAddr) -> bool {
        let from = |entry: &UnexpectedEntry| entry.key.source == Some(source);
        QueueKind::BOTH
            .iter()
            .any(|&kind| self.lists.search(kind, from).is_some())
    }

    pub(super) fn clear_source(&mut self, source: FiAddr) {
        for kind in QueueKind::BOTH {
            let mut at = self.lists.first(kind);
            while let Some(index) = at {
                at = self.lists.next(index);
                if self.lists.get(index).key.source == Some(source) {
                    self.set_source(index, None);
                }
            }
        }
    }

    pub(super) fn take_all(&mut self) -> Vec<(Envelope, M)> {
        let mut taken = Vec::with_capacity(self.len());
        for kind in QueueKind::BOTH {
            while let Some(index) = self.lists.first(kind) {
                taken.extend(self.remove(index));
            }
        }
        taken.sort_by_key(|(envelope, _)| envelope.arrival);
        taken
    }

    pub(super) fn take_where(
        &mut self,
        mut test: impl FnMut(&Envelope, &M) -> bool,
    ) -> Vec<(Envelope, M)> {
        let mut taken = Vec::new();
        for kind in QueueKind::BOTH {
            let mut at = self.lists.first(kind);
            while let Some(index) = at {
                at = self.lists.next(index);
                if self.messages[index]
                    .as_ref()
                    .is_some_and(|(envelope, message)| test(envelope, message))
                {
                    taken.extend(self.remove(index));
                }
            }
        }
        taken
    }

    /// Returns the index of the earliest message that this receive accepts.
    fn search(&self, spec: &RecvSpec) -> Option<usize> {
        let wanted = spec.key();
        self.lists
            .search(spec.kind(), |entry| wanted.accepts(entry.key))
    }

    fn envelope(&self, index: usize) -> Option<&Envelope> {
        self.messages[index].as_ref().map(|(envelope, _)| envelope)
    }

    fn remove(&mut self, index: usize) -> Option<(Envelope, M)> {
        self.lists.remove(index);
        self.messages[index].take()
    }

    fn set_source(&mut self, index: usize, source: Option<FiAddr>) {
        self.lists.get_mut(index).key.source = source;
        if let Some((envelope, _)) = &mut self.messages[index] {
            envelope.source = source;
        }
    }
}
