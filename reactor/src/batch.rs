//! Posts many operations under one lock (`FI_MORE`).
//!
//! The lock, the fence before the test whether the peer sleeps, and the follow-up work are paid
//! once for a chunk of posts. Records are published one by one, and the transport's `flush` rings
//! the doorbell once at the end of the chunk. A long batch is posted in chunks, so the lock is not
//! held for long, and no user code runs in between.
//!
//! `FI_MORE` is a call, not a flag: a guard that holds records back would have to be dropped, a
//! call returns.

use std::fmt;

use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::Failed;
use fabric_core::matching::RecvSpec;
use fabric_core::transport::{EpId, RmaIov, TxOp};
use fabric_core::{Error, Result};

use crate::domain::DomainHandle;
use crate::engine::EngineGuard;
use crate::ops::{CompletionTarget, CreditMode};

/// The maximum number of posts under one lock.
pub const MAX_BATCH_POSTS: usize = 32;
/// The approximate number of bytes that are copied under one lock.
pub const MAX_BATCH_BYTES: usize = 64 * 1024;

/// A chunk of posts of one endpoint, made while the domain is locked: no user code may run while
/// this value exists.
///
/// Peers and tasks are woken at the end: by [`PostBatch::finish`], or by the drop.
pub struct PostBatch<'a> {
    domain: &'a DomainHandle,
    engine: EngineGuard<'a>,
    ep: EpId,
    posts: u32,
    finished: bool,
}

impl DomainHandle {
    /// Locks the domain for a chunk of posts.
    pub fn batch(&self, ep: EpId) -> PostBatch<'_> {
        PostBatch {
            domain: self,
            engine: self.engine().lock(),
            ep,
            posts: 0,
            finished: false,
        }
    }
}

impl PostBatch<'_> {
    /// Posts a send or a write that reports to the transmit queue. `tx_op.more` must be set.
    ///
    /// # Errors
    /// As [`DomainHandle::send`], with the buffer.
    #[inline]
    #[allow(clippy::result_large_err)] // like every post
    pub fn send<B: IoBuf>(
        &mut self,
        tx_op: &TxOp,
        buf: B,
        target: CompletionTarget,
    ) -> Result<(), Failed<B>> {
        debug_assert!(
            tx_op.more,
            "batched post without FI_MORE rings a doorbell each"
        );
        let buf = self.domain.own_payload(buf)?;
        self.posts += 1;
        self.engine
            .send(self.ep, tx_op, buf, target, CreditMode::NoWait)
            .map(drop)
    }

    /// Posts a write to several remote segments that reports to the transmit queue.
    ///
    /// # Errors
    /// As [`DomainHandle::write_rma_iov`], with the buffer.
    #[allow(clippy::result_large_err)] // like every post
    pub fn write_rma_iov<B: IoBuf>(
        &mut self,
        tx_op: TxOp,
        rma_iovs: &[RmaIov],
        buf: B,
        target: CompletionTarget,
    ) -> Result<(), Failed<B>> {
        let buf = self.domain.own_payload(buf)?;
        self.posts += 1;
        self.engine
            .write_rma_iov(self.ep, tx_op, rma_iovs, buf, target, CreditMode::NoWait)
            .map(drop)
    }

    /// Sends a copy of borrowed bytes. `tx_op.more` must be set.
    ///
    /// # Errors
    /// As [`DomainHandle::inject`].
    #[inline]
    pub fn inject(&mut self, tx_op: &TxOp, bytes: &[u8]) -> Result<()> {
        debug_assert!(
            tx_op.more,
            "batched post without FI_MORE rings a doorbell each"
        );
        self.posts += 1;
        self.engine
            .inject(self.ep, tx_op, bytes, self.domain.pool())
    }

    /// Posts a receive that reports to the receive queue.
    ///
    /// # Errors
    /// As [`DomainHandle::recv`], with the buffer.
    #[inline]
    #[allow(clippy::result_large_err)] // like every post
    pub fn recv<B: IoBufMut>(
        &mut self,
        spec: RecvSpec,
        buf: B,
        target: CompletionTarget,
    ) -> Result<(), Failed<B>> {
        self.posts += 1;
        self.engine
            .recv(self.ep, spec, buf, target, CreditMode::NoWait)
            .map(drop)
    }

    /// Returns the bytes of messages that the endpoint has received.
    pub fn received_bytes(&self) -> u64 {
        self.engine
            .domain
            .endpoints
            .get(self.ep.0)
            .map_or(0, |ep| ep.stats.received.bytes)
    }

    /// Releases the lock for a moment, so that other threads get it.
    pub fn yield_lock(&mut self) {
        self.engine.finish_posts(std::mem::take(&mut self.posts));
        self.engine.yield_lock();
    }

    /// Flushes the posts, wakes the peers they were for, and releases the lock.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when a peer has closed meanwhile.
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    /// Does the work that the posts deferred: rings doorbells and runs follow-ups.
    fn flush(&mut self) -> Result<()> {
        self.finished = true;
        let state = &mut *self.engine;
        let flushed = match state.transport.flush(&mut state.domain, self.ep) {
            // Every post has reported the closed endpoint already, if there was a post.
            Err(Error::Closed(_)) => Ok(()),
            flushed => flushed,
        };
        self.engine.finish_posts(self.posts);
        flushed
    }
}

impl Drop for PostBatch<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // There is no caller to return an error to; the end of a peer is an event as well.
            let _ = self.flush();
        }
    }
}

impl fmt::Debug for PostBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostBatch")
            .field("ep", &self.ep)
            .field("posts", &self.posts)
            .finish_non_exhaustive()
    }
}
