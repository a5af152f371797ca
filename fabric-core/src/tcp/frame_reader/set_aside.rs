//! RXM messages that are set aside: the reader keeps the frames that the receive queue declines,
//! and reads the frames behind them.
//!
//! With RXM, a declined message must not block the connection: behind it may be the response to a
//! read for which an earlier message waits, or a read of a rendezvous message. Frames set aside are
//! kept as they arrived, in order, and read again in later passes. What exceeds
//! [`SET_ASIDE_ALLOWANCE`] is charged to the peer in the budget for unexpected messages.

use std::collections::VecDeque;

use crate::matching::Envelope;
use crate::tcp::rxm::{EAGER_LIMIT, PACKET_HEADER_LEN, PacketKind, RxmPacket, SegmentType};
use crate::tcp::{Frame, FrameKind, MAX_HEADER_LEN, ProtocolViolation};
use crate::transport::{EndpointContext, EngineContext, PartialId};

use super::{FrameBody, FrameReader, ReadCall, ReceivedFrame, SenderId, StopReason};

/// Bytes that each connection may set aside without a charge. A peer that has no budget left is
/// able to send this much before it handles a read request. A frame beyond that and beyond the
/// budget blocks the connection.
const SET_ASIDE_ALLOWANCE: usize = 256 << 10;
/// Maximum length of a frame that is set aside, in bytes. No packet is longer.
const MAX_SET_ASIDE_FRAME: usize = MAX_HEADER_LEN + PACKET_HEADER_LEN + EAGER_LIMIT;

/// The frames of a connection that are set aside, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct SetAsideFrames {
    frames: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// The part of `bytes` that is charged to the peer.
    charged: usize,
}

impl SetAsideFrames {
    /// Charges the peer for `bytes` bytes set aside instead of those before. Returns false, with
    /// nothing changed, if the budget has no room.
    fn set_bytes(
        &mut self,
        bytes: usize,
        sender: SenderId,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let charge = bytes.saturating_sub(SET_ASIDE_ALLOWANCE);
        if charge > self.charged {
            if !ctx.charge_peer(sender.0, charge - self.charged) {
                return false;
            }
        } else {
            ctx.release_peer(sender.0, self.charged - charge);
        }
        (self.bytes, self.charged) = (bytes, charge);
        true
    }
}

impl FrameReader {
    /// Returns whether messages are set aside.
    #[must_use]
    pub fn has_set_aside(&self) -> bool {
        !self.set_aside.frames.is_empty()
    }

    /// Returns whether the first message that is set aside can be accepted now, and declines it
    /// again if not.
    #[must_use]
    pub fn try_resume_set_aside(
        &self,
        sender: SenderId,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let envelope = self
            .set_aside
            .frames
            .front()
            .and_then(|frame| self.next_envelope(frame, sender));
        envelope.is_some_and(|envelope| !ctx.decline_again(&envelope))
    }

    /// Returns the envelope of the message at the start of `bytes`.
    pub(super) fn next_envelope(&self, bytes: &[u8], sender: SenderId) -> Option<Envelope> {
        let (frame, header_len) =
            Frame::decode_for(bytes, self.byte_order, self.rxm.is_some()).ok()??;
        match frame.kind {
            FrameKind::Message if self.rxm.is_some() => {
                Self::packet_envelope(&frame, header_len, bytes, sender)
            }
            _ => super::frame_envelope(&frame, sender).ok(),
        }
    }

    /// Returns whether rendezvous messages are accepted, that is, whether the peer still responds
    /// to reads.
    #[must_use]
    pub fn accepts_rendezvous(&self) -> bool {
        self.rxm
            .as_ref()
            .is_some_and(|rxm| !rxm.peer_stopped_responding())
    }

    /// Ends all reads of rendezvous messages, because the peer no longer responds; returns the
    /// messages that were being read, which the caller must fail. Rendezvous packets that are set
    /// aside are dropped.
    #[must_use]
    pub fn end_rendezvous_reads(
        &mut self,
        sender: SenderId,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Vec<PartialId> {
        let is_rendezvous = |bytes: &[u8]| {
            let header_len = Frame::decode_for(bytes, self.byte_order, true)
                .ok()
                .flatten()
                .map_or(0, |(_, header_len)| header_len);
            let prefix = bytes.get(header_len..).and_then(<[u8]>::first_chunk);
            prefix.is_some_and(|prefix| {
                matches!(
                    RxmPacket::decode(prefix),
                    Ok(RxmPacket {
                        kind: PacketKind::Rendezvous,
                        ..
                    })
                )
            })
        };
        self.set_aside.frames.retain(|frame| !is_rendezvous(frame));
        let bytes = self.set_aside.frames.iter().map(|frame| frame.len()).sum();
        self.set_aside.set_bytes(bytes, sender, ctx);
        self.rxm
            .as_mut()
            .map_or_else(Vec::new, |rxm| rxm.end_rendezvous_reads())
    }

    /// Discards the messages that are set aside, because the connection has ended.
    pub fn discard_set_aside(
        &mut self,
        sender: SenderId,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        self.set_aside.frames.clear();
        self.set_aside.set_bytes(0, sender, ctx);
    }

    /// Reads messages that were set aside as far as they can be accepted.
    pub(super) fn read_set_aside(
        &mut self,
        call: &mut ReadCall<'_, '_, impl EngineContext>,
    ) -> Result<(), ProtocolViolation> {
        if !self.has_set_aside() {
            return Ok(());
        }
        // The frame whose payload is arriving is kept, even when a frame that was set aside is
        // malformed.
        let body = self.body.take();
        // Messages that were set aside have waited already, so they are buffered if no receive
        // matches.
        let policy = std::mem::take(&mut self.unexpected_policy);
        let result = self.read_all_set_aside(call);
        (self.body, self.unexpected_policy) = (body, policy);
        result
    }

    /// Reads frames that were set aside in order, until the receive queue declines one.
    fn read_all_set_aside(
        &mut self,
        call: &mut ReadCall<'_, '_, impl EngineContext>,
    ) -> Result<(), ProtocolViolation> {
        while let Some(bytes) = self.set_aside.frames.pop_front() {
            let is_read = self.read_set_aside_frame(&bytes, call)?;
            // What was set aside is not among the bytes of this call, and does not stop it.
            (call.outcome.consumed, call.outcome.stop_reason) = (0, StopReason::NeedsBytes);
            if !is_read {
                self.set_aside.frames.push_front(bytes);
                break;
            }
            let bytes = self.set_aside.bytes - bytes.len();
            self.set_aside.set_bytes(bytes, call.sender, call.ctx);
        }
        Ok(())
    }

    /// Reads a message or sets the message aside. Returns false when the message is incomplete or
    /// has to wait.
    pub(super) fn read_or_set_aside<E: EngineContext>(
        &mut self,
        received: &ReceivedFrame<'_>,
        call: &mut ReadCall<'_, '_, E>,
    ) -> Result<bool, ProtocolViolation> {
        if self.must_set_aside(received) {
            return Ok(self.set_frame_aside(received, call));
        }
        let proceed = self.read_packet_or_tagged(received, call)?;
        // A blocked atomic operation is not a message: it blocks the connection.
        Ok(proceed
            || call.outcome.stop_reason == StopReason::Held
                && self.blocked_on.is_none()
                && self.set_frame_aside(received, call))
    }

    /// Reads a message: a packet, or a tagged frame of the tcp provider itself. Returns false when
    /// the message has to wait.
    fn read_packet_or_tagged<E: EngineContext>(
        &mut self,
        received: &ReceivedFrame<'_>,
        call: &mut ReadCall<'_, '_, E>,
    ) -> Result<bool, ProtocolViolation> {
        match received.frame.kind {
            FrameKind::Message => self.read_packet(received, call),
            _ => {
                let envelope = super::frame_envelope(received.frame, call.sender)?;
                Ok(self.read_message(received, envelope, call))
            }
        }
    }

    /// Reads a frame that was set aside. Returns false when the frame stays set aside.
    fn read_set_aside_frame(
        &mut self,
        bytes: &[u8],
        call: &mut ReadCall<'_, '_, impl EngineContext>,
    ) -> Result<bool, ProtocolViolation> {
        let decoded = Frame::decode_for(bytes, self.byte_order, true)?;
        let (frame, header_len) =
            decoded.ok_or(ProtocolViolation("message set aside without a header"))?;
        let received = ReceivedFrame {
            frame: &frame,
            header_len,
            bytes,
        };
        let is_read = self.read_packet_or_tagged(&received, call)?;
        // The payload of a segment is in the same bytes.
        if let Some(FrameBody::Message { id, ack_due, .. }) = self.body.take() {
            call.ctx.append(id, &&bytes[call.outcome.consumed..]);
            call.send_ack(ack_due);
        }
        Ok(is_read)
    }

    /// Returns whether a message has to wait behind those that are set aside, to keep the order of
    /// messages.
    fn must_set_aside(&self, received: &ReceivedFrame<'_>) -> bool {
        if !self.has_set_aside() {
            return false;
        }
        let prefix = received
            .bytes
            .get(received.header_len..)
            .and_then(<[u8]>::first_chunk);
        match prefix.map(RxmPacket::decode) {
            _ if received.frame.kind != FrameKind::Message => true,
            Some(Ok(RxmPacket {
                kind: PacketKind::Segment(SegmentType::Middle | SegmentType::Last, ..),
                message_id,
                ..
            })) => self
                .rxm
                .as_ref()
                .is_some_and(|rxm| !rxm.has_begun(message_id)),
            Some(Ok(packet)) => packet.kind.is_message(),
            // The packet is malformed or incomplete; the caller reports that.
            _ => false,
        }
    }

    /// Sets a message aside. Returns false when the message is incomplete, or when there is no room
    /// for the message, which then blocks the connection.
    fn set_frame_aside(
        &mut self,
        received: &ReceivedFrame<'_>,
        call: &mut ReadCall<'_, '_, impl EngineContext>,
    ) -> bool {
        let len = usize::try_from(received.frame.payload_len)
            .unwrap_or(usize::MAX)
            .saturating_add(received.header_len);
        if len > MAX_SET_ASIDE_FRAME {
            return call.hold();
        }
        let Some(bytes) = received.bytes.get(..len) else {
            call.outcome.stop_reason = StopReason::NeedsBytes;
            return false;
        };
        let bytes_set_aside = self.set_aside.bytes + len;
        if !self
            .set_aside
            .set_bytes(bytes_set_aside, call.sender, call.ctx)
        {
            return call.hold();
        }
        call.outcome.stop_reason = StopReason::NeedsBytes;
        self.set_aside.frames.push_back(bytes.into());
        call.outcome.consumed += len;
        true
    }
}

const _: () = assert!(SET_ASIDE_ALLOWANCE > MAX_SET_ASIDE_FRAME);
