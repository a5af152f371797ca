//! Requests of endpoints, and the operations they become when they are posted.

/// Methods of all requests on how they complete.
macro_rules! completion_methods {
    () => {
        /// Sets the context value of the completion when the request is [posted](Self::post).
        pub fn context(mut self, context: u64) -> Self {
            self.report.context = context;
            self
        }

        /// Requests a queue entry for a successful completion (`FI_COMPLETION`), for requests that
        /// are [posted](Self::post) on an endpoint bound with
        /// [`SELECTIVE_COMPLETION`](crate::CqBind::SELECTIVE_COMPLETION). Without selective
        /// completion every posted request gets an entry.
        #[doc(alias = "FI_COMPLETION")]
        pub fn completion(mut self) -> Self {
            self.report.completion = true;
            self
        }
    };
}

/// The fence method of all requests but receives.
macro_rules! fence_method {
    () => {
        /// Starts the operation when everything posted before for the same peer on this endpoint
        /// has completed, and keeps later operations behind it (`FI_FENCE`; needs
        /// [`Caps::FENCE`](crate::Caps::FENCE)).
        ///
        /// Messages keep their order without a fence. While the fence waits, [`start`](Self::start)
        /// and `post` of later requests to the peer fail with
        /// [`Error::WouldBlock`](crate::Error::WouldBlock); awaited requests wait.
        #[doc(alias = "FI_FENCE")]
        pub fn fence(mut self) -> Self {
            self.spec.fence = true;
            self
        }
    };
}

/// Methods of messages that set the completion level.
macro_rules! completion_level_methods {
    () => {
        /// Completes when the receive that took the message has completed, with all bytes it has
        /// room for (`FI_DELIVERY_COMPLETE`), whatever the endpoint's
        /// [default](crate::guide::ordering#what-sent-means).
        ///
        /// The completion waits until a receive takes the message; under manual progress the
        /// receiver must also be waiting for something, as for every message. A message that the
        /// peer [discards](crate::Claimed::discard) counts as delivered. Over `tcp` the guarantee
        /// is weaker: the whole message is at the peer's endpoint, [received or
        /// not](crate::guide::tcp#what-sent-means).
        /// [`Error::NotSupported`](crate::Error::NotSupported) for providers whose offers lack the
        /// flag.
        #[doc(alias = "FI_DELIVERY_COMPLETE")]
        pub fn delivery_complete(mut self) -> Self {
            self.spec.level = fabric_core::completion::CompletionLevel::Delivered;
            self
        }

        /// Completes when a receive has taken the message, though perhaps not all its bytes yet, or
        /// the peer has [discarded](crate::Claimed::discard) it (`FI_MATCH_COMPLETE`).
        /// [`Error::NotSupported`](crate::Error::NotSupported) for providers whose offers lack the
        /// flag.
        #[doc(alias = "FI_MATCH_COMPLETE")]
        pub fn match_complete(mut self) -> Self {
            self.spec.level = fabric_core::completion::CompletionLevel::Matched;
            self
        }

        /// Completes when the provider considers the message sent: the default, unless
        /// [`tx_op_flags`](crate::Hints::tx_op_flags) request more. With `shm` and `sim` the peer's
        /// endpoint has the message then (`FI_TRANSMIT_COMPLETE`); over `tcp`, which offers less
        /// (`FI_INJECT_COMPLETE`), [the kernel has it](crate::guide::tcp).
        #[doc(alias = "FI_TRANSMIT_COMPLETE")]
        pub fn transmit_complete(mut self) -> Self {
            self.spec.level = fabric_core::completion::CompletionLevel::Transmitted;
            self
        }
    };
}

/// The completion level method of operations that change a peer's memory.
macro_rules! delivery_complete_method {
    () => {
        /// Completes when the peer's memory has been changed (`FI_DELIVERY_COMPLETE`). All
        /// providers complete these operations at that time anyway, so this only documents that the
        /// program relies on it. The notification of the peer, by a queue entry or a counter,
        /// follows and is not waited for.
        #[doc(alias = "FI_DELIVERY_COMPLETE")]
        pub fn delivery_complete(mut self) -> Self {
            self.spec.level = fabric_core::completion::CompletionLevel::Delivered;
            self
        }
    };
}

/// Implements `Debug` for a request: its endpoint and what it asks for, without the buffer, which
/// may be long or have no `Debug`.
macro_rules! impl_request_debug {
    ($name:literal, [$($generics:tt)*], $request:ty) => {
        impl<$($generics)*> std::fmt::Debug for $request {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct($name)
                    .field("endpoint", &self.ep.id())
                    .field("spec", &self.spec)
                    .finish_non_exhaustive()
            }
        }
    };
}

mod atomic;
mod batch;
mod lend;
mod multi_recv;
mod onesided;
mod permit;
mod probe;
mod recv;
mod send;

pub use atomic::{AtomicMode, AtomicOperation, AtomicRequest, Fetching, NoFetch};
pub(crate) use batch::post_all;
pub use batch::{BatchError, Batchable};
pub use lend::{LendOperation, LendRequest};
pub use multi_recv::{MessageSlice, MultiRecv, MultiRecvRequest, PostedMultiRecv};
pub use onesided::{ReadRequest, WriteRequest};
pub use permit::{Permit, Reserve};
pub use probe::{Claim, Claimed, ClaimedRecvRequest, Probe};
pub use recv::{Message, RecvRequest};
pub use send::SendRequest;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::buf::IoBuf;
use fabric_core::completion::{Done, Failed, Transfer};
use fabric_core::transport::OpKey;
use fabric_reactor::{CompletionTarget, PostResult};
use tokio::task::coop;

use crate::endpoint::{Endpoint, EndpointInner};
use crate::thread_model::ThreadModel;

/// How a posted request reports to its queue.
#[derive(Clone, Copy, Debug, Default)]
struct CompletionOptions {
    context: u64,
    /// Whether success is reported although the queue is bound for selective completion.
    completion: bool,
}

impl CompletionOptions {
    /// Returns the completion target; `selective` is that of the endpoint's queue.
    fn target(self, selective: bool) -> CompletionTarget {
        if selective && !self.completion {
            CompletionTarget::CqOnError(self.context)
        } else {
            CompletionTarget::Cq(self.context)
        }
    }
}

/// A posted operation, to be awaited. It resolves to [`Done`] or [`Failed`], each with the buffer.
///
/// It does not keep its endpoint open: when the endpoint is closed, by a call or with its last
/// handle, a pending operation ends with [`Error::Canceled`](crate::Error::Canceled) and its
/// buffer. See [handles](crate::guide::errors#handles).
///
/// # Cancel safety
/// Dropping a receive loses no message: a message that has arrived, or is arriving, goes to the
/// next receive that accepts it. Dropping a send, read or write that waits for credit cancels it;
/// any other operation continues, and its failure becomes an
/// [event](crate::EventKind::OperationFailed). The buffer is dropped when it is no longer in use.
/// [`Operation::cancel`] returns it instead.
///
/// # Panics
/// When polled after it has resolved.
#[must_use = "dropping an operation discards its result; dropping a receive withdraws it"]
pub struct Operation<B> {
    state: OperationState<B>,
}

enum OperationState<B> {
    /// Completed when it was posted, with this many bytes and this tag.
    DoneInline(B, usize, Option<u64>),
    PostFailed(Box<Failed<B>>),
    Posted {
        /// Not a handle: the endpoint may be closed.
        ep: Arc<EndpointInner>,
        /// `None` after the result was taken.
        key: Option<OpKey>,
    },
    Resolved,
}

/// Panic text of a poll after completion.
const POLLED_AFTER_COMPLETION: &str = "the operation was polled after it had resolved";

/// The result of cancelling an operation.
#[derive(Debug)]
pub enum CancelOutcome<B> {
    /// The operation was cancelled before it took effect. This is its buffer.
    Canceled(B),
    /// The operation completed before it could be cancelled, with this result.
    Completed(Result<Done<B>, Failed<B>>),
}

impl<B: IoBuf> Operation<B> {
    #[inline]
    pub(crate) fn done_inline(buf: B, len: usize, tag: Option<u64>) -> Self {
        Self {
            state: OperationState::DoneInline(buf, len, tag),
        }
    }

    #[cold]
    pub(crate) fn post_failed(failed: Failed<B>) -> Self {
        Self {
            state: OperationState::PostFailed(Box::new(failed)),
        }
    }

    pub(crate) fn posted(ep: Arc<EndpointInner>, key: OpKey) -> Self {
        Self {
            state: OperationState::Posted { ep, key: Some(key) },
        }
    }

    /// Returns the operation, or the error if the post failed.
    pub(crate) fn into_post_result(mut self) -> Result<Self, Failed<B>> {
        match std::mem::replace(&mut self.state, OperationState::Resolved) {
            OperationState::PostFailed(failed) => Err(*failed),
            state => {
                self.state = state;
                Ok(self)
            }
        }
    }

    /// Creates the operation of a post for a future.
    pub(crate) fn from_post_result<M: ThreadModel>(
        ep: &Endpoint<M>,
        posted: PostResult<B>,
    ) -> Self {
        match posted {
            PostResult::Done(transfer, buf) => Self::done_inline(buf, transfer.len, transfer.tag),
            PostResult::Pending(key) => Self::posted(ep.inner.clone(), key),
            PostResult::Reported => {
                unreachable!("a post for a future is never reported to a queue")
            }
        }
    }

    /// Cancels the operation if it has not taken effect, else waits for its completion
    /// (`fi_cancel`). The outcome is exactly one of the two.
    ///
    /// A receive can be cancelled until a message is matched to it, a send until its first byte is
    /// on its way.
    ///
    /// # Cancel safety
    /// Dropping this future drops the operation.
    #[doc(alias = "fi_cancel")]
    pub async fn cancel(mut self) -> CancelOutcome<B> {
        std::future::poll_fn(|cx| {
            if let Some(buf) = self.withdraw() {
                return Poll::Ready(CancelOutcome::Canceled(buf));
            }
            if let Poll::Ready(result) = Pin::new(&mut self).poll(cx) {
                return Poll::Ready(CancelOutcome::Completed(result));
            }
            // A receive can be cancelled again when the sender of its message has died. If that
            // happens after this poll, it wakes this task.
            match self.withdraw() {
                Some(buf) => Poll::Ready(CancelOutcome::Canceled(buf)),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Cancels the operation if it has not taken effect.
    fn withdraw(&mut self) -> Option<B> {
        let OperationState::Posted { ep, key: Some(key) } = &self.state else {
            return None;
        };
        let buf = ep.domain.core.cancel(*key).ok()?;
        self.state = OperationState::Resolved;
        let buf = B::from_any(buf);
        Some(buf.unwrap_or_else(|_| unreachable!("the buffer has the type it was posted with")))
    }
}

impl<B: IoBuf> Future for Operation<B> {
    type Output = Result<Done<B>, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        // The result is large: return it from here directly, without a move through a local.
        if let OperationState::Posted { ep, key } = &mut self.state {
            let finished = ready!(
                ep.domain
                    .core
                    .poll_op(key.expect(POLLED_AFTER_COMPLETION), cx)
            );
            *key = None;
            budget.made_progress();
            return Poll::Ready(finished.take());
        }
        budget.made_progress();
        match std::mem::replace(&mut self.state, OperationState::Resolved) {
            OperationState::DoneInline(buf, len, tag) => Poll::Ready(Ok(Done {
                buf,
                transfer: Transfer::sent(len, tag),
            })),
            OperationState::PostFailed(failed) => Poll::Ready(Err(*failed)),
            _ => panic!("{POLLED_AFTER_COMPLETION}"),
        }
    }
}

impl<B> Drop for Operation<B> {
    fn drop(&mut self) {
        if let OperationState::Posted { ep, key: Some(key) } = &self.state {
            ep.domain.core.detach(*key);
        }
    }
}

impl<B> fmt::Debug for Operation<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            OperationState::DoneInline(..) | OperationState::PostFailed(_) => "Operation(ended)",
            OperationState::Posted { key: Some(_), .. } => "Operation(posted)",
            OperationState::Posted { .. } | OperationState::Resolved => "Operation(resolved)",
        })
    }
}
