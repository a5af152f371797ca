//! Multi-receives: several messages in one buffer.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use fabric_core::Error;
use fabric_core::buf::restore_buffer;
use fabric_core::completion::{Done, Failed};
use fabric_core::matching::RecvSpec;
use fabric_core::transport::OpKey;
use fabric_reactor::{MultiRecvItem, MultiRecvTarget, OpResult};
use futures_core::Stream;
use tokio::task::coop;

use super::Request;
use super::recv::ANY_UNTAGGED;
use super::traits::{MatchingOp, Op, QueuedOp, sealed};
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::{Shared, ThreadModel};

/// Default of `min_free`, in bytes.
pub(crate) const DEFAULT_MIN_FREE: usize = 64;

/// A message of a multi-receive, as part of its buffer.
///
/// Dereferences to its bytes; [`into_buf`](MessageSlice::into_buf) keeps them without copying. The
/// memory of the buffer is freed when all its messages and its rest are dropped.
pub type MessageSlice = Done<Bytes>;

/// A receive of several messages ([`Endpoint::recv_multi`](crate::Endpoint::recv_multi)). Takes
/// untagged messages from any source by default.
#[derive(Debug)]
pub struct MultiRecvOp {
    spec: RecvSpec,
    min_free: usize,
}

impl MultiRecvOp {
    pub(crate) fn new() -> Self {
        Self {
            spec: ANY_UNTAGGED,
            min_free: DEFAULT_MIN_FREE,
        }
    }
}

impl sealed::Sealed for MultiRecvOp {}
impl Op for MultiRecvOp {
    type Ep<'a> = &'a Arc<EndpointInner>;
}
impl MatchingOp for MultiRecvOp {
    fn recv_spec(&mut self) -> &mut RecvSpec {
        &mut self.spec
    }
}
impl QueuedOp for MultiRecvOp {}

/// # Multi-receives
impl<M: ThreadModel> Request<'_, MultiRecvOp, BytesMut, M> {
    /// Sets the number of free bytes below which the buffer takes no further message
    /// (`FI_OPT_MIN_MULTI_RECV`); 64 by default.
    ///
    /// With 0, the buffer takes messages as long as they fit.
    #[doc(alias = "FI_OPT_MIN_MULTI_RECV")]
    pub fn min_free(mut self, bytes: usize) -> Self {
        self.op.min_free = bytes;
        self
    }

    /// Posts the request now, and returns the messages as a stream.
    ///
    /// # Errors
    /// With the buffer: [`Error::Invalid`] when its spare capacity is 0 or less than
    /// [`min_free`](Self::min_free); [`Error::WouldBlock`] when all receive entries of the endpoint
    /// are in use; [`Error::NotSupported`] without [`Caps::MULTI_RECV`](crate::Caps::MULTI_RECV),
    /// or [`Caps::TAGGED_MULTI_RECV`](crate::Caps::TAGGED_MULTI_RECV) for tagged messages;
    /// [`Error::StaleAddress`], [`Error::Closed`].
    #[allow(clippy::result_large_err)] // as of every request
    pub fn start(self) -> Result<MultiRecv<M>, Failed<BytesMut>> {
        let ep = self.ep.clone();
        let key = self.submit(MultiRecvTarget::Stream)?;
        Ok(MultiRecv {
            state: MultiRecvStreamState::Posted { ep, key },
            model: PhantomData,
        })
    }

    /// Posts the request now. Each message is a completion of kind
    /// [`OpKind::Recv`](crate::OpKind::Recv) in the endpoint's receive queue, with its [`Bytes`].
    ///
    /// When the buffer takes no more messages, a completion of kind
    /// [`OpKind::MultiRecvRelease`](crate::OpKind::MultiRecvRelease) follows the last one, with the
    /// rest of the buffer as a `BytesMut`. All have the same context.
    ///
    /// All are reported also if the queue is bound with
    /// [`SELECTIVE_COMPLETION`](crate::CqBind::SELECTIVE_COMPLETION), because an unreported message
    /// would be lost.
    ///
    /// While the receive is posted, two entries of the queue are reserved for it: one for the next
    /// message, and one for the release. If no entry is free for a further message, the message and
    /// all later messages of the same sender wait at the sender until entries are taken from the
    /// queue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use bytes::{Bytes, BytesMut};
    /// # use fabric_async::{Endpoint, OpKind};
    /// # use futures_util::StreamExt;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// let mut queue = ep.take_completions().expect("the first call");
    /// ep.recv_multi(BytesMut::with_capacity(12)).min_free(4).context(7).post()?;
    /// ep.send(me, b"five.").inject()?;
    /// ep.send(me, b"four").inject()?;
    /// for expected in ["five.", "four"] {
    ///     let message = queue.next().await.expect("the queue is open");
    ///     assert_eq!((message.context, message.kind), (7, OpKind::Recv));
    ///     assert_eq!(&message.into_result::<Bytes>()?[..], expected.as_bytes());
    /// }
    /// let mut release = queue.next().await.expect("the queue is open");
    /// assert_eq!((release.context, release.kind), (7, OpKind::MultiRecvRelease));
    /// assert_eq!(release.take_buf::<BytesMut>().expect("the rest of the buffer").capacity(), 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// With the buffer: as [`start`](Self::start); [`Error::WouldBlock`] when fewer than two
    /// entries of the queue are free; [`Error::Invalid`] when its capacity is 1; [`Error::Unbound`]
    /// when the endpoint has no receive queue.
    #[allow(clippy::result_large_err)] // as of every request
    pub fn post(self) -> Result<PostedMultiRecv<M>, Failed<BytesMut>> {
        let (ep, context) = (self.ep.clone(), self.completion_options.context);
        let key = self.submit(MultiRecvTarget::Cq(context))?;
        Ok(PostedMultiRecv {
            ep,
            key,
            model: PhantomData,
        })
    }

    /// Checks and posts the request.
    #[allow(clippy::result_large_err)] // as of every request
    fn submit(self, target: MultiRecvTarget) -> Result<OpKey, Failed<BytesMut>> {
        let (ep, spec, min_free) = (self.ep, self.op.spec, self.op.min_free);
        let mut buf = self.buf;
        let spare = buf.capacity() - buf.len();
        let checked = ep.check_multi_recv(&spec).and_then(|()| match spare {
            0 => Err(invalid_buffer("it has no spare capacity".into())),
            _ if spare < min_free => Err(invalid_buffer(format!(
                "its spare capacity of {spare} bytes is less than min_free, {min_free}"
            ))),
            _ => Ok(()),
        });
        if let Err(error) = checked {
            return Err(Failed::new(error, buf));
        }
        // The engine gets the spare capacity. A refused post returns the buffer with its old bytes.
        let filled = buf.split();
        let restore = |failed: Failed<BytesMut>| {
            let mut whole = filled;
            whole.unsplit(failed.buf);
            Failed {
                buf: whole,
                ..failed
            }
        };
        ep.domain
            .engine
            .multi_recv(ep.id, spec, buf, min_free, target)
            .map_err(restore)
    }
}

/// Returns the error of a buffer that is too small for a multi-receive.
fn invalid_buffer(why: String) -> Error {
    Error::Invalid {
        what: "multi-receive buffer",
        why,
    }
}

/// A posted multi-receive: the stream of its messages.
///
/// The stream yields each message when the message is complete; messages of one sender in sending
/// order. The stream ends (`None`) when the buffer takes no more messages and all messages were
/// yielded.
/// [`into_rest`](Self::into_rest) then returns the rest of the buffer.
///
/// A failure of one message is an item, and does not end the stream: a message longer than the
/// whole, unused buffer ([`Error::Truncated`], with its first bytes). A message whose sender died
/// in the middle of it is not reported, and its place in the buffer counts as used; in a
/// [directed](crate::Request::from) receive it is an item too ([`Error::PeerGone`], with the
/// bytes that had arrived). A failure of the receive itself is the last item: [`Error::Canceled`]
/// when the endpoint is closed, [`Error::PeerGone`] or [`Error::StaleAddress`] for a
/// [directed](crate::Request::from) one.
///
/// At most as many messages as the endpoint's receive size
/// ([`RxAttr::size`](crate::info::RxAttr::size)) wait in the stream. Further messages wait at their
/// senders.
///
/// `next` and other stream combinators come from `futures_util::StreamExt`. Respects Tokio's
/// cooperative budget.
///
/// # Cancel safety
/// Dropping a pending `next` or the stream loses no message. When the stream is dropped, messages
/// that have arrived and were not taken, or are arriving, go to the next receives that accept them,
/// in order.
#[must_use = "dropping the stream cancels the receive"]
pub struct MultiRecv<M: ThreadModel = Shared> {
    state: MultiRecvStreamState,
    model: PhantomData<M>,
}

enum MultiRecvStreamState {
    Posted {
        ep: Arc<EndpointInner>,
        key: OpKey,
    },
    /// Ended, with the rest of the buffer.
    Finished(BytesMut),
}

impl<M: ThreadModel> MultiRecv<M> {
    /// Stops taking messages into the buffer (`fi_cancel`). The stream yields the messages that
    /// have arrived, and ends.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&mut self) {
        if let MultiRecvStreamState::Posted { ep, key } = &self.state {
            ep.domain.engine.cancel_multi_recv(*key);
        }
    }

    /// Returns the rest of the buffer. A stream that has not ended is canceled: messages that were
    /// not taken go to the next receives, as when the stream is dropped.
    ///
    /// When its messages have been dropped, `BytesMut::try_reclaim` makes the rest the whole buffer
    /// again, without allocating.
    #[must_use]
    pub fn into_rest(mut self) -> BytesMut {
        match mem::replace(
            &mut self.state,
            MultiRecvStreamState::Finished(BytesMut::new()),
        ) {
            MultiRecvStreamState::Posted { ep, key } => ep.domain.engine.detach_multi_recv(key),
            MultiRecvStreamState::Finished(rest) => rest,
        }
    }
}

impl<M: ThreadModel> Stream for MultiRecv<M> {
    type Item = Result<MessageSlice, Failed<Bytes>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let budget = ready!(coop::poll_proceed(cx));
        let MultiRecvStreamState::Posted { ep, key } = &self.state else {
            return Poll::Ready(None);
        };
        let item = ready!(ep.domain.engine.poll_multi_recv(*key, cx));
        budget.made_progress();
        Poll::Ready(match item {
            MultiRecvItem::Message(received) => Some(into_message_slice(received)),
            MultiRecvItem::End(None, rest) => {
                self.state = MultiRecvStreamState::Finished(rest);
                None
            }
            MultiRecvItem::End(Some(error), rest) => {
                self.state = MultiRecvStreamState::Finished(rest);
                Some(Err(Failed::new(error, Bytes::new())))
            }
        })
    }
}

/// Converts a received message of the engine.
#[allow(clippy::result_large_err)] // as of every request
fn into_message_slice(received: OpResult) -> Result<MessageSlice, Failed<Bytes>> {
    let buf = restore_buffer::<BytesMut>(received.buf).freeze();
    let transfer = received.transfer;
    match received.error {
        None => Ok(Done { buf, transfer }),
        Some(error) => Err(Failed {
            error: *error,
            buf,
            transfer,
        }),
    }
}

impl<M: ThreadModel> Drop for MultiRecv<M> {
    fn drop(&mut self) {
        if let MultiRecvStreamState::Posted { ep, key } = &self.state {
            drop(ep.domain.engine.detach_multi_recv(*key));
        }
    }
}

impl<M: ThreadModel> fmt::Debug for MultiRecv<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            MultiRecvStreamState::Posted { .. } => f.write_str("MultiRecv(posted)"),
            MultiRecvStreamState::Finished(rest) => {
                write!(f, "MultiRecv(ended, {} bytes left)", rest.capacity())
            }
        }
    }
}

/// A posted multi-receive that reports to the completion queue. Dropping the `PostedMultiRecv`
/// changes nothing.
pub struct PostedMultiRecv<M: ThreadModel = Shared> {
    ep: Arc<EndpointInner>,
    key: OpKey,
    model: PhantomData<M>,
}

impl<M: ThreadModel> PostedMultiRecv<M> {
    /// Stops taking messages into the buffer (`fi_cancel`): when the arriving messages are
    /// complete, the release is reported with [`Error::Canceled`] and the rest of the buffer. Does
    /// nothing after the release.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self) {
        self.ep.domain.engine.cancel_multi_recv(self.key);
    }
}

impl<M: ThreadModel> fmt::Debug for PostedMultiRecv<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostedMultiRecv")
    }
}
