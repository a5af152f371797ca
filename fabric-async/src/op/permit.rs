//! Transmit credits reserved ahead of a send.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::buf::IoBuf;
use fabric_core::completion::Failed;
use fabric_core::transport::OpKey;
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult};
use tokio::task::coop;

use super::send::SendOp;
use super::traits::{
    BufferOp, BytesOp, DataOp, MessageOp, Op, TaggedOp, TransmitOp, TxOptions, sealed,
};
use super::{POLLED_AFTER_COMPLETION, Request};
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::{Shared, ThreadModel};

/// The future of [`Endpoint::reserve`](crate::Endpoint::reserve): waits for a transmit credit, in
/// order with waiting sends.
///
/// The future takes its place in the queue at the first poll.
///
/// # Cancel safety
/// Dropping the future gives up its place in the queue, and returns a credit that was granted
/// meanwhile.
///
/// # Panics
/// When polled after it has resolved.
#[must_use = "nothing is reserved before the future is awaited"]
pub struct Reserving<'a, M: ThreadModel = Shared> {
    ep: &'a Arc<EndpointInner>,
    peer: FiAddr,
    state: ReservingState<M>,
}

enum ReservingState<M: ThreadModel> {
    Unqueued,
    /// In the queue, or granted: the drop of the permit handles both.
    Queued(Permit<M>),
    Resolved,
}

/// A reserved transmit credit: one send to one peer does not fail for lack of credit. A send that
/// is posted to a queue still needs an entry there.
///
/// Dropping the permit returns the credit. A permit does not keep the endpoint open.
pub struct Permit<M: ThreadModel = Shared> {
    ep: Arc<EndpointInner>,
    key: OpKey,
    peer: FiAddr,
    /// Whether a posted send has taken over the credit.
    credit_used: bool,
    model: PhantomData<M>,
}

impl<'a, M: ThreadModel> Reserving<'a, M> {
    pub(crate) fn new(ep: &'a Arc<EndpointInner>, peer: FiAddr) -> Self {
        Self {
            ep,
            peer,
            state: ReservingState::Unqueued,
        }
    }

    /// Takes a place in the queue for credits. The permit holds the place, and later the credit.
    fn enqueue(&self) -> Result<Permit<M>> {
        self.ep.node.check_open()?;
        let key = self
            .ep
            .domain
            .engine
            .reserve_credit(self.ep.id, self.peer)?;
        Ok(Permit {
            ep: self.ep.clone(),
            key,
            peer: self.peer,
            credit_used: false,
            model: PhantomData,
        })
    }
}

impl<M: ThreadModel> Future for Reserving<'_, M> {
    type Output = Result<Permit<M>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        if let ReservingState::Unqueued = self.state {
            self.state = match self.enqueue() {
                Ok(permit) => ReservingState::Queued(permit),
                Err(error) => {
                    self.state = ReservingState::Resolved;
                    budget.made_progress();
                    return Poll::Ready(Err(error));
                }
            };
        }
        let ReservingState::Queued(permit) = &self.state else {
            panic!("{POLLED_AFTER_COMPLETION}")
        };
        let granted = ready!(self.ep.domain.engine.poll_wait(permit.key, cx));
        budget.made_progress();
        let ReservingState::Queued(permit) =
            mem::replace(&mut self.state, ReservingState::Resolved)
        else {
            unreachable!("the reservation was queued above")
        };
        Poll::Ready(granted.map(|()| permit))
    }
}

impl<M: ThreadModel> fmt::Debug for Reserving<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserving")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl<M: ThreadModel> Permit<M> {
    /// Returns a request to send with this credit to its peer; to be awaited, or posted
    /// like any send. `ep` must be the endpoint that granted the credit, or a clone: on any other
    /// endpoint the send fails with [`Error::Invalid`], and the credit is returned.
    pub fn send<B>(self, ep: &impl AsEndpoint<M>, buf: B) -> Request<'_, PermitSendOp<M>, B, M> {
        let op = PermitSendOp {
            send: SendOp::new(self.peer),
            permit: Some(self),
        };
        Request::new(ep.inner(), op, buf)
    }
}

/// An [`Endpoint`](crate::Endpoint) or a [`ConnectedEndpoint`](crate::ConnectedEndpoint), for calls
/// that take either, such as [`Permit::send`].
pub trait AsEndpoint<M: ThreadModel = Shared>: sealed::Sealed {
    /// Returns the part of the endpoint that requests refer to.
    #[doc(hidden)]
    fn inner(&self) -> &Arc<EndpointInner>;
}

impl<M: ThreadModel> Drop for Permit<M> {
    fn drop(&mut self) {
        self.ep
            .domain
            .engine
            .drop_permit(self.key, self.credit_used);
    }
}

impl<M: ThreadModel> fmt::Debug for Permit<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// A send with a reserved credit ([`Permit::send`]).
#[derive(Debug)]
pub struct PermitSendOp<M: ThreadModel = Shared> {
    send: SendOp,
    /// `None` after the post.
    permit: Option<Permit<M>>,
}

impl<M: ThreadModel> sealed::Sealed for PermitSendOp<M> {}
impl<M: ThreadModel> Op for PermitSendOp<M> {
    type Ep<'a> = &'a Arc<EndpointInner>;

    fn tx_options(&self) -> Option<&TxOptions> {
        self.send.tx_options()
    }
}
impl<M: ThreadModel> TaggedOp for PermitSendOp<M> {
    fn set_tag(&mut self, tag: u64) {
        self.send.set_tag(tag);
    }
}
impl<M: ThreadModel> DataOp for PermitSendOp<M> {
    fn set_data(&mut self, data: u64) {
        self.send.set_data(data);
    }
}
impl<M: ThreadModel> TransmitOp for PermitSendOp<M> {
    fn options(&mut self) -> &mut TxOptions {
        self.send.options()
    }
}
impl<M: ThreadModel> MessageOp for PermitSendOp<M> {}
impl<M: ThreadModel> BytesOp for PermitSendOp<M> {}

impl<B: IoBuf, M: ThreadModel> BufferOp<B> for PermitSendOp<M> {
    const IS_SOURCE: bool = true;
    const BUFFER_IS_LOAN: bool = B::IS_LOAN;

    fn post(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        target: CompletionTarget,
        _credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let mut permit = self
            .permit
            .take()
            .expect("an operation is posted at most once");
        if !std::ptr::eq(ep, &*permit.ep) {
            let error = Error::Invalid {
                what: "permit",
                why: "it was granted by another endpoint".into(),
            };
            return Err(Failed::new(error, buf));
        }
        let posted = self.send.post(ep, buf, target, CreditMode::FromPermit);
        // A posted send has taken over the credit; a refused send returns it.
        permit.credit_used = posted.is_ok();
        posted
    }
}
