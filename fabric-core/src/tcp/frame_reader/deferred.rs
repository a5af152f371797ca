//! Messages that are put aside, so that what comes behind them is heard of.
//!
//! Where RXM is spoken, a message that nobody has asked for, and for which there is no room, must
//! not hold up the connection: behind it may come the answer to a read, for which a message before
//! it waits, or a read of a message that was offered. Frames are kept as they came, in their order,
//! within a bound of their own.

use std::collections::VecDeque;

use crate::matching::Envelope;
use crate::rx::{PartialId, RxQueue};
use crate::tcp::rxm::{EAGER_LIMIT, PACKET_HEADER_LEN, PacketKind, RxmPacket, SegmentType};
use crate::tcp::{Frame, FrameKind, MAX_HEADER_LEN, ProtocolViolation};
use crate::transport::EngineContext;

use super::{FrameBody, FrameReader, ReadOutcome, ReceivedFrame, SenderId};

/// Bytes that are kept for one connection: more than a peer sends before it hears of a read.
const MAX_DEFERRED_BYTES: usize = 8 << 20;
/// The longest frame that is kept. No packet is longer.
const MAX_DEFERRED_FRAME: usize = MAX_HEADER_LEN + PACKET_HEADER_LEN + EAGER_LIMIT;

/// What has been put aside.
#[derive(Debug, Default)]
pub(super) struct DeferredFrames {
    frames: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl FrameReader {
    /// Whether messages have been put aside.
    #[must_use]
    pub fn has_deferred(&self) -> bool {
        !self.deferred.frames.is_empty()
    }

    /// Whether the first of them can be taken now.
    #[must_use]
    pub fn can_resume_deferred(&self, who: SenderId, rx: &RxQueue) -> bool {
        let envelope = self
            .deferred
            .frames
            .front()
            .and_then(|frame| self.next_envelope(frame, who));
        envelope.is_some_and(|envelope| rx.would_accept(&envelope))
    }

    /// The message that waits at the start of these bytes.
    pub(super) fn next_envelope(&self, bytes: &[u8], who: SenderId) -> Option<Envelope> {
        let (frame, header) =
            Frame::decode_for(bytes, self.byte_order, self.rxm.is_some()).ok()??;
        match frame.kind {
            FrameKind::Message if self.rxm.is_some() => {
                Self::packet_envelope(&frame, header, bytes, who)
            }
            _ => super::frame_envelope(&frame, who).ok(),
        }
    }

    /// Whether messages wait to be read from their sender, or are being read, which answers no
    /// more.
    #[must_use]
    pub fn accepts_rendezvous(&self) -> bool {
        self.rxm.as_ref().is_some_and(|rxm| !rxm.reads_ended())
    }

    /// The peer answers no more. The messages that were being read; what else it has offered is
    /// nobody's.
    #[must_use]
    pub fn end_rendezvous_reads(&mut self) -> Vec<PartialId> {
        let is_offer = |bytes: &[u8]| {
            let header = Frame::decode_for(bytes, self.byte_order, true)
                .ok()
                .flatten()
                .map_or(0, |(_, header)| header);
            let prefix = bytes.get(header..).and_then(<[u8]>::first_chunk);
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
        self.deferred.frames.retain(|frame| !is_offer(frame));
        self.deferred.bytes = self.deferred.frames.iter().map(|frame| frame.len()).sum();
        self.rxm
            .as_mut()
            .map_or_else(Vec::new, |rxm| rxm.end_rendezvous_reads())
    }

    /// Takes in what was put aside, as far as it goes.
    pub(super) fn read_deferred(
        &mut self,
        who: SenderId,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
        taken: &mut ReadOutcome,
    ) -> Result<(), ProtocolViolation> {
        if !self.has_deferred() {
            return Ok(());
        }
        // A frame may be in the middle of arriving. It is there still when what was put aside turns
        // out to be wrong.
        let landing = self.body.take();
        // It has waited.
        let patience = std::mem::take(&mut self.unexpected_policy);
        let result = self.read_all_deferred(who, (rx, host), taken);
        (self.body, self.unexpected_policy) = (landing, patience);
        result
    }

    fn read_all_deferred(
        &mut self,
        who: SenderId,
        (rx, host): (&mut RxQueue, &mut dyn EngineContext),
        taken: &mut ReadOutcome,
    ) -> Result<(), ProtocolViolation> {
        while let Some(bytes) = self.deferred.frames.pop_front() {
            let mut part = ReadOutcome::default();
            let is_taken = self.read_deferred_frame(&bytes, who, (&mut *rx, &mut *host), &mut part);
            taken.acks_due.append(&mut part.acks_due);
            if !is_taken? {
                self.deferred.frames.push_front(bytes);
                break;
            }
            self.deferred.bytes -= bytes.len();
        }
        Ok(())
    }

    /// Takes a message in, or puts it aside. False when nothing more is to be done now.
    pub(super) fn read_or_defer(
        &mut self,
        found: &ReceivedFrame<'_>,
        who: SenderId,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
        taken: &mut ReadOutcome,
    ) -> Result<bool, ProtocolViolation> {
        if self.must_defer(found) {
            return Ok(self.defer(found, taken));
        }
        let goes_on = self.read_packet_or_tagged(found, who, rx, host, taken)?;
        // What waits for memory is no message: it is held.
        Ok(goes_on || taken.blocked && self.stall.is_none() && self.defer(found, taken))
    }

    /// Takes in a message: a packet, or one that has a tag of the tcp provider's own. False when it
    /// has to wait.
    fn read_packet_or_tagged(
        &mut self,
        found: &ReceivedFrame<'_>,
        who: SenderId,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
        taken: &mut ReadOutcome,
    ) -> Result<bool, ProtocolViolation> {
        match found.frame.kind {
            FrameKind::Message => self.read_packet(found, who, rx, host, taken),
            _ => Ok(self.read_message(
                found,
                super::frame_envelope(found.frame, who)?,
                rx,
                host,
                taken,
            )),
        }
    }

    /// Takes in a frame that was kept. False when it has to be kept on.
    fn read_deferred_frame(
        &mut self,
        bytes: &[u8],
        who: SenderId,
        (rx, host): (&mut RxQueue, &mut dyn EngineContext),
        taken: &mut ReadOutcome,
    ) -> Result<bool, ProtocolViolation> {
        let decoded = Frame::decode_for(bytes, self.byte_order, true)?;
        let (frame, header) =
            decoded.ok_or(ProtocolViolation("a message that has lost its header"))?;
        let found = ReceivedFrame {
            frame: &frame,
            header_len: header,
            bytes,
        };
        let is_taken = self.read_packet_or_tagged(&found, who, rx, host, taken)?;
        // The bytes of a segment are here too.
        if let Some(FrameBody::Message {
            id, ack_due: owes, ..
        }) = self.body.take()
        {
            rx.append(host, id, &&bytes[taken.consumed..]);
            taken.acks_due.extend(self.responses.queue_ack(owes));
        }
        Ok(is_taken)
    }

    /// Whether a message has to wait behind those that were put aside.
    fn must_defer(&self, found: &ReceivedFrame<'_>) -> bool {
        if !self.has_deferred() {
            return false;
        }
        let prefix = found
            .bytes
            .get(found.header_len..)
            .and_then(<[u8]>::first_chunk);
        match prefix.map(RxmPacket::decode) {
            _ if found.frame.kind != FrameKind::Message => true,
            Some(Ok(RxmPacket {
                kind: PacketKind::Segment(SegmentType::Middle | SegmentType::Last, ..),
                message_id: message,
                ..
            })) => self.rxm.as_ref().is_some_and(|rxm| !rxm.has_begun(message)),
            Some(Ok(packet)) => packet.kind.is_message(),
            // It is wrong, or some of it is missing.
            _ => false,
        }
    }

    /// Puts a message aside. False when it is not all here, or there is no room: then it is held.
    fn defer(&mut self, found: &ReceivedFrame<'_>, taken: &mut ReadOutcome) -> bool {
        let len = usize::try_from(found.frame.payload)
            .unwrap_or(usize::MAX)
            .saturating_add(found.header_len);
        if len > MAX_DEFERRED_FRAME || self.deferred.bytes + len > MAX_DEFERRED_BYTES {
            taken.blocked = true;
            return false;
        }
        taken.blocked = false;
        let Some(bytes) = found.bytes.get(..len) else {
            return false;
        };
        self.deferred.frames.push_back(bytes.into());
        self.deferred.bytes += len;
        taken.consumed += len;
        true
    }
}

const _: () = assert!(MAX_DEFERRED_BYTES > MAX_DEFERRED_FRAME);
