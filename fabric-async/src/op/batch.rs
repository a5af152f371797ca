//! Several requests posted together.

use std::fmt;
use std::sync::Arc;

use fabric_core::buf::IoBuf;
use fabric_core::provider::SendSpec;
use fabric_core::{Error, Result};
use fabric_reactor::{CHUNK, CHUNK_BYTES};

use crate::endpoint::Endpoint;
use crate::model::ThreadModel;

/// A request that can be posted together with others of its type: [`SendRequest`](crate::SendRequest),
/// [`WriteRequest`](crate::WriteRequest) or [`RecvRequest`](crate::RecvRequest).
pub trait Batchable<'a, M: ThreadModel>: sealed::Batchable<'a, M> {}

pub(crate) mod sealed {
    use super::{Endpoint, Result, Stopped, ThreadModel};

    pub trait Batchable<'a, M: ThreadModel>: Sized {
        /// Makes it one of several: whether this endpoint can post it.
        fn prepare(&mut self, ep: &Endpoint<M>) -> Result<()>;
        /// Bytes that the post copies, as far as the request tells.
        fn len(&self) -> usize;
        /// Posts a chunk.
        fn post_chunk(ep: &'a Endpoint<M>, chunk: &mut Vec<Self>) -> Stopped;
    }
}

/// How many of a chunk were posted, and why no more, or that a peer is gone. What was not posted is still there.
pub(crate) type Stopped = (usize, Result<()>);

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
    let mut chunk = Vec::with_capacity(CHUNK);
    loop {
        // The iterator is the user's code, and runs without the lock.
        let (mut refused, mut bytes) = (None, 0);
        while chunk.len() < CHUNK && bytes < CHUNK_BYTES {
            let Some(mut request) = requests.next() else { break };
            if let Err(error) = request.prepare(ep) {
                refused = Some((request, error));
                break;
            }
            bytes += request.len();
            chunk.push(request);
        }
        if chunk.is_empty() && refused.is_none() {
            return Ok(posted);
        }
        let (count, sent) = if chunk.is_empty() { (0, Ok(())) } else { R::post_chunk(ep, &mut chunk) };
        posted += count;
        let (request, error) = match (sent, refused) {
            (Ok(()), None) => continue,
            (Ok(()), Some((request, error))) => (Some(request), error),
            (Err(error), refused) => (refused.map(|(request, _)| request), error),
        };
        chunk.extend(request);
        return Err(BatchStopped { error, posted, rest: chunk });
    }
}

/// Posts a chunk, request by request; `post` gives one back that is refused. It stays in the chunk, with those behind it.
pub(super) fn post_each<R>(chunk: &mut Vec<R>, mut post: impl FnMut(R) -> Option<(R, Error)>) -> Stopped {
    let count = chunk.len();
    let mut requests = chunk.drain(..);
    let refused = requests.by_ref().find_map(&mut post);
    let Some((request, error)) = refused else { return (count, Ok(())) };
    let rest: Vec<R> = std::iter::once(request).chain(requests).collect();
    *chunk = rest;
    (count - chunk.len(), Err(error))
}

/// Whether this endpoint can send a request that was made with `of`.
pub(super) fn check<M: ThreadModel>(
    ep: &Endpoint<M>,
    of: &Endpoint<M>,
    spec: &SendSpec,
    buf: &impl IoBuf,
) -> Result<()> {
    check_endpoint(ep, of)?;
    ep.inner.check_send(spec)?;
    ep.inner.check_gather(buf)
}

pub(super) fn check_endpoint<M: ThreadModel>(ep: &Endpoint<M>, of: &Endpoint<M>) -> Result<()> {
    if Arc::ptr_eq(&of.inner, &ep.inner) {
        return Ok(());
    }
    Err(Error::Invalid { what: "batch", why: "a request is of another endpoint".into() })
}
