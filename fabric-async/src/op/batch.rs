//! Several requests posted together.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use fabric_core::buf::IoBuf;
use fabric_core::provider::SendSpec;
use fabric_core::{Error, Result};
use fabric_reactor::{CHUNK, CHUNK_BYTES, Post};

use crate::endpoint::Endpoint;
use crate::model::ThreadModel;

/// A request that can be posted together with others: [`SendRequest`](crate::SendRequest) or
/// [`WriteRequest`](crate::WriteRequest).
pub trait Batchable<'a, M: ThreadModel>: sealed::Batchable<'a, M> {}

pub(crate) mod sealed {
    use super::{Endpoint, IoBuf, Post, Result, ThreadModel};

    pub trait Batchable<'a, M: ThreadModel>: Sized {
        type Buf: IoBuf;
        /// Whether this endpoint can post it.
        fn check(&self, ep: &Endpoint<M>) -> Result<()>;
        fn into_post(self) -> Post<Self::Buf>;
        fn from_post(ep: &'a Endpoint<M>, post: Post<Self::Buf>) -> Self;
    }
}

/// A batch that stopped before its end ([`Endpoint::post_all`]).
///
/// `?` turns it into its [`Error`] and drops the requests that are left.
pub struct BatchStopped<R> {
    /// Why.
    pub error: Error,
    /// How many requests were posted before.
    pub posted: usize,
    /// Requests that were taken from the iterator and not posted, the refused one first. Chained with the rest of the
    /// iterator they can be tried again.
    pub rest: Vec<R>,
}

impl<R> fmt::Debug for BatchStopped<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("BatchStopped");
        debug
            .field("error", &self.error)
            .field("posted", &self.posted)
            .field("rest", &self.rest.len())
            .finish()
    }
}

impl<R> fmt::Display for BatchStopped<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped after {} requests: {}", self.posted, self.error)
    }
}

impl<R> std::error::Error for BatchStopped<R> {}

impl<R> From<BatchStopped<R>> for Error {
    fn from(stopped: BatchStopped<R>) -> Self {
        stopped.error
    }
}

pub(crate) fn post_all<'a, R: Batchable<'a, M>, M: ThreadModel>(
    ep: &'a Endpoint<M>,
    requests: impl IntoIterator<Item = R>,
) -> Result<usize, BatchStopped<R>> {
    let mut requests = requests.into_iter();
    let mut posted = 0;
    let mut chunk = VecDeque::with_capacity(CHUNK);
    loop {
        // The iterator is the user's code, and runs without the lock.
        let mut refused = None;
        let mut bytes = 0;
        while refused.is_none() && chunk.len() < CHUNK && bytes < CHUNK_BYTES {
            let Some(request) = requests.next() else { break };
            match request.check(ep) {
                Ok(()) => {
                    let post = request.into_post();
                    bytes += post.buf.payload().len();
                    chunk.push_back(post);
                }
                Err(error) => refused = Some((request, error)),
            }
        }
        if chunk.is_empty() && refused.is_none() {
            return Ok(posted);
        }
        let count = chunk.len();
        let sent = if count > 0 { ep.inner.domain.core.send_all(ep.inner.id, &mut chunk) } else { Ok(()) };
        posted += count - chunk.len();
        let (request, error) = match (sent, refused) {
            (Ok(()), None) => continue,
            (Ok(()), Some((request, error))) => (Some(request), error),
            (Err(error), refused) => (refused.map(|(request, _)| request), error),
        };
        let rest = chunk.into_iter().map(|post| R::from_post(ep, post)).chain(request).collect();
        return Err(BatchStopped { error, posted, rest });
    }
}

/// Whether this endpoint can post a request that was made with `of`.
pub(super) fn check<M: ThreadModel>(
    ep: &Endpoint<M>,
    of: &Endpoint<M>,
    spec: &SendSpec,
    buf: &impl IoBuf,
) -> Result<()> {
    if !Arc::ptr_eq(&of.inner, &ep.inner) {
        return Err(Error::Invalid { what: "batch", why: "a request is of another endpoint".into() });
    }
    ep.inner.check_send(spec)?;
    ep.inner.check_gather(buf)
}
