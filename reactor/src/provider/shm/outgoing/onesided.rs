//! Accesses to the peer's memory: made here where it is mapped; otherwise the peer is asked for
//! each piece, and answers on the desk.

use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::Memory;
use fabric_core::provider::{Host, Remote, SendSpec};
use fabric_core::{Error, Result};
use rustix::io::Errno;

use super::super::desk::{AT_ONCE, Desk, REQUEST_BYTES};
use super::super::handshake::{self, Grant, Word};
use super::super::record::{HAS_READ, NOTICE, REQUEST};
use super::super::windows::Window;
use super::wires::{ACCESS_AT_ONCE, NOTICE_BYTES, Wires, flags_of};
use super::{Push, Queued};

impl Wires {
    /// Accesses the peer's memory if it is mapped, the access is short, and the peer can be told of
    /// it.
    #[inline]
    pub(super) fn access_now(
        &mut self,
        spec: &SendSpec,
        len: usize,
        access: impl FnOnce(&Window, usize, &Remote),
    ) -> Result<Push> {
        let Some(remote) = &spec.remote else {
            return Ok(Push::NoRoom);
        };
        if len > ACCESS_AT_ONCE {
            return Ok(Push::NoRoom);
        }
        let Some(window) = self.windows.get(remote.key) else {
            return Ok(Push::NoRoom);
        };
        let at = window.check(spec.kind, remote, len)?;
        let tells = window.tells(spec);
        if tells && !self.ring.fits(NOTICE_BYTES) {
            return Ok(Push::NoRoom);
        }
        access(window, at, remote);
        Ok(if tells {
            self.tell(spec, len)
        } else {
            Push::Done
        })
    }

    /// Moves the front operation on, a one-sided one: asks for the memory, or accesses a piece of
    /// it.
    pub(super) fn access_on(
        &mut self,
        front: &mut Queued,
        remote: &Remote,
        host: &mut dyn Host,
    ) -> Result<Push> {
        let Some(window) = self.windows.get(remote.key) else {
            if let Some(heeds) = self.windows.serves(remote.key) {
                return self.serve_on(front, (remote, heeds), host);
            }
            if front.begun && !front.stop.is_check(&front.spec) {
                return Err(Error::Key {
                    key: remote.key,
                    why: "was closed meanwhile",
                });
            }
            if self.windows.ask(remote.key)?
                && handshake::try_say(&self.socket, Word::Map(remote.key))
            {
                self.windows.said(remote.key);
            }
            return Ok(Push::NoRoom);
        };
        let (op, spec, sent) = (front.op, front.told_of(host), front.sent);
        let (total, within) = (remote.len, sent - front.stop.before);
        let start = window.check(spec.kind, remote, total)?;
        if front.stop.is_check(&spec) {
            front.next_place(host);
            return Ok(Push::Done);
        }
        let piece = if remote.atomic.is_some() {
            total
        } else {
            (total - within).min(ACCESS_AT_ONCE)
        };
        let tells = window.tells(&spec) && within + piece == total;
        if tells && !self.ring.fits(NOTICE_BYTES) {
            return Ok(Push::NoRoom);
        }
        match spec.kind {
            OpKind::Write => window.write(start + within, host.payload(op).part(sent, piece)),
            OpKind::Read => host.place(op, sent, &window.part(start + within, piece), 0, piece),
            kind => {
                let mut result = vec![0; if kind.fills() { total } else { 0 }];
                let operands = host.payload(op).whole().unwrap_or_default();
                window.execute(start, remote, operands, &mut result);
                host.place(op, 0, &&result[..], 0, result.len());
            }
        }
        front.begun = true;
        front.sent += piece;
        if within + piece < total {
            return Ok(Push::Done);
        }
        Ok(self.at_end(front, (spec, tells), host))
    }

    /// A place has been accessed; `tells` when the peer is to hear of it.
    fn at_end(
        &mut self,
        front: &mut Queued,
        (spec, tells): (SendSpec, bool),
        host: &dyn Host,
    ) -> Push {
        let len = front.to_tell(&spec);
        front.stop.told += if tells { len } else { 0 };
        front.next_place(host);
        if tells {
            self.tell(&spec, len)
        } else {
            Push::Done
        }
    }

    /// Tells the peer of an access, for which the ring has room.
    pub(super) fn tell(&mut self, spec: &SendSpec, len: usize) -> Push {
        let read = if spec.kind.fills() { HAS_READ } else { 0 };
        let key = spec.remote.map_or(0, |remote| remote.key).to_le_bytes();
        self.record(
            NOTICE,
            flags_of(spec) | read,
            spec,
            len as u64,
            Payload::Whole(&key),
        )
    }

    /// Moves the front operation on, to which the peer has to help; `heeds` when it wants to hear
    /// of it as well.
    fn serve_on(
        &mut self,
        front: &mut Queued,
        (remote, heeds): (&Remote, bool),
        host: &mut dyn Host,
    ) -> Result<Push> {
        let (kind, total) = (front.spec.kind, remote.len);
        // For the record, and for the notice that may follow the answer.
        if self.desk.as_ref().is_some_and(Desk::is_waiting)
            || !self.ring.fits(NOTICE_BYTES + REQUEST_BYTES)
        {
            return Ok(Push::NoRoom);
        }
        let Some((request, answer)) = self.desk.as_mut().and_then(Desk::answered) else {
            return self.request(front, remote, total, host);
        };
        if let Err(error) = answer {
            if matches!(
                error,
                Error::Key {
                    why: "is unknown",
                    ..
                }
            ) {
                self.windows.unserved(remote.key);
            }
            return Err(if front.sent > 0 { closed(error) } else { error });
        }
        let spec = front.told_of(host);
        if front.stop.is_check(&spec) {
            front.next_place(host);
            return Ok(Push::Done);
        }
        let len = request.remote.len;
        if let Some(desk) = self.desk.as_ref().filter(|_| kind.fills()) {
            host.place(front.op, front.sent, &desk.bytes(len), 0, len);
        }
        front.sent += len;
        if front.sent - front.stop.before < total {
            return self.request(front, remote, total, host);
        }
        Ok(self.at_end(front, (spec, heeds || spec.data.is_some()), host))
    }

    /// Asks for the next piece. It has moved on when the answer has come.
    fn request(
        &mut self,
        front: &mut Queued,
        remote: &Remote,
        total: usize,
        host: &mut dyn Host,
    ) -> Result<Push> {
        let Some(desk) = self.desk_for_peer()? else {
            return Ok(Push::NoRoom);
        };
        let (kind, sent, within) = (front.spec.kind, front.sent, front.sent - front.stop.before);
        // To nothing, but of that length: so the owner checks the place.
        let most = if front.stop.is_check(&front.spec) {
            0
        } else {
            AT_ONCE
        };
        let len = if remote.atomic.is_some() {
            total
        } else {
            (total - within).min(most)
        };
        let piece = Remote {
            offset: remote.offset.saturating_add(within as u64),
            len,
            ..*remote
        };
        let payload = host.payload(front.op);
        let bytes = if kind == OpKind::Write {
            payload.part(sent, len)
        } else {
            payload
        };
        let request = desk.prepare(kind, piece, total - within, bytes);
        let pushed = self.record(
            REQUEST,
            0,
            &front.spec,
            0,
            Payload::Whole(&request.to_bytes()),
        );
        if pushed == Push::Done {
            front.begun = true;
            if let Some(desk) = &mut self.desk {
                desk.asked(request);
            }
        }
        Ok(pushed)
    }

    /// The desk, which the peer is given the first time; nothing when its socket has no room for it
    /// now.
    fn desk_for_peer(&mut self) -> Result<Option<&Desk>> {
        if self.desk.is_none() {
            let desk = Desk::new()?;
            let memory = desk.memory();
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let grant = Grant {
                key: 0,
                len: memory.len(),
                access,
                base: 0,
                heeds: false,
                memory: memory.fd(),
            };
            match handshake::send_grant(&self.socket, &grant) {
                // A peer that has ended is noticed otherwise.
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    self.desk = Some(desk)
                }
                Err(_) => return Ok(None),
            }
        }
        Ok(self.desk.as_ref())
    }
}

/// What it means that a key is unknown in the middle of an operation.
fn closed(error: Error) -> Error {
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
