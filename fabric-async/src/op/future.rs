//! The future of a request: posts the operation at the first poll, and refers to its operation slot
//! in the engine by the key until it resolves.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fabric_core::transport::OpKey;
use tokio::task::coop;

use super::POLLED_AFTER_COMPLETION;
use super::operation::{CancelOutcome, cancel_or_wait};
use super::traits::AwaitableOp;
use crate::thread_model::{Shared, ThreadModel};

/// The future of a [`Request`](crate::Request) to send, receive, write or read, which resolves to
/// [`Done`](crate::Done) or [`Failed`](crate::Failed), each with the buffer; and of a request for
/// an [atomic operation](crate::atomic::RemoteAtomicOp), which resolves to the previous values.
///
/// The first poll posts the request; a poll for which the task has no [cooperative
/// budget](tokio::task::coop) left posts nothing. So operations are posted in the order of first
/// polls.
///
/// # Cancel safety
/// Dropping the future before the first poll posts nothing, and drops the buffer. Afterwards:
///
/// * Dropping a receive loses no message: a message that has arrived, or is arriving, goes to the
///   next receive that accepts it.
/// * Dropping a send, read or write that waits for credit cancels it; any other operation goes on,
///   unless [`cancel_on_drop`](crate::Request::cancel_on_drop) is set and it has not begun. The
///   failure of a dropped operation becomes an [event](crate::EventKind::OperationFailed).
/// * The buffer is dropped when it is no longer in use. [`cancel`](Self::cancel) returns it
///   instead.
///
/// # Panics
/// When polled after it has resolved.
#[must_use = "a future does nothing unless polled"]
pub struct RequestFuture<'a, O: AwaitableOp<B>, B, M: ThreadModel = Shared> {
    ep: O::Ep<'a>,
    op: O,
    state: FutureState<B>,
    model: PhantomData<M>,
}

enum FutureState<B> {
    Unposted(B),
    Posted(OpKey),
    Resolved,
}

impl<'a, O: AwaitableOp<B>, B, M: ThreadModel> RequestFuture<'a, O, B, M> {
    #[inline(always)] // the future is large
    pub(super) fn new(ep: O::Ep<'a>, op: O, buf: B) -> Self {
        Self {
            ep,
            op,
            state: FutureState::Unposted(buf),
            model: PhantomData,
        }
    }
}

impl<O: AwaitableOp<B>, B: Unpin, M: ThreadModel> RequestFuture<'_, O, B, M> {
    /// Cancels the operation if it has not taken effect, else waits for its completion, as
    /// [`Operation::cancel`](crate::Operation::cancel). Before the first poll, nothing is posted
    /// and the buffer is returned.
    ///
    /// # Cancel safety
    /// Dropping the returned future drops this one.
    ///
    /// # Panics
    /// When this future has resolved.
    #[doc(alias = "fi_cancel")]
    pub async fn cancel(self) -> CancelOutcome<B, O::Output> {
        cancel_or_wait(self, Self::withdraw).await
    }

    /// Cancels the operation if it has not taken effect, and returns its buffer or operands.
    fn withdraw(&mut self) -> Option<B> {
        if let FutureState::Posted(key) = self.state {
            let posted = self.ep.borrow().domain.engine.cancel(key).ok()?;
            self.state = FutureState::Resolved;
            return Some(self.op.take_back(posted));
        }
        match mem::replace(&mut self.state, FutureState::Resolved) {
            FutureState::Unposted(buf) => Some(buf),
            _ => None,
        }
    }
}

impl<O: AwaitableOp<B>, B: Unpin, M: ThreadModel> Future for RequestFuture<'_, O, B, M> {
    type Output = O::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let this = &mut *self;
        let ep = this.ep.borrow();
        if let FutureState::Posted(key) = this.state {
            let completed = ready!(ep.domain.engine.poll_op(key, cx));
            // The result is large: it is built where it is returned.
            let result = Poll::Ready(this.op.output(completed));
            this.state = FutureState::Resolved;
            budget.made_progress();
            return result;
        }
        let FutureState::Unposted(buf) = mem::replace(&mut this.state, FutureState::Resolved)
        else {
            panic!("{POLLED_AFTER_COMPLETION}")
        };
        let mut posted = None;
        let polled = this.op.first_poll(ep, buf, cx, &mut posted);
        match posted {
            Some(key) => this.state = FutureState::Posted(key),
            None => budget.made_progress(),
        }
        polled
    }
}

impl<O: AwaitableOp<B>, B, M: ThreadModel> Drop for RequestFuture<'_, O, B, M> {
    #[inline]
    fn drop(&mut self) {
        if let FutureState::Posted(key) = self.state {
            let engine = &self.ep.borrow().domain.engine;
            engine.drop_future(key, self.op.cancels_on_drop());
        }
    }
}

impl<O: AwaitableOp<B>, B, M: ThreadModel> fmt::Debug for RequestFuture<'_, O, B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            FutureState::Unposted(_) => "RequestFuture(not posted)",
            FutureState::Posted(_) => "RequestFuture(posted)",
            FutureState::Resolved => "RequestFuture(resolved)",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use fabric_core::Result;
    use fabric_core::buf::{PooledBuf, Scatter};
    use fabric_core::completion::{Done, Failed};

    use super::*;
    use crate::Request;
    use crate::op::{
        AtomicOperation, ClaimedRecvOp, Claiming, Fetching, NoFetch, Operation, PermitSendOp,
        Probing, ReadOp, RecvOp, RemoteAtomicOp, Reserving, SendOp, WriteOp,
    };

    #[test]
    fn futures_are_small() {
        type Buf = Vec<u8>;
        const LIMIT: usize = size_of::<Buf>() + 96;
        assert!(size_of::<RequestFuture<'_, SendOp, Buf>>() <= LIMIT);
        assert!(size_of::<RequestFuture<'_, RecvOp, Buf>>() <= LIMIT);
        assert!(size_of::<RequestFuture<'_, WriteOp, Buf>>() <= LIMIT);
        assert!(size_of::<RequestFuture<'_, ReadOp, Buf>>() <= LIMIT);
        assert!(size_of::<RequestFuture<'_, RemoteAtomicOp<u64, Fetching>, u64>>() <= LIMIT);
        assert!(size_of::<Operation<Buf>>() <= LIMIT);
        type Output = Result<Done<Buf>, Failed<Buf>>;
        assert!(size_of::<Output>() <= size_of::<Buf>() + 128);
        assert!(size_of::<Done<Buf>>() <= size_of::<Buf>() + 64);
    }

    #[test]
    fn futures_are_unpin_and_send() {
        fn check<T: Unpin + Send>() {}
        fn check_buffer<B: fabric_core::buf::IoBufMut>() {
            check::<Request<'_, SendOp, B>>();
            check::<RequestFuture<'_, SendOp, B>>();
            check::<RequestFuture<'_, PermitSendOp, B>>();
            check::<RequestFuture<'_, RecvOp, B>>();
            check::<RequestFuture<'_, ClaimedRecvOp, B>>();
            check::<RequestFuture<'_, WriteOp, B>>();
            check::<RequestFuture<'_, ReadOp, B>>();
            check::<Operation<B>>();
        }
        check_buffer::<PooledBuf>();
        check_buffer::<Scatter>();
        check::<RequestFuture<'_, RemoteAtomicOp<u64, NoFetch>, u64>>();
        check::<RequestFuture<'_, RemoteAtomicOp<Vec<u8>, Fetching>, Vec<u8>>>();
        check::<AtomicOperation<[u32; 4], Fetching>>();
        check::<Probing<'_>>();
        check::<Claiming<'_>>();
        check::<Reserving<'_>>();
    }
}
