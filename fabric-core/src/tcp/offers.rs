//! Messages of this side that lie where they are until the peer has read them.

use crate::completion::{Outcome, Transfer};
use crate::error::Error;
use crate::provider::{Host, OpKey};

use super::{Broken, Row, Rows};

/// Where the keys of offers begin: far from those that people choose.
const FIRST: u64 = 0xfab1_0000_0000_0000;

/// The messages that a peer was offered.
#[derive(Debug, Default)]
pub struct Offers {
    list: Vec<Offered>,
    /// Offers so far.
    count: u64,
}

#[derive(Debug)]
struct Offered {
    key: u64,
    op: OpKey,
    tag: Option<u64>,
    len: usize,
}

/// Bytes of the message of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) op: OpKey,
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Offers {
    /// The message of this operation may be read from now on: where, by the name of a number that
    /// is the message's too.
    pub fn add(&mut self, op: OpKey, tag: Option<u64>, len: usize, host: &dyn Host) -> Row {
        // A key of the domain's stays what it is.
        let key = loop {
            let key = FIRST + self.count;
            self.count += 1;
            if host.region(key).is_none() {
                break key;
            }
        };
        self.list.push(Offered { key, op, tag, len });
        Row {
            addr: 0,
            len: len as u64,
            key,
        }
    }

    /// Whether nothing is offered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What a question for these places means, if it is about offers.
    pub(super) fn find(&self, rows: &Rows) -> Option<Result<Vec<Part>, Broken>> {
        let offered = |row: &Row| self.list.iter().find(|offered| offered.key == row.key);
        offered(rows.first()?)?;
        Some(
            rows.iter()
                .map(|row| part(offered(row)?, row))
                .collect::<Option<_>>()
                .ok_or(super::serving::NOT_ITS),
        )
    }

    /// The peer has read the message of this number: its operation, which has ended.
    ///
    /// # Errors
    /// There is no such message.
    pub(super) fn taken(&mut self, number: u64) -> Result<Fetched, Broken> {
        let at = self.list.iter().position(|offered| offered.key == number);
        let at = at.ok_or(Broken("word that a message was read which was not offered"))?;
        Ok(Fetched(self.list.remove(at)))
    }

    /// The peer will read nothing any more.
    pub(super) fn fail(&mut self, host: &mut dyn Host, error: &Error) {
        for offered in self.list.drain(..) {
            let transfer = Transfer::sent(0, offered.tag);
            host.complete(offered.op, Outcome::cut(transfer, error.clone()));
        }
    }
}

/// The place of a row in a message.
fn part(offered: &Offered, row: &Row) -> Option<Part> {
    let end = row.addr.checked_add(row.len)?;
    let is_within = end <= offered.len as u64;
    is_within.then_some(Part {
        op: offered.op,
        at: row.addr as usize,
        len: row.len as usize,
    })
}

/// A message that was read.
#[derive(Debug)]
pub(super) struct Fetched(Offered);

impl Fetched {
    pub(super) fn op(&self) -> OpKey {
        self.0.op
    }

    pub(super) fn end(self, host: &mut dyn Host) {
        host.complete(
            self.0.op,
            Outcome::ok(Transfer::sent(self.0.len, self.0.tag)),
        );
    }
}
