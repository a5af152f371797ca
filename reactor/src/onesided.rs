//! One-sided operations: reads and atomics of a peer's memory.
//!
//! A write is posted like a send: both give bytes away. A read takes bytes, an atomic operation
//! does both.

use fabric_core::atomic::{AtomicSpec, MAX_ATOMIC};
use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::{Failed, OpKind};
use fabric_core::mr::Reached;
use fabric_core::provider::{EpId, Remote, SendNow, SendSpec, Spread};
use fabric_core::{Error, FiAddr, Result};

use crate::domain::Domain;
use crate::engine::Locked;
use crate::ops::{Credit, Posted, Route};

impl Domain {
    /// Posts a read of a peer's memory.
    ///
    /// # Errors
    /// With the buffer: [`Error::TooLong`] when it has not the room, [`Error::Key`], and as
    /// [`Domain::send`].
    pub fn read<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: SendSpec,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        self.with(|locked| locked.read(ep, spec, buf, route, credit))
    }

    /// Posts a write of this buffer to several places, which have as many bytes.
    ///
    /// # Errors
    /// As [`Domain::send`].
    pub fn write_to<B: IoBuf>(
        &self,
        ep: EpId,
        spec: SendSpec,
        places: &[Remote],
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        self.with(|locked| locked.write_to(ep, spec, places, buf, route, credit))
    }

    /// Posts a read of several places; the spec says how many bytes they have together.
    ///
    /// # Errors
    /// As [`Domain::read`].
    pub fn read_from<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: SendSpec,
        places: &[Remote],
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        self.with(|locked| locked.read_from(ep, spec, places, buf, route, credit))
    }

    /// Executes an atomic operation at once if nothing stands in the way.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::TooLong`] and [`Error::Invalid`] for the place, and as
    /// [`Domain::send`].
    pub fn atomic_now(
        &self,
        ep: EpId,
        spec: &SendSpec,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<SendNow> {
        self.with(|locked| locked.atomic_now(ep, spec, operands, result))
    }

    /// A region of a peer's that has been accessed, to be reached without the domain; `None` when
    /// it has not.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the provider or the peer has to take part in accesses;
    /// [`Error::Closed`].
    pub fn reach(&self, ep: EpId, peer: FiAddr, key: u64) -> Result<Option<Reached>> {
        let mut locked = self.engine().lock();
        let state = &mut *locked;
        state.provider.reach(&mut state.hub, ep, peer, key)
    }

    /// Posts an atomic operation; the buffer holds operands and comparands, and takes the result.
    ///
    /// # Errors
    /// As [`Domain::atomic_now`].
    pub fn atomic(
        &self,
        ep: EpId,
        spec: SendSpec,
        buf: Vec<u8>,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<Vec<u8>>> {
        self.with(|locked| locked.atomic(ep, spec, buf, route, credit))
    }
}

impl Locked<'_> {
    /// Posts a read of a peer's memory into this buffer, which has the room.
    pub(crate) fn read<B: IoBufMut>(
        &mut self,
        ep: EpId,
        spec: SendSpec,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        let len = spec.remote.map_or(0, |remote| remote.len);
        let back =
            |any| B::from_any(any).unwrap_or_else(|_| unreachable!("the same type comes back"));
        let mut any = buf.into_any();
        let room = any.room();
        if len > room {
            let error = Error::TooLong {
                what: "read into a buffer",
                len,
                limit: room,
            };
            return Err(Failed::new(error, back(any)));
        }
        if let Err(error) = any.expect(len) {
            return Err(Failed::new(error, back(any)));
        }
        self.attempt(ep, &spec, len, (any, back), route, credit, |locked, any| {
            locked.at_once(
                ep,
                &spec,
                len,
                |_| Ok(()),
                |provider, hub| provider.read_now(hub, ep, &spec, any),
            )
        })
    }

    /// Posts a write of this payload to several places.
    pub(crate) fn write_to<B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: SendSpec,
        places: &[Remote],
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        let spread = self.spread(places);
        let posted = self.send(
            ep,
            &SendSpec {
                spread: Some(spread),
                ..spec
            },
            buf,
            route,
            credit,
        );
        self.forget_refused(spread, posted)
    }

    /// Posts a read of several places into this buffer, which has the room.
    pub(crate) fn read_from<B: IoBufMut>(
        &mut self,
        ep: EpId,
        spec: SendSpec,
        places: &[Remote],
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        let spread = self.spread(places);
        let posted = self.read(
            ep,
            SendSpec {
                spread: Some(spread),
                ..spec
            },
            buf,
            route,
            credit,
        );
        self.forget_refused(spread, posted)
    }

    fn spread(&mut self, places: &[Remote]) -> Spread {
        Spread(self.hub.spreads.insert(places.into()) as u32)
    }

    /// The places are the operation's, unless there is none.
    fn forget_refused<B>(
        &mut self,
        spread: Spread,
        posted: Result<Posted<B>, Failed<B>>,
    ) -> Result<Posted<B>, Failed<B>> {
        if posted.is_err() {
            self.hub.spreads.try_remove(spread.0 as usize);
        }
        posted
    }

    /// Executes an atomic operation at once if nothing stands in the way.
    pub(crate) fn atomic_now(
        &mut self,
        ep: EpId,
        spec: &SendSpec,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<SendNow> {
        let len = spec.remote.map_or(0, |remote| remote.len);
        self.at_once(
            ep,
            spec,
            len,
            |_| Ok(()),
            |provider, hub| provider.atomic_now(hub, ep, spec, operands, result),
        )
    }

    /// Posts an atomic operation; `buf` holds operands and comparands, and takes the result.
    pub(crate) fn atomic(
        &mut self,
        ep: EpId,
        spec: SendSpec,
        buf: Vec<u8>,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<Vec<u8>>> {
        let len = spec.remote.map_or(0, |remote| remote.len);
        let posted = self.attempt(
            ep,
            &spec,
            len,
            (buf, |buf| buf),
            route,
            credit,
            |locked, buf| {
                let mut result = vec![
                    0;
                    if spec.kind == OpKind::FetchAtomic {
                        len
                    } else {
                        0
                    }
                ];
                let done = locked.atomic_now(ep, &spec, buf, &mut result)?;
                if done == SendNow::Done && !result.is_empty() {
                    *buf = result;
                }
                Ok(done)
            },
        );
        posted.map_err(|failed| failed.error)
    }
}

/// Checks an atomic operation before it is posted: that it exists, and the row is not too long.
///
/// # Errors
/// [`Error::NotSupported`], [`Error::TooLong`].
pub fn check_atomic(atomic: AtomicSpec, len: usize) -> Result<()> {
    atomic.check()?;
    if len > MAX_ATOMIC {
        return Err(Error::TooLong {
            what: "row of atomic values",
            len,
            limit: MAX_ATOMIC,
        });
    }
    Ok(())
}
