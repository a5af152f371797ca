//! What a peer does to memory of this side: answers to its questions.
//!
//! A question waits, with nothing but the places that it names, until there is room for its answer;
//! long answers are made piece by piece, between two messages. So a peer that asks for much and
//! reads nothing costs a bounded number of questions and one piece, and may have to wait until it
//! reads. How many bytes it may ask for has no limit: they lie where they are anyway, and two peers
//! that each ask for much would both stop listening, and never read what they have asked for. What
//! atomic operations fetch is here from the beginning, and has a limit.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::completion::{OpKind, Transfer};
use crate::error::Error;
use crate::matching::PeerKey;
use crate::mr::{AccessError, RegionMemory};
use crate::transport::{EngineContext, EpId, RemoteAccess};
use crate::{FiAddr, buf::Payload};

use super::frame::STATUS_LEN;
use super::rendezvous::{MessageRange, RendezvousSends};
use super::rxm::{AtomicHeader, AtomicStatus};
use super::{AckDue, FrameWriter, ProtocolViolation, RmaIovList, RmaNack};

/// Questions that wait for their answers before no more is read.
const MAX_RESPONSES: usize = 1024;
/// Bytes of answers that lie in no region and wait to be sent, before no more is read.
const MAX_BUFFERED_BYTES: usize = 64 << 10;
/// Bytes that are looked for in one go.
const READ_CHUNK: usize = 16 << 10;

pub(super) const ACCESS_VIOLATION: ProtocolViolation =
    ProtocolViolation("an access to memory that it may not reach");
const REGION_CLOSED: ProtocolViolation =
    ProtocolViolation("memory was taken back in the middle of an answer");

/// A place that a peer has named, after it was checked.
#[derive(Clone, Debug)]
pub(super) struct CheckedSegment {
    pub(super) memory: Arc<dyn RegionMemory>,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) key: u64,
    /// Its owner wants to hear of everything that is done there.
    pub(super) rma_events: bool,
}

/// Checks all places of an operation.
fn check_segments(
    rows: &RmaIovList,
    kind: OpKind,
    host: &dyn EngineContext,
) -> Result<Vec<CheckedSegment>, RmaNack> {
    let mut spots = Vec::with_capacity(rows.len());
    for (number, row) in rows.iter().enumerate() {
        let place = row.to_rma_iov();
        let refused = |why| RmaNack {
            is_read: kind.fills_buffer(),
            iov_index: number as u8,
            error: why,
        };
        let (region, at) =
            AccessError::check(host.region(place.key), kind, &place, place.len).map_err(refused)?;
        let (memory, heeds) = (region.memory.clone(), region.rma_events);
        spots.push(CheckedSegment {
            memory,
            offset: at,
            len: place.len,
            key: place.key,
            rma_events: heeds,
        });
    }
    Ok(spots)
}

/// The answers that are owed to a peer, in its order.
#[derive(Debug)]
pub struct ResponseQueue {
    pub(super) ep: EpId,
    /// The endpoint wants to hear of everything that peers do.
    pub(super) rma_events: bool,
    /// Peers may reach memory of its domain.
    pub(super) is_target: bool,
    /// The peer understands why something is refused.
    pub(super) is_same_implementation: bool,
    /// Messages that the peer may read where they lie.
    pub rendezvous: RendezvousSends,
    queue: VecDeque<Response>,
    /// Bytes that are in the queue themselves.
    buffered_bytes: usize,
    /// How far the first has come, if it has begun.
    position: Option<ResponsePosition>,
}

/// Something that is owed to a peer.
#[derive(Debug)]
enum Response {
    /// An acknowledgement that comes behind answers.
    Ack(Option<AckDue>),
    Fetched(Vec<u8>),
    /// What has come of an atomic operation of this number where RXM is spoken.
    AtomicResponse((u64, AtomicHeader), AtomicStatus, Vec<u8>),
    Read(Vec<CheckedSegment>),
    /// Parts of messages that were offered.
    Rendezvous(Vec<MessageRange>),
    Nack(RmaNack),
}

#[derive(Clone, Copy, Debug, Default)]
struct ResponsePosition {
    segment: usize,
    offset: usize,
    /// The rest means nothing.
    failed_segment: Option<u8>,
}

/// What became of an attempt to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseStatus {
    /// Nothing is owed any more.
    Idle,
    /// There is no more room: it goes on when some has left.
    WriterFull,
    /// Enough for now: no further answer begins before others had their turn.
    Yield,
    /// The owner of the memory has it in hand: it goes on when that has changed.
    RegionBusy,
}

impl ResponseQueue {
    /// Of a connection to this endpoint.
    #[must_use]
    pub(super) fn new() -> Self {
        let (rendezvous, queue) = (RendezvousSends::default(), VecDeque::new());
        let (ep, position) = (EpId(0), None);
        Self {
            ep,
            rma_events: false,
            is_target: false,
            is_same_implementation: false,
            rendezvous,
            queue,
            buffered_bytes: 0,
            position,
        }
    }

    /// Whether nothing is owed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether an answer has begun and not ended: nothing else may be sent.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.position.is_some()
    }

    /// Whether a peer has asked for so much that no more is listened to for now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queue.len() >= MAX_RESPONSES || self.buffered_bytes >= MAX_BUFFERED_BYTES
    }

    /// Whether all that waits is for an owner who has the memory in hand.
    #[must_use]
    pub fn is_blocked_on_region(&self) -> bool {
        let Some(Response::Read(spots)) = self.queue.front() else {
            return false;
        };
        match self.position {
            None => !spots.iter().all(is_accessible),
            Some(at) => spots
                .get(at.segment)
                .is_some_and(|spot| !is_accessible(spot)),
        }
    }

    pub(super) fn push_fetched(&mut self, bytes: Vec<u8>) {
        self.buffered_bytes += bytes.len();
        self.queue.push_back(Response::Fetched(bytes));
    }

    pub(super) fn push_atomic_response(
        &mut self,
        to: (u64, AtomicHeader),
        status: AtomicStatus,
        fetched: Vec<u8>,
    ) {
        self.buffered_bytes += fetched.len();
        self.queue
            .push_back(Response::AtomicResponse(to, status, fetched));
    }

    /// Has an acknowledgement keep its place behind the answers that are owed; gives it back when
    /// there are none.
    pub(super) fn queue_ack(&mut self, owed: Option<AckDue>) -> Option<AckDue> {
        if owed.is_some() && !self.queue.is_empty() {
            self.queue.push_back(Response::Ack(owed));
            return None;
        }
        owed
    }

    pub(super) fn push_nack(&mut self, denial: RmaNack) {
        self.queue.push_back(Response::Nack(denial));
    }

    /// Checks all places of an operation.
    pub(super) fn check_segments(
        &self,
        rows: &RmaIovList,
        kind: OpKind,
        host: &dyn EngineContext,
    ) -> Result<Vec<CheckedSegment>, RmaNack> {
        if !self.is_target && !rows.is_empty() {
            return Err(RmaNack {
                is_read: kind.fills_buffer(),
                iov_index: 0,
                error: AccessError::UnknownKey,
            });
        }
        check_segments(rows, kind, host)
    }

    /// A question for these places.
    pub(super) fn on_read(
        &mut self,
        rows: &RmaIovList,
        host: &dyn EngineContext,
    ) -> Result<(), ProtocolViolation> {
        if let Some(parts) = self.rendezvous.message_ranges(rows) {
            self.queue.push_back(Response::Rendezvous(parts?));
            return Ok(());
        }
        match self.check_segments(rows, OpKind::Read, host) {
            Ok(spots) => self.queue.push_back(Response::Read(spots)),
            Err(denial) if self.is_same_implementation => {
                self.queue.push_back(Response::Nack(denial))
            }
            Err(_) => return Err(ACCESS_VIOLATION),
        }
        Ok(())
    }

    /// The peer says that it has read the message of this number.
    pub(super) fn on_rendezvous_done(
        &mut self,
        number: u64,
        host: &mut dyn EngineContext,
    ) -> Result<(), ProtocolViolation> {
        let taken = self.rendezvous.take_completed(number)?;
        let is_read = |due: &Response| match due {
            Response::Rendezvous(parts) => parts.iter().any(|part| part.op == taken.op()),
            _ => false,
        };
        let is_early = self.queue.iter().any(is_read);
        // Its buffer goes with the operation: what is owed of it cannot be said any more.
        if is_early {
            self.clear();
        }
        taken.complete(host);
        if is_early {
            Err(ProtocolViolation(
                "word that a message was read which is still being read",
            ))
        } else {
            Ok(())
        }
    }

    /// Nothing that was offered will be read.
    pub fn fail(&mut self, host: &mut dyn EngineContext, error: &Error) {
        self.clear();
        self.rendezvous.fail(host, error);
    }

    /// Nothing of it is said any more.
    pub fn clear(&mut self) {
        self.queue.clear();
        (self.buffered_bytes, self.position) = (0, None);
    }

    /// Answers, as long as fewer than `most` bytes wait to be sent. None begins after so many bytes
    /// as make a `turn`: what else is to be sent to this peer comes between two answers.
    ///
    /// # Errors
    /// An answer that was begun cannot be finished: the connection has to end.
    pub fn write_responses(
        &mut self,
        outbox: &mut FrameWriter,
        (most, turn): (usize, usize),
        (_, source): (PeerKey, Option<FiAddr>),
        host: &mut dyn EngineContext,
    ) -> Result<ResponseStatus, ProtocolViolation> {
        let before = outbox.pending().len();
        loop {
            let Some(first) = self.queue.front_mut() else {
                return Ok(ResponseStatus::Idle);
            };
            if outbox.pending().len() >= most || outbox.is_open() && self.position.is_none() {
                return Ok(ResponseStatus::WriterFull);
            }
            if self.position.is_none() && outbox.pending().len() - before >= turn {
                return Ok(ResponseStatus::Yield);
            }
            match first {
                Response::Ack(owed) => owed
                    .take()
                    .into_iter()
                    .for_each(|owed| outbox.push_ack(owed)),
                Response::Nack(denial) => outbox.push_nack(*denial),
                Response::Fetched(bytes) => {
                    self.buffered_bytes -= bytes.len();
                    outbox.begin_read_response(self.is_same_implementation, bytes.len() as u64);
                    outbox.extend_read_response(Payload::Contiguous(bytes));
                    end_read_response(outbox, self.is_same_implementation, None);
                }
                Response::AtomicResponse(to, status, fetched) => {
                    self.buffered_bytes -= fetched.len();
                    outbox.push_atomic_response(*to, *status, fetched);
                }
                Response::Rendezvous(parts) => {
                    let mut at = self.position.unwrap_or_else(|| {
                        outbox.begin_read_response(
                            false,
                            parts.iter().map(|part| part.len as u64).sum(),
                        );
                        ResponsePosition::default()
                    });
                    let is_whole = at.copy_rendezvous(parts, outbox, most, host);
                    self.position = Some(at);
                    if !is_whole {
                        return Ok(ResponseStatus::WriterFull);
                    }
                    end_read_response(outbox, false, None);
                }
                Response::Read(spots) => {
                    let mut at = match self.position {
                        Some(at) => at,
                        None if spots.iter().all(is_accessible) => {
                            let total = spots.iter().map(|spot| spot.len as u64).sum();
                            outbox.begin_read_response(self.is_same_implementation, total);
                            *self.position.insert(ResponsePosition::default())
                        }
                        None => return Ok(ResponseStatus::RegionBusy),
                    };
                    let gone_on =
                        at.copy_segments(spots, outbox, most, self.is_same_implementation);
                    self.position = Some(at);
                    match gone_on? {
                        ResponseStatus::Idle => {}
                        wait => return Ok(wait),
                    }
                    end_read_response(outbox, self.is_same_implementation, at.failed_segment);
                    for spot in spots.iter().filter(|spot| {
                        at.failed_segment.is_none() && (self.rma_events || spot.rma_events)
                    }) {
                        host.on_remote_access(
                            self.ep,
                            spot.key,
                            RemoteAccess::Read,
                            Transfer::written(spot.len, None, source),
                        );
                    }
                }
            }
            self.position = None;
            self.queue.pop_front();
        }
    }
}

/// Whether an access to it can begin, or fails at once.
pub(super) fn is_accessible(spot: &CheckedSegment) -> bool {
    if !spot.memory.begin_access() {
        return !spot.memory.is_open();
    }
    spot.memory.end_access();
    true
}

/// All bytes of an answer have been made.
fn end_read_response(outbox: &mut FrameWriter, is_kin: bool, spoilt: Option<u8>) {
    if is_kin {
        let (code, detail) = spoilt.map_or((0, 0), |_| AccessError::UnknownKey.to_words());
        outbox.push_status([code | u64::from(spoilt.unwrap_or(0)) << 8, detail]);
    }
    outbox.end_read_response();
}

impl ResponsePosition {
    /// Copies pieces of messages that were offered. True when all of them are copied.
    fn copy_rendezvous(
        &mut self,
        parts: &[MessageRange],
        outbox: &mut FrameWriter,
        most: usize,
        host: &dyn EngineContext,
    ) -> bool {
        while let Some(part) = parts.get(self.segment) {
            let piece = (part.len - self.offset).min(most.saturating_sub(outbox.pending().len()));
            if piece == 0 && self.offset < part.len {
                return false;
            }
            outbox.extend_read_response(host.payload(part.op).slice(part.at + self.offset, piece));
            self.offset += piece;
            if self.offset == part.len {
                *self = Self {
                    segment: self.segment + 1,
                    offset: 0,
                    ..*self
                };
            }
        }
        true
    }

    /// Copies pieces of the places. `Nothing` when all of them are copied.
    fn copy_segments(
        &mut self,
        spots: &[CheckedSegment],
        outbox: &mut FrameWriter,
        most: usize,
        is_kin: bool,
    ) -> Result<ResponseStatus, ProtocolViolation> {
        while let Some(spot) = spots.get(self.segment) {
            let piece = (spot.len - self.offset)
                .min(READ_CHUNK)
                .min(most.saturating_sub(outbox.pending().len()));
            if piece == 0 && self.offset < spot.len {
                return Ok(ResponseStatus::WriterFull);
            }
            if self.failed_segment.is_none() && !spot.memory.is_open() {
                if !is_kin {
                    return Err(REGION_CLOSED);
                }
                self.failed_segment = Some(self.segment as u8);
            }
            if self.failed_segment.is_some() {
                outbox.fill_read_response(piece, |_| {});
            } else if spot.memory.begin_access() {
                outbox.fill_read_response(piece, |into| {
                    spot.memory.read(spot.offset + self.offset, into)
                });
                spot.memory.end_access();
            } else if spot.memory.is_open() {
                return Ok(ResponseStatus::RegionBusy);
            } else {
                continue;
            }
            self.offset += piece;
            if self.offset == spot.len {
                *self = Self {
                    segment: self.segment + 1,
                    offset: 0,
                    ..*self
                };
            }
        }
        Ok(ResponseStatus::Idle)
    }
}

/// What a verdict says: nothing is wrong, or the row that is, and why.
pub(super) fn decode_status(words: [u64; 2]) -> Option<(u8, AccessError)> {
    let row = (words[0] >> 8) as u8;
    AccessError::from_words(words[0] & 0xff, words[1]).map(|why| (row, why))
}

const _: () = assert!(STATUS_LEN == 16, "two words");

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that asks and does not read has this side keep little.
    #[test]
    fn buffered_responses_are_bounded_by_bytes_and_count() {
        let mut replies = ResponseQueue::new();
        while !replies.is_full() {
            replies.push_fetched(vec![0; 4096]);
        }
        assert_eq!(
            (replies.queue.len(), replies.buffered_bytes),
            (16, MAX_BUFFERED_BYTES)
        );
        replies.clear();
        assert!(!replies.is_full() && replies.is_empty());
        (0..MAX_RESPONSES).for_each(|_| replies.push_fetched(vec![0; 8]));
        assert!(replies.is_full() && replies.buffered_bytes < MAX_BUFFERED_BYTES);
    }
}
