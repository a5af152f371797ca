//! What a peer does to memory of this side: its writes as they arrive.

use std::sync::Arc;

use crate::FiAddr;
use crate::completion::{OpKind, Transfer};
use crate::mr::{Denied, Memory};
use crate::provider::{Deed, Host};

use super::serving::{NOT_ITS, Replies, Spot, is_there};
use super::{Broken, Denial, Frame, Owed, Rows};

/// A write that has begun to arrive.
#[derive(Debug)]
pub(super) struct Write {
    spots: Vec<Spot>,
    spot: usize,
    within: usize,
    /// Bytes that are to come.
    left: u64,
    len: usize,
    data: Option<u64>,
    owes: Option<Owed>,
    /// Nothing more of it is written.
    denial: Option<Denial>,
    told: Told,
}

/// How far the owner has been told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    spots: usize,
    bytes: usize,
    is_all: bool,
}

/// How far something has come.
#[derive(Debug)]
pub(super) enum Headway {
    /// It has used so many bytes and wants more.
    More(usize),
    /// It has used so many, and has ended.
    Done(usize, Option<Owed>),
    /// It has used so many, and cannot go on now.
    Stuck(usize, Option<Owed>, Stuck),
}

/// What is waited for.
#[derive(Debug)]
pub(super) enum Stuck {
    /// The owner has this memory in hand.
    Memory(Arc<dyn Memory>),
    /// There is no room where the owner is told.
    Notice,
}

impl Write {
    /// A write begins. What cannot be is refused, or ends the connection. Or it waits for memory
    /// that its owner has in hand: nothing is written before all of it can be.
    pub(super) fn begin(
        frame: &Frame,
        rows: &Rows,
        replies: &Replies,
        host: &dyn Host,
    ) -> Result<Result<Self, Stuck>, Broken> {
        if rows.total() != Some(frame.payload) {
            return Err(Broken("a write whose places are not as long as its bytes"));
        }
        // Data that comes with no bytes at all is an access too: there is an owner to be told.
        let is_wanted = replies.is_target || frame.data.is_none();
        let unwanted = Denial {
            asked: false,
            row: 0,
            why: Denied::Unknown,
        };
        let found = if is_wanted {
            replies.find(rows, OpKind::Write, host)
        } else {
            Err(unwanted)
        };
        let (spots, denial) = match found {
            Ok(spots) => (spots, None),
            Err(denial) if replies.is_kin && frame.owes().is_some() => (Vec::new(), Some(denial)),
            Err(_) => return Err(NOT_ITS),
        };
        if let Some(spot) = spots.iter().find(|spot| !is_there(spot)) {
            return Ok(Err(Stuck::Memory(spot.memory.clone())));
        }
        let len = usize::try_from(frame.payload).unwrap_or(usize::MAX);
        let (left, data, owes) = (frame.payload, frame.data, frame.owes());
        Ok(Ok(Self {
            spots,
            spot: 0,
            within: 0,
            left,
            len,
            data,
            owes,
            denial,
            told: Told::default(),
        }))
    }

    /// Takes in what can be of these bytes.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        source: Option<FiAddr>,
        replies: &Replies,
        host: &mut dyn Host,
    ) -> Result<Headway, Broken> {
        let mut used = 0;
        while self.left > 0 && used < bytes.len() {
            let rest = &bytes[used..];
            let rest = &rest[..rest
                .len()
                .min(usize::try_from(self.left).unwrap_or(usize::MAX))];
            let count = match self.spots.get(self.spot).filter(|_| self.denial.is_none()) {
                None => rest.len(),
                Some(spot) => {
                    let count = rest.len().min(spot.len - self.within);
                    if count > 0 && (!spot.memory.is_open() || !spot.memory.begin()) {
                        if spot.memory.is_open() {
                            return Ok(Headway::Stuck(
                                used,
                                None,
                                Stuck::Memory(spot.memory.clone()),
                            ));
                        }
                        self.withdrawn(replies)?;
                        continue;
                    }
                    if count > 0 {
                        spot.memory.write(spot.at + self.within, &rest[..count]);
                        spot.memory.end();
                    }
                    self.within += count;
                    if self.within == spot.len {
                        (self.spot, self.within) = (self.spot + 1, 0);
                    }
                    count
                }
            };
            used += count;
            self.left -= count as u64;
        }
        if self.left > 0 {
            return Ok(Headway::More(used));
        }
        // The bytes are there, whether the owner has been told or not.
        let owed = match self.denial {
            Some(denial) => self.owes.take().map(|owed| owed.refused(denial)),
            None => self.owes.take(),
        };
        if self.tell(source, replies, host) {
            return Ok(Headway::Done(used, owed));
        }
        Ok(Headway::Stuck(used, owed, Stuck::Notice))
    }

    /// The memory was taken back meanwhile.
    fn withdrawn(&mut self, replies: &Replies) -> Result<(), Broken> {
        if !replies.is_kin || self.owes.is_none() {
            return Err(NOT_ITS);
        }
        self.denial = Some(Denial {
            asked: false,
            row: self.spot as u8,
            why: Denied::Unknown,
        });
        Ok(())
    }

    /// Tells the owner what it wants to hear: data comes once, with the last place. False when
    /// there is no room.
    pub(super) fn tell(
        &mut self,
        source: Option<FiAddr>,
        replies: &Replies,
        host: &mut dyn Host,
    ) -> bool {
        if self.denial.is_some() || self.told.is_all {
            return true;
        }
        while let Some(spot) = self.spots.get(self.told.spots) {
            let data = self
                .data
                .filter(|_| self.told.spots + 1 == self.spots.len());
            if replies.heeds || spot.heeds || data.is_some() {
                // What comes with data tells of all that was not told of before.
                let len = if data.is_some() {
                    self.len - self.told.bytes
                } else {
                    spot.len
                };
                let transfer = Transfer::written(len, data, source);
                if !host.done_to_us(replies.ep, spot.key, Deed::Write, transfer) {
                    return false;
                }
                self.told.bytes += len;
            }
            self.told.spots += 1;
        }
        if self.spots.is_empty()
            && self.data.is_some()
            && !host.done_to_us(
                replies.ep,
                0,
                Deed::Write,
                Transfer::written(0, self.data, source),
            )
        {
            return false;
        }
        self.told.is_all = true;
        true
    }
}
