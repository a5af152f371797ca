//! Probes of messages.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::Result;
use fabric_core::completion::Transfer;
use fabric_core::matching::RecvSpec;
use fabric_core::transport::OpKey;
use tokio::task::coop;

use super::Request;
use super::claim::ClaimOp;
use super::recv::ANY_UNTAGGED;
use super::traits::{MatchingOp, Op, sealed};
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::{Shared, ThreadModel};

/// A probe: finds a message without receiving it (`FI_PEEK`,
/// [`Endpoint::probe`](crate::Endpoint::probe)).
#[derive(Debug)]
pub struct ProbeOp {
    spec: RecvSpec,
}

impl ProbeOp {
    pub(crate) fn new() -> Self {
        Self { spec: ANY_UNTAGGED }
    }
}

impl sealed::Sealed for ProbeOp {}
impl Op for ProbeOp {
    type Ep<'a> = &'a Arc<EndpointInner>;
}
impl MatchingOp for ProbeOp {
    fn recv_spec(&mut self) -> &mut RecvSpec {
        &mut self.spec
    }
}

/// # Probes
impl<'a, M: ThreadModel> Request<'a, ProbeOp, (), M> {
    /// Returns length, tag and source of the first matching message without waiting; `None` if
    /// there is none now.
    ///
    /// # Errors
    /// As of a [probe](crate::Endpoint::probe).
    pub fn try_probe(&self) -> Result<Option<Transfer>> {
        self.ep.check_probe(&self.op.spec)?;
        self.ep.domain.engine.peek(self.ep.id, self.op.spec)
    }

    /// Returns a request to take the message that is found for one receive (`FI_CLAIM`).
    #[doc(alias = "FI_CLAIM")]
    pub fn claim(self) -> Request<'a, ClaimOp, (), M> {
        let op = ClaimOp { spec: self.op.spec };
        Request::new(self.ep, op, ())
    }
}

impl<'a, M: ThreadModel> IntoFuture for Request<'a, ProbeOp, (), M> {
    type Output = Result<Transfer>;
    type IntoFuture = Probing<'a, M>;

    fn into_future(self) -> Probing<'a, M> {
        Probing::new(self.ep, self.op.spec)
    }
}

/// The future of a [probe](crate::Endpoint::probe), which searches from the first poll on.
#[must_use = "a future does nothing unless polled"]
pub struct Probing<'a, M: ThreadModel = Shared> {
    ep: &'a Arc<EndpointInner>,
    spec: RecvSpec,
    /// `None` before the first poll, and after the future has resolved.
    key: Option<OpKey>,
    model: PhantomData<M>,
}

impl<'a, M: ThreadModel> Probing<'a, M> {
    pub(super) fn new(ep: &'a Arc<EndpointInner>, spec: RecvSpec) -> Self {
        Self {
            ep,
            spec,
            key: None,
            model: PhantomData,
        }
    }

    pub(super) fn ep(&self) -> &'a Arc<EndpointInner> {
        self.ep
    }

    pub(super) fn spec(&self) -> RecvSpec {
        self.spec
    }
}

impl<M: ThreadModel> Future for Probing<'_, M> {
    type Output = Result<Transfer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let key = match self.key {
            Some(key) => key,
            None => {
                self.ep.check_probe(&self.spec)?;
                let key = self.ep.domain.engine.probe(self.ep.id, self.spec)?;
                *self.key.insert(key)
            }
        };
        let found = ready!(self.ep.domain.engine.poll_probe(key, cx));
        self.key = None;
        budget.made_progress();
        Poll::Ready(found)
    }
}

impl<M: ThreadModel> Drop for Probing<'_, M> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.ep.domain.engine.drop_future(key, false);
        }
    }
}

impl<M: ThreadModel> fmt::Debug for Probing<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probing")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}
