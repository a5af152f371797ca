//! One-sided operations: memory that peers reach, reads and atomics of theirs, and what peers did to memory here.
//!
//! A write is posted like a send: both give bytes away. A read takes bytes, an atomic operation does both.

use std::sync::Arc;

use fabric_core::atomic::{AtomicSpec, MAX_ATOMIC};
use fabric_core::buf::{AnyBuf, IoBuf, IoBufMut};
use fabric_core::completion::{Completion, Failed, OpKind, Outcome, Transfer};
use fabric_core::flags::Access;
use fabric_core::mr::{Memory, Reached};
use fabric_core::provider::{Deed, EpId, Remote, SendNow, SendSpec, Spread};
use fabric_core::{Error, FiAddr, Result};

use crate::domain::Domain;
use crate::engine::Locked;
use crate::hub::{CounterId, Counters, Hub};
use crate::ops::{Credit, Posted, Route};

impl Domain {
    /// Posts a read of a peer's memory.
    ///
    /// # Errors
    /// With the buffer: [`Error::TooLong`] when it has not the room, [`Error::Key`], and as [`Domain::send`].
    pub fn read<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: SendSpec,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        let mut locked = self.engine.lock();
        let posted = locked.read(ep, spec, buf, route, credit);
        locked.finish();
        posted
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
        let mut locked = self.engine.lock();
        let posted = locked.write_to(ep, spec, places, buf, route, credit);
        locked.finish();
        posted
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
        let mut locked = self.engine.lock();
        let posted = locked.read_from(ep, spec, places, buf, route, credit);
        locked.finish();
        posted
    }

    /// Executes an atomic operation at once if nothing stands in the way.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::TooLong`] and [`Error::Invalid`] for the place, and as [`Domain::send`].
    pub fn atomic_now(
        &self,
        ep: EpId,
        spec: &SendSpec,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<SendNow> {
        let mut locked = self.engine.lock();
        let done = locked.atomic_now(ep, spec, operands, result);
        locked.finish();
        done
    }

    /// A region of a peer's that has been accessed, to be reached without the domain; `None` when it has not.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the provider or the peer has to take part in accesses; [`Error::Closed`].
    pub fn reach(&self, ep: EpId, peer: FiAddr, key: u64) -> Result<Option<Reached>> {
        let mut locked = self.engine.lock();
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
        let mut locked = self.engine.lock();
        let posted = locked.atomic(ep, spec, buf, route, credit);
        locked.finish();
        posted
    }
}

impl Locked<'_> {
    /// Memory that peers reach by a key.
    pub(crate) fn open_region(
        &mut self,
        memory: Arc<dyn Memory>,
        access: Access,
        key: Option<u64>,
        by_address: bool,
    ) -> Result<u64> {
        let state = &mut **self;
        let key = state.hub.regions.insert(memory, access, key, by_address)?;
        if let Some(region) = state.hub.regions.get(key) {
            state.provider.region_opened(key, region);
        }
        Ok(key)
    }

    /// Counts what peers do to a region from now on, with the remote ones of these counters; those of it that are not
    /// given stay as they are.
    pub(crate) fn count_region(&mut self, key: u64, counters: Counters) -> Result<()> {
        let state = &mut **self;
        let bound = state.hub.region_counters.get(&key).copied().unwrap_or_default();
        let taken = |old: Option<CounterId>, new: Option<CounterId>| old.is_some() && new.is_some();
        if taken(bound.remote_read, counters.remote_read) || taken(bound.remote_write, counters.remote_write)
        {
            return Err(Error::Invalid { what: "counter of a region", why: "one is bound already".into() });
        }
        let region = state.hub.regions.heed(key).ok_or(Error::Key { key, why: "is unknown" })?;
        state.provider.region_opened(key, region);
        let bound = Counters {
            remote_read: bound.remote_read.or(counters.remote_read),
            remote_write: bound.remote_write.or(counters.remote_write),
            ..bound
        };
        state.hub.region_counters.insert(key, bound);
        Ok(())
    }

    pub(crate) fn close_region(&mut self, key: u64) {
        self.hub.region_counters.remove(&key);
        if self.hub.regions.remove(key).is_some() {
            self.provider.region_closed(key);
        }
    }

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
        let mut any = buf.into_any();
        let back = |any| B::from_any(any).unwrap_or_else(|_| unreachable!("the same type comes back"));
        let room = any.room();
        if len > room {
            let error = Error::TooLong { what: "read into a buffer", len, limit: room };
            return Err(Failed::new(error, back(any)));
        }
        if route.reserves()
            && let Err(error) = self.hub.reserve_entry(ep, spec.kind)
        {
            return Err(Failed::new(error, back(any)));
        }
        let failed = match self.read_now(ep, &spec, &mut any) {
            Ok(SendNow::Done) => return Ok(self.ended(ep, &spec, len, back(any), route, credit)),
            Ok(SendNow::Queue) => match self.queue_send(ep, spec, back(any), route, credit) {
                Ok(key) => return Ok(Posted::Pending(key)),
                Err(failed) => failed,
            },
            Err(error) => Failed::new(error, back(any)),
        };
        if route.reserves() {
            self.hub.unreserve_entry(ep, spec.kind);
        }
        Err(failed)
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
        let posted = self.send(ep, SendSpec { spread: Some(spread), ..spec }, buf, route, credit);
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
        let posted = self.read(ep, SendSpec { spread: Some(spread), ..spec }, buf, route, credit);
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

    fn read_now(&mut self, ep: EpId, spec: &SendSpec, into: &mut AnyBuf) -> Result<SendNow> {
        let state = &mut **self;
        let bound = state.hub.ep(ep)?;
        if bound.transmit.is_behind(spec.peer) || state.hub.is_fenced_off(ep, spec) {
            return Ok(SendNow::Queue);
        }
        let read = state.provider.read_now(&mut state.hub, ep, spec, into);
        if matches!(read, Ok(SendNow::Done)) {
            let len = spec.remote.map_or(0, |remote| remote.len);
            state.hub.count_at_once(ep, spec.kind, len);
        }
        read
    }

    /// Executes an atomic operation at once if nothing stands in the way.
    pub(crate) fn atomic_now(
        &mut self,
        ep: EpId,
        spec: &SendSpec,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<SendNow> {
        let state = &mut **self;
        let bound = state.hub.ep(ep)?;
        if bound.transmit.is_behind(spec.peer) || state.hub.is_fenced_off(ep, spec) {
            return Ok(SendNow::Queue);
        }
        let done = state.provider.atomic_now(&mut state.hub, ep, spec, operands, result);
        if matches!(done, Ok(SendNow::Done)) {
            let len = spec.remote.map_or(0, |remote| remote.len);
            state.hub.count_at_once(ep, spec.kind, len);
        }
        done
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
        if route.reserves() {
            self.hub.reserve_entry(ep, spec.kind)?;
        }
        let len = spec.remote.map_or(0, |remote| remote.len);
        let mut result = vec![0; if spec.kind == OpKind::FetchAtomic { len } else { 0 }];
        let error = match self.atomic_now(ep, &spec, &buf, &mut result) {
            Ok(SendNow::Done) => {
                let buf = if result.is_empty() { buf } else { result };
                return Ok(self.ended(ep, &spec, len, buf, route, credit));
            }
            Ok(SendNow::Queue) => match self.queue_send(ep, spec, buf, route, credit) {
                Ok(key) => return Ok(Posted::Pending(key)),
                Err(failed) => failed.error,
            },
            Err(error) => error,
        };
        if route.reserves() {
            self.hub.unreserve_entry(ep, spec.kind);
        }
        Err(error)
    }
}

/// Checks an atomic operation before it is posted: that it exists, and the row is not too long.
///
/// # Errors
/// [`Error::NotSupported`], [`Error::TooLong`].
pub fn check_atomic(atomic: AtomicSpec, len: usize) -> Result<()> {
    atomic.check()?;
    if len > MAX_ATOMIC {
        return Err(Error::TooLong { what: "row of atomic values", len, limit: MAX_ATOMIC });
    }
    Ok(())
}

impl Hub {
    /// A peer has done something to memory here: counts it, and reports what came with data. False when the queue is
    /// full.
    pub(crate) fn hear_of(&mut self, ep: EpId, key: u64, deed: Deed, transfer: Transfer) -> bool {
        let Some(bound) = self.eps.get(ep.0).map(|ep| &ep.bound) else { return true };
        let counter = bound.counters.of_deed(deed);
        if transfer.data.is_some()
            && let Some(ring) = bound.rx_cq.and_then(|id| self.cqs.get_mut(id.0))
        {
            if !ring.reserve() {
                self.held_notice = true;
                return false;
            }
            let completion = Completion::new(0, OpKind::RemoteWrite, Outcome::ok(transfer), AnyBuf::None);
            if let Some(waker) = ring.push(completion) {
                self.waiters -= 1;
                self.later.wake(waker);
            }
            self.seen(transfer.source);
        }
        if let Some(ep) = self.eps.get_mut(ep.0) {
            ep.stats.moved(OpKind::RemoteWrite, transfer.len);
        }
        let of_region = self.region_counters.get(&key).and_then(|counters| counters.of_deed(deed));
        for counter in [counter, of_region].into_iter().flatten() {
            self.count_at(counter, true);
        }
        true
    }
}
