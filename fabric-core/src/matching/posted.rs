//! Posted receives, in posting order.

use std::fmt;

use crate::address::FiAddr;

use super::MAX_SCANNED;
use super::comparisons::count_comparison;
use super::envelope::{Envelope, EnvelopeKey, RecvKey, RecvSpec, TagMatch};
use super::list::QueueKind;
use super::receive_index::{Purpose, ReceiveIndex};

/// The key of a posted receive.
///
/// Valid for one posting: once the receive has matched, was canceled or taken, the key finds
/// nothing. Only a receive that is [restored](super::Matcher::restore) gets its key back. Valid
/// only with the [`Matcher`](super::Matcher) that returned the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostKey(u64);

impl PostKey {
    /// A key that no receive gets.
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// Returns the queue of the receive, which is the lowest bit of its serial number.
    fn kind(self) -> QueueKind {
        QueueKind::BOTH[(self.0 & 1) as usize]
    }
}

/// A receive's place in posting order, and the messages that the receive accepts. Kept while a
/// receive that may be restored is not in the queue.
#[derive(Clone, Copy, Debug)]
pub struct PostPlace {
    pub(super) wanted: RecvKey,
    pub(super) kind: QueueKind,
    key: PostKey,
}

impl PostPlace {
    /// Returns whether the receive accepts this message.
    #[must_use]
    pub fn accepts(&self, envelope: &Envelope) -> bool {
        self.kind == envelope.kind() && self.wanted.accepts(envelope.key())
    }

    /// Returns the key that the receive has when it is queued at this place.
    #[must_use]
    pub fn key(&self) -> PostKey {
        self.key
    }

    /// Returns whether the receive accepts messages of one source only.
    #[must_use]
    pub fn is_directed(&self) -> bool {
        self.wanted.from.is_some()
    }
}

/// The posted receives of an endpoint, in posting order: one list for untagged, one for tagged
/// receives.
pub struct PostedQueue<R> {
    /// By [`QueueKind`].
    lists: [PostedList<R>; 2],
    /// The next serial number, without the bit of the list.
    next_serial: u64,
}

/// Receives in posting order.
///
/// Keys are serial numbers, so the list is sorted by key. A receive that leaves the list does not
/// move the others: at the head it leaves an unused entry, in the middle a vacant one.
///
/// A message is compared with the first receive, and then with all receives of a short list. In a
/// longer list it is looked up in an index, and compared with the receives at the end of the list
/// that are not in the index yet. A search puts these into the index when they are many, so that
/// neither posting nor a match at the head takes time for the index.
struct PostedList<R> {
    entries: Vec<PostedEntry<R>>,
    /// The index of the first entry that is used.
    head: usize,
    /// The number of receives.
    len: usize,
    /// `None` until a search of the list while it is not short.
    index: Option<Box<ReceiveIndex>>,
}

/// An entry of the list. It holds the caller's id of the receive too, so that a match at the head
/// reads one entry.
#[derive(Clone, Copy)]
struct PostedEntry<R> {
    tag: TagMatch,
    key: PostKey,
    from: Option<FiAddr>,
    /// `None` in a vacant entry.
    receive: Option<R>,
}

/// The number of entries without a receive that a list keeps in addition to one for each receive.
const MAX_VACANT: usize = 32;

impl<R: Copy> PostedEntry<R> {
    fn wanted(&self) -> RecvKey {
        RecvKey {
            tag: self.tag,
            from: self.from,
        }
    }

    /// Returns whether this is a receive that accepts the message.
    #[inline]
    fn accepts(&self, message: EnvelopeKey) -> bool {
        count_comparison();
        self.tag.accepts(message.tag)
            && (self.from.is_none() || self.from == message.source)
            && self.receive.is_some()
    }
}

impl<R: Copy> PostedList<R> {
    const fn new() -> Self {
        Self {
            entries: Vec::new(),
            head: 0,
            len: 0,
            index: None,
        }
    }

    fn used(&self) -> &[PostedEntry<R>] {
        &self.entries[self.head..]
    }

    #[inline(always)] // on the fast path of small messages
    fn push(&mut self, entry: PostedEntry<R>) {
        if self.entries.len() == self.entries.capacity() {
            self.make_room();
        }
        self.entries.push(entry);
        self.len += 1;
    }

    /// Makes room for an entry: at the cost of other entries without a receive if they are many,
    /// else by taking more memory.
    #[cold]
    fn make_room(&mut self) {
        if self.entries.len() > 2 * self.len + MAX_VACANT {
            self.remove_vacant();
        } else {
            self.entries.reserve(1);
        }
    }

    #[cold]
    fn remove_vacant(&mut self) {
        self.entries.drain(..self.head);
        self.entries.retain(|entry| entry.receive.is_some());
        self.head = 0;
        if self.len <= MAX_SCANNED {
            self.index = None;
        }
    }

    /// Removes the first used entry. Returns whether there are others.
    #[inline(always)] // on the fast path of small messages
    fn remove_first(&mut self) -> bool {
        self.head += 1;
        self.len -= 1;
        let has_others = self.head < self.entries.len();
        if !has_others {
            self.entries.clear();
            self.head = 0;
        }
        has_others
    }

    /// Skips vacant entries at the head.
    fn skip_vacant(&mut self) {
        while let Some(first) = self.entries.get(self.head)
            && first.receive.is_none()
        {
            self.head += 1;
        }
        if self.head == self.entries.len() {
            self.entries.clear();
            self.head = 0;
        }
    }

    /// Returns the index of a key's entry, vacant or not, or that at which it would be inserted.
    fn index_of(&self, key: PostKey) -> Result<usize, usize> {
        index_of(self.used(), key)
            .map(|index| self.head + index)
            .map_err(|index| self.head + index)
    }

    /// Returns the index of the earliest receive that accepts this message.
    #[inline]
    fn search(&mut self, message: EnvelopeKey, purpose: Purpose) -> Option<usize> {
        let first = self.entries.get(self.head)?;
        if first.accepts(message) {
            return Some(self.head);
        }
        self.search_others(message, purpose)
    }

    /// As [`search`](Self::search), after the first entry does not accept the message.
    #[inline(never)] // inlined, it takes more instructions to save the caller's registers
    fn search_others(&mut self, message: EnvelopeKey, purpose: Purpose) -> Option<usize> {
        if self.len > MAX_SCANNED {
            return self.search_long(message, purpose);
        }
        let mut used = self.used().iter();
        let found = used.position(|entry| entry.accepts(message));
        found.map(|index| self.head + index)
    }

    /// As [`search`](Self::search), for a list that is not short.
    #[cold]
    fn search_long(&mut self, message: EnvelopeKey, purpose: Purpose) -> Option<usize> {
        let (index, used, unindexed) = self.update_index(MAX_SCANNED);
        let find = |serial| {
            let at = index_of(used, PostKey(serial)).ok()?;
            let entry = &used[at];
            entry.receive.is_some().then(|| (at, entry.wanted()))
        };
        let found = index.first(message, purpose, find).or_else(|| {
            let mut others = used[unindexed..].iter();
            others
                .position(|entry| entry.accepts(message))
                .map(|at| unindexed + at)
        });
        found.map(|at| self.head + at)
    }

    /// Adds the entries at the end of the list to the index, if they are more than `max`. Returns
    /// the index, the used entries, and the position of the first one that is not in the index.
    fn update_index(&mut self, max: usize) -> (&mut ReceiveIndex, &[PostedEntry<R>], usize) {
        let index = self.index.get_or_insert_default();
        let used = &self.entries[self.head..];
        let is_unindexed = |entry: &&PostedEntry<R>| {
            count_comparison();
            !index.covers(entry.key.0)
        };
        let mut added = used.iter().rev().take_while(is_unindexed).count();
        if added > max
            && let Some(last) = used.last()
        {
            if index.is_stale(added, self.len) {
                **index = ReceiveIndex::default();
                added = used.len();
            }
            let unindexed = used[used.len() - added..].iter();
            let queued = unindexed.filter(|entry| entry.receive.is_some());
            let items = queued.map(|entry| (entry.key.0, entry.wanted()));
            index.extend(items, last.key.0 + 1);
            added = 0;
        }
        (index, used, used.len() - added)
    }

    /// Returns the keys of the receives directed to this source.
    fn directed_to(&mut self, source: FiAddr) -> Vec<PostKey> {
        let is_directed =
            |entry: &&PostedEntry<R>| entry.from == Some(source) && entry.receive.is_some();
        if self.len <= MAX_SCANNED {
            let directed = self.used().iter().filter(is_directed);
            return directed.map(|entry| entry.key).collect();
        }
        let (index, used, _) = self.update_index(0);
        let serials = index.directed_to(source).into_iter();
        let mut keys: Vec<_> = serials.map(PostKey).collect();
        keys.retain(|key| {
            let entry = index_of(used, *key).ok().map(|at| &used[at]);
            entry.as_ref().is_some_and(is_directed)
        });
        keys
    }

    /// Takes the receive of an entry. `None` if the entry is vacant.
    fn take(&mut self, index: usize) -> Option<R> {
        let receive = self.entries.get_mut(index)?.receive.take()?;
        if index == self.head {
            self.remove_first();
            self.skip_vacant();
        } else {
            self.len -= 1;
            while self
                .used()
                .last()
                .is_some_and(|last| last.receive.is_none())
            {
                self.entries.pop();
            }
            if self.entries.len() - self.head > 2 * self.len + MAX_VACANT {
                self.remove_vacant();
            }
        }
        Some(receive)
    }

    /// Inserts an entry at its place.
    fn insert(&mut self, entry: PostedEntry<R>) {
        match self.index_of(entry.key) {
            Ok(vacant) => self.entries[vacant] = entry,
            Err(index) if index == self.head && index > 0 => {
                self.head -= 1;
                self.entries[self.head] = entry;
            }
            Err(index) => self.entries.insert(index, entry),
        }
        self.len += 1;
        if let Some(index) = &mut self.index
            && index.covers(entry.key.0)
        {
            if index.is_stale(1, self.len) {
                **index = ReceiveIndex::default();
            } else {
                index.add(entry.key.0, entry.wanted());
            }
        }
    }
}

/// Returns the position of a key's entry, vacant or not, or that at which it would be inserted.
fn index_of<R>(used: &[PostedEntry<R>], key: PostKey) -> Result<usize, usize> {
    used.binary_search_by(|entry| {
        count_comparison();
        entry.key.0.cmp(&key.0)
    })
}

impl<R: Copy> PostedQueue<R> {
    pub(super) fn new() -> Self {
        Self {
            lists: [PostedList::new(), PostedList::new()],
            next_serial: 0,
        }
    }

    /// Returns the number of posted receives, tagged and untagged. O(1).
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        let [untagged, tagged] = &self.lists;
        untagged.len + tagged.len
    }

    /// Returns all posted receives, in any order.
    pub fn iter(&self) -> impl Iterator<Item = R> {
        let used = self.lists.iter().flat_map(PostedList::used);
        used.filter_map(|entry| entry.receive)
    }

    /// Returns whether no receive is posted. O(1).
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queues a receive without considering unexpected messages: for a multi-receive, or a receive
    /// posted behind a multi-receive. [`Matcher::unexpected_for`](super::Matcher::unexpected_for)
    /// returns the messages for the receive.
    #[inline(always)] // on the fast path of small messages
    pub fn push(&mut self, spec: &RecvSpec, receive: R) -> PostKey {
        let (kind, RecvKey { tag, from }) = (spec.kind(), spec.key());
        let key = self.next_key(kind);
        self.lists[kind as usize].push(PostedEntry {
            tag,
            key,
            from,
            receive: Some(receive),
        });
        key
    }

    /// Returns a number that grows with each receive that is pushed.
    #[inline]
    pub(crate) fn serial(&self) -> u64 {
        self.next_serial
    }

    #[inline]
    fn next_key(&mut self, kind: QueueKind) -> PostKey {
        let serial = self.next_serial;
        self.next_serial += 2;
        PostKey(serial | kind as u64)
    }

    /// Returns whether [`take_match`](Self::take_match) would find a receive, without taking
    /// it. Same cost.
    #[must_use]
    pub fn would_match(&mut self, envelope: &Envelope) -> bool {
        self.lists[envelope.kind() as usize]
            .search(envelope.key(), Purpose::Find)
            .is_some()
    }

    /// Takes the earliest posted receive that accepts an arriving message.
    ///
    /// `None` changes nothing; the caller may then
    /// [queue](super::UnexpectedQueue::insert) the message. Unexpected messages are not considered.
    /// O(1) if the first receive matches, else logarithmic in the number of receives, amortized.
    #[must_use = "the receive was removed from the queue"]
    pub fn take_match(&mut self, envelope: &Envelope) -> Option<R> {
        let list = &mut self.lists[envelope.kind() as usize];
        if list.len == 0 {
            return None;
        }
        let index = list.search(envelope.key(), Purpose::Take)?;
        list.take(index)
    }

    /// As [`take_match`](Self::take_match), for an untagged message of this source. Compares
    /// the first receive only: after `None` another receive may match. O(1).
    #[inline(always)] // on the fast path of small messages
    pub fn peek_first(&mut self, source: Option<FiAddr>) -> Option<R> {
        let list = &self.lists[QueueKind::Untagged as usize];
        let first = list.entries.get(list.head)?;
        let Some(receive) = first.receive else {
            return self.peek_first_behind_vacant(source);
        };
        if first.from.is_some() && first.from != source {
            return None;
        }
        Some(receive)
    }

    /// Returns the first untagged receive, and its source, unless vacant entries are
    /// in front of it. O(1).
    #[must_use]
    #[inline]
    pub fn first_untagged(&self) -> Option<(R, Option<FiAddr>)> {
        let list = &self.lists[QueueKind::Untagged as usize];
        let first = list.entries.get(list.head)?;
        Some((first.receive?, first.from))
    }

    /// Returns the first tagged receive, and the messages that it accepts, unless vacant entries
    /// are in front of it. O(1).
    #[must_use]
    pub fn first_tagged(&self) -> Option<(R, RecvSpec)> {
        let list = &self.lists[QueueKind::Tagged as usize];
        let first = list.entries.get(list.head)?;
        let spec = RecvSpec {
            from: first.from,
            tag: Some(first.tag),
        };
        Some((first.receive?, spec))
    }

    /// Takes the receive that [`first_tagged`](Self::first_tagged) has returned. O(1).
    pub fn take_first_tagged(&mut self) {
        self.lists[QueueKind::Tagged as usize].remove_first();
    }

    #[cold]
    fn peek_first_behind_vacant(&mut self, source: Option<FiAddr>) -> Option<R> {
        self.lists[QueueKind::Untagged as usize].skip_vacant();
        self.peek_first(source)
    }

    /// Takes the receive that [`peek_first`](Self::peek_first) has returned. Returns whether other
    /// untagged receives are queued. O(1).
    #[inline(always)] // on the fast path of small messages
    pub fn take_first(&mut self) -> bool {
        self.lists[QueueKind::Untagged as usize].remove_first()
    }

    /// Returns the receive that [`take_match`](Self::take_match) would take; it stays posted.
    /// Same cost.
    #[must_use]
    pub fn find(&mut self, envelope: &Envelope) -> Option<(PostKey, R)> {
        let list = &mut self.lists[envelope.kind() as usize];
        let index = list.search(envelope.key(), Purpose::Find)?;
        let entry = list.entries.get(index)?;
        Some((entry.key, entry.receive?))
    }

    /// Removes a posted receive. `None` when it is no longer queued: matched, canceled or taken.
    /// Logarithmic, amortized.
    pub fn remove(&mut self, key: PostKey) -> Option<R> {
        let list = &mut self.lists[key.kind() as usize];
        let index = list.index_of(key).ok()?;
        list.take(index)
    }

    /// Returns the place in posting order of a queued receive. `None` when it is no longer queued.
    /// Logarithmic.
    #[must_use]
    pub fn place(&self, key: PostKey) -> Option<PostPlace> {
        let list = &self.lists[key.kind() as usize];
        let entry = list.entries.get(list.index_of(key).ok()?)?;
        entry.receive.map(|_| PostPlace {
            wanted: entry.wanted(),
            kind: key.kind(),
            key,
        })
    }

    /// Assigns a place in posting order to a receive that is posted now and has a message already:
    /// behind all receives posted before, in front of all posted later. O(1).
    pub fn assign_place(&mut self, spec: &RecvSpec) -> PostPlace {
        PostPlace {
            wanted: spec.key(),
            kind: spec.kind(),
            key: self.next_key(spec.kind()),
        }
    }

    /// Queues a receive again at its old place.
    pub(super) fn restore(&mut self, place: PostPlace, receive: R) {
        let PostPlace { wanted, kind, key } = place;
        self.lists[kind as usize].insert(PostedEntry {
            tag: wanted.tag,
            key,
            from: wanted.from,
            receive: Some(receive),
        });
    }

    /// Removes and returns every posted receive that is directed to this source, in posting order,
    /// after the peer has died or was removed. Reads the receives of the source only; logarithmic
    /// for each of them, amortized.
    pub fn take_directed(&mut self, source: FiAddr) -> Vec<R> {
        let mut keys = Vec::new();
        for list in &mut self.lists {
            keys.append(&mut list.directed_to(source));
        }
        keys.sort_unstable_by_key(|key| key.0);
        keys.into_iter()
            .filter_map(|key| self.remove(key))
            .collect()
    }

    /// Removes and returns all posted receives, in posting order, tagged and untagged.
    pub fn take_all(&mut self) -> Vec<R> {
        let mut taken = Vec::with_capacity(self.len());
        for list in &mut self.lists {
            let queued = list
                .used()
                .iter()
                .filter_map(|entry| Some((entry.key.0, entry.receive?)));
            taken.extend(queued);
            *list = PostedList::new();
        }
        // Each list is in posting order; the serial numbers merge both.
        taken.sort_unstable_by_key(|&(serial, _)| serial);
        taken.into_iter().map(|(_, receive)| receive).collect()
    }
}

impl<R> fmt::Debug for PostedQueue<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [untagged, tagged] = &self.lists;
        write!(f, "PostedQueue({} receives)", untagged.len + tagged.len)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::super::PeerKey;
    use super::*;

    /// Receives with ever new tags come and go behind others.
    #[test]
    fn index_has_a_bounded_number_of_items() {
        const KEPT: usize = 100;
        const ADDED: usize = 20;
        let mut queue = PostedQueue::new();
        let mut message = Envelope {
            peer: PeerKey(0),
            source: None,
            tag: None,
            len: 0,
            data: None,
            arrival: 0,
            ack: None,
        };
        let mut push = |queue: &mut PostedQueue<u64>, tag: u64| {
            let source = FiAddr::new(tag as u32, 0, NonZeroU16::MIN);
            let from = tag.is_multiple_of(3).then_some(source);
            // The masks are more than the groups of an index.
            let ignore = (tag / 500 % 40) << 40;
            let wanted = Some(TagMatch { tag, ignore });
            let key = queue.push(&RecvSpec { from, tag: wanted }, tag);
            (message.source, message.tag) = (from, Some(tag));
            (key, message.clone())
        };
        for tag in 0..KEPT as u64 {
            push(&mut queue, 1 << 50 | tag);
        }
        let mut most = 0;
        for first in (0..20_000).step_by(ADDED) {
            let tags = first..first + ADDED as u64;
            let added: Vec<_> = tags.map(|tag| push(&mut queue, tag)).collect();
            for (key, message) in added.into_iter().rev() {
                assert!(queue.would_match(&message));
                let taken = if first.is_multiple_of(40) {
                    queue.take_match(&message)
                } else {
                    queue.remove(key)
                };
                assert_eq!(taken, message.tag);
            }
            let index = queue.lists[QueueKind::Tagged as usize].index.as_ref();
            let items = index.map_or(0, |index| index.count());
            assert!(items <= 2 * (KEPT + ADDED) + 64, "{items} items");
            most = most.max(items);
        }
        assert!(most > KEPT + 2 * ADDED, "{most} items");
    }
}
