//! Requests for atomic operations on a peer's memory.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fabric_core::atomic::{
    AtomicCall, AtomicOp, AtomicSpec, AtomicType, AtomicValues, append_value, bits_at,
};
use fabric_core::completion::{Failed, OpKind};
use fabric_core::transport::{RmaIov, TrySend, TxOp};
use fabric_core::{FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult, check_atomic};

use super::{CompletionOptions, Operation, POLLED_AFTER_COMPLETION};
use crate::endpoint::Endpoint;
use crate::mr::RemoteAddr;
use crate::thread_model::{Shared, ThreadModel};

/// Bytes of operands, comparands or results that are handled without an allocation.
const INLINE_BYTES: usize = 64;

/// Whether an atomic operation returns the previous values.
pub trait AtomicMode<R>: Unpin + sealed::Sealed {
    /// The output of the operation's future.
    type Output: Unpin;
    /// Whether the operation returns values.
    #[doc(hidden)]
    const FETCHES: bool;
    /// Decodes the result. The result has the shape of `operands`.
    #[doc(hidden)]
    fn decode(operands: &R, bytes: &[u8]) -> Self::Output;
}

/// The operation returns nothing ([`Endpoint::atomic`]).
#[derive(Clone, Copy, Debug)]
pub enum NoFetch {}

/// The operation returns the previous values ([`Endpoint::fetch_atomic`],
/// [`Endpoint::compare_atomic`]).
#[derive(Clone, Copy, Debug)]
pub enum Fetching {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::NoFetch {}
    impl Sealed for super::Fetching {}
}

impl<R: AtomicValues> AtomicMode<R> for NoFetch {
    type Output = ();
    const FETCHES: bool = false;

    fn decode(_: &R, _: &[u8]) {}
}

impl<R: AtomicValues> AtomicMode<R> for Fetching {
    type Output = R;
    const FETCHES: bool = true;

    fn decode(operands: &R, bytes: &[u8]) -> R {
        let size = R::Element::DATATYPE.size();
        operands.like_from_fn(|index| R::Element::from_bits(bits_at(bytes, index, size)))
    }
}

/// A request for an atomic operation on a peer's memory: posted by `.await`, [`start`](Self::start)
/// or [`post`](Self::post).
///
/// `R` is a value, an array or a vector of values. Over shared memory the initiator's CPU executes
/// the operation directly on the memory; over `tcp`, and for registered buffers, [the
/// owner](crate::guide::one_sided) executes it. The owner's own
/// [`MemoryRegion::atomic`](crate::MemoryRegion::atomic) works on the same memory, so all of them
/// are atomic with respect to each other.
#[must_use = "nothing happens before the request is awaited, started or posted"]
#[doc(alias = "fi_atomic")]
#[doc(alias = "fi_atomicmsg")]
pub struct AtomicRequest<'a, R, A, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: TxOp,
    values: R,
    comparands: Option<R>,
    report: CompletionOptions,
    mode: PhantomData<A>,
}

impl<'a, R: AtomicValues, A: AtomicMode<R>, M: ThreadModel> AtomicRequest<'a, R, A, M> {
    pub(crate) fn new(
        ep: &'a Endpoint<M>,
        peer: FiAddr,
        at: RemoteAddr,
        op: AtomicOp,
        values: R,
        comparands: Option<R>,
    ) -> Self {
        let datatype = R::Element::DATATYPE;
        let (kind, call) = match (A::FETCHES, &comparands) {
            (false, _) => (OpKind::Atomic, AtomicCall::Base),
            (true, None) => (OpKind::FetchAtomic, AtomicCall::Fetch),
            (true, Some(_)) => (OpKind::FetchAtomic, AtomicCall::Compare),
        };
        let atomic = Some(AtomicSpec { op, datatype, call });
        let len = values.elements().len() * datatype.size();
        let remote = RmaIov {
            key: at.key,
            offset: at.offset,
            len,
            atomic,
        };
        let spec = TxOp::one_sided(kind, peer, remote);
        Self {
            ep,
            spec,
            values,
            comparands,
            report: CompletionOptions::default(),
            mode: PhantomData,
        }
    }

    completion_methods!();
    fence_method!();
    delivery_complete_method!();

    /// Posts the request now. The returned operation may be awaited later, or dropped.
    ///
    /// # Errors
    /// [`Error::NotSupported`](crate::Error::NotSupported) when the data type does not have the
    /// operation; [`Error::Invalid`](crate::Error::Invalid) when the offset is not a multiple of
    /// the value's size, or the numbers of operands and comparands differ; and as
    /// [`WriteRequest::start`](crate::WriteRequest::start).
    pub fn start(self) -> Result<AtomicOperation<R, A>> {
        self.submit(CreditMode::NoWait)
    }

    /// Posts the request now. The completion goes to the endpoint's transmit queue; its
    /// [`Completion::values`](crate::Completion::values) are the previous values.
    ///
    /// # Errors
    /// As [`start`](Self::start), and as [`SendRequest::post`](crate::SendRequest::post).
    pub fn post(self) -> Result<()> {
        self.check()?;
        let (ep, route) = (self.ep, self.report.target(self.ep.inner.selective_tx));
        let operands = self.encode_operands();
        ep.inner
            .domain
            .core
            .atomic(ep.inner.id, self.spec, operands, route, CreditMode::NoWait)
            .map(drop)
    }

    fn submit(self, credit: CreditMode) -> Result<AtomicOperation<R, A>> {
        self.check()?;
        let (ep, len) = (self.ep, self.spec.remote.map_or(0, |remote| remote.len));
        let core = &ep.inner.domain.core;
        if len <= INLINE_BYTES {
            let (mut operands, mut result) = ([0; 2 * INLINE_BYTES], [0; INLINE_BYTES]);
            let operands = &mut operands[..if self.comparands.is_some() {
                2 * len
            } else {
                len
            }];
            self.write_operands(operands);
            let result = &mut result[..if A::FETCHES { len } else { 0 }];
            let done = ep
                .inner
                .try_fast_path(|fast_path| fast_path.try_atomic(&self.spec, operands, result));
            if done || core.try_atomic(ep.inner.id, &self.spec, operands, result)? == TrySend::Done
            {
                return Ok(AtomicOperation(AtomicOperationState::Done(Some(
                    A::decode(&self.values, result),
                ))));
            }
        }
        let operands = self.encode_operands();
        let posted = core.atomic(
            ep.inner.id,
            self.spec,
            operands,
            CompletionTarget::Future,
            credit,
        )?;
        Ok(AtomicOperation(match posted {
            PostResult::Done(_, result) => {
                AtomicOperationState::Done(Some(A::decode(&self.values, &result)))
            }
            posted => {
                AtomicOperationState::Posted(Operation::from_post_result(ep, posted), self.values)
            }
        }))
    }

    fn check(&self) -> Result<()> {
        let count = self.values.elements().len();
        let comparands = self
            .comparands
            .as_ref()
            .map_or(count, |comparands| comparands.elements().len());
        if comparands != count {
            let why = format!("it has {count} operands and {comparands} comparands");
            return Err(crate::Error::Invalid {
                what: "atomic operation",
                why,
            });
        }
        if let Some((atomic, len)) = self
            .spec
            .remote
            .and_then(|remote| Some((remote.atomic?, remote.len)))
        {
            check_atomic(atomic, len)?;
        }
        self.ep.inner.check_tx_op(&self.spec)
    }

    fn operands_and_comparands(&self) -> impl Iterator<Item = R::Element> {
        let comparands = self
            .comparands
            .as_ref()
            .map_or(&[][..], |comparands| comparands.elements());
        self.values.elements().iter().chain(comparands).copied()
    }

    fn write_operands(&self, bytes: &mut [u8]) {
        let size = R::Element::DATATYPE.size();
        for (slot, value) in bytes
            .chunks_exact_mut(size)
            .zip(self.operands_and_comparands())
        {
            slot.copy_from_slice(&value.bits().to_le_bytes()[..size]);
        }
    }

    fn encode_operands(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.operands_and_comparands()
            .for_each(|value| append_value(value, &mut bytes));
        bytes
    }
}

impl<R: AtomicValues, A: AtomicMode<R>, M: ThreadModel> IntoFuture for AtomicRequest<'_, R, A, M> {
    type Output = Result<A::Output>;
    type IntoFuture = AtomicOperation<R, A>;

    fn into_future(self) -> AtomicOperation<R, A> {
        self.submit(CreditMode::Wait)
            .unwrap_or_else(|error| AtomicOperation(AtomicOperationState::PostFailed(Some(error))))
    }
}

/// A posted atomic operation, to be awaited.
///
/// # Cancel safety
/// Dropping it does not cancel the operation, which takes effect once.
///
/// # Panics
/// When polled after it has resolved.
#[must_use = "its result is lost if the operation is dropped"]
pub struct AtomicOperation<R: AtomicValues, A: AtomicMode<R>>(AtomicOperationState<R, A>);

enum AtomicOperationState<R: AtomicValues, A: AtomicMode<R>> {
    Done(Option<A::Output>),
    PostFailed(Option<crate::Error>),
    Posted(Operation<Vec<u8>>, R),
}

impl<R: AtomicValues, A: AtomicMode<R>> Future for AtomicOperation<R, A> {
    type Output = Result<A::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut self.0 {
            AtomicOperationState::Done(answer) => {
                let budget = ready!(tokio::task::coop::poll_proceed(cx));
                budget.made_progress();
                Ok(answer.take().expect(POLLED_AFTER_COMPLETION))
            }
            AtomicOperationState::PostFailed(error) => {
                Err(error.take().expect(POLLED_AFTER_COMPLETION))
            }
            AtomicOperationState::Posted(operation, operands) => {
                match ready!(Pin::new(operation).poll(cx)) {
                    Ok(done) => Ok(A::decode(operands, &done.buf)),
                    Err(Failed { error, .. }) => Err(error),
                }
            }
        })
    }
}

impl<R: AtomicValues, A: AtomicMode<R>> std::fmt::Debug for AtomicOperation<R, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            AtomicOperationState::Posted(..) => "AtomicOperation(posted)",
            _ => "AtomicOperation(ended)",
        })
    }
}

impl_request_debug!("AtomicRequest", [R, A, M: ThreadModel], AtomicRequest<'_, R, A, M>);
