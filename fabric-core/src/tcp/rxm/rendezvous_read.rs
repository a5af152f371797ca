//! The receiver of a message that was offered reads it, piece by piece.

use crate::rx::PartialId;
use crate::tcp::{RmaIovList, WireRmaIov};

/// Bytes that one read asks for at most.
const MAX_READ_LEN: u64 = 512 << 10;
/// Reads that are under way on a connection at most: while one arrives the next is on its way.
pub const MAX_READS_IN_FLIGHT: usize = 2;

/// A message that is being read from its sender's memory.
#[derive(Debug)]
pub struct RendezvousRead {
    /// Where it arrives.
    pub partial: PartialId,
    /// Its number, as its sender counts.
    pub message_id: u64,
    iovs: RmaIovList,
    /// The place that is read next, and how much of it has been asked for.
    next: (usize, u64),
    /// Bytes that were asked for.
    requested: u64,
    /// Bytes that have come.
    received: u64,
    len: u64,
}

impl RendezvousRead {
    /// A message of this number and length, which lies there.
    #[must_use]
    pub fn new(partial: PartialId, message_id: u64, iovs: RmaIovList, len: u64) -> Self {
        Self {
            partial,
            message_id,
            iovs,
            next: (0, 0),
            requested: 0,
            received: 0,
            len,
        }
    }

    /// What is to be read next; nothing when all of it has been asked for.
    pub fn next_read(&mut self) -> Option<WireRmaIov> {
        loop {
            let (at, from) = self.next;
            let row = self.iovs.get(at)?;
            let len = (row.len - from).min(MAX_READ_LEN);
            if len == 0 {
                self.next = (at + 1, 0);
                continue;
            }
            self.next.1 += len;
            self.requested += len;
            return Some(WireRmaIov {
                addr: row.addr + from,
                len,
                key: row.key,
            });
        }
    }

    /// Whether all of it has been asked for.
    #[must_use]
    pub fn is_fully_requested(&self) -> bool {
        self.requested == self.len
    }

    /// So many bytes of what was asked for have come. True when that was all of it.
    ///
    /// # Panics
    /// When not as many were asked for.
    pub fn on_received(&mut self, count: u64) -> bool {
        assert!(
            count <= self.requested - self.received,
            "more has arrived than was asked for"
        );
        self.received += count;
        self.received == self.len
    }
}
