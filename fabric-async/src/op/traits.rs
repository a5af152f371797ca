//! Traits of operations: they decide which modifiers a request has, and how it is posted. All are
//! sealed.
//!
//! An operation implements only its most specific traits; blanket implementations add the others.

use std::borrow::Borrow;
use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_core::buf::{AnyBuf, IoBuf, restore_buffer};
use fabric_core::completion::{CompletionLevel, Done, Failed, Transfer};
use fabric_core::matching::{RecvSpec, TagMatch};
use fabric_core::transport::{OpKey, TxOp};
use fabric_core::{FiAddr, Result};
use fabric_reactor::{CompletedOp, CompletionTarget, CreditMode, PostResult};

use crate::endpoint_inner::EndpointInner;

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// An operation that a [`Request`](crate::Request) describes.
pub trait Op: sealed::Sealed + Unpin + 'static {
    /// How the request refers to its endpoint.
    #[doc(hidden)]
    type Ep<'a>: Borrow<Arc<EndpointInner>> + Unpin;

    /// Returns the modifiers of an operation on a peer; `None` for a receive, probe or claim.
    #[doc(hidden)]
    #[inline]
    fn tx_options(&self) -> Option<&TxOptions> {
        None
    }

    /// Returns whether a dropped future withdraws the operation if it has not begun.
    #[doc(hidden)]
    #[inline]
    fn cancels_on_drop(&self) -> bool {
        self.tx_options()
            .is_some_and(|options| options.cancel_on_drop)
    }
}

/// An operation whose messages may be tagged: it has [`tag`](crate::Request::tag).
pub trait TaggedOp: Op {
    #[doc(hidden)]
    fn set_tag(&mut self, tag: u64);
}

/// An operation that matches messages: it has [`tag_ignoring`](crate::Request::tag_ignoring) and
/// [`from`](crate::Request::from).
pub trait MatchingOp: Op {
    #[doc(hidden)]
    fn recv_spec(&mut self) -> &mut RecvSpec;
}

impl<O: MatchingOp> TaggedOp for O {
    fn set_tag(&mut self, tag: u64) {
        self.recv_spec().tag = Some(TagMatch { tag, ignore: 0 });
    }
}

/// An operation that can carry completion data for the peer: it has
/// [`data`](crate::Request::data).
pub trait DataOp: Op {
    #[doc(hidden)]
    fn set_data(&mut self, data: u64);
}

/// An operation on a peer, which may take a transmit credit: it has
/// [`fence`](crate::Request::fence) and [`cancel_on_drop`](crate::Request::cancel_on_drop).
pub trait TransmitOp: Op {
    #[doc(hidden)]
    fn options(&mut self) -> &mut TxOptions;
}

/// An operation that changes something at the peer: it has
/// [`delivery_complete`](crate::Request::delivery_complete).
pub trait DeliveryOp: TransmitOp {}

/// An operation that sends a message: it has [`match_complete`](crate::Request::match_complete) and
/// [`transmit_complete`](crate::Request::transmit_complete).
pub trait MessageOp: TransmitOp {}

impl<O: MessageOp> DeliveryOp for O {}

/// An operation that can report to a completion queue: it has
/// [`context`](crate::Request::context).
pub trait QueuedOp: Op {}

/// An operation that reports to a completion queue once: it has
/// [`completion`](crate::Request::completion). A multi-receive reports each message, and so is only
/// a [`QueuedOp`].
pub trait SelectiveOp: Op {}

impl<O: SelectiveOp> QueuedOp for O {}

/// An operation that takes borrowed bytes: it has [`inject`](crate::Request::inject).
pub trait InjectOp: Op {
    /// Checks that `len` bytes can be injected.
    #[doc(hidden)]
    fn check_injected(&self, len: usize) -> Result<()>;
    /// Returns the peer if this is a plain message ([`TxOp::is_plain`]).
    #[doc(hidden)]
    #[inline(always)] // on the small-message path
    fn plain_peer(&self) -> Option<FiAddr> {
        None
    }
    /// Returns the operation for injecting `len` bytes.
    #[doc(hidden)]
    fn to_injected(&self, len: usize) -> TxOp;
}

/// An operation that moves the bytes of a buffer: all but atomic operations, multi-receives, probes
/// and claims.
// Coherence: another crate may implement `BufferOp<B>` for its own type `B` and an operation of
// this crate, but it cannot implement `BytesOp` for an operation of this crate. Hence the impls of
// `Request` for `O: BytesOp` do not overlap its impls for the other operations.
#[doc(hidden)]
pub trait BytesOp: Op {}

impl<O: BytesOp> SelectiveOp for O {}

/// An operation that owns a buffer of type `B` until it ends: it has
/// [`start`](crate::Request::start) and [`post`](crate::Request::post), and can be awaited.
pub trait BufferOp<B: IoBuf>: BytesOp {
    /// Whether the buffer is a loan: after a success the peer has the memory, and the returned
    /// buffer is empty.
    #[doc(hidden)]
    const BUFFER_IS_LOAN: bool = false;
    /// Whether the operation takes its bytes from the buffer.
    #[doc(hidden)]
    const IS_SOURCE: bool;

    /// Tries to execute the operation without the domain's lock. `None` if the operation must be
    /// posted instead.
    #[doc(hidden)]
    #[inline(always)] // on the small-message path
    fn try_fast_path(&self, _ep: &EndpointInner, _buf: &B) -> Option<Transfer> {
        None
    }

    /// Checks and posts the operation. Called once.
    #[doc(hidden)]
    fn post(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>>;

    /// Posts the operation for a future that is being polled, and polls it. If the operation does
    /// not end, `posted` becomes its key.
    #[doc(hidden)]
    fn post_and_poll(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        cx: &mut Context<'_>,
        posted: &mut Option<OpKey>,
    ) -> Poll<Result<Done<B>, Failed<B>>> {
        match self.post(ep, buf, CompletionTarget::Future, CreditMode::Wait) {
            Ok(PostResult::Done(transfer, buf)) => Poll::Ready(Ok(Done { buf, transfer })),
            Ok(PostResult::Pending(key)) => match ep.domain.engine.poll_op(key, cx) {
                Poll::Ready(completed) => Poll::Ready(completed.take()),
                Poll::Pending => {
                    *posted = Some(key);
                    Poll::Pending
                }
            },
            Ok(PostResult::Reported) => {
                unreachable!("a post for a future is never reported to a queue")
            }
            Err(failed) => Poll::Ready(Err(failed)),
        }
    }
}

/// An operation that can be awaited: all but multi-receives, probes and claims, whose futures and
/// streams have their own types.
pub trait AwaitableOp<B>: Op {
    /// The output of the future.
    type Output;

    /// Posts the operation and polls it. Called once. If the operation does not end, `posted`
    /// becomes its key, and the task's waker is registered.
    #[doc(hidden)]
    fn first_poll(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        cx: &mut Context<'_>,
        posted: &mut Option<OpKey>,
    ) -> Poll<Self::Output>;

    /// Returns the output of a posted operation that has completed.
    #[doc(hidden)]
    fn output(&self, completed: CompletedOp<'_>) -> Self::Output;

    /// Returns the request's buffer, or its operands, of an operation that was canceled. `posted`
    /// is the buffer that was posted.
    #[doc(hidden)]
    fn take_back(&mut self, posted: AnyBuf) -> B;
}

impl<O: BytesOp + BufferOp<B>, B: IoBuf> AwaitableOp<B> for O {
    type Output = Result<Done<B>, Failed<B>>;

    #[inline(always)] // on the small-message path
    fn first_poll(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        cx: &mut Context<'_>,
        posted: &mut Option<OpKey>,
    ) -> Poll<Self::Output> {
        if B::IS_STAGED {
            return match staged(buf, O::IS_SOURCE) {
                Ok(buf) => self.post_and_poll(ep, buf, cx, posted).map(unstaged),
                Err(failed) => Poll::Ready(Err(failed)),
            };
        }
        if let Some(transfer) = self.try_fast_path(ep, &buf) {
            return Poll::Ready(Ok(Done { buf, transfer }));
        }
        let polled = self.post_and_poll(ep, buf, cx, posted);
        if O::BUFFER_IS_LOAN {
            return polled.map_ok(empty_buffer);
        }
        polled
    }

    #[inline(always)] // the result is large
    fn output(&self, completed: CompletedOp<'_>) -> Self::Output {
        if O::BUFFER_IS_LOAN {
            return completed.take().map(empty_buffer);
        }
        if B::IS_STAGED {
            return unstaged(completed.take());
        }
        completed.take()
    }

    fn take_back(&mut self, posted: AnyBuf) -> B {
        restore_canceled(posted)
    }
}

/// Stages the bytes of a buffer for a post.
#[allow(clippy::result_large_err)] // as of every post
pub(super) fn staged<B: IoBuf>(mut buf: B, is_source: bool) -> Result<B, Failed<B>> {
    match buf.stage(is_source) {
        Ok(()) => Ok(buf),
        Err(error) => Err(Failed::new(error, buf)),
    }
}

/// Ends the staging of a buffer. If that fails, so has the operation.
pub(super) fn unstaged<B: IoBuf>(result: Result<Done<B>, Failed<B>>) -> Result<Done<B>, Failed<B>> {
    match result {
        Ok(Done { mut buf, transfer }) => match buf.unstage(transfer.len) {
            Ok(()) => Ok(Done { buf, transfer }),
            Err(error) => Err(Failed {
                error,
                buf,
                transfer,
            }),
        },
        Err(failed) => Err(failed_unstaged(failed)),
    }
}

/// Ends the staging of the buffer of an operation that has failed, and keeps its error.
pub(super) fn failed_unstaged<B: IoBuf>(mut failed: Failed<B>) -> Failed<B> {
    let _ = failed.buf.unstage(failed.transfer.len);
    failed
}

/// Returns the buffer of an operation that was canceled.
pub(super) fn restore_canceled<B: IoBuf>(posted: AnyBuf) -> B {
    let mut buf: B = restore_buffer(posted);
    let _ = buf.unstage(0);
    buf
}

/// Empties the loan of a send that has succeeded: the peer has the memory.
#[cold]
pub(super) fn empty_buffer<B: IoBuf>(mut done: Done<B>) -> Done<B> {
    done.buf.drop_loan();
    done
}

/// Modifiers of all operations on a peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxOptions {
    /// The requested completion level; `None` for the default.
    pub(super) level: Option<CompletionLevel>,
    pub(super) fence: bool,
    pub(super) cancel_on_drop: bool,
}
