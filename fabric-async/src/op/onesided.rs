//! Reads and writes of a peer's memory.

use std::future::IntoFuture;

use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::{Done, Failed, OpKind};
use fabric_core::provider::{Remote, SendSpec};
use fabric_core::{FiAddr, Result};
use fabric_reactor::{Credit, Posted, Route};

use super::batch::{self, Batchable, Stopped, sealed};
use super::{Operation, Report, send};
use crate::endpoint::Endpoint;
use crate::model::{Shared, ThreadModel};
use crate::mr::{RemoteAddr, RemoteSlice};

/// A write to a peer's memory (`fi_write`): posted by `.await`, [`start`](Self::start) or [`post`](Self::post).
#[must_use = "nothing is written before the request is awaited, started or posted"]
#[doc(alias = "fi_write")]
pub struct WriteRequest<'a, B, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: SendSpec,
    buf: B,
    report: Report,
}

impl<'a, B: IoBuf, M: ThreadModel> WriteRequest<'a, B, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>, peer: FiAddr, to: RemoteAddr, buf: B) -> Self {
        let remote = Remote { key: to.key, offset: to.offset, len: buf.payload().len(), atomic: None };
        Self { ep, spec: SendSpec::one_sided(OpKind::Write, peer, remote), buf, report: Report::default() }
    }

    /// Data for a completion at the peer (`fi_writedata`, `FI_REMOTE_CQ_DATA`): an entry of kind
    /// [`OpKind::RemoteWrite`] in the receive queue of its endpoint, behind the written bytes. It takes no posted
    /// receive.
    #[doc(alias = "fi_writedata")]
    pub fn data(mut self, data: u64) -> Self {
        self.spec.data = Some(data);
        self
    }

    /// The number that comes with the completion when the request is [posted](Self::post).
    pub fn context(mut self, context: u64) -> Self {
        self.report.context = context;
        self
    }

    asked!();
    fenced!();
    delivered!();

    /// The buffer back, and nothing is written.
    pub fn into_buf(self) -> B {
        self.buf
    }

    /// Posts now; the result is awaited later, or never.
    ///
    /// # Errors
    /// With the buffer: [`Error::Key`](crate::Error::Key) and [`Error::TooLong`](crate::Error::TooLong) when the place
    /// is known to be out of reach, and as [`SendRequest::start`](crate::SendRequest::start).
    pub fn start(self) -> Result<Operation<B>, Failed<B>> {
        send::submit(self.ep, &self.spec, self.buf, None, Credit::Now).accepted()
    }

    /// Posts now; the completion goes to the endpoint's transmit queue.
    ///
    /// # Errors
    /// As [`start`](Self::start), and as [`SendRequest::post`](crate::SendRequest::post).
    pub fn post(self) -> Result<(), Failed<B>> {
        let route = self.report.route(self.ep.inner.quiet_tx);
        send::post(self.ep, self.spec, self.buf, None, route, Credit::Now).map(drop)
    }
}

impl<B: IoBuf, M: ThreadModel> IntoFuture for WriteRequest<'_, B, M> {
    type Output = Result<Done<B>, Failed<B>>;
    type IntoFuture = Operation<B>;

    fn into_future(self) -> Operation<B> {
        send::submit(self.ep, &self.spec, self.buf, None, Credit::Wait)
    }
}

impl<'a, B: IoBuf, M: ThreadModel> Batchable<'a, M> for WriteRequest<'a, B, M> {}

impl<'a, B: IoBuf, M: ThreadModel> sealed::Batchable<'a, M> for WriteRequest<'a, B, M> {
    fn prepare(&mut self, ep: &Endpoint<M>) -> Result<()> {
        self.spec.more = true;
        batch::check(ep, self.ep, &self.spec, &self.buf)
    }

    fn len(&self) -> usize {
        self.buf.payload().len()
    }

    fn post_chunk(ep: &'a Endpoint<M>, chunk: &mut Vec<Self>) -> Stopped {
        let quiet = ep.inner.quiet_tx;
        let mut posts = ep.inner.domain.core.batch(ep.inner.id);
        let (count, stopped) = batch::post_each(chunk, |request| {
            let Self { spec, buf, report, .. } = request;
            let failed = posts.send(spec, buf, report.route(quiet)).err()?;
            let spec = SendSpec { more: false, ..spec };
            Some((Self { ep, spec, buf: failed.buf, report }, failed.error))
        });
        // A refusal says more than the end of a peer.
        (count, stopped.and(posts.end()))
    }
}

/// A read of a peer's memory (`fi_read`): posted by `.await`, [`start`](Self::start) or [`post`](Self::post).
#[must_use = "nothing is read before the request is awaited, started or posted"]
#[doc(alias = "fi_read")]
pub struct ReadRequest<'a, B, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: SendSpec,
    buf: B,
    report: Report,
}

impl<'a, B: IoBufMut, M: ThreadModel> ReadRequest<'a, B, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>, peer: FiAddr, from: RemoteSlice, buf: B) -> Self {
        let remote = Remote { key: from.key, offset: from.offset, len: from.len, atomic: None };
        Self { ep, spec: SendSpec::one_sided(OpKind::Read, peer, remote), buf, report: Report::default() }
    }

    /// The number that comes with the completion when the request is [posted](Self::post).
    pub fn context(mut self, context: u64) -> Self {
        self.report.context = context;
        self
    }

    asked!();
    fenced!();

    /// Posts now; the result is awaited later.
    ///
    /// # Errors
    /// With the buffer: [`Error::TooLong`](crate::Error::TooLong) when it has not the room, or the place is known to be
    /// out of reach, and otherwise as [`WriteRequest::start`].
    pub fn start(self) -> Result<Operation<B>, Failed<B>> {
        self.submit(Credit::Now)
    }

    /// Posts now; the completion goes to the endpoint's transmit queue, with the buffer.
    ///
    /// # Errors
    /// As [`start`](Self::start), and as [`SendRequest::post`](crate::SendRequest::post).
    pub fn post(self) -> Result<(), Failed<B>> {
        let route = self.report.route(self.ep.inner.quiet_tx);
        self.post_to(route, Credit::Now).map(drop)
    }

    fn submit(self, credit: Credit) -> Result<Operation<B>, Failed<B>> {
        let ep = self.ep;
        Ok(Operation::of(ep, self.post_to(Route::Future, credit)?))
    }

    fn post_to(self, route: Route, credit: Credit) -> Result<Posted<B>, Failed<B>> {
        let Self { ep, spec, buf, .. } = self;
        if let Err(error) = ep.inner.check_send(&spec).and_then(|()| ep.inner.check_gather(&buf)) {
            return Err(Failed::new(error, buf));
        }
        ep.inner.domain.core.read(ep.inner.id, spec, buf, route, credit)
    }
}

impl<B: IoBufMut, M: ThreadModel> IntoFuture for ReadRequest<'_, B, M> {
    type Output = Result<Done<B>, Failed<B>>;
    type IntoFuture = Operation<B>;

    fn into_future(self) -> Operation<B> {
        self.submit(Credit::Wait).unwrap_or_else(Operation::refused)
    }
}
