//! Several posts under one lock.
//!
//! What a single post pays besides the message itself (the lock, the fence before it looks whether the peer sleeps, what
//! has to be followed up) is paid once for all of them. Whoever has many takes them a chunk at a time, so that the lock
//! is not held for long, and makes no call of the user's code in between.

use std::collections::VecDeque;

use fabric_core::buf::IoBuf;
use fabric_core::provider::{EpId, SendSpec};
use fabric_core::{Error, Result};

use crate::domain::Domain;
use crate::engine::Locked;
use crate::ops::{Credit, Route};

/// Posts under one lock, at most.
pub const CHUNK: usize = 32;
/// Bytes after which a chunk ends.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// A post that waits for its turn.
#[derive(Debug)]
pub struct Post<B> {
    /// What is to be done.
    pub spec: SendSpec,
    /// Who hears of its end: the transmit queue.
    pub route: Route,
    /// The payload.
    pub buf: B,
}

impl Domain {
    /// Sends copies of borrowed bytes, each as a message like this one. How many were accepted, and why it stopped there
    /// if it did.
    pub fn inject_all(&self, ep: EpId, spec: SendSpec, messages: &[&[u8]]) -> (usize, Result<()>) {
        let spec = SendSpec { more: true, ..spec };
        let mut locked = self.engine.lock();
        let mut refused = messages.iter().enumerate().map(|(at, bytes)| {
            let sent = locked.inject(ep, spec, bytes, self.pool());
            (at, sent)
        });
        let stopped = refused.find(|(_, sent)| sent.is_err());
        let (accepted, sent) = stopped.unwrap_or((messages.len(), Ok(())));
        let sent = locked.end_batch(ep, accepted, sent);
        (accepted, sent)
    }

    /// Posts everything in the list, from the front; what was not posted stays there.
    ///
    /// # Errors
    /// Why the first that is left was refused; or, with nothing left, [`Error::PeerGone`] when a peer closed meanwhile.
    pub fn send_all<B: IoBuf>(&self, ep: EpId, posts: &mut VecDeque<Post<B>>) -> Result<()> {
        let mut locked = self.engine.lock();
        let (mut accepted, mut sent) = (0, Ok(()));
        while let Some(Post { spec, route, buf }) = posts.pop_front() {
            let more = SendSpec { more: true, ..spec };
            if let Err(failed) = locked.send(ep, more, buf, route, Credit::Now) {
                posts.push_front(Post { spec, route, buf: failed.buf });
                sent = Err(failed.error);
                break;
            }
            accepted += 1;
        }
        locked.end_batch(ep, accepted, sent)
    }
}

impl Locked<'_> {
    /// Makes up for what was left out, whether all went well or not. A refusal says more than the end of a peer.
    fn end_batch(&mut self, ep: EpId, accepted: usize, sent: Result<()>) -> Result<()> {
        let state = &mut **self;
        let flushed = match state.provider.flush(&mut state.hub, ep) {
            // Every post has said so already, if there was one.
            Err(Error::Closed(_)) => Ok(()),
            flushed => flushed,
        };
        self.finish_all(accepted.max(1) as u32);
        sent.and(flushed)
    }
}
