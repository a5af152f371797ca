//! What has come of messages in segments, and of those that are fetched.

use std::collections::{HashMap, VecDeque};

use super::{Fetch, Packet, Step, WINDOW};
use crate::rx::LandingId;
use crate::tcp::{Broken, Row};

/// Messages of one connection that may arrive in segments at a time.
pub const MESSAGES_IN_SEGMENTS: usize = 1024;

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Incoming {
    /// What packets to this side must quote.
    connection: u32,
    parts: HashMap<u64, Part>,
    /// In the order in which they are read.
    fetches: VecDeque<Fetch>,
    /// Reads of theirs that are under way.
    reads: usize,
    /// The peer answers no more.
    is_over: bool,
}

#[derive(Debug)]
struct Part {
    landing: LandingId,
    left: u64,
}

impl Incoming {
    /// From a peer that was told to quote this.
    #[must_use]
    pub fn new(connection: u32) -> Self {
        Self {
            connection,
            parts: HashMap::new(),
            fetches: VecDeque::new(),
            reads: 0,
            is_over: false,
        }
    }

    /// The packet is one for this connection.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, packet: &Packet) -> Result<(), Broken> {
        if packet.connection == self.connection {
            return Ok(());
        }
        Err(Broken("a packet that quotes another connection"))
    }

    /// The first segment of a message may begin it, with so many bytes in the segment.
    ///
    /// # Errors
    /// It may not.
    pub fn may_begin(&self, packet: &Packet, bytes: u64) -> Result<(), Broken> {
        if self.parts.contains_key(&packet.message) {
            return Err(Broken("the first segment of a message that has begun"));
        }
        if self.parts.len() >= MESSAGES_IN_SEGMENTS {
            return Err(Broken(
                "more messages in segments than anybody sends at a time",
            ));
        }
        if bytes > packet.len {
            return Err(TOO_LONG);
        }
        Ok(())
    }

    /// A message in segments arrives there.
    pub fn begin(&mut self, packet: &Packet, landing: LandingId) {
        self.parts.insert(
            packet.message,
            Part {
                landing,
                left: packet.len,
            },
        );
    }

    /// Where the next so many bytes of a message in segments belong.
    ///
    /// # Errors
    /// There is no such message, or they are not what is missing of it.
    pub fn part(&mut self, packet: &Packet, step: Step, bytes: u64) -> Result<LandingId, Broken> {
        let Some(part) = self.parts.get_mut(&packet.message) else {
            return Err(Broken("a segment of a message that has not begun"));
        };
        let landing = part.landing;
        if bytes == 0 {
            return Err(Broken("a segment with nothing in it"));
        }
        part.left = part.left.checked_sub(bytes).ok_or(TOO_LONG)?;
        let is_whole = part.left == 0;
        // A message of one segment is first and last.
        if is_whole != (step == Step::Last) && !(is_whole && step == Step::First) {
            return Err(Broken(
                "a last segment before the end of its message, or none at the end",
            ));
        }
        if is_whole {
            self.parts.remove(&packet.message);
        }
        Ok(landing)
    }

    /// Whether a message of this number in segments has begun and not ended.
    #[must_use]
    pub fn has_begun(&self, message: u64) -> bool {
        self.parts.contains_key(&message)
    }

    /// A message is to be read from its sender's memory.
    pub fn fetch(&mut self, fetch: Fetch) {
        self.fetches.push_back(fetch);
    }

    /// What is to be read next. Nothing while enough is on its way.
    pub fn ask(&mut self) -> Option<Row> {
        if self.reads == WINDOW {
            return None;
        }
        let row = self
            .fetches
            .iter_mut()
            .find(|fetch| !fetch.is_asked())?
            .ask()?;
        self.reads += 1;
        Some(row)
    }

    /// Where the answer to the oldest read belongs.
    #[must_use]
    pub fn awaited(&self) -> Option<LandingId> {
        self.fetches.front().map(|fetch| fetch.landing)
    }

    /// All of the answer to the oldest read has come, which is so many bytes. The number of the
    /// message that has all of its bytes with it, which its sender is to be told.
    pub fn arrived(&mut self, bytes: u64) -> Option<u64> {
        self.reads = self.reads.saturating_sub(1);
        // Answers come in the order of reads, and one message is asked for after the other.
        let is_whole = self.fetches.front_mut()?.arrived(bytes);
        is_whole.then(|| self.fetches.pop_front().map(|fetch| fetch.message))?
    }

    /// Whether there is something to be read next.
    #[must_use]
    pub fn wants(&self) -> bool {
        self.reads < WINDOW && self.fetches.iter().any(|fetch| !fetch.is_asked())
    }

    /// Whether messages have begun and not ended.
    #[must_use]
    pub fn is_arriving(&self) -> bool {
        !self.parts.is_empty() || !self.fetches.is_empty()
    }

    /// Whether offers mean nothing any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The peer answers no more: nothing is read from now on. The messages that were being read.
    #[must_use]
    pub fn end_fetches(&mut self) -> Vec<LandingId> {
        self.is_over = true;
        self.fetches.drain(..).map(|fetch| fetch.landing).collect()
    }

    /// Messages that have begun and will not end.
    #[must_use]
    pub fn end(&mut self) -> Vec<LandingId> {
        let parts = self.parts.drain().map(|(_, part)| part.landing);
        parts
            .chain(self.fetches.drain(..).map(|fetch| fetch.landing))
            .collect()
    }
}

const TOO_LONG: Broken = Broken("segments that are longer than their message");
