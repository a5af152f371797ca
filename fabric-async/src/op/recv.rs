//! Receive requests.

use std::future::IntoFuture;

use fabric_core::buf::{IoBufMut, PooledBuf};
use fabric_core::completion::{Done, Failed};
use fabric_core::matching::{RecvSpec, TagMatch};
use fabric_core::{FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, MAX_BATCH_BYTES};

use super::batch::{self, Batchable, ChunkResult, PreparedRequest, sealed};
use super::{CompletionOptions, Operation};
use crate::endpoint::Endpoint;
use crate::thread_model::{Shared, ThreadModel};

/// A received message in a buffer of the domain's pool.
///
/// Dereferences to its bytes; [`source`](Message::source) returns the sender,
/// [`into_bytes`](Message::into_bytes) keeps the bytes without copying. The memory returns to the
/// pool when the last owner drops it.
pub type Message = Done<PooledBuf>;

/// A receive request: posted by `.await`, [`start`](Self::start) or [`post`](Self::post).
///
/// Takes untagged messages from any source by default.
///
/// It is posted when it is *awaited*, before the first poll: in `select!`, also for a branch that
/// `if` disables. Such a receive takes messages, which are not seen before the `select!` ends.
/// Inside of an `async` block it is posted when the block is polled.
///
/// # Cancel safety
/// Safe: see [`Operation`].
#[must_use = "nothing is received before the request is awaited, started or posted"]
pub struct RecvRequest<'a, B, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: RecvSpec,
    buf: B,
    report: CompletionOptions,
}

impl<'a, B: IoBufMut, M: ThreadModel> RecvRequest<'a, B, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>, buf: B) -> Self {
        Self {
            ep,
            spec: RecvSpec {
                from: None,
                tag: None,
            },
            buf,
            report: CompletionOptions::default(),
        }
    }

    /// Takes tagged messages with exactly this tag (`fi_trecv`).
    #[doc(alias = "fi_trecv")]
    pub fn tag(self, tag: u64) -> Self {
        self.tag_mask(tag, 0)
    }

    /// Takes tagged messages (`fi_trecv` with `ignore`) whose tag equals `tag` in all bits but
    /// those set in `ignore`.
    pub fn tag_mask(mut self, tag: u64, ignore: u64) -> Self {
        self.spec.tag = Some(TagMatch { tag, ignore });
        self
    }

    /// Takes messages from this peer only (`FI_DIRECTED_RECV`).
    ///
    /// A receive from any source does not fail because of one sender: when a sender dies in the
    /// middle of a message, the receive keeps waiting, at its place in posting order. The content
    /// of the buffer is unspecified until the receive completes.
    ///
    /// When a connected peer disconnects, receives directed at it fail with
    /// [`Error::PeerGone`](crate::Error::PeerGone), after the messages it had sent. A receive that
    /// is posted later waits for the peer to come back if the application inserted the peer; the
    /// [event queue](Endpoint::take_events) reports the disconnect. For an auto-inserted peer the
    /// later receive fails: with `PeerGone` while messages of the peer wait, with
    /// [`Error::StaleAddress`](crate::Error::StaleAddress) afterwards. A pending receive whose
    /// address handle is removed ends with `StaleAddress`.
    #[doc(alias = "FI_DIRECTED_RECV")]
    #[doc(alias = "FI_ADDR_UNSPEC")]
    pub fn from(mut self, peer: FiAddr) -> Self {
        self.spec.from = Some(peer);
        self
    }

    completion_methods!();

    /// Returns the buffer without posting the request.
    pub fn into_buf(self) -> B {
        self.buf
    }

    /// Posts the request now. The returned operation is awaited later.
    ///
    /// # Errors
    /// With the buffer: [`Error::WouldBlock`](crate::Error::WouldBlock) when all receive entries of
    /// the endpoint are in use, [`Error::StaleAddress`](crate::Error::StaleAddress),
    /// [`Error::NotSupported`](crate::Error::NotSupported),
    /// [`Error::Closed`](crate::Error::Closed).
    #[inline]
    pub fn start(self) -> Result<Operation<B>, Failed<B>> {
        self.submit(CompletionTarget::Future, CreditMode::NoWait)
    }

    /// Posts the request now. The completion goes to the endpoint's receive queue, with the buffer.
    ///
    /// # Errors
    /// With the buffer: as [`start`](Self::start), and
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) when all entries of the queue are in use,
    /// [`Error::Unbound`](crate::Error::Unbound) when the endpoint has no receive queue.
    #[doc(alias = "fi_recv")]
    pub fn post(self) -> Result<(), Failed<B>> {
        let route = self.report.target(self.ep.inner.selective_rx);
        let (ep, spec, buf) = (self.ep, self.spec, self.buf);
        if let Err(error) = ep
            .inner
            .check_recv(&spec)
            .and_then(|()| ep.inner.check_rx_iov(&buf))
        {
            return Err(Failed::new(error, buf));
        }
        ep.inner
            .domain
            .core
            .recv(ep.inner.id, spec, buf, route, CreditMode::NoWait)
            .map(drop)
    }

    #[inline(always)] // in the path of small messages
    fn submit(
        self,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<Operation<B>, Failed<B>> {
        let (ep, spec, buf) = (self.ep, self.spec, self.buf);
        if let Err(error) = ep
            .inner
            .check_recv(&spec)
            .and_then(|()| ep.inner.check_rx_iov(&buf))
        {
            return Err(Failed::new(error, buf));
        }
        let key = ep
            .inner
            .domain
            .core
            .recv(ep.inner.id, spec, buf, route, credit)?;
        Ok(Operation::posted(ep.inner.clone(), key))
    }
}

impl<'a, B: IoBufMut, M: ThreadModel> Batchable<'a, M> for RecvRequest<'a, B, M> {}

impl<'a, B: IoBufMut, M: ThreadModel> sealed::BatchPost<'a, M> for RecvRequest<'a, B, M> {
    type Prepared = PreparedRequest<RecvSpec, B>;

    fn check_for(&self, ep: &Endpoint<M>) -> Result<()> {
        batch::check_same_endpoint(ep, self.ep)?;
        ep.inner.check_recv(&self.spec)?;
        ep.inner.check_rx_iov(&self.buf)
    }

    fn copied_len(&self) -> usize {
        // The lengths of waiting messages are not known before the post.
        0
    }

    fn prepare(self) -> PreparedRequest<RecvSpec, B> {
        PreparedRequest {
            spec: self.spec,
            buf: Some(self.buf),
            report: self.report,
        }
    }

    fn restore(ep: &'a Endpoint<M>, ready: PreparedRequest<RecvSpec, B>) -> Option<Self> {
        Some(Self {
            ep,
            spec: ready.spec,
            buf: ready.buf?,
            report: ready.report,
        })
    }

    fn post_chunk(ep: &'a Endpoint<M>, chunk: &mut [PreparedRequest<RecvSpec, B>]) -> ChunkResult {
        let (core, id, selective) = (&ep.inner.domain.core, ep.inner.id, ep.inner.selective_rx);
        let mut posts = core.batch(id);
        let mut began = posts.received_bytes();
        let (count, stopped) = batch::post_until_error(chunk, |spec, buf, report| {
            if posts.received_bytes() - began >= MAX_BATCH_BYTES as u64 {
                // Waiting messages were copied into these receives: let other users of the domain
                // run.
                posts.yield_lock();
                began = posts.received_bytes();
            }
            posts.recv(*spec, buf, report.target(selective))
        });
        (count, stopped.and(posts.finish()))
    }
}

/// Posts the request when it is awaited; the number of awaited receives is not limited.
impl<B: IoBufMut, M: ThreadModel> IntoFuture for RecvRequest<'_, B, M> {
    type Output = Result<Done<B>, Failed<B>>;
    type IntoFuture = Operation<B>;

    #[inline]
    fn into_future(self) -> Operation<B> {
        self.submit(CompletionTarget::Future, CreditMode::Wait)
            .unwrap_or_else(|failed| Operation::post_failed(failed))
    }
}

impl_request_debug!("RecvRequest", [B, M: ThreadModel], RecvRequest<'_, B, M>);
