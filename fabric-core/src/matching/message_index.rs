//! The index of a long queue of unexpected messages.
//!
//! A *view* is the set of all messages of a list, ordered by their tag under one mask, by their
//! sender if the receives that use the view ask for one, and then by arrival. One look-up in the
//! view finds the earliest message that a receive accepts. A view is made when a receive of its
//! kind searches a long queue for the first time.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::address::FiAddr;

use super::comparisons::{IndexItem, count_comparison};
use super::envelope::{PeerKey, RecvKey, TagMatch};
use super::list::{EntryKey, LinkedLists, QueueKind};
use super::message_list::MessageEntry;

/// Maximum number of views of one list for masks that ignore some bits of the tag. The program
/// chooses the masks, and hardly any program uses more than a few.
const MAX_MASKED_VIEWS: usize = 8;

/// The messages that are searched for, in one queue.
#[derive(Clone, Copy)]
pub(super) struct MessageFilter {
    tag: TagMatch,
    sender: SenderKey,
}

/// The sender of a message as an index compares it, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SenderKey(u64);

/// The views of both lists.
#[derive(Default)]
pub(super) struct MessageIndex {
    /// By [`QueueKind`].
    views: [Vec<MessageView>; 2],
    /// The largest [`MessageView::indexed_to`].
    indexed_to: u64,
}

/// All messages of a list that arrived before some message, ordered for one kind of receives.
pub(super) struct MessageView {
    ignore: u64,
    by_sender: bool,
    items: BTreeSet<IndexItem<MessageItem>>,
    /// Every message of the list with a smaller arrival number is in `items`.
    indexed_to: u64,
}

/// A message in a view. The order of the fields is the order of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MessageItem {
    /// The tag without the ignored bits.
    tag: u64,
    sender: SenderKey,
    arrival: u64,
    /// In the order of insertion if arrival numbers are equal.
    key: EntryKey,
}

impl MessageFilter {
    /// Any message.
    pub(super) const ANY: Self = Self {
        tag: TagMatch::ANY,
        sender: SenderKey::ANY,
    };

    /// The messages of this source.
    pub(super) fn of_source(source: FiAddr) -> Self {
        Self {
            tag: TagMatch::ANY,
            sender: SenderKey::of_source(source),
        }
    }

    /// The messages without a source of this peer.
    pub(super) fn of_unknown_peer(peer: PeerKey) -> Self {
        Self {
            tag: TagMatch::ANY,
            sender: SenderKey::of_peer(peer),
        }
    }

    /// The messages that a receive accepts.
    pub(super) fn of_receive(RecvKey { tag, from }: RecvKey) -> Self {
        let sender = from.map_or(SenderKey::ANY, SenderKey::of_source);
        Self { tag, sender }
    }

    /// Returns whether all messages of the list are searched for.
    pub(super) fn accepts_all(&self) -> bool {
        self.tag.ignore == u64::MAX && self.sender == SenderKey::ANY
    }

    /// Returns whether this message is searched for.
    pub(super) fn accepts(&self, entry: &MessageEntry) -> bool {
        self.tag.accepts(entry.key.tag)
            && (self.sender == SenderKey::ANY || self.sender == SenderKey::of(entry))
    }
}

impl SenderKey {
    /// Any sender.
    const ANY: Self = Self(0);

    /// Returns the key of a sender in the address vector.
    fn of_source(source: FiAddr) -> Self {
        Self(source.bits())
    }

    /// Returns the key of a sender that is not in the address vector. The lowest 16 bits are 0;
    /// those of a source are not.
    fn of_peer(peer: PeerKey) -> Self {
        Self((u64::from(peer.0) + 1) << 16)
    }

    fn of(entry: &MessageEntry) -> Self {
        let source = entry.key.source.map(Self::of_source);
        source.unwrap_or_else(|| Self::of_peer(entry.peer))
    }
}

impl MessageIndex {
    /// Returns whether a message with this arrival number is in a view.
    #[inline]
    pub(super) fn covers(&self, arrival: u64) -> bool {
        arrival < self.indexed_to
    }

    /// Adds a message to the views that cover it.
    #[cold]
    pub(super) fn add(&mut self, kind: QueueKind, entry: &MessageEntry, key: EntryKey) {
        for view in self.covering(kind, entry.arrival) {
            view.items.insert(view.item(entry, key));
        }
    }

    /// Removes a message from the views that cover it.
    pub(super) fn remove(&mut self, kind: QueueKind, entry: &MessageEntry, key: EntryKey) {
        for view in self.covering(kind, entry.arrival) {
            view.items.remove(&view.item(entry, key));
        }
    }

    fn covering(
        &mut self,
        kind: QueueKind,
        arrival: u64,
    ) -> impl Iterator<Item = &mut MessageView> {
        let views = self.views[kind as usize].iter_mut();
        views.filter(move |view| arrival < view.indexed_to)
    }

    /// Returns the view in which these messages are found, and the first message of the list that
    /// is not in the view yet; there are at most `max_unindexed`. `None` if the list has no such
    /// view and may not get another one.
    #[inline(always)] // the result is large
    pub(super) fn view(
        &mut self,
        lists: &LinkedLists<MessageEntry>,
        kind: QueueKind,
        filter: &MessageFilter,
        max_unindexed: usize,
    ) -> Option<(&MessageView, Option<usize>)> {
        let at = self.view_position(kind, filter)?;
        let view = &mut self.views[kind as usize][at];
        let unindexed = view.update(lists, kind, max_unindexed);
        self.indexed_to = self.indexed_to.max(view.indexed_to);
        Some((view, unindexed))
    }

    /// Returns the position of the view in which these messages are found, which is created if it
    /// may be.
    fn view_position(&mut self, kind: QueueKind, filter: &MessageFilter) -> Option<usize> {
        let (ignore, by_sender) = (filter.tag.ignore, filter.sender != SenderKey::ANY);
        let is_same = |view: &MessageView| view.ignore == ignore && view.by_sender == by_sender;
        let found = self.views[kind as usize].iter().position(is_same);
        found.or_else(|| self.add_view(kind, ignore, by_sender))
    }

    /// Adds an empty view if it may be added, and returns its position.
    #[cold]
    fn add_view(&mut self, kind: QueueKind, ignore: u64, by_sender: bool) -> Option<usize> {
        let views = &mut self.views[kind as usize];
        let new = MessageView {
            ignore,
            by_sender,
            items: BTreeSet::new(),
            indexed_to: 0,
        };
        let masked = views.iter().filter(|view| view.is_masked()).count();
        if new.is_masked() && masked == MAX_MASKED_VIEWS {
            return None;
        }
        views.push(new);
        Some(views.len() - 1)
    }
}

impl MessageView {
    /// Returns whether the view is for tags of which some bits are ignored, but not all.
    fn is_masked(&self) -> bool {
        self.ignore != 0 && self.ignore != u64::MAX
    }

    fn item(&self, entry: &MessageEntry, key: EntryKey) -> IndexItem<MessageItem> {
        IndexItem(MessageItem {
            tag: entry.key.tag & !self.ignore,
            sender: if self.by_sender {
                SenderKey::of(entry)
            } else {
                SenderKey::ANY
            },
            arrival: entry.arrival,
            key,
        })
    }

    /// Adds the messages at the end of the list that are not in the view, if they are more than
    /// `max`. Returns the first message that is not in the view.
    fn update(
        &mut self,
        lists: &LinkedLists<MessageEntry>,
        kind: QueueKind,
        max: usize,
    ) -> Option<usize> {
        let (mut first, mut unindexed) = (None, 0);
        let mut at = lists.last(kind);
        while let Some(index) = at
            && lists.get(index).arrival >= self.indexed_to
        {
            count_comparison();
            first = Some(index);
            unindexed += 1;
            at = lists.prev(index);
        }
        if unindexed <= max {
            return first;
        }
        let added = lists.iter_from(first);
        let items = added.map(|index| self.item(lists.get(index), lists.key(index)));
        if self.items.is_empty() {
            // Faster than one by one.
            self.items = items.collect();
        } else {
            let items: Vec<_> = items.collect();
            self.items.extend(items);
        }
        if let Some(last) = lists.last(kind) {
            self.indexed_to = lists.get(last).arrival + 1;
        }
        None
    }

    /// Iterates over the messages in the view that the filter of the view accepts, in arrival
    /// order.
    #[inline(always)] // the iterator is large
    pub(super) fn matches(&self, filter: &MessageFilter) -> impl Iterator<Item = EntryKey> {
        let (tag, sender) = (filter.tag.tag & !self.ignore, filter.sender);
        let items = self.items_from(tag, sender, 0);
        let items = items.take_while(move |item| (item.tag, item.sender) == (tag, sender));
        items.map(|item| item.key)
    }

    /// Returns the first message in a view of [any message](MessageFilter::ANY) that has a larger
    /// arrival number.
    pub(super) fn first_after(&self, arrival: u64) -> Option<EntryKey> {
        let mut items = self.items_from(0, SenderKey::ANY, arrival + 1);
        items.next().map(|item| item.key)
    }

    /// Iterates over the messages from the first one on with this tag and sender that has not
    /// arrived before.
    #[inline(always)] // the iterator is large
    fn items_from(
        &self,
        tag: u64,
        sender: SenderKey,
        arrival: u64,
    ) -> impl Iterator<Item = &MessageItem> {
        let key = EntryKey::default();
        let first = IndexItem(MessageItem {
            tag,
            sender,
            arrival,
            key,
        });
        let items = self
            .items
            .range((Bound::Included(&first), Bound::Unbounded));
        items.map(|item| &item.0)
    }
}
