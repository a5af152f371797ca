//! Send requests.

use std::future::IntoFuture;

use fabric_core::buf::IoBuf;
use fabric_core::completion::{Done, Failed, OpKind};
use fabric_core::transport::TxOp;
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult};

use super::batch::{self, Batchable, ChunkResult, PreparedRequest, sealed};
use super::{CompletionOptions, Operation, Permit};
use crate::endpoint::Endpoint;
use crate::thread_model::{Shared, ThreadModel};

/// A send request: posted by `.await`, [`start`](Self::start) or [`post`](Self::post).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// # use fabric_async::Endpoint;
/// let ep = Endpoint::bind("shm://").await?;
/// let me = ep.add_peer(ep.name()).await?;
/// let sent = ep.send(me, vec![1, 2, 3]).tag(7).await?;   // the buffer comes back
/// let got = ep.recv_into(sent.into_buf()).tag(7).await?;
/// assert_eq!(&got[..], [1, 2, 3]);
/// # Ok(()) }
/// ```
#[must_use = "nothing is sent before the request is awaited, started or posted"]
pub struct SendRequest<'a, B, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: TxOp,
    buf: B,
    report: CompletionOptions,
    permit: Option<Permit<M>>,
}

impl<'a, B: IoBuf, M: ThreadModel> SendRequest<'a, B, M> {
    #[inline]
    pub(crate) fn new(ep: &'a Endpoint<M>, peer: FiAddr, buf: B) -> Self {
        let spec = TxOp {
            level: ep.inner.completion_level,
            ..TxOp::new(OpKind::Send, peer)
        };
        Self {
            ep,
            spec,
            buf,
            report: CompletionOptions::default(),
            permit: None,
        }
    }

    /// Makes it a tagged message (`fi_tsend`), which only tagged receives take. A connected peer
    /// must be known to support tags: see [the guide](crate::guide::connected_endpoints#tags).
    #[doc(alias = "fi_tsend")]
    pub fn tag(mut self, tag: u64) -> Self {
        self.spec.tag = Some(tag);
        self
    }

    /// Sets data for the receiver's completion (`fi_senddata`, `FI_REMOTE_CQ_DATA`).
    #[doc(alias = "fi_senddata")]
    #[doc(alias = "fi_tsenddata")]
    pub fn data(mut self, data: u64) -> Self {
        self.spec.data = Some(data);
        self
    }

    completion_methods!();
    fence_method!();
    completion_level_methods!();

    /// Returns the buffer without posting the request.
    pub fn into_buf(self) -> B {
        self.buf
    }

    /// Uses a reserved credit.
    pub(crate) fn with_permit(mut self, permit: Permit<M>) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Posts the request now. The returned operation may be awaited later, or dropped.
    ///
    /// The send makes progress under every wait policy. A message that has not left the process
    /// when the process ends or the endpoint is closed is lost: await the operation, or
    /// [`Endpoint::flush`].
    ///
    /// # Errors
    /// With the buffer: [`Error::WouldBlock`](crate::Error::WouldBlock) without credit,
    /// [`Error::TooLong`](crate::Error::TooLong),
    /// [`Error::StaleAddress`](crate::Error::StaleAddress),
    /// [`Error::NotSupported`](crate::Error::NotSupported),
    /// [`Error::Closed`](crate::Error::Closed), or a failure that is known at once, such as
    /// [`Error::NoSuchPeer`](crate::Error::NoSuchPeer).
    pub fn start(self) -> Result<Operation<B>, Failed<B>> {
        submit(
            self.ep,
            &self.spec,
            self.buf,
            self.permit,
            CreditMode::NoWait,
        )
        .into_post_result()
    }

    /// Posts the request now. The completion goes to the endpoint's transmit queue.
    ///
    /// # Errors
    /// With the buffer: as [`start`](Self::start), and
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) when all entries of the queue are in use,
    /// [`Error::Unbound`](crate::Error::Unbound) when the endpoint has no transmit queue.
    #[doc(alias = "fi_send")]
    pub fn post(self) -> Result<(), Failed<B>> {
        let route = self.report.target(self.ep.inner.selective_tx);
        post(
            self.ep,
            self.spec,
            self.buf,
            self.permit,
            route,
            CreditMode::NoWait,
        )
        .map(drop)
    }
}

impl<'a, B: IoBuf, M: ThreadModel> Batchable<'a, M> for SendRequest<'a, B, M> {}

impl<'a, B: IoBuf, M: ThreadModel> sealed::BatchPost<'a, M> for SendRequest<'a, B, M> {
    type Prepared = PreparedRequest<TxOp, B>;

    fn check_for(&self, ep: &Endpoint<M>) -> Result<()> {
        if self.permit.is_some() {
            return Err(Error::Invalid {
                what: "batch",
                why: "a request has a permit".into(),
            });
        }
        batch::check_send(ep, self.ep, &self.spec, &self.buf)
    }

    fn copied_len(&self) -> usize {
        self.buf.payload().len()
    }

    fn prepare(self) -> PreparedRequest<TxOp, B> {
        PreparedRequest {
            spec: TxOp {
                more: true,
                ..self.spec
            },
            buf: Some(self.buf),
            report: self.report,
        }
    }

    fn restore(ep: &'a Endpoint<M>, ready: PreparedRequest<TxOp, B>) -> Option<Self> {
        let spec = TxOp {
            more: false,
            ..ready.spec
        };
        Some(Self {
            ep,
            spec,
            buf: ready.buf?,
            report: ready.report,
            permit: None,
        })
    }

    fn post_chunk(ep: &'a Endpoint<M>, chunk: &mut [PreparedRequest<TxOp, B>]) -> ChunkResult {
        let selective = ep.inner.selective_tx;
        let mut posts = ep.inner.domain.core.batch(ep.inner.id);
        let (count, stopped) = batch::post_until_error(chunk, |spec, buf, report| {
            posts.send(spec, buf, report.target(selective))
        });
        // The error of a refused request takes precedence over a peer that disconnected.
        (count, stopped.and(posts.finish()))
    }
}

/// Submits a message or a write: by the fast path if possible, else through the domain.
#[inline(always)] // in the path of small messages
pub(super) fn submit<B: IoBuf, M: ThreadModel>(
    ep: &Endpoint<M>,
    spec: &TxOp,
    buf: B,
    permit: Option<Permit<M>>,
    credit: CreditMode,
) -> Operation<B> {
    // An operation that waits for an acknowledgement never completes at once.
    let at_once = permit.is_none() && !spec.level.needs_ack();
    if at_once && ep.inner.check_tx_op(spec).is_ok() && ep.inner.check_tx_iov(&buf).is_ok() {
        let payload = buf.payload();
        let len = payload.len();
        if ep
            .inner
            .try_fast_path(|fast_path| fast_path.try_send(spec, payload))
        {
            return Operation::done_inline(buf, len, spec.tag);
        }
    }
    submit_to_domain(ep, spec, buf, permit, credit)
}

/// Submits a message or a write through the domain.
#[inline(never)]
fn submit_to_domain<B: IoBuf, M: ThreadModel>(
    ep: &Endpoint<M>,
    spec: &TxOp,
    buf: B,
    permit: Option<Permit<M>>,
    credit: CreditMode,
) -> Operation<B> {
    match post(ep, *spec, buf, permit, CompletionTarget::Future, credit) {
        Ok(posted) => Operation::from_post_result(ep, posted),
        Err(failed) => Operation::post_failed(failed),
    }
}

pub(super) fn post<B: IoBuf, M: ThreadModel>(
    ep: &Endpoint<M>,
    spec: TxOp,
    buf: B,
    permit: Option<Permit<M>>,
    route: CompletionTarget,
    credit: CreditMode,
) -> Result<PostResult<B>, Failed<B>> {
    if let Err(error) = ep
        .inner
        .check_tx_op(&spec)
        .and_then(|()| ep.inner.check_tx_iov(&buf))
    {
        return Err(Failed::new(error, buf));
    }
    let credit = if permit.is_some() {
        CreditMode::FromPermit
    } else {
        credit
    };
    let posted = ep
        .inner
        .domain
        .core
        .send(ep.inner.id, spec, buf, route, credit);
    if let Some(permit) = permit {
        permit.finish(posted.is_ok());
    }
    posted
}

/// Posts the request when it is awaited. Without credit the operation waits for one, behind
/// operations that were posted before.
impl<B: IoBuf, M: ThreadModel> IntoFuture for SendRequest<'_, B, M> {
    type Output = Result<Done<B>, Failed<B>>;
    type IntoFuture = Operation<B>;

    #[inline(always)] // the request is large
    fn into_future(self) -> Operation<B> {
        submit(self.ep, &self.spec, self.buf, self.permit, CreditMode::Wait)
    }
}

impl_request_debug!("SendRequest", [B, M: ThreadModel], SendRequest<'_, B, M>);
