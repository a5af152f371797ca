//! Several posts under one lock.
//!
//! What a single post pays besides the message itself (the lock, the fence before it looks whether
//! the peer sleeps, what has to be followed up) is paid once for all of them. Whoever has many
//! takes them a chunk at a time, so that the lock is not held for long, and makes no call of the
//! user's code in between.

use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::Failed;
use fabric_core::matching::RecvSpec;
use fabric_core::transport::{EpId, RmaIov, TxOp};
use fabric_core::{Error, Result};

use crate::domain::DomainHandle;
use crate::engine::EngineGuard;
use crate::ops::{CompletionTarget, CreditMode};

/// Posts under one lock, at most.
pub const MAX_BATCH_POSTS: usize = 32;
/// Bytes that are copied under one lock, about.
pub const MAX_BATCH_BYTES: usize = 64 * 1024;

/// Posts of one endpoint, made while the domain is locked: no call of the user's code may be made
/// while it lives.
///
/// Nobody is woken before its end: [`Batch::finish`], or the drop.
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
    /// Posts a send or a write that reports to the transmit queue. The spec says that more follows.
    ///
    /// # Errors
    /// With the buffer, as [`DomainHandle::send`].
    #[inline]
    #[allow(clippy::result_large_err)] // as of every post
    pub fn send<B: IoBuf>(
        &mut self,
        spec: &TxOp,
        buf: B,
        route: CompletionTarget,
    ) -> Result<(), Failed<B>> {
        debug_assert!(spec.more, "somebody would be woken for each");
        self.posts += 1;
        self.engine
            .send(self.ep, spec, buf, route, CreditMode::NoWait)
            .map(drop)
    }

    /// Posts a write to several places that reports to the transmit queue.
    ///
    /// # Errors
    /// With the buffer, as [`DomainHandle::write_rma_iov`].
    #[allow(clippy::result_large_err)] // as of every post
    pub fn write_rma_iov<B: IoBuf>(
        &mut self,
        spec: TxOp,
        places: &[RmaIov],
        buf: B,
        route: CompletionTarget,
    ) -> Result<(), Failed<B>> {
        self.posts += 1;
        self.engine
            .write_rma_iov(self.ep, spec, places, buf, route, CreditMode::NoWait)
            .map(drop)
    }

    /// Sends a copy of borrowed bytes. The spec says that more follows.
    ///
    /// # Errors
    /// As [`DomainHandle::inject`].
    #[inline]
    pub fn inject(&mut self, spec: &TxOp, bytes: &[u8]) -> Result<()> {
        debug_assert!(spec.more, "somebody would be woken for each");
        self.posts += 1;
        self.engine.inject(self.ep, spec, bytes, self.domain.pool())
    }

    /// Posts a receive that reports to the receive queue.
    ///
    /// # Errors
    /// With the buffer, as [`DomainHandle::recv`].
    #[inline]
    #[allow(clippy::result_large_err)] // as of every post
    pub fn recv<B: IoBufMut>(
        &mut self,
        spec: RecvSpec,
        buf: B,
        route: CompletionTarget,
    ) -> Result<(), Failed<B>> {
        self.posts += 1;
        self.engine
            .recv(self.ep, spec, buf, route, CreditMode::NoWait)
            .map(drop)
    }

    /// Bytes of messages that the endpoint has received.
    pub fn received_bytes(&self) -> u64 {
        self.engine
            .domain
            .endpoints
            .get(self.ep.0)
            .map_or(0, |ep| ep.stats.received.bytes)
    }

    /// Gives others their turn.
    pub fn yield_lock(&mut self) {
        self.engine.finish_posts(std::mem::take(&mut self.posts));
        self.engine.yield_lock();
    }

    /// Wakes whom the posts were for, and lets go of the lock.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when a peer has closed meanwhile.
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    /// Makes up for what was left out.
    fn flush(&mut self) -> Result<()> {
        self.finished = true;
        let state = &mut *self.engine;
        let flushed = match state.transport.flush(&mut state.domain, self.ep) {
            // Every post has said so already, if there was one.
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
            // Nobody is left to be told: a peer's end is an event as well.
            let _ = self.flush();
        }
    }
}
