//! Operations: requests, and what they become when they are posted.

/// The methods by which every request says how it is to be reported.
macro_rules! reported {
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
            self.report.asked = true;
            self
        }
    };
}

/// The method by which every request is fenced.
macro_rules! fenced {
    () => {
        /// Begins when everything that was posted before it for that peer on this endpoint has
        /// ended, and nothing that is posted after it overtakes it (`FI_FENCE`; needs
        /// [`Caps::FENCE`](crate::Caps::FENCE)). Messages and their pieces keep their order anyway.
        /// While the fence waits, [`start`](Self::start) and `post` of what comes behind it are
        /// refused with [`Error::Again`](crate::Error::Again); what is awaited waits.
        #[doc(alias = "FI_FENCE")]
        pub fn fence(mut self) -> Self {
            self.spec.fence = true;
            self
        }
    };
}

/// The methods by which a message says when it has ended.
macro_rules! leveled {
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
        /// when the peer's endpoint has it (`FI_TRANSMIT_COMPLETE`); over `tcp`, which offers less,
        /// when the buffer is free (`FI_INJECT_COMPLETE`).
        #[doc(alias = "FI_TRANSMIT_COMPLETE")]
        pub fn transmit_complete(mut self) -> Self {
            self.spec.level = fabric_core::completion::CompletionLevel::Transmitted;
            self
        }
    };
}

/// The method by which a change of a peer's memory says when it has ended.
macro_rules! delivered {
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
mod multi;
mod onesided;
mod permit;
mod probe;
mod recv;
mod send;

pub use atomic::{Answer, AtomicOperation, AtomicRequest, Fetch, Quiet};
pub(crate) use batch::post_all;
pub use batch::{BatchStopped, Batchable};
pub use lend::{LendOperation, LendRequest};
pub use multi::{MessageSlice, MultiRecv, MultiRecvRequest, PostedMultiRecv};
pub use onesided::{ReadRequest, WriteRequest};
pub use permit::{Permit, Reserve};
pub use probe::{Claim, Claimed, ClaimedRecv, Probe};
pub use recv::{Message, RecvRequest};
pub use send::SendRequest;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::buf::IoBuf;
use fabric_core::completion::{Done, Failed, Transfer};
use fabric_core::provider::OpKey;
use fabric_reactor::{Posted, Route};
use tokio::task::coop;

use crate::endpoint::{Endpoint, EndpointInner};
use crate::model::ThreadModel;

/// What a request that is posted has for its queue.
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    context: u64,
    /// Asked for, where success is not reported by itself.
    asked: bool,
}

impl Report {
    /// Who hears of the operation, on an endpoint that is quiet about success or not.
    fn route(self, quiet: bool) -> Route {
        if quiet && !self.asked {
            Route::Failure(self.context)
        } else {
            Route::Queue(self.context)
        }
    }
}

/// A posted operation, to be awaited: resolves to [`Done`] or [`Failed`], each with the buffer.
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
    state: State<B>,
}

enum State<B> {
    /// Sent when it was posted: so many bytes, with this tag.
    Sent(B, usize, Option<u64>),
    Refused(Box<Failed<B>>),
    Posted {
        ep: Arc<EndpointInner>,
        /// Until its result was taken.
        key: Option<OpKey>,
    },
    Taken,
}

/// Why an operation panics.
const RESOLVED: &str = "an operation was polled after it had resolved";

/// What became of a cancelled operation.
#[derive(Debug)]
pub enum Canceled<B> {
    /// It had not begun and never will; here is its buffer.
    Withdrawn(B),
    /// It was too late: it ended like this.
    Completed(Result<Done<B>, Failed<B>>),
}

impl<B: IoBuf> Operation<B> {
    #[inline]
    pub(crate) fn sent(buf: B, len: usize, tag: Option<u64>) -> Self {
        Self {
            state: State::Sent(buf, len, tag),
        }
    }

    #[cold]
    pub(crate) fn refused(failed: Failed<B>) -> Self {
        Self {
            state: State::Refused(Box::new(failed)),
        }
    }

    pub(crate) fn posted(ep: Arc<EndpointInner>, key: OpKey) -> Self {
        Self {
            state: State::Posted { ep, key: Some(key) },
        }
    }

    /// This, unless it was refused when it was posted.
    pub(crate) fn accepted(mut self) -> Result<Self, Failed<B>> {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Refused(failed) => Err(*failed),
            state => {
                self.state = state;
                Ok(self)
            }
        }
    }

    /// What became of a post for a future.
    pub(crate) fn of<M: ThreadModel>(ep: &Endpoint<M>, posted: Posted<B>) -> Self {
        match posted {
            Posted::Done(transfer, buf) => Self::sent(buf, transfer.len, transfer.tag),
            Posted::Pending(key) => Self::posted(ep.inner.clone(), key),
            Posted::Reported => unreachable!("only queues are reported to"),
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
    pub async fn cancel(mut self) -> Canceled<B> {
        if let State::Posted { ep, key: Some(key) } = &self.state
            && let Ok(buf) = ep.domain.core.cancel(*key)
        {
            self.state = State::Taken;
            let buf = B::from_any(buf)
                .unwrap_or_else(|_| unreachable!("a slot returns what it was given"));
            return Canceled::Withdrawn(buf);
        }
        Canceled::Completed(self.await)
    }
}

impl<B: IoBuf> Future for Operation<B> {
    type Output = Result<Done<B>, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        // What is returned is large: it is made where it belongs, not moved there.
        if let State::Posted { ep, key } = &mut self.state {
            let finished = ready!(ep.domain.core.poll_op(key.expect(RESOLVED), cx));
            *key = None;
            budget.made_progress();
            return Poll::Ready(finished.take());
        }
        budget.made_progress();
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Sent(buf, len, tag) => Poll::Ready(Ok(Done {
                buf,
                transfer: Transfer::sent(len, tag),
            })),
            State::Refused(failed) => Poll::Ready(Err(*failed)),
            _ => panic!("{RESOLVED}"),
        }
    }
}

/// The buffer is in the operation's slot or is moved out whole: nothing of it is pinned here.
impl<B> Unpin for Operation<B> {}

impl<B> Drop for Operation<B> {
    fn drop(&mut self) {
        if let State::Posted { ep, key: Some(key) } = &self.state {
            ep.domain.core.abandon(*key);
        }
    }
}

impl<B> fmt::Debug for Operation<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Sent(..) | State::Refused(_) => "Operation(ended)",
            State::Posted { key: Some(_), .. } => "Operation(posted)",
            State::Posted { .. } | State::Taken => "Operation(resolved)",
        })
    }
}
