//! Unexpected messages, in arrival order.

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

/// The queue of unexpected messages.
pub(super) struct UnexpectedQueue<M> {
    list: MessageList,
    /// The messages, at the index of their entry in `list`. Separate from `list`, so that searches
    /// read only entries.
    messages: Vec<Option<(Envelope, M)>>,
}

impl<M> UnexpectedQueue<M> {
    pub(super) fn new() -> Self {
        Self {
            list: MessageList::new(),
            messages: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Inserts a message at the place that its arrival number gives it.
    pub(super) fn insert(&mut self, envelope: Envelope, message: M) -> UnexpectedKey {
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

    /// Returns the earliest message that this receive accepts.
    pub(super) fn peek(&mut self, spec: &RecvSpec) -> Option<&Envelope> {
        let index = self.search(spec)?;
        envelope_at(&self.messages, index)
    }

    /// Removes and returns the earliest message that this receive accepts.
    pub(super) fn take_match(&mut self, spec: &RecvSpec) -> Option<(Envelope, M)> {
        let index = self.search(spec)?;
        self.remove(index)
    }

    pub(super) fn get(&self, key: UnexpectedKey) -> Option<&Envelope> {
        envelope_at(&self.messages, self.list.find(key.0)?)
    }

    pub(super) fn get_mut(&mut self, key: UnexpectedKey) -> Option<(&Envelope, &mut M)> {
        let index = self.list.find(key.0)?;
        self.messages[index]
            .as_mut()
            .map(|(envelope, message)| (&*envelope, message))
    }

    pub(super) fn take(&mut self, key: UnexpectedKey) -> Option<(Envelope, M)> {
        let index = self.list.find(key.0)?;
        self.remove(index)
    }

    /// Returns the earliest message that this receive accepts and that passes the test.
    pub(super) fn find(
        &mut self,
        spec: &RecvSpec,
        test: impl FnMut(&Envelope) -> bool,
    ) -> Option<(UnexpectedKey, &Envelope)> {
        let key = self.find_key(spec.kind(), spec.key(), test)?;
        self.get(key).map(|envelope| (key, envelope))
    }

    /// As [`find`](Self::find), for a receive that is restored at this place.
    pub(super) fn find_for_place(
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

    /// Returns the keys of all messages, in arrival order.
    pub(super) fn keys(&self) -> Vec<UnexpectedKey> {
        let keys = self.list.keys().into_iter();
        keys.map(UnexpectedKey).collect()
    }

    /// Sets the source of the messages of these peers that have none, and returns their keys in
    /// arrival order.
    pub(super) fn assign_source(
        &mut self,
        peers: &[PeerKey],
        source: FiAddr,
    ) -> Vec<UnexpectedKey> {
        let keys = self.list.assign_source(peers, source);
        self.set_source(&keys, Some(source));
        keys.into_iter().map(UnexpectedKey).collect()
    }

    pub(super) fn clear_source(&mut self, source: FiAddr) {
        let keys = self.list.clear_source(source);
        self.set_source(&keys, None);
    }

    pub(super) fn holds_messages_from(&mut self, source: FiAddr) -> bool {
        self.list.has_source(source)
    }

    pub(super) fn take_all(&mut self) -> Vec<(Envelope, M)> {
        let keys = self.list.take_all().into_iter();
        keys.filter_map(|key| self.messages[key.index()].take())
            .collect()
    }

    /// Removes and returns the messages that pass the test, in arrival order.
    pub(super) fn take_where(
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
        self.messages[index].take()
    }

    fn set_source(&mut self, keys: &[EntryKey], source: Option<FiAddr>) {
        for key in keys {
            if let Some((envelope, _)) = &mut self.messages[key.index()] {
                envelope.source = source;
            }
        }
    }
}

fn envelope_at<M>(messages: &[Option<(Envelope, M)>], index: usize) -> Option<&Envelope> {
    messages[index].as_ref().map(|(envelope, _)| envelope)
}
