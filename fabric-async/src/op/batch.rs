//! Posting several requests together.

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;
use fabric_core::buf::{AnyBuf, IoBuf, Payload};
use fabric_core::completion::{Failed, OpKind};
use fabric_core::matching::TagMatch;
use fabric_core::transport::RmaIov;
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{CompletionTarget, MAX_BATCH_BYTES, MAX_BATCH_POSTS, PostBatch};

use super::traits::{BufferOp, Op};
use super::{CompletionOptions, Request};
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::ThreadModel;

/// An operation that can be posted in a batch with others of its type
/// ([`Endpoint::post_all`](crate::Endpoint::post_all)): a send, a write or a receive.
pub trait BatchOp<B: IoBuf>: BufferOp<B> + for<'a> Op<Ep<'a> = &'a Arc<EndpointInner>> {
    /// Checks the request against the endpoint's state, capabilities and limits.
    #[doc(hidden)]
    fn check(&self, ep: &EndpointInner, buf: &B) -> Result<()>;
    /// Returns the number of bytes that the post copies; 0 if that is not known before the post.
    #[doc(hidden)]
    fn copied_len(&self, buf: &B) -> usize;
    /// Posts the requests of a chunk in order, until one is refused.
    #[doc(hidden)]
    fn post_chunk(ep: &EndpointInner, chunk: &mut [QueuedRequest<Self, B>]) -> ChunkResult
    where
        Self: Sized;
}

/// The number of requests of a chunk that were posted, and an error: of the request that was
/// refused, or, if all were posted, of a peer that has disconnected. Requests that were not posted
/// have their buffers.
pub(super) type ChunkResult = (usize, Result<()>);

/// A request of a chunk, before or after its post.
pub struct QueuedRequest<O, B> {
    op: O,
    /// `None` after it was posted.
    buf: Option<B>,
    completion_options: CompletionOptions,
}

/// The error of a batch that stopped before its end
/// ([`Endpoint::post_all`](crate::Endpoint::post_all)).
///
/// `?` converts it to its [`Error`] and drops the unposted requests. Retry only after
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
    fn from(batch: BatchError<R>) -> Self {
        batch.error
    }
}

/// Converts the error, and drops the unposted requests.
impl<R> From<BatchError<R>> for std::io::Error {
    fn from(batch: BatchError<R>) -> Self {
        batch.error.into()
    }
}

/// Posts requests of this endpoint in chunks, until one is refused.
#[inline]
pub(crate) fn post_all<'a, O: BatchOp<B>, B: IoBuf, M: ThreadModel>(
    ep: &'a Arc<EndpointInner>,
    requests: impl IntoIterator<Item = Request<'a, O, B, M>>,
) -> Result<usize, BatchError<Request<'a, O, B, M>>> {
    // A chunk is on the stack, and a buffer may be a long array.
    match size_of::<QueuedRequest<O, B>>() {
        0..=256 => post_in_chunks::<MAX_BATCH_POSTS, O, B, M>(ep, requests.into_iter()),
        257..=1024 => post_in_chunks::<8, O, B, M>(ep, requests.into_iter()),
        _ => post_in_chunks::<1, O, B, M>(ep, requests.into_iter()),
    }
}

/// Posts requests in chunks of at most this length.
#[inline]
fn post_in_chunks<'a, const CHUNK_LEN: usize, O: BatchOp<B>, B: IoBuf, M: ThreadModel>(
    ep: &'a Arc<EndpointInner>,
    mut requests: impl Iterator<Item = Request<'a, O, B, M>>,
) -> Result<usize, BatchError<Request<'a, O, B, M>>> {
    let mut posted = 0;
    let mut chunk: ArrayVec<QueuedRequest<O, B>, CHUNK_LEN> = ArrayVec::new();
    loop {
        // The iterator is code of the application, and runs without the domain's lock.
        let (mut refused, mut chunk_bytes) = (None, 0);
        while !chunk.is_full() && chunk_bytes < MAX_BATCH_BYTES {
            let Some(request) = requests.next() else {
                break;
            };
            if let Err(error) = check_same_endpoint(ep, request.ep) {
                refused = Some((request, error));
                break;
            }
            let Request {
                op,
                buf,
                completion_options,
                ..
            } = request;
            // Checked where it is stored: a request that is moved just after it was written waits
            // for its own stores.
            chunk.push(QueuedRequest {
                op,
                buf: Some(buf),
                completion_options,
            });
            let last = chunk.len() - 1;
            match chunk[last].stage_and_check(ep) {
                Ok(copied_len) => chunk_bytes += copied_len,
                Err(error) => {
                    let queued = chunk.pop();
                    refused = queued.and_then(|queued| Some((queued.into_request(ep)?, error)));
                    break;
                }
            }
        }
        if chunk.is_empty() && refused.is_none() {
            return Ok(posted);
        }
        let (count, chunk_result) = if chunk.is_empty() {
            (0, Ok(()))
        } else {
            O::post_chunk(ep, &mut chunk)
        };
        posted += count;
        let (request, error) = match (chunk_result, refused) {
            (Ok(()), None) => {
                chunk.clear();
                continue;
            }
            (Ok(()), Some((request, error))) => (Some(request), error),
            (Err(error), refused) => (refused.map(|(request, _)| request), error),
        };
        let mut unposted: Vec<_> = chunk
            .into_iter()
            .filter_map(|queued| queued.into_request(ep))
            .collect();
        unposted.extend(request);
        return Err(BatchError {
            error,
            posted,
            unposted,
        });
    }
}

/// Posts the requests of a chunk from `posted` on, until one is refused.
#[inline(always)] // on the small-message path
pub(super) fn post_until_error<O, B>(
    mut posts: PostBatch<'_>,
    chunk: &mut [QueuedRequest<O, B>],
    posted: usize,
    mut post: impl FnMut(&mut PostBatch<'_>, &O, B, CompletionOptions) -> Result<(), Failed<B>>,
) -> ChunkResult {
    let (mut count, mut refused) = (chunk.len(), Ok(()));
    for (at, queued) in chunk.iter_mut().enumerate().skip(posted) {
        let Some(buf) = queued.buf.take() else {
            continue;
        };
        if let Err(failed) = post(&mut posts, &queued.op, buf, queued.completion_options) {
            queued.buf = Some(failed.buf);
            (count, refused) = (at, Err(failed.error));
            break;
        }
    }
    // The error of a refused request takes precedence over that of a peer that disconnected.
    (count, refused.and(posts.finish()))
}

/// Sends the plain messages at the start of a chunk together, if they are for one peer and
/// `plain_peer` returns that peer for each. Returns how many were sent.
#[inline(always)] // on the small-message path
pub(super) fn send_plain_together<O, B: IoBuf>(
    posts: &mut PostBatch<'_>,
    chunk: &mut [QueuedRequest<O, B>],
    plain_peer: impl Fn(&O) -> Option<FiAddr>,
) -> usize {
    let Some(peer) = plain_peer(&chunk[0].op) else {
        return 0;
    };
    let mut messages: [&[u8]; MAX_BATCH_POSTS] = [&[]; MAX_BATCH_POSTS];
    let mut count = 0;
    for (message, queued) in messages.iter_mut().zip(chunk.iter()) {
        let Some(Payload::Contiguous(bytes)) = queued.buf.as_ref().map(IoBuf::payload) else {
            break;
        };
        if plain_peer(&queued.op) != Some(peer) {
            break;
        }
        *message = bytes;
        count += 1;
    }
    let sent = posts.try_send_plain(peer, &messages[..count]);
    report(posts, OpKind::Send, &mut chunk[..sent]);
    sent
}

/// Executes the plain writes at the start of a chunk together, if they are to one peer and
/// `plain_write` returns that peer and the range of each. Returns how many were executed.
pub(super) fn write_plain_together<O, B: IoBuf>(
    posts: &mut PostBatch<'_>,
    chunk: &mut [QueuedRequest<O, B>],
    plain_write: impl Fn(&O, usize) -> Option<(FiAddr, RmaIov)>,
) -> usize {
    let mut writes: ArrayVec<_, MAX_BATCH_POSTS> = ArrayVec::new();
    let mut target = None;
    for queued in chunk.iter() {
        let Some(Payload::Contiguous(bytes)) = queued.buf.as_ref().map(IoBuf::payload) else {
            break;
        };
        let Some((peer, remote)) = plain_write(&queued.op, bytes.len()) else {
            break;
        };
        if *target.get_or_insert(peer) != peer {
            break;
        }
        writes.push((remote, bytes));
    }
    let Some(peer) = target else { return 0 };
    let executed = posts.try_write_plain(peer, &writes);
    drop(writes);
    report(posts, OpKind::Write, &mut chunk[..executed]);
    executed
}

/// Reports operations that were executed together.
#[inline(always)] // on the small-message path
fn report<O, B: IoBuf>(
    posts: &mut PostBatch<'_>,
    kind: OpKind,
    executed: &mut [QueuedRequest<O, B>],
) {
    posts.report(
        kind,
        executed.iter_mut().map(
            #[inline(always)] // on the small-message path
            |queued| {
                let len = queued.buf.as_ref().map_or(0, |buf| buf.payload().len());
                (queued.completion_options.context, len, queued.take_buf())
            },
        ),
    );
}

/// Posts the receives at the start of a chunk together for which `tag_from_any` returns the tags
/// that they accept, from any source, as far as possible. Returns how many were posted.
#[inline(always)] // on the small-message path
pub(super) fn post_receives_together<O, B: IoBuf>(
    posts: &mut PostBatch<'_>,
    chunk: &mut [QueuedRequest<O, B>],
    tag_from_any: impl Fn(&O) -> Option<Option<TagMatch>>,
    is_selective: bool,
) -> usize {
    let is_untagged = |queued: &QueuedRequest<O, B>| tag_from_any(&queued.op) == Some(None);
    let untagged = chunk.iter().position(|queued| !is_untagged(queued));
    let untagged = untagged.unwrap_or(chunk.len());
    let untagged_posted = posts.recv_together(untagged, |index| {
        let (buf, target) = chunk[index].take(is_selective);
        (None, buf, target)
    });
    if untagged_posted < untagged || untagged == chunk.len() {
        return untagged_posted;
    }
    let others = &mut chunk[untagged..];
    let from_one = |queued: &QueuedRequest<O, B>| tag_from_any(&queued.op).is_none();
    let count = others.iter().position(from_one).unwrap_or(others.len());
    untagged
        + posts.recv_together(count, |index| {
            let tag = tag_from_any(&others[index].op).flatten();
            let (buf, target) = others[index].take(is_selective);
            (tag, buf, target)
        })
}

impl<O: BatchOp<B>, B: IoBuf> QueuedRequest<O, B> {
    /// Stages and checks the request, which has its buffer. Returns the number of bytes that the
    /// post copies.
    fn stage_and_check(&mut self, ep: &EndpointInner) -> Result<usize> {
        self.buf.as_mut().map_or(Ok(0), |buf| {
            buf.stage(O::IS_SOURCE)?;
            self.op.check(ep, buf)?;
            Ok(self.op.copied_len(buf))
        })
    }

    /// Returns the request again; `None` if it was posted.
    fn into_request<M: ThreadModel>(self, ep: &Arc<EndpointInner>) -> Option<Request<'_, O, B, M>> {
        let mut buf = self.buf?;
        // Nothing was received, so this only frees the staged bytes.
        let _ = buf.unstage(0);
        Some(Request::from_parts(
            ep,
            self.op,
            buf,
            self.completion_options,
        ))
    }
}

impl<O, B: IoBuf> QueuedRequest<O, B> {
    /// Takes the buffer.
    #[inline(always)] // on the small-message path
    fn take_buf(&mut self) -> AnyBuf {
        match self.buf.take() {
            Some(buf) => buf.into_any(),
            None => AnyBuf::None,
        }
    }

    /// Takes the buffer of a receive, and returns the target too.
    #[inline(always)] // on the small-message path
    fn take(&mut self, is_selective: bool) -> (AnyBuf, CompletionTarget) {
        let target = self.completion_options.target(is_selective);
        (self.take_buf(), target)
    }
}

/// Checks that a request in a batch of endpoint `ep` is a request of `ep`.
fn check_same_endpoint(ep: &Arc<EndpointInner>, request_ep: &Arc<EndpointInner>) -> Result<()> {
    if Arc::ptr_eq(request_ep, ep) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "batch",
        why: "a request was created on another endpoint".into(),
    })
}

impl<O: fmt::Debug, B> fmt::Debug for QueuedRequest<O, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedRequest")
            .field("op", &self.op)
            .finish_non_exhaustive()
    }
}
