//! Messages that are given to the ring with their buffers, for the network to take them from there.
//!
//! The kernel looks at such a buffer until the peer's machine has acknowledged all of it, whatever
//! becomes of the operation and of the connection. So the ring has it, and gives it back when the
//! kernel says that it looks no more ([`What::Released`](crate::uring::What)); the host keeps the
//! end of the operation until then ([`Host::entrust`](fabric_core::provider::Host::entrust)). What
//! follows in the queue need not wait for that, unless not all of the message has left: the rest is
//! sent as usual, from a buffer that must be back.
//!
//! It pays where the hardware reads the memory of programs. Where the kernel says that it has
//! copied, or that it cannot do this, the connection goes on without.

use fabric_core::buf::Payload;
use fabric_core::provider::{Host, OpKey};
use rustix::io::Errno;

use super::Link;
use super::lane::InRing;
use super::sending::SHORT;
use crate::uring::{Ticket, Way};

/// What a connection gives away, and has given.
#[derive(Debug, Default)]
pub(super) struct ZeroCopy {
    /// Messages from this length on.
    from: Option<usize>,
    /// Also where the kernel copies all the same.
    insists: bool,
    /// Sends whose buffers the ring has.
    tickets: Vec<Ticket>,
}

/// Whether the kernel does not know it, or not for this socket, or has no memory to account for it,
/// or cannot hold on to memory of this kind.
pub(super) fn is_refusal(errno: Errno) -> bool {
    [
        Errno::INVAL,
        Errno::OPNOTSUPP,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::FAULT,
    ]
    .contains(&errno)
}

impl Link {
    /// Messages from this length on are taken from where they lie, where the ring can do that.
    pub(crate) fn zero_copy_from(&mut self, from: Option<usize>, insists: bool) {
        if let Some(lane) = &mut self.lane
            && let Some(from) = from
            && lane.ring.lock().has_zero_copy()
        {
            (lane.zero_copy.from, lane.zero_copy.insists) = (Some(from.max(SHORT)), insists);
        }
    }

    pub(super) fn renounce_zero_copy(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.zero_copy.from = None;
        }
    }

    /// Whether this message is to be given to the ring with its buffer. All of it goes into one
    /// send.
    pub(super) fn is_zero_copy(&self, payload: Payload<'_>) -> bool {
        let from = self.lane.as_ref().and_then(|lane| lane.zero_copy.from);
        from.is_some_and(|from| payload.len() >= from) && {
            let mut parts = 1;
            payload.for_each(|_, part| parts += usize::from(!part.is_empty()));
            parts <= crate::uring::PARTS
                && payload.len() <= crate::uring::LONGEST - self.outbox.pending().len()
        }
    }

    /// Gives it to the ring, behind what is pending. False when it has to be sent otherwise.
    pub(super) fn entrust(&mut self, op: OpKey, len: usize, host: &mut dyn Host) -> bool {
        let Some(lane) = &mut self.lane else {
            return false;
        };
        let Some(buf) = host.entrust(op) else {
            return false;
        };
        let own = self.outbox.take_pending().into_boxed_slice();
        let begun =
            lane.ring
                .lock()
                .send_zero_copy(self.socket.shared(), lane.owner, own, (op, buf));
        match begun {
            Ok(ticket) => {
                lane.sending = InRing::Entrusted(ticket, len);
                lane.zero_copy.tickets.push(ticket);
                true
            }
            Err((own, buf)) => {
                host.restore(op, buf);
                self.outbox.put_back(&own);
                false
            }
        }
    }

    /// The ring has not sent all of the first operation of the queue, and has its buffer still.
    pub(super) fn waits_for_buffer(&mut self, ticket: Ticket) {
        if let Some(lane) = &mut self.lane {
            lane.sending = InRing::Rest(ticket);
        }
    }

    /// The operation has its buffer again, which was sent in this way.
    pub(super) fn released(&mut self, ticket: Ticket, way: Option<Way>) {
        let Some(lane) = &mut self.lane else { return };
        let zero_copy = &mut lane.zero_copy;
        let Some(at) = zero_copy.tickets.iter().position(|given| *given == ticket) else {
            return;
        };
        zero_copy.tickets.swap_remove(at);
        if way == Some(Way::Copied) && !zero_copy.insists {
            zero_copy.from = None;
        }
        if lane.sending == InRing::Rest(ticket) {
            lane.sending = InRing::Nothing;
        }
    }
}
