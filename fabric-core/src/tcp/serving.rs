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
use crate::mr::{Denied, Memory};
use crate::provider::{Deed, EpId, Host};
use crate::{FiAddr, buf::Payload};

use super::frame::VERDICT;
use super::offers::{Offers, Part};
use super::rxm::{Atomic, Status};
use super::{Broken, Denial, Outbox, Owed, Rows};

/// Questions that wait for their answers before no more is read.
const MOST: usize = 1024;
/// Bytes of answers that lie in no region and wait to be sent, before no more is read.
const MOST_KEPT: usize = 64 << 10;
/// Bytes that are looked for in one go.
const PIECE: usize = 16 << 10;

pub(super) const NOT_ITS: Broken = Broken("an access to memory that it may not reach");
const TAKEN_BACK: Broken = Broken("memory was taken back in the middle of an answer");

/// A place that a peer has named, after it was checked.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) memory: Arc<dyn Memory>,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) key: u64,
    /// Its owner wants to hear of everything that is done there.
    pub(super) heeds: bool,
}

/// Checks all places of an operation.
fn find(rows: &Rows, kind: OpKind, host: &dyn Host) -> Result<Vec<Spot>, Denial> {
    let mut spots = Vec::with_capacity(rows.len());
    for (number, row) in rows.iter().enumerate() {
        let place = row.place();
        let refused = |why| Denial {
            asked: kind.fills(),
            row: number as u8,
            why,
        };
        let (region, at) =
            Denied::check(host.region(place.key), kind, &place, place.len).map_err(refused)?;
        let (memory, heeds) = (region.memory.clone(), region.heeds);
        spots.push(Spot {
            memory,
            at,
            len: place.len,
            key: place.key,
            heeds,
        });
    }
    Ok(spots)
}

/// The answers that are owed to a peer, in its order.
#[derive(Debug)]
pub struct Replies {
    pub(super) ep: EpId,
    /// The endpoint wants to hear of everything that peers do.
    pub(super) heeds: bool,
    /// Peers may reach memory of its domain.
    pub(super) is_target: bool,
    /// The peer understands why something is refused.
    pub(super) is_kin: bool,
    /// Messages that the peer may read where they lie.
    pub offers: Offers,
    queue: VecDeque<Due>,
    /// Bytes that are in the queue themselves.
    kept: usize,
    /// How far the first has come, if it has begun.
    begun: Option<Position>,
}

/// Something that is owed to a peer.
#[derive(Debug)]
enum Due {
    /// An acknowledgement that comes behind answers.
    Ack(Option<Owed>),
    Bytes(Vec<u8>),
    /// What has come of an atomic operation of this number where RXM is spoken.
    Response((u64, Atomic), Status, Vec<u8>),
    Places(Vec<Spot>),
    /// Parts of messages that were offered.
    Offered(Vec<Part>),
    Refused(Denial),
}

#[derive(Clone, Copy, Debug, Default)]
struct Position {
    spot: usize,
    within: usize,
    /// The rest means nothing.
    spoilt: Option<u8>,
}

/// What became of an attempt to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replying {
    /// Nothing is owed any more.
    Nothing,
    /// There is no more room: it goes on when some has left.
    Full,
    /// Enough for now: no further answer begins before others had their turn.
    Enough,
    /// The owner of the memory has it in hand: it goes on when that has changed.
    InHand,
}

impl Replies {
    /// Of a connection to this endpoint.
    #[must_use]
    pub(super) fn new() -> Self {
        let (offers, queue) = (Offers::default(), VecDeque::new());
        let (ep, begun) = (EpId(0), None);
        Self {
            ep,
            heeds: false,
            is_target: false,
            is_kin: false,
            offers,
            queue,
            kept: 0,
            begun,
        }
    }

    /// Whether nothing is owed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether an answer has begun and not ended: nothing else may be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.begun.is_some()
    }

    /// Whether a peer has asked for so much that no more is listened to for now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queue.len() >= MOST || self.kept >= MOST_KEPT
    }

    /// Whether all that waits is for an owner who has the memory in hand.
    #[must_use]
    pub fn is_in_hand(&self) -> bool {
        let Some(Due::Places(spots)) = self.queue.front() else {
            return false;
        };
        match self.begun {
            None => !spots.iter().all(is_there),
            Some(at) => spots.get(at.spot).is_some_and(|spot| !is_there(spot)),
        }
    }

    pub(super) fn bytes(&mut self, bytes: Vec<u8>) {
        self.kept += bytes.len();
        self.queue.push_back(Due::Bytes(bytes));
    }

    pub(super) fn respond(&mut self, to: (u64, Atomic), status: Status, fetched: Vec<u8>) {
        self.kept += fetched.len();
        self.queue.push_back(Due::Response(to, status, fetched));
    }

    /// Has an acknowledgement keep its place behind the answers that are owed; gives it back when
    /// there are none.
    pub(super) fn behind(&mut self, owed: Option<Owed>) -> Option<Owed> {
        if owed.is_some() && !self.queue.is_empty() {
            self.queue.push_back(Due::Ack(owed));
            return None;
        }
        owed
    }

    pub(super) fn refuse(&mut self, denial: Denial) {
        self.queue.push_back(Due::Refused(denial));
    }

    /// Checks all places of an operation.
    pub(super) fn find(
        &self,
        rows: &Rows,
        kind: OpKind,
        host: &dyn Host,
    ) -> Result<Vec<Spot>, Denial> {
        if !self.is_target && !rows.is_empty() {
            return Err(Denial {
                asked: kind.fills(),
                row: 0,
                why: Denied::Unknown,
            });
        }
        find(rows, kind, host)
    }

    /// A question for these places.
    pub(super) fn question(&mut self, rows: &Rows, host: &dyn Host) -> Result<(), Broken> {
        if let Some(parts) = self.offers.find(rows) {
            self.queue.push_back(Due::Offered(parts?));
            return Ok(());
        }
        match self.find(rows, OpKind::Read, host) {
            Ok(spots) => self.queue.push_back(Due::Places(spots)),
            Err(denial) if self.is_kin => self.queue.push_back(Due::Refused(denial)),
            Err(_) => return Err(NOT_ITS),
        }
        Ok(())
    }

    /// The peer says that it has read the message of this number.
    pub(super) fn taken(&mut self, number: u64, host: &mut dyn Host) -> Result<(), Broken> {
        let taken = self.offers.taken(number)?;
        let is_read = |due: &Due| match due {
            Due::Offered(parts) => parts.iter().any(|part| part.op == taken.op()),
            _ => false,
        };
        let is_early = self.queue.iter().any(is_read);
        // Its buffer goes with the operation: what is owed of it cannot be said any more.
        if is_early {
            self.give_up();
        }
        taken.end(host);
        if is_early {
            Err(Broken(
                "word that a message was read which is still being read",
            ))
        } else {
            Ok(())
        }
    }

    /// Nothing that was offered will be read.
    pub fn fail(&mut self, host: &mut dyn Host, error: &Error) {
        self.give_up();
        self.offers.fail(host, error);
    }

    /// Nothing of it is said any more.
    pub fn give_up(&mut self) {
        self.queue.clear();
        (self.kept, self.begun) = (0, None);
    }

    /// Answers, as long as fewer than `most` bytes wait to be sent. None begins after so many bytes
    /// as make a `turn`: what else is to be sent to this peer comes between two answers.
    ///
    /// # Errors
    /// An answer that was begun cannot be finished: the connection has to end.
    pub fn answer(
        &mut self,
        outbox: &mut Outbox,
        (most, turn): (usize, usize),
        (_, source): (PeerKey, Option<FiAddr>),
        host: &mut dyn Host,
    ) -> Result<Replying, Broken> {
        let before = outbox.pending().len();
        loop {
            let Some(first) = self.queue.front_mut() else {
                return Ok(Replying::Nothing);
            };
            if outbox.pending().len() >= most || outbox.is_open() && self.begun.is_none() {
                return Ok(Replying::Full);
            }
            if self.begun.is_none() && outbox.pending().len() - before >= turn {
                return Ok(Replying::Enough);
            }
            match first {
                Due::Ack(owed) => owed
                    .take()
                    .into_iter()
                    .for_each(|owed| outbox.acknowledge(owed)),
                Due::Refused(denial) => outbox.refuse(*denial),
                Due::Bytes(bytes) => {
                    self.kept -= bytes.len();
                    outbox.begin_answer(self.is_kin, bytes.len() as u64);
                    outbox.answer_part(Payload::Whole(bytes));
                    end(outbox, self.is_kin, None);
                }
                Due::Response(to, status, fetched) => {
                    self.kept -= fetched.len();
                    outbox.respond(*to, *status, fetched);
                }
                Due::Offered(parts) => {
                    let mut at = self.begun.unwrap_or_else(|| {
                        outbox.begin_answer(false, parts.iter().map(|part| part.len as u64).sum());
                        Position::default()
                    });
                    let is_whole = at.go_on_offered(parts, outbox, most, host);
                    self.begun = Some(at);
                    if !is_whole {
                        return Ok(Replying::Full);
                    }
                    end(outbox, false, None);
                }
                Due::Places(spots) => {
                    let mut at = match self.begun {
                        Some(at) => at,
                        None if spots.iter().all(is_there) => {
                            let total = spots.iter().map(|spot| spot.len as u64).sum();
                            outbox.begin_answer(self.is_kin, total);
                            *self.begun.insert(Position::default())
                        }
                        None => return Ok(Replying::InHand),
                    };
                    let gone_on = at.go_on(spots, outbox, most, self.is_kin);
                    self.begun = Some(at);
                    match gone_on? {
                        Replying::Nothing => {}
                        wait => return Ok(wait),
                    }
                    end(outbox, self.is_kin, at.spoilt);
                    for spot in spots
                        .iter()
                        .filter(|spot| at.spoilt.is_none() && (self.heeds || spot.heeds))
                    {
                        host.done_to_us(
                            self.ep,
                            spot.key,
                            Deed::Read,
                            Transfer::written(spot.len, None, source),
                        );
                    }
                }
            }
            self.begun = None;
            self.queue.pop_front();
        }
    }
}

/// Whether an access to it can begin, or fails at once.
pub(super) fn is_there(spot: &Spot) -> bool {
    if !spot.memory.begin() {
        return !spot.memory.is_open();
    }
    spot.memory.end();
    true
}

/// All bytes of an answer have been made.
fn end(outbox: &mut Outbox, is_kin: bool, spoilt: Option<u8>) {
    if is_kin {
        let (code, detail) = spoilt.map_or((0, 0), |_| Denied::Unknown.to_words());
        outbox.verdict([code | u64::from(spoilt.unwrap_or(0)) << 8, detail]);
    }
    outbox.end_answer();
}

impl Position {
    /// Copies pieces of messages that were offered. True when all of them are copied.
    fn go_on_offered(
        &mut self,
        parts: &[Part],
        outbox: &mut Outbox,
        most: usize,
        host: &dyn Host,
    ) -> bool {
        while let Some(part) = parts.get(self.spot) {
            let piece = (part.len - self.within).min(most.saturating_sub(outbox.pending().len()));
            if piece == 0 && self.within < part.len {
                return false;
            }
            outbox.answer_part(host.payload(part.op).part(part.at + self.within, piece));
            self.within += piece;
            if self.within == part.len {
                *self = Self {
                    spot: self.spot + 1,
                    within: 0,
                    ..*self
                };
            }
        }
        true
    }

    /// Copies pieces of the places. `Nothing` when all of them are copied.
    fn go_on(
        &mut self,
        spots: &[Spot],
        outbox: &mut Outbox,
        most: usize,
        is_kin: bool,
    ) -> Result<Replying, Broken> {
        while let Some(spot) = spots.get(self.spot) {
            let piece = (spot.len - self.within)
                .min(PIECE)
                .min(most.saturating_sub(outbox.pending().len()));
            if piece == 0 && self.within < spot.len {
                return Ok(Replying::Full);
            }
            if self.spoilt.is_none() && !spot.memory.is_open() {
                if !is_kin {
                    return Err(TAKEN_BACK);
                }
                self.spoilt = Some(self.spot as u8);
            }
            if self.spoilt.is_some() {
                outbox.answer_with(piece, |_| {});
            } else if spot.memory.begin() {
                outbox.answer_with(piece, |into| spot.memory.read(spot.at + self.within, into));
                spot.memory.end();
            } else if spot.memory.is_open() {
                return Ok(Replying::InHand);
            } else {
                continue;
            }
            self.within += piece;
            if self.within == spot.len {
                *self = Self {
                    spot: self.spot + 1,
                    within: 0,
                    ..*self
                };
            }
        }
        Ok(Replying::Nothing)
    }
}

/// What a verdict says: nothing is wrong, or the row that is, and why.
pub(super) fn verdict(words: [u64; 2]) -> Option<(u8, Denied)> {
    let row = (words[0] >> 8) as u8;
    Denied::from_words(words[0] & 0xff, words[1]).map(|why| (row, why))
}

const _: () = assert!(VERDICT == 16, "two words");

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that asks and does not read has this side keep little.
    #[test]
    fn answers_that_are_kept_here_are_bounded_by_their_bytes_too() {
        let mut replies = Replies::new();
        while !replies.is_full() {
            replies.bytes(vec![0; 4096]);
        }
        assert_eq!((replies.queue.len(), replies.kept), (16, MOST_KEPT));
        replies.give_up();
        assert!(!replies.is_full() && replies.is_empty());
        (0..MOST).for_each(|_| replies.bytes(vec![0; 8]));
        assert!(replies.is_full() && replies.kept < MOST_KEPT);
    }
}
