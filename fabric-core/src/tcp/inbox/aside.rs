//! Messages that are put aside, so that what comes behind them is heard of.
//!
//! Where RXM is spoken, a message that nobody has asked for, and for which there is no room, must
//! not hold up the connection: behind it may come the answer to a read, for which a message before
//! it waits, or a read of a message that was offered. Frames are kept as they came, in their order,
//! within a bound of their own.

use std::collections::VecDeque;

use crate::matching::Envelope;
use crate::provider::Host;
use crate::rx::{LandingId, RxContext};
use crate::tcp::rxm::{EAGER, PREFIX, Packet, PacketKind, Step};
use crate::tcp::{Broken, Frame, FrameKind, LONGEST_HEADER};

use super::{Found, Inbox, Landing, Taken, Who};

/// Bytes that are kept for one connection: more than a peer sends before it hears of a read.
const MOST: usize = 8 << 20;
/// The longest frame that is kept. No packet is longer.
const LONGEST: usize = LONGEST_HEADER + PREFIX + EAGER;

/// What has been put aside.
#[derive(Debug, Default)]
pub(super) struct Aside {
    frames: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Inbox {
    /// Whether messages have been put aside.
    #[must_use]
    pub fn has_aside(&self) -> bool {
        !self.aside.frames.is_empty()
    }

    /// Whether the first of them can be taken now.
    #[must_use]
    pub fn is_aside_wanted(&self, who: Who, rx: &RxContext) -> bool {
        let envelope = self
            .aside
            .frames
            .front()
            .and_then(|frame| self.waiting(frame, who));
        envelope.is_some_and(|envelope| rx.would_take(&envelope))
    }

    /// The message that waits at the start of these bytes.
    pub(super) fn waiting(&self, bytes: &[u8], who: Who) -> Option<Envelope> {
        let (frame, header) = Frame::decode_in(bytes, self.order, self.rxm.is_some()).ok()??;
        match frame.kind {
            FrameKind::Message if self.rxm.is_some() => {
                Self::packet_envelope(&frame, header, bytes, who)
            }
            _ => super::envelope(&frame, who).ok(),
        }
    }

    /// Whether messages wait to be read from their sender, or are being read, which answers no
    /// more.
    #[must_use]
    pub fn awaits_fetches(&self) -> bool {
        self.rxm.as_ref().is_some_and(|rxm| !rxm.is_over())
    }

    /// The peer answers no more. The messages that were being read; what else it has offered is
    /// nobody's.
    #[must_use]
    pub fn end_fetches(&mut self) -> Vec<LandingId> {
        let is_offer = |bytes: &[u8]| {
            let header = Frame::decode_in(bytes, self.order, true)
                .ok()
                .flatten()
                .map_or(0, |(_, header)| header);
            let prefix = bytes.get(header..).and_then(<[u8]>::first_chunk);
            prefix.is_some_and(|prefix| {
                matches!(
                    Packet::decode(prefix),
                    Ok(Packet {
                        kind: PacketKind::Offer,
                        ..
                    })
                )
            })
        };
        self.aside.frames.retain(|frame| !is_offer(frame));
        self.aside.bytes = self.aside.frames.iter().map(|frame| frame.len()).sum();
        self.rxm
            .as_mut()
            .map_or_else(Vec::new, |rxm| rxm.end_fetches())
    }

    /// Takes in what was put aside, as far as it goes.
    pub(super) fn take_aside(
        &mut self,
        who: Who,
        rx: &mut RxContext,
        host: &mut dyn Host,
        taken: &mut Taken,
    ) -> Result<(), Broken> {
        if !self.has_aside() {
            return Ok(());
        }
        // A frame may be in the middle of arriving. It is there still when what was put aside turns
        // out to be wrong.
        let landing = self.landing.take();
        // It has waited.
        let patience = std::mem::take(&mut self.patience);
        let result = self.take_all_kept(who, (rx, host), taken);
        (self.landing, self.patience) = (landing, patience);
        result
    }

    fn take_all_kept(
        &mut self,
        who: Who,
        (rx, host): (&mut RxContext, &mut dyn Host),
        taken: &mut Taken,
    ) -> Result<(), Broken> {
        while let Some(bytes) = self.aside.frames.pop_front() {
            let mut part = Taken::default();
            let is_taken = self.take_kept(&bytes, who, (&mut *rx, &mut *host), &mut part);
            taken.owed.append(&mut part.owed);
            if !is_taken? {
                self.aside.frames.push_front(bytes);
                break;
            }
            self.aside.bytes -= bytes.len();
        }
        Ok(())
    }

    /// Takes a message in, or puts it aside. False when nothing more is to be done now.
    pub(super) fn take_or_keep(
        &mut self,
        found: &Found<'_>,
        who: Who,
        rx: &mut RxContext,
        host: &mut dyn Host,
        taken: &mut Taken,
    ) -> Result<bool, Broken> {
        if self.is_behind(found) {
            return Ok(self.put_aside(found, taken));
        }
        let goes_on = self.take_either(found, who, rx, host, taken)?;
        // What waits for memory is no message: it is held.
        Ok(goes_on || taken.held && self.stuck.is_none() && self.put_aside(found, taken))
    }

    /// Takes in a message: a packet, or one that has a tag of the tcp provider's own. False when it
    /// has to wait.
    fn take_either(
        &mut self,
        found: &Found<'_>,
        who: Who,
        rx: &mut RxContext,
        host: &mut dyn Host,
        taken: &mut Taken,
    ) -> Result<bool, Broken> {
        match found.frame.kind {
            FrameKind::Message => self.take_packet(found, who, rx, host, taken),
            _ => Ok(self.message(found, super::envelope(found.frame, who)?, rx, host, taken)),
        }
    }

    /// Takes in a frame that was kept. False when it has to be kept on.
    fn take_kept(
        &mut self,
        bytes: &[u8],
        who: Who,
        (rx, host): (&mut RxContext, &mut dyn Host),
        taken: &mut Taken,
    ) -> Result<bool, Broken> {
        let decoded = Frame::decode_in(bytes, self.order, true)?;
        let (frame, header) = decoded.ok_or(Broken("a message that has lost its header"))?;
        let found = Found {
            frame: &frame,
            header,
            bytes,
        };
        let is_taken = self.take_either(&found, who, rx, host, taken)?;
        // The bytes of a segment are here too.
        if let Some(Landing::Message { id, owes, .. }) = self.landing.take() {
            rx.land(host, id, &&bytes[taken.bytes..]);
            taken.owed.extend(self.replies.behind(owes));
        }
        Ok(is_taken)
    }

    /// Whether a message has to wait behind those that were put aside.
    fn is_behind(&self, found: &Found<'_>) -> bool {
        if !self.has_aside() {
            return false;
        }
        let prefix = found
            .bytes
            .get(found.header..)
            .and_then(<[u8]>::first_chunk);
        match prefix.map(Packet::decode) {
            _ if found.frame.kind != FrameKind::Message => true,
            Some(Ok(Packet {
                kind: PacketKind::Segment(Step::Middle | Step::Last, ..),
                message,
                ..
            })) => self.rxm.as_ref().is_some_and(|rxm| !rxm.has_begun(message)),
            Some(Ok(packet)) => packet.kind.is_message(),
            // It is wrong, or some of it is missing.
            _ => false,
        }
    }

    /// Puts a message aside. False when it is not all here, or there is no room: then it is held.
    fn put_aside(&mut self, found: &Found<'_>, taken: &mut Taken) -> bool {
        let len = usize::try_from(found.frame.payload)
            .unwrap_or(usize::MAX)
            .saturating_add(found.header);
        if len > LONGEST || self.aside.bytes + len > MOST {
            taken.held = true;
            return false;
        }
        taken.held = false;
        let Some(bytes) = found.bytes.get(..len) else {
            return false;
        };
        self.aside.frames.push_back(bytes.into());
        self.aside.bytes += len;
        taken.bytes += len;
        true
    }
}

const _: () = assert!(MOST > LONGEST);
