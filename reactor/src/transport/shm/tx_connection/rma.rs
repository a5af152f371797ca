//! Accesses to the peer's memory: executed here where it is mapped; otherwise the peer is sent a
//! request for each chunk and responds in the bounce buffer.

use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::RegionMemory;
use fabric_core::transport::{EngineContext, RmaIov, TxOp};
use fabric_core::{Error, Result};
use rustix::io::Errno;

use super::super::control::{self, ControlMessage, MemoryGrant};
use super::super::mapped_regions::MappedRegion;
use super::super::record::{RMA_NOTIFICATION, RMA_READ, RMA_REQUEST};
use super::super::rma_bounce::{MAX_REQUEST_LEN, REQUEST_LEN, RmaBounceBuffer};
use super::channel::{MAX_ACCESS_PER_PASS, MAX_NOTIFICATION_LEN, TxChannel, record_flags};
use super::{PushOutcome, QueuedTx};

impl TxChannel {
    /// Accesses the peer's memory now if it is mapped, the access is short, and a notification, if
    /// needed, fits in the ring.
    #[inline]
    pub(super) fn try_access(
        &mut self,
        spec: &TxOp,
        len: usize,
        access: impl FnOnce(&MappedRegion, usize, &RmaIov),
    ) -> Result<PushOutcome> {
        let Some(remote) = &spec.remote else {
            return Ok(PushOutcome::WouldBlock);
        };
        if len > MAX_ACCESS_PER_PASS {
            return Ok(PushOutcome::WouldBlock);
        }
        let Some(region) = self.mapped_regions.get(remote.key) else {
            return Ok(PushOutcome::WouldBlock);
        };
        let at = region.check_access(spec.kind, remote, len)?;
        let notifies = region.notifies(spec);
        if notifies && !self.ring.fits(MAX_NOTIFICATION_LEN) {
            return Ok(PushOutcome::WouldBlock);
        }
        access(region, at, remote);
        Ok(if notifies {
            self.notify_access(spec, len)
        } else {
            PushOutcome::Done
        })
    }

    /// Makes progress on the front operation, a one-sided one: requests the mapping, or accesses a
    /// chunk.
    pub(super) fn progress_rma(
        &mut self,
        front: &mut QueuedTx,
        remote: &RmaIov,
        host: &mut dyn EngineContext,
    ) -> Result<PushOutcome> {
        let Some(region) = self.mapped_regions.get(remote.key) else {
            if let Some(rma_events) = self.mapped_regions.served_by_owner(remote.key) {
                return self.progress_served_rma(front, (remote, rma_events), host);
            }
            if front.started && !front.cursor.is_checking(&front.spec) {
                return Err(Error::Key {
                    key: remote.key,
                    why: "was closed meanwhile",
                });
            }
            if self.mapped_regions.needs_query(remote.key)?
                && control::try_send_control(&self.socket, ControlMessage::MapMr(remote.key))
            {
                self.mapped_regions.on_query_sent(remote.key);
            }
            return Ok(PushOutcome::WouldBlock);
        };
        let (op, spec, sent) = (front.op, front.notification(host), front.sent);
        let (total, within) = (remote.len, sent - front.cursor.bytes_before);
        let start = region.check_access(spec.kind, remote, total)?;
        if front.cursor.is_checking(&spec) {
            front.next_iov(host);
            return Ok(PushOutcome::Done);
        }
        let chunk_len = if remote.atomic.is_some() {
            total
        } else {
            (total - within).min(MAX_ACCESS_PER_PASS)
        };
        let notifies = region.notifies(&spec) && within + chunk_len == total;
        if notifies && !self.ring.fits(MAX_NOTIFICATION_LEN) {
            return Ok(PushOutcome::WouldBlock);
        }
        match spec.kind {
            OpKind::Write => region.write(start + within, host.payload(op).slice(sent, chunk_len)),
            OpKind::Read => host.write_at(
                op,
                sent,
                &region.range(start + within, chunk_len),
                0,
                chunk_len,
            ),
            kind => {
                let mut result = vec![0; if kind.fills_buffer() { total } else { 0 }];
                let operands = host.payload(op).as_contiguous().unwrap_or_default();
                region.execute(start, remote, operands, &mut result);
                host.write_at(op, 0, &&result[..], 0, result.len());
            }
        }
        front.started = true;
        front.sent += chunk_len;
        if within + chunk_len < total {
            return Ok(PushOutcome::Done);
        }
        Ok(self.finish_iov(front, (spec, notifies), host))
    }

    /// Finishes a range after its last chunk; `notifies` if the peer must be notified of it.
    fn finish_iov(
        &mut self,
        front: &mut QueuedTx,
        (spec, notifies): (TxOp, bool),
        host: &dyn EngineContext,
    ) -> PushOutcome {
        let len = front.bytes_to_notify(&spec);
        front.cursor.bytes_notified += if notifies { len } else { 0 };
        front.next_iov(host);
        if notifies {
            self.notify_access(&spec, len)
        } else {
            PushOutcome::Done
        }
    }

    /// Notifies the peer of an access; the ring must have room.
    pub(super) fn notify_access(&mut self, spec: &TxOp, len: usize) -> PushOutcome {
        let read_flag = if spec.kind.fills_buffer() {
            RMA_READ
        } else {
            0
        };
        let key = spec.remote.map_or(0, |remote| remote.key).to_le_bytes();
        self.push_record(
            RMA_NOTIFICATION,
            record_flags(spec) | read_flag,
            spec,
            len as u64,
            Payload::Contiguous(&key),
        )
    }

    /// Makes progress on the front operation, whose region the owner serves; `rma_events` if the
    /// peer's endpoint requests notifications.
    fn progress_served_rma(
        &mut self,
        front: &mut QueuedTx,
        (remote, rma_events): (&RmaIov, bool),
        host: &mut dyn EngineContext,
    ) -> Result<PushOutcome> {
        let (kind, total) = (front.spec.kind, remote.len);
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
            .and_then(RmaBounceBuffer::take_answer)
        else {
            return self.send_rma_request(front, remote, total, host);
        };
        if let Err(error) = response {
            if matches!(
                error,
                Error::Key {
                    why: "is unknown",
                    ..
                }
            ) {
                self.mapped_regions.remove_served(remote.key);
            }
            return Err(if front.sent > 0 {
                unknown_key_as_closed(error)
            } else {
                error
            });
        }
        let spec = front.notification(host);
        if front.cursor.is_checking(&spec) {
            front.next_iov(host);
            return Ok(PushOutcome::Done);
        }
        let len = request.remote.len;
        if let Some(bounce_buffer) = self.rma_bounce.as_ref().filter(|_| kind.fills_buffer()) {
            host.write_at(
                front.op,
                front.sent,
                &bounce_buffer.answer_bytes(len),
                0,
                len,
            );
        }
        front.sent += len;
        if front.sent - front.cursor.bytes_before < total {
            return self.send_rma_request(front, remote, total, host);
        }
        Ok(self.finish_iov(front, (spec, rma_events || spec.data.is_some()), host))
    }

    /// Sends a request for the next chunk. The operation progresses when the response has come.
    fn send_rma_request(
        &mut self,
        front: &mut QueuedTx,
        remote: &RmaIov,
        total: usize,
        host: &mut dyn EngineContext,
    ) -> Result<PushOutcome> {
        let Some(bounce_buffer) = self.shared_bounce_buffer()? else {
            return Ok(PushOutcome::WouldBlock);
        };
        let (kind, sent, within) = (
            front.spec.kind,
            front.sent,
            front.sent - front.cursor.bytes_before,
        );
        // A request of length 0 makes the owner check the range without an access.
        let max_len = if front.cursor.is_checking(&front.spec) {
            0
        } else {
            MAX_REQUEST_LEN
        };
        let len = if remote.atomic.is_some() {
            total
        } else {
            (total - within).min(max_len)
        };
        let range = RmaIov {
            offset: remote.offset.saturating_add(within as u64),
            len,
            ..*remote
        };
        let payload = host.payload(front.op);
        let bytes = if kind == OpKind::Write {
            payload.slice(sent, len)
        } else {
            payload
        };
        let request = bounce_buffer.prepare(kind, range, total - within, bytes);
        let pushed = self.push_record(
            RMA_REQUEST,
            0,
            &front.spec,
            0,
            Payload::Contiguous(&request.to_bytes()),
        );
        if pushed == PushOutcome::Done {
            front.started = true;
            if let Some(bounce_buffer) = &mut self.rma_bounce {
                bounce_buffer.on_request_sent(request);
            }
        }
        Ok(pushed)
    }

    /// Returns the bounce buffer, which is granted to the peer at the first use; `None` if the
    /// peer's socket has no room now.
    fn shared_bounce_buffer(&mut self) -> Result<Option<&RmaBounceBuffer>> {
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
                // The end of the peer is noticed by the socket.
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    self.rma_bounce = Some(bounce_buffer)
                }
                Err(_) => return Ok(None),
            }
        }
        Ok(self.rma_bounce.as_ref())
    }
}

/// Replaces the unknown-key error of an operation that has started: the region was closed
/// meanwhile.
fn unknown_key_as_closed(error: Error) -> Error {
    match error {
        Error::Key {
            key,
            why: "is unknown",
        } => Error::Key {
            key,
            why: "was closed meanwhile",
        },
        error => error,
    }
}
