//! One-sided operations: reads, writes to several remote ranges, and atomics on a peer's memory
//! (RMA).
//!
//! A write is posted like a send, since both transmit a buffer. A read fills a buffer, and an
//! atomic operation does both.

use fabric_core::atomic::{AtomicSpec, MAX_ATOMIC_BYTES};
use fabric_core::buf::{IoBuf, IoBufMut, restore_buffer};
use fabric_core::completion::{Failed, OpKind};
use fabric_core::mr::DirectRegion;
use fabric_core::transport::{EpId, RmaIov, TrySend, TxOp};
use fabric_core::{Error, FiAddr, Result};

use super::domain::DomainHandle;
use super::post::refused;
use super::progress::EngineState;
use super::state::ops::{CompletionTarget, CreditMode, PostResult};

impl DomainHandle {
    /// Posts a read of a peer's memory (`fi_read`), or of several remote ranges (`fi_readmsg`), of
    /// which the operation has the total length.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`], [`Error::Key`], and as
    /// [`DomainHandle::send`]; all with the buffer.
    pub fn read<B: IoBufMut>(
        &self,
        ep: EpId,
        tx_op: TxOp,
        rma_iovs: Option<&[RmaIov]>,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let Some(mut locked) = self.engine().lock_or_refuse() else {
            return Err(refused(buf));
        };
        let posted = match rma_iovs {
            None => locked.read(ep, tx_op, buf, target, credit),
            Some(rma_iovs) => locked.with_rma_iovs(tx_op, rma_iovs, |state, tx_op| {
                state.read(ep, tx_op, buf, target, credit)
            }),
        };
        locked.finish();
        posted
    }

    /// Posts a write of this buffer to several remote ranges (`fi_writemsg`), which together have
    /// the buffer's length.
    ///
    /// # Errors
    /// As [`DomainHandle::send`].
    pub fn write_rma_iov<B: IoBuf>(
        &self,
        ep: EpId,
        tx_op: TxOp,
        iovs: &[RmaIov],
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let buf = self.copy_unlendable_loan(buf)?;
        let Some(mut locked) = self.engine().lock_or_refuse() else {
            return Err(refused(buf));
        };
        let posted = locked.write_rma_iov(ep, tx_op, iovs, buf, target, credit);
        locked.finish();
        posted
    }

    /// Executes an atomic operation inline, if no queued operation precedes it and the transport
    /// can execute it now.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::OutOfBounds`] and [`Error::Invalid`] for the remote range, and as
    /// [`DomainHandle::send`].
    pub fn try_atomic(
        &self,
        ep: EpId,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        self.with_engine_or_refuse(|locked| locked.try_atomic(ep, tx_op, operands, result))
    }

    /// Returns a peer's region that is mapped here, which can be accessed without the domain;
    /// `None` until an operation has accessed it.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the transport or the peer has to take part in accesses;
    /// [`Error::Closed`].
    pub fn direct_region(&self, ep: EpId, peer: FiAddr, key: u64) -> Result<Option<DirectRegion>> {
        let mut locked = self.lock_or_refuse()?;
        let region =
            locked.with_transport(ep, |transport, ctx| transport.direct_region(ctx, peer, key));
        region.flatten()
    }

    /// Posts an atomic operation; the buffer holds operands and comparands, and is replaced by the
    /// result.
    ///
    /// # Errors
    /// As [`DomainHandle::try_atomic`].
    pub fn atomic(
        &self,
        ep: EpId,
        tx_op: TxOp,
        buf: Vec<u8>,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<Vec<u8>>> {
        let len = tx_op.remote.map_or(0, |remote| remote.len);
        let result_len = if tx_op.kind == OpKind::FetchAtomic {
            len
        } else {
            0
        };
        let inline = |state: &mut EngineState, buf: &mut Vec<u8>| {
            let mut result = vec![0; result_len];
            let outcome = state.try_atomic(ep, &tx_op, buf, &mut result)?;
            if outcome == TrySend::Done && !result.is_empty() {
                *buf = result;
            }
            Ok(outcome)
        };
        self.with_engine_or_refuse(|locked| {
            let held = (buf, |buf| buf);
            let posted = locked.post_or_queue(ep, &tx_op, len, held, target, credit, inline);
            posted.map_err(|failed| failed.error)
        })
    }
}

impl EngineState {
    /// Posts a read of a peer's memory into this buffer.
    pub(crate) fn read<B: IoBufMut>(
        &mut self,
        ep: EpId,
        tx_op: TxOp,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let len = tx_op.remote.map_or(0, |remote| remote.len);
        let mut data = buf.into_any();
        let room = data.recv_capacity();
        if len > room {
            let error = Error::BufferTooSmall {
                len,
                capacity: room,
            };
            return Err(Failed::new(error, restore_buffer(data)));
        }
        if let Err(error) = data.begin_fill(len) {
            return Err(Failed::new(error, restore_buffer(data)));
        }
        self.post_or_queue(
            ep,
            &tx_op,
            len,
            (data, restore_buffer),
            target,
            credit,
            |state, data| {
                state.try_inline(
                    ep,
                    &tx_op,
                    len,
                    |_| Ok(()),
                    |transport, ctx| transport.try_read(ctx, &tx_op, data),
                )
            },
        )
    }

    /// Posts a write of this buffer to several remote ranges.
    pub(crate) fn write_rma_iov<B: IoBuf>(
        &mut self,
        ep: EpId,
        tx_op: TxOp,
        iovs: &[RmaIov],
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        self.with_rma_iovs(tx_op, iovs, |state, tx_op| {
            state.send(ep, &tx_op, buf, target, credit)
        })
    }

    /// Posts an operation on several remote ranges by `post`.
    fn with_rma_iovs<B>(
        &mut self,
        tx_op: TxOp,
        iovs: &[RmaIov],
        post: impl FnOnce(&mut Self, TxOp) -> Result<PostResult<B>, Failed<B>>,
    ) -> Result<PostResult<B>, Failed<B>> {
        let id = self.domain.ops.insert_rma_iovs(iovs);
        let rma_iov_id = Some(id);
        let posted = post(
            self,
            TxOp {
                rma_iov_id,
                ..tx_op
            },
        );
        if posted.is_err() {
            // No operation owns the ranges.
            self.domain.ops.remove_rma_iovs(id);
        }
        posted
    }

    /// Executes an atomic operation inline, if no queued operation precedes it and the transport
    /// can execute it now.
    pub(crate) fn try_atomic(
        &mut self,
        ep: EpId,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        let len = tx_op.remote.map_or(0, |remote| remote.len);
        self.try_inline(
            ep,
            tx_op,
            len,
            |_| Ok(()),
            |transport, ctx| transport.try_atomic(ctx, tx_op, operands, result),
        )
    }
}

/// Checks an atomic operation before it is posted: the operation and data type, and the length in
/// bytes.
///
/// # Errors
/// [`Error::NotSupported`], [`Error::TooLong`].
pub fn check_atomic(atomic: AtomicSpec, len: usize) -> Result<()> {
    atomic.check()?;
    if len > MAX_ATOMIC_BYTES {
        return Err(Error::TooLong {
            what: "atomic operand",
            len,
            limit: MAX_ATOMIC_BYTES,
        });
    }
    Ok(())
}
