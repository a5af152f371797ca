//! The sending half of a connection: messages and responses become a byte stream.

use crate::buf::Payload;

use super::rxm::{
    AtomicHeader, AtomicStatus, PACKET_HEADER_LEN, RxmPacket, RxmSender, encode_rendezvous,
    encode_rma_iov,
};
use super::{AckDue, ByteOrder, Frame, MAX_HEADER_LEN, RmaNack, Supported, WireRmaIov};

/// Length of an acknowledgement, in bytes: a header without payload.
const ACK_LEN: usize = 16;

/// The sending half of a connection: bytes that wait to be sent, and the sequence number of frames.
///
/// Short messages are copied to the writer and sent together. Of a long message only the header
/// passes through the writer; the payload is sent from its buffer, while the frame is *open*.
#[derive(Debug)]
pub struct FrameWriter {
    byte_order: ByteOrder,
    sequence: u8,
    bytes: Vec<u8>,
    /// How many of `bytes` have been sent.
    sent_len: usize,
    /// Bytes sent since the connection was established.
    total_written: u64,
    /// Number of bytes taken by [`take_pending`](Self::take_pending) whose send has not ended.
    taken: usize,
    /// A frame has begun and not ended: no other frame may be added.
    is_open: bool,
    /// Acks that became due while a frame was open.
    queued_acks: Vec<AckDue>,
    /// RXM: messages are packets within frames.
    rxm: Option<RxmSender>,
    /// RXM packets that were pushed while a frame was open.
    queued_packets: Vec<RxmPacket>,
}

impl FrameWriter {
    /// Returns the writer of a connection that speaks the native protocol in this byte order.
    #[must_use]
    pub fn new(byte_order: ByteOrder) -> Self {
        Self {
            byte_order,
            sequence: 0,
            bytes: Vec::new(),
            sent_len: 0,
            total_written: 0,
            taken: 0,
            is_open: false,
            queued_acks: Vec::new(),
            rxm: None,
            queued_packets: Vec::new(),
        }
    }

    /// Returns the writer of an RXM connection.
    #[must_use]
    pub fn with_rxm(order: ByteOrder, rxm: RxmSender) -> Self {
        Self {
            rxm: Some(rxm),
            ..Self::new(order)
        }
    }

    /// Returns the RXM sender, if the connection speaks RXM.
    #[must_use]
    pub fn rxm(&self) -> Option<&RxmSender> {
        self.rxm.as_ref()
    }

    /// Returns the bytes that have not been sent.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.sent_len..]
    }

    /// Returns the number of bytes that wait to be sent: pending bytes, and queued acks and
    /// packets.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.pending().len()
            + self.queued_acks.len() * ACK_LEN
            + self.queued_packets.len() * (ACK_LEN + PACKET_HEADER_LEN)
    }

    /// Removes `count` bytes that have been sent.
    ///
    /// # Panics
    /// When fewer bytes are pending.
    pub fn advance(&mut self, count: usize) {
        assert!(
            count <= self.pending().len(),
            "count exceeds the pending bytes"
        );
        self.sent_len += count;
        self.total_written += count as u64;
        if self.sent_len == self.bytes.len() {
            self.bytes.clear();
            self.sent_len = 0;
        }
    }

    /// Returns the stream position behind the last byte sent. Payloads that are sent from their
    /// buffers are not counted.
    #[must_use]
    pub fn total_written(&self) -> u64 {
        self.total_written
    }

    /// Returns the stream position behind the last byte added. All bytes added so far are sent when
    /// [`total_written`](Self::total_written) reaches this position.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.total_written + (self.taken + self.pending().len()) as u64
    }

    /// Takes the bytes that have not been sent, to be sent by io_uring. Bytes added from now on
    /// must be sent behind the taken ones. [`restore_pending`](Self::restore_pending) ends the
    /// send.
    #[must_use]
    pub fn take_pending(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..std::mem::take(&mut self.sent_len));
        self.taken = bytes.len();
        bytes
    }

    /// Ends the send of the taken bytes: `bytes`, the last of them, were not sent and become
    /// pending again, in front of the others.
    pub fn restore_pending(&mut self, bytes: &[u8]) {
        let taken = std::mem::take(&mut self.taken);
        self.total_written += taken.saturating_sub(bytes.len()) as u64;
        let at = self.sent_len;
        self.bytes.splice(at..at, bytes.iter().copied());
    }

    /// Adds a whole message. Returns false and adds nothing while a frame is open.
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

    /// Adds an RXM packet with this body. Returns false and adds nothing while a frame is open.
    #[must_use]
    pub fn push_packet(&mut self, packet: &RxmPacket, body: Payload<'_>) -> bool {
        self.push_packet_parts(packet, &[], body)
    }

    /// Adds an RXM packet whose body is in two parts.
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
        body.for_each(|_, part| self.bytes.extend_from_slice(part));
        true
    }

    /// Adds the RXM rendezvous packet of a message that the peer may read at `iov`, whose key is
    /// the id of the message. Returns false and adds nothing while a frame is open, or without RXM.
    #[must_use]
    pub fn push_rendezvous(
        &mut self,
        iov: WireRmaIov,
        tag: Option<u64>,
        data: Option<u64>,
    ) -> bool {
        let Some(packet) = self.rxm.as_ref().map(|rxm| rxm.rendezvous(iov, tag, data)) else {
            return false;
        };
        self.push_packet(&packet, Payload::Contiguous(&encode_rendezvous(iov)))
    }

    /// Adds an RXM atomic operation on this remote range. Returns false and adds nothing while a
    /// frame is open, or without RXM.
    #[must_use]
    pub fn push_atomic(
        &mut self,
        (id, atomic): (u64, AtomicHeader),
        iov: WireRmaIov,
        operands: Payload<'_>,
    ) -> bool {
        let packet = self
            .rxm
            .as_ref()
            .map(|rxm| rxm.atomic(id, atomic, operands.len()));
        packet.is_some_and(|packet| self.push_packet_parts(&packet, &encode_rma_iov(iov), operands))
    }

    /// Adds the response to an RXM atomic operation, between two frames.
    pub(super) fn push_atomic_response(
        &mut self,
        (id, atomic): (u64, AtomicHeader),
        status: AtomicStatus,
        fetched: &[u8],
    ) {
        let Some(packet) = self
            .rxm
            .as_ref()
            .map(|rxm| rxm.atomic_response(id, atomic, fetched.len()))
        else {
            return;
        };
        let is_pushed = self.push_packet_parts(
            &packet,
            &status.encode(fetched.len()),
            Payload::Contiguous(fetched),
        );
        debug_assert!(is_pushed, "no frame may be open");
    }

    /// Reports to the peer that its rendezvous message with this id has been read; queued while a
    /// frame is open.
    pub fn push_rendezvous_done(&mut self, message_id: u64) {
        let Some(packet) = self.rxm.as_ref().map(|rxm| rxm.rendezvous_done(message_id)) else {
            return;
        };
        if !self.push_packet(&packet, Payload::Contiguous(&[])) {
            self.queued_packets.push(packet);
        }
    }

    /// Adds a whole frame with its remote ranges. Returns false and adds nothing while another
    /// frame is open.
    #[must_use]
    #[inline]
    pub fn push_frame(&mut self, frame: &Frame, iovs: &[WireRmaIov], payload: Payload<'_>) -> bool {
        if self.is_open {
            return false;
        }
        self.push_header(frame, iovs);
        payload.for_each(|_, part| self.bytes.extend_from_slice(part));
        true
    }

    /// Begins a frame whose payload is sent from its buffer, after the pending bytes. Returns false
    /// and begins nothing while another frame is open.
    #[must_use]
    pub fn begin_frame(&mut self, frame: &Frame, iovs: &[WireRmaIov]) -> bool {
        if self.is_open {
            return false;
        }
        self.push_header(frame, iovs);
        self.is_open = true;
        true
    }

    /// Ends the open frame, all of whose payload has been sent, and adds the queued acks and
    /// packets.
    pub fn end_frame(&mut self) {
        self.is_open = false;
        for due in std::mem::take(&mut self.queued_acks) {
            self.push_header(&Frame::ack(due), &[]);
        }
        for packet in std::mem::take(&mut self.queued_packets) {
            let _ = self.push_packet(&packet, Payload::Contiguous(&[]));
        }
    }

    /// Returns whether a frame has begun and not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Adds an acknowledgement; queued while a frame is open.
    pub fn push_ack(&mut self, due: AckDue) {
        if self.is_open {
            self.queued_acks.push(due);
        } else {
            self.push_header(&Frame::ack(due), &[]);
        }
    }

    /// Begins a read response of `len` bytes, which are added to the writer in parts. If
    /// `with_status`, a status follows the bytes.
    pub(super) fn begin_read_response(&mut self, with_status: bool, len: u64) {
        self.push_header(&Frame::read_response(with_status, len), &[]);
        self.is_open = true;
    }

    /// Adds bytes of the read response.
    pub(super) fn extend_read_response(&mut self, bytes: Payload<'_>) {
        bytes.for_each(|_, part| self.bytes.extend_from_slice(part));
    }

    /// Adds `count` zero bytes to the read response, and calls `fill` to overwrite them.
    pub(super) fn fill_read_response(&mut self, count: usize, fill: impl FnOnce(&mut [u8])) {
        let at = self.bytes.len();
        self.bytes.resize(at + count, 0);
        fill(&mut self.bytes[at..]);
    }

    /// Adds the status behind the bytes of a read response.
    pub(super) fn push_status(&mut self, words: [u64; 2]) {
        for word in words {
            self.bytes
                .extend_from_slice(&self.byte_order.encode_u64(word));
        }
    }

    /// Ends the read response.
    pub(super) fn end_read_response(&mut self) {
        self.end_frame();
    }

    /// Adds the nack of a read request, between two frames.
    pub(super) fn push_nack(&mut self, nack: RmaNack) {
        self.push_header(&Frame::nack(nack), &[]);
    }

    /// Discards all bytes that have not been sent.
    pub fn clear(&mut self) {
        *self = Self {
            rxm: self.rxm.take(),
            total_written: self.total_written,
            ..Self::new(self.byte_order)
        };
    }

    /// Adds the header of a frame, with the next sequence number.
    #[inline(always)] // hot path of short messages
    fn push_header(&mut self, frame: &Frame, iovs: &[WireRmaIov]) {
        let mut header = [0; MAX_HEADER_LEN];
        let len = frame.encode(iovs, self.byte_order, self.sequence, &mut header);
        self.sequence = self.sequence.wrapping_add(1);
        self.bytes.extend_from_slice(&header[..len]);
    }
}
