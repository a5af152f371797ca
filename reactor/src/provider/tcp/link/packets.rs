//! What is particular to a connection on which RXM is spoken: long messages are offered, and
//! fetched; atomic operations on memory of libfabric peers.

use std::collections::VecDeque;

use fabric_core::Error;
use fabric_core::atomic::AtomicOp;
use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::provider::{Host, SendSpec};
use fabric_core::rx::RxContext;
use fabric_core::tcp::rxm::{Atomic, EAGER};
use fabric_core::tcp::{Frame, Row, Rows};

use super::onesided::fail_first;
use super::sending::COLLECTED;
use super::{Link, Sending};

impl Link {
    /// Whether this operation is a packet here.
    pub(super) fn is_packet(&self, spec: &SendSpec) -> bool {
        self.outbox.rxm().is_some() && (spec.kind == OpKind::Send || self.is_atomic_packet(spec))
    }

    /// Kin have another form of it, which says more.
    fn is_atomic_packet(&self, spec: &SendSpec) -> bool {
        spec.remote.is_some_and(|remote| remote.atomic.is_some()) && !self.takes.is_kin()
    }

    /// Whether the first operation of the queue waits for responses to atomic ones before it.
    /// libfabric's RXM executes those when it comes to look at them, and its tcp provider reads and
    /// writes as they come: without that they would overtake them.
    pub(crate) fn awaits_responses(&self, queue: &VecDeque<Sending>) -> bool {
        let Some(Sending {
            spec, sent: None, ..
        }) = queue.front()
        else {
            return false;
        };
        spec.remote.is_some() && self.inbox.asked.has_atomics() && !self.is_packet(spec)
    }

    /// Whether bytes of a message that was offered can be asked for.
    pub(super) fn can_ask(&self) -> bool {
        self.inbox.wants() && !self.outbox.is_open() && !self.is_deaf && !self.is_cut
    }

    /// Asks for the next bytes of messages that were offered. Returns whether there were some to be
    /// asked for.
    pub(super) fn ask(&mut self) -> bool {
        let mut asks = false;
        while self.can_ask()
            && let Some(rows) = self.inbox.ask().and_then(|row| Rows::of(&[row.place()]))
        {
            asks |= self
                .outbox
                .push_frame(&Frame::read(&rows), &rows, Payload::Whole(&[]));
        }
        asks
    }

    /// Sends the first operation of the queue, or offers it. Returns how many bytes of it have been
    /// collected, or `None` while there is no room.
    pub(super) fn send_packet(
        &mut self,
        queue: &mut VecDeque<Sending>,
        host: &mut dyn Host,
    ) -> Option<usize> {
        let Sending { op, spec, .. } = *queue.front()?;
        if self.is_atomic_packet(&spec) {
            return self.send_atomic(queue, host);
        }
        if spec.level.is_confirmed() {
            let error = Error::NotSupported("FI_DELIVERY_COMPLETE to a peer that speaks RXM");
            fail_first(queue, host, error);
            return Some(0);
        }
        let tag = match self.takes.tag(spec.tag) {
            Ok(tag) => tag,
            Err(error) => {
                fail_first(queue, host, error);
                return Some(0);
            }
        };
        let payload = host.payload(op);
        let len = payload.len();
        let part = if len > EAGER { 0 } else { len };
        if self.outbox.is_open() || self.outbox.pending().len() + part > COLLECTED && !self.flush()
        {
            return None;
        }
        if len > EAGER {
            // The operation ends when the peer says that it has read the message.
            let row = self.inbox.replies.offers.add(op, spec.tag, len, host);
            queue.pop_front();
            let is_offered = self.outbox.offer(row, spec.tag, spec.data);
            debug_assert!(is_offered, "nothing is open");
            return Some(0);
        }
        let is_sent = self.outbox.push(tag, spec.data, payload);
        debug_assert!(is_sent, "nothing is open");
        queue.pop_front();
        self.collected(op, len, spec.tag);
        Some(len)
    }

    /// Sends the first operation of the queue, which is atomic. Returns how many bytes of it have
    /// been collected, or `None` while there is no room.
    fn send_atomic(&mut self, queue: &mut VecDeque<Sending>, host: &mut dyn Host) -> Option<usize> {
        let Sending { op, spec, .. } = *queue.front()?;
        let (place, atomic) = spec.remote.and_then(|place| Some((place, place.atomic?)))?;
        // Where the value is only read nothing is brought.
        let payload = if atomic.op == AtomicOp::Read {
            Payload::Whole(&[])
        } else {
            host.payload(op)
        };
        let len = payload.len();
        if self.outbox.is_open() || self.outbox.pending().len() + len > COLLECTED && !self.flush() {
            return None;
        }
        let number = self.inbox.asked.expect_response(op, spec, place.len);
        let count = (place.len / atomic.datatype.size()) as u64;
        let row = Row {
            addr: place.offset,
            len: count,
            key: place.key,
        };
        let is_asked = self
            .outbox
            .atomic((number, Atomic::of(atomic)), row, payload);
        debug_assert!(is_asked, "nothing is open");
        self.leaves_at(self.outbox.end(), op, None);
        queue.pop_front();
        Some(len)
    }

    /// Whether the connection has ended while there may be messages to be read from the peer.
    pub(crate) fn awaits_fetches(&self) -> bool {
        self.ended.is_some() && self.inbox.awaits_fetches()
    }

    /// They will not be read.
    pub(crate) fn end_fetches(&mut self, rx: &mut RxContext, host: &mut dyn Host, error: &Error) {
        for landing in self.inbox.end_fetches() {
            rx.fail(host, landing, error.clone());
        }
    }

    /// The peer will not read what it was offered.
    pub(crate) fn fail_offers(&mut self, host: &mut dyn Host, error: &Error) {
        if !self.inbox.replies.offers.is_empty() {
            self.inbox.replies.fail(host, error);
        }
    }
}
