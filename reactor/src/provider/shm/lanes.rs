//! The connections of an endpoint to its peers, by the numbers of these, each under a lock of its
//! own.
//!
//! What can be done at a peer at once needs nothing else of the domain, so whoever has the endpoint
//! does it here, without the domain's lock: [`Express`]. All else takes that lock first and then
//! the connection's, never the other way.
//!
//! **Invariant.** Nothing overtakes. Something is done at once only while the connection's queue is
//! empty, which is known under its lock, and while nobody waits for a credit, which [`Lanes::hold`]
//! says: raised under the domain's lock before the post returns that waits, and lowered after the
//! last that waited is in its queue. Whoever posts behind another post finds the word raised, or
//! that one in the queue, or done.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fabric_core::buf::Payload;
use fabric_core::provider::{AtOnce, Express, SendSpec};

use super::outgoing::{Outgoing, PLAIN, Push};
use crate::sync::{SpinGuard, SpinLock, look_for};

/// Places of the first chunk; each further one has twice as many.
const FIRST: usize = 8;
/// Enough for all numbers of an address vector.
const CHUNKS: usize = 30;
/// What is done at a peer between two looks at the descriptors: who only sends hears of the end of
/// a peer too.
const PER_LOOK: u64 = 64;

/// The connections of an endpoint, by the index of the address.
pub(crate) struct Lanes {
    /// Somebody waits for a credit.
    held: AtomicBool,
    /// Longer messages take the way over the domain, which refuses them.
    longest: usize,
    /// Places are never moved, so nobody needs a lock to find one.
    chunks: [OnceLock<Box<[Lane]>>; CHUNKS],
}

/// The place of a connection. Neighbours share no line, since others may send there.
#[derive(Default)]
#[repr(align(64))]
struct Lane(SpinLock<Option<Box<Outgoing>>>);

/// A connection, locked.
pub(crate) struct Connection<'a>(SpinGuard<'a, Option<Box<Outgoing>>>);

impl Lanes {
    pub(crate) fn new(longest: usize) -> Self {
        Self {
            held: AtomicBool::new(false),
            longest,
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// The connection at this index, if there is one.
    pub(crate) fn lock(&self, index: usize) -> Option<Connection<'_>> {
        let place = look_for(&self.place(index)?.0);
        place.is_some().then_some(Connection(place))
    }

    /// Puts a connection where there is none.
    pub(crate) fn insert(&self, index: usize, outgoing: Outgoing) {
        let (chunk, at) = Self::locate(index);
        let places = self.chunks[chunk]
            .get_or_init(|| (0..FIRST << chunk).map(|_| Lane::default()).collect());
        *look_for(&places[at].0) = Some(Box::new(outgoing));
    }

    pub(crate) fn remove(&self, index: usize) -> Option<Box<Outgoing>> {
        look_for(&self.place(index)?.0).take()
    }

    #[inline]
    fn locate(index: usize) -> (usize, usize) {
        let chunk = ((index + FIRST) / FIRST).ilog2() as usize;
        (chunk, index + FIRST - (FIRST << chunk))
    }

    #[inline]
    fn place(&self, index: usize) -> Option<&Lane> {
        let (chunk, at) = Self::locate(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// Does something at a peer if nothing stands in the way, which it is not told of otherwise.
    #[inline(always)] // on the way of a small message
    fn at_once(&self, spec: &SendSpec, act: impl FnOnce(&mut Outgoing) -> Option<Push>) -> AtOnce {
        // SYNC: pairs with the release in `hold`: who finds the word lowered finds in its queue
        // what had waited.
        if self.held.load(Ordering::Acquire) {
            return AtOnce::No;
        }
        let Some(place) = self.place(spec.peer.index()) else {
            return AtOnce::No;
        };
        let mut place = look_for(&place.0);
        let Some(outgoing) = place
            .as_deref_mut()
            .filter(|outgoing| outgoing.addr == spec.peer)
        else {
            return AtOnce::No;
        };
        // What fails, or finds the peer closed, is tried again on the other way, and fails there.
        // So nothing is tried here that can find the peer closed after it was done.
        if act(outgoing) != Some(Push::Done) {
            return AtOnce::No;
        }
        if outgoing.express.is_multiple_of(PER_LOOK) {
            AtOnce::Due
        } else {
            AtOnce::Done
        }
    }
}

impl Express for Lanes {
    fn send_now(&self, spec: &SendSpec, payload: Payload<'_>) -> AtOnce {
        if let Payload::Whole(bytes) = payload
            && bytes.len() < PLAIN.min(self.longest)
            && spec.is_plain()
        {
            return self.at_once(spec, |outgoing| Some(outgoing.plain_now(bytes)));
        }
        let len = payload.len();
        if len > self.longest || spec.fence || spec.more {
            return AtOnce::No;
        }
        self.at_once(spec, |outgoing| {
            if outgoing.tells(spec) {
                return None;
            }
            let pushed = outgoing.send_now(spec, payload).ok()?;
            if pushed == Push::Done {
                outgoing.count(spec.kind, len);
            }
            Some(pushed)
        })
    }

    fn atomic_now(&self, spec: &SendSpec, operands: &[u8], result: &mut [u8]) -> AtOnce {
        if spec.fence {
            return AtOnce::No;
        }
        self.at_once(spec, |outgoing| {
            if outgoing.tells(spec) {
                return None;
            }
            let pushed = outgoing.atomic_now(spec, operands, result).ok()?;
            if pushed == Push::Done {
                outgoing.count(spec.kind, spec.remote.map_or(0, |remote| remote.len));
            }
            Some(pushed)
        })
    }

    fn hold(&self, held: bool) {
        // SYNC: see `at_once`.
        self.held.store(held, Ordering::Release);
    }
}

impl Deref for Connection<'_> {
    type Target = Outgoing;

    fn deref(&self) -> &Outgoing {
        self.0
            .as_deref()
            .expect("a connection is there while it is locked")
    }
}

impl DerefMut for Connection<'_> {
    fn deref_mut(&mut self) -> &mut Outgoing {
        self.0
            .as_deref_mut()
            .expect("a connection is there while it is locked")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(Lanes::locate(index), expected, "index {index}");
            expected.1 += 1;
            if expected.1 == FIRST << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(Lanes::locate(u32::MAX as usize).0, CHUNKS - 1);
    }
}
