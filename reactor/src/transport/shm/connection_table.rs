//! The connections of an endpoint to its peers, by the numbers of these, each under a lock of its
//! own.
//!
//! What can be done at a peer at once needs nothing else of the domain, so whoever has the endpoint
//! does it here, without the domain's lock: [`FastPath`]. All else takes that lock first and then
//! the connection's, never the other way.
//!
//! **Invariant.** Nothing overtakes. Something is done at once only while the connection's queue is
//! empty, which is known under its lock, and while nobody waits for a credit, which [`ConnectionTable::hold`]
//! says: raised under the domain's lock before the post returns that waits, and lowered after the
//! last that waited is in its queue. Whoever posts behind another post finds the word raised, or
//! that one in the queue, or done.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fabric_core::buf::Payload;
use fabric_core::transport::{FastPath, FastPathResult, TxOp};

use super::tx_connection::{PLAIN, PushOutcome, TxConnection};
use crate::sync::{SpinGuard, SpinLock, lock_spin};

/// Places of the first chunk; each further one has twice as many.
const FIRST_CHUNK_LEN: usize = 8;
/// Enough for all numbers of an address vector.
const MAX_CHUNKS: usize = 30;
/// What is done at a peer between two looks at the descriptors: who only sends hears of the end of
/// a peer too.
const OPS_PER_FD_POLL: u64 = 64;

/// The connections of an endpoint, by the index of the address.
pub(crate) struct ConnectionTable {
    /// Somebody waits for a credit.
    blocked: AtomicBool,
    /// Longer messages take the way over the domain, which refuses them.
    max_msg_size: usize,
    /// Places are never moved, so nobody needs a lock to find one.
    chunks: [OnceLock<Box<[ConnectionSlot]>>; MAX_CHUNKS],
}

/// The place of a connection. Neighbours share no line, since others may send there.
#[derive(Default)]
#[repr(align(64))]
struct ConnectionSlot(SpinLock<Option<Box<TxConnection>>>);

/// A connection, locked.
pub(crate) struct ConnectionGuard<'a>(SpinGuard<'a, Option<Box<TxConnection>>>);

impl ConnectionTable {
    pub(crate) fn new(max_msg_size: usize) -> Self {
        Self {
            blocked: AtomicBool::new(false),
            max_msg_size,
            chunks: [const { OnceLock::new() }; MAX_CHUNKS],
        }
    }

    /// The connection at this index, if there is one.
    pub(crate) fn lock(&self, index: usize) -> Option<ConnectionGuard<'_>> {
        let place = lock_spin(&self.slot(index)?.0);
        place.is_some().then_some(ConnectionGuard(place))
    }

    /// Puts a connection where there is none.
    pub(crate) fn insert(&self, index: usize, outgoing: TxConnection) {
        let (chunk, at) = Self::locate(index);
        let places = self.chunks[chunk].get_or_init(|| {
            (0..FIRST_CHUNK_LEN << chunk)
                .map(|_| ConnectionSlot::default())
                .collect()
        });
        *lock_spin(&places[at].0) = Some(Box::new(outgoing));
    }

    pub(crate) fn remove(&self, index: usize) -> Option<Box<TxConnection>> {
        lock_spin(&self.slot(index)?.0).take()
    }

    #[inline]
    fn locate(index: usize) -> (usize, usize) {
        let chunk = ((index + FIRST_CHUNK_LEN) / FIRST_CHUNK_LEN).ilog2() as usize;
        (chunk, index + FIRST_CHUNK_LEN - (FIRST_CHUNK_LEN << chunk))
    }

    #[inline]
    fn slot(&self, index: usize) -> Option<&ConnectionSlot> {
        let (chunk, at) = Self::locate(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// Does something at a peer if nothing stands in the way, which it is not told of otherwise.
    #[inline(always)] // fast path of small messages
    fn try_now(
        &self,
        spec: &TxOp,
        act: impl FnOnce(&mut TxConnection) -> Option<PushOutcome>,
    ) -> FastPathResult {
        // SYNC: pairs with the release in `hold`: who finds the word lowered finds in its queue
        // what had waited.
        if self.blocked.load(Ordering::Acquire) {
            return FastPathResult::WouldBlock;
        }
        let Some(place) = self.slot(spec.peer.index()) else {
            return FastPathResult::WouldBlock;
        };
        let mut place = lock_spin(&place.0);
        let Some(outgoing) = place
            .as_deref_mut()
            .filter(|outgoing| outgoing.addr == spec.peer)
        else {
            return FastPathResult::WouldBlock;
        };
        // What fails, or finds the peer closed, is tried again on the other way, and fails there.
        // So nothing is tried here that can find the peer closed after it was done.
        if act(outgoing) != Some(PushOutcome::Done) {
            return FastPathResult::WouldBlock;
        }
        if outgoing.fast_path_ops.is_multiple_of(OPS_PER_FD_POLL) {
            FastPathResult::SentPollDue
        } else {
            FastPathResult::Done
        }
    }
}

impl FastPath for ConnectionTable {
    fn try_send(&self, spec: &TxOp, payload: Payload<'_>) -> FastPathResult {
        if let Payload::Contiguous(bytes) = payload
            && bytes.len() < PLAIN.min(self.max_msg_size)
            && spec.is_plain()
        {
            return self.try_now(spec, |outgoing| Some(outgoing.try_send_plain(bytes)));
        }
        let len = payload.len();
        if len > self.max_msg_size || spec.fence || spec.more {
            return FastPathResult::WouldBlock;
        }
        self.try_now(spec, |outgoing| {
            if outgoing.notifies(spec) {
                return None;
            }
            let pushed = outgoing.try_send(spec, payload).ok()?;
            if pushed == PushOutcome::Done {
                outgoing.count_fast_path(spec.kind, len);
            }
            Some(pushed)
        })
    }

    fn try_atomic(&self, spec: &TxOp, operands: &[u8], result: &mut [u8]) -> FastPathResult {
        if spec.fence {
            return FastPathResult::WouldBlock;
        }
        self.try_now(spec, |outgoing| {
            if outgoing.notifies(spec) {
                return None;
            }
            let pushed = outgoing.try_atomic(spec, operands, result).ok()?;
            if pushed == PushOutcome::Done {
                outgoing.count_fast_path(spec.kind, spec.remote.map_or(0, |remote| remote.len));
            }
            Some(pushed)
        })
    }

    fn set_blocked(&self, held: bool) {
        // SYNC: see `at_once`.
        self.blocked.store(held, Ordering::Release);
    }
}

impl Deref for ConnectionGuard<'_> {
    type Target = TxConnection;

    fn deref(&self) -> &TxConnection {
        self.0
            .as_deref()
            .expect("a connection is there while it is locked")
    }
}

impl DerefMut for ConnectionGuard<'_> {
    fn deref_mut(&mut self) -> &mut TxConnection {
        self.0
            .as_deref_mut()
            .expect("a connection is there while it is locked")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_location() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(ConnectionTable::locate(index), expected, "index {index}");
            expected.1 += 1;
            if expected.1 == FIRST_CHUNK_LEN << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(ConnectionTable::locate(u32::MAX as usize).0, MAX_CHUNKS - 1);
    }
}
