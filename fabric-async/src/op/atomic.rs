//! Atomic operations on a peer's memory.
//!
//! The operands of a request are values, not bytes: a post encodes them, and a fetching operation
//! decodes its result in their shape. Short operations are tried at once and need no allocation.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, AtomicType, AtomicValues, bits_at};
use fabric_core::buf::AnyBuf;
use fabric_core::completion::{CompletionLevel, Failed, OpKind};
use fabric_core::transport::{OpKey, RmaIov, TrySend, TxOp};
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{CompletedOp, CompletionTarget, CreditMode, PostResult, check_atomic};
use tokio::task::coop;

use super::operation::{CancelOutcome, cancel_or_wait};
use super::traits::{AwaitableOp, DeliveryOp, Op, SelectiveOp, TransmitOp, TxOptions, sealed};
use super::{Operation, POLLED_AFTER_COMPLETION, Request};
use crate::endpoint_inner::EndpointInner;
use crate::remote_region::RemoteAddr;
use crate::thread_model::{Shared, ThreadModel};

/// Length in bytes up to which operands, comparands and results need no allocation.
const INLINE_BYTES: usize = 64;

/// Whether an atomic operation returns the previous values.
pub trait AtomicMode<R>: sealed::Sealed + Send + Unpin + 'static {
    /// The output of the operation's future.
    type Output: Send + Unpin;
    /// Whether the operation returns values.
    #[doc(hidden)]
    const FETCHES: bool;
    /// Decodes the previous values. The output has the shape of `operands`: a value, an array or a
    /// vector.
    #[doc(hidden)]
    fn decode(operands: &R, bytes: &[u8]) -> Self::Output;
}

/// The operation returns nothing ([`Endpoint::atomic`](crate::Endpoint::atomic)).
#[derive(Clone, Copy, Debug)]
pub enum NoFetch {}

/// The operation returns the previous values
/// ([`Endpoint::fetch_atomic`](crate::Endpoint::fetch_atomic),
/// [`Endpoint::compare_atomic`](crate::Endpoint::compare_atomic)).
#[derive(Clone, Copy, Debug)]
pub enum Fetching {}

impl sealed::Sealed for NoFetch {}
impl sealed::Sealed for Fetching {}

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

/// An atomic operation on a peer's memory ([`Endpoint::atomic`](crate::Endpoint::atomic) and
/// others). `R` is a value, an array or a vector of values; `A` is [`NoFetch`] or [`Fetching`].
///
/// Over shared memory the initiator's CPU executes the operation directly on the memory; over
/// `tcp`, and for registered buffers, [the owner](crate::guide::one_sided) executes it. The owner's
/// own [`MemoryRegion::atomic`](crate::MemoryRegion::atomic) works on the same memory, so all of
/// them are atomic with respect to each other.
#[derive(Debug)]
#[doc(alias = "fi_atomic")]
#[doc(alias = "fi_atomicmsg")]
pub struct RemoteAtomicOp<R, A> {
    peer: FiAddr,
    at: RemoteAddr,
    op: AtomicOp,
    options: TxOptions,
    comparands: Option<R>,
    /// The operands, once a future has posted the operation: the result has their shape.
    posted_operands: Option<R>,
    mode: PhantomData<A>,
}

impl<R, A> RemoteAtomicOp<R, A> {
    pub(crate) fn new(peer: FiAddr, at: RemoteAddr, op: AtomicOp, comparands: Option<R>) -> Self {
        Self {
            peer,
            at,
            op,
            options: TxOptions::default(),
            comparands,
            posted_operands: None,
            mode: PhantomData,
        }
    }
}

impl<R: AtomicValues, A: AtomicMode<R>> sealed::Sealed for RemoteAtomicOp<R, A> {}
impl<R: AtomicValues, A: AtomicMode<R>> Op for RemoteAtomicOp<R, A> {
    type Ep<'a> = &'a Arc<EndpointInner>;

    fn tx_options(&self) -> Option<&TxOptions> {
        Some(&self.options)
    }
}
impl<R: AtomicValues, A: AtomicMode<R>> TransmitOp for RemoteAtomicOp<R, A> {
    fn options(&mut self) -> &mut TxOptions {
        &mut self.options
    }
}
impl<R: AtomicValues, A: AtomicMode<R>> DeliveryOp for RemoteAtomicOp<R, A> {}
impl<R: AtomicValues, A: AtomicMode<R>> SelectiveOp for RemoteAtomicOp<R, A> {}

/// # Posting atomic operations
impl<R: AtomicValues, A: AtomicMode<R>, M: ThreadModel> Request<'_, RemoteAtomicOp<R, A>, R, M> {
    /// Posts the request now. The returned operation may be awaited later, or dropped.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the data type does not have the operation; [`Error::Invalid`]
    /// when the offset is not a multiple of the value's size, or the numbers of operands and
    /// comparands differ; and as of a write.
    pub fn start(self) -> Result<AtomicOperation<R, A, M>> {
        let posted = AtomicPost::new(&self.op, &self.buf, self.ep)?.submit(CreditMode::NoWait)?;
        Ok(AtomicOperation(match posted {
            Submitted::Done(output) => AtomicOperationState::Done(Some(output)),
            Submitted::Pending(key) => AtomicOperationState::Posted(
                Operation::posted(self.ep.clone(), key, self.op.options.cancel_on_drop),
                self.buf,
            ),
        }))
    }

    /// Posts the request now. The completion goes to the endpoint's transmit queue; its
    /// [`Completion::values`](crate::Completion::values) are the previous values.
    ///
    /// # Errors
    /// As [`start`](Self::start), and as of a write that is posted.
    pub fn post(self) -> Result<()> {
        let target = self.completion_options.target(self.ep.selective_tx);
        AtomicPost::new(&self.op, &self.buf, self.ep)?
            .post(target, CreditMode::NoWait)
            .map(drop)
    }
}

impl<R: AtomicValues, A: AtomicMode<R>> AwaitableOp<R> for RemoteAtomicOp<R, A> {
    type Output = Result<A::Output>;

    fn first_poll(
        &mut self,
        ep: &EndpointInner,
        operands: R,
        cx: &mut Context<'_>,
        posted: &mut Option<OpKey>,
    ) -> Poll<Self::Output> {
        let submitted =
            AtomicPost::new(self, &operands, ep).and_then(|post| post.submit(CreditMode::Wait));
        let key = match submitted {
            Ok(Submitted::Pending(key)) => key,
            Ok(Submitted::Done(output)) => return Poll::Ready(Ok(output)),
            Err(error) => return Poll::Ready(Err(error)),
        };
        self.posted_operands = Some(operands);
        match ep.domain.engine.poll_op(key, cx) {
            Poll::Ready(completed) => Poll::Ready(self.output(completed)),
            Poll::Pending => {
                *posted = Some(key);
                Poll::Pending
            }
        }
    }

    fn output(&self, completed: CompletedOp<'_>) -> Self::Output {
        let operands = self.posted_operands.as_ref().expect(POSTED);
        match completed.take::<Vec<u8>>() {
            Ok(done) => Ok(A::decode(operands, &done.buf)),
            Err(failed) => Err(failed.error),
        }
    }

    fn take_back(&mut self, _: AnyBuf) -> R {
        self.posted_operands.take().expect(POSTED)
    }
}

/// Panic text of a completion or cancellation before the post.
const POSTED: &str = "an operation completes or is canceled after it was posted";

/// An atomic operation that is being posted.
struct AtomicPost<'r, R, A> {
    ep: &'r EndpointInner,
    tx_op: TxOp,
    op: &'r RemoteAtomicOp<R, A>,
    operands: &'r R,
    /// Length of the operands in bytes.
    len: usize,
}

/// The outcome of posting an atomic operation for a future with output `T`.
enum Submitted<T> {
    /// Completed by the post.
    Done(T),
    /// Posted, with this key.
    Pending(OpKey),
}

impl<'r, R: AtomicValues, A: AtomicMode<R>> AtomicPost<'r, R, A> {
    /// Checks the operation, and prepares it for the engine.
    fn new(op: &'r RemoteAtomicOp<R, A>, operands: &'r R, ep: &'r EndpointInner) -> Result<Self> {
        let datatype = R::Element::DATATYPE;
        let (kind, call) = match (A::FETCHES, &op.comparands) {
            (false, _) => (OpKind::Atomic, AtomicCall::Base),
            (true, None) => (OpKind::FetchAtomic, AtomicCall::Fetch),
            (true, Some(_)) => (OpKind::FetchAtomic, AtomicCall::Compare),
        };
        let count = operands.elements().len();
        let comparands = op
            .comparands
            .as_ref()
            .map_or(count, |values| values.elements().len());
        if comparands != count {
            let why = format!(
                "it has {count} operands and {comparands} comparands, expected equal numbers"
            );
            return Err(Error::Invalid {
                what: "atomic operation",
                why,
            });
        }
        let len = count * datatype.size();
        let atomic = AtomicSpec {
            op: op.op,
            datatype,
            call,
        };
        check_atomic(atomic, len)?;
        let remote = RmaIov {
            key: op.at.key,
            offset: op.at.offset,
            len,
            atomic: Some(atomic),
        };
        let tx_op = TxOp {
            fence: op.options.fence,
            level: op.options.level.unwrap_or(CompletionLevel::Transmitted),
            ..TxOp::one_sided(kind, op.peer, remote)
        };
        ep.check_copied_tx(&tx_op)?;
        Ok(Self {
            ep,
            tx_op,
            op,
            operands,
            len,
        })
    }

    /// Posts the operation for a future. An operation of up to [`INLINE_BYTES`] is tried first
    /// without a slot in the engine.
    fn submit(&self, credit: CreditMode) -> Result<Submitted<A::Output>> {
        let (ep, len) = (self.ep, self.len);
        if len <= INLINE_BYTES {
            let (mut operands, mut result) = ([0; 2 * INLINE_BYTES], [0; INLINE_BYTES]);
            let operands = &mut operands[..self.encoded_len()];
            self.write_operands(operands);
            let result = &mut result[..if A::FETCHES { len } else { 0 }];
            let done =
                ep.try_fast_path(|fast_path| fast_path.try_atomic(&self.tx_op, operands, result));
            let engine = &ep.domain.engine;
            if done || engine.try_atomic(ep.id, &self.tx_op, operands, result)? == TrySend::Done {
                return Ok(Submitted::Done(A::decode(self.operands, result)));
            }
        }
        Ok(match self.post(CompletionTarget::Future, credit)? {
            PostResult::Done(_, result) => Submitted::Done(A::decode(self.operands, &result)),
            PostResult::Pending(key) => Submitted::Pending(key),
            PostResult::Reported => {
                unreachable!("a post for a future is never reported to a queue")
            }
        })
    }

    /// Posts the operation with encoded operands.
    fn post(&self, target: CompletionTarget, credit: CreditMode) -> Result<PostResult<Vec<u8>>> {
        let mut operands = vec![0; self.encoded_len()];
        self.write_operands(&mut operands);
        let engine = &self.ep.domain.engine;
        engine.atomic(self.ep.id, self.tx_op, operands, target, credit)
    }

    fn operands_and_comparands(&self) -> impl Iterator<Item = R::Element> {
        let comparands = self
            .op
            .comparands
            .as_ref()
            .map_or(&[][..], |comparands| comparands.elements());
        self.operands.elements().iter().chain(comparands).copied()
    }

    /// Returns the length of operands and comparands in bytes.
    fn encoded_len(&self) -> usize {
        match self.op.comparands {
            Some(_) => 2 * self.len,
            None => self.len,
        }
    }

    /// Encodes operands and comparands into `bytes`, in little-endian order.
    fn write_operands(&self, bytes: &mut [u8]) {
        let size = R::Element::DATATYPE.size();
        for (slot, value) in bytes
            .chunks_exact_mut(size)
            .zip(self.operands_and_comparands())
        {
            slot.copy_from_slice(&value.bits().to_le_bytes()[..size]);
        }
    }
}

/// A posted atomic operation, to be awaited.
///
/// # Cancel safety
/// Dropping the future does not cancel the operation, which takes effect once, unless
/// [`cancel_on_drop`](Request::cancel_on_drop) was set and the operation has not begun.
/// [`cancel`](Self::cancel) returns the operands.
///
/// # Panics
/// When polled after it has resolved.
#[must_use = "its result is lost if the operation is dropped"]
pub struct AtomicOperation<R: AtomicValues, A: AtomicMode<R>, M: ThreadModel = Shared>(
    AtomicOperationState<R, A, M>,
);

enum AtomicOperationState<R: AtomicValues, A: AtomicMode<R>, M: ThreadModel> {
    /// Ended; `None` after the future has resolved.
    Done(Option<A::Output>),
    Posted(Operation<Vec<u8>, M>, R),
}

impl<R: AtomicValues, A: AtomicMode<R>, M: ThreadModel> Future for AtomicOperation<R, A, M> {
    type Output = Result<A::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut self.0 {
            AtomicOperationState::Done(output) => {
                let budget = ready!(coop::poll_proceed(cx));
                budget.made_progress();
                Ok(output.take().expect(POLLED_AFTER_COMPLETION))
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

impl<R: AtomicValues, A: AtomicMode<R>, M: ThreadModel> AtomicOperation<R, A, M> {
    /// Cancels the operation if it has not taken effect, and returns its operands; else waits for
    /// its completion, as [`Operation::cancel`].
    ///
    /// # Cancel safety
    /// Dropping the returned future drops the operation.
    ///
    /// # Panics
    /// When the operation has resolved.
    #[doc(alias = "fi_cancel")]
    pub async fn cancel(self) -> CancelOutcome<R, Result<A::Output>> {
        cancel_or_wait(self, Self::withdraw).await
    }

    /// Cancels the operation if it has not taken effect.
    fn withdraw(&mut self) -> Option<R> {
        let AtomicOperationState::Posted(operation, _) = &mut self.0 else {
            return None;
        };
        operation.withdraw()?;
        match mem::replace(&mut self.0, AtomicOperationState::Done(None)) {
            AtomicOperationState::Posted(_, operands) => Some(operands),
            AtomicOperationState::Done(_) => None,
        }
    }
}

impl<R: AtomicValues, A: AtomicMode<R>, M: ThreadModel> fmt::Debug for AtomicOperation<R, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            AtomicOperationState::Posted(..) => "AtomicOperation(posted)",
            AtomicOperationState::Done(_) => "AtomicOperation(ended)",
        })
    }
}
