//! The list of unexpected messages: what matching compares of each, in arrival order.
//!
//! A receive is compared with the first message, and then with all messages of a short queue. In a
//! longer queue it is looked up in the index, and compared with the messages at the end of the list
//! that are not in the index yet. A search puts these into the index when they are many, so that a
//! message that the first receive takes costs no time for the index.

use crate::address::FiAddr;

use super::MAX_SCANNED;
use super::comparisons::count_comparison;
use super::envelope::{EnvelopeKey, PeerKey, RecvKey};
use super::list::{EntryKey, LinkedLists, QueueKind};
use super::message_index::{MessageFilter, MessageIndex};

/// A queue that has become as short has no index.
const MAX_UNINDEXED: usize = MAX_SCANNED / 2;

/// The messages of both queues.
pub(super) struct MessageList {
    lists: LinkedLists<MessageEntry>,
    index: MessageIndex,
}

/// The part of a message that searches read.
#[derive(Clone, Copy)]
pub(super) struct MessageEntry {
    pub(super) key: EnvelopeKey,
    pub(super) arrival: u64,
    pub(super) peer: PeerKey,
}

impl MessageList {
    pub(super) fn new() -> Self {
        Self {
            lists: LinkedLists::new(),
            index: MessageIndex::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    /// Inserts a message at the place that its arrival number gives it. The index of the returned
    /// key is the lowest unused one, or that of a removed message.
    #[inline]
    pub(super) fn insert(&mut self, kind: QueueKind, entry: MessageEntry) -> EntryKey {
        let arrival = entry.arrival;
        let last = self.lists.last(kind);
        let in_order = last.is_none_or(|last| self.lists.get(last).arrival <= arrival);
        let next = if in_order {
            None
        } else {
            self.first_after(kind, arrival)
        };
        let key = match next {
            Some(index) => self.lists.insert_before(kind, index, entry),
            None => self.lists.push_back(kind, entry),
        };
        if self.index.covers(arrival) {
            self.index.add(kind, &entry, key);
        }
        key
    }

    /// Frees the table of an empty list.
    pub(super) fn free_table(&mut self) {
        self.lists.free_table();
    }

    /// Removes the message at `index`.
    #[inline]
    pub(super) fn remove(&mut self, index: usize) {
        if self.index.covers(self.lists.get(index).arrival) {
            self.remove_from_index(index);
        }
        self.lists.remove(index);
    }

    #[cold]
    fn remove_from_index(&mut self, index: usize) {
        if self.lists.len() <= MAX_UNINDEXED {
            self.index = MessageIndex::default();
        } else {
            let (kind, key) = (self.lists.kind(index), self.lists.key(index));
            self.index.remove(kind, self.lists.get(index), key);
        }
    }

    /// Returns the index of the message with this key, unless the message was removed.
    pub(super) fn find(&self, key: EntryKey) -> Option<usize> {
        self.lists.find(key)
    }

    /// Returns the key of the message at `index`.
    pub(super) fn key(&self, index: usize) -> EntryKey {
        self.lists.key(index)
    }

    /// Returns the index of the earliest message that this receive accepts and that passes the
    /// test, which gets the index of the message.
    #[inline]
    pub(super) fn search(
        &mut self,
        kind: QueueKind,
        wanted: RecvKey,
        mut test: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let first = self.lists.first(kind)?;
        count_comparison();
        if wanted.accepts(self.lists.get(first).key) && test(first) {
            return Some(first);
        }
        self.search_others(kind, wanted, test)
    }

    /// As [`search`](Self::search), after the first message does not match.
    #[inline(never)] // inlined, it takes more instructions to save the caller's registers
    fn search_others(
        &mut self,
        kind: QueueKind,
        wanted: RecvKey,
        mut test: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let lists = &self.lists;
        if lists.len() > MAX_SCANNED {
            return self.search_long(kind, &MessageFilter::of_receive(wanted), test);
        }
        let others = lists.first(kind).and_then(|first| lists.next(first));
        lists.iter_from(others).find(|&index| {
            count_comparison();
            wanted.accepts(lists.get(index).key) && test(index)
        })
    }

    /// Returns the index of the earliest message that passes the filter and the test.
    #[cold]
    fn search_long(
        &mut self,
        kind: QueueKind,
        filter: &MessageFilter,
        mut test: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let (lists, mut others) = (&self.lists, self.lists.first(kind));
        // A filter that accepts all messages needs no look-up.
        if lists.len() > MAX_SCANNED
            && !filter.accepts_all()
            && let Some((view, unindexed)) = self.index.view(lists, kind, filter, MAX_SCANNED)
        {
            let mut matches = view.matches(filter).filter_map(|key| lists.find(key));
            if let Some(found) = matches.find(|&index| test(index)) {
                return Some(found);
            }
            others = unindexed;
        }
        lists.iter_from(others).find(|&index| {
            count_comparison();
            filter.accepts(lists.get(index)) && test(index)
        })
    }

    /// Returns the first message of a list with a larger arrival number. A requeued message was
    /// often at or near the head when it matched, so the search begins there.
    #[cold]
    fn first_after(&mut self, kind: QueueKind, arrival: u64) -> Option<usize> {
        let lists = &self.lists;
        let is_after = |&index: &usize| {
            count_comparison();
            lists.get(index).arrival > arrival
        };
        let mut others = lists.first(kind);
        if others.is_none_or(|first| is_after(&first)) {
            return others;
        }
        if lists.len() > MAX_SCANNED
            && let Some((view, unindexed)) =
                self.index
                    .view(lists, kind, &MessageFilter::ANY, MAX_SCANNED)
        {
            if let Some(key) = view.first_after(arrival) {
                return lists.find(key);
            }
            others = unindexed;
        }
        lists.iter_from(others).find(is_after)
    }

    /// Returns the keys of all messages, in arrival order.
    pub(super) fn keys(&self) -> Vec<EntryKey> {
        let mut indices = Vec::with_capacity(self.len());
        for kind in QueueKind::BOTH {
            indices.extend(self.lists.iter_from(self.lists.first(kind)));
        }
        self.keys_in_order(indices)
    }

    /// Removes all messages and returns their keys, in arrival order.
    pub(super) fn take_all(&mut self) -> Vec<EntryKey> {
        let keys = self.keys();
        self.index = MessageIndex::default();
        for key in &keys {
            self.lists.remove(key.index());
        }
        keys
    }

    /// Returns whether a message has this source.
    pub(super) fn has_source(&mut self, source: FiAddr) -> bool {
        let filter = MessageFilter::of_source(source);
        QueueKind::BOTH
            .iter()
            .any(|&kind| self.search_long(kind, &filter, |_| true).is_some())
    }

    /// Clears the source of the messages that have this one. Returns their keys, in arrival order.
    pub(super) fn clear_source(&mut self, source: FiAddr) -> Vec<EntryKey> {
        let keys = self.keys_of(&[MessageFilter::of_source(source)]);
        self.set_source(&keys, None);
        keys
    }

    /// Sets the source of the messages of these peers that have none. Returns their keys, in
    /// arrival order.
    pub(super) fn assign_source(&mut self, peers: &[PeerKey], source: FiAddr) -> Vec<EntryKey> {
        let mut peers = peers.to_vec();
        peers.sort_unstable();
        peers.dedup();
        let filters = peers.into_iter().map(MessageFilter::of_unknown_peer);
        let keys = self.keys_of(&filters.collect::<Vec<_>>());
        self.set_source(&keys, Some(source));
        keys
    }

    /// Returns the keys of the messages of both lists that pass one of the filters, which exclude
    /// each other, in arrival order.
    fn keys_of(&mut self, filters: &[MessageFilter]) -> Vec<EntryKey> {
        let mut indices = Vec::new();
        for filter in filters {
            for kind in QueueKind::BOTH {
                self.search_long(kind, filter, |index| {
                    indices.push(index);
                    false
                });
            }
        }
        self.keys_in_order(indices)
    }

    /// Returns the keys of these messages, in arrival order.
    fn keys_in_order(&self, indices: Vec<usize>) -> Vec<EntryKey> {
        let with_arrival = |index| (self.lists.get(index).arrival, self.lists.key(index));
        let mut keys: Vec<_> = indices.into_iter().map(with_arrival).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }

    fn set_source(&mut self, keys: &[EntryKey], source: Option<FiAddr>) {
        for &key in keys {
            let Some(index) = self.lists.find(key) else {
                continue;
            };
            let kind = self.lists.kind(index);
            let entry = self.lists.get_mut(index);
            self.index.remove(kind, entry, key);
            entry.key.source = source;
            self.index.add(kind, entry, key);
        }
    }
}
