//! Messages that are lent instead of copied.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fabric_core::FiAddr;
use fabric_core::buf::Loan;
use fabric_core::completion::{Failed, OpKind};
use fabric_core::transport::TxOp;
use fabric_reactor::CreditMode;

use super::{CompletionOptions, Operation, send};
use crate::endpoint::Endpoint;
use crate::thread_model::{Shared, ThreadModel};

/// A request to lend a message: posted by `.await`, [`start`](Self::start) or [`post`](Self::post).
#[must_use = "nothing is lent before the request is awaited, started or posted"]
pub struct LendRequest<'a, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: TxOp,
    loan: Loan,
    report: CompletionOptions,
}

impl<'a, M: ThreadModel> LendRequest<'a, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>, peer: FiAddr, loan: Loan) -> Self {
        let (plain, level) = (TxOp::new(OpKind::Send, peer), ep.inner.completion_level);
        let spec = TxOp {
            loan: loan.key(),
            level,
            ..plain
        };
        Self {
            ep,
            spec,
            loan,
            report: CompletionOptions::default(),
        }
    }

    /// Makes it a tagged message, which only tagged receives take.
    pub fn tag(mut self, tag: u64) -> Self {
        self.spec.tag = Some(tag);
        self
    }

    /// Sets data for the receiver's completion (`FI_REMOTE_CQ_DATA`).
    pub fn data(mut self, data: u64) -> Self {
        self.spec.data = Some(data);
        self
    }

    completion_methods!();
    fence_method!();
    completion_level_methods!();

    /// Posts the request now. The returned operation may be awaited later, or dropped.
    ///
    /// # Errors
    /// With the loan, as [`SendRequest::start`](crate::SendRequest::start).
    #[allow(clippy::result_large_err)] // as of every request
    pub fn start(self) -> Result<LendOperation, Failed<Loan>> {
        send::submit(self.ep, &self.spec, self.loan, None, CreditMode::NoWait)
            .into_post_result()
            .map(LendOperation)
    }

    /// Posts the request now. The completion goes to the endpoint's transmit queue, without the
    /// loan.
    ///
    /// # Errors
    /// With the loan, as [`SendRequest::post`](crate::SendRequest::post).
    #[allow(clippy::result_large_err)] // as of every request
    pub fn post(self) -> Result<(), Failed<Loan>> {
        let route = self.report.target(self.ep.inner.selective_tx);
        send::post(
            self.ep,
            self.spec,
            self.loan,
            None,
            route,
            CreditMode::NoWait,
        )
        .map(drop)
    }
}

impl<M: ThreadModel> IntoFuture for LendRequest<'_, M> {
    type Output = Result<(), Failed<Loan>>;
    type IntoFuture = LendOperation;

    fn into_future(self) -> LendOperation {
        LendOperation(send::submit(
            self.ep,
            &self.spec,
            self.loan,
            None,
            CreditMode::Wait,
        ))
    }
}

/// A posted loan, to be awaited. Resolves when the peer has the memory; a failure returns the loan.
///
/// # Cancel safety
/// As [`Operation`].
///
/// # Panics
/// When polled after it has resolved.
#[must_use = "its result is lost if the operation is dropped"]
pub struct LendOperation(Operation<Loan>);

impl Future for LendOperation {
    type Output = Result<(), Failed<Loan>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The memory belongs to the peer by now: the returned loan is only dropped.
        Poll::Ready(ready!(Pin::new(&mut self.0).poll(cx)).map(drop))
    }
}

impl fmt::Debug for LendOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl_request_debug!("LendRequest", [M: ThreadModel], LendRequest<'_, M>);
