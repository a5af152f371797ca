//! Receives nobody has answered yet, in posting order.

use crate::address::FiAddr;

use super::envelope::{Envelope, RecvSpec, Wanted};
use super::list::{Chains, Key, Kind};

/// Handle of a posted receive.
///
/// It names this one posting: once the receive has matched, was withdrawn or was taken, the key
/// finds nothing, also when its place in the table is used again. Good only with the
/// [`Matcher`](super::Matcher) it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostKey(Key);

/// What a receive accepts and its place in posting order, kept while it is out of the queue.
#[derive(Clone, Copy, Debug)]
pub struct PostPlace {
    pub(super) wanted: Wanted,
    pub(super) kind: Kind,
    serial: u64,
}

impl PostPlace {
    /// Whether the receive accepts messages of one source only.
    #[must_use]
    pub fn is_directed(&self) -> bool {
        self.wanted.from.is_some()
    }
}

/// The queue of posted receives.
pub(super) struct PostedQueue<R> {
    chains: Chains<Entry<R>>,
}

/// The caller's name of the receive sits beside what is compared: a match at the head reads one
/// entry.
#[derive(Clone, Copy)]
struct Entry<R> {
    wanted: Wanted,
    receive: R,
}

impl<R: Copy> PostedQueue<R> {
    pub(super) fn new() -> Self {
        Self {
            chains: Chains::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.chains.len()
    }

    #[inline(always)] // on the way of a small message
    pub(super) fn push(&mut self, spec: &RecvSpec, receive: R) -> PostKey {
        PostKey(self.chains.push_back(
            spec.kind(),
            Entry {
                wanted: spec.wanted(),
                receive,
            },
        ))
    }

    pub(super) fn would_match(&self, envelope: &Envelope) -> bool {
        self.search(envelope).is_some()
    }

    pub(super) fn take_match(&mut self, envelope: &Envelope) -> Option<R> {
        let index = self.search(envelope)?;
        Some(self.chains.remove(index).receive)
    }

    /// The first of the untagged receives, if it accepts messages of this source.
    #[inline]
    pub(super) fn take_first(&mut self, source: Option<FiAddr>) -> Option<R> {
        let index = self.chains.first(Kind::Untagged)?;
        let from = self.chains.get(index).wanted.from;
        (from.is_none() || from == source)
            .then(|| self.chains.remove_first(index, Kind::Untagged).receive)
    }

    /// The earliest receive that accepts this message; it stays.
    pub(super) fn find(&self, envelope: &Envelope) -> Option<(PostKey, R)> {
        let index = self.search(envelope)?;
        Some((
            PostKey(self.chains.key(index)),
            self.chains.get(index).receive,
        ))
    }

    pub(super) fn withdraw(&mut self, key: PostKey) -> Option<R> {
        let index = self.chains.find(key.0)?;
        Some(self.chains.remove(index).receive)
    }

    /// The place of a queued receive. `None` when it is no longer queued.
    pub(super) fn place(&self, key: PostKey) -> Option<PostPlace> {
        let index = self.chains.find(key.0)?;
        Some(PostPlace {
            wanted: self.chains.get(index).wanted,
            kind: self.chains.kind(index),
            serial: self.chains.serial(index),
        })
    }

    /// The place that a receive has which is posted now and is not queued.
    pub(super) fn take_place(&mut self, spec: &RecvSpec) -> PostPlace {
        PostPlace {
            wanted: spec.wanted(),
            kind: spec.kind(),
            serial: self.chains.take_serial(),
        }
    }

    pub(super) fn restore(&mut self, place: PostPlace, receive: R) -> PostKey {
        let PostPlace {
            wanted,
            kind,
            serial,
        } = place;
        let entry = Entry { wanted, receive };
        PostKey(self.chains.insert_in_order(kind, serial, entry))
    }

    pub(super) fn take_directed(&mut self, source: FiAddr) -> Vec<R> {
        self.take_if(|wanted| wanted.from == Some(source))
    }

    pub(super) fn take_all(&mut self) -> Vec<R> {
        self.take_if(|_| true)
    }

    fn search(&self, envelope: &Envelope) -> Option<usize> {
        let shown = envelope.shown();
        self.chains
            .search(envelope.kind(), |entry| entry.wanted.accepts(shown))
    }

    fn take_if(&mut self, test: impl Fn(&Wanted) -> bool) -> Vec<R> {
        let mut taken = Vec::new();
        for kind in Kind::BOTH {
            let mut at = self.chains.first(kind);
            while let Some(index) = at {
                at = self.chains.next(index);
                if test(&self.chains.get(index).wanted) {
                    taken.push((self.chains.serial(index), self.chains.remove(index).receive));
                }
            }
        }
        // Each chain came out in posting order; the serials put the two together.
        taken.sort_unstable_by_key(|&(serial, _)| serial);
        taken.into_iter().map(|(_, receive)| receive).collect()
    }
}
