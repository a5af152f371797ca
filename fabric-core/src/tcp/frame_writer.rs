//! Messages become a stream of bytes.

use crate::buf::Payload;

use super::rxm::{
    AtomicHeader, AtomicStatus, PACKET_HEADER_LEN, RxmPacket, RxmSender, encode_offer,
    encode_rma_iov,
};
use super::{AckDue, ByteOrder, Frame, MAX_HEADER_LEN, RmaNack, Supported, WireRmaIov};

/// An acknowledgement is a header with nothing in it.
const ACK_LEN: usize = 16;

/// The sending half of a connection: bytes that are on their way, and the numbers of frames.
///
/// Short messages are collected here and leave together. Of a long one only the header passes
/// through: its bytes follow from where they lie.
#[derive(Debug)]
pub struct FrameWriter {
    byte_order: ByteOrder,
    sequence: u8,
    bytes: Vec<u8>,
    /// How many of them have left.
    written: usize,
    /// Bytes that have left since the connection began.
    total_written: u64,
    /// Bytes that were taken to be sent in another way, and of which it is not known yet whether
    /// they have left.
    taken: usize,
    /// A frame has begun whose bytes do not pass through here: nothing may come between.
    is_open: bool,
    /// Owed while it was.
    deferred_acks: Vec<AckDue>,
    /// Messages are packets of the other dialect.
    rxm: Option<RxmSender>,
    /// What was to be told in it while a message was open.
    deferred_packets: Vec<RxmPacket>,
}

impl FrameWriter {
    /// Of a connection on which integers are written like this.
    #[must_use]
    pub fn new(byte_order: ByteOrder) -> Self {
        let (bytes, deferred_acks, deferred_packets) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            byte_order,
            sequence: 0,
            bytes,
            written: 0,
            total_written: 0,
            taken: 0,
            is_open: false,
            deferred_acks,
            rxm: None,
            deferred_packets,
        }
    }

    /// The same, of a connection on which RXM is spoken.
    #[must_use]
    pub fn with_rxm(order: ByteOrder, rxm: RxmSender) -> Self {
        Self {
            rxm: Some(rxm),
            ..Self::new(order)
        }
    }

    /// What is spoken there, if it is RXM.
    #[must_use]
    pub fn rxm(&self) -> Option<&RxmSender> {
        self.rxm.as_ref()
    }

    /// Bytes that have not left yet.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Bytes that wait for the peer to read: what is pending, and acknowledgements for which it is
    /// not the moment yet.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.pending().len()
            + self.deferred_acks.len() * ACK_LEN
            + self.deferred_packets.len() * (ACK_LEN + PACKET_HEADER_LEN)
    }

    /// So many of them have left.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn advance(&mut self, count: usize) {
        assert!(
            count <= self.pending().len(),
            "more has left than there was"
        );
        self.written += count;
        self.total_written += count as u64;
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        }
    }

    /// Position in the stream behind the last byte that has left. Payloads of frames that are
    /// [open](Self::open) do not count: they do not pass through here.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.total_written
    }

    /// Position in the stream behind the last byte that was added: what has been added so far has
    /// left when [`written`](Self::written) has come this far.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.total_written + (self.taken + self.pending().len()) as u64
    }

    /// Takes what has not left yet, to be sent in another way. What is added from now on comes
    /// behind it. [`put_back`](Self::put_back) tells how much of it has left.
    #[must_use]
    pub fn take_pending(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..std::mem::take(&mut self.written));
        self.taken = bytes.len();
        bytes
    }

    /// Puts bytes that were taken, and have not left, in front of those that are pending. Those
    /// that were taken before them have left.
    pub fn restore_pending(&mut self, bytes: &[u8]) {
        let taken = std::mem::take(&mut self.taken);
        self.total_written += taken.saturating_sub(bytes.len()) as u64;
        let at = self.written;
        self.bytes.splice(at..at, bytes.iter().copied());
    }

    /// Adds a whole message. False, and nothing is added, while another one is open.
    #[must_use]
    pub fn push_message(
        &mut self,
        tag: Option<Supported<u64>>,
        data: Option<u64>,
        payload: Payload<'_>,
    ) -> bool {
        if let Some(rxm) = &self.rxm {
            let packet = rxm.eager(tag.map(Supported::into_inner), data, payload.len());
            return self.push_packet(&packet, payload);
        }
        self.push_frame(&Frame::message(tag, data, payload.len()), &[], payload)
    }

    /// Adds a packet of RXM, with this behind its prefix. False, and nothing is added, while a
    /// frame is open.
    #[must_use]
    pub fn push_packet(&mut self, packet: &RxmPacket, body: Payload<'_>) -> bool {
        self.push_packet_parts(packet, &[], body)
    }

    /// The same in two parts.
    fn push_packet_parts(&mut self, packet: &RxmPacket, first: &[u8], body: Payload<'_>) -> bool {
        if self.is_open {
            return false;
        }
        self.push_header(
            &Frame::message(None, None, PACKET_HEADER_LEN + first.len() + body.len()),
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
    pub fn push_rendezvous(
        &mut self,
        row: WireRmaIov,
        tag: Option<u64>,
        data: Option<u64>,
    ) -> bool {
        let Some(packet) = self.rxm.as_ref().map(|rxm| rxm.rendezvous(row, tag, data)) else {
            return false;
        };
        self.push_packet(&packet, Payload::Contiguous(&encode_offer(row)))
    }

    /// Asks for an atomic operation on so many values in this place. False, and nothing is added,
    /// while a frame is open, or where RXM is not spoken.
    #[must_use]
    pub fn push_atomic(
        &mut self,
        (number, atomic): (u64, AtomicHeader),
        place: WireRmaIov,
        operands: Payload<'_>,
    ) -> bool {
        let packet = self
            .rxm
            .as_ref()
            .map(|rxm| rxm.atomic(number, atomic, operands.len()));
        packet
            .is_some_and(|packet| self.push_packet_parts(&packet, &encode_rma_iov(place), operands))
    }

    /// Says what has come of an atomic operation, between two frames.
    pub(super) fn push_atomic_response(
        &mut self,
        (number, atomic): (u64, AtomicHeader),
        status: AtomicStatus,
        fetched: &[u8],
    ) {
        let Some(packet) = self
            .rxm
            .as_ref()
            .map(|rxm| rxm.atomic_response(number, atomic, fetched.len()))
        else {
            return;
        };
        let is_said = self.push_packet_parts(
            &packet,
            &status.encode(fetched.len()),
            Payload::Contiguous(fetched),
        );
        debug_assert!(is_said, "nothing is open");
    }

    /// Tells the peer that its message of this number has been read, between two frames.
    pub fn push_rendezvous_done(&mut self, message: u64) {
        let Some(packet) = self.rxm.as_ref().map(|rxm| rxm.rendezvous_done(message)) else {
            return;
        };
        if !self.push_packet(&packet, Payload::Contiguous(&[])) {
            self.deferred_packets.push(packet);
        }
    }

    /// Adds a whole frame, with the places that it names. False, and nothing is added, while
    /// another one is open.
    #[must_use]
    #[inline]
    pub fn push_frame(&mut self, frame: &Frame, rows: &[WireRmaIov], payload: Payload<'_>) -> bool {
        if self.is_open {
            return false;
        }
        self.push_header(frame, rows);
        payload.for_each(|_, piece| self.bytes.extend_from_slice(piece));
        true
    }

    /// Begins a frame whose bytes are sent from where they lie, after what is pending. False, and
    /// nothing has begun, while another one is open.
    #[must_use]
    pub fn begin_frame(&mut self, frame: &Frame, rows: &[WireRmaIov]) -> bool {
        if self.is_open {
            return false;
        }
        self.push_header(frame, rows);
        self.is_open = true;
        true
    }

    /// All bytes of the message that was opened have left.
    pub fn end_frame(&mut self) {
        self.is_open = false;
        for owed in std::mem::take(&mut self.deferred_acks) {
            self.push_header(&Frame::ack(owed), &[]);
        }
        for packet in std::mem::take(&mut self.deferred_packets) {
            let _ = self.push_packet(&packet, Payload::Contiguous(&[]));
        }
    }

    /// Whether a message has begun and not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Acknowledges what has arrived, between two messages.
    pub fn push_ack(&mut self, owed: AckDue) {
        if self.is_open {
            self.deferred_acks.push(owed);
        } else {
            self.push_header(&Frame::ack(owed), &[]);
        }
    }

    /// Begins an answer to a question, whose bytes pass through here; to a peer that `checks` it a
    /// verdict follows them.
    pub(super) fn begin_read_response(&mut self, checks: bool, len: u64) {
        self.push_header(&Frame::read_response(checks, len), &[]);
        self.is_open = true;
    }

    /// Bytes of the answer.
    pub(super) fn extend_read_response(&mut self, bytes: Payload<'_>) {
        bytes.for_each(|_, piece| self.bytes.extend_from_slice(piece));
    }

    /// So many bytes of the answer, which are put there; zeros otherwise.
    pub(super) fn fill_read_response(&mut self, count: usize, put: impl FnOnce(&mut [u8])) {
        let at = self.bytes.len();
        self.bytes.resize(at + count, 0);
        put(&mut self.bytes[at..]);
    }

    pub(super) fn push_status(&mut self, words: [u64; 2]) {
        for word in words {
            self.bytes
                .extend_from_slice(&self.byte_order.encode_u64(word));
        }
    }

    /// All bytes of the answer are here.
    pub(super) fn end_read_response(&mut self) {
        self.end_frame();
    }

    /// Refuses a question, between two frames.
    pub(super) fn push_nack(&mut self, denial: RmaNack) {
        self.push_header(&Frame::nack(denial), &[]);
    }

    /// Nothing of this leaves any more.
    pub fn clear(&mut self) {
        *self = Self {
            rxm: self.rxm.take(),
            total_written: self.total_written,
            ..Self::new(self.byte_order)
        };
    }

    #[inline(always)] // on the way of a small message
    fn push_header(&mut self, frame: &Frame, rows: &[WireRmaIov]) {
        let mut header = [0; MAX_HEADER_LEN];
        let len = frame.encode(rows, self.byte_order, self.sequence, &mut header);
        self.sequence = self.sequence.wrapping_add(1);
        self.bytes.extend_from_slice(&header[..len]);
    }
}
