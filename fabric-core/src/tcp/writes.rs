//! Writes of the peer as they arrive.
//!
//! All remote ranges are checked before a byte is written. The payload is copied from the received
//! bytes directly into the regions. Then the ack is due, and then the owner of the memory is
//! notified.

use std::sync::Arc;

use crate::FiAddr;
use crate::completion::{OpKind, Transfer};
use crate::mr::{AccessError, PeerAccess, RegionMemory};
use crate::transport::{EndpointContext, EngineContext, RemoteAccess};

use super::frame::ACCESS_VIOLATION;
use super::responder::{CheckedSegment, ResponseQueue};
use super::{AckDue, Frame, ProtocolViolation, RmaIovList, RmaNack};

/// A write whose payload is arriving.
#[derive(Debug)]
pub(super) struct IncomingWrite {
    segments: Vec<CheckedSegment>,
    /// Index of the segment that is written next.
    segment: usize,
    /// Number of bytes written to that segment.
    offset: usize,
    /// Payload bytes that have not arrived.
    remaining: u64,
    /// Length of the whole payload, in bytes.
    len: usize,
    data: Option<u64>,
    ack_due: Option<AckDue>,
    /// The nack of a failed write, the rest of whose payload is discarded.
    nack: Option<RmaNack>,
    notified: NotifyProgress,
}

/// How far the owner of the memory has been notified.
#[derive(Clone, Copy, Debug, Default)]
struct NotifyProgress {
    /// Number of segments that were reported or need no report.
    segments: usize,
    /// Number of bytes in the reports so far.
    bytes: usize,
    is_done: bool,
}

/// Progress of a write or an atomic operation.
#[derive(Debug)]
pub(super) enum WriteProgress {
    /// The operation has consumed this number of bytes and needs more.
    More(usize),
    /// The operation has consumed this number of bytes and is complete.
    Done(usize, Option<AckDue>),
    /// The operation has consumed this number of bytes and has to wait.
    Blocked(usize, Option<AckDue>, BlockedOn),
}

/// What an operation waits for.
#[derive(Debug)]
pub(super) enum BlockedOn {
    /// The region is locked by its owner.
    RegionLocked(Arc<dyn RegionMemory>),
    /// The completion queue for the owner's notification is full.
    CqFull,
}

impl IncomingWrite {
    /// Begins a write whose header has arrived. Nothing is written before all regions are
    /// accessible: a region that its owner has locked blocks the write. A write that fails the
    /// access check is begun with a nack, and its payload is discarded.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when the header is inconsistent, or when the write fails the access
    /// check and the peer does not understand nacks.
    pub(super) fn begin(
        frame: &Frame,
        iovs: &RmaIovList,
        responses: &ResponseQueue,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> Result<Result<Self, BlockedOn>, ProtocolViolation> {
        if iovs.total() != Some(frame.payload_len) {
            return Err(ProtocolViolation(
                "write whose remote ranges do not add up to its payload",
            ));
        }
        let (segments, nack) = match responses.check_segments(iovs, OpKind::Write, ctx) {
            Ok(segments) => (segments, None),
            Err(nack) if responses.is_same_implementation && frame.ack_due().is_some() => {
                (Vec::new(), Some(nack))
            }
            Err(_) => return Err(ACCESS_VIOLATION),
        };
        if let Some(segment) = segments.iter().find(|segment| !segment.is_accessible()) {
            return Ok(Err(BlockedOn::RegionLocked(segment.memory.clone())));
        }
        Ok(Ok(Self {
            segments,
            segment: 0,
            offset: 0,
            remaining: frame.payload_len,
            len: usize::try_from(frame.payload_len).unwrap_or(usize::MAX),
            data: frame.data,
            ack_due: frame.ack_due(),
            nack,
            notified: NotifyProgress::default(),
        }))
    }

    /// Returns the number of payload bytes that have not been consumed.
    pub(super) fn remaining(&self) -> usize {
        usize::try_from(self.remaining).unwrap_or(usize::MAX)
    }

    /// Writes the next bytes of the payload as far as the regions are accessible.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        source: Option<FiAddr>,
        responses: &ResponseQueue,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<WriteProgress, ProtocolViolation> {
        let mut used = 0;
        while self.remaining > 0 && used < bytes.len() {
            let rest = &bytes[used..];
            let rest = &rest[..rest.len().min(self.remaining())];
            let count = match self
                .segments
                .get(self.segment)
                .filter(|_| self.nack.is_none())
            {
                None => rest.len(),
                Some(segment) => {
                    let count = rest.len().min(segment.len - self.offset);
                    if count > 0 {
                        if !segment.memory.is_open() {
                            self.on_region_closed(responses)?;
                            continue;
                        }
                        let Some(access) = PeerAccess::begin(&*segment.memory) else {
                            if !segment.memory.is_open() {
                                self.on_region_closed(responses)?;
                                continue;
                            }
                            let blocked_on = BlockedOn::RegionLocked(segment.memory.clone());
                            return Ok(WriteProgress::Blocked(used, None, blocked_on));
                        };
                        access.write(segment.offset + self.offset, &rest[..count]);
                    }
                    self.offset += count;
                    if self.offset == segment.len {
                        (self.segment, self.offset) = (self.segment + 1, 0);
                    }
                    count
                }
            };
            used += count;
            self.remaining -= count as u64;
        }
        if self.remaining > 0 {
            return Ok(WriteProgress::More(used));
        }
        // The bytes are in place, whether or not the owner could be notified: the ack is due.
        let due = match self.nack {
            Some(nack) => self.ack_due.take().map(|due| due.nack(nack)),
            None => self.ack_due.take(),
        };
        if self.notify(source, responses, ctx) {
            return Ok(WriteProgress::Done(used, due));
        }
        Ok(WriteProgress::Blocked(used, due, BlockedOn::CqFull))
    }

    /// Fails the write because the region of the current segment was closed.
    fn on_region_closed(&mut self, responses: &ResponseQueue) -> Result<(), ProtocolViolation> {
        if !responses.is_same_implementation || self.ack_due.is_none() {
            return Err(ACCESS_VIOLATION);
        }
        self.nack = Some(RmaNack {
            is_read: false,
            iov_index: self.segment as u8,
            error: AccessError::UnknownKey,
        });
        Ok(())
    }

    /// Reports the write to the owner of the memory, for segments whose owner wants events; CQ data
    /// are reported once, with the last segment. Returns false when the completion queue is full.
    pub(super) fn notify(
        &mut self,
        source: Option<FiAddr>,
        responses: &ResponseQueue,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        if self.nack.is_some() || self.notified.is_done {
            return true;
        }
        while let Some(segment) = self.segments.get(self.notified.segments) {
            let data = self
                .data
                .filter(|_| self.notified.segments + 1 == self.segments.len());
            if responses.rma_events || segment.rma_events || data.is_some() {
                // The event with CQ data covers all bytes that were not reported before.
                let len = if data.is_some() {
                    self.len - self.notified.bytes
                } else {
                    segment.len
                };
                let transfer = Transfer::written(len, data, source);
                if !ctx.on_remote_access(segment.key, RemoteAccess::Write, transfer) {
                    return false;
                }
                self.notified.bytes += len;
            }
            self.notified.segments += 1;
        }
        self.notified.is_done = true;
        true
    }
}
