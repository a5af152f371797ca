//! Messages become a stream of bytes.

use crate::buf::Payload;

use super::rxm::{Atomic, Outgoing, PREFIX, Packet, Status, encode_offer, encode_place};
use super::{Denial, Frame, LONGEST_HEADER, Order, Owed, Row, Welcome};

/// An acknowledgement is a header with nothing in it.
const ACK_BYTES: usize = 16;

/// The sending half of a connection: bytes that are on their way, and the numbers of frames.
///
/// Short messages are collected here and leave together. Of a long one only the header passes
/// through: its bytes follow from where they lie.
#[derive(Debug)]
pub struct Outbox {
    order: Order,
    number: u8,
    bytes: Vec<u8>,
    /// How many of them have left.
    sent: usize,
    /// Bytes that have left since the connection began.
    written: u64,
    /// Bytes that were taken to be sent in another way, and of which it is not known yet whether
    /// they have left.
    taken: usize,
    /// A frame has begun whose bytes do not pass through here: nothing may come between.
    is_open: bool,
    /// Owed while it was.
    owed: Vec<Owed>,
    /// Messages are packets of the other dialect.
    rxm: Option<Outgoing>,
    /// What was to be told in it while a message was open.
    untold: Vec<Packet>,
}

impl Outbox {
    /// Of a connection on which integers are written like this.
    #[must_use]
    pub fn new(order: Order) -> Self {
        let (bytes, owed, untold) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            order,
            number: 0,
            bytes,
            sent: 0,
            written: 0,
            taken: 0,
            is_open: false,
            owed,
            rxm: None,
            untold,
        }
    }

    /// The same, of a connection on which RXM is spoken.
    #[must_use]
    pub fn of_rxm(order: Order, rxm: Outgoing) -> Self {
        Self {
            rxm: Some(rxm),
            ..Self::new(order)
        }
    }

    /// What is spoken there, if it is RXM.
    #[must_use]
    pub fn rxm(&self) -> Option<&Outgoing> {
        self.rxm.as_ref()
    }

    /// Bytes that have not left yet.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Bytes that wait for the peer to read: what is pending, and acknowledgements for which it is
    /// not the moment yet.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.pending().len()
            + self.owed.len() * ACK_BYTES
            + self.untold.len() * (ACK_BYTES + PREFIX)
    }

    /// So many of them have left.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn left(&mut self, count: usize) {
        assert!(
            count <= self.pending().len(),
            "more has left than there was"
        );
        self.sent += count;
        self.written += count as u64;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    /// Position in the stream behind the last byte that has left. Payloads of frames that are
    /// [open](Self::open) do not count: they do not pass through here.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Position in the stream behind the last byte that was added: what has been added so far has
    /// left when [`written`](Self::written) has come this far.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.written + (self.taken + self.pending().len()) as u64
    }

    /// Takes what has not left yet, to be sent in another way. What is added from now on comes
    /// behind it. [`put_back`](Self::put_back) tells how much of it has left.
    #[must_use]
    pub fn take_pending(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..std::mem::take(&mut self.sent));
        self.taken = bytes.len();
        bytes
    }

    /// Puts bytes that were taken, and have not left, in front of those that are pending. Those
    /// that were taken before them have left.
    pub fn put_back(&mut self, bytes: &[u8]) {
        let taken = std::mem::take(&mut self.taken);
        self.written += taken.saturating_sub(bytes.len()) as u64;
        let at = self.sent;
        self.bytes.splice(at..at, bytes.iter().copied());
    }

    /// Adds a whole message. False, and nothing is added, while another one is open.
    #[must_use]
    pub fn push(
        &mut self,
        tag: Option<Welcome<u64>>,
        data: Option<u64>,
        payload: Payload<'_>,
    ) -> bool {
        if let Some(rxm) = &self.rxm {
            let packet = rxm.eager(tag.map(Welcome::into_inner), data, payload.len());
            return self.packet(&packet, payload);
        }
        self.push_frame(&Frame::message(tag, data, payload.len()), &[], payload)
    }

    /// Adds a packet of RXM, with this behind its prefix. False, and nothing is added, while a
    /// frame is open.
    #[must_use]
    pub fn packet(&mut self, packet: &Packet, body: Payload<'_>) -> bool {
        self.packet_of(packet, &[], body)
    }

    /// The same in two parts.
    fn packet_of(&mut self, packet: &Packet, first: &[u8], body: Payload<'_>) -> bool {
        if self.is_open {
            return false;
        }
        self.header(
            &Frame::message(None, None, PREFIX + first.len() + body.len()),
            &[],
        );
        self.bytes.extend_from_slice(&packet.encode());
        self.bytes.extend_from_slice(first);
        body.for_each(|_, piece| self.bytes.extend_from_slice(piece));
        true
    }

    /// Offers a message that lies there, and is named like its key. False, and nothing is added,
    /// while a frame is open, or where RXM is not spoken.
    #[must_use]
    pub fn offer(&mut self, row: Row, tag: Option<u64>, data: Option<u64>) -> bool {
        let Some(packet) = self.rxm.as_ref().map(|rxm| rxm.offer(row, tag, data)) else {
            return false;
        };
        self.packet(&packet, Payload::Whole(&encode_offer(row)))
    }

    /// Asks for an atomic operation on so many values in this place. False, and nothing is added,
    /// while a frame is open, or where RXM is not spoken.
    #[must_use]
    pub fn atomic(
        &mut self,
        (number, atomic): (u64, Atomic),
        place: Row,
        operands: Payload<'_>,
    ) -> bool {
        let packet = self
            .rxm
            .as_ref()
            .map(|rxm| rxm.atomic(number, atomic, operands.len()));
        packet.is_some_and(|packet| self.packet_of(&packet, &encode_place(place), operands))
    }

    /// Says what has come of an atomic operation, between two frames.
    pub(super) fn respond(
        &mut self,
        (number, atomic): (u64, Atomic),
        status: Status,
        fetched: &[u8],
    ) {
        let Some(packet) = self
            .rxm
            .as_ref()
            .map(|rxm| rxm.response(number, atomic, fetched.len()))
        else {
            return;
        };
        let is_said = self.packet_of(
            &packet,
            &status.encode(fetched.len()),
            Payload::Whole(fetched),
        );
        debug_assert!(is_said, "nothing is open");
    }

    /// Tells the peer that its message of this number has been read, between two frames.
    pub fn fetched(&mut self, message: u64) {
        let Some(packet) = self.rxm.as_ref().map(|rxm| rxm.done(message)) else {
            return;
        };
        if !self.packet(&packet, Payload::Whole(&[])) {
            self.untold.push(packet);
        }
    }

    /// Adds a whole frame, with the places that it names. False, and nothing is added, while
    /// another one is open.
    #[must_use]
    #[inline]
    pub fn push_frame(&mut self, frame: &Frame, rows: &[Row], payload: Payload<'_>) -> bool {
        if self.is_open {
            return false;
        }
        self.header(frame, rows);
        payload.for_each(|_, piece| self.bytes.extend_from_slice(piece));
        true
    }

    /// Begins a frame whose bytes are sent from where they lie, after what is pending. False, and
    /// nothing has begun, while another one is open.
    #[must_use]
    pub fn open(&mut self, frame: &Frame, rows: &[Row]) -> bool {
        if self.is_open {
            return false;
        }
        self.header(frame, rows);
        self.is_open = true;
        true
    }

    /// All bytes of the message that was opened have left.
    pub fn close(&mut self) {
        self.is_open = false;
        for owed in std::mem::take(&mut self.owed) {
            self.header(&Frame::ack(owed), &[]);
        }
        for packet in std::mem::take(&mut self.untold) {
            let _ = self.packet(&packet, Payload::Whole(&[]));
        }
    }

    /// Whether a message has begun and not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Acknowledges what has arrived, between two messages.
    pub fn acknowledge(&mut self, owed: Owed) {
        if self.is_open {
            self.owed.push(owed);
        } else {
            self.header(&Frame::ack(owed), &[]);
        }
    }

    /// Begins an answer to a question, whose bytes pass through here; to a peer that `checks` it a
    /// verdict follows them.
    pub(super) fn begin_answer(&mut self, checks: bool, len: u64) {
        self.header(&Frame::answer(checks, len), &[]);
        self.is_open = true;
    }

    /// Bytes of the answer.
    pub(super) fn answer_part(&mut self, bytes: Payload<'_>) {
        bytes.for_each(|_, piece| self.bytes.extend_from_slice(piece));
    }

    /// So many bytes of the answer, which are put there; zeros otherwise.
    pub(super) fn answer_with(&mut self, count: usize, put: impl FnOnce(&mut [u8])) {
        let at = self.bytes.len();
        self.bytes.resize(at + count, 0);
        put(&mut self.bytes[at..]);
    }

    pub(super) fn verdict(&mut self, words: [u64; 2]) {
        for word in words {
            self.bytes.extend_from_slice(&self.order.put_u64(word));
        }
    }

    /// All bytes of the answer are here.
    pub(super) fn end_answer(&mut self) {
        self.close();
    }

    /// Refuses a question, between two frames.
    pub(super) fn refuse(&mut self, denial: Denial) {
        self.header(&Frame::refused(denial), &[]);
    }

    /// Nothing of this leaves any more.
    pub fn give_up(&mut self) {
        *self = Self {
            rxm: self.rxm.take(),
            written: self.written,
            ..Self::new(self.order)
        };
    }

    #[inline(always)] // on the way of a small message
    fn header(&mut self, frame: &Frame, rows: &[Row]) {
        let mut header = [0; LONGEST_HEADER];
        let len = frame.encode(rows, self.order, self.number, &mut header);
        self.number = self.number.wrapping_add(1);
        self.bytes.extend_from_slice(&header[..len]);
    }
}
