//! What has come of messages in segments, and of those that are fetched.

use std::collections::{HashMap, VecDeque};

use super::{MAX_READS_IN_FLIGHT, RendezvousRead, RxmPacket, SegmentType};
use crate::rx::PartialId;
use crate::tcp::{ProtocolViolation, WireRmaIov};

/// Messages of one connection that may arrive in segments at a time.
pub const MAX_SEGMENTED_MESSAGES: usize = 1024;

/// The receiving half of a connection.
#[derive(Debug)]
pub struct RxmReceiver {
    /// What packets to this side must quote.
    connection: u32,
    segmented: HashMap<u64, SegmentedMessage>,
    /// In the order in which they are read.
    rendezvous_reads: VecDeque<RendezvousRead>,
    /// Reads of theirs that are under way.
    reads_in_flight: usize,
    /// The peer answers no more.
    reads_ended: bool,
}

#[derive(Debug)]
struct SegmentedMessage {
    partial: PartialId,
    remaining: u64,
}

impl RxmReceiver {
    /// From a peer that was told to quote this.
    #[must_use]
    pub fn new(connection: u32) -> Self {
        Self {
            connection,
            segmented: HashMap::new(),
            rendezvous_reads: VecDeque::new(),
            reads_in_flight: 0,
            reads_ended: false,
        }
    }

    /// The packet is one for this connection.
    ///
    /// # Errors
    /// It is not.
    pub fn check_connection(&self, packet: &RxmPacket) -> Result<(), ProtocolViolation> {
        if packet.connection_id == self.connection {
            return Ok(());
        }
        Err(ProtocolViolation("a packet that quotes another connection"))
    }

    /// The first segment of a message may begin it, with so many bytes in the segment.
    ///
    /// # Errors
    /// It may not.
    pub fn check_first_segment(
        &self,
        packet: &RxmPacket,
        bytes: u64,
    ) -> Result<(), ProtocolViolation> {
        if self.segmented.contains_key(&packet.message_id) {
            return Err(ProtocolViolation(
                "the first segment of a message that has begun",
            ));
        }
        if self.segmented.len() >= MAX_SEGMENTED_MESSAGES {
            return Err(ProtocolViolation(
                "more messages in segments than anybody sends at a time",
            ));
        }
        if bytes > packet.len {
            return Err(TOO_LONG);
        }
        Ok(())
    }

    /// A message in segments arrives there.
    pub fn begin_segmented(&mut self, packet: &RxmPacket, landing: PartialId) {
        self.segmented.insert(
            packet.message_id,
            SegmentedMessage {
                partial: landing,
                remaining: packet.len,
            },
        );
    }

    /// Where the next so many bytes of a message in segments belong.
    ///
    /// # Errors
    /// There is no such message, or they are not what is missing of it.
    pub fn next_segment(
        &mut self,
        packet: &RxmPacket,
        step: SegmentType,
        bytes: u64,
    ) -> Result<PartialId, ProtocolViolation> {
        let Some(part) = self.segmented.get_mut(&packet.message_id) else {
            return Err(ProtocolViolation(
                "a segment of a message that has not begun",
            ));
        };
        let landing = part.partial;
        if bytes == 0 {
            return Err(ProtocolViolation("a segment with nothing in it"));
        }
        part.remaining = part.remaining.checked_sub(bytes).ok_or(TOO_LONG)?;
        let is_whole = part.remaining == 0;
        // A message of one segment is first and last.
        if is_whole != (step == SegmentType::Last) && !(is_whole && step == SegmentType::First) {
            return Err(ProtocolViolation(
                "a last segment before the end of its message, or none at the end",
            ));
        }
        if is_whole {
            self.segmented.remove(&packet.message_id);
        }
        Ok(landing)
    }

    /// Whether a message of this number in segments has begun and not ended.
    #[must_use]
    pub fn has_begun(&self, message: u64) -> bool {
        self.segmented.contains_key(&message)
    }

    /// A message is to be read from its sender's memory.
    pub fn begin_rendezvous_read(&mut self, fetch: RendezvousRead) {
        self.rendezvous_reads.push_back(fetch);
    }

    /// What is to be read next. Nothing while enough is on its way.
    pub fn next_read(&mut self) -> Option<WireRmaIov> {
        if self.reads_in_flight == MAX_READS_IN_FLIGHT {
            return None;
        }
        let row = self
            .rendezvous_reads
            .iter_mut()
            .find(|fetch| !fetch.is_fully_requested())?
            .next_read()?;
        self.reads_in_flight += 1;
        Some(row)
    }

    /// Where the answer to the oldest read belongs.
    #[must_use]
    pub fn oldest_read(&self) -> Option<PartialId> {
        self.rendezvous_reads.front().map(|fetch| fetch.partial)
    }

    /// All of the answer to the oldest read has come, which is so many bytes. The number of the
    /// message that has all of its bytes with it, which its sender is to be told.
    pub fn on_read_response(&mut self, bytes: u64) -> Option<u64> {
        self.reads_in_flight = self.reads_in_flight.saturating_sub(1);
        // Answers come in the order of reads, and one message is asked for after the other.
        let is_whole = self.rendezvous_reads.front_mut()?.on_received(bytes);
        is_whole.then(|| {
            self.rendezvous_reads
                .pop_front()
                .map(|fetch| fetch.message_id)
        })?
    }

    /// Whether there is something to be read next.
    #[must_use]
    pub fn wants_read(&self) -> bool {
        self.reads_in_flight < MAX_READS_IN_FLIGHT
            && self
                .rendezvous_reads
                .iter()
                .any(|fetch| !fetch.is_fully_requested())
    }

    /// Whether messages have begun and not ended.
    #[must_use]
    pub fn has_partial(&self) -> bool {
        !self.segmented.is_empty() || !self.rendezvous_reads.is_empty()
    }

    /// Whether offers mean nothing any more.
    #[must_use]
    pub fn reads_ended(&self) -> bool {
        self.reads_ended
    }

    /// The peer answers no more: nothing is read from now on. The messages that were being read.
    #[must_use]
    pub fn end_rendezvous_reads(&mut self) -> Vec<PartialId> {
        self.reads_ended = true;
        self.rendezvous_reads
            .drain(..)
            .map(|fetch| fetch.partial)
            .collect()
    }

    /// Messages that have begun and will not end.
    #[must_use]
    pub fn abort(&mut self) -> Vec<PartialId> {
        let parts = self.segmented.drain().map(|(_, part)| part.partial);
        parts
            .chain(self.rendezvous_reads.drain(..).map(|fetch| fetch.partial))
            .collect()
    }
}

const TOO_LONG: ProtocolViolation =
    ProtocolViolation("segments that are longer than their message");
