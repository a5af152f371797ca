//! Operations: requests, and what they become when they are posted.

/// The methods by which every request says how it is to be reported.
macro_rules! completion_methods {
    () => {
        /// The number that comes with the completion when the request is [posted](Self::post).
        pub fn context(mut self, context: u64) -> Self {
            self.report.context = context;
            self
        }

        /// Asks for an entry of the queue also when all goes well (`FI_COMPLETION`), where the
        /// request is [posted](Self::post) and the endpoint is bound to the queue with
        /// [`SELECTIVE_COMPLETION`](crate::CqBind::SELECTIVE_COMPLETION). Everywhere else it gets
        /// one anyway.
        #[doc(alias = "FI_COMPLETION")]
        pub fn completion(mut self) -> Self {
            self.report.completion = true;
            self
        }
    };
}

/// The method by which every request is fenced.
macro_rules! fence_method {
    () => {
        /// Begins when everything that was posted before it for that peer on this endpoint has
        /// ended, and nothing that is posted after it overtakes it (`FI_FENCE`; needs
        /// [`Caps::FENCE`](crate::Caps::FENCE)). Messages and their pieces keep their order anyway.
        /// While the fence waits, [`start`](Self::start) and `post` of what comes behind it are
        /// refused with [`Error::WouldBlock`](crate::Error::WouldBlock); what is awaited waits.
        #[doc(alias = "FI_FENCE")]
        pub fn fence(mut self) -> Self {
            self.spec.fence = true;
            self
        }
    };
}

/// The methods by which a message says when it has ended.
macro_rules! completion_level_methods {
    () => {
        /// Ends when all of the message that the receive has room for is in the buffer of the
        /// receive that took it, and that receive has ended (`FI_DELIVERY_COMPLETE`), whatever the
        /// endpoint's [default](crate::guide::ordering#what-sent-means). A message that no receive
        /// takes is held back until one does; under manual progress the receiver must also be
        /// waiting for something, as for every message. One that the peer
        /// [discards](crate::Claimed::discard) has been delivered too. Over `tcp` it says less: all
        /// of the message is at the peer's endpoint, [received or not](crate::guide::tcp#what-sent-means).
        /// [`Error::NotSupported`](crate::Error::NotSupported) with providers whose offers lack
        /// this flag.
        #[doc(alias = "FI_DELIVERY_COMPLETE")]
        pub fn delivery_complete(mut self) -> Self {
            self.spec.level = fabric_core::completion::CompletionLevel::Delivered;
            self
        }

        /// Ends when a receive has taken the message, though perhaps not all its bytes yet, or the
        /// peer has [discarded](crate::Claimed::discard) it (`FI_MATCH_COMPLETE`).
        /// [`Error::NotSupported`](crate::Error::NotSupported) with providers whose offers lack
        /// this flag.
        #[doc(alias = "FI_MATCH_COMPLETE")]
        pub fn match_complete(mut self) -> Self {
            self.spec.level = fabric_core::completion::CompletionLevel::Matched;
            self
        }

        /// Ends as soon as the provider calls a message sent: the default, unless
        /// [`tx_op_flags`](crate::Hints::tx_op_flags) ask for more. With `shm` and `sim` that is
        /// when the peer's endpoint has it (`FI_TRANSMIT_COMPLETE`); over `tcp`, which offers less
        /// (`FI_INJECT_COMPLETE`), when [the kernel has it](crate::guide::tcp).
        #[doc(alias = "FI_TRANSMIT_COMPLETE")]
        pub fn transmit_complete(mut self) -> Self {
            self.spec.level = fabric_core::completion::CompletionLevel::Transmitted;
            self
        }
    };
}

/// The method by which a change of a peer's memory says when it has ended.
macro_rules! delivery_complete_method {
    () => {
        /// Ends when the peer's memory has been changed (`FI_DELIVERY_COMPLETE`). That is when such
        /// an operation ends anyway, with all providers there are: this says that the program
        /// relies on it. What tells the peer of it, an entry of its queue or a count, follows and
        /// is not waited for.
        #[doc(alias = "FI_DELIVERY_COMPLETE")]
        pub fn delivery_complete(mut self) -> Self {
            self.spec.level = fabric_core::completion::CompletionLevel::Delivered;
            self
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

/// What a request that is posted has for its queue.
#[derive(Clone, Copy, Debug, Default)]
struct CompletionOptions {
    context: u64,
    /// Asked for, where success is not reported by itself.
    completion: bool,
}

impl CompletionOptions {
    /// Who hears of the operation, on an endpoint that is quiet about success or not.
    fn target(self, quiet: bool) -> CompletionTarget {
        if quiet && !self.completion {
            CompletionTarget::CqOnError(self.context)
        } else {
            CompletionTarget::Cq(self.context)
        }
    }
}

/// A posted operation, to be awaited: resolves to [`Done`] or [`Failed`], each with the buffer.
///
/// It does not keep its endpoint open: when that is closed, by a call or with its last handle, the
/// operation ends with [`Error::Canceled`](crate::Error::Canceled) and its buffer, unless it has
/// completed before. See [what keeps an object open](crate::guide::errors#handles).
///
/// # Cancel safety
/// Dropping a receive loses no message: one that has arrived, or is arriving, goes to the next
/// receive that accepts it. Dropping a send that waits for credit withdraws it, as with reads and
/// writes; any other goes on, and its failure becomes an
/// [event](crate::EventKind::OperationFailed). The buffer is dropped when nobody uses it any more.
/// [`Operation::cancel`] gets it back instead.
///
/// # Panics
/// When polled after it has resolved.
#[must_use = "nobody hears how a dropped operation ends; a receive that is dropped takes nothing"]
pub struct Operation<B> {
    state: OperationState<B>,
}

enum OperationState<B> {
    /// Sent when it was posted: so many bytes, with this tag.
    DoneInline(B, usize, Option<u64>),
    PostFailed(Box<Failed<B>>),
    Posted {
        /// Not a handle: the endpoint may be closed.
        ep: Arc<EndpointInner>,
        /// Until its result was taken.
        key: Option<OpKey>,
    },
    Resolved,
}

/// Why an operation panics.
const POLLED_AFTER_COMPLETION: &str = "an operation was polled after it had resolved";

/// What became of a cancelled operation.
#[derive(Debug)]
pub enum CancelOutcome<B> {
    /// It had not begun and never will; here is its buffer.
    Canceled(B),
    /// It was too late: it ended like this.
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

    /// This, unless it was refused when it was posted.
    pub(crate) fn into_post_result(mut self) -> Result<Self, Failed<B>> {
        match std::mem::replace(&mut self.state, OperationState::Resolved) {
            OperationState::PostFailed(failed) => Err(*failed),
            state => {
                self.state = state;
                Ok(self)
            }
        }
    }

    /// What became of a post for a future.
    pub(crate) fn from_post_result<M: ThreadModel>(
        ep: &Endpoint<M>,
        posted: PostResult<B>,
    ) -> Self {
        match posted {
            PostResult::Done(transfer, buf) => Self::done_inline(buf, transfer.len, transfer.tag),
            PostResult::Pending(key) => Self::posted(ep.inner.clone(), key),
            PostResult::Reported => unreachable!("only queues are reported to"),
        }
    }

    /// Takes the operation back if it has not begun, else waits for its end: which of the two it
    /// was is the result, exactly once (`fi_cancel`).
    ///
    /// A receive can be taken back until a message is matched to it, a send until its first byte is
    /// on its way.
    ///
    /// # Cancel safety
    /// Dropping this is dropping the operation.
    #[doc(alias = "fi_cancel")]
    pub async fn cancel(mut self) -> CancelOutcome<B> {
        std::future::poll_fn(|cx| {
            if let Some(buf) = self.withdraw() {
                return Poll::Ready(CancelOutcome::Canceled(buf));
            }
            if let Poll::Ready(result) = Pin::new(&mut self).poll(cx) {
                return Poll::Ready(CancelOutcome::Completed(result));
            }
            // A receive can be withdrawn again when the sender of its message has ended. If that
            // happens later, it wakes this task.
            match self.withdraw() {
                Some(buf) => Poll::Ready(CancelOutcome::Canceled(buf)),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Takes the operation back if it has not begun.
    fn withdraw(&mut self) -> Option<B> {
        let OperationState::Posted { ep, key: Some(key) } = &self.state else {
            return None;
        };
        let buf = ep.domain.core.cancel(*key).ok()?;
        self.state = OperationState::Resolved;
        let buf = B::from_any(buf);
        Some(buf.unwrap_or_else(|_| unreachable!("a slot returns what it was given")))
    }
}

impl<B: IoBuf> Future for Operation<B> {
    type Output = Result<Done<B>, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        // What is returned is large: it is made where it belongs, not moved there.
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

/// The buffer is in the operation's slot or is moved out whole: nothing of it is pinned here.
impl<B> Unpin for Operation<B> {}

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
