//! Unexpected messages, in arrival order.

use std::fmt;

use crate::address::FiAddr;

use super::envelope::{Envelope, PeerKey, RecvKey, RecvSpec};
use super::list::{EntryKey, QueueKind};
use super::message_list::{MessageEntry, MessageList};
use super::posted::PostPlace;

/// The key of an unexpected message.
///
/// Valid for one insertion: once the message was taken or matched, the key finds nothing, even if
/// the same message was requeued since. Valid only with the [`Matcher`](super::Matcher) that
/// returned the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnexpectedKey(EntryKey);

/// An empty queue keeps its tables if they have at most this number of entries. Longer ones are
/// freed, so that memory for the messages of one burst is returned.
pub(super) const MAX_KEPT: usize = 4096;

/// The unexpected messages of an endpoint, in arrival order.
pub struct UnexpectedQueue<M> {
    list: MessageList,
    /// The messages, at the index of their entry in `list`. Separate from `list`, so that searches
    /// read only entries.
    messages: Vec<Option<(Envelope, M)>>,
}

impl<M> UnexpectedQueue<M> {
    pub(crate) fn new() -> Self {
        Self {
            list: MessageList::new(),
            messages: Vec::new(),
        }
    }

    /// Returns the number of unexpected messages, tagged and untagged. O(1).
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.messages.capacity()
    }

    /// Returns whether no message is queued. O(1).
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queues a message that no receive accepted, at the place that its `arrival` number gives it.
    ///
    /// A new message goes to the end, O(1). A requeued one with an older number goes to its old
    /// place: O(1) for the oldest, else logarithmic, amortized. Among equal numbers the one queued
    /// first is first. Posted receives are not considered: call
    /// [`PostedQueue::take_match`](super::PostedQueue::take_match) before. The envelope's source is
    /// not checked: update the source of a requeued message before this call.
    pub fn insert(&mut self, envelope: Envelope, message: M) -> UnexpectedKey {
        let entry = MessageEntry {
            key: envelope.key(),
            arrival: envelope.arrival,
            peer: envelope.peer,
        };
        let key = self.list.insert(envelope.kind(), entry);
        let message = Some((envelope, message));
        match self.messages.get_mut(key.index()) {
            Some(slot) => *slot = message,
            None => self.messages.push(message),
        }
        UnexpectedKey(key)
    }

    /// Returns the message that [`Matcher::post`](super::Matcher::post) would take for this
    /// receive; the message stays queued. Same cost.
    #[doc(alias = "FI_PEEK")]
    #[must_use]
    pub fn peek(&mut self, spec: &RecvSpec) -> Option<&Envelope> {
        let index = self.search(spec)?;
        envelope_at(&self.messages, index)
    }

    /// Removes and returns the earliest message that this receive accepts.
    pub(super) fn take_match(&mut self, spec: &RecvSpec) -> Option<(Envelope, M)> {
        let index = self.search(spec)?;
        self.remove(index)
    }

    /// Returns the envelope of an unexpected message. `None` when it is no longer queued. O(1).
    #[must_use]
    pub fn get(&self, key: UnexpectedKey) -> Option<&Envelope> {
        envelope_at(&self.messages, self.list.find(key.0)?)
    }

    /// Returns an unexpected message for modification while it stays queued. `None` when it is no
    /// longer queued. O(1).
    pub fn get_mut(&mut self, key: UnexpectedKey) -> Option<(&Envelope, &mut M)> {
        let index = self.list.find(key.0)?;
        self.messages[index]
            .as_mut()
            .map(|(envelope, message)| (&*envelope, message))
    }

    /// Removes and returns an unexpected message. `None` when it is no longer queued. O(1), or
    /// logarithmic in a long queue.
    pub fn take(&mut self, key: UnexpectedKey) -> Option<(Envelope, M)> {
        let index = self.list.find(key.0)?;
        self.remove(index)
    }

    /// Returns the earliest message that this receive accepts and that passes the test.
    pub(crate) fn find(
        &mut self,
        spec: &RecvSpec,
        test: impl FnMut(&Envelope) -> bool,
    ) -> Option<(UnexpectedKey, &Envelope)> {
        let key = self.find_key(spec.kind(), spec.key(), test)?;
        self.get(key).map(|envelope| (key, envelope))
    }

    /// As [`find`](Self::find), for a receive that is restored at this place.
    pub(crate) fn find_for_place(
        &mut self,
        place: &PostPlace,
        test: impl FnMut(&Envelope) -> bool,
    ) -> Option<UnexpectedKey> {
        self.find_key(place.kind, place.wanted, test)
    }

    fn find_key(
        &mut self,
        kind: QueueKind,
        wanted: RecvKey,
        mut test: impl FnMut(&Envelope) -> bool,
    ) -> Option<UnexpectedKey> {
        let messages = &self.messages;
        let test = |index| envelope_at(messages, index).is_some_and(&mut test);
        let index = self.list.search(kind, wanted, test)?;
        Some(UnexpectedKey(self.list.key(index)))
    }

    /// Returns the keys of all unexpected messages, in arrival order. Reads all of them.
    #[must_use]
    pub fn keys(&self) -> Vec<UnexpectedKey> {
        let keys = self.list.keys().into_iter();
        keys.map(UnexpectedKey).collect()
    }

    /// Sets the source of all unexpected messages without a source from the peer that has these
    /// keys, after the peer's address was inserted. Returns the keys of the messages, in arrival
    /// order: each is to be offered to the posted receives.
    ///
    /// Messages that have a source keep it. Reads the messages of the peer only; logarithmic for
    /// each of them, amortized.
    #[must_use = "posted receives may accept these messages"]
    pub fn assign_source(&mut self, peers: &[PeerKey], source: FiAddr) -> Vec<UnexpectedKey> {
        let keys = self.list.assign_source(peers, source);
        self.set_source(&keys, Some(source));
        keys.into_iter().map(UnexpectedKey).collect()
    }

    /// Clears the source of unexpected messages after an address was removed: the sender of the
    /// messages is unknown again.
    ///
    /// The messages stay queued, for receives from any source: removing an address does not stop
    /// its traffic (`fi_av(3)`). Posted receives are not changed; see
    /// [`PostedQueue::take_directed`](super::PostedQueue::take_directed). Reads the messages of the
    /// source only; logarithmic for each of them, amortized.
    pub fn clear_source(&mut self, source: FiAddr) {
        let keys = self.list.clear_source(source);
        self.set_source(&keys, None);
    }

    /// Returns whether an unexpected message has this source. Logarithmic, amortized.
    #[must_use]
    pub fn holds_messages_from(&mut self, source: FiAddr) -> bool {
        self.list.has_source(source)
    }

    /// Removes and returns all unexpected messages, in arrival order, tagged and untagged.
    pub fn take_all(&mut self) -> Vec<(Envelope, M)> {
        let keys = self.list.take_all().into_iter();
        let taken = keys.filter_map(|key| self.messages[key.index()].take());
        let taken = taken.collect();
        if self.messages.len() > MAX_KEPT {
            self.free_unused_tables();
        }
        taken
    }

    /// Removes and returns every unexpected message that passes the test, tagged and untagged.
    /// Reads all of them.
    pub fn take_where(
        &mut self,
        mut test: impl FnMut(&Envelope, &M) -> bool,
    ) -> Vec<(Envelope, M)> {
        let mut taken = Vec::new();
        for key in self.list.keys() {
            let index = key.index();
            if self.messages[index]
                .as_ref()
                .is_some_and(|(envelope, message)| test(envelope, message))
            {
                taken.extend(self.remove(index));
            }
        }
        taken
    }

    /// Returns the index of the earliest message that this receive accepts.
    #[inline]
    fn search(&mut self, spec: &RecvSpec) -> Option<usize> {
        self.list.search(spec.kind(), spec.key(), |_| true)
    }

    fn remove(&mut self, index: usize) -> Option<(Envelope, M)> {
        self.list.remove(index);
        if self.messages.len() > MAX_KEPT {
            return self.remove_from_long_table(index);
        }
        self.messages[index].take()
    }

    /// Removes a message from its table, and frees the tables if the queue is empty.
    #[cold]
    fn remove_from_long_table(&mut self, index: usize) -> Option<(Envelope, M)> {
        let message = self.messages[index].take();
        self.free_unused_tables();
        message
    }

    fn free_unused_tables(&mut self) {
        if self.list.len() == 0 {
            self.messages = Vec::new();
            self.list.free_table();
        }
    }

    fn set_source(&mut self, keys: &[EntryKey], source: Option<FiAddr>) {
        for key in keys {
            if let Some((envelope, _)) = &mut self.messages[key.index()] {
                envelope.source = source;
            }
        }
    }
}

impl<M> fmt::Debug for UnexpectedQueue<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnexpectedQueue({} messages)", self.list.len())
    }
}

fn envelope_at<M>(messages: &[Option<(Envelope, M)>], index: usize) -> Option<&Envelope> {
    messages[index].as_ref().map(|(envelope, _)| envelope)
}
