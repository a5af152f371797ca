//! Accesses to the peer's memory: made here where it is mapped; otherwise the peer is asked for
//! each piece, and answers on the desk.

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
    /// Accesses the peer's memory if it is mapped, the access is short, and the peer can be told of
    /// it.
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
        let Some(window) = self.mapped_regions.get(remote.key) else {
            return Ok(PushOutcome::WouldBlock);
        };
        let at = window.check_access(spec.kind, remote, len)?;
        let tells = window.notifies(spec);
        if tells && !self.ring.fits(MAX_NOTIFICATION_LEN) {
            return Ok(PushOutcome::WouldBlock);
        }
        access(window, at, remote);
        Ok(if tells {
            self.notify_access(spec, len)
        } else {
            PushOutcome::Done
        })
    }

    /// Moves the front operation on, a one-sided one: asks for the memory, or accesses a piece of
    /// it.
    pub(super) fn progress_rma(
        &mut self,
        front: &mut QueuedTx,
        remote: &RmaIov,
        host: &mut dyn EngineContext,
    ) -> Result<PushOutcome> {
        let Some(window) = self.mapped_regions.get(remote.key) else {
            if let Some(heeds) = self.mapped_regions.served_by_owner(remote.key) {
                return self.progress_served_rma(front, (remote, heeds), host);
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
        let start = window.check_access(spec.kind, remote, total)?;
        if front.cursor.is_checking(&spec) {
            front.next_iov(host);
            return Ok(PushOutcome::Done);
        }
        let piece = if remote.atomic.is_some() {
            total
        } else {
            (total - within).min(MAX_ACCESS_PER_PASS)
        };
        let tells = window.notifies(&spec) && within + piece == total;
        if tells && !self.ring.fits(MAX_NOTIFICATION_LEN) {
            return Ok(PushOutcome::WouldBlock);
        }
        match spec.kind {
            OpKind::Write => window.write(start + within, host.payload(op).slice(sent, piece)),
            OpKind::Read => host.write_at(op, sent, &window.range(start + within, piece), 0, piece),
            kind => {
                let mut result = vec![0; if kind.fills_buffer() { total } else { 0 }];
                let operands = host.payload(op).as_contiguous().unwrap_or_default();
                window.execute(start, remote, operands, &mut result);
                host.write_at(op, 0, &&result[..], 0, result.len());
            }
        }
        front.started = true;
        front.sent += piece;
        if within + piece < total {
            return Ok(PushOutcome::Done);
        }
        Ok(self.finish_iov(front, (spec, tells), host))
    }

    /// A place has been accessed; `tells` when the peer is to hear of it.
    fn finish_iov(
        &mut self,
        front: &mut QueuedTx,
        (spec, tells): (TxOp, bool),
        host: &dyn EngineContext,
    ) -> PushOutcome {
        let len = front.bytes_to_notify(&spec);
        front.cursor.bytes_notified += if tells { len } else { 0 };
        front.next_iov(host);
        if tells {
            self.notify_access(&spec, len)
        } else {
            PushOutcome::Done
        }
    }

    /// Tells the peer of an access, for which the ring has room.
    pub(super) fn notify_access(&mut self, spec: &TxOp, len: usize) -> PushOutcome {
        let read = if spec.kind.fills_buffer() {
            RMA_READ
        } else {
            0
        };
        let key = spec.remote.map_or(0, |remote| remote.key).to_le_bytes();
        self.push_record(
            RMA_NOTIFICATION,
            record_flags(spec) | read,
            spec,
            len as u64,
            Payload::Contiguous(&key),
        )
    }

    /// Moves the front operation on, to which the peer has to help; `heeds` when it wants to hear
    /// of it as well.
    fn progress_served_rma(
        &mut self,
        front: &mut QueuedTx,
        (remote, heeds): (&RmaIov, bool),
        host: &mut dyn EngineContext,
    ) -> Result<PushOutcome> {
        let (kind, total) = (front.spec.kind, remote.len);
        // For the record, and for the notice that may follow the answer.
        if self
            .rma_bounce
            .as_ref()
            .is_some_and(RmaBounceBuffer::is_pending)
            || !self.ring.fits(MAX_NOTIFICATION_LEN + REQUEST_LEN)
        {
            return Ok(PushOutcome::WouldBlock);
        }
        let Some((request, answer)) = self
            .rma_bounce
            .as_mut()
            .and_then(RmaBounceBuffer::take_answer)
        else {
            return self.send_rma_request(front, remote, total, host);
        };
        if let Err(error) = answer {
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
        if let Some(desk) = self.rma_bounce.as_ref().filter(|_| kind.fills_buffer()) {
            host.write_at(front.op, front.sent, &desk.answer_bytes(len), 0, len);
        }
        front.sent += len;
        if front.sent - front.cursor.bytes_before < total {
            return self.send_rma_request(front, remote, total, host);
        }
        Ok(self.finish_iov(front, (spec, heeds || spec.data.is_some()), host))
    }

    /// Asks for the next piece. It has moved on when the answer has come.
    fn send_rma_request(
        &mut self,
        front: &mut QueuedTx,
        remote: &RmaIov,
        total: usize,
        host: &mut dyn EngineContext,
    ) -> Result<PushOutcome> {
        let Some(desk) = self.shared_bounce_buffer()? else {
            return Ok(PushOutcome::WouldBlock);
        };
        let (kind, sent, within) = (
            front.spec.kind,
            front.sent,
            front.sent - front.cursor.bytes_before,
        );
        // To nothing, but of that length: so the owner checks the place.
        let most = if front.cursor.is_checking(&front.spec) {
            0
        } else {
            MAX_REQUEST_LEN
        };
        let len = if remote.atomic.is_some() {
            total
        } else {
            (total - within).min(most)
        };
        let piece = RmaIov {
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
        let request = desk.prepare(kind, piece, total - within, bytes);
        let pushed = self.push_record(
            RMA_REQUEST,
            0,
            &front.spec,
            0,
            Payload::Contiguous(&request.to_bytes()),
        );
        if pushed == PushOutcome::Done {
            front.started = true;
            if let Some(desk) = &mut self.rma_bounce {
                desk.on_request_sent(request);
            }
        }
        Ok(pushed)
    }

    /// The desk, which the peer is given the first time; nothing when its socket has no room for it
    /// now.
    fn shared_bounce_buffer(&mut self) -> Result<Option<&RmaBounceBuffer>> {
        if self.rma_bounce.is_none() {
            let desk = RmaBounceBuffer::new()?;
            let memory = desk.memory();
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
                // A peer that has ended is noticed otherwise.
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    self.rma_bounce = Some(desk)
                }
                Err(_) => return Ok(None),
            }
        }
        Ok(self.rma_bounce.as_ref())
    }
}

/// What it means that a key is unknown in the middle of an operation.
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
