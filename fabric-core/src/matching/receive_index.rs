//! The index of a long list of posted receives.
//!
//! Receives that compare the same bits of the tag, and are all directed or all from any source,
//! form a *group*. In a group, a message matches the receives of one source and one masked tag: a
//! *bucket*, which one look-up finds. The earliest receive of all these buckets takes the message.
//!
//! A receive that leaves the list stays in the index as a *stale* item until a look-up meets it or
//! the index is built anew. So the list removes entries, and matches its first one, at no cost for
//! the index. A serial number stands for one source and tag forever, so a stale item is never
//! wrong: it is valid again if its receive is restored. An empty bucket stays too, for the next
//! receive with this tag.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
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

/// What a search is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The receive that is found stays in the list.
    Find,
    /// The caller takes the receive from the list, and the search removes it from the index.
    Take,
}

/// The index of the receives of one list, by serial number.
#[derive(Default)]
pub(super) struct ReceiveIndex {
    groups: Vec<ReceiveGroup>,
    /// The receives that belong to no group, in posting order.
    ungrouped: BTreeSet<IndexItem<u64>>,
    /// Every queued receive with a smaller serial number is in the index.
    indexed_to: u64,
    /// Number of items, with the stale ones and the empty buckets.
    len: usize,
}

/// The receives that ignore the same bits, all directed or all from any source.
struct ReceiveGroup {
    ignore: u64,
    buckets: HashMap<IndexItem<BucketKey>, Bucket, KeyHash>,
    /// The keys of the buckets, if the receives are directed.
    directed: Option<BTreeSet<IndexItem<BucketKey>>>,
}

/// What the receives of a bucket accept. The order of the fields is the order of the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct BucketKey {
    /// The [bits](source_bits) of the source; 0 for any source.
    from: u64,
    /// The wanted tag without the ignored bits.
    tag: u64,
}

/// The serial numbers of receives that accept the same messages.
struct Bucket {
    /// The lowest one, or `EMPTY`.
    first: u64,
    others: BTreeSet<IndexItem<u64>>,
}

/// No receive has this serial number.
const EMPTY: u64 = u64::MAX;

impl Bucket {
    /// Creates the bucket of one receive.
    fn of(serial: u64) -> Self {
        let others = BTreeSet::new();
        Self {
            first: serial,
            others,
        }
    }

    /// Adds a receive. Returns whether the index has an item more.
    fn insert(&mut self, serial: u64) -> bool {
        let later = self.first.max(serial);
        self.first = self.first.min(serial);
        later != EMPTY && later != self.first && self.others.insert(IndexItem(later))
    }

    /// Removes the earliest receive. Returns whether the index has an item less: an empty bucket is
    /// an item.
    fn remove_first(&mut self) -> bool {
        let next = self.others.pop_first();
        self.first = next.map_or(EMPTY, |item| item.0);
        next.is_some()
    }
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
            Some(group) => group.add(serial, source_bits(from), tag.tag),
            None => self.ungrouped.insert(IndexItem(serial)),
        };
        self.len += usize::from(is_new);
    }

    /// Returns the group of such receives, which is created if there is room for another one.
    fn group(&mut self, ignore: u64, directed: bool) -> Option<&mut ReceiveGroup> {
        let is_same =
            |group: &ReceiveGroup| group.ignore == ignore && group.directed.is_some() == directed;
        let at = match self.groups.iter().position(is_same) {
            Some(at) => at,
            None if self.groups.len() < MAX_GROUPS => {
                self.groups.push(ReceiveGroup {
                    ignore,
                    buckets: HashMap::default(),
                    directed: directed.then(BTreeSet::new),
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
        purpose: Purpose,
        find: impl Fn(u64) -> Option<(usize, RecvKey)>,
    ) -> Option<usize> {
        let mut first: Option<(usize, &mut Bucket)> = None;
        let source = source_bits(message.source);
        for group in &mut self.groups {
            let from = match group.directed {
                None => 0,
                Some(_) if message.source.is_none() => continue,
                Some(_) => source,
            };
            let tag = message.tag & !group.ignore;
            let Some(bucket) = group.buckets.get_mut(&IndexItem(BucketKey { from, tag })) else {
                continue;
            };
            let earliest = first.as_ref().map_or(EMPTY, |(_, bucket)| bucket.first);
            while bucket.first < earliest {
                if let Some((place, _)) = find(bucket.first) {
                    first = Some((place, bucket));
                    break;
                }
                self.len -= usize::from(bucket.remove_first());
            }
        }
        let earliest = first.as_ref().map_or(EMPTY, |(_, bucket)| bucket.first);
        let mut behind = Bound::Unbounded;
        while let Some(&IndexItem(serial)) = self.ungrouped.range((behind, Bound::Unbounded)).next()
            && serial < earliest
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
        let (place, bucket) = first?;
        if purpose == Purpose::Take {
            self.len -= usize::from(bucket.remove_first());
        }
        Some(place)
    }

    /// Returns the serial numbers of the receives that may be directed to this source, in no order:
    /// those of the source, some of them stale, and all that belong to no group.
    pub(super) fn directed_to(&self, source: FiAddr) -> Vec<u64> {
        let from = source_bits(Some(source));
        let first = IndexItem(BucketKey { from, tag: 0 });
        let mut serials: Vec<_> = self.ungrouped.iter().map(|item| item.0).collect();
        for group in &self.groups {
            let keys = group.directed.iter().flat_map(|keys| keys.range(first..));
            let keys = keys.take_while(|key| key.0.from == from);
            for bucket in keys.filter_map(|key| group.buckets.get(key)) {
                serials.push(bucket.first);
                serials.extend(bucket.others.iter().map(|item| item.0));
            }
        }
        serials
    }

    /// Counts the items.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        let buckets = self.groups.iter().flat_map(|group| group.buckets.values());
        let grouped: usize = buckets.map(|bucket| 1 + bucket.others.len()).sum();
        grouped + self.ungrouped.len()
    }
}

impl ReceiveGroup {
    /// Adds a receive. Returns whether the index has an item more.
    fn add(&mut self, serial: u64, from: u64, tag: u64) -> bool {
        let tag = tag & !self.ignore;
        let key = IndexItem(BucketKey { from, tag });
        match self.buckets.entry(key) {
            Entry::Occupied(mut bucket) => bucket.get_mut().insert(serial),
            Entry::Vacant(vacant) => {
                vacant.insert(Bucket::of(serial));
                if let Some(keys) = &mut self.directed {
                    keys.insert(key);
                }
                true
            }
        }
    }
}

/// Returns a source as one integer, which is fast to compare. Without a source, 0; groups keep
/// receives from one source and from any source apart.
fn source_bits(source: Option<FiAddr>) -> u64 {
    source.map_or(0, |addr| addr.bits())
}

/// Hashes a [`BucketKey`] as `ax + by + c` modulo 2^128, of which the upper half is the hash. The
/// factors are random. So the hashes of two keys are equal in some bits as rarely as two random
/// numbers, whichever keys a peer chooses that does not know the factors.
#[derive(Clone)]
struct KeyHash {
    factors: [u128; 2],
    sum: u128,
}

impl Default for KeyHash {
    fn default() -> Self {
        let random = RandomState::new();
        let word = |at: u64| u128::from(random.hash_one(at));
        let [a, b, c] = [0, 2, 4].map(|at| word(at) << 64 | word(at + 1));
        Self {
            factors: [a, b],
            sum: c,
        }
    }
}

impl BuildHasher for KeyHash {
    type Hasher = Self;

    #[inline]
    fn build_hasher(&self) -> Self {
        self.clone()
    }
}

impl Hasher for KeyHash {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let [factor, next] = self.factors;
        self.sum = self.sum.wrapping_add(factor.wrapping_mul(word.into()));
        self.factors = [next, factor];
    }

    #[inline]
    fn finish(&self) -> u64 {
        (self.sum >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_two_indexes_differ() {
        let key = BucketKey { from: 1, tag: 2 };
        let hash = || KeyHash::default().hash_one(IndexItem(key));
        assert_ne!(hash(), hash());
    }

    #[test]
    fn hash_of_a_key_does_not_change() {
        let hash = KeyHash::default();
        let hash = |from, tag| hash.hash_one(IndexItem(BucketKey { from, tag }));
        assert_eq!(hash(1, 2), hash(1, 2));
        assert_ne!(hash(1, 2), hash(2, 1));
    }
}
