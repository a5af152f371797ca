//! The responder: reads and atomics of the peer on memory of this side.
//!
//! **Read responses are generated lazily.** The responder queues the read *requests* (key, offset,
//! length), not the data, and copies from the region in chunks when the socket has room. The number
//! of requests (1024) bounds the memory. The number of requested bytes is not bounded, because the
//! bytes stay in the region. If it were, two peers that read much from each other would both stop
//! reading their sockets. Consequence: a read may observe a later write, so `FI_ORDER_WAR` and
//! `FI_ORDER_SAR` are not offered, as in libfabric. Fetching atomics are the exception: they
//! execute on arrival, and the queue takes no more requests once it buffers 64 KiB of results.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::completion::{OpKind, Transfer};
use crate::error::Error;
use crate::matching::PeerKey;
use crate::mr::{AccessError, PeerAccess, RegionMemory};
use crate::transport::{EndpointContext, EngineContext, RemoteAccess};
use crate::{FiAddr, buf::Payload};

use super::frame::ACCESS_VIOLATION;
use super::frame::STATUS_LEN;
use super::rendezvous::{MessageRange, RendezvousSends};
use super::rxm::{AtomicHeader, AtomicStatus};
use super::{AckDue, FrameWriter, ProtocolViolation, RmaIovList, RmaNack};

/// Maximum number of queued responses; while the queue is full, no more requests are read.
const MAX_RESPONSES: usize = 1024;
/// Maximum number of buffered response bytes; from then on no more requests are read.
const MAX_BUFFERED_BYTES: usize = 64 << 10;
/// Maximum number of bytes copied from a region in one step.
const READ_CHUNK: usize = 16 << 10;

const REGION_CLOSED: ProtocolViolation =
    ProtocolViolation("memory region closed while a read response was being sent");

/// A remote range of a request, after the access check.
#[derive(Clone, Debug)]
pub(super) struct CheckedSegment {
    pub(super) memory: Arc<dyn RegionMemory>,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) key: u64,
    /// The owner of the region wants an event for every access.
    pub(super) rma_events: bool,
}

impl CheckedSegment {
    /// Returns whether an access to the segment need not wait for the owner of its region.
    pub(super) fn is_accessible(&self) -> bool {
        PeerAccess::is_possible(&*self.memory)
    }
}

/// The responses that are due to a peer, in order.
#[derive(Debug, Default)]
pub struct ResponseQueue {
    /// The endpoint wants an event for every access of its peers.
    pub(super) rma_events: bool,
    /// Peers may access memory of the domain through this endpoint.
    pub(super) is_target: bool,
    /// The peer is of this library and understands nacks.
    pub(super) is_same_implementation: bool,
    /// Messages that the peer may read from their buffers.
    pub rendezvous: RendezvousSends,
    queue: VecDeque<Response>,
    /// Bytes of atomic results in the queue.
    buffered_bytes: usize,
    /// Position in the first response, if that response has begun.
    position: Option<ResponsePosition>,
}

/// A queued response.
#[derive(Debug)]
enum Response {
    /// An ack that must follow the responses queued before it; `None` once it was written.
    Ack(Option<AckDue>),
    /// The values that an atomic operation of the native protocol has fetched.
    Fetched(Vec<u8>),
    /// The response to the RXM atomic operation with this id.
    RxmAtomic((u64, AtomicHeader), AtomicStatus, Vec<u8>),
    /// The bytes of these segments.
    Read(Vec<CheckedSegment>),
    /// Ranges of rendezvous messages.
    Rendezvous(Vec<MessageRange>),
    /// The nack of a read or of a fetching atomic operation.
    Nack(RmaNack),
}

/// Position in a read response.
#[derive(Clone, Copy, Debug, Default)]
struct ResponsePosition {
    /// Index of the segment that is copied next.
    segment: usize,
    /// Number of bytes copied from that segment.
    offset: usize,
    /// Index of the segment whose region was closed; the remaining bytes are zero.
    failed_segment: Option<u8>,
}

/// Why [`ResponseQueue::write_responses`] has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseStatus {
    /// No response is due.
    Idle,
    /// The writer is full: continue when some of its bytes have been sent.
    WriterFull,
    /// The share of this turn is used up: other frames to the peer go first.
    Yield,
    /// The region is locked by its owner: continue when it is unlocked.
    RegionLocked,
}

impl ResponseQueue {
    /// Sets whether peers may access memory of the domain, and whether the endpoint wants an event
    /// for every access.
    pub fn enable_rma_target(&mut self, is_target: bool, rma_events: bool) {
        (self.is_target, self.rma_events) = (is_target, rma_events);
    }

    /// Notes that the peer is of this library and understands its vendor-specific frames.
    pub fn set_same_implementation(&mut self) {
        self.is_same_implementation = true;
    }

    /// Returns whether no response is due.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether a response has begun and not ended: no other frame may be sent.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.position.is_some()
    }

    /// Returns whether the queue is full, so that no more requests are read.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queue.len() >= MAX_RESPONSES || self.buffered_bytes >= MAX_BUFFERED_BYTES
    }

    /// Returns whether the first response waits for a region that its owner has locked.
    #[must_use]
    pub fn is_blocked_on_region(&self) -> bool {
        let Some(Response::Read(segments)) = self.queue.front() else {
            return false;
        };
        match self.position {
            None => !segments.iter().all(CheckedSegment::is_accessible),
            Some(position) => segments
                .get(position.segment)
                .is_some_and(|segment| !segment.is_accessible()),
        }
    }

    /// Queues the values that an atomic operation of the native protocol has fetched.
    pub(super) fn push_fetched(&mut self, bytes: Vec<u8>) {
        self.buffered_bytes += bytes.len();
        self.queue.push_back(Response::Fetched(bytes));
    }

    /// Queues the response to an RXM atomic operation.
    pub(super) fn push_atomic_response(
        &mut self,
        request: (u64, AtomicHeader),
        status: AtomicStatus,
        fetched: Vec<u8>,
    ) {
        self.buffered_bytes += fetched.len();
        self.queue
            .push_back(Response::RxmAtomic(request, status, fetched));
    }

    /// Queues an ack behind responses that are due; returns the ack when no response is due.
    pub(super) fn queue_ack(&mut self, due: Option<AckDue>) -> Option<AckDue> {
        if due.is_some() && !self.queue.is_empty() {
            self.queue.push_back(Response::Ack(due));
            return None;
        }
        due
    }

    /// Queues the nack of a fetching atomic operation.
    pub(super) fn push_nack(&mut self, nack: RmaNack) {
        self.queue.push_back(Response::Nack(nack));
    }

    /// Checks all remote ranges of an operation; returns their segments, or the nack of the first
    /// range that fails.
    pub(super) fn check_segments(
        &self,
        iovs: &RmaIovList,
        kind: OpKind,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> Result<Vec<CheckedSegment>, RmaNack> {
        if !self.is_target {
            return Err(RmaNack {
                is_read: kind.fills_buffer(),
                iov_index: 0,
                error: AccessError::UnknownKey,
            });
        }
        let mut segments = Vec::with_capacity(iovs.len());
        for (index, iov) in iovs.iter().enumerate() {
            let remote = iov.to_rma_iov();
            let nack = |error| RmaNack {
                is_read: kind.fills_buffer(),
                iov_index: index as u8,
                error,
            };
            let region = ctx.region(remote.key);
            let (region, offset) =
                AccessError::check(region.as_ref(), kind, &remote, remote.len).map_err(nack)?;
            segments.push(CheckedSegment {
                memory: region.memory.clone(),
                offset,
                len: remote.len,
                key: remote.key,
                rma_events: region.rma_events,
            });
        }
        Ok(segments)
    }

    /// Queues the response to a read request for these remote ranges.
    pub(super) fn on_read(
        &mut self,
        iovs: &RmaIovList,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> Result<(), ProtocolViolation> {
        if let Some(ranges) = self.rendezvous.message_ranges(iovs) {
            self.queue.push_back(Response::Rendezvous(ranges?));
            return Ok(());
        }
        match self.check_segments(iovs, OpKind::Read, ctx) {
            Ok(segments) => self.queue.push_back(Response::Read(segments)),
            Err(nack) if self.is_same_implementation => self.queue.push_back(Response::Nack(nack)),
            Err(_) => return Err(ACCESS_VIOLATION),
        }
        Ok(())
    }

    /// Completes the rendezvous message with this id, which the peer reports as read.
    pub(super) fn on_rendezvous_done(
        &mut self,
        id: u64,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<(), ProtocolViolation> {
        let completed = self.rendezvous.take_completed(id)?;
        let reads_message = |response: &Response| match response {
            Response::Rendezvous(ranges) => ranges.iter().any(|range| range.op == completed.op()),
            _ => false,
        };
        let is_early = self.queue.iter().any(reads_message);
        // The completion returns the buffer to the program, so the queued responses cannot be sent.
        if is_early {
            self.clear();
        }
        completed.complete(ctx);
        if is_early {
            Err(ProtocolViolation(
                "rendezvous acknowledged while a read of it is pending",
            ))
        } else {
            Ok(())
        }
    }

    /// Fails all rendezvous messages and drops all responses.
    pub fn fail(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>, error: &Error) {
        self.clear();
        self.rendezvous.fail(ctx, error);
    }

    /// Drops all responses.
    pub fn clear(&mut self) {
        self.queue.clear();
        (self.buffered_bytes, self.position) = (0, None);
    }

    /// Writes responses while fewer than `limit` bytes wait to be sent. No response begins once
    /// `turn` bytes have been written, so that other frames to the peer can go first.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when a response that has begun cannot be finished, because its region
    /// was closed: the connection has to end.
    pub fn write_responses(
        &mut self,
        writer: &mut FrameWriter,
        (limit, turn): (usize, usize),
        (_, source): (PeerKey, Option<FiAddr>),
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<ResponseStatus, ProtocolViolation> {
        let before = writer.pending().len();
        loop {
            let Some(first) = self.queue.front_mut() else {
                return Ok(ResponseStatus::Idle);
            };
            if writer.pending().len() >= limit || writer.is_open() && self.position.is_none() {
                return Ok(ResponseStatus::WriterFull);
            }
            if self.position.is_none() && writer.pending().len() - before >= turn {
                return Ok(ResponseStatus::Yield);
            }
            match first {
                Response::Ack(due) => due.take().into_iter().for_each(|due| writer.push_ack(due)),
                Response::Nack(nack) => writer.push_nack(*nack),
                Response::Fetched(bytes) => {
                    self.buffered_bytes -= bytes.len();
                    writer.begin_read_response(self.is_same_implementation, bytes.len() as u64);
                    writer.extend_read_response(Payload::Contiguous(bytes));
                    end_read_response(writer, self.is_same_implementation, None);
                }
                Response::RxmAtomic(request, status, fetched) => {
                    self.buffered_bytes -= fetched.len();
                    writer.push_atomic_response(*request, *status, fetched);
                }
                Response::Rendezvous(ranges) => {
                    let mut position = self.position.unwrap_or_else(|| {
                        writer.begin_read_response(
                            false,
                            ranges.iter().map(|range| range.len as u64).sum(),
                        );
                        ResponsePosition::default()
                    });
                    let is_done = position.copy_rendezvous(ranges, writer, limit, ctx);
                    self.position = Some(position);
                    if !is_done {
                        return Ok(ResponseStatus::WriterFull);
                    }
                    end_read_response(writer, false, None);
                }
                Response::Read(segments) => {
                    let mut position = match self.position {
                        Some(position) => position,
                        None if segments.iter().all(CheckedSegment::is_accessible) => {
                            let total = segments.iter().map(|segment| segment.len as u64).sum();
                            writer.begin_read_response(self.is_same_implementation, total);
                            *self.position.insert(ResponsePosition::default())
                        }
                        None => return Ok(ResponseStatus::RegionLocked),
                    };
                    let progress = position.copy_segments(
                        segments,
                        writer,
                        limit,
                        self.is_same_implementation,
                    );
                    self.position = Some(position);
                    match progress? {
                        ResponseStatus::Idle => {}
                        status => return Ok(status),
                    }
                    end_read_response(writer, self.is_same_implementation, position.failed_segment);
                    // A read that failed in part is not reported.
                    for segment in segments.iter().filter(|segment| {
                        position.failed_segment.is_none() && (self.rma_events || segment.rma_events)
                    }) {
                        ctx.on_remote_access(
                            segment.key,
                            RemoteAccess::Read,
                            Transfer::written(segment.len, None, source),
                        );
                    }
                }
            }
            self.position = None;
            self.queue.pop_front();
        }
    }
}

/// Ends a read response; if `is_checked`, with a status.
fn end_read_response(writer: &mut FrameWriter, is_checked: bool, failed_segment: Option<u8>) {
    if is_checked {
        let (code, detail) = failed_segment.map_or((0, 0), |_| AccessError::UnknownKey.to_words());
        writer.push_status([code | u64::from(failed_segment.unwrap_or(0)) << 8, detail]);
    }
    writer.end_read_response();
}

impl ResponsePosition {
    /// Copies ranges of rendezvous messages. Returns true when all of them are copied.
    fn copy_rendezvous(
        &mut self,
        ranges: &[MessageRange],
        writer: &mut FrameWriter,
        limit: usize,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        while let Some(range) = ranges.get(self.segment) {
            let count = (range.len - self.offset).min(limit.saturating_sub(writer.pending().len()));
            if count == 0 && self.offset < range.len {
                return false;
            }
            writer.extend_read_response(ctx.payload(range.op).slice(range.at + self.offset, count));
            self.offset += count;
            if self.offset == range.len {
                *self = Self {
                    segment: self.segment + 1,
                    offset: 0,
                    ..*self
                };
            }
        }
        true
    }

    /// Copies the segments in chunks. Returns [`ResponseStatus::Idle`] when all of them are copied.
    /// If a region is closed, the rest of a checked response is zeros and its status reports the
    /// failure.
    ///
    /// # Errors
    /// [`ProtocolViolation`] if a region is closed and the response is not checked.
    fn copy_segments(
        &mut self,
        segments: &[CheckedSegment],
        writer: &mut FrameWriter,
        limit: usize,
        is_checked: bool,
    ) -> Result<ResponseStatus, ProtocolViolation> {
        while let Some(segment) = segments.get(self.segment) {
            let count = (segment.len - self.offset)
                .min(READ_CHUNK)
                .min(limit.saturating_sub(writer.pending().len()));
            if count == 0 && self.offset < segment.len {
                return Ok(ResponseStatus::WriterFull);
            }
            if self.failed_segment.is_none() && !segment.memory.is_open() {
                if !is_checked {
                    return Err(REGION_CLOSED);
                }
                self.failed_segment = Some(self.segment as u8);
            }
            if self.failed_segment.is_some() {
                writer.fill_read_response(count, |_| {});
            } else if let Some(access) = PeerAccess::begin(&*segment.memory) {
                writer.fill_read_response(count, |into| {
                    access.read(segment.offset + self.offset, into);
                });
            } else if segment.memory.is_open() {
                return Ok(ResponseStatus::RegionLocked);
            } else {
                continue;
            }
            self.offset += count;
            if self.offset == segment.len {
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

/// Decodes a status: `None` for success, or the index of the remote range that failed and the
/// reason.
pub(super) fn decode_status(words: [u64; 2]) -> Option<(u8, AccessError)> {
    let index = (words[0] >> 8) as u8;
    AccessError::from_words(words[0] & 0xff, words[1]).map(|error| (index, error))
}

const _: () = assert!(STATUS_LEN == 16, "two words");

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that sends requests and reads no responses uses a bounded amount of memory.
    #[test]
    fn buffered_responses_are_bounded_by_bytes_and_count() {
        let mut responses = ResponseQueue::default();
        while !responses.is_full() {
            responses.push_fetched(vec![0; 4096]);
        }
        assert_eq!(
            (responses.queue.len(), responses.buffered_bytes),
            (16, MAX_BUFFERED_BYTES)
        );
        responses.clear();
        assert!(!responses.is_full() && responses.is_empty());
        (0..MAX_RESPONSES).for_each(|_| responses.push_fetched(vec![0; 8]));
        assert!(responses.is_full() && responses.buffered_bytes < MAX_BUFFERED_BYTES);
    }
}
