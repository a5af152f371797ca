//! Several posts under one lock.
//!
//! What a single post pays besides the message itself (the lock, the fence before it looks whether
//! the peer sleeps, what has to be followed up) is paid once for all of them. Whoever has many
//! takes them a chunk at a time, so that the lock is not held for long, and makes no call of the
//! user's code in between.

use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::Failed;
use fabric_core::matching::RecvSpec;
use fabric_core::provider::{EpId, Remote, SendSpec};
use fabric_core::{Error, Result};

use crate::domain::Domain;
use crate::engine::Locked;
use crate::ops::{Credit, Route};

/// Posts under one lock, at most.
pub const CHUNK: usize = 32;
/// Bytes that are copied under one lock, about.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// Posts of one endpoint, made while the domain is locked: no call of the user's code may be made
/// while it lives.
///
/// Nobody is woken before its end: [`Batch::end`], or the drop.
pub struct Batch<'a> {
    domain: &'a Domain,
    locked: Locked<'a>,
    ep: EpId,
    posts: u32,
    ended: bool,
}

impl Domain {
    /// Locks the domain for a chunk of posts.
    pub fn batch(&self, ep: EpId) -> Batch<'_> {
        Batch {
            domain: self,
            locked: self.engine().lock(),
            ep,
            posts: 0,
            ended: false,
        }
    }
}

impl Batch<'_> {
    /// Posts a send or a write that reports to the transmit queue. The spec says that more follows.
    ///
    /// # Errors
    /// With the buffer, as [`Domain::send`].
    #[inline]
    #[allow(clippy::result_large_err)] // as of every post
    pub fn send<B: IoBuf>(
        &mut self,
        spec: &SendSpec,
        buf: B,
        route: Route,
    ) -> Result<(), Failed<B>> {
        debug_assert!(spec.more, "somebody would be woken for each");
        self.posts += 1;
        self.locked
            .send(self.ep, spec, buf, route, Credit::Now)
            .map(drop)
    }

    /// Posts a write to several places that reports to the transmit queue.
    ///
    /// # Errors
    /// With the buffer, as [`Domain::write_to`].
    #[allow(clippy::result_large_err)] // as of every post
    pub fn write_to<B: IoBuf>(
        &mut self,
        spec: SendSpec,
        places: &[Remote],
        buf: B,
        route: Route,
    ) -> Result<(), Failed<B>> {
        self.posts += 1;
        self.locked
            .write_to(self.ep, spec, places, buf, route, Credit::Now)
            .map(drop)
    }

    /// Sends a copy of borrowed bytes. The spec says that more follows.
    ///
    /// # Errors
    /// As [`Domain::inject`].
    #[inline]
    pub fn inject(&mut self, spec: &SendSpec, bytes: &[u8]) -> Result<()> {
        debug_assert!(spec.more, "somebody would be woken for each");
        self.posts += 1;
        self.locked.inject(self.ep, spec, bytes, self.domain.pool())
    }

    /// Posts a receive that reports to the receive queue.
    ///
    /// # Errors
    /// With the buffer, as [`Domain::recv`].
    #[inline]
    #[allow(clippy::result_large_err)] // as of every post
    pub fn recv<B: IoBufMut>(
        &mut self,
        spec: RecvSpec,
        buf: B,
        route: Route,
    ) -> Result<(), Failed<B>> {
        self.posts += 1;
        self.locked
            .recv(self.ep, spec, buf, route, Credit::Now)
            .map(drop)
    }

    /// Bytes of messages that the endpoint has received.
    pub fn received_bytes(&self) -> u64 {
        self.locked
            .hub
            .eps
            .get(self.ep.0)
            .map_or(0, |ep| ep.stats.received.bytes)
    }

    /// Gives others their turn.
    pub fn pause(&mut self) {
        self.locked.finish_all(std::mem::take(&mut self.posts));
        self.locked.pause();
    }

    /// Wakes whom the posts were for, and lets go of the lock.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when a peer has closed meanwhile.
    pub fn end(mut self) -> Result<()> {
        self.flush()
    }

    /// Makes up for what was left out.
    fn flush(&mut self) -> Result<()> {
        self.ended = true;
        let state = &mut *self.locked;
        let flushed = match state.provider.flush(&mut state.hub, self.ep) {
            // Every post has said so already, if there was one.
            Err(Error::Closed(_)) => Ok(()),
            flushed => flushed,
        };
        self.locked.finish_all(self.posts);
        flushed
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // Nobody is left to be told: a peer's end is an event as well.
            let _ = self.flush();
        }
    }
}
