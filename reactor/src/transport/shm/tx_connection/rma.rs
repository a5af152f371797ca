//! Accesses to the peer's memory, in one of three ways:
//!
//! * If the region is mapped, this process executes the access, in pieces of bounded length.
//! * If the owner of the region serves it, this process sends a request for each piece, which the
//!   owner executes through the bounce buffer.
//! * Otherwise this process requests the mapping, and the access waits for the answer.

use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::RegionMemory;
use fabric_core::transport::{EngineContext, RmaIov, TxOp};
use fabric_core::{Error, Result};
use rustix::io::Errno;

use super::super::control::{self, ControlMessage, MemoryGrant};
use super::super::mapped_regions::{MappedRegion, ServedRegion};
use super::super::record::{RMA_NOTIFICATION, RMA_READ, RMA_REQUEST};
use super::super::rma_bounce::{MAX_REQUEST_LEN, REQUEST_LEN, RmaBounceBuffer};
use super::channel::{MAX_ACCESS_PER_PASS, MAX_NOTIFICATION_LEN, TxChannel, record_flags};
use super::{PushOutcome, QueuedTx};

impl TxChannel {
    /// Accesses the peer's memory now if it is mapped, the access is short, and a notification, if
    /// needed, fits in the ring. `Pushed`: the access was executed. `WouldBlock`: the caller queues
    /// the operation.
    #[inline]
    pub(super) fn try_access(
        &mut self,
        tx_op: &TxOp,
        len: usize,
        access: impl FnOnce(&MappedRegion, usize, &RmaIov),
    ) -> Result<PushOutcome> {
        let Some(remote) = &tx_op.remote else {
            return Ok(PushOutcome::WouldBlock);
        };
        if len > MAX_ACCESS_PER_PASS {
            return Ok(PushOutcome::WouldBlock);
        }
        let Some(region) = self.mapped_regions.get(remote.key) else {
            return Ok(PushOutcome::WouldBlock);
        };
        let region_offset = region.check_access(tx_op.kind, remote, len)?;
        let needs_notification = region.needs_notification(tx_op);
        if needs_notification && !self.ring.fits(MAX_NOTIFICATION_LEN) {
            return Ok(PushOutcome::WouldBlock);
        }
        access(region, region_offset, remote);
        Ok(if needs_notification {
            self.notify_access(tx_op, len)
        } else {
            PushOutcome::Pushed
        })
    }

    /// Makes progress on the front operation, a one-sided one: requests the mapping, or accesses
    /// one piece.
    pub(super) fn progress_rma(
        &mut self,
        front: &mut QueuedTx,
        remote: &RmaIov,
        engine: &mut impl EngineContext,
    ) -> Result<PushOutcome> {
        let Some(region) = self.mapped_regions.get(remote.key) else {
            if let Some(region) = self.mapped_regions.served_region(remote.key) {
                return self.progress_served_rma(front, (remote, region), engine);
            }
            if front.started && !front.cursor.is_checking_ranges(&front.tx_op) {
                return Err(Error::Key {
                    key: remote.key,
                    why: "was revoked during the operation",
                });
            }
            if self.mapped_regions.needs_map_request(remote.key)?
                && control::try_send_control(&self.socket, ControlMessage::MapMr(remote.key))
            {
                self.mapped_regions.on_map_request_sent(remote.key);
            }
            return Ok(PushOutcome::WouldBlock);
        };
        let op = front.op;
        let tx_op = front.op_for_range(engine);
        let done = front.sent;
        let (range_len, done_in_range) = (remote.len, done - front.cursor.bytes_before);
        let region_offset = region.check_access(tx_op.kind, remote, range_len)?;
        if front.cursor.is_checking_ranges(&tx_op) {
            front.advance_or_finish(engine);
            return Ok(PushOutcome::Pushed);
        }
        let piece_len = if remote.atomic.is_some() {
            range_len
        } else {
            (range_len - done_in_range).min(MAX_ACCESS_PER_PASS)
        };
        let needs_notification =
            region.needs_notification(&tx_op) && done_in_range + piece_len == range_len;
        if needs_notification && !self.ring.fits(MAX_NOTIFICATION_LEN) {
            return Ok(PushOutcome::WouldBlock);
        }
        match tx_op.kind {
            OpKind::Write => region.write(
                region_offset + done_in_range,
                engine.payload(op).slice(done, piece_len),
            ),
            OpKind::Read => engine.write_at(
                op,
                done,
                &region.range(region_offset + done_in_range, piece_len),
                0,
                piece_len,
            ),
            kind => {
                let mut result = vec![0; if kind.fills_buffer() { range_len } else { 0 }];
                let operands = engine.payload(op).as_contiguous().unwrap_or_default();
                region.execute(region_offset, remote, operands, &mut result);
                engine.write_at(op, 0, &&result[..], 0, result.len());
            }
        }
        front.started = true;
        front.sent += piece_len;
        if done_in_range + piece_len < range_len {
            return Ok(PushOutcome::Pushed);
        }
        Ok(self.finish_range(front, (tx_op, needs_notification), engine))
    }

    /// Finishes a range after its last piece, and notifies the peer if `needs_notification`.
    fn finish_range(
        &mut self,
        front: &mut QueuedTx,
        (tx_op, needs_notification): (TxOp, bool),
        engine: &impl EngineContext,
    ) -> PushOutcome {
        let len = front.bytes_to_notify(&tx_op);
        front.cursor.bytes_notified += if needs_notification { len } else { 0 };
        front.advance_or_finish(engine);
        if needs_notification {
            self.notify_access(&tx_op, len)
        } else {
            PushOutcome::Pushed
        }
    }

    /// Notifies the peer of an access; the ring must have room.
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

    /// Makes progress on the front operation, which the owner of the region executes.
    fn progress_served_rma(
        &mut self,
        front: &mut QueuedTx,
        (remote, region): (&RmaIov, ServedRegion),
        engine: &mut impl EngineContext,
    ) -> Result<PushOutcome> {
        let (kind, range_len) = (front.tx_op.kind, remote.len);
        // Room for the request record, and for the notification that may follow the response.
        if self
            .rma_bounce
            .as_ref()
            .is_some_and(RmaBounceBuffer::is_pending)
            || !self.ring.fits(MAX_NOTIFICATION_LEN + REQUEST_LEN)
        {
            return Ok(PushOutcome::WouldBlock);
        }
        let Some((request, response)) = self
            .rma_bounce
            .as_mut()
            .and_then(RmaBounceBuffer::take_response)
        else {
            return self.send_rma_request(front, remote, range_len, engine);
        };
        if let Err(error) = response {
            if matches!(
                error,
                Error::Key {
                    why: "is unknown",
                    ..
                }
            ) {
                self.mapped_regions.remove_served_region(remote.key);
            }
            return Err(if front.sent > 0 {
                unknown_key_as_revoked(error)
            } else {
                error
            });
        }
        let tx_op = front.op_for_range(engine);
        if front.cursor.is_checking_ranges(&tx_op) {
            front.advance_or_finish(engine);
            return Ok(PushOutcome::Pushed);
        }
        let len = request.remote.len;
        if let Some(bounce_buffer) = self.rma_bounce.as_ref().filter(|_| kind.fills_buffer()) {
            engine.write_at(
                front.op,
                front.sent,
                &bounce_buffer.response_bytes(len),
                0,
                len,
            );
        }
        front.sent += len;
        if front.sent - front.cursor.bytes_before < range_len {
            return self.send_rma_request(front, remote, range_len, engine);
        }
        Ok(self.finish_range(
            front,
            (tx_op, region.rma_events || tx_op.data.is_some()),
            engine,
        ))
    }

    /// Sends a request for the next piece. The operation progresses when the response has come.
    fn send_rma_request(
        &mut self,
        front: &mut QueuedTx,
        remote: &RmaIov,
        range_len: usize,
        engine: &mut impl EngineContext,
    ) -> Result<PushOutcome> {
        let Some(bounce_buffer) = self.granted_bounce_buffer()? else {
            return Ok(PushOutcome::WouldBlock);
        };
        let (kind, done, done_in_range) = (
            front.tx_op.kind,
            front.sent,
            front.sent - front.cursor.bytes_before,
        );
        // A request of length 0 makes the owner check the range without an access.
        let max_len = if front.cursor.is_checking_ranges(&front.tx_op) {
            0
        } else {
            MAX_REQUEST_LEN
        };
        let len = if remote.atomic.is_some() {
            range_len
        } else {
            (range_len - done_in_range).min(max_len)
        };
        let range = RmaIov {
            offset: remote.offset.saturating_add(done_in_range as u64),
            len,
            ..*remote
        };
        let payload = engine.payload(front.op);
        let bytes = if kind == OpKind::Write {
            payload.slice(done, len)
        } else {
            payload
        };
        let request = bounce_buffer.prepare(kind, range, range_len - done_in_range, bytes);
        let pushed = self.push_record(
            RMA_REQUEST,
            0,
            &front.tx_op,
            0,
            Payload::Contiguous(&request.to_bytes()),
        );
        if pushed == PushOutcome::Pushed {
            front.started = true;
            if let Some(bounce_buffer) = &mut self.rma_bounce {
                bounce_buffer.on_request_sent(request);
            }
        }
        Ok(pushed)
    }

    /// Returns the bounce buffer, which is granted to the peer at the first use; `None` if the
    /// peer's socket has no room now.
    fn granted_bounce_buffer(&mut self) -> Result<Option<&RmaBounceBuffer>> {
        if self.rma_bounce.is_none() {
            let bounce_buffer = RmaBounceBuffer::new()?;
            let memory = bounce_buffer.memory();
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let grant = MemoryGrant {
                key: 0,
                len: memory.len(),
                access,
                base: 0,
                rma_events: false,
                memory: memory.fd(),
            };
            match control::send_grant(&self.socket, &grant) {
                // The peer has closed; the next read of the socket reports it.
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    self.rma_bounce = Some(bounce_buffer)
                }
                Err(_) => return Ok(None),
            }
        }
        Ok(self.rma_bounce.as_ref())
    }
}

/// Replaces the unknown-key error of an operation that has started: its key was revoked
/// during the operation.
fn unknown_key_as_revoked(error: Error) -> Error {
    match error {
        Error::Key {
            key,
            why: "is unknown",
        } => Error::Key {
            key,
            why: "was revoked during the operation",
        },
        error => error,
    }
}
