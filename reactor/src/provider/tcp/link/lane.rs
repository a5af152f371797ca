//! A connection by way of a ring: what comes while nobody looks, and what is sent as there is room.
//!
//! While somebody looks, a connection is read by calls that do not block, which is the faster way. Before everybody sleeps it
//! *listens*: the kernel receives into memory of the ring, and goes on doing so until it is stopped. It is never read in
//! both ways at once, or bytes would change places: a connection that is to be read by calls again is stopped first, and
//! waits for the last completion.
//!
//! What there is no room for is handed to the ring: bytes that were collected, and all that is left of a long message, which
//! stays in its operation's buffer. Until that send has ended nothing else is sent, and the operation does not end.
#![allow(unsafe_code)] // bytes that the kernel sends from where they lie

use std::collections::VecDeque;

use fabric_core::buf::Payload;
use rustix::io::Errno;

use super::super::socket::Received;
use super::sending::PARTS;
use super::{Link, Sending};
use crate::uring::{Completion, Lease, Sent, SharedRing, Ticket, What};

/// Passes without news after which a connection that listens is read by calls again: somebody is looking.
const LOOKS: u32 = 32;

/// What a connection has in the ring.
pub(super) struct Lane {
    ring: SharedRing,
    /// Whom completions are for.
    owner: u64,
    receiving: Receiving,
    /// What came and was not read.
    arrived: VecDeque<Lease>,
    /// Receiving has failed, and the socket does not say so again.
    is_broken: bool,
    sending: Option<Ticket>,
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
        let arrived = VecDeque::new();
        Self { ring, owner, receiving: Receiving::No, arrived, is_broken: false, sending: None }
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
    pub(super) fn is_sending(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.sending.is_some())
    }

    /// Reads what has come, by whichever way it came.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Received {
        match self.lane.as_mut().and_then(|lane| lane.read(into)) {
            Some(received) => received,
            None => self.socket.recv(into),
        }
    }

    /// Nobody looks from now on: the ring, or epoll, tells of what comes. False when something has come.
    pub(crate) fn listen(&mut self) -> bool {
        let is_read = self.is_read();
        let Some(lane) = &mut self.lane else { return true };
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

    /// It is not read from for now.
    pub(super) fn rest_from_reading(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.stop();
            lane.detach();
        }
    }

    /// Hands the ring what is pending, and behind it these bytes, of the operation that is first in the queue.
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
        // SAFETY: they are in the buffer of an operation, which stays where it is until the operation is completed, and that
        // is done only by who has called `take_back`, or has heard of the end of the send, before: `drive` does nothing while the
        // ring is sending, `Endpoint::fail_sends` and `into_socket` take back, and an operation that has begun is not cancelled.
        match unsafe { ring.send(self.socket.shared(), lane.owner, own, &parts[..count]) } {
            Ok(ticket) => lane.sending = Some(ticket),
            Err(own) => {
                drop(ring);
                self.outbox.put_back(&own);
                // The next pass tries again.
                self.is_blocked = false;
            }
        }
    }

    /// Something has come of an operation in the ring.
    pub(crate) fn completed(&mut self, completion: Completion, queue: &mut VecDeque<Sending>) {
        let is_held = !self.is_read();
        let Some(lane) = &mut self.lane else { return };
        let ticket = completion.ticket;
        match completion.what {
            What::Sent(sent) if lane.sending == Some(ticket) => {
                lane.sending = None;
                self.sent(&sent, queue);
            }
            _ if ![Receiving::Yes(ticket), Receiving::Stopping(ticket)].contains(&lane.receiving) => {}
            What::Bytes(lease) => lane.arrived.push_back(if is_held { lease.detached() } else { lease }),
            // The socket says it again to who asks.
            What::End | What::Sent(_) | What::Failed(Errno::CANCELED | Errno::NOBUFS | Errno::INTR) => {}
            What::Failed(_) => lane.is_broken = true,
        }
        if let Some(lane) = &mut self.lane
            && completion.is_last
            && [Receiving::Yes(ticket), Receiving::Stopping(ticket)].contains(&lane.receiving)
        {
            lane.receiving = Receiving::No;
        }
    }

    /// Ends what the ring is sending, and waits for that: the first operation of the queue is this side's again.
    pub(crate) fn take_back(&mut self, queue: &mut VecDeque<Sending>) {
        let Some(lane) = &mut self.lane else { return };
        if let Some(ticket) = lane.sending.take() {
            let sent = lane.ring.lock().take_back(ticket);
            if let Some(sent) = sent {
                self.sent(&sent, queue);
            }
        }
    }

    /// The ring has sent, or not.
    fn sent(&mut self, sent: &Sent, queue: &mut VecDeque<Sending>) {
        self.is_blocked = false;
        let count = sent.result.unwrap_or(0);
        let own = count.min(sent.own.len());
        self.outbox.put_back(&sent.own[own..]);
        if let Some(Sending { sent: Some(sent), .. }) = queue.front_mut() {
            *sent += count - own;
        }
        // Who has submitted it may have ended meanwhile, and it with them.
        if !matches!(sent.result, Ok(_) | Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN)) {
            self.deafen();
        }
    }

    /// Nothing of it is in the ring any more, or will be heard of.
    pub(super) fn leave_ring(&mut self) {
        self.take_back(&mut VecDeque::new());
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
