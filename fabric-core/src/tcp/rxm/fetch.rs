//! The receiver of a message that was offered reads it, piece by piece.

use crate::rx::LandingId;
use crate::tcp::{Row, Rows};

/// Bytes that one read asks for at most.
const PIECE: u64 = 512 << 10;
/// Reads that are under way on a connection at most: while one arrives the next is on its way.
pub const WINDOW: usize = 2;

/// A message that is being read from its sender's memory.
#[derive(Debug)]
pub struct Fetch {
    /// Where it arrives.
    pub landing: LandingId,
    /// Its number, as its sender counts.
    pub message: u64,
    rows: Rows,
    /// The place that is read next, and how much of it has been asked for.
    next: (usize, u64),
    /// Bytes that were asked for.
    asked: u64,
    /// Bytes that have come.
    arrived: u64,
    len: u64,
}

impl Fetch {
    /// A message of this number and length, which lies there.
    #[must_use]
    pub fn new(landing: LandingId, message: u64, rows: Rows, len: u64) -> Self {
        Self {
            landing,
            message,
            rows,
            next: (0, 0),
            asked: 0,
            arrived: 0,
            len,
        }
    }

    /// What is to be read next; nothing when all of it has been asked for.
    pub fn ask(&mut self) -> Option<Row> {
        loop {
            let (at, from) = self.next;
            let row = self.rows.get(at)?;
            let len = (row.len - from).min(PIECE);
            if len == 0 {
                self.next = (at + 1, 0);
                continue;
            }
            self.next.1 += len;
            self.asked += len;
            return Some(Row {
                addr: row.addr + from,
                len,
                key: row.key,
            });
        }
    }

    /// Whether all of it has been asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked == self.len
    }

    /// So many bytes of what was asked for have come. True when that was all of it.
    ///
    /// # Panics
    /// When not as many were asked for.
    pub fn arrived(&mut self, count: u64) -> bool {
        assert!(
            count <= self.asked - self.arrived,
            "more has arrived than was asked for"
        );
        self.arrived += count;
        self.arrived == self.len
    }
}
