//! Packets of RXM: messages within messages.

use crate::matching::Envelope;
use crate::rx::RxQueue;
use crate::tcp::rxm::{
    AtomicHeader, AtomicStatus, EAGER_LIMIT, PACKET_HEADER_LEN, PacketKind, RENDEZVOUS_LEN,
    RendezvousRead, RxmPacket, SegmentType, decode_offer,
};
use crate::tcp::{Frame, MAX_MESSAGE, ProtocolViolation, atomics};
use crate::transport::EngineContext;

use super::{FrameBody, FrameReader, ReadOutcome, ReceivedFrame, SenderId};

/// A packet whose prefix has come.
struct ParsedPacket<'a> {
    packet: RxmPacket,
    /// Bytes of the headers.
    headers_len: usize,
    /// Bytes behind the prefix, whether they have come or not.
    body_len: usize,
    /// Those of them that have.
    bytes: &'a [u8],
}

impl<'a> ParsedPacket<'a> {
    /// All behind the prefix, of what is never longer than one packet; `None` while some of it is
    /// missing.
    fn complete_body(&self) -> Result<Option<&'a [u8]>, ProtocolViolation> {
        if self.body_len > EAGER_LIMIT {
            return Err(ProtocolViolation(
                "an atomic operation, or a response, that is longer than a packet",
            ));
        }
        Ok((self.bytes.len() == self.body_len).then_some(self.bytes))
    }
}

impl FrameReader {
    /// A message is a packet. False when nothing more is to be done now.
    pub(super) fn read_packet(
        &mut self,
        found: &ReceivedFrame<'_>,
        who: SenderId,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
        taken: &mut ReadOutcome,
    ) -> Result<bool, ProtocolViolation> {
        let Some(opened) = parse_packet(found.frame, found.header_len, found.bytes)? else {
            return Ok(false);
        };
        let Some(rxm) = &mut self.rxm else {
            return Ok(false);
        };
        let packet = opened.packet;
        rxm.check_connection(&packet)?;
        let envelope = rxm_envelope(&packet, who)?;
        match packet.kind {
            PacketKind::Eager if opened.body_len != envelope.len => Err(ProtocolViolation(
                "a message that is not as long as it says",
            )),
            PacketKind::Eager => {
                let found = ReceivedFrame {
                    header_len: opened.headers_len,
                    ..*found
                };
                Ok(self.read_message(&found, envelope, rx, host, taken))
            }
            PacketKind::Segment(step, ..) => {
                if step == SegmentType::First {
                    rxm.check_first_segment(&packet, opened.body_len as u64)?;
                    let Some(landing) = rx.begin_partial(host, envelope) else {
                        taken.blocked = true;
                        return Ok(false);
                    };
                    rxm.begin_segmented(&packet, landing);
                }
                let id = rxm.next_segment(&packet, step, opened.body_len as u64)?;
                taken.consumed += opened.headers_len;
                self.body = Some(FrameBody::Message {
                    id,
                    remaining: opened.body_len,
                    ack_due: found.frame.ack_due(),
                });
                Ok(true)
            }
            PacketKind::Rendezvous => {
                if opened.body_len != RENDEZVOUS_LEN {
                    return Err(ProtocolViolation(
                        "a rendezvous that is longer or shorter than one",
                    ));
                }
                let Some(offer) = opened.bytes.first_chunk() else {
                    return Ok(false);
                };
                let rows = decode_offer(offer, packet.len)?;
                if rxm.reads_ended() {
                    taken.consumed += opened.headers_len + opened.body_len;
                    return Ok(true);
                }
                let Some(landing) = rx.begin_partial(host, envelope) else {
                    taken.blocked = true;
                    return Ok(false);
                };
                rxm.begin_rendezvous_read(RendezvousRead::new(
                    landing,
                    packet.message_id,
                    rows,
                    packet.len,
                ));
                Ok(self.finish_packet(found, &opened, taken))
            }
            PacketKind::Atomic(atomic) => {
                self.read_atomic(found, &opened, atomic, who, host, taken)
            }
            PacketKind::AtomicResponse(_) => {
                let Some(body) = opened.complete_body()? else {
                    return Ok(false);
                };
                let response = AtomicStatus::decode(body)?;
                self.pending
                    .on_atomic_response(packet.message_id, response, host)?;
                Ok(self.finish_packet(found, &opened, taken))
            }
            PacketKind::RendezvousDone if opened.body_len > 0 => {
                Err(ProtocolViolation("word of a message with something in it"))
            }
            PacketKind::RendezvousDone => {
                self.responses.on_rendezvous_done(packet.message_id, host)?;
                Ok(self.finish_packet(found, &opened, taken))
            }
        }
    }

    /// An atomic operation on memory of this side. False when it has to wait, or more of it has to
    /// come.
    fn read_atomic(
        &mut self,
        found: &ReceivedFrame<'_>,
        opened: &ParsedPacket<'_>,
        atomic: AtomicHeader,
        who: SenderId,
        host: &mut dyn EngineContext,
        taken: &mut ReadOutcome,
    ) -> Result<bool, ProtocolViolation> {
        if self.responses.is_full() {
            taken.responses_full = true;
            return Ok(false);
        }
        let Some(body) = opened.complete_body()? else {
            return Ok(false);
        };
        let stuck = atomics::execute_packet(
            (&opened.packet, atomic),
            body,
            who.1,
            &mut self.responses,
            host,
        )?;
        if stuck.is_some() {
            (self.stall, taken.blocked) = (stuck, true);
            return Ok(false);
        }
        Ok(self.finish_packet(found, opened, taken))
    }

    /// All of a packet was taken. What it owes keeps its place behind answers. True: there may be
    /// more.
    fn finish_packet(
        &mut self,
        found: &ReceivedFrame<'_>,
        opened: &ParsedPacket<'_>,
        taken: &mut ReadOutcome,
    ) -> bool {
        taken.consumed += opened.headers_len + opened.body_len;
        taken
            .acks_due
            .extend(self.responses.queue_ack(found.frame.ack_due()));
        true
    }

    /// The message that begins with this frame.
    pub(super) fn packet_envelope(
        frame: &Frame,
        header: usize,
        bytes: &[u8],
        who: SenderId,
    ) -> Option<Envelope> {
        rxm_envelope(&parse_packet(frame, header, bytes).ok()??.packet, who).ok()
    }
}

/// The packet behind this header; `None` while some of its prefix is missing.
fn parse_packet<'a>(
    frame: &Frame,
    header: usize,
    bytes: &'a [u8],
) -> Result<Option<ParsedPacket<'a>>, ProtocolViolation> {
    let body = frame
        .payload
        .checked_sub(PACKET_HEADER_LEN as u64)
        .and_then(|body| usize::try_from(body).ok());
    let Some(body) = body.filter(|body| *body <= MAX_MESSAGE) else {
        return Err(ProtocolViolation(
            "a packet without a prefix, or longer than memory",
        ));
    };
    let Some((prefix, behind)) = bytes
        .get(header..)
        .and_then(|bytes| bytes.split_first_chunk())
    else {
        return Ok(None);
    };
    let packet = RxmPacket::decode(prefix)?;
    let bytes = &behind[..behind.len().min(body)];
    Ok(Some(ParsedPacket {
        packet,
        headers_len: header + PACKET_HEADER_LEN,
        body_len: body,
        bytes,
    }))
}

/// What the receive context is shown. It counts arrivals.
fn rxm_envelope(
    packet: &RxmPacket,
    (peer, source): SenderId,
) -> Result<Envelope, ProtocolViolation> {
    let Some(len) = usize::try_from(packet.len)
        .ok()
        .filter(|len| *len <= MAX_MESSAGE)
    else {
        return Err(ProtocolViolation("a message longer than memory"));
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
