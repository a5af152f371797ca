//! Probes and claims of messages.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::buf::{IoBufMut, PooledBuf};
use fabric_core::completion::{Done, Failed, Transfer};
use fabric_core::matching::{RecvSpec, TagMatch};
use fabric_core::rx::ClaimId;
use fabric_core::transport::OpKey;
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode};
use tokio::task::coop;

use super::{CompletionOptions, Operation};
use crate::endpoint::{Endpoint, EndpointInner};
use crate::thread_model::{Shared, ThreadModel};

/// A request to look at a message without receiving it (`FI_PEEK`). The message stays in place.
///
/// Matches untagged messages from any source by default, as a receive does. Of several waiting
/// messages it finds the one that arrived first. A message that is matched to a posted receive is
/// not found.
///
/// Awaited, it waits until at least the beginning of a message has arrived. It resolves to a
/// [`Transfer`] with the length of the whole message. Another task may receive the message
/// meanwhile; to keep it, [claim](Self::claim) it.
///
/// A probe finds buffered messages, and may buffer one more message beyond the budget for
/// unexpected messages. Messages behind one that is held back at its sender are not found; see
/// [`memory`](crate::guide::memory).
///
/// # Errors
/// [`Error::StaleAddress`], [`Error::NotSupported`], [`Error::Closed`]; [`Error::PeerGone`] for a
/// [directed](Self::from) probe whose peer is gone without a matching message, as for a receive;
/// [`Error::Canceled`] when the endpoint is closed during the wait.
///
/// # Cancel safety
/// Safe: a probe takes no message.
#[must_use = "a probe does nothing unless awaited"]
#[doc(alias = "FI_PEEK")]
pub struct Probe<'a, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: RecvSpec,
}

impl<'a, M: ThreadModel> Probe<'a, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>) -> Self {
        Self {
            ep,
            spec: RecvSpec {
                from: None,
                tag: None,
            },
        }
    }

    /// Matches tagged messages with exactly this tag.
    pub fn tag(self, tag: u64) -> Self {
        self.tag_mask(tag, 0)
    }

    /// Matches tagged messages whose tag equals `tag` in all bits but those set in `ignore`.
    pub fn tag_mask(mut self, tag: u64, ignore: u64) -> Self {
        self.spec.tag = Some(TagMatch { tag, ignore });
        self
    }

    /// Matches messages from this peer only (`FI_DIRECTED_RECV`).
    pub fn from(mut self, peer: FiAddr) -> Self {
        self.spec.from = Some(peer);
        self
    }

    /// Returns the first matching message that is here now, without waiting; `None` without one.
    ///
    /// # Errors
    /// As of the [probe](Self).
    pub fn try_probe(&self) -> Result<Option<Transfer>> {
        let ep = &self.ep.inner;
        ep.check_recv(&self.spec)?;
        ep.domain.core.peek(ep.id, self.spec)
    }

    /// Returns a request to take the message that is found for one receive (`FI_CLAIM`).
    #[doc(alias = "FI_CLAIM")]
    pub fn claim(self) -> Claim<'a, M> {
        Claim { probe: self }
    }
}

impl<M: ThreadModel> IntoFuture for Probe<'_, M> {
    type Output = Result<Transfer>;
    type IntoFuture = ProbeFuture;

    fn into_future(self) -> ProbeFuture {
        ProbeFuture {
            ep: self.ep.inner.clone(),
            spec: self.spec,
            key: None,
        }
    }
}

/// The future of a [`Probe`].
pub struct ProbeFuture {
    ep: Arc<EndpointInner>,
    spec: RecvSpec,
    key: Option<OpKey>,
}

impl Future for ProbeFuture {
    type Output = Result<Transfer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let key = match self.key {
            Some(key) => key,
            None => {
                self.ep.check_recv(&self.spec)?;
                let key = self.ep.domain.core.probe(self.ep.id, self.spec)?;
                *self.key.insert(key)
            }
        };
        let found = ready!(self.ep.domain.core.poll_probe(key, cx));
        self.key = None;
        budget.made_progress();
        Poll::Ready(found)
    }
}

impl Drop for ProbeFuture {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.ep.domain.core.release_permit(key, false);
        }
    }
}

/// A request to find a message and take it for one receive (`FI_PEEK | FI_CLAIM`). Awaited, it
/// waits until there is one.
///
/// # Errors
/// As [`Probe`].
///
/// # Cancel safety
/// Safe: a message that was found and not returned stays in place.
#[must_use = "a claim does nothing unless awaited"]
pub struct Claim<'a, M: ThreadModel = Shared> {
    probe: Probe<'a, M>,
}

impl<M: ThreadModel> Claim<'_, M> {
    /// Takes the first matching message that is here now, without waiting; `None` without one.
    ///
    /// # Errors
    /// As of a [`Probe`].
    pub fn try_claim(&self) -> Result<Option<Claimed<M>>> {
        self.probe.ep.inner.check_recv(&self.probe.spec)?;
        try_claim_message(&self.probe.ep.inner, self.probe.spec)
    }
}

fn try_claim_message<M: ThreadModel>(
    ep: &Arc<EndpointInner>,
    spec: RecvSpec,
) -> Result<Option<Claimed<M>>> {
    let claimed = ep.domain.core.claim(ep.id, spec)?;
    Ok(claimed.map(|(id, found)| Claimed {
        ep: ep.clone(),
        id: Some(id),
        transfer: found,
        model: PhantomData,
    }))
}

impl<M: ThreadModel> IntoFuture for Claim<'_, M> {
    type Output = Result<Claimed<M>>;
    type IntoFuture = ClaimFuture<M>;

    fn into_future(self) -> ClaimFuture<M> {
        ClaimFuture {
            probe: self.probe.into_future(),
            model: PhantomData,
        }
    }
}

/// The future of a [`Claim`].
pub struct ClaimFuture<M: ThreadModel> {
    probe: ProbeFuture,
    model: PhantomData<M>,
}

impl<M: ThreadModel> Future for ClaimFuture<M> {
    type Output = Result<Claimed<M>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            ready!(Pin::new(&mut self.probe).poll(cx))?;
            // If another receive or claim has taken the message, wait for the next one.
            if let Some(claimed) = try_claim_message(&self.probe.ep, self.probe.spec)? {
                return Poll::Ready(Ok(claimed));
            }
        }
    }
}

/// A claimed message, which no other receive takes. It may still be arriving.
///
/// It counts towards the budget for unexpected messages until it is received or discarded. Dropping
/// it releases the message: a posted receive that accepts the message gets it, or it takes its old
/// place among the waiting messages. It does not keep the endpoint open: when the endpoint is
/// closed, receiving the message fails with [`Error::Closed`], and dropping it does nothing.
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

    /// Returns the tag, if it is a tagged message.
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

    /// Returns a request to receive it into memory of the domain's pool, as [`Endpoint::recv`].
    pub fn recv(self) -> ClaimedRecvRequest<PooledBuf, M> {
        let buf = PooledBuf::empty(self.ep.domain.core.pool());
        self.recv_into(buf)
    }

    /// Returns a request to receive it into this buffer, as [`Endpoint::recv_into`].
    pub fn recv_into<B: IoBufMut>(self, buf: B) -> ClaimedRecvRequest<B, M> {
        ClaimedRecvRequest {
            claimed: self,
            buf,
            report: CompletionOptions::default(),
        }
    }

    /// Discards the message, including bytes that have not arrived yet (`FI_DISCARD`).
    #[doc(alias = "FI_DISCARD")]
    pub fn discard(mut self) {
        if let Some(id) = self.id.take() {
            self.ep.domain.core.discard_claimed(self.ep.id, id);
        }
    }
}

impl<M: ThreadModel> Drop for Claimed<M> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.ep.domain.core.release_claim(self.ep.id, id);
        }
    }
}

impl<M: ThreadModel> fmt::Debug for Claimed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claimed").field(&self.transfer).finish()
    }
}

/// A request to receive a claimed message: posted by `.await`, [`start`](Self::start) or
/// [`post`](Self::post).
///
/// It completes as any receive does: with [`Error::Truncated`] when the buffer is too small, with
/// [`Error::PeerGone`] and the bytes that had arrived when the sender died in the middle of the
/// message. If the post fails, or the request is dropped, the message is released for other
/// receives.
///
/// # Cancel safety
/// Safe: see [`Operation`].
#[must_use = "nothing is received before the request is awaited, started or posted"]
pub struct ClaimedRecvRequest<B, M: ThreadModel = Shared> {
    claimed: Claimed<M>,
    buf: B,
    report: CompletionOptions,
}

impl<B: IoBufMut, M: ThreadModel> ClaimedRecvRequest<B, M> {
    completion_methods!();

    /// Posts the request now. The returned operation is awaited later.
    ///
    /// # Errors
    /// With the buffer: as [`RecvRequest::start`](crate::RecvRequest::start).
    pub fn start(self) -> Result<Operation<B>, Failed<B>> {
        let ep = self.claimed.ep.clone();
        let key = self.submit(CompletionTarget::Future, CreditMode::NoWait)?;
        Ok(Operation::posted(ep, key))
    }

    /// Posts the request now. The completion goes to the endpoint's receive queue, with the buffer.
    ///
    /// # Errors
    /// With the buffer: as [`RecvRequest::post`](crate::RecvRequest::post).
    pub fn post(self) -> Result<(), Failed<B>> {
        let route = self.report.target(self.claimed.ep.selective_rx);
        self.submit(route, CreditMode::NoWait).map(drop)
    }

    fn submit(self, route: CompletionTarget, credit: CreditMode) -> Result<OpKey, Failed<B>> {
        let Self {
            mut claimed, buf, ..
        } = self;
        let ep = claimed.ep.clone();
        if let Err(error) = ep.check_rx_iov(&buf) {
            return Err(Failed::new(error, buf));
        }
        let Some(id) = claimed.id else {
            unreachable!("the message was claimed and not received yet")
        };
        let key = ep.domain.core.recv_claimed(ep.id, id, buf, route, credit)?;
        claimed.id = None;
        Ok(key)
    }
}

/// Posts the request when it is awaited.
impl<B: IoBufMut, M: ThreadModel> IntoFuture for ClaimedRecvRequest<B, M> {
    type Output = Result<Done<B>, Failed<B>>;
    type IntoFuture = Operation<B>;

    fn into_future(self) -> Operation<B> {
        let ep = self.claimed.ep.clone();
        match self.submit(CompletionTarget::Future, CreditMode::Wait) {
            Ok(key) => Operation::posted(ep, key),
            Err(failed) => Operation::post_failed(failed),
        }
    }
}

impl_request_debug!("Probe", [M: ThreadModel], Probe<'_, M>);

impl fmt::Debug for ProbeFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeFuture")
            .field("endpoint", &self.ep.node.id())
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl<M: ThreadModel> fmt::Debug for Claim<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.probe).finish()
    }
}

impl<M: ThreadModel> fmt::Debug for ClaimFuture<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClaimFuture").field(&self.probe).finish()
    }
}

impl<B, M: ThreadModel> fmt::Debug for ClaimedRecvRequest<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimedRecvRequest")
            .field("claimed", &self.claimed)
            .finish_non_exhaustive()
    }
}
