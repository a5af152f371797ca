//! What a peer does to memory of this side: its writes as they arrive.

use std::sync::Arc;

use crate::FiAddr;
use crate::completion::{OpKind, Transfer};
use crate::mr::{AccessError, RegionMemory};
use crate::transport::{EngineContext, RemoteAccess};

use super::responder::{ACCESS_VIOLATION, CheckedSegment, ResponseQueue, is_accessible};
use super::{AckDue, Frame, ProtocolViolation, RmaIovList, RmaNack};

/// A write that has begun to arrive.
#[derive(Debug)]
pub(super) struct IncomingWrite {
    segments: Vec<CheckedSegment>,
    segment: usize,
    offset: usize,
    /// Bytes that are to come.
    remaining: u64,
    len: usize,
    data: Option<u64>,
    ack_due: Option<AckDue>,
    /// Nothing more of it is written.
    nack: Option<RmaNack>,
    notified: NotifyProgress,
}

/// How far the owner has been told.
#[derive(Clone, Copy, Debug, Default)]
struct NotifyProgress {
    segments: usize,
    bytes: usize,
    is_done: bool,
}

/// How far something has come.
#[derive(Debug)]
pub(super) enum WriteProgress {
    /// It has used so many bytes and wants more.
    More(usize),
    /// It has used so many, and has ended.
    Done(usize, Option<AckDue>),
    /// It has used so many, and cannot go on now.
    Stalled(usize, Option<AckDue>, Stall),
}

/// What is waited for.
#[derive(Debug)]
pub(super) enum Stall {
    /// The owner has this memory in hand.
    RegionBusy(Arc<dyn RegionMemory>),
    /// There is no room where the owner is told.
    CqFull,
}

impl IncomingWrite {
    /// A write begins. What cannot be is refused, or ends the connection. Or it waits for memory
    /// that its owner has in hand: nothing is written before all of it can be.
    pub(super) fn begin(
        frame: &Frame,
        rows: &RmaIovList,
        replies: &ResponseQueue,
        host: &dyn EngineContext,
    ) -> Result<Result<Self, Stall>, ProtocolViolation> {
        if rows.total() != Some(frame.payload) {
            return Err(ProtocolViolation(
                "a write whose places are not as long as its bytes",
            ));
        }
        // Data that comes with no bytes at all is an access too: there is an owner to be told.
        let is_wanted = replies.is_target || frame.data.is_none();
        let unwanted = RmaNack {
            is_read: false,
            iov_index: 0,
            error: AccessError::UnknownKey,
        };
        let found = if is_wanted {
            replies.check_segments(rows, OpKind::Write, host)
        } else {
            Err(unwanted)
        };
        let (spots, denial) = match found {
            Ok(spots) => (spots, None),
            Err(denial) if replies.is_same_implementation && frame.ack_due().is_some() => {
                (Vec::new(), Some(denial))
            }
            Err(_) => return Err(ACCESS_VIOLATION),
        };
        if let Some(spot) = spots.iter().find(|spot| !is_accessible(spot)) {
            return Ok(Err(Stall::RegionBusy(spot.memory.clone())));
        }
        let len = usize::try_from(frame.payload).unwrap_or(usize::MAX);
        let (left, data, owes) = (frame.payload, frame.data, frame.ack_due());
        Ok(Ok(Self {
            segments: spots,
            segment: 0,
            offset: 0,
            remaining: left,
            len,
            data,
            ack_due: owes,
            nack: denial,
            notified: NotifyProgress::default(),
        }))
    }

    /// Takes in what can be of these bytes.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        source: Option<FiAddr>,
        replies: &ResponseQueue,
        host: &mut dyn EngineContext,
    ) -> Result<WriteProgress, ProtocolViolation> {
        let mut used = 0;
        while self.remaining > 0 && used < bytes.len() {
            let rest = &bytes[used..];
            let rest = &rest[..rest
                .len()
                .min(usize::try_from(self.remaining).unwrap_or(usize::MAX))];
            let count = match self
                .segments
                .get(self.segment)
                .filter(|_| self.nack.is_none())
            {
                None => rest.len(),
                Some(spot) => {
                    let count = rest.len().min(spot.len - self.offset);
                    if count > 0 && (!spot.memory.is_open() || !spot.memory.begin_access()) {
                        if spot.memory.is_open() {
                            return Ok(WriteProgress::Stalled(
                                used,
                                None,
                                Stall::RegionBusy(spot.memory.clone()),
                            ));
                        }
                        self.on_region_closed(replies)?;
                        continue;
                    }
                    if count > 0 {
                        spot.memory.write(spot.offset + self.offset, &rest[..count]);
                        spot.memory.end_access();
                    }
                    self.offset += count;
                    if self.offset == spot.len {
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
        // The bytes are there, whether the owner has been told or not.
        let owed = match self.nack {
            Some(denial) => self.ack_due.take().map(|owed| owed.nack(denial)),
            None => self.ack_due.take(),
        };
        if self.notify(source, replies, host) {
            return Ok(WriteProgress::Done(used, owed));
        }
        Ok(WriteProgress::Stalled(used, owed, Stall::CqFull))
    }

    /// The memory was taken back meanwhile.
    fn on_region_closed(&mut self, replies: &ResponseQueue) -> Result<(), ProtocolViolation> {
        if !replies.is_same_implementation || self.ack_due.is_none() {
            return Err(ACCESS_VIOLATION);
        }
        self.nack = Some(RmaNack {
            is_read: false,
            iov_index: self.segment as u8,
            error: AccessError::UnknownKey,
        });
        Ok(())
    }

    /// Tells the owner what it wants to hear: data comes once, with the last place. False when
    /// there is no room.
    pub(super) fn notify(
        &mut self,
        source: Option<FiAddr>,
        replies: &ResponseQueue,
        host: &mut dyn EngineContext,
    ) -> bool {
        if self.nack.is_some() || self.notified.is_done {
            return true;
        }
        while let Some(spot) = self.segments.get(self.notified.segments) {
            let data = self
                .data
                .filter(|_| self.notified.segments + 1 == self.segments.len());
            if replies.rma_events || spot.rma_events || data.is_some() {
                // What comes with data tells of all that was not told of before.
                let len = if data.is_some() {
                    self.len - self.notified.bytes
                } else {
                    spot.len
                };
                let transfer = Transfer::written(len, data, source);
                if !host.on_remote_access(replies.ep, spot.key, RemoteAccess::Write, transfer) {
                    return false;
                }
                self.notified.bytes += len;
            }
            self.notified.segments += 1;
        }
        if self.segments.is_empty()
            && self.data.is_some()
            && !host.on_remote_access(
                replies.ep,
                0,
                RemoteAccess::Write,
                Transfer::written(0, self.data, source),
            )
        {
            return false;
        }
        self.notified.is_done = true;
        true
    }
}
