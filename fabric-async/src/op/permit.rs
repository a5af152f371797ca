//! Credits reserved ahead of a send.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::buf::IoBuf;
use fabric_core::transport::OpKey;
use fabric_core::{FiAddr, Result};
use tokio::task::coop;

use super::SendRequest;
use crate::endpoint::{Endpoint, EndpointInner};
use crate::thread_model::{Shared, ThreadModel};

/// A request for a transmit credit; awaiting it waits for one, in order with the sends that wait.
///
/// # Cancel safety
/// Dropping the future gives up the place in the queue; a credit that was granted meanwhile is
/// given back.
#[must_use = "nothing is reserved before the request is awaited"]
pub struct Reserve<'a, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    peer: FiAddr,
}

/// A transmit credit: one send to one peer that will not be refused for want of credit. (A send
/// that is posted to a queue still needs an entry there.)
///
/// Dropping it gives the credit back. It does not keep the endpoint open.
pub struct Permit<M: ThreadModel = Shared> {
    ep: Arc<EndpointInner>,
    key: OpKey,
    peer: FiAddr,
    consumed: bool,
    model: PhantomData<M>,
}

/// Waits for a credit.
pub struct ReserveFuture<M: ThreadModel> {
    state: Result<Option<Permit<M>>>,
}

impl<'a, M: ThreadModel> Reserve<'a, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>, peer: FiAddr) -> Self {
        Self { ep, peer }
    }
}

impl<M: ThreadModel> IntoFuture for Reserve<'_, M> {
    type Output = Result<Permit<M>>;
    type IntoFuture = ReserveFuture<M>;

    fn into_future(self) -> ReserveFuture<M> {
        let ep = &self.ep.inner;
        let asked = ep
            .node
            .check_open()
            .and_then(|()| ep.domain.core.reserve_credit(ep.id, self.peer));
        let permit = |key| {
            Some(Permit {
                ep: ep.clone(),
                key,
                peer: self.peer,
                consumed: false,
                model: PhantomData,
            })
        };
        ReserveFuture {
            state: asked.map(permit),
        }
    }
}

impl<M: ThreadModel> Future for ReserveFuture<M> {
    type Output = Result<Permit<M>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let granted = match &self.state {
            Ok(Some(permit)) => ready!(permit.ep.domain.core.poll_permit(permit.key, cx)),
            Ok(None) => panic!("a reservation was polled after it had resolved"),
            Err(error) => Err(error.clone()),
        };
        budget.made_progress();
        let permit = std::mem::replace(&mut self.state, Ok(None));
        Poll::Ready(
            granted.and_then(|()| permit.map(|permit| permit.expect("present until resolved"))),
        )
    }
}

impl<M: ThreadModel> Unpin for ReserveFuture<M> {}

impl<M: ThreadModel> Permit<M> {
    /// Sends with this credit: to be awaited, started or posted like any send, to the peer it was
    /// reserved for. `ep` is the endpoint that granted it, or a clone; on any other the permit is
    /// given back and the send has no credit.
    pub fn send<B: IoBuf>(self, ep: &Endpoint<M>, buf: B) -> SendRequest<'_, B, M> {
        let peer = self.peer;
        if Arc::ptr_eq(&ep.inner, &self.ep) {
            SendRequest::new(ep, peer, buf).with_permit(self)
        } else {
            // A credit of another endpoint does not count here.
            SendRequest::new(ep, peer, buf)
        }
    }

    /// The send was posted, and has the credit; or it was refused.
    pub(crate) fn finish(mut self, posted: bool) {
        self.consumed = posted;
    }
}

impl<M: ThreadModel> Drop for Permit<M> {
    fn drop(&mut self) {
        self.ep.domain.core.release_permit(self.key, self.consumed);
    }
}

impl<M: ThreadModel> fmt::Debug for Permit<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
