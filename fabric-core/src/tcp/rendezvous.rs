//! Messages of this side that lie where they are until the peer has read them.

use crate::completion::{Outcome, Transfer};
use crate::error::Error;
use crate::transport::{EngineContext, OpKey};

use super::{ProtocolViolation, RmaIovList, WireRmaIov};

/// Where the keys of offers begin: far from those that people choose.
const RENDEZVOUS_KEY_BASE: u64 = 0xfab1_0000_0000_0000;

/// The messages that a peer was offered.
#[derive(Debug, Default)]
pub struct RendezvousSends {
    sends: Vec<RendezvousSend>,
    /// Offers so far.
    next_key: u64,
}

#[derive(Debug)]
struct RendezvousSend {
    key: u64,
    op: OpKey,
    tag: Option<u64>,
    len: usize,
}

/// Bytes of the message of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageRange {
    pub(super) op: OpKey,
    pub(super) at: usize,
    pub(super) len: usize,
}

impl RendezvousSends {
    /// The message of this operation may be read from now on: where, by the name of a number that
    /// is the message's too.
    pub fn add(
        &mut self,
        op: OpKey,
        tag: Option<u64>,
        len: usize,
        host: &dyn EngineContext,
    ) -> WireRmaIov {
        // A key of the domain's stays what it is.
        let key = loop {
            let key = RENDEZVOUS_KEY_BASE + self.next_key;
            self.next_key += 1;
            if host.region(key).is_none() {
                break key;
            }
        };
        self.sends.push(RendezvousSend { key, op, tag, len });
        WireRmaIov {
            addr: 0,
            len: len as u64,
            key,
        }
    }

    /// Whether nothing is offered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// What a question for these places means, if it is about offers.
    pub(super) fn message_ranges(
        &self,
        rows: &RmaIovList,
    ) -> Option<Result<Vec<MessageRange>, ProtocolViolation>> {
        let offered = |row: &WireRmaIov| self.sends.iter().find(|offered| offered.key == row.key);
        offered(rows.first()?)?;
        Some(
            rows.iter()
                .map(|row| message_range(offered(row)?, row))
                .collect::<Option<_>>()
                .ok_or(super::responder::ACCESS_VIOLATION),
        )
    }

    /// The peer has read the message of this number: its operation, which has ended.
    ///
    /// # Errors
    /// There is no such message.
    pub(super) fn take_completed(
        &mut self,
        number: u64,
    ) -> Result<CompletedRendezvous, ProtocolViolation> {
        let at = self.sends.iter().position(|offered| offered.key == number);
        let at = at.ok_or(ProtocolViolation(
            "word that a message was read which was not offered",
        ))?;
        Ok(CompletedRendezvous(self.sends.remove(at)))
    }

    /// The peer will read nothing any more.
    pub(super) fn fail(&mut self, host: &mut dyn EngineContext, error: &Error) {
        for offered in self.sends.drain(..) {
            let transfer = Transfer::sent(0, offered.tag);
            host.complete(offered.op, Outcome::partial(transfer, error.clone()));
        }
    }
}

/// The place of a row in a message.
fn message_range(offered: &RendezvousSend, row: &WireRmaIov) -> Option<MessageRange> {
    let end = row.addr.checked_add(row.len)?;
    let is_within = end <= offered.len as u64;
    is_within.then_some(MessageRange {
        op: offered.op,
        at: row.addr as usize,
        len: row.len as usize,
    })
}

/// A message that was read.
#[derive(Debug)]
pub(super) struct CompletedRendezvous(RendezvousSend);

impl CompletedRendezvous {
    pub(super) fn op(&self) -> OpKey {
        self.0.op
    }

    pub(super) fn complete(self, host: &mut dyn EngineContext) {
        host.complete(
            self.0.op,
            Outcome::ok(Transfer::sent(self.0.len, self.0.tag)),
        );
    }
}
