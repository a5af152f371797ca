//! Transmit credits reserved ahead of a send.

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
use crate::endpoint::{AnyEndpoint, Endpoint, EndpointInner};
use crate::thread_model::{Shared, ThreadModel};

/// A request for a transmit credit. Awaiting it waits for a credit, in order with waiting sends.
///
/// # Cancel safety
/// Dropping the future gives up its place in the queue, and returns a credit that was granted
/// meanwhile.
#[must_use = "nothing is reserved before the request is awaited"]
pub struct Reserve<'a, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    peer: FiAddr,
}

/// A reserved transmit credit: one send to one peer that does not fail for lack of credit. (A send
/// that is posted to a queue still needs an entry there.)
///
/// Dropping it returns the credit. It does not keep the endpoint open.
pub struct Permit<M: ThreadModel = Shared> {
    ep: Arc<EndpointInner>,
    key: OpKey,
    peer: FiAddr,
    consumed: bool,
    model: PhantomData<M>,
}

/// The future of a [`Reserve`] request.
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
        let reserved = ep
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
            state: reserved.map(permit),
        }
    }
}

impl<M: ThreadModel> Future for ReserveFuture<M> {
    type Output = Result<Permit<M>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let granted = match &self.state {
            Ok(Some(permit)) => ready!(permit.ep.domain.core.poll_permit(permit.key, cx)),
            Ok(None) => panic!("the reservation was polled after it had resolved"),
            Err(error) => Err(error.clone()),
        };
        budget.made_progress();
        let permit = std::mem::replace(&mut self.state, Ok(None));
        Poll::Ready(
            granted.and_then(|()| permit.map(|permit| permit.expect("present until resolved"))),
        )
    }
}

impl<M: ThreadModel> Permit<M> {
    /// Returns a request to send with this credit, to the peer it was reserved for; to be awaited,
    /// started or posted like any send. `ep` must be the endpoint that granted the credit, or a
    /// clone: on any other endpoint the credit is returned, and the send has none.
    pub fn send<B: IoBuf>(self, ep: &impl AnyEndpoint<M>, buf: B) -> SendRequest<'_, B, M> {
        let (ep, peer) = (ep.as_endpoint(), self.peer);
        if Arc::ptr_eq(&ep.inner, &self.ep) {
            SendRequest::new(ep, peer, buf).with_permit(self)
        } else {
            // A credit is valid for its own endpoint only.
            SendRequest::new(ep, peer, buf)
        }
    }

    /// Ends the permit: a posted send has consumed the credit, a refused one returns it.
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

impl<M: ThreadModel> fmt::Debug for Reserve<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserve")
            .field("endpoint", &self.ep.id())
            .field("peer", &self.peer)
            .finish()
    }
}

impl<M: ThreadModel> fmt::Debug for ReserveFuture<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReserveFuture").field(&self.state).finish()
    }
}
