//! Two doubly linked lists, tagged and untagged, over one table of entries.
//!
//! Links are indices. The node of a removed entry goes to a free list and is reused first, so a
//! queue that stays short stays in the same few cache lines. Each entry has a 64-bit serial number,
//! which is the next one of a counter and part of the entry's key, so a stale key finds nothing.

const NIL: u32 = u32::MAX;
/// The serial number of a node on the free list; no key has this number.
const VACANT: u64 = u64::MAX;

/// The queue that a message or receive belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    Untagged,
    Tagged,
}

impl QueueKind {
    pub(super) const BOTH: [Self; 2] = [Self::Untagged, Self::Tagged];
}

/// The key of an entry, valid until the entry is removed. Keys are ordered as they were issued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EntryKey {
    serial: u64,
    index: u32,
}

impl EntryKey {
    /// Returns the index of the entry in the table, valid until the entry is removed.
    pub(super) fn index(self) -> usize {
        self.index as usize
    }
}

/// The table and its two lists.
pub(super) struct LinkedLists<T> {
    nodes: Vec<ListNode<T>>,
    /// The ends of the two lists, by [`QueueKind`].
    ends: [ListEnds; 2],
    /// The first node of the free list, or `NIL`.
    free: u32,
    next_serial: u64,
    /// Number of linked entries in both lists.
    len: usize,
}

struct ListNode<T> {
    serial: u64,
    prev: u32,
    next: u32,
    kind: QueueKind,
    value: T,
}

#[derive(Clone, Copy)]
struct ListEnds {
    head: u32,
    tail: u32,
}

impl<T: Copy> LinkedLists<T> {
    pub(super) fn new() -> Self {
        let ends = [ListEnds {
            head: NIL,
            tail: NIL,
        }; 2];
        Self {
            nodes: Vec::new(),
            ends,
            free: NIL,
            next_serial: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push_back(&mut self, kind: QueueKind, value: T) -> EntryKey {
        self.insert(kind, NIL, value)
    }

    /// Inserts an entry in front of the one at `before`, which must be linked in the list of this
    /// kind.
    pub(super) fn insert_before(&mut self, kind: QueueKind, before: usize, value: T) -> EntryKey {
        debug_assert!(self.nodes[before].serial != VACANT && self.nodes[before].kind == kind);
        self.insert(kind, before as u32, value)
    }

    /// Unlinks the entry at `index`, which must be linked.
    pub(super) fn remove(&mut self, index: usize) -> T {
        let free = self.free;
        let node = &mut self.nodes[index];
        debug_assert!(node.serial != VACANT, "entry {index} is not linked");
        let (prev, next, kind, value) = (node.prev, node.next, node.kind, node.value);
        node.serial = VACANT;
        node.next = free;
        *self.next_link(kind, prev) = next;
        *self.prev_link(kind, next) = prev;
        self.free = index as u32;
        self.len -= 1;
        value
    }

    /// Frees the table of empty lists. Keys of removed entries stay invalid.
    #[cold]
    pub(super) fn free_table(&mut self) {
        debug_assert!(self.len == 0, "{} entries are linked", self.len);
        self.nodes = Vec::new();
        self.free = NIL;
    }

    /// Returns the index of the entry of a key, unless the entry was removed.
    pub(super) fn find(&self, key: EntryKey) -> Option<usize> {
        let index = key.index as usize;
        self.nodes
            .get(index)
            .is_some_and(|node| node.serial == key.serial)
            .then_some(index)
    }

    /// Returns the key of the entry at `index`, which must be linked.
    pub(super) fn key(&self, index: usize) -> EntryKey {
        EntryKey {
            index: index as u32,
            serial: self.nodes[index].serial,
        }
    }

    /// Iterates over the indices of an entry and of all behind it.
    #[inline]
    pub(super) fn iter_from(&self, first: Option<usize>) -> impl Iterator<Item = usize> {
        std::iter::successors(first, |&index| self.next(index))
    }

    /// Returns the index of the first entry of a list.
    #[inline]
    pub(super) fn first(&self, kind: QueueKind) -> Option<usize> {
        link_index(self.ends[kind as usize].head)
    }

    /// Returns the index of the last entry of a list.
    pub(super) fn last(&self, kind: QueueKind) -> Option<usize> {
        link_index(self.ends[kind as usize].tail)
    }

    /// Returns the index of the entry in front of the one at `index`, which must be linked.
    pub(super) fn prev(&self, index: usize) -> Option<usize> {
        link_index(self.nodes[index].prev)
    }

    /// Returns the list of the entry at `index`, which must be linked.
    pub(super) fn kind(&self, index: usize) -> QueueKind {
        self.nodes[index].kind
    }

    /// Returns the index of the entry behind the one at `index`, which must be linked.
    #[inline]
    pub(super) fn next(&self, index: usize) -> Option<usize> {
        link_index(self.nodes[index].next)
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> &T {
        &self.nodes[index].value
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut T {
        &mut self.nodes[index].value
    }

    /// Links a new entry in front of the one at `next`, or at the end if `next` is `NIL`.
    #[inline(always)]
    fn insert(&mut self, kind: QueueKind, next: u32, value: T) -> EntryKey {
        let serial = self.next_serial;
        self.next_serial += 1;
        let prev = *self.prev_link(kind, next);
        let node = ListNode {
            serial,
            prev,
            next,
            kind,
            value,
        };
        let index = if self.free == NIL {
            let index = self.nodes.len();
            assert!(
                index < NIL as usize,
                "the table holds fewer than 2^32 - 1 entries"
            );
            self.nodes.push(node);
            index as u32
        } else {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        };
        *self.next_link(kind, prev) = index;
        *self.prev_link(kind, next) = index;
        self.len += 1;
        EntryKey { index, serial }
    }

    /// Returns the link from `index` to its successor; from `NIL`, the head of the list.
    fn next_link(&mut self, kind: QueueKind, index: u32) -> &mut u32 {
        if index == NIL {
            &mut self.ends[kind as usize].head
        } else {
            &mut self.nodes[index as usize].next
        }
    }

    /// Returns the link from `index` to its predecessor; from `NIL`, the tail of the list.
    #[inline]
    fn prev_link(&mut self, kind: QueueKind, index: u32) -> &mut u32 {
        if index == NIL {
            &mut self.ends[kind as usize].tail
        } else {
            &mut self.nodes[index as usize].prev
        }
    }
}

fn link_index(index: u32) -> Option<usize> {
    (index != NIL).then_some(index as usize)
}
