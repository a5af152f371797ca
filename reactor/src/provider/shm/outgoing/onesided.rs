//! Accesses to the peer's memory.

use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::provider::{Host, Remote, SendSpec};
use fabric_core::{Error, Result};

use super::super::handshake::{self, Word};
use super::super::record::{HAS_READ, NOTICE};
use super::super::windows::Window;
use super::{ACCESS_AT_ONCE, NOTICE_BYTES, Push, Queued, Wires, flags_of};

impl Wires {
    /// Accesses the peer's memory if it is mapped, the access is short, and the peer can be told of it.
    #[inline]
    pub(super) fn access_now(
        &mut self,
        spec: &SendSpec,
        len: usize,
        access: impl FnOnce(&Window, usize, &Remote),
    ) -> Result<Push> {
        let Some(remote) = &spec.remote else { return Ok(Push::NoRoom) };
        if len > ACCESS_AT_ONCE {
            return Ok(Push::NoRoom);
        }
        let Some(window) = self.windows.get(remote.key) else { return Ok(Push::NoRoom) };
        let at = window.check(spec.kind, remote, len)?;
        let tells = window.tells(spec);
        if tells && !self.ring.fits(NOTICE_BYTES) {
            return Ok(Push::NoRoom);
        }
        access(window, at, remote);
        Ok(if tells { self.tell(spec, len) } else { Push::Done })
    }

    /// Moves the front operation on, a one-sided one: asks for the memory, or accesses a piece of it.
    pub(super) fn access_on(
        &mut self,
        front: &mut Queued,
        remote: &Remote,
        host: &mut dyn Host,
    ) -> Result<Push> {
        let Some(window) = self.windows.get(remote.key) else {
            if front.begun {
                return Err(Error::Key { key: remote.key, why: "was closed meanwhile" });
            }
            if self.windows.ask(remote.key)? && handshake::try_say(&self.socket, Word::Map(remote.key)) {
                self.windows.said(remote.key);
            }
            return Ok(Push::NoRoom);
        };
        let (op, spec, sent) = (front.op, front.spec, front.sent);
        let total = if spec.kind == OpKind::Write { host.payload(op).len() } else { remote.len };
        let start = window.check(spec.kind, remote, total)?;
        let piece = if remote.atomic.is_some() { total } else { (total - sent).min(ACCESS_AT_ONCE) };
        let tells = window.tells(&spec) && sent + piece == total;
        if tells && !self.ring.fits(NOTICE_BYTES) {
            return Ok(Push::NoRoom);
        }
        match spec.kind {
            OpKind::Write => window.write(start + sent, host.payload(op).part(sent, piece)),
            OpKind::Read => host.place(op, sent, &window.part(start + sent, piece), 0, piece),
            kind => {
                let mut result = vec![0; if kind.fills() { total } else { 0 }];
                let operands = host.payload(op).whole().unwrap_or_default();
                window.execute(start, remote, operands, &mut result);
                host.place(op, 0, &&result[..], 0, result.len());
            }
        }
        front.begun = true;
        front.sent += piece;
        front.total = Some(total);
        Ok(if tells { self.tell(&spec, total) } else { Push::Done })
    }

    /// Tells the peer of an access, for which the ring has room.
    pub(super) fn tell(&mut self, spec: &SendSpec, len: usize) -> Push {
        let read = if spec.kind.fills() { HAS_READ } else { 0 };
        self.record(NOTICE, flags_of(spec) | read, spec, len as u64, Payload::Whole(&[]))
    }
}
