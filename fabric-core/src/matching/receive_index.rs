//! The index of a long list of posted receives.
//!
//! Receives that compare the same bits of the tag, and are all directed or all from any source,
//! form a *group*. In a group, a message matches the receives of one source and one masked tag, so
//! one look-up in an ordered set finds the earliest of them. The earliest of all groups takes the
//! message.
//!
//! A receive that leaves the list stays in the index as a *stale* item until a look-up meets it or
//! the index is built anew. So the list removes entries, and matches its first one, at no cost for
//! the index. A serial number stands for one source and tag forever, so a stale item is never
//! wrong: it is valid again if its receive is restored.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::address::FiAddr;

use super::comparisons::IndexItem;
use super::envelope::{EnvelopeKey, RecvKey};

/// Maximum number of groups. The program chooses the ignored bits, and hardly any program uses more
/// than a few masks; receives beyond these groups are searched one by one.
const MAX_GROUPS: usize = 16;

/// The number of items that an index may have in addition to two for each receive. An index that
/// would get more is built anew without the stale ones.
const MAX_STALE: usize = 64;

/// The index of the receives of one list, by serial number.
#[derive(Default)]
pub(super) struct ReceiveIndex {
    groups: Vec<ReceiveGroup>,
    /// The receives that belong to no group, in posting order.
    ungrouped: BTreeSet<IndexItem<u64>>,
    /// Every queued receive with a smaller serial number is in the index.
    indexed_to: u64,
    /// Number of items, with the stale ones.
    len: usize,
}

/// The receives that ignore the same bits, all directed or all from any source.
struct ReceiveGroup {
    ignore: u64,
    directed: bool,
    items: BTreeSet<IndexItem<ReceiveItem>>,
}

/// A receive in a group. The order of the fields is the order of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ReceiveItem {
    /// The [bits](source_bits) of the source.
    from: u64,
    /// The wanted tag without the ignored bits.
    tag: u64,
    serial: u64,
}

impl ReceiveIndex {
    /// Returns whether a queued receive with this serial number is in the index.
    pub(super) fn covers(&self, serial: u64) -> bool {
        serial < self.indexed_to
    }

    /// Returns whether so many more items are too many for a list of `receives`, so that the index
    /// has to be built anew.
    pub(super) fn is_stale(&self, added: usize, receives: usize) -> bool {
        self.len + added > 2 * receives + MAX_STALE
    }

    /// Adds the receives whose serial numbers are not covered and below `end`.
    pub(super) fn extend(&mut self, receives: impl Iterator<Item = (u64, RecvKey)>, end: u64) {
        for (serial, wanted) in receives {
            self.add(serial, wanted);
        }
        self.indexed_to = end;
    }

    /// Adds a receive whose serial number is covered.
    pub(super) fn add(&mut self, serial: u64, RecvKey { tag, from }: RecvKey) {
        let directed = from.is_some();
        let is_new = match self.group(tag.ignore, directed) {
            Some(group) => group.items.insert(IndexItem(ReceiveItem {
                from: source_bits(from),
                tag: tag.tag & !tag.ignore,
                serial,
            })),
            None => self.ungrouped.insert(IndexItem(serial)),
        };
        self.len += usize::from(is_new);
    }

    /// Returns the group of such receives, which is created if there is room for another one.
    fn group(&mut self, ignore: u64, directed: bool) -> Option<&mut ReceiveGroup> {
        let is_same = |group: &ReceiveGroup| group.ignore == ignore && group.directed == directed;
        let at = match self.groups.iter().position(is_same) {
            Some(at) => at,
            None if self.groups.len() < MAX_GROUPS => {
                self.groups.push(ReceiveGroup {
                    ignore,
                    directed,
                    items: BTreeSet::new(),
                });
                self.groups.len() - 1
            }
            None => return None,
        };
        self.groups.get_mut(at)
    }

    /// Returns the earliest receive that accepts this message, if it is in the index, with its
    /// place in the list. `find` returns the place of a queued receive and what it accepts.
    pub(super) fn first(
        &mut self,
        message: EnvelopeKey,
        find: impl Fn(u64) -> Option<(usize, RecvKey)>,
    ) -> Option<usize> {
        let mut first: Option<(u64, usize)> = None;
        let source = source_bits(message.source);
        for group in &mut self.groups {
            if group.directed && message.source.is_none() {
                continue;
            }
            let mut bucket = ReceiveItem {
                from: if group.directed { source } else { 0 },
                tag: message.tag & !group.ignore,
                serial: 0,
            };
            while let Some(&IndexItem(item)) = group.items.range(IndexItem(bucket)..).next()
                && (item.from, item.tag) == (bucket.from, bucket.tag)
                && first.is_none_or(|(serial, _)| item.serial < serial)
            {
                if let Some((place, _)) = find(item.serial) {
                    first = Some((item.serial, place));
                    break;
                }
                group.items.remove(&IndexItem(item));
                self.len -= 1;
                bucket = item;
            }
        }
        self.groups.retain(|group| !group.items.is_empty());
        let mut behind = Bound::Unbounded;
        while let Some(&IndexItem(serial)) = self.ungrouped.range((behind, Bound::Unbounded)).next()
            && first.is_none_or(|(earliest, _)| serial < earliest)
        {
            match find(serial) {
                Some((place, wanted)) if wanted.accepts(message) => return Some(place),
                Some(_) => {}
                None => {
                    self.ungrouped.remove(&IndexItem(serial));
                    self.len -= 1;
                }
            }
            behind = Bound::Excluded(IndexItem(serial));
        }
        first.map(|(_, place)| place)
    }

    /// Iterates over the serial numbers of the receives that may be directed to this source, in no
    /// order: those of the source, some of them stale, and all that belong to no group.
    pub(super) fn directed_to(&self, source: FiAddr) -> impl Iterator<Item = u64> {
        let from = source_bits(Some(source));
        let first = IndexItem(ReceiveItem {
            from,
            tag: 0,
            serial: 0,
        });
        let directed = self.groups.iter().filter(|group| group.directed);
        let grouped = directed.flat_map(move |group| {
            let items = group.items.range(first..);
            items.take_while(move |item| item.0.from == from)
        });
        let grouped = grouped.map(|item| item.0.serial);
        grouped.chain(self.ungrouped.iter().map(|item| item.0))
    }
}

/// Returns a source as one integer, which is fast to compare. Without a source, 0; groups keep
/// receives from one source and from any source apart.
fn source_bits(source: Option<FiAddr>) -> u64 {
    source.map_or(0, |addr| {
        (u64::from(addr.index) << 32) | (u64::from(addr.generation) << 16) | u64::from(addr.vector)
    })
}
