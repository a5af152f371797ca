//! Messages no receive has accepted yet, in arrival order.

use crate::address::FiAddr;

use super::envelope::{Envelope, PeerKey, RecvSpec, Shown};
use super::list::{Chains, Key, Kind};
use super::posted::PostPlace;

/// Handle of a waiting message.
///
/// It names this one stay in the queue: once the message was taken or matched, the key finds
/// nothing, also when the same message was put back since. Good only with the
/// [`Matcher`](super::Matcher) it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitKey(Key);

/// The queue of waiting messages.
pub(super) struct WaitingQueue<M> {
    chains: Chains<Entry>,
    /// The messages, at the index their entry has in `chains`. Apart from it, so that scans stay in
    /// the entries.
    bodies: Vec<Option<(Envelope, M)>>,
}

/// What scans look at.
#[derive(Clone, Copy)]
struct Entry {
    shown: Shown,
    arrival: u64,
    peer: PeerKey,
}

impl<M> WaitingQueue<M> {
    pub(super) fn new() -> Self {
        Self {
            chains: Chains::new(),
            bodies: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.chains.len()
    }

    pub(super) fn insert(&mut self, envelope: Envelope, message: M) -> WaitKey {
        let (kind, arrival) = (envelope.kind(), envelope.arrival);
        let entry = Entry {
            shown: envelope.shown(),
            arrival,
            peer: envelope.peer,
        };
        let in_order = self
            .chains
            .last(kind)
            .is_none_or(|last| self.chains.get(last).arrival <= arrival);
        // A message that is put back was at the head when it matched, or near it: look for its
        // place from there.
        let before = if in_order {
            None
        } else {
            self.chains.search(kind, |entry| entry.arrival > arrival)
        };
        let key = match before {
            Some(index) => self.chains.insert_before(kind, index, entry),
            None => self.chains.push_back(kind, entry),
        };
        let body = Some((envelope, message));
        match self.bodies.get_mut(Chains::<Entry>::index(key)) {
            Some(place) => *place = body,
            None => self.bodies.push(body),
        }
        WaitKey(key)
    }

    pub(super) fn peek(&self, spec: &RecvSpec) -> Option<&Envelope> {
        self.envelope(self.search(spec)?)
    }

    pub(super) fn take_match(&mut self, spec: &RecvSpec) -> Option<(Envelope, M)> {
        let index = self.search(spec)?;
        self.remove(index)
    }

    pub(super) fn get(&self, key: WaitKey) -> Option<&Envelope> {
        self.envelope(self.chains.find(key.0)?)
    }

    pub(super) fn get_mut(&mut self, key: WaitKey) -> Option<(&Envelope, &mut M)> {
        let index = self.chains.find(key.0)?;
        self.bodies[index]
            .as_mut()
            .map(|(envelope, message)| (&*envelope, message))
    }

    pub(super) fn take(&mut self, key: WaitKey) -> Option<(Envelope, M)> {
        let index = self.chains.find(key.0)?;
        self.remove(index)
    }

    /// The earliest message that this receive accepts and that passes the test.
    pub(super) fn find(
        &self,
        spec: &RecvSpec,
        mut test: impl FnMut(&Envelope) -> bool,
    ) -> Option<(WaitKey, &Envelope)> {
        let wanted = spec.wanted();
        let index = self.chains.search_at(spec.kind(), |index, entry| {
            wanted.accepts(entry.shown) && self.envelope(index).is_some_and(&mut test)
        })?;
        self.envelope(index)
            .map(|envelope| (WaitKey(self.chains.key(index)), envelope))
    }

    /// The earliest message that a receive of this place accepts and that passes the test.
    pub(super) fn find_at(
        &self,
        place: &PostPlace,
        mut test: impl FnMut(&Envelope) -> bool,
    ) -> Option<WaitKey> {
        let wanted = place.wanted;
        let index = self.chains.search_at(place.kind, |index, entry| {
            wanted.accepts(entry.shown) && self.envelope(index).is_some_and(&mut test)
        })?;
        Some(WaitKey(self.chains.key(index)))
    }

    /// Everything that waits, in arrival order.
    pub(super) fn keys(&self) -> Vec<WaitKey> {
        self.keys_where(|_| true)
    }

    /// Gives this source to what waits from these without one; in arrival order.
    pub(super) fn rename(&mut self, peers: &[PeerKey], source: FiAddr) -> Vec<WaitKey> {
        let renamed =
            self.keys_where(|entry| entry.shown.source.is_none() && peers.contains(&entry.peer));
        for key in &renamed {
            self.set_source(Chains::<Entry>::index(key.0), Some(source));
        }
        renamed
    }

    fn keys_where(&self, test: impl Fn(&Entry) -> bool) -> Vec<WaitKey> {
        let mut found = Vec::new();
        for kind in Kind::BOTH {
            let mut at = self.chains.first(kind);
            while let Some(index) = at {
                at = self.chains.next(index);
                let entry = self.chains.get(index);
                if test(entry) {
                    found.push((entry.arrival, WaitKey(self.chains.key(index))));
                }
            }
        }
        found.sort_by_key(|(arrival, _)| *arrival);
        found.into_iter().map(|(_, key)| key).collect()
    }

    pub(super) fn holds(&self, source: FiAddr) -> bool {
        let from = |entry: &Entry| entry.shown.source == Some(source);
        Kind::BOTH
            .iter()
            .any(|&kind| self.chains.search(kind, from).is_some())
    }

    pub(super) fn forget(&mut self, source: FiAddr) {
        for kind in Kind::BOTH {
            let mut at = self.chains.first(kind);
            while let Some(index) = at {
                at = self.chains.next(index);
                if self.chains.get(index).shown.source == Some(source) {
                    self.set_source(index, None);
                }
            }
        }
    }

    pub(super) fn take_all(&mut self) -> Vec<(Envelope, M)> {
        let mut taken = Vec::with_capacity(self.len());
        for kind in Kind::BOTH {
            while let Some(index) = self.chains.first(kind) {
                taken.extend(self.remove(index));
            }
        }
        taken.sort_by_key(|(envelope, _)| envelope.arrival);
        taken
    }

    pub(super) fn take_where(
        &mut self,
        mut which: impl FnMut(&Envelope, &M) -> bool,
    ) -> Vec<(Envelope, M)> {
        let mut taken = Vec::new();
        for kind in Kind::BOTH {
            let mut at = self.chains.first(kind);
            while let Some(index) = at {
                at = self.chains.next(index);
                if self.bodies[index]
                    .as_ref()
                    .is_some_and(|(envelope, message)| which(envelope, message))
                {
                    taken.extend(self.remove(index));
                }
            }
        }
        taken
    }

    fn search(&self, spec: &RecvSpec) -> Option<usize> {
        let wanted = spec.wanted();
        self.chains
            .search(spec.kind(), |entry| wanted.accepts(entry.shown))
    }

    fn envelope(&self, index: usize) -> Option<&Envelope> {
        self.bodies[index].as_ref().map(|(envelope, _)| envelope)
    }

    fn remove(&mut self, index: usize) -> Option<(Envelope, M)> {
        self.chains.remove(index);
        self.bodies[index].take()
    }

    fn set_source(&mut self, index: usize, source: Option<FiAddr>) {
        self.chains.get_mut(index).shown.source = source;
        if let Some((envelope, _)) = &mut self.bodies[index] {
            envelope.source = source;
        }
    }
}
