//! RXM packets: one packet in the payload of each frame of the tcp provider.
//!
//! A message in segments takes a receive or a buffer when its first segment or 4 KiB of it have
//! arrived. A sender chooses the length of segments, and libfabric's is a setting, so the first one
//! may have one byte.
//!
//! Decision: a rendezvous message takes a receive or a buffer when its packet has arrived. The rule
//! of plain tcp messages, that 4 KiB of the message have arrived, does not hold here:
//!
//! * A rendezvous packet has no byte of the message. Reads request the bytes, and the responses
//!   arrive behind all that the peer has sent since. Until the first response, later messages of
//!   the peer must match no receive, because messages are matched in order. So they would be set
//!   aside: copied once more, and delayed by a round trip.
//! * What is set aside has a limit. At the limit the stream stops in front of the response that the
//!   message needs to begin. So the message would have to begin without it, and a peer could cause
//!   that by sending as much as the limit.
//! * A peer that has answered the first read can stop the stream in front of the second response.
//!   In plain tcp, nothing can come between the parts of a message.

use crate::matching::Envelope;
use crate::tcp::rxm::{
    AtomicHeader, AtomicStatus, EAGER_LIMIT, PACKET_HEADER_LEN, PacketKind, RENDEZVOUS_LEN,
    RendezvousRead, RxmPacket, SegmentType, decode_rendezvous,
};
use crate::tcp::{Frame, MAX_MESSAGE, ProtocolViolation, atomics};
use crate::transport::EngineContext;

use super::{FrameBody, FrameReader, MIN_BEGINNING, ReadCall, ReceivedFrame, SenderId, StopReason};

/// A packet whose packet header has arrived.
struct ParsedPacket<'a> {
    packet: RxmPacket,
    /// Length of frame header and packet header, in bytes.
    headers_len: usize,
    /// Length of the payload after the packet header in bytes, received yet or not.
    payload_len: usize,
    /// The part of the payload that has been received.
    received_payload: &'a [u8],
}

impl<'a> ParsedPacket<'a> {
    /// Returns the payload of an atomic request or response; `None` while it is incomplete.
    fn complete_atomic_payload(&self) -> Result<Option<&'a [u8]>, ProtocolViolation> {
        if self.payload_len > EAGER_LIMIT {
            return Err(ProtocolViolation(
                "atomic packet longer than the eager limit",
            ));
        }
        Ok((self.received_payload.len() == self.payload_len).then_some(self.received_payload))
    }
}

impl<E> ReadCall<'_, '_, E> {
    /// Consumes a complete packet. An ack that the frame requests is sent after the responses that
    /// are queued already. Always returns true, because the next packet can be read.
    fn finish_packet(&mut self, received: &ReceivedFrame<'_>, parsed: &ParsedPacket<'_>) -> bool {
        self.outcome.consumed += parsed.headers_len + parsed.payload_len;
        self.send_ack(received.frame.ack_due());
        true
    }
}

impl FrameReader {
    /// Reads a packet. Returns false when the packet is incomplete or has to wait.
    pub(super) fn read_packet<E: EngineContext>(
        &mut self,
        received: &ReceivedFrame<'_>,
        call: &mut ReadCall<'_, '_, E>,
    ) -> Result<bool, ProtocolViolation> {
        let Some(parsed) = parse_packet(received.frame, received.header_len, received.bytes)?
        else {
            return Ok(false);
        };
        let Some(rxm) = &mut self.rxm else {
            return Ok(false);
        };
        let packet = parsed.packet;
        rxm.check_connection(&packet)?;
        let envelope = rxm_envelope(&packet, call.sender)?;
        match packet.kind {
            PacketKind::Eager if parsed.payload_len != envelope.len => Err(ProtocolViolation(
                "eager message whose length field is wrong",
            )),
            PacketKind::Eager => {
                let received = ReceivedFrame {
                    header_len: parsed.headers_len,
                    ..*received
                };
                Ok(self.read_message(&received, envelope, call))
            }
            PacketKind::Segment(segment_type, ..) => {
                if segment_type == SegmentType::First {
                    rxm.check_first_segment(&packet, parsed.payload_len as u64)?;
                    if parsed.received_payload.len() < parsed.payload_len.min(MIN_BEGINNING) {
                        return Ok(false);
                    }
                    let Some(id) = call.ctx.begin_partial(envelope) else {
                        return Ok(call.hold());
                    };
                    rxm.begin_segmented(&packet, id);
                }
                let id = rxm.next_segment(&packet, segment_type, parsed.payload_len as u64)?;
                call.outcome.consumed += parsed.headers_len;
                self.body = Some(FrameBody::Message {
                    id,
                    remaining: parsed.payload_len,
                    ack_due: received.frame.ack_due(),
                });
                Ok(true)
            }
            PacketKind::Rendezvous => {
                if parsed.payload_len != RENDEZVOUS_LEN {
                    return Err(ProtocolViolation("rendezvous packet of the wrong length"));
                }
                let Some(encoded_iovs) = parsed.received_payload.first_chunk() else {
                    return Ok(false);
                };
                let iovs = decode_rendezvous(encoded_iovs, packet.len)?;
                if rxm.peer_stopped_responding() {
                    call.outcome.consumed += parsed.headers_len + parsed.payload_len;
                    return Ok(true);
                }
                let Some(id) = call.ctx.begin_partial(envelope) else {
                    return Ok(call.hold());
                };
                rxm.begin_rendezvous_read(RendezvousRead::new(
                    id,
                    packet.message_id,
                    iovs,
                    packet.len,
                ));
                Ok(call.finish_packet(received, &parsed))
            }
            PacketKind::Atomic(atomic) => {
                self.execute_atomic_packet(received, &parsed, atomic, call)
            }
            PacketKind::AtomicResponse(_) => {
                let Some(payload) = parsed.complete_atomic_payload()? else {
                    return Ok(false);
                };
                let response = AtomicStatus::decode(payload)?;
                call.pending
                    .on_atomic_response(packet.message_id, response, call.ctx)?;
                Ok(call.finish_packet(received, &parsed))
            }
            PacketKind::RendezvousDone if parsed.payload_len > 0 => Err(ProtocolViolation(
                "rendezvous acknowledgement with a payload",
            )),
            PacketKind::RendezvousDone => {
                call.responses
                    .on_rendezvous_done(packet.message_id, call.ctx)?;
                Ok(call.finish_packet(received, &parsed))
            }
        }
    }

    /// Executes an atomic operation on memory of this side. Returns false when the packet is
    /// incomplete or the operation has to be retried.
    fn execute_atomic_packet(
        &mut self,
        received: &ReceivedFrame<'_>,
        parsed: &ParsedPacket<'_>,
        atomic: AtomicHeader,
        call: &mut ReadCall<'_, '_, impl EngineContext>,
    ) -> Result<bool, ProtocolViolation> {
        if call.responses.is_full() {
            call.outcome.stop_reason = StopReason::ResponsesFull;
            return Ok(false);
        }
        let Some(payload) = parsed.complete_atomic_payload()? else {
            return Ok(false);
        };
        let blocked_on = atomics::execute_rxm(
            (&parsed.packet, atomic),
            payload,
            call.sender.1,
            call.responses,
            call.ctx,
        )?;
        if blocked_on.is_some() {
            self.blocked_on = blocked_on;
            return Ok(call.hold());
        }
        Ok(call.finish_packet(received, parsed))
    }

    /// Returns the envelope of the message that begins with this frame; `None` while the packet
    /// header is incomplete, or if it is malformed.
    pub(super) fn packet_envelope(
        frame: &Frame,
        header_len: usize,
        bytes: &[u8],
        sender: SenderId,
    ) -> Option<Envelope> {
        rxm_envelope(
            &parse_packet(frame, header_len, bytes).ok()??.packet,
            sender,
        )
        .ok()
    }
}

/// Returns whether the packet in this frame is, or may be, a response to a request of this side.
pub(super) fn may_be_response(frame: &Frame, header_len: usize, bytes: &[u8]) -> bool {
    match parse_packet(frame, header_len, bytes) {
        Ok(Some(parsed)) => matches!(
            parsed.packet.kind,
            PacketKind::AtomicResponse(_) | PacketKind::RendezvousDone
        ),
        // The packet header is incomplete.
        Ok(None) => true,
        Err(_) => false,
    }
}

/// Parses the packet behind a frame header; `None` while the packet header is incomplete.
fn parse_packet<'a>(
    frame: &Frame,
    header_len: usize,
    bytes: &'a [u8],
) -> Result<Option<ParsedPacket<'a>>, ProtocolViolation> {
    let payload_len = frame
        .payload_len
        .checked_sub(PACKET_HEADER_LEN as u64)
        .and_then(|payload_len| usize::try_from(payload_len).ok());
    let Some(payload_len) = payload_len.filter(|payload_len| *payload_len <= MAX_MESSAGE) else {
        return Err(ProtocolViolation(
            "packet without a packet header, or longer than 1 TiB",
        ));
    };
    let Some((packet_header, rest)) = bytes
        .get(header_len..)
        .and_then(|bytes| bytes.split_first_chunk())
    else {
        return Ok(None);
    };
    let packet = RxmPacket::decode(packet_header)?;
    let received_payload = &rest[..rest.len().min(payload_len)];
    Ok(Some(ParsedPacket {
        packet,
        headers_len: header_len + PACKET_HEADER_LEN,
        payload_len,
        received_payload,
    }))
}

/// Returns the envelope of a packet. The receive queue assigns the arrival number.
fn rxm_envelope(
    packet: &RxmPacket,
    (peer, source): SenderId,
) -> Result<Envelope, ProtocolViolation> {
    let Some(len) = usize::try_from(packet.len)
        .ok()
        .filter(|len| *len <= MAX_MESSAGE)
    else {
        return Err(ProtocolViolation("message longer than 1 TiB"));
    };
    Ok(Envelope {
        peer,
        source,
        tag: packet.tag,
        len,
        data: packet.data,
        arrival: 0,
        ack: None,
    })
}
