//! One-sided operations: reads and atomics of a peer's memory.
//!
//! A write is posted like a send: both give bytes away. A read takes bytes, an atomic operation
//! does both.

use fabric_core::atomic::{AtomicSpec, MAX_ATOMIC_BYTES};
use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::{Failed, OpKind};
use fabric_core::mr::DirectRegion;
use fabric_core::transport::{EpId, RmaIov, RmaIovId, TrySend, TxOp};
use fabric_core::{Error, FiAddr, Result};

use crate::domain::DomainHandle;
use crate::engine::EngineGuard;
use crate::ops::{CompletionTarget, CreditMode, PostResult};

impl DomainHandle {
    /// Posts a read of a peer's memory.
    ///
    /// # Errors
    /// With the buffer: [`Error::TooLong`] when it has not the room, [`Error::Key`], and as
    /// [`DomainHandle::send`].
    pub fn read<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: TxOp,
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        self.with_engine(|locked| locked.read(ep, spec, buf, route, credit))
    }

    /// Posts a write of this buffer to several places, which have as many bytes.
    ///
    /// # Errors
    /// As [`DomainHandle::send`].
    pub fn write_rma_iov<B: IoBuf>(
        &self,
        ep: EpId,
        spec: TxOp,
        places: &[RmaIov],
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        self.with_engine(|locked| locked.write_rma_iov(ep, spec, places, buf, route, credit))
    }

    /// Posts a read of several places; the spec says how many bytes they have together.
    ///
    /// # Errors
    /// As [`DomainHandle::read`].
    pub fn read_rma_iov<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: TxOp,
        places: &[RmaIov],
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        self.with_engine(|locked| locked.read_rma_iov(ep, spec, places, buf, route, credit))
    }

    /// Executes an atomic operation at once if nothing stands in the way.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::TooLong`] and [`Error::Invalid`] for the place, and as
    /// [`DomainHandle::send`].
    pub fn try_atomic(
        &self,
        ep: EpId,
        spec: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        self.with_engine(|locked| locked.try_atomic(ep, spec, operands, result))
    }

    /// A region of a peer's that has been accessed, to be reached without the domain; `None` when
    /// it has not.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the provider or the peer has to take part in accesses;
    /// [`Error::Closed`].
    pub fn direct_region(&self, ep: EpId, peer: FiAddr, key: u64) -> Result<Option<DirectRegion>> {
        let mut locked = self.engine().lock();
        let state = &mut *locked;
        state
            .transport
            .direct_region(&mut state.domain, ep, peer, key)
    }

    /// Posts an atomic operation; the buffer holds operands and comparands, and takes the result.
    ///
    /// # Errors
    /// As [`DomainHandle::try_atomic`].
    pub fn atomic(
        &self,
        ep: EpId,
        spec: TxOp,
        buf: Vec<u8>,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<Vec<u8>>> {
        self.with_engine(|locked| locked.atomic(ep, spec, buf, route, credit))
    }
}

impl EngineGuard<'_> {
    /// Posts a read of a peer's memory into this buffer, which has the room.
    pub(crate) fn read<B: IoBufMut>(
        &mut self,
        ep: EpId,
        spec: TxOp,
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let len = spec.remote.map_or(0, |remote| remote.len);
        let back =
            |any| B::from_any(any).unwrap_or_else(|_| unreachable!("the same type comes back"));
        let mut any = buf.into_any();
        let room = any.recv_capacity();
        if len > room {
            let error = Error::TooLong {
                what: "read into a buffer",
                len,
                limit: room,
            };
            return Err(Failed::new(error, back(any)));
        }
        if let Err(error) = any.begin_fill(len) {
            return Err(Failed::new(error, back(any)));
        }
        self.post_or_queue(ep, &spec, len, (any, back), route, credit, |locked, any| {
            locked.try_inline(
                ep,
                &spec,
                len,
                |_| Ok(()),
                |provider, hub| provider.try_read(hub, ep, &spec, any),
            )
        })
    }

    /// Posts a write of this payload to several places.
    pub(crate) fn write_rma_iov<B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: TxOp,
        places: &[RmaIov],
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let spread = self.insert_rma_iov(places);
        let posted = self.send(
            ep,
            &TxOp {
                rma_iov_id: Some(spread),
                ..spec
            },
            buf,
            route,
            credit,
        );
        self.remove_rma_iov_if_refused(spread, posted)
    }

    /// Posts a read of several places into this buffer, which has the room.
    pub(crate) fn read_rma_iov<B: IoBufMut>(
        &mut self,
        ep: EpId,
        spec: TxOp,
        places: &[RmaIov],
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let spread = self.insert_rma_iov(places);
        let posted = self.read(
            ep,
            TxOp {
                rma_iov_id: Some(spread),
                ..spec
            },
            buf,
            route,
            credit,
        );
        self.remove_rma_iov_if_refused(spread, posted)
    }

    fn insert_rma_iov(&mut self, places: &[RmaIov]) -> RmaIovId {
        RmaIovId(self.domain.rma_iovs.insert(places.into()) as u32)
    }

    /// The places are the operation's, unless there is none.
    fn remove_rma_iov_if_refused<B>(
        &mut self,
        spread: RmaIovId,
        posted: Result<PostResult<B>, Failed<B>>,
    ) -> Result<PostResult<B>, Failed<B>> {
        if posted.is_err() {
            self.domain.rma_iovs.try_remove(spread.0 as usize);
        }
        posted
    }

    /// Executes an atomic operation at once if nothing stands in the way.
    pub(crate) fn try_atomic(
        &mut self,
        ep: EpId,
        spec: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        let len = spec.remote.map_or(0, |remote| remote.len);
        self.try_inline(
            ep,
            spec,
            len,
            |_| Ok(()),
            |provider, hub| provider.try_atomic(hub, ep, spec, operands, result),
        )
    }

    /// Posts an atomic operation; `buf` holds operands and comparands, and takes the result.
    pub(crate) fn atomic(
        &mut self,
        ep: EpId,
        spec: TxOp,
        buf: Vec<u8>,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<Vec<u8>>> {
        let len = spec.remote.map_or(0, |remote| remote.len);
        let posted = self.post_or_queue(
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
                let done = locked.try_atomic(ep, &spec, buf, &mut result)?;
                if done == TrySend::Done && !result.is_empty() {
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
    if len > MAX_ATOMIC_BYTES {
        return Err(Error::TooLong {
            what: "row of atomic values",
            len,
            limit: MAX_ATOMIC_BYTES,
        });
    }
    Ok(())
}
