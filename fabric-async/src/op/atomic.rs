//! Atomic operations on a peer's memory.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, AtomicType, Row, bits_at, put};
use fabric_core::completion::{Failed, OpKind};
use fabric_core::provider::{Remote, SendNow, SendSpec};
use fabric_core::{FiAddr, Result};
use fabric_reactor::{Credit, Posted, Route, check_atomic};

use super::{Operation, Report};
use crate::endpoint::Endpoint;
use crate::model::{Shared, ThreadModel};
use crate::mr::RemoteAddr;

/// How many bytes of operands, comparands or results are handled without an allocation.
const SMALL: usize = 64;

/// What comes back from an atomic operation: nothing, or the values that were there.
pub trait Answer<R>: Unpin + sealed::Sealed {
    /// What its future resolves to.
    type Output: Unpin;
    /// Whether something comes back.
    #[doc(hidden)]
    const FETCHES: bool;
    /// Reads the answer.
    #[doc(hidden)]
    fn answer(row: &R, bytes: &[u8]) -> Self::Output;
}

/// Nothing comes back ([`Endpoint::atomic`]).
#[derive(Clone, Copy, Debug)]
pub enum Quiet {}

/// The values that were there come back ([`Endpoint::fetch_atomic`], [`Endpoint::compare_atomic`]).
#[derive(Clone, Copy, Debug)]
pub enum Fetch {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Quiet {}
    impl Sealed for super::Fetch {}
}

impl<R: Row> Answer<R> for Quiet {
    type Output = ();
    const FETCHES: bool = false;

    fn answer(_: &R, _: &[u8]) {}
}

impl<R: Row> Answer<R> for Fetch {
    type Output = R;
    const FETCHES: bool = true;

    fn answer(row: &R, bytes: &[u8]) -> R {
        let size = R::Element::DATATYPE.size();
        row.like(|index| R::Element::from_bits(bits_at(bytes, index, size)))
    }
}

/// An atomic operation on a peer's memory: posted by `.await`, [`start`](Self::start) or
/// [`post`](Self::post).
///
/// `R` is a value, an array or a vector of values. Over shared memory it is executed by the
/// processor of whoever starts it, on the memory itself, and over `tcp`, and on registered buffers,
/// [by its owner](crate::guide::one_sided); the owner's own
/// [`MemoryRegion::atomic`](crate::MemoryRegion::atomic) does likewise, so all of them exclude each
/// other.
#[must_use = "nothing happens before the request is awaited, started or posted"]
#[doc(alias = "fi_atomic")]
#[doc(alias = "fi_atomicmsg")]
pub struct AtomicRequest<'a, R, A, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: SendSpec,
    row: R,
    comparands: Option<R>,
    report: Report,
    answer: PhantomData<A>,
}

impl<'a, R: Row, A: Answer<R>, M: ThreadModel> AtomicRequest<'a, R, A, M> {
    pub(crate) fn new(
        ep: &'a Endpoint<M>,
        peer: FiAddr,
        at: RemoteAddr,
        op: AtomicOp,
        row: R,
        comparands: Option<R>,
    ) -> Self {
        let datatype = R::Element::DATATYPE;
        let (kind, call) = match (A::FETCHES, &comparands) {
            (false, _) => (OpKind::Atomic, AtomicCall::Base),
            (true, None) => (OpKind::FetchAtomic, AtomicCall::Fetch),
            (true, Some(_)) => (OpKind::FetchAtomic, AtomicCall::Compare),
        };
        let atomic = Some(AtomicSpec { op, datatype, call });
        let len = row.elements().len() * datatype.size();
        let remote = Remote {
            key: at.key,
            offset: at.offset,
            len,
            atomic,
        };
        let spec = SendSpec::one_sided(kind, peer, remote);
        Self {
            ep,
            spec,
            row,
            comparands,
            report: Report::default(),
            answer: PhantomData,
        }
    }

    reported!();
    fenced!();
    delivered!();

    /// Posts now; the result is awaited later, or never.
    ///
    /// # Errors
    /// [`Error::NotSupported`](crate::Error::NotSupported) when there is no such operation on this
    /// type; [`Error::Invalid`](crate::Error::Invalid) when the offset is no multiple of a value's
    /// size, or operands and comparands are not equally many; and as
    /// [`WriteRequest::start`](crate::WriteRequest::start).
    pub fn start(self) -> Result<AtomicOperation<R, A>> {
        self.submit(Credit::Now)
    }

    /// Posts now; the completion goes to the endpoint's transmit queue.
    /// [`Completion::values`](crate::Completion::values) has what was fetched.
    ///
    /// # Errors
    /// As [`start`](Self::start), and as [`SendRequest::post`](crate::SendRequest::post).
    pub fn post(self) -> Result<()> {
        self.check()?;
        let (ep, route) = (self.ep, self.report.route(self.ep.inner.quiet_tx));
        let operands = self.operands();
        ep.inner
            .domain
            .core
            .atomic(ep.inner.id, self.spec, operands, route, Credit::Now)
            .map(drop)
    }

    fn submit(self, credit: Credit) -> Result<AtomicOperation<R, A>> {
        self.check()?;
        let (ep, len) = (self.ep, self.spec.remote.map_or(0, |remote| remote.len));
        let core = &ep.inner.domain.core;
        if len <= SMALL {
            let (mut operands, mut result) = ([0; 2 * SMALL], [0; SMALL]);
            let operands = &mut operands[..if self.comparands.is_some() {
                2 * len
            } else {
                len
            }];
            self.fill(operands);
            let result = &mut result[..if A::FETCHES { len } else { 0 }];
            let done = ep
                .inner
                .express(|way| way.atomic_now(&self.spec, operands, result));
            if done || core.atomic_now(ep.inner.id, &self.spec, operands, result)? == SendNow::Done
            {
                return Ok(AtomicOperation(State::Ended(Some(A::answer(
                    &self.row, result,
                )))));
            }
        }
        let operands = self.operands();
        let posted = core.atomic(ep.inner.id, self.spec, operands, Route::Future, credit)?;
        Ok(AtomicOperation(match posted {
            Posted::Done(_, result) => State::Ended(Some(A::answer(&self.row, &result))),
            posted => State::Posted(Operation::of(ep, posted), self.row),
        }))
    }

    fn check(&self) -> Result<()> {
        let count = self.row.elements().len();
        let comparands = self
            .comparands
            .as_ref()
            .map_or(count, |comparands| comparands.elements().len());
        if comparands != count {
            let why = format!("{count} operands, {comparands} comparands");
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
        self.ep.inner.check_send(&self.spec)
    }

    fn rows(&self) -> impl Iterator<Item = R::Element> {
        let comparands = self
            .comparands
            .as_ref()
            .map_or(&[][..], |comparands| comparands.elements());
        self.row.elements().iter().chain(comparands).copied()
    }

    fn fill(&self, bytes: &mut [u8]) {
        let size = R::Element::DATATYPE.size();
        for (place, value) in bytes.chunks_exact_mut(size).zip(self.rows()) {
            place.copy_from_slice(&value.bits().to_le_bytes()[..size]);
        }
    }

    fn operands(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.rows().for_each(|value| put(value, &mut bytes));
        bytes
    }
}

impl<R: Row, A: Answer<R>, M: ThreadModel> IntoFuture for AtomicRequest<'_, R, A, M> {
    type Output = Result<A::Output>;
    type IntoFuture = AtomicOperation<R, A>;

    fn into_future(self) -> AtomicOperation<R, A> {
        self.submit(Credit::Wait)
            .unwrap_or_else(|error| AtomicOperation(State::Refused(Some(error))))
    }
}

/// A posted atomic operation, to be awaited.
///
/// # Cancel safety
/// Dropping it takes nothing back: the operation takes effect once.
///
/// # Panics
/// When polled after it has resolved.
#[must_use = "dropping an operation abandons it"]
pub struct AtomicOperation<R: Row, A: Answer<R>>(State<R, A>);

enum State<R: Row, A: Answer<R>> {
    Ended(Option<A::Output>),
    Refused(Option<crate::Error>),
    Posted(Operation<Vec<u8>>, R),
}

impl<R: Row, A: Answer<R>> Future for AtomicOperation<R, A> {
    type Output = Result<A::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const AGAIN: &str = "an operation was polled after it had resolved";
        Poll::Ready(match &mut self.0 {
            State::Ended(answer) => {
                let budget = ready!(tokio::task::coop::poll_proceed(cx));
                budget.made_progress();
                Ok(answer.take().expect(AGAIN))
            }
            State::Refused(error) => Err(error.take().expect(AGAIN)),
            State::Posted(operation, row) => match ready!(Pin::new(operation).poll(cx)) {
                Ok(done) => Ok(A::answer(row, &done.buf)),
                Err(Failed { error, .. }) => Err(error),
            },
        })
    }
}

impl<R: Row, A: Answer<R>> std::fmt::Debug for AtomicOperation<R, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            State::Posted(..) => "AtomicOperation(posted)",
            _ => "AtomicOperation(ended)",
        })
    }
}
