//! A connection by way of a ring: what comes while nobody looks, and what is sent as there is room.
//!
//! While somebody looks, a connection is read by calls that do not block, which is the faster way.
//! Before everybody sleeps it *listens*: the kernel receives into memory of the ring, and goes on
//! doing so until it is stopped. It is never read in both ways at once, or bytes would change
//! places: a connection that is to be read by calls again is stopped first, and waits for the last
//! completion.
//!
//! What there is no room for is handed to the ring: bytes that were collected, and all that is left
//! of a long message, which stays in its operation's buffer. Until that send has ended nothing else
//! is sent, and the operation does not end.
//!
//! A long message may also be given to the ring with its buffer, for the network to take it from
//! there (`zero_copy`).
#![allow(unsafe_code)] // bytes that the kernel sends from where they lie

use std::collections::VecDeque;

use fabric_core::buf::Payload;
use fabric_core::provider::Host;
use rustix::io::Errno;

use super::super::socket::Received;
use super::sending::PARTS;
use super::zero_copy::{ZeroCopy, is_refusal};
use super::{Link, Sending};
use crate::uring::{Completion, Lease, Sent, SharedRing, Ticket, What};

/// Passes without news after which a connection that listens is read by calls again: somebody is
/// looking.
const LOOKS: u32 = 32;

/// What a connection has in the ring.
pub(super) struct Lane {
    pub(super) ring: SharedRing,
    /// Whom completions are for.
    pub(super) owner: u64,
    receiving: Receiving,
    /// What came and was not read.
    arrived: VecDeque<Lease>,
    /// Receiving has failed, and the socket does not say so again.
    is_broken: bool,
    pub(super) sending: InRing,
    pub(super) zero_copy: ZeroCopy,
}

/// What the ring is sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InRing {
    Nothing,
    /// What was collected, and what is left of the first operation, where it lies.
    Borrowed(Ticket),
    /// What was collected, and all of the first operation, so many bytes, whose buffer it has.
    Entrusted(Ticket, usize),
    /// Nothing any more, but it has the buffer of the first operation, and not all of that has
    /// left.
    Rest(Ticket),
}

impl InRing {
    fn ticket(self) -> Option<Ticket> {
        match self {
            Self::Borrowed(ticket) | Self::Entrusted(ticket, _) => Some(ticket),
            Self::Nothing | Self::Rest(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    /// By calls.
    No,
    /// By the ring.
    Yes(Ticket),
    /// By the ring, for the last time.
    Stopping(Ticket),
}

impl Lane {
    pub(super) fn new(ring: SharedRing, owner: u64) -> Self {
        let (arrived, zero_copy) = (VecDeque::new(), ZeroCopy::default());
        let (receiving, sending) = (Receiving::No, InRing::Nothing);
        Self {
            ring,
            owner,
            receiving,
            arrived,
            is_broken: false,
            sending,
            zero_copy,
        }
    }

    /// What the ring has received; nothing where calls are to be made.
    fn read(&mut self, into: &mut [u8]) -> Option<Received> {
        let mut count = 0;
        while count < into.len()
            && let Some(lease) = self.arrived.front_mut()
        {
            let part = lease.len().min(into.len() - count);
            into[count..count + part].copy_from_slice(&lease[..part]);
            lease.advance(part);
            count += part;
            if lease.is_empty() {
                self.arrived.pop_front();
            }
        }
        match self.receiving {
            _ if count > 0 => Some(Received::Bytes(count)),
            Receiving::No if self.is_broken => Some(Received::Broken),
            Receiving::No => None,
            _ => Some(Received::Nothing),
        }
    }

    /// Receives no more by the ring, once that has ended; what has come waits in memory of its own.
    fn stop(&mut self) {
        if let Receiving::Yes(ticket) = self.receiving {
            self.ring.lock().cancel(ticket);
            self.receiving = Receiving::Stopping(ticket);
        }
    }

    /// Likewise at once: what has come is there to be read.
    fn stop_now(&mut self) {
        if let Receiving::Yes(ticket) | Receiving::Stopping(ticket) = self.receiving {
            self.arrived.extend(self.ring.lock().take_rest(ticket));
            self.receiving = Receiving::No;
        }
    }

    /// What came does not keep memory that others need.
    fn detach(&mut self) {
        for lease in std::mem::take(&mut self.arrived) {
            self.arrived.push_back(lease.detached());
        }
    }
}

impl Link {
    pub(super) fn is_in_ring(&self) -> bool {
        self.lane.is_some()
    }

    /// Whether the ring is sending.
    pub(crate) fn is_sending(&self) -> bool {
        self.lane
            .as_ref()
            .is_some_and(|lane| lane.sending != InRing::Nothing)
    }

    /// Reads what has come, by whichever way it came.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Received {
        match self.lane.as_mut().and_then(|lane| lane.read(into)) {
            Some(received) => received,
            None => self.socket.recv(into),
        }
    }

    /// Nobody looks from now on: the ring, or epoll, tells of what comes. False when something has
    /// come.
    pub(crate) fn listen(&mut self) -> bool {
        let is_read = self.is_read();
        let Some(lane) = &mut self.lane else {
            return true;
        };
        if !is_read || lane.receiving != Receiving::No {
            return !is_read || lane.arrived.is_empty();
        }
        if lane.is_broken || !lane.arrived.is_empty() {
            return false;
        }
        match lane.ring.lock().receive(self.socket.shared(), lane.owner) {
            Ok(ticket) => lane.receiving = Receiving::Yes(ticket),
            Err(_) => return false,
        }
        true
    }

    /// Somebody has looked, and there was nothing.
    pub(super) fn looked(&mut self) {
        if self.quiet_passes == LOOKS
            && let Some(lane) = &mut self.lane
        {
            lane.stop();
        }
    }

    /// What has come is read by calls from now on, and by what the ring has of it.
    pub(super) fn read_at_once(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.stop_now();
        }
    }

    /// It is not read from for now.
    pub(super) fn rest_from_reading(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.stop();
            lane.detach();
        }
    }

    /// Hands the ring what is pending, and behind it these bytes, of the operation that is first in
    /// the queue.
    pub(super) fn hand_over(&mut self, payload: Payload<'_>) {
        let Some(lane) = &mut self.lane else { return };
        let own = self.outbox.take_pending().into_boxed_slice();
        let mut parts: [&[u8]; PARTS] = [&[]; PARTS];
        let mut count = 0;
        payload.for_each(|_, piece| {
            if let Some(part) = parts.get_mut(count) {
                *part = piece;
                count += 1;
            }
        });
        let mut ring = lane.ring.lock();
        // SAFETY: they are in the buffer of an operation, which stays where it is until the
        // operation is completed, and that is done only by who has called `take_back`, or has heard
        // of the end of the send, before: `drive` does nothing while the ring is sending,
        // `Endpoint::fail_sends` and `into_socket` take back, and an operation that has begun is
        // not cancelled.
        match unsafe { ring.send(self.socket.shared(), lane.owner, own, &parts[..count]) } {
            Ok(ticket) => lane.sending = InRing::Borrowed(ticket),
            Err(own) => {
                drop(ring);
                self.outbox.put_back(&own);
                // The next pass tries again.
                self.is_blocked = false;
            }
        }
    }

    /// Something has come of an operation in the ring.
    pub(crate) fn completed(
        &mut self,
        completion: Completion,
        queue: &mut VecDeque<Sending>,
        host: &mut dyn Host,
    ) {
        let is_held = !self.is_read();
        let Some(lane) = &mut self.lane else { return };
        let ticket = completion.ticket;
        match completion.what {
            What::Sent(sent) if lane.sending.ticket() == Some(ticket) => {
                let was = std::mem::replace(&mut lane.sending, InRing::Nothing);
                let is_all = self.sent(&sent, was, queue);
                self.complete_written(host);
                match was {
                    InRing::Entrusted(..) if is_all => self.first_has_left(queue, host),
                    InRing::Entrusted(..) => self.waits_for_buffer(ticket),
                    _ => {}
                }
            }
            What::Released(released) => self.released(ticket, released.way),
            _ if ![Receiving::Yes(ticket), Receiving::Stopping(ticket)]
                .contains(&lane.receiving) => {}
            What::Bytes(lease) => {
                lane.arrived
                    .push_back(if is_held { lease.detached() } else { lease })
            }
            // The socket says it again to who asks; and what has its time is no connection yet.
            What::End
            | What::Sent(_)
            | What::Timed(_)
            | What::Failed(Errno::CANCELED | Errno::NOBUFS | Errno::INTR) => {}
            What::Failed(_) => lane.is_broken = true,
        }
        if let Some(lane) = &mut self.lane
            && completion.is_last
            && [Receiving::Yes(ticket), Receiving::Stopping(ticket)].contains(&lane.receiving)
        {
            lane.receiving = Receiving::No;
        }
    }

    /// Ends what the ring is sending, and waits for that: the first operation of the queue is this
    /// side's again, unless all of it had left.
    pub(crate) fn take_back(&mut self, queue: &mut VecDeque<Sending>, host: &mut dyn Host) {
        let (was, is_all) = self.retract(queue);
        self.complete_written(host);
        let has_left = match was {
            InRing::Entrusted(..) => is_all,
            InRing::Borrowed(_) => queue
                .front()
                .is_some_and(|first| first.sent == Some(host.payload(first.op).len())),
            InRing::Nothing | InRing::Rest(_) => false,
        };
        if has_left && self.outbox.is_open() {
            self.first_has_left(queue, host);
        }
    }

    /// All of the first operation of the queue has been sent by the ring.
    fn first_has_left(&mut self, queue: &mut VecDeque<Sending>, host: &mut dyn Host) {
        let end = self.outbox.written();
        self.outbox.close();
        if let Some(Sending { op, spec, sent }) = queue.pop_front() {
            self.answered = 0;
            self.has_left((op, spec), sent.unwrap_or(0), end, host);
        }
    }

    /// Likewise, whatever becomes of the operation. Returns what the ring had, and whether it has
    /// sent all that it was given to be kept.
    fn retract(&mut self, queue: &mut VecDeque<Sending>) -> (InRing, bool) {
        let Some(lane) = &mut self.lane else {
            return (InRing::Nothing, false);
        };
        let was = std::mem::replace(&mut lane.sending, InRing::Nothing);
        let sent = was
            .ticket()
            .and_then(|ticket| lane.ring.lock().take_back(ticket));
        let is_all = sent.is_some_and(|sent| self.sent(&sent, was, queue));
        (was, is_all)
    }

    /// The ring has sent, or not. Returns whether it has sent all that it was given to be kept.
    fn sent(&mut self, sent: &Sent, was: InRing, queue: &mut VecDeque<Sending>) -> bool {
        self.is_blocked = false;
        let count = sent.result.unwrap_or(0);
        let own = count.min(sent.own.len());
        self.outbox.put_back(&sent.own[own..]);
        if let Some(Sending {
            sent: Some(sent), ..
        }) = queue.front_mut()
        {
            *sent += count - own;
        }
        let InRing::Entrusted(_, len) = was else {
            self.deafen_unless_mended(sent.result);
            return false;
        };
        match sent.result {
            Err(errno) if is_refusal(errno) => self.renounce_zero_copy(),
            result => self.deafen_unless_mended(result),
        }
        count == sent.own.len() + len
    }

    /// Who has submitted a send may have ended meanwhile, and it with them. Everything else is the
    /// connection's end.
    fn deafen_unless_mended(&mut self, result: Result<usize, Errno>) {
        if !matches!(
            result,
            Ok(_) | Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN)
        ) {
            self.deafen();
        }
    }

    /// Nothing of it is in the ring any more, or will be heard of.
    pub(super) fn leave_ring(&mut self) {
        self.retract(&mut VecDeque::new());
        if let Some(lane) = self.lane.take() {
            let mut ring = lane.ring.lock();
            if let Receiving::Yes(ticket) | Receiving::Stopping(ticket) = lane.receiving {
                ring.abandon(ticket);
                // What is queued goes with what is queued next, if not now.
                let _ = ring.submit();
            }
        }
    }
}
