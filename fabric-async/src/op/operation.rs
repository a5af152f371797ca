//! Operations that [`Request::start`](crate::Request::start) posted, and cancellation.
//!
//! An [`Operation`] refers to an operation slot of the engine by its key, until it resolves.
//! Dropping the `Operation` withdraws or detaches the posted operation.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::buf::{FlatBuf, IoBuf};
use fabric_core::completion::{Done, Failed, OpKind, Transfer};
use fabric_core::transport::{OpKey, TxOp};
use fabric_core::{Error, FiAddr};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult};
use tokio::task::coop;

use super::POLLED_AFTER_COMPLETION;
use super::traits::{BufferOp, empty_buffer, failed_unstaged, restore_canceled, staged, unstaged};
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::{Shared, ThreadModel};

/// A posted operation, to be awaited: a future that resolves to [`Done`] or [`Failed`], each with
/// the buffer.
///
/// An operation does not keep its endpoint open: when the endpoint is closed, by a call or with its
/// last handle, a pending operation ends with [`Error::Canceled`](crate::Error::Canceled) and its
/// buffer. See [handles](crate::guide::errors#handles).
///
/// # Cancel safety
/// Dropping a receive loses no message: a message that has arrived, or is arriving, goes to the
/// next receive that accepts it. Any other operation goes on, unless
/// [`cancel_on_drop`](crate::Request::cancel_on_drop) was set and it has not begun; its failure
/// becomes an [event](crate::EventKind::OperationFailed). The buffer is dropped when it is no
/// longer in use. [`Operation::cancel`] returns it instead.
///
/// # Panics
/// When polled after it has resolved.
#[must_use = "dropping an operation discards its result; dropping a receive withdraws it"]
pub struct Operation<B, M: ThreadModel = Shared> {
    state: OperationState<B>,
    model: PhantomData<M>,
}

enum OperationState<B> {
    /// Completed by the post, with this number of bytes and this tag.
    DoneInline(B, usize, Option<u64>),
    Posted {
        /// Does not keep the endpoint open.
        ep: Arc<EndpointInner>,
        key: OpKey,
        cancels_on_drop: bool,
        /// Whether the buffer is a loan, which is empty after a success.
        buffer_is_loan: bool,
    },
    Resolved,
}

/// The result of canceling an operation with a buffer of type `B`, or with operands of type `B`.
#[derive(Debug)]
pub enum CancelOutcome<B, T = Result<Done<B>, Failed<B>>> {
    /// The operation was canceled before it took effect. The value is its buffer, or its operands.
    Canceled(B),
    /// The operation completed before it could be canceled, with this result.
    Completed(T),
}

impl<B: IoBuf, M: ThreadModel> Operation<B, M> {
    /// Posts an operation without waiting for a credit.
    #[inline]
    pub(super) fn start<O: BufferOp<B>>(
        ep: &Arc<EndpointInner>,
        op: &mut O,
        buf: B,
    ) -> Result<Self, Failed<B>> {
        if B::IS_STAGED {
            let buf = staged(buf, O::IS_SOURCE)?;
            return Self::post(ep, op, buf).map_err(failed_unstaged);
        }
        if let Some(transfer) = op.try_fast_path(ep, &buf) {
            return Ok(Self::done_inline(buf, transfer));
        }
        Self::post(ep, op, buf)
    }

    #[inline(never)]
    fn post<O: BufferOp<B>>(
        ep: &Arc<EndpointInner>,
        op: &mut O,
        buf: B,
    ) -> Result<Self, Failed<B>> {
        match op.post(ep, buf, CompletionTarget::Future, CreditMode::NoWait)? {
            PostResult::Done(transfer, mut buf) => {
                if O::BUFFER_IS_LOAN {
                    buf.drop_loan();
                }
                if B::IS_STAGED {
                    let Done { buf, transfer } = unstaged(Ok(Done { buf, transfer }))?;
                    return Ok(Self::done_inline(buf, transfer));
                }
                Ok(Self::done_inline(buf, transfer))
            }
            PostResult::Pending(key) => Ok(Self {
                state: OperationState::Posted {
                    ep: ep.clone(),
                    key,
                    cancels_on_drop: op.cancels_on_drop(),
                    buffer_is_loan: O::BUFFER_IS_LOAN,
                },
                model: PhantomData,
            }),
            PostResult::Reported => {
                unreachable!("a post for a future is never reported to a queue")
            }
        }
    }

    #[inline]
    fn done_inline(buf: B, transfer: Transfer) -> Self {
        Self {
            state: OperationState::DoneInline(buf, transfer.len, transfer.tag),
            model: PhantomData,
        }
    }

    /// Creates the `Operation` of an operation that was posted with a buffer that is no loan.
    pub(crate) fn posted(ep: Arc<EndpointInner>, key: OpKey, cancels_on_drop: bool) -> Self {
        Self {
            state: OperationState::Posted {
                ep,
                key,
                cancels_on_drop,
                buffer_is_loan: false,
            },
            model: PhantomData,
        }
    }

    /// Cancels the operation if it has not taken effect, else waits for its completion
    /// (`fi_cancel`).
    ///
    /// A receive can be canceled until a message is matched to it, a send until its first byte is
    /// on its way.
    ///
    /// # Cancel safety
    /// Dropping this future drops the operation.
    #[doc(alias = "fi_cancel")]
    pub async fn cancel(self) -> CancelOutcome<B> {
        cancel_or_wait(self, Self::withdraw).await
    }

    /// Cancels the operation if it has not taken effect, and returns its buffer.
    pub(super) fn withdraw(&mut self) -> Option<B> {
        let OperationState::Posted { ep, key, .. } = &self.state else {
            return None;
        };
        let buf = ep.domain.engine.cancel(*key).ok()?;
        self.state = OperationState::Resolved;
        Some(restore_canceled(buf))
    }
}

impl<B: FlatBuf, M: ThreadModel> Operation<B, M> {
    /// Sends buffers, each as a message, under one lock, until one is refused. `started` takes each
    /// send, with its length, under the lock.
    pub(crate) fn start_sends(
        ep: &Arc<EndpointInner>,
        peer: FiAddr,
        bufs: &mut VecDeque<B>,
        mut started: impl FnMut(Self, usize),
    ) -> fabric_core::Result<()> {
        let engine = &ep.domain.engine;
        let mut tx_op = TxOp::new(OpKind::Send, peer);
        tx_op.more = bufs.len() > 1 && engine.defers_in_batches();
        let mut posts = engine.batch(ep.id).ok_or(Error::ConcurrentUse)?;
        while let Some(buf) = bufs.pop_front() {
            ep.check_tx_with(OpKind::Send, false, false, false, &buf)?;
            let len = buf.bytes().len();
            let op = match posts.start_send(&tx_op, buf)? {
                PostResult::Done(transfer, buf) => Self::done_inline(buf, transfer),
                PostResult::Pending(key) => Self::posted(ep.clone(), key, false),
                PostResult::Reported => {
                    unreachable!("a post for a future is never reported to a queue")
                }
            };
            started(op, len);
        }
        posts.finish()
    }
}

/// Cancels a future by `withdraw` if it has not taken effect, else waits for its result.
pub(super) async fn cancel_or_wait<F, B>(
    mut future: F,
    withdraw: impl Fn(&mut F) -> Option<B>,
) -> CancelOutcome<B, F::Output>
where
    F: Future + Unpin,
{
    poll_fn(|cx| {
        if let Some(buf) = withdraw(&mut future) {
            return Poll::Ready(CancelOutcome::Canceled(buf));
        }
        if let Poll::Ready(result) = Pin::new(&mut future).poll(cx) {
            return Poll::Ready(CancelOutcome::Completed(result));
        }
        // A matched receive can be canceled again when the sender of its message has died. A death
        // after this poll wakes the task.
        match withdraw(&mut future) {
            Some(buf) => Poll::Ready(CancelOutcome::Canceled(buf)),
            None => Poll::Pending,
        }
    })
    .await
}

impl<B: IoBuf, M: ThreadModel> Future for Operation<B, M> {
    type Output = Result<Done<B>, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        if let OperationState::Posted {
            ep,
            key,
            buffer_is_loan,
            ..
        } = &self.state
        {
            let buffer_is_loan = *buffer_is_loan;
            let finished = ready!(ep.domain.engine.poll_op(*key, cx));
            // The result is large: it is built where it is returned.
            let result = if buffer_is_loan {
                Poll::Ready(finished.take().map(empty_buffer))
            } else if B::IS_STAGED {
                Poll::Ready(unstaged(finished.take()))
            } else {
                Poll::Ready(finished.take())
            };
            // The engine has freed the operation's slot: the drop must not use the key.
            self.state = OperationState::Resolved;
            budget.made_progress();
            return result;
        }
        budget.made_progress();
        match mem::replace(&mut self.state, OperationState::Resolved) {
            OperationState::DoneInline(buf, len, tag) => Poll::Ready(Ok(Done {
                buf,
                transfer: Transfer::sent(len, tag),
            })),
            _ => panic!("{POLLED_AFTER_COMPLETION}"),
        }
    }
}

impl<B, M: ThreadModel> Drop for Operation<B, M> {
    #[inline]
    fn drop(&mut self) {
        if let OperationState::Posted {
            ep,
            key,
            cancels_on_drop,
            ..
        } = &self.state
        {
            ep.domain.engine.drop_future(*key, *cancels_on_drop);
        }
    }
}

impl<B, M: ThreadModel> fmt::Debug for Operation<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            OperationState::DoneInline(..) => "Operation(ended)",
            OperationState::Posted { .. } => "Operation(posted)",
            OperationState::Resolved => "Operation(resolved)",
        })
    }
}
