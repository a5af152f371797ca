//! The outgoing connections of an endpoint, by index of the peer's address handle, each under a
//! lock of its own.
//!
//! The fast path (`FastPath`) executes sends, writes and atomic updates *inline*: under the lock of
//! the connection, without the domain's lock. After every 64th fast-path operation of a connection
//! the caller takes the domain's lock, to poll the domain's descriptors. All other operations take
//! the domain's lock first and then the connection's, never the other way. An endpoint with a
//! transmit counter has no fast path, because counters belong to the domain.
//!
//! **Invariant.** No operation overtakes an earlier operation to the same peer. An operation is
//! executed inline only while the connection's queue is empty, which is checked under its lock, and
//! while no operation of the endpoint waits for a transmit credit, which `set_blocked` records. The
//! flag is set under the domain's lock before the post of the waiting operation returns, and
//! cleared after the last waiting operation is in its connection's queue. So a later operation
//! finds the flag set, or the earlier operation in the queue, or the earlier operation done.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::mr::RmaIov;
use fabric_core::transport::{BlockableFastPath, FastPath, FastPathResult, TxOp};
use fabric_core::{FiAddr, Result};

use super::record::ALIGN_PAYLOAD_FROM;
use super::tx_connection::{PushOutcome, TxConnection};
use crate::sys::thread_lock::{ConnectionLock, ConnectionLockGuard, ConnectionLockMode};

/// Slots of the first chunk; each further chunk has twice as many.
const FIRST_CHUNK_LEN: usize = 8;
/// Number of chunks: enough for every `u32` index.
const MAX_CHUNKS: usize = 30;
/// The outgoing connections of an endpoint, by index of the peer's address handle.
pub(crate) struct ConnectionTable {
    /// Which threads lock the connections.
    lock_mode: ConnectionLockMode,
    /// Whether an operation waits for a transmit credit.
    blocked: AtomicBool,
    /// Maximum length of a message. The engine rejects longer messages, outside of the fast path.
    max_msg_size: usize,
    /// Bytes of a message from which the message is sent in another way than short ones.
    short_limit: usize,
    /// Chunks of slots, which never move, so that finding a slot needs no lock.
    chunks: [OnceLock<Box<[ConnectionSlot]>>; MAX_CHUNKS],
}

/// A slot for a connection. Each slot has its own cache line, since threads may use different
/// slots.
#[repr(align(64))]
struct ConnectionSlot(ConnectionLock<Option<Box<TxConnection>>>);

/// A locked connection.
pub(crate) struct ConnectionGuard<'a>(ConnectionLockGuard<'a, Option<Box<TxConnection>>>);

impl ConnectionTable {
    pub(crate) fn new(lock_mode: ConnectionLockMode, max_msg_size: usize) -> Self {
        Self {
            lock_mode,
            blocked: AtomicBool::new(false),
            max_msg_size,
            short_limit: ALIGN_PAYLOAD_FROM.min(max_msg_size),
            chunks: [const { OnceLock::new() }; MAX_CHUNKS],
        }
    }

    /// Locks the connection at this index; `None` if there is none.
    pub(crate) fn lock(&self, index: usize) -> Option<ConnectionGuard<'_>> {
        let slot = self.slot(index)?.0.lock();
        slot.is_some().then_some(ConnectionGuard(slot))
    }

    /// Locks the connection to a peer; `None` if there is none.
    #[inline(always)] // fast path of small messages
    pub(crate) fn lock_peer(&self, peer: FiAddr) -> Option<ConnectionGuard<'_>> {
        let slot = self.slot(peer.index())?.0.lock();
        let is_open = slot.as_deref().is_some_and(|tx| tx.addr == peer);
        is_open.then_some(ConnectionGuard(slot))
    }

    /// Locks the connection to a peer, which is created if there is none. Returns whether it was.
    ///
    /// # Errors
    /// Those of `create`.
    pub(crate) fn lock_or_insert(
        &self,
        peer: FiAddr,
        create: impl FnOnce() -> Result<TxConnection>,
    ) -> Result<(ConnectionGuard<'_>, bool)> {
        let (chunk, slot) = Self::locate(peer.index());
        let slots = self.chunks[chunk].get_or_init(|| {
            (0..FIRST_CHUNK_LEN << chunk)
                .map(|_| ConnectionSlot(ConnectionLock::new(self.lock_mode.clone(), None)))
                .collect()
        });
        let mut slot = slots[slot].0.lock();
        let is_new = slot.as_deref().is_none_or(|tx| tx.addr != peer);
        if is_new {
            *slot = Some(Box::new(create()?));
        }
        Ok((ConnectionGuard(slot), is_new))
    }

    pub(crate) fn remove(&self, index: usize) -> Option<Box<TxConnection>> {
        self.slot(index)?.0.lock().take()
    }

    /// Returns the chunk of an index, and the position within the chunk.
    #[inline]
    fn locate(index: usize) -> (usize, usize) {
        let chunk = ((index + FIRST_CHUNK_LEN) / FIRST_CHUNK_LEN).ilog2() as usize;
        (chunk, index + FIRST_CHUNK_LEN - (FIRST_CHUNK_LEN << chunk))
    }

    #[inline]
    fn slot(&self, index: usize) -> Option<&ConnectionSlot> {
        let (chunk, slot) = Self::locate(index);
        self.chunks.get(chunk)?.get()?.get(slot)
    }

    /// Locks the connection to a peer, for an operation that is executed inline. `None` if an
    /// earlier operation waits for a credit.
    #[inline(always)] // fast path of small messages
    fn lock_inline(&self, peer: FiAddr) -> Option<ConnectionGuard<'_>> {
        // SYNC: pairs with the release in `set_blocked`: a thread that reads the flag as cleared
        // finds the operations that had waited for credits in the connection's queue.
        if self.blocked.load(Ordering::Acquire) {
            return None;
        }
        self.lock_peer(peer)
    }
}

impl FastPath for ConnectionTable {
    fn try_send(&self, tx_op: &TxOp, payload: Payload<'_>) -> FastPathResult {
        let len = payload.len();
        if len > self.max_msg_size || tx_op.fence || tx_op.more {
            return FastPathResult::WouldBlock;
        }
        let Some(mut tx) = self.lock_inline(tx_op.peer) else {
            return FastPathResult::WouldBlock;
        };
        let tx = &mut *tx;
        // The peer may turn out to be closed after the access, when it is notified.
        let pushed = tx.try_send(tx_op, payload, false);
        tx.fast_path_result(pushed, tx_op.kind, len)
    }

    fn try_send_plain(&self, peer: FiAddr, bytes: &[u8]) -> FastPathResult {
        if bytes.len() >= self.short_limit {
            let tx_op = TxOp::new(OpKind::Send, peer);
            return self.try_send(&tx_op, Payload::Contiguous(bytes));
        }
        let Some(mut tx) = self.lock_inline(peer) else {
            return FastPathResult::WouldBlock;
        };
        let tx = &mut *tx;
        let pushed = tx.push_short(bytes, false);
        tx.fast_path_result(Ok(pushed), OpKind::Send, bytes.len())
    }

    fn try_write_plain(&self, peer: FiAddr, remote: &RmaIov, bytes: &[u8]) -> FastPathResult {
        let Some(mut tx) = self.lock_inline(peer) else {
            return FastPathResult::WouldBlock;
        };
        let tx = &mut *tx;
        if bytes.len() > self.max_msg_size || tx.write_together(&[(*remote, bytes)]) == 0 {
            return FastPathResult::WouldBlock;
        }
        tx.fast_path_result(Ok(PushOutcome::Pushed), OpKind::Write, bytes.len())
    }

    fn try_atomic(&self, tx_op: &TxOp, operands: &[u8], result: &mut [u8]) -> FastPathResult {
        if tx_op.fence {
            return FastPathResult::WouldBlock;
        }
        let Some(mut tx) = self.lock_inline(tx_op.peer) else {
            return FastPathResult::WouldBlock;
        };
        let tx = &mut *tx;
        let executed = tx.try_atomic(tx_op, operands, result, false);
        let len = tx_op.remote.map_or(0, |remote| remote.len);
        tx.fast_path_result(executed, tx_op.kind, len)
    }
}

impl BlockableFastPath for ConnectionTable {
    fn set_blocked(&self, blocked: bool) {
        // SYNC: pairs with the acquire in `lock_inline`.
        self.blocked.store(blocked, Ordering::Release);
    }
}

impl Deref for ConnectionGuard<'_> {
    type Target = TxConnection;

    fn deref(&self) -> &TxConnection {
        self.0
            .as_deref()
            .expect("slot holds a connection while it is locked")
    }
}

impl DerefMut for ConnectionGuard<'_> {
    fn deref_mut(&mut self) -> &mut TxConnection {
        self.0
            .as_deref_mut()
            .expect("slot holds a connection while it is locked")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_a_distinct_location() {
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
