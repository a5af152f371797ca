//! RXM messages that are arriving: in segments, or by rendezvous reads.

use std::collections::{HashMap, VecDeque};

use super::{MAX_READS_IN_FLIGHT, RendezvousRead, RxmPacket, SegmentType};
use crate::tcp::{ProtocolViolation, WireRmaIov};
use crate::transport::PartialId;

/// Maximum number of messages that may arrive in segments at a time on one connection.
pub const MAX_SEGMENTED_MESSAGES: usize = 1024;

/// The RXM part of a connection's receiving half.
#[derive(Debug)]
pub struct RxmReceiver {
    /// Connection id that packets to this side must carry.
    connection: u32,
    /// Messages that arrive in segments, by message id.
    segmented: HashMap<u64, SegmentedMessage>,
    /// Rendezvous messages, in the order in which they are read.
    rendezvous_reads: VecDeque<RendezvousRead>,
    /// Read requests for rendezvous messages without a response.
    reads_in_flight: usize,
    /// The peer no longer responds to reads.
    peer_stopped_responding: bool,
}

/// A message that is arriving in segments.
#[derive(Debug)]
struct SegmentedMessage {
    partial: PartialId,
    /// Bytes of the message whose segments have not begun.
    remaining: u64,
}

impl RxmReceiver {
    /// Returns the receiver of a connection with this local connection id.
    #[must_use]
    pub fn new(connection: u32) -> Self {
        Self {
            connection,
            segmented: HashMap::new(),
            rendezvous_reads: VecDeque::new(),
            reads_in_flight: 0,
            peer_stopped_responding: false,
        }
    }

    /// Checks that the packet carries the id of this connection.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when it does not.
    pub fn check_connection(&self, packet: &RxmPacket) -> Result<(), ProtocolViolation> {
        if packet.connection_id == self.connection {
            return Ok(());
        }
        Err(ProtocolViolation("RXM packet with a wrong connection id"))
    }

    /// Checks that a first segment of `bytes` bytes may begin a message.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when a message with the same id has begun, too many messages have, or
    /// the segment is longer than the message.
    pub fn check_first_segment(
        &self,
        packet: &RxmPacket,
        bytes: u64,
    ) -> Result<(), ProtocolViolation> {
        if self.segmented.contains_key(&packet.message_id) {
            return Err(ProtocolViolation(
                "first segment of a message that has begun already",
            ));
        }
        if self.segmented.len() >= MAX_SEGMENTED_MESSAGES {
            return Err(ProtocolViolation(
                "more than 1024 messages in segments at a time",
            ));
        }
        if bytes > packet.len {
            return Err(TOO_LONG);
        }
        Ok(())
    }

    /// Begins a message in segments.
    pub fn begin_segmented(&mut self, packet: &RxmPacket, partial: PartialId) {
        self.segmented.insert(
            packet.message_id,
            SegmentedMessage {
                partial,
                remaining: packet.len,
            },
        );
    }

    /// Accounts for the next segment of a message; returns the message to append it to.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when no such message has begun, or the segment does not fit it.
    pub fn next_segment(
        &mut self,
        packet: &RxmPacket,
        segment_type: SegmentType,
        bytes: u64,
    ) -> Result<PartialId, ProtocolViolation> {
        let Some(message) = self.segmented.get_mut(&packet.message_id) else {
            return Err(ProtocolViolation("segment of a message that has not begun"));
        };
        let partial = message.partial;
        if bytes == 0 {
            return Err(ProtocolViolation("empty segment"));
        }
        message.remaining = message.remaining.checked_sub(bytes).ok_or(TOO_LONG)?;
        let is_complete = message.remaining == 0;
        // A message of one segment is sent as a first segment.
        if is_complete != (segment_type == SegmentType::Last)
            && !(is_complete && segment_type == SegmentType::First)
        {
            return Err(ProtocolViolation(
                "segment type does not match the length of the message",
            ));
        }
        if is_complete {
            self.segmented.remove(&packet.message_id);
        }
        Ok(partial)
    }

    /// Returns whether a message in segments with this id has begun and is incomplete.
    #[must_use]
    pub fn has_begun(&self, message_id: u64) -> bool {
        self.segmented.contains_key(&message_id)
    }

    /// Adds a message that is to be read from the sender's memory.
    pub fn begin_rendezvous_read(&mut self, read: RendezvousRead) {
        self.rendezvous_reads.push_back(read);
    }

    /// Returns the next remote range to read; `None` while [`MAX_READS_IN_FLIGHT`] reads are
    /// outstanding.
    pub fn next_read(&mut self) -> Option<WireRmaIov> {
        if self.reads_in_flight == MAX_READS_IN_FLIGHT {
            return None;
        }
        let iov = self
            .rendezvous_reads
            .iter_mut()
            .find(|read| !read.is_fully_requested())?
            .next_read()?;
        self.reads_in_flight += 1;
        Some(iov)
    }

    /// Returns the message to which the response to the oldest read belongs.
    #[must_use]
    pub fn oldest_read(&self) -> Option<PartialId> {
        self.rendezvous_reads.front().map(|read| read.partial)
    }

    /// Accounts for the complete response to the oldest read, of `bytes` bytes. Returns the id of
    /// the message if it is now complete, to be reported to its sender.
    pub fn on_read_response(&mut self, bytes: u64) -> Option<u64> {
        self.reads_in_flight = self.reads_in_flight.saturating_sub(1);
        // Responses arrive in the order of the reads, and messages are read one after the other.
        let is_complete = self.rendezvous_reads.front_mut()?.on_received(bytes);
        is_complete.then(|| {
            self.rendezvous_reads
                .pop_front()
                .map(|read| read.message_id)
        })?
    }

    /// Returns whether a read can be requested now.
    #[must_use]
    pub fn wants_read(&self) -> bool {
        self.reads_in_flight < MAX_READS_IN_FLIGHT
            && self
                .rendezvous_reads
                .iter()
                .any(|read| !read.is_fully_requested())
    }

    /// Returns whether read requests for rendezvous messages have no response yet.
    #[must_use]
    pub fn has_reads_in_flight(&self) -> bool {
        self.reads_in_flight > 0
    }

    /// Returns whether messages have begun and are incomplete.
    #[must_use]
    pub fn has_partial(&self) -> bool {
        !self.segmented.is_empty() || !self.rendezvous_reads.is_empty()
    }

    /// Returns whether rendezvous packets are ignored, because the peer no longer responds to
    /// reads.
    #[must_use]
    pub fn peer_stopped_responding(&self) -> bool {
        self.peer_stopped_responding
    }

    /// Ends all reads, because the peer no longer responds; returns the messages that were being
    /// read, which the caller must fail. Later rendezvous packets are ignored.
    #[must_use]
    pub fn end_rendezvous_reads(&mut self) -> Vec<PartialId> {
        self.peer_stopped_responding = true;
        self.rendezvous_reads
            .drain(..)
            .map(|read| read.partial)
            .collect()
    }

    /// Drops all incomplete messages and returns them; the caller must fail them.
    #[must_use]
    pub fn abort(&mut self) -> Vec<PartialId> {
        let segmented = self.segmented.drain().map(|(_, message)| message.partial);
        segmented
            .chain(self.rendezvous_reads.drain(..).map(|read| read.partial))
            .collect()
    }
}

const TOO_LONG: ProtocolViolation = ProtocolViolation("segments longer than their message");
