//! Messages that stay where they are: the peer gets to know where that is.

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::{Outcome, Transfer};
use fabric_core::flags::Access;
use fabric_core::matching::Receipt;
use fabric_core::mr::Memory;
use fabric_core::provider::{Host, SendSpec};
use rustix::io::Errno;

use super::super::handshake::{self, Grant, Word};
use super::super::loans::Offered;
use super::super::record::{FETCH, LOAN, PLACE_BYTES, total_word};
use super::wires::{NOTICE_BYTES, Wires, flags_of};
use super::{Push, Queued};

impl Wires {
    /// Lends a message to the peer: gives it the memory, if it has not got it before, and tells it
    /// where the message is. Nothing when it has to be copied: the peer has too much already, or
    /// the memory is not ours.
    #[cold]
    pub(super) fn lend(
        &mut self,
        spec: &SendSpec,
        key: u64,
        payload: &[u8],
        receipt: Option<Receipt>,
    ) -> Option<Push> {
        if !self.ring.fits(NOTICE_BYTES + PLACE_BYTES) {
            return Some(Push::NoRoom);
        }
        let prepared = self.borrowed.prepare(key, payload, self.ring.memory())?;
        if !self.borrowed.was_given(key) {
            for surplus in self.borrowed.surplus() {
                if !handshake::try_say(&self.socket, Word::Forget(surplus)) {
                    return None;
                }
                self.borrowed.forget(surplus);
            }
            let memory = prepared.chunk.memory();
            let (size, access) = (Memory::len(memory), Access::REMOTE_READ);
            let grant = Grant {
                key,
                len: size,
                access,
                base: 0,
                heeds: false,
                memory: memory.fd(),
            };
            match handshake::send_grant(&self.socket, &grant) {
                // A peer that has ended is noticed otherwise.
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    self.borrowed.give(key)
                }
                Err(_) => return None,
            }
        }
        let place = place(key, prepared.slot);
        let total = total_word(payload.len(), receipt);
        let pushed = self.record(LOAN, flags_of(spec), spec, total, Payload::Whole(&place));
        if pushed == Push::Done {
            self.borrowed.lend(prepared);
            self.done.lent += 1;
        }
        Some(pushed)
    }

    /// Lets the peer fetch a message, and tells it where it is. Nothing when it has too much to
    /// fetch already.
    #[cold]
    pub(super) fn offer(
        &mut self,
        front: &Queued,
        payload: &[u8],
        receipt: Option<Receipt>,
    ) -> Option<Push> {
        if !self.ring.fits(NOTICE_BYTES + PLACE_BYTES) {
            return Some(Push::NoRoom);
        }
        let slot = self.borrowed.vacant(self.ring.memory())?;
        let place = place(payload.as_ptr().expose_provenance() as u64, slot);
        let (spec, len) = (&front.spec, payload.len());
        let pushed = self.record(
            FETCH,
            flags_of(spec),
            spec,
            total_word(len, receipt),
            Payload::Whole(&place),
        );
        if pushed == Push::Done {
            let receipt = receipt.map(|receipt| receipt.number);
            self.borrowed.offer(
                slot,
                Offered {
                    op: front.op,
                    len,
                    tag: spec.tag,
                    receipt,
                },
            );
        }
        Some(pushed)
    }

    /// Ends what the peer has fetched. Returns whether there was anything.
    pub(super) fn end_fetched(&mut self, host: &mut dyn Host) -> bool {
        self.borrowed.collect(self.ring.memory());
        let mut any = false;
        while let Some(Offered {
            op,
            len,
            tag,
            receipt,
        }) = self.borrowed.next_fetched()
        {
            any = true;
            self.done.single_copy.add(len);
            match receipt {
                None => host.complete(op, Outcome::ok(Transfer::sent(len, tag))),
                Some(number) => self.sent_with(number, host),
            }
        }
        any
    }

    /// The connection ends: what the peer has not fetched is withdrawn before its buffers are given
    /// back.
    pub(super) fn end_offered(&mut self, host: &mut dyn Host, error: &Error) {
        if !self.borrowed.is_fetching() {
            return;
        }
        // What a forked child has of it is its own; the peer goes on with the parent's.
        if self.socket.is_ours() {
            self.ring.memory().withdraw();
            self.end_fetched(host);
        }
        for Offered { op, tag, .. } in self.borrowed.unfetched() {
            host.complete(op, Outcome::cut(Transfer::sent(0, tag), error.clone()));
        }
    }
}

/// Where a message lies, as a record says it.
fn place(at: u64, slot: usize) -> [u8; PLACE_BYTES] {
    let mut place = [0; PLACE_BYTES];
    place[..8].copy_from_slice(&at.to_le_bytes());
    place[8..].copy_from_slice(&(slot as u64).to_le_bytes());
    place
}
