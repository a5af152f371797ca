//! Reads and writes of a peer's memory.

use std::future::IntoFuture;

use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::{Done, Failed, OpKind};
use fabric_core::provider::{Remote, SendSpec};
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{Credit, Posted, Route};

use super::batch::{self, Batchable, Ready, Stopped, sealed};
use super::{Operation, Report, send};
use crate::endpoint::Endpoint;
use crate::model::{Shared, ThreadModel};
use crate::mr::{RemoteAddr, RemoteSlice};

/// Where a request was made with a list of places: all of them.
#[derive(Default)]
pub struct Places(Option<Box<[Remote]>>);

impl Places {
    /// These, and what the spec says of them: where the first is, and how many bytes all have.
    fn of(list: &[RemoteSlice]) -> (Remote, Self) {
        let place = |of: &RemoteSlice| Remote {
            key: of.key,
            offset: of.offset,
            len: of.len,
            atomic: None,
        };
        let all: Box<[_]> = list.iter().map(place).collect();
        let first = all
            .first()
            .map_or((0, 0), |place| (place.key, place.offset));
        let len = all
            .iter()
            .fold(0usize, |sum, place| sum.saturating_add(place.len));
        (
            Remote {
                key: first.0,
                offset: first.1,
                len,
                atomic: None,
            },
            Self(Some(all)),
        )
    }

    /// There was no list.
    #[inline]
    fn are_plain(&self) -> bool {
        self.0.is_none()
    }

    /// All of them, if there are several.
    fn several(&self) -> Option<&[Remote]> {
        self.0.as_deref().filter(|places| places.len() > 1)
    }

    fn check<M: ThreadModel>(&self, ep: &Endpoint<M>) -> Result<()> {
        let Some(places) = &self.0 else { return Ok(()) };
        if places.is_empty() {
            return Err(Error::Invalid {
                what: "list of remote places",
                why: "it is empty".into(),
            });
        }
        // A single one is a place as any other.
        let limit = ep.inner.info.tx.rma_iov_limit;
        if places.len() > limit.max(1) {
            return Err(Error::TooLong {
                what: "list of remote places",
                len: places.len(),
                limit,
            });
        }
        Ok(())
    }
}

/// A write to a peer's memory (`fi_write`): posted by `.await`, [`start`](Self::start) or
/// [`post`](Self::post).
#[must_use = "nothing is written before the request is awaited, started or posted"]
#[doc(alias = "fi_write")]
pub struct WriteRequest<'a, B, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: SendSpec,
    places: Places,
    buf: B,
    report: Report,
}

impl<'a, B: IoBuf, M: ThreadModel> WriteRequest<'a, B, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>, peer: FiAddr, to: RemoteAddr, buf: B) -> Self {
        let remote = Remote {
            key: to.key,
            offset: to.offset,
            len: buf.payload().len(),
            atomic: None,
        };
        Self::at(
            ep,
            SendSpec::one_sided(OpKind::Write, peer, remote),
            Places::default(),
            buf,
        )
    }

    pub(crate) fn to(ep: &'a Endpoint<M>, peer: FiAddr, to: &[RemoteSlice], buf: B) -> Self {
        let (remote, places) = Places::of(to);
        Self::at(
            ep,
            SendSpec::one_sided(OpKind::Write, peer, remote),
            places,
            buf,
        )
    }

    fn at(ep: &'a Endpoint<M>, spec: SendSpec, places: Places, buf: B) -> Self {
        Self {
            ep,
            spec,
            places,
            buf,
            report: Report::default(),
        }
    }

    fn check(&self) -> Result<()> {
        self.places.check(self.ep)?;
        let (places, len) = (
            self.spec.remote.map_or(0, |remote| remote.len),
            self.buf.payload().len(),
        );
        if places != len {
            let why = format!("a buffer of {len} bytes for places of {places}");
            return Err(Error::Invalid {
                what: "write to several places",
                why,
            });
        }
        Ok(())
    }

    /// Data for a completion at the peer (`fi_writedata`, `FI_REMOTE_CQ_DATA`): an entry of kind
    /// [`OpKind::RemoteWrite`] in the receive queue of its endpoint, behind the written bytes. It
    /// takes no posted receive.
    #[doc(alias = "fi_writedata")]
    pub fn data(mut self, data: u64) -> Self {
        self.spec.data = Some(data);
        self
    }

    reported!();
    fenced!();
    delivered!();

    /// The buffer back, and nothing is written.
    pub fn into_buf(self) -> B {
        self.buf
    }

    /// Posts now; the result is awaited later, or never.
    ///
    /// # Errors
    /// With the buffer: [`Error::Key`](crate::Error::Key) and
    /// [`Error::TooLong`](crate::Error::TooLong) when the place is known to be out of reach, and as
    /// [`SendRequest::start`](crate::SendRequest::start).
    pub fn start(self) -> Result<Operation<B>, Failed<B>> {
        self.submit(Credit::Now).accepted()
    }

    /// Posts now; the completion goes to the endpoint's transmit queue.
    ///
    /// # Errors
    /// As [`start`](Self::start), and as [`SendRequest::post`](crate::SendRequest::post).
    pub fn post(self) -> Result<(), Failed<B>> {
        let route = self.report.route(self.ep.inner.quiet_tx);
        if self.places.are_plain() {
            return send::post(self.ep, self.spec, self.buf, None, route, Credit::Now).map(drop);
        }
        self.post_to(route, Credit::Now).map(drop)
    }

    #[inline]
    fn submit(self, credit: Credit) -> Operation<B> {
        if self.places.are_plain() {
            return send::submit(self.ep, &self.spec, self.buf, None, credit);
        }
        let ep = self.ep;
        self.post_to(Route::Future, credit)
            .map_or_else(Operation::refused, |posted| Operation::of(ep, posted))
    }

    /// Posts a write that was made of a list of places.
    #[cold]
    fn post_to(self, route: Route, credit: Credit) -> Result<Posted<B>, Failed<B>> {
        let checked = self
            .ep
            .inner
            .check_send(&self.spec)
            .and_then(|()| self.ep.inner.check_gather(&self.buf));
        if let Err(error) = checked.and_then(|()| self.check()) {
            return Err(Failed::new(error, self.buf));
        }
        let Self {
            ep,
            spec,
            places,
            buf,
            ..
        } = self;
        let core = &ep.inner.domain.core;
        match places.several() {
            None => core.send(ep.inner.id, spec, buf, route, credit),
            Some(places) => core.write_to(ep.inner.id, spec, places, buf, route, credit),
        }
    }
}

impl<B: IoBuf, M: ThreadModel> IntoFuture for WriteRequest<'_, B, M> {
    type Output = Result<Done<B>, Failed<B>>;
    type IntoFuture = Operation<B>;

    fn into_future(self) -> Operation<B> {
        self.submit(Credit::Wait)
    }
}

impl<'a, B: IoBuf, M: ThreadModel> Batchable<'a, M> for WriteRequest<'a, B, M> {}

impl<'a, B: IoBuf, M: ThreadModel> sealed::Batchable<'a, M> for WriteRequest<'a, B, M> {
    type Ready = Ready<(SendSpec, Places), B>;

    fn check_for(&self, ep: &Endpoint<M>) -> Result<()> {
        batch::check(ep, self.ep, &self.spec, &self.buf)?;
        if self.places.are_plain() {
            Ok(())
        } else {
            self.check()
        }
    }

    fn len(&self) -> usize {
        self.buf.payload().len()
    }

    fn ready(self) -> Ready<(SendSpec, Places), B> {
        let spec = SendSpec {
            more: true,
            ..self.spec
        };
        Ready {
            spec: (spec, self.places),
            buf: Some(self.buf),
            report: self.report,
        }
    }

    fn again(ep: &'a Endpoint<M>, ready: Ready<(SendSpec, Places), B>) -> Option<Self> {
        let (spec, places) = ready.spec;
        let spec = SendSpec {
            more: false,
            ..spec
        };
        Some(Self {
            ep,
            spec,
            places,
            buf: ready.buf?,
            report: ready.report,
        })
    }

    fn post_chunk(ep: &'a Endpoint<M>, chunk: &mut [Ready<(SendSpec, Places), B>]) -> Stopped {
        let quiet = ep.inner.quiet_tx;
        let mut posts = ep.inner.domain.core.batch(ep.inner.id);
        let (count, stopped) = batch::post_each(chunk, |(spec, places), buf, report| {
            let route = report.route(quiet);
            match places.several() {
                None => posts.send(spec, buf, route),
                Some(all) => posts.write_to(*spec, all, buf, route),
            }
        });
        // A refusal says more than the end of a peer.
        (count, stopped.and(posts.end()))
    }
}

/// A read of a peer's memory (`fi_read`): posted by `.await`, [`start`](Self::start) or
/// [`post`](Self::post).
#[must_use = "nothing is read before the request is awaited, started or posted"]
#[doc(alias = "fi_read")]
pub struct ReadRequest<'a, B, M: ThreadModel = Shared> {
    ep: &'a Endpoint<M>,
    spec: SendSpec,
    places: Places,
    buf: B,
    report: Report,
}

impl<'a, B: IoBufMut, M: ThreadModel> ReadRequest<'a, B, M> {
    pub(crate) fn new(ep: &'a Endpoint<M>, peer: FiAddr, from: RemoteSlice, buf: B) -> Self {
        let remote = Remote {
            key: from.key,
            offset: from.offset,
            len: from.len,
            atomic: None,
        };
        let spec = SendSpec::one_sided(OpKind::Read, peer, remote);
        Self {
            ep,
            spec,
            places: Places::default(),
            buf,
            report: Report::default(),
        }
    }

    pub(crate) fn from(ep: &'a Endpoint<M>, peer: FiAddr, from: &[RemoteSlice], buf: B) -> Self {
        let (remote, places) = Places::of(from);
        let spec = SendSpec::one_sided(OpKind::Read, peer, remote);
        Self {
            ep,
            spec,
            places,
            buf,
            report: Report::default(),
        }
    }

    reported!();
    fenced!();

    /// Posts now; the result is awaited later.
    ///
    /// # Errors
    /// With the buffer: [`Error::TooLong`](crate::Error::TooLong) when it has not the room, or the
    /// place is known to be out of reach, and otherwise as [`WriteRequest::start`].
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
        let Self {
            ep,
            spec,
            places,
            buf,
            ..
        } = self;
        let checked = ep
            .inner
            .check_send(&spec)
            .and_then(|()| ep.inner.check_gather(&buf));
        if let Err(error) = checked.and_then(|()| places.check(ep)) {
            return Err(Failed::new(error, buf));
        }
        let core = &ep.inner.domain.core;
        match places.several() {
            None => core.read(ep.inner.id, spec, buf, route, credit),
            Some(places) => core.read_from(ep.inner.id, spec, places, buf, route, credit),
        }
    }
}

impl<B: IoBufMut, M: ThreadModel> IntoFuture for ReadRequest<'_, B, M> {
    type Output = Result<Done<B>, Failed<B>>;
    type IntoFuture = Operation<B>;

    fn into_future(self) -> Operation<B> {
        self.submit(Credit::Wait).unwrap_or_else(Operation::refused)
    }
}
