//! Claims of messages (`FI_PEEK | FI_CLAIM`), and receives of claimed messages.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::buf::{IoBufMut, PooledBuf};
use fabric_core::completion::{Failed, Transfer};
use fabric_core::matching::RecvSpec;
use fabric_core::rx::ClaimId;
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult};

use super::Request;
use super::probe::Probing;
use super::traits::{BufferOp, BytesOp, MatchingOp, Op, sealed};
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::{Shared, ThreadModel};

/// A claim of a message for one receive (`FI_PEEK | FI_CLAIM`,
/// [`Request::claim`](crate::Request::claim)). An awaited claim waits for a matching message.
///
/// A claim has a message buffered for which the [budget](crate::guide::memory#unexpected-messages)
/// has no room, within a limit. No claim waits for room below that limit: only the program could
/// make it, by receiving or discarding claimed messages, or by receiving those of dropped claims.
///
/// # Errors
/// As of a [probe](crate::Endpoint::probe). For a message beyond the budget:
/// [`Error::WouldBlock`] with [`Resource::BufferBeyondBudget`](crate::Resource::BufferBeyondBudget)
/// if the limit has no room for it and no buffered message matches, and [`Error::OutOfMemory`] if
/// there is no memory for it. The message stays where it was.
///
/// # Cancel safety
/// Safe: a message is claimed only by the poll that returns it.
#[derive(Debug)]
pub struct ClaimOp {
    pub(super) spec: RecvSpec,
}

impl sealed::Sealed for ClaimOp {}
impl Op for ClaimOp {
    type Ep<'a> = &'a Arc<EndpointInner>;
}
impl MatchingOp for ClaimOp {
    fn recv_spec(&mut self) -> &mut RecvSpec {
        &mut self.spec
    }
}

/// # Claims
impl<M: ThreadModel> Request<'_, ClaimOp, (), M> {
    /// Claims the first matching message without waiting; `None` if there is none now.
    ///
    /// # Errors
    /// Those of [`ClaimOp`].
    pub fn try_claim(&self) -> Result<Option<Claimed<M>>> {
        self.ep.check_probe(&self.op.spec)?;
        try_claim_message(self.ep, self.op.spec)
    }
}

/// Claims the first matching message if there is one.
fn try_claim_message<M: ThreadModel>(
    ep: &Arc<EndpointInner>,
    spec: RecvSpec,
) -> Result<Option<Claimed<M>>> {
    let claimed = ep.domain.engine.claim(ep.id, spec)?;
    Ok(claimed.map(|(id, transfer)| Claimed {
        ep: ep.clone(),
        id: Some(id),
        transfer,
        model: PhantomData,
    }))
}

impl<'a, M: ThreadModel> IntoFuture for Request<'a, ClaimOp, (), M> {
    type Output = Result<Claimed<M>>;
    type IntoFuture = Claiming<'a, M>;

    fn into_future(self) -> Claiming<'a, M> {
        Claiming {
            probing: Probing::new(self.ep, self.op.spec),
        }
    }
}

/// The future of a [claim](Request::claim), which resolves to a [`Claimed`] message.
#[must_use = "a future does nothing unless polled"]
#[derive(Debug)]
pub struct Claiming<'a, M: ThreadModel = Shared> {
    probing: Probing<'a, M>,
}

impl<M: ThreadModel> Future for Claiming<'_, M> {
    type Output = Result<Claimed<M>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            ready!(Pin::new(&mut self.probing).poll(cx))?;
            // If another receive or claim has taken the message, wait for the next one.
            if let Some(claimed) = try_claim_message(self.probing.ep(), self.probing.spec())? {
                return Poll::Ready(Ok(claimed));
            }
        }
    }
}

/// A claimed message, which no other receive takes. The message may still be arriving.
///
/// A claimed message counts towards the budget for unexpected messages, or the limit beyond it,
/// until it is received or discarded. Dropping the `Claimed` releases the message: a posted receive
/// that accepts the message gets it, else the message takes its old place among the waiting
/// messages. A `Claimed` does not keep the endpoint open: when the endpoint is closed, receiving
/// the message fails with [`Error::Closed`], and the drop does nothing.
#[must_use = "dropping a claimed message releases it for other receives"]
pub struct Claimed<M: ThreadModel = Shared> {
    ep: Arc<EndpointInner>,
    /// `None` once the message was received or discarded.
    id: Option<ClaimId>,
    transfer: Transfer,
    model: PhantomData<M>,
}

impl<M: ThreadModel> Claimed<M> {
    /// Returns the length of the message in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // not a container
    pub fn len(&self) -> usize {
        self.transfer.len
    }

    /// Returns the tag; `None` for an untagged message.
    #[must_use]
    pub fn tag(&self) -> Option<u64> {
        self.transfer.tag
    }

    /// Returns the remote completion data, if the message has any.
    #[must_use]
    pub fn data(&self) -> Option<u64> {
        self.transfer.data
    }

    /// Returns the address handle of the sender.
    ///
    /// # Errors
    /// [`Error::UnknownSource`] when the sender is not in the endpoint's address vector.
    pub fn source(&self) -> Result<FiAddr> {
        self.transfer.source.ok_or(Error::UnknownSource)
    }

    /// Returns a request to receive the message into a [`PooledBuf`], as
    /// [`Endpoint::recv`](crate::Endpoint::recv).
    ///
    /// The request completes as any receive does: with [`Error::Truncated`] when the buffer is too
    /// small, with [`Error::PeerGone`] and the bytes that had arrived when the sender died in the
    /// middle of the message. If the post fails, or the request or its unpolled future is dropped,
    /// the message is released for other receives.
    pub fn recv(self) -> Request<'static, ClaimedRecvOp<M>, PooledBuf, M> {
        let buf = PooledBuf::empty();
        self.recv_into(buf)
    }

    /// Returns a request to receive the message into this buffer, as [`recv`](Self::recv).
    pub fn recv_into<B: IoBufMut>(self, buf: B) -> Request<'static, ClaimedRecvOp<M>, B, M> {
        Request::new(self.ep.clone(), ClaimedRecvOp { claimed: self }, buf)
    }

    /// Discards the message, including bytes that have not arrived yet (`FI_DISCARD`).
    #[doc(alias = "FI_DISCARD")]
    pub fn discard(mut self) {
        if let Some(id) = self.id.take() {
            self.ep.domain.engine.discard_claimed(self.ep.id, id);
        }
    }
}

impl<M: ThreadModel> Drop for Claimed<M> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.ep.domain.engine.release_claim(self.ep.id, id);
        }
    }
}

impl<M: ThreadModel> fmt::Debug for Claimed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claimed").field(&self.transfer).finish()
    }
}

/// A receive of a claimed message ([`Claimed::recv`]).
#[derive(Debug)]
pub struct ClaimedRecvOp<M: ThreadModel = Shared> {
    claimed: Claimed<M>,
}

impl<M: ThreadModel> sealed::Sealed for ClaimedRecvOp<M> {}
impl<M: ThreadModel> Op for ClaimedRecvOp<M> {
    /// The request has its own reference: a claimed message does not borrow its endpoint.
    type Ep<'a> = Arc<EndpointInner>;
}
impl<M: ThreadModel> BytesOp for ClaimedRecvOp<M> {}

impl<B: IoBufMut, M: ThreadModel> BufferOp<B> for ClaimedRecvOp<M> {
    const IS_SOURCE: bool = false;

    fn post(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        if let Err(error) = ep.check_claimed_recv(&buf) {
            return Err(Failed::new(error, buf));
        }
        let id = self
            .claimed
            .id
            .expect("an operation is posted at most once");
        let key = ep
            .domain
            .engine
            .recv_claimed(ep.id, id, buf, target, credit)?;
        self.claimed.id = None;
        Ok(PostResult::Pending(key))
    }
}
