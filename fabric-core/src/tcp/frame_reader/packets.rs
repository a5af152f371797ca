//! RXM packets: messages within frames.

use crate::matching::Envelope;
use crate::rx::RxQueue;
use crate::tcp::rxm::{
    AtomicHeader, AtomicStatus, EAGER_LIMIT, PACKET_HEADER_LEN, PacketKind, RENDEZVOUS_LEN,
    RendezvousRead, RxmPacket, SegmentType, decode_rendezvous,
};
use crate::tcp::{Frame, MAX_MESSAGE, ProtocolViolation, atomics};
use crate::transport::EngineContext;

use super::{FrameBody, FrameReader, ReadOutcome, ReceivedFrame, SenderId};

/// A packet whose packet header has arrived.
struct ParsedPacket<'a> {
    packet: RxmPacket,
    /// Length of frame header and packet header, in bytes.
    headers_len: usize,
    /// Length behind the packet header in bytes, arrived or not.
    body_len: usize,
    /// The part of the body that has arrived.
    bytes: &'a [u8],
}

impl<'a> ParsedPacket<'a> {
    /// Returns the whole body of a packet that is never segmented; `None` while it is incomplete.
    fn complete_body(&self) -> Result<Option<&'a [u8]>, ProtocolViolation> {
        if self.body_len > EAGER_LIMIT {
            return Err(ProtocolViolation(
                "atomic packet longer than the eager limit",
            ));
        }
        Ok((self.bytes.len() == self.body_len).then_some(self.bytes))
    }
}

impl FrameReader {
    /// Reads a packet. Returns false when nothing more can be read now.
    pub(super) fn read_packet(
        &mut self,
        received: &ReceivedFrame<'_>,
        sender: SenderId,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
        outcome: &mut ReadOutcome,
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
        let envelope = rxm_envelope(&packet, sender)?;
        match packet.kind {
            PacketKind::Eager if parsed.body_len != envelope.len => Err(ProtocolViolation(
                "eager message whose length field is wrong",
            )),
            PacketKind::Eager => {
                let received = ReceivedFrame {
                    header_len: parsed.headers_len,
                    ..*received
                };
                Ok(self.read_message(&received, envelope, rx, host, outcome))
            }
            PacketKind::Segment(segment_type, ..) => {
                if segment_type == SegmentType::First {
                    rxm.check_first_segment(&packet, parsed.body_len as u64)?;
                    let Some(id) = rx.begin_partial(host, envelope) else {
                        outcome.blocked = true;
                        return Ok(false);
                    };
                    rxm.begin_segmented(&packet, id);
                }
                let id = rxm.next_segment(&packet, segment_type, parsed.body_len as u64)?;
                outcome.consumed += parsed.headers_len;
                self.body = Some(FrameBody::Message {
                    id,
                    remaining: parsed.body_len,
                    ack_due: received.frame.ack_due(),
                });
                Ok(true)
            }
            PacketKind::Rendezvous => {
                if parsed.body_len != RENDEZVOUS_LEN {
                    return Err(ProtocolViolation("rendezvous packet of the wrong length"));
                }
                let Some(location) = parsed.bytes.first_chunk() else {
                    return Ok(false);
                };
                let iovs = decode_rendezvous(location, packet.len)?;
                if rxm.reads_ended() {
                    outcome.consumed += parsed.headers_len + parsed.body_len;
                    return Ok(true);
                }
                let Some(id) = rx.begin_partial(host, envelope) else {
                    outcome.blocked = true;
                    return Ok(false);
                };
                rxm.begin_rendezvous_read(RendezvousRead::new(
                    id,
                    packet.message_id,
                    iovs,
                    packet.len,
                ));
                Ok(self.finish_packet(received, &parsed, outcome))
            }
            PacketKind::Atomic(atomic) => {
                self.read_atomic(received, &parsed, atomic, sender, host, outcome)
            }
            PacketKind::AtomicResponse(_) => {
                let Some(body) = parsed.complete_body()? else {
                    return Ok(false);
                };
                let response = AtomicStatus::decode(body)?;
                self.pending
                    .on_atomic_response(packet.message_id, response, host)?;
                Ok(self.finish_packet(received, &parsed, outcome))
            }
            PacketKind::RendezvousDone if parsed.body_len > 0 => Err(ProtocolViolation(
                "rendezvous acknowledgement with a payload",
            )),
            PacketKind::RendezvousDone => {
                self.responses.on_rendezvous_done(packet.message_id, host)?;
                Ok(self.finish_packet(received, &parsed, outcome))
            }
        }
    }

    /// Executes an atomic operation on memory of this side. Returns false when it has to wait or is
    /// incomplete.
    fn read_atomic(
        &mut self,
        received: &ReceivedFrame<'_>,
        parsed: &ParsedPacket<'_>,
        atomic: AtomicHeader,
        sender: SenderId,
        host: &mut dyn EngineContext,
        outcome: &mut ReadOutcome,
    ) -> Result<bool, ProtocolViolation> {
        if self.responses.is_full() {
            outcome.responses_full = true;
            return Ok(false);
        }
        let Some(body) = parsed.complete_body()? else {
            return Ok(false);
        };
        let stall = atomics::execute_packet(
            (&parsed.packet, atomic),
            body,
            sender.1,
            &mut self.responses,
            host,
        )?;
        if stall.is_some() {
            (self.stall, outcome.blocked) = (stall, true);
            return Ok(false);
        }
        Ok(self.finish_packet(received, parsed, outcome))
    }

    /// Consumes a complete packet. Its ack keeps its place behind queued responses. Returns true:
    /// more may follow.
    fn finish_packet(
        &mut self,
        received: &ReceivedFrame<'_>,
        parsed: &ParsedPacket<'_>,
        outcome: &mut ReadOutcome,
    ) -> bool {
        outcome.consumed += parsed.headers_len + parsed.body_len;
        outcome
            .acks_due
            .extend(self.responses.queue_ack(received.frame.ack_due()));
        true
    }

    /// Returns the envelope of the message that begins with this frame.
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

/// Parses the packet behind a frame header; `None` while the packet header is incomplete.
fn parse_packet<'a>(
    frame: &Frame,
    header_len: usize,
    bytes: &'a [u8],
) -> Result<Option<ParsedPacket<'a>>, ProtocolViolation> {
    let body_len = frame
        .payload
        .checked_sub(PACKET_HEADER_LEN as u64)
        .and_then(|body_len| usize::try_from(body_len).ok());
    let Some(body_len) = body_len.filter(|body_len| *body_len <= MAX_MESSAGE) else {
        return Err(ProtocolViolation(
            "packet without a packet header, or longer than 1 TiB",
        ));
    };
    let Some((prefix, rest)) = bytes
        .get(header_len..)
        .and_then(|bytes| bytes.split_first_chunk())
    else {
        return Ok(None);
    };
    let packet = RxmPacket::decode(prefix)?;
    let bytes = &rest[..rest.len().min(body_len)];
    Ok(Some(ParsedPacket {
        packet,
        headers_len: header_len + PACKET_HEADER_LEN,
        body_len,
        bytes,
    }))
}

/// Returns the envelope of a packet for the receive queue, which assigns the arrival number.
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
