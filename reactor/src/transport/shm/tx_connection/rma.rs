//! Accesses to the peer's memory: reads, writes and atomic operations.
//!
//! There are three cases:
//!
//! * The region is mapped: this process executes the access, in pieces of bounded length.
//! * The owner serves the region: this process sends an RMA request for each piece, and the owner
//!   executes the request through the bounce buffer (`rma_bounce`).
//! * The region is neither: this process sends a map request, and the access waits in the queue for
//!   the response, which leads to one of the other cases or to an error.
//!
//! After the last piece of a range the peer is notified, if the operation has completion data or
//! the owner requests RMA events.

use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::{AccessError, RegionBytes};
use fabric_core::transport::{EndpointContext, EngineContext, RmaIov, TxOp};
use fabric_core::{Error, Result};
use rustix::io::Errno;

use super::super::control::{self, ControlMessage, MemoryGrant};
use super::super::mapped_regions::{MappedRegion, ServedRegion};
use super::super::record::{RMA_NOTIFICATION, RMA_READ, RMA_REQUEST};
use super::super::rma_bounce::{MAX_REQUEST_LEN, RmaBounceBuffer};
use super::channel::{
    MAX_ACCESS_LEN, MAX_NOTIFICATION_LEN, MAX_REQUEST_AND_NOTIFICATION_LEN, TxChannel, record_flags,
};
use super::{PushOutcome, QueuedTx, TxStage};

/// Reason in [`Error::Key`] of an operation that has started when the peer revokes the key.
const REVOKED: &str = "was revoked during the operation";

impl TxChannel {
    /// Executes an access of `len` bytes now, without a queued operation: `access` gets the region,
    /// the offset in the region, and the remote range. Returns `WouldBlock`, so that the caller
    /// queues the operation, if the region is not mapped, the access is longer than
    /// [`MAX_ACCESS_LEN`], or the peer must be notified and the ring has no room for the
    /// notification or `may_notify` is false.
    ///
    /// # Errors
    /// Errors of the access check.
    #[inline]
    pub(super) fn try_access(
        &mut self,
        tx_op: &TxOp,
        len: usize,
        may_notify: bool,
        access: impl FnOnce(&MappedRegion, usize, &RmaIov),
    ) -> Result<PushOutcome> {
        let Some(remote) = &tx_op.remote else {
            return Ok(PushOutcome::WouldBlock);
        };
        if len > MAX_ACCESS_LEN {
            return Ok(PushOutcome::WouldBlock);
        }
        let Some(region) = self.mapped_regions.get(remote.key) else {
            return Ok(PushOutcome::WouldBlock);
        };
        let region_offset = region.check_access(tx_op.kind, remote, len)?;
        let needs_notification = region.needs_notification(tx_op);
        if needs_notification && !(may_notify && self.ring.fits(MAX_NOTIFICATION_LEN)) {
            return Ok(PushOutcome::WouldBlock);
        }
        access(region, region_offset, remote);
        Ok(if needs_notification {
            self.notify_access(tx_op, len)
        } else {
            PushOutcome::Pushed
        })
    }

    /// Makes progress on the operation at the front of the queue, which accesses `remote`: requests
    /// the mapping, checks the range, or accesses one piece.
    ///
    /// # Errors
    /// Errors of the access check, and the denial of the map request.
    pub(super) fn progress_rma(
        &mut self,
        front: &mut QueuedTx,
        remote: &RmaIov,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<PushOutcome> {
        let Some(region) = self.mapped_regions.get(remote.key) else {
            if let Some(region) = self.mapped_regions.served_region(remote.key) {
                return self.progress_served_rma(front, remote, region, ctx);
            }
            return self.request_mapping(front, remote.key);
        };
        let op = front.op;
        let tx_op = front.op_for_range(ctx);
        let (range_len, done) = (remote.len, front.sent);
        let done_in_range = done - front.cursor.bytes_before;

        // Check the range.
        let region_offset = region.check_access(tx_op.kind, remote, range_len)?;
        if front.cursor.is_checking_ranges(&tx_op) {
            front.advance_or_finish(ctx);
            return Ok(PushOutcome::Pushed);
        }

        // Access one piece; an atomic operation is one piece. The last piece needs room for the
        // notification.
        let piece_len = if remote.atomic.is_some() {
            range_len
        } else {
            (range_len - done_in_range).min(MAX_ACCESS_LEN)
        };
        let is_last_piece = done_in_range + piece_len == range_len;
        let needs_notification = region.needs_notification(&tx_op);
        if is_last_piece && needs_notification && !self.ring.fits(MAX_NOTIFICATION_LEN) {
            return Ok(PushOutcome::WouldBlock);
        }
        match tx_op.kind {
            OpKind::Write => region.write(
                region_offset + done_in_range,
                ctx.payload(op).slice(done, piece_len),
            ),
            OpKind::Read => ctx.write_at(
                op,
                done,
                &region.range(region_offset + done_in_range, piece_len),
                0,
                piece_len,
            ),
            kind => {
                let mut result = vec![0; if kind.fills_buffer() { range_len } else { 0 }];
                let operands = ctx.payload(op).as_contiguous().unwrap_or_default();
                region.execute(region_offset, remote, operands, &mut result);
                ctx.write_at(op, 0, &&result[..], 0, result.len());
            }
        }
        front.stage = TxStage::Accessed;
        front.sent += piece_len;
        if !is_last_piece {
            return Ok(PushOutcome::Pushed);
        }
        Ok(self.finish_range(front, &tx_op, needs_notification, ctx))
    }

    /// Sends a map request for this key, unless its response is pending. The operation waits.
    ///
    /// # Errors
    /// [`Error::Key`] if the peer has denied the request, or has revoked the key since the
    /// operation started.
    fn request_mapping(&mut self, front: &QueuedTx, key: u64) -> Result<PushOutcome> {
        if front.is_started() && !front.cursor.is_checking_ranges(&front.tx_op) {
            return Err(Error::Key { key, why: REVOKED });
        }
        if self.mapped_regions.needs_map_request(key)?
            && control::try_send_control(&self.socket, ControlMessage::MapMr(key))
        {
            self.mapped_regions.on_map_request_sent(key);
        }
        Ok(PushOutcome::WouldBlock)
    }

    /// Finishes a range after its last piece, and notifies the peer if `needs_notification`; the
    /// ring must have room for the notification.
    fn finish_range(
        &mut self,
        front: &mut QueuedTx,
        tx_op: &TxOp,
        needs_notification: bool,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> PushOutcome {
        let len = front.bytes_to_notify(tx_op);
        front.cursor.bytes_notified += if needs_notification { len } else { 0 };
        front.advance_or_finish(ctx);
        if needs_notification {
            self.notify_access(tx_op, len)
        } else {
            PushOutcome::Pushed
        }
    }

    /// Notifies the peer of an access of `len` bytes; the ring must have room for the notification.
    pub(super) fn notify_access(&mut self, tx_op: &TxOp, len: usize) -> PushOutcome {
        let read_flag = if tx_op.kind.fills_buffer() {
            RMA_READ
        } else {
            0
        };
        let key = tx_op.remote.map_or(0, |remote| remote.key).to_le_bytes();
        self.push_record(
            RMA_NOTIFICATION,
            record_flags(tx_op) | read_flag,
            tx_op,
            len as u64,
            Payload::Contiguous(&key),
        )
    }

    /// Makes progress on the operation at the front of the queue, which accesses a region that its
    /// owner serves: handles the response to the last RMA request, and sends the next request.
    fn progress_served_rma(
        &mut self,
        front: &mut QueuedTx,
        remote: &RmaIov,
        region: ServedRegion,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<PushOutcome> {
        if self
            .rma_bounce
            .as_ref()
            .is_some_and(RmaBounceBuffer::is_pending)
            || !self.ring.fits(MAX_REQUEST_AND_NOTIFICATION_LEN)
        {
            return Ok(PushOutcome::WouldBlock);
        }
        let Some((request, response)) = self
            .rma_bounce
            .as_mut()
            .and_then(RmaBounceBuffer::take_response)
        else {
            return self.send_rma_request(front, remote, ctx);
        };
        if let Err(error) = response {
            if error == AccessError::UnknownKey {
                let key = remote.key;
                self.mapped_regions.remove_served_region(key);
                if front.sent > 0 {
                    return Err(Error::Key { key, why: REVOKED });
                }
            }
            return Err(error.to_error(request.kind, &request.remote, request.remaining));
        }
        let tx_op = front.op_for_range(ctx);
        if front.cursor.is_checking_ranges(&tx_op) {
            front.advance_or_finish(ctx);
            return Ok(PushOutcome::Pushed);
        }
        let len = request.remote.len;
        if let Some(bounce_buffer) = &self.rma_bounce
            && tx_op.kind.fills_buffer()
        {
            ctx.write_at(
                front.op,
                front.sent,
                &bounce_buffer.response_bytes(len),
                0,
                len,
            );
        }
        front.sent += len;
        if front.sent - front.cursor.bytes_before < remote.len {
            return self.send_rma_request(front, remote, ctx);
        }
        let needs_notification = region.rma_events || tx_op.data.is_some();
        Ok(self.finish_range(front, &tx_op, needs_notification, ctx))
    }

    /// Sends an RMA request for the next piece. The operation progresses when the response has
    /// arrived.
    fn send_rma_request(
        &mut self,
        front: &mut QueuedTx,
        remote: &RmaIov,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<PushOutcome> {
        let Some(bounce_buffer) = self.granted_bounce_buffer()? else {
            return Ok(PushOutcome::WouldBlock);
        };
        let (kind, done) = (front.tx_op.kind, front.sent);
        let done_in_range = done - front.cursor.bytes_before;
        // A request of length 0 makes the owner check the range without an access.
        let max_len = if front.cursor.is_checking_ranges(&front.tx_op) {
            0
        } else {
            MAX_REQUEST_LEN
        };
        let remaining = remote.len - done_in_range;
        let len = if remote.atomic.is_some() {
            remote.len
        } else {
            remaining.min(max_len)
        };
        let piece = RmaIov {
            offset: remote.offset.saturating_add(done_in_range as u64),
            len,
            ..*remote
        };
        let payload = ctx.payload(front.op);
        let bytes = if kind == OpKind::Write {
            payload.slice(done, len)
        } else {
            payload
        };
        let request = bounce_buffer.prepare(kind, piece, remaining, bytes);
        let pushed = self.push_record(
            RMA_REQUEST,
            0,
            &front.tx_op,
            0,
            Payload::Contiguous(&request.to_bytes()),
        );
        if pushed == PushOutcome::Pushed {
            front.stage = TxStage::Accessed;
            if let Some(bounce_buffer) = &mut self.rma_bounce {
                bounce_buffer.on_request_sent(request);
            }
        }
        Ok(pushed)
    }

    /// Returns the bounce buffer, and grants it to the peer at the first call. `None` if the grant
    /// cannot be sent now: the socket has no room, or too many descriptors are in flight.
    fn granted_bounce_buffer(&mut self) -> Result<Option<&RmaBounceBuffer>> {
        if self.rma_bounce.is_none() {
            let bounce_buffer = RmaBounceBuffer::new()?;
            let memory = bounce_buffer.memory();
            let grant = MemoryGrant {
                key: 0,
                len: memory.len(),
                access: Access::REMOTE_READ | Access::REMOTE_WRITE,
                base: 0,
                rma_events: false,
                memory: memory.fd(),
                control_page: None,
            };
            match control::send_grant(&self.socket, &grant) {
                // After these errors the next read of the socket reports the end of the peer.
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    self.rma_bounce = Some(bounce_buffer)
                }
                Err(_) => return Ok(None),
            }
        }
        Ok(self.rma_bounce.as_ref())
    }
}
