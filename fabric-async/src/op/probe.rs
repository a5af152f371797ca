//! Probes, which ask for a message, and claims, which keep one.

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

/// Asks for a message that a receive like it would take (`FI_PEEK`). What is found stays where it
/// is.
///
/// Asks for untagged messages from anybody, unless said otherwise. Of several that wait it finds
/// the one that came first. One that falls to a receive that is posted is not found.
///
/// Awaited, it waits until a message is there: all of it, or its beginning. What is known of it is
/// a [`Transfer`], with the length of the whole message. Another task may have received it by then;
/// who must have it [claims](Self::claim) it.
///
/// It finds what has been taken in, and what can be: one message for each probe also beyond the
/// budget for unexpected messages. What lies behind a message that is held back at its sender is
/// not found; see [`memory`](crate::guide::memory).
///
/// # Errors
/// [`Error::StaleAddress`], [`Error::NotSupported`], [`Error::Closed`]; [`Error::PeerGone`] of a
/// [directed](Self::from) one, when nothing can come any more, as of a receive; [`Error::Canceled`]
/// when the endpoint is closed meanwhile.
///
/// # Cancel safety
/// Safe: it takes nothing.
#[must_use = "a probe that is not awaited looks for nothing"]
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

    /// Asks for tagged messages with exactly this tag.
    pub fn tag(self, tag: u64) -> Self {
        self.tag_mask(tag, 0)
    }

    /// Asks for tagged messages whose tag equals `tag` in all bits but those set in `ignore`.
    pub fn tag_mask(mut self, tag: u64, ignore: u64) -> Self {
        self.spec.tag = Some(TagMatch { tag, ignore });
        self
    }

    /// Asks for messages from this peer only.
    pub fn from(mut self, peer: FiAddr) -> Self {
        self.spec.from = Some(peer);
        self
    }

    /// What is there now, without waiting: `None` when nothing is.
    ///
    /// # Errors
    /// As of the [probe](Self).
    pub fn try_probe(&self) -> Result<Option<Transfer>> {
        let ep = &self.ep.inner;
        ep.check_recv(&self.spec)?;
        ep.domain.core.peek(ep.id, self.spec)
    }

    /// Takes the message that is found, so that nobody else gets it (`FI_CLAIM`).
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

/// Waits for a message to be there.
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

/// Asks for a message and takes it (`FI_PEEK | FI_CLAIM`). Awaited, it waits until there is one.
///
/// # Errors
/// As [`Probe`].
///
/// # Cancel safety
/// Safe: a message that was found and not yielded stays where it was.
#[must_use = "a claim that is not awaited takes nothing"]
pub struct Claim<'a, M: ThreadModel = Shared> {
    probe: Probe<'a, M>,
}

impl<M: ThreadModel> Claim<'_, M> {
    /// Takes what is there now, without waiting: `None` when nothing is.
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

/// Waits for a message, and takes it.
pub struct ClaimFuture<M: ThreadModel> {
    probe: ProbeFuture,
    model: PhantomData<M>,
}

impl<M: ThreadModel> Future for ClaimFuture<M> {
    type Output = Result<Claimed<M>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            ready!(Pin::new(&mut self.probe).poll(cx))?;
            // Somebody else may have been faster; then it goes on waiting.
            if let Some(claimed) = try_claim_message(&self.probe.ep, self.probe.spec)? {
                return Poll::Ready(Ok(claimed));
            }
        }
    }
}

impl<M: ThreadModel> Unpin for ClaimFuture<M> {}

/// A message that was claimed: nobody else receives it. All of it need not have arrived.
///
/// It counts towards the budget for unexpected messages until it is received or discarded. Dropping
/// it puts the message back: a posted receive that accepts it gets it, or it takes its old place
/// among those that wait. It does not keep the endpoint open: once that is closed, receiving it is
/// refused with [`Error::Closed`], and dropping it does nothing.
#[must_use = "dropping a claimed message puts it back"]
pub struct Claimed<M: ThreadModel = Shared> {
    ep: Arc<EndpointInner>,
    /// None once it was received or discarded.
    id: Option<ClaimId>,
    transfer: Transfer,
    model: PhantomData<M>,
}

impl<M: ThreadModel> Claimed<M> {
    /// Its length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // not a container
    pub fn len(&self) -> usize {
        self.transfer.len
    }

    /// Its tag, if it is a tagged message.
    #[must_use]
    pub fn tag(&self) -> Option<u64> {
        self.transfer.tag
    }

    /// The remote completion data, if some came with it.
    #[must_use]
    pub fn data(&self) -> Option<u64> {
        self.transfer.data
    }

    /// The sender, as a handle to answer to.
    ///
    /// # Errors
    /// [`Error::UnknownSource`] when the sender is in no address vector of the endpoint.
    pub fn source(&self) -> Result<FiAddr> {
        self.transfer.source.ok_or(Error::UnknownSource)
    }

    /// Receives it into memory of the domain's pool, as [`Endpoint::recv`].
    pub fn recv(self) -> ClaimedRecvRequest<PooledBuf, M> {
        let buf = PooledBuf::empty(self.ep.domain.core.pool());
        self.recv_into(buf)
    }

    /// Receives it into this buffer, as [`Endpoint::recv_into`].
    pub fn recv_into<B: IoBufMut>(self, buf: B) -> ClaimedRecvRequest<B, M> {
        ClaimedRecvRequest {
            claimed: self,
            buf,
            report: CompletionOptions::default(),
        }
    }

    /// Discards it, and what still arrives of it (`FI_DISCARD`).
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

/// A receive of a claimed message, to be posted by `.await`, [`start`](Self::start) or
/// [`post`](Self::post).
///
/// It ends as any receive does: with [`Error::Truncated`] when the room is less than the message,
/// with [`Error::PeerGone`] and what had arrived when the sender died in the middle of it. When it
/// is refused, or never posted, the message is put back.
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

    /// Posts now; the result is awaited later.
    ///
    /// # Errors
    /// With the buffer: as [`RecvRequest::start`](crate::RecvRequest::start).
    pub fn start(self) -> Result<Operation<B>, Failed<B>> {
        let ep = self.claimed.ep.clone();
        let key = self.submit(CompletionTarget::Future, CreditMode::NoWait)?;
        Ok(Operation::posted(ep, key))
    }

    /// Posts now; the completion goes to the endpoint's receive queue, with the buffer.
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
            unreachable!("a claim is used once")
        };
        let key = ep.domain.core.recv_claimed(ep.id, id, buf, route, credit)?;
        claimed.id = None;
        Ok(key)
    }
}

/// Posts when the request is awaited.
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
