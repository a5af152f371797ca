//! Posting several requests together.

use std::fmt;
use std::sync::Arc;

use fabric_core::buf::IoBuf;
use fabric_core::completion::Failed;
use fabric_core::transport::TxOp;
use fabric_core::{Error, Result};
use fabric_reactor::{MAX_BATCH_BYTES, MAX_BATCH_POSTS};

use super::CompletionOptions;
use crate::endpoint::Endpoint;
use crate::thread_model::ThreadModel;

/// A request that can be posted in a batch with others of its type:
/// [`SendRequest`](crate::SendRequest), [`WriteRequest`](crate::WriteRequest) or
/// [`RecvRequest`](crate::RecvRequest).
pub trait Batchable<'a, M: ThreadModel>: sealed::BatchPost<'a, M> {}

pub(crate) mod sealed {
    use super::{ChunkResult, Endpoint, Result, ThreadModel};

    pub trait BatchPost<'a, M: ThreadModel>: Sized {
        /// The part of the request that is posted.
        type Prepared;
        /// Checks that this endpoint can post the request.
        fn check_for(&self, ep: &Endpoint<M>) -> Result<()>;
        /// Returns the number of bytes that the post copies, as far as the request tells.
        fn copied_len(&self) -> usize;
        /// Turns the request into an element of a chunk.
        fn prepare(self) -> Self::Prepared;
        /// Returns the request of an element that was not posted, else `None`.
        fn restore(ep: &'a Endpoint<M>, ready: Self::Prepared) -> Option<Self>;
        /// Posts a chunk.
        fn post_chunk(ep: &'a Endpoint<M>, chunk: &mut [Self::Prepared]) -> ChunkResult;
    }
}

/// Number of requests of a chunk that were posted, and the error that stopped it or of a peer that
/// disconnected. Elements that were not posted have their buffers.
pub(crate) type ChunkResult = (usize, Result<()>);

/// A request of a chunk. It is posted by reference, because it is large.
pub struct PreparedRequest<S, B> {
    pub(super) spec: S,
    /// `None` after it was posted.
    pub(super) buf: Option<B>,
    pub(super) report: CompletionOptions,
}

/// The error of a batch that stopped before its end ([`Endpoint::post_all`]).
///
/// `?` turns it into its [`Error`] and drops the unposted requests. Retry only after
/// [`Error::WouldBlock`]: after any other error the first unposted request would fail again.
pub struct BatchError<R> {
    /// The error of the request that stopped the batch.
    pub error: Error,
    /// Number of requests that were posted.
    pub posted: usize,
    /// Requests that were taken from the iterator and not posted, the refused one first. Chain them
    /// with the rest of the iterator to retry.
    pub unposted: Vec<R>,
}

impl<R> fmt::Debug for BatchError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("BatchError");
        debug
            .field("error", &self.error)
            .field("posted", &self.posted)
            .field("unposted", &self.unposted.len())
            .finish()
    }
}

impl<R> fmt::Display for BatchError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "batch stopped after {} posted requests: {}",
            self.posted, self.error
        )
    }
}

impl<R> std::error::Error for BatchError<R> {}

impl<R> From<BatchError<R>> for Error {
    fn from(stopped: BatchError<R>) -> Self {
        stopped.error
    }
}

/// Converts the error, and drops the unposted requests.
impl<R> From<BatchError<R>> for std::io::Error {
    fn from(stopped: BatchError<R>) -> Self {
        stopped.error.into()
    }
}

pub(crate) fn post_all<'a, R: Batchable<'a, M>, M: ThreadModel>(
    ep: &'a Endpoint<M>,
    requests: impl IntoIterator<Item = R>,
) -> Result<usize, BatchError<R>> {
    let mut requests = requests.into_iter();
    let mut posted = 0;
    let mut chunk = Vec::with_capacity(MAX_BATCH_POSTS);
    loop {
        // The iterator is code of the application, and runs without the domain's lock.
        let (mut refused, mut bytes) = (None, 0);
        while chunk.len() < MAX_BATCH_POSTS && bytes < MAX_BATCH_BYTES {
            let Some(request) = requests.next() else {
                break;
            };
            if let Err(error) = request.check_for(ep) {
                refused = Some((request, error));
                break;
            }
            bytes += request.copied_len();
            chunk.push(request.prepare());
        }
        if chunk.is_empty() && refused.is_none() {
            return Ok(posted);
        }
        let (count, sent) = if chunk.is_empty() {
            (0, Ok(()))
        } else {
            R::post_chunk(ep, &mut chunk)
        };
        posted += count;
        let (request, error) = match (sent, refused) {
            (Ok(()), None) => {
                chunk.clear();
                continue;
            }
            (Ok(()), Some((request, error))) => (Some(request), error),
            (Err(error), refused) => (refused.map(|(request, _)| request), error),
        };
        let mut rest: Vec<R> = chunk
            .into_iter()
            .filter_map(|ready| R::restore(ep, ready))
            .collect();
        rest.extend(request);
        return Err(BatchError {
            error,
            posted,
            unposted: rest,
        });
    }
}

/// Posts a chunk request by request, until one is refused.
#[inline(always)] // in the path of small messages
pub(super) fn post_until_error<S, B>(
    chunk: &mut [PreparedRequest<S, B>],
    mut post: impl FnMut(&S, B, CompletionOptions) -> Result<(), Failed<B>>,
) -> ChunkResult {
    for (at, ready) in chunk.iter_mut().enumerate() {
        let Some(buf) = ready.buf.take() else {
            continue;
        };
        if let Err(failed) = post(&ready.spec, buf, ready.report) {
            ready.buf = Some(failed.buf);
            return (at, Err(failed.error));
        }
    }
    (chunk.len(), Ok(()))
}

/// Checks that this endpoint can send a request that was created on `of`.
pub(super) fn check_send<M: ThreadModel>(
    ep: &Endpoint<M>,
    of: &Endpoint<M>,
    spec: &TxOp,
    buf: &impl IoBuf,
) -> Result<()> {
    check_same_endpoint(ep, of)?;
    ep.inner.check_tx_op(spec)?;
    ep.inner.check_tx_iov(buf)
}

pub(super) fn check_same_endpoint<M: ThreadModel>(
    ep: &Endpoint<M>,
    of: &Endpoint<M>,
) -> Result<()> {
    if Arc::ptr_eq(&of.inner, &ep.inner) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "batch",
        why: "a request was created on another endpoint".into(),
    })
}

impl<S: fmt::Debug, B> fmt::Debug for PreparedRequest<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedRequest")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}
