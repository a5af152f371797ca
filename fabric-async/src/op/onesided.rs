//! Requests to write and read a peer's memory.

use std::future::IntoFuture;

use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::{Done, Failed, OpKind};
use fabric_core::transport::{RmaIov, TxOp};
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult};

use super::batch::{self, Batchable, ChunkResult, PreparedRequest, sealed};
use super::{CompletionOptions, Operation, send};
use crate::endpoint::Endpoint;
use crate::mr::{RemoteAddr, RemoteSlice};
use crate::thread_model::{Shared, ThreadModel};

/// The ranges of a request that was created with a list of ranges.
#[derive(Debug, Default)]
pub struct RmaTargets(Option<Box<[RmaIov]>>);

impl RmaTargets {
    /// Returns the list, and the summary for the request's `TxOp`: position of the first range and
    /// total length.
    fn from_slices(list: &[RemoteSlice]) -> (RmaIov, Self) {
        let range = |of: &RemoteSlice| RmaIov {
            key: of.key,
            offset: of.offset,
            len: of.len,
            atomic: None,
        };
        let all: Box<[_]> = list.iter().map(range).collect();
        let first = all
            .first()
            .map_or((0, 0), |range| (range.key, range.offset));
        let len = all
            .iter()
            .fold(0usize, |sum, range| sum.saturating_add(range.len));
        (
            RmaIov {
                key: first.0,
                offset: first.1,
                len,
                atomic: None,
            },
            Self(Some(all)),
        )
    }

    /// Returns whether the request was created without a list.
    #[inline]
    fn is_unlisted(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the ranges, if there is more than one.
    fn as_list(&self) -> Option<&[RmaIov]> {
        self.0.as_deref().filter(|ranges| ranges.len() > 1)
    }

    fn check<M: ThreadModel>(&self, ep: &Endpoint<M>) -> Result<()> {
        let Some(ranges) = &self.0 else { return Ok(()) };
        if ranges.is_empty() {
            return Err(Error::Invalid {
                what: "list of remote ranges",
                why: "it is empty".into(),
            });
        }
        // A single range is allowed where the limit is 0.
        let limit = ep.inner.info.tx.rma_iov_limit.max(1);
        if ranges.len() > limit {
            return Err(Error::TooMany {
                what: "remote ranges (rma_iov_limit)",
                count: ranges.len(),
                limit,
            });
        }
        Ok(())
    }
}

/// A request to write to a peer's memory (`fi_write`): posted by `.await`, [`start`](Self::start)
/// or [`post`](Self::post).
#[must_use = "nothing is written before the request is awaited, started or posted"]
#[doc(alias = "fi_write")]
pub struct WriteRequest<'a, B, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: TxOp,
    targets: RmaTargets,
    buf: B,
    report: CompletionOptions,
}

impl<'a, B: IoBuf, M: ThreadModel> WriteRequest<'a, B, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>, peer: FiAddr, to: RemoteAddr, buf: B) -> Self {
        let remote = RmaIov {
            key: to.key,
            offset: to.offset,
            len: buf.payload().len(),
            atomic: None,
        };
        Self::with_op(
            ep,
            TxOp::one_sided(OpKind::Write, peer, remote),
            RmaTargets::default(),
            buf,
        )
    }

    pub(crate) fn to_iov(ep: &'a Endpoint<M>, peer: FiAddr, to: &[RemoteSlice], buf: B) -> Self {
        let (remote, ranges) = RmaTargets::from_slices(to);
        Self::with_op(
            ep,
            TxOp::one_sided(OpKind::Write, peer, remote),
            ranges,
            buf,
        )
    }

    fn with_op(ep: &'a Endpoint<M>, spec: TxOp, targets: RmaTargets, buf: B) -> Self {
        Self {
            ep,
            spec,
            targets,
            buf,
            report: CompletionOptions::default(),
        }
    }

    fn check_targets(&self) -> Result<()> {
        self.targets.check(self.ep)?;
        let (ranges, len) = (
            self.spec.remote.map_or(0, |remote| remote.len),
            self.buf.payload().len(),
        );
        if ranges != len {
            let why = format!("the buffer has {len} bytes, the remote ranges {ranges}");
            return Err(Error::Invalid {
                what: "write to several ranges",
                why,
            });
        }
        Ok(())
    }

    /// Sets data for a completion at the peer (`fi_writedata`, `FI_REMOTE_CQ_DATA`): an entry of
    /// kind [`OpKind::RemoteWrite`] in the receive queue of its endpoint, after the written bytes.
    /// It takes no posted receive.
    #[doc(alias = "fi_writedata")]
    pub fn data(mut self, data: u64) -> Self {
        self.spec.data = Some(data);
        self
    }

    completion_methods!();
    fence_method!();
    delivery_complete_method!();

    /// Returns the buffer without posting the request.
    pub fn into_buf(self) -> B {
        self.buf
    }

    /// Posts the request now. The returned operation may be awaited later, or dropped.
    ///
    /// # Errors
    /// With the buffer: [`Error::Key`](crate::Error::Key) and
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) when the access is known to be invalid,
    /// and as [`SendRequest::start`](crate::SendRequest::start).
    pub fn start(self) -> Result<Operation<B>, Failed<B>> {
        self.submit(CreditMode::NoWait).into_post_result()
    }

    /// Posts the request now. The completion goes to the endpoint's transmit queue.
    ///
    /// # Errors
    /// As [`start`](Self::start), and as [`SendRequest::post`](crate::SendRequest::post).
    pub fn post(self) -> Result<(), Failed<B>> {
        let route = self.report.target(self.ep.inner.selective_tx);
        if self.targets.is_unlisted() {
            return send::post(
                self.ep,
                self.spec,
                self.buf,
                None,
                route,
                CreditMode::NoWait,
            )
            .map(drop);
        }
        self.post_rma_iov(route, CreditMode::NoWait).map(drop)
    }

    #[inline]
    fn submit(self, credit: CreditMode) -> Operation<B> {
        if self.targets.is_unlisted() {
            return send::submit(self.ep, &self.spec, self.buf, None, credit);
        }
        let ep = self.ep;
        self.post_rma_iov(CompletionTarget::Future, credit)
            .map_or_else(Operation::post_failed, |posted| {
                Operation::from_post_result(ep, posted)
            })
    }

    /// Posts a write that was created with a list of ranges.
    #[cold]
    fn post_rma_iov(
        self,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let checked = self
            .ep
            .inner
            .check_tx_op(&self.spec)
            .and_then(|()| self.ep.inner.check_tx_iov(&self.buf));
        if let Err(error) = checked.and_then(|()| self.check_targets()) {
            return Err(Failed::new(error, self.buf));
        }
        let Self {
            ep,
            spec,
            targets: ranges,
            buf,
            ..
        } = self;
        let core = &ep.inner.domain.core;
        match ranges.as_list() {
            None => core.send(ep.inner.id, spec, buf, route, credit),
            Some(ranges) => core.write_rma_iov(ep.inner.id, spec, ranges, buf, route, credit),
        }
    }
}

impl<B: IoBuf, M: ThreadModel> IntoFuture for WriteRequest<'_, B, M> {
    type Output = Result<Done<B>, Failed<B>>;
    type IntoFuture = Operation<B>;

    fn into_future(self) -> Operation<B> {
        self.submit(CreditMode::Wait)
    }
}

impl<'a, B: IoBuf, M: ThreadModel> Batchable<'a, M> for WriteRequest<'a, B, M> {}

impl<'a, B: IoBuf, M: ThreadModel> sealed::BatchPost<'a, M> for WriteRequest<'a, B, M> {
    type Prepared = PreparedRequest<(TxOp, RmaTargets), B>;

    fn check_for(&self, ep: &Endpoint<M>) -> Result<()> {
        batch::check_send(ep, self.ep, &self.spec, &self.buf)?;
        if self.targets.is_unlisted() {
            Ok(())
        } else {
            self.check_targets()
        }
    }

    fn copied_len(&self) -> usize {
        self.buf.payload().len()
    }

    fn prepare(self) -> PreparedRequest<(TxOp, RmaTargets), B> {
        let spec = TxOp {
            more: true,
            ..self.spec
        };
        PreparedRequest {
            spec: (spec, self.targets),
            buf: Some(self.buf),
            report: self.report,
        }
    }

    fn restore(ep: &'a Endpoint<M>, ready: PreparedRequest<(TxOp, RmaTargets), B>) -> Option<Self> {
        let (spec, ranges) = ready.spec;
        let spec = TxOp {
            more: false,
            ..spec
        };
        Some(Self {
            ep,
            spec,
            targets: ranges,
            buf: ready.buf?,
            report: ready.report,
        })
    }

    fn post_chunk(
        ep: &'a Endpoint<M>,
        chunk: &mut [PreparedRequest<(TxOp, RmaTargets), B>],
    ) -> ChunkResult {
        let selective = ep.inner.selective_tx;
        let mut posts = ep.inner.domain.core.batch(ep.inner.id);
        let (count, stopped) = batch::post_until_error(chunk, |(spec, ranges), buf, report| {
            let route = report.target(selective);
            match ranges.as_list() {
                None => posts.send(spec, buf, route),
                Some(all) => posts.write_rma_iov(*spec, all, buf, route),
            }
        });
        // The error of a refused request takes precedence over a peer that disconnected.
        (count, stopped.and(posts.finish()))
    }
}

/// A request to read a peer's memory (`fi_read`): posted by `.await`, [`start`](Self::start) or
/// [`post`](Self::post).
#[must_use = "nothing is read before the request is awaited, started or posted"]
#[doc(alias = "fi_read")]
pub struct ReadRequest<'a, B, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: TxOp,
    targets: RmaTargets,
    buf: B,
    report: CompletionOptions,
}

impl<'a, B: IoBufMut, M: ThreadModel> ReadRequest<'a, B, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>, peer: FiAddr, from: RemoteSlice, buf: B) -> Self {
        let remote = RmaIov {
            key: from.key,
            offset: from.offset,
            len: from.len,
            atomic: None,
        };
        let spec = TxOp::one_sided(OpKind::Read, peer, remote);
        Self {
            ep,
            spec,
            targets: RmaTargets::default(),
            buf,
            report: CompletionOptions::default(),
        }
    }

    pub(crate) fn from_iov(
        ep: &'a Endpoint<M>,
        peer: FiAddr,
        from: &[RemoteSlice],
        buf: B,
    ) -> Self {
        let (remote, targets) = RmaTargets::from_slices(from);
        let spec = TxOp::one_sided(OpKind::Read, peer, remote);
        Self {
            ep,
            spec,
            targets,
            buf,
            report: CompletionOptions::default(),
        }
    }

    completion_methods!();
    fence_method!();

    /// Posts the request now. The returned operation is awaited later.
    ///
    /// # Errors
    /// With the buffer: [`Error::BufferTooSmall`](crate::Error::BufferTooSmall), and as
    /// [`WriteRequest::start`].
    pub fn start(self) -> Result<Operation<B>, Failed<B>> {
        self.submit(CreditMode::NoWait)
    }

    /// Posts the request now. The completion goes to the endpoint's transmit queue, with the
    /// buffer.
    ///
    /// # Errors
    /// As [`start`](Self::start), and as [`SendRequest::post`](crate::SendRequest::post).
    pub fn post(self) -> Result<(), Failed<B>> {
        let route = self.report.target(self.ep.inner.selective_tx);
        self.post_with_target(route, CreditMode::NoWait).map(drop)
    }

    fn submit(self, credit: CreditMode) -> Result<Operation<B>, Failed<B>> {
        let ep = self.ep;
        Ok(Operation::from_post_result(
            ep,
            self.post_with_target(CompletionTarget::Future, credit)?,
        ))
    }

    fn post_with_target(
        self,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let Self {
            ep,
            spec,
            targets: ranges,
            buf,
            ..
        } = self;
        let checked = ep
            .inner
            .check_tx_op(&spec)
            .and_then(|()| ep.inner.check_tx_iov(&buf));
        if let Err(error) = checked.and_then(|()| ranges.check(ep)) {
            return Err(Failed::new(error, buf));
        }
        let core = &ep.inner.domain.core;
        match ranges.as_list() {
            None => core.read(ep.inner.id, spec, buf, route, credit),
            Some(ranges) => core.read_rma_iov(ep.inner.id, spec, ranges, buf, route, credit),
        }
    }
}

impl<B: IoBufMut, M: ThreadModel> IntoFuture for ReadRequest<'_, B, M> {
    type Output = Result<Done<B>, Failed<B>>;
    type IntoFuture = Operation<B>;

    fn into_future(self) -> Operation<B> {
        self.submit(CreditMode::Wait)
            .unwrap_or_else(Operation::post_failed)
    }
}

impl_request_debug!("WriteRequest", [B, M: ThreadModel], WriteRequest<'_, B, M>);

impl_request_debug!("ReadRequest", [B, M: ThreadModel], ReadRequest<'_, B, M>);
