//! The header of everything that follows the beginning of a connection.

use crate::atomic::AtomicSpec;
use crate::mr::Denied;

use super::rows::ROW;
use super::{Broken, MOST_ROWS, Order, Row, Rows, Welcome};

const VERSION: u8 = 3;
const BASE: usize = 16;
/// The longest header: data and four rows of a one-sided operation.
pub const LONGEST_HEADER: usize = BASE + 8 + MOST_ROWS * ROW;

const HAS_DATA: u16 = 0x0001;
const WANTS_ACK: u16 = 0x0004;
const WANTS_COMMIT: u16 = 0x0008;
/// A message with a tag, as libfabric 1.13 to 1.17 says it where RXM is spoken: without a packet.
const RAW_TAGGED: u16 = 0x0080;
/// What an acknowledgement has in the field of the operation.
const ACK: u8 = 2;

const MESSAGE: u8 = 0;
const TAGGED: u8 = 1;
const READ: u8 = 2;
const ANSWER: u8 = 3;
const WRITE: u8 = 4;
/// What only peers of this library say, to each other. Others know no operation of these numbers.
const ATOMIC: u8 = 0xf1;
const REFUSED: u8 = 0xf2;
const CHECKED: u8 = 0xf3;

/// What a frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A message.
    Message,
    /// A message with this tag.
    Tagged(u64),
    /// A frame that asked for it has arrived.
    Ack,
    /// A question for bytes of so many places.
    Read(u8),
    /// The answer to one: the bytes.
    Answer,
    /// Bytes for so many places.
    Write(u8),
    /// Operands for one place.
    Atomic(AtomicSpec),
    /// Nothing was done, and why.
    Refused(Box<Denial>),
    /// An answer to a question: the bytes, and behind them whether they are good.
    Checked,
}

/// Why nothing was done of what a peer has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// It has asked for bytes, not given some.
    pub asked: bool,
    /// Which of its places is meant.
    pub row: u8,
    /// Why.
    pub why: Denied,
}

/// Bytes of a verdict, behind those of a checked answer.
pub(super) const VERDICT: usize = 16;

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: FrameKind,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
    /// The sender waits for an acknowledgement.
    wants_ack: bool,
    /// Bytes that follow the header.
    pub payload: u64,
}

/// An acknowledgement that is owed to the peer, or a refusal in its place. There is no other way to
/// one: a libfabric peer does not survive one that it has not asked for.
#[derive(Debug)]
#[must_use]
pub struct Owed(Option<Box<Denial>>);

impl Owed {
    /// What was to be acknowledged was not done, which is said instead, to a peer that understands
    /// it.
    pub(super) fn refused(self, denial: Denial) -> Self {
        Self(Some(denial.into()))
    }
}

impl Frame {
    /// A message, with a tag for a peer that takes it.
    #[must_use]
    pub fn message(tag: Option<Welcome<u64>>, data: Option<u64>, payload: usize) -> Self {
        let kind = tag.map_or(FrameKind::Message, |tag| {
            FrameKind::Tagged(tag.into_inner())
        });
        Self {
            kind,
            data,
            wants_ack: false,
            payload: payload as u64,
        }
    }

    /// The same, and an acknowledgement is asked for.
    #[must_use]
    pub fn acknowledged(self) -> Self {
        Self {
            wants_ack: true,
            ..self
        }
    }

    /// A question for bytes of these places.
    #[must_use]
    pub fn read(rows: &Rows) -> Self {
        Self {
            kind: FrameKind::Read(rows.len() as u8),
            data: None,
            wants_ack: false,
            payload: 0,
        }
    }

    /// Bytes for these places. An acknowledgement is asked for: it comes when they are there.
    #[must_use]
    pub fn write(rows: &Rows, data: Option<u64>, payload: usize) -> Self {
        let kind = FrameKind::Write(rows.len() as u8);
        Self {
            kind,
            data,
            wants_ack: true,
            payload: payload as u64,
        }
    }

    /// Operands for a place of a peer that has such operations. Acknowledged, unless there is an
    /// answer.
    #[must_use]
    pub fn atomic(atomic: Welcome<AtomicSpec>, answers: bool, payload: usize) -> Self {
        let kind = FrameKind::Atomic(atomic.into_inner());
        Self {
            kind,
            data: None,
            wants_ack: !answers,
            payload: payload as u64,
        }
    }

    /// The answer to a question, of so many bytes; to a peer that `checks` it with a verdict behind
    /// them.
    pub(super) fn answer(checks: bool, len: u64) -> Self {
        let (kind, more) = if checks {
            (FrameKind::Checked, VERDICT as u64)
        } else {
            (FrameKind::Answer, 0)
        };
        Self {
            kind,
            data: None,
            wants_ack: false,
            payload: len + more,
        }
    }

    /// The refusal of a question.
    pub(super) fn refused(denial: Denial) -> Self {
        Self {
            kind: FrameKind::Refused(denial.into()),
            data: None,
            wants_ack: false,
            payload: 0,
        }
    }

    /// The answer to a frame that asked for it.
    #[must_use]
    pub fn ack(owed: Owed) -> Self {
        let kind = owed.0.map_or(FrameKind::Ack, FrameKind::Refused);
        Self {
            kind,
            data: None,
            wants_ack: false,
            payload: 0,
        }
    }

    /// What is owed for this frame once all of it has arrived.
    pub fn owes(&self) -> Option<Owed> {
        self.wants_ack.then_some(Owed(None))
    }

    /// Writes the header with this number into the room, and returns its length. The rows are those
    /// it was made for.
    #[inline(always)] // on the way of a small message
    pub fn encode(
        &self,
        rows: &[Row],
        order: Order,
        number: u8,
        into: &mut [u8; LONGEST_HEADER],
    ) -> usize {
        let mut len = BASE;
        let mut extend = |value: u64| {
            into[len..len + 8].copy_from_slice(&order.put_u64(value));
            len += 8;
        };
        let code = if matches!(
            self.kind,
            FrameKind::Message | FrameKind::Tagged(_) | FrameKind::Ack
        ) {
            if let Some(data) = self.data {
                extend(data);
            }
            if let FrameKind::Tagged(tag) = self.kind {
                extend(tag);
            }
            u8::from(matches!(self.kind, FrameKind::Tagged(_)))
        } else {
            let code;
            (code, len) = self.extend(rows, order, into);
            code
        };
        let flags = if self.data.is_some() { HAS_DATA } else { 0 }
            | if self.wants_ack { WANTS_ACK } else { 0 };
        into[0] = VERSION;
        into[1] = code;
        into[2..4].copy_from_slice(&order.put_u16(flags));
        into[4] = if self.kind == FrameKind::Ack { ACK } else { 0 };
        into[5] = rows.len() as u8;
        into[6] = len as u8;
        into[7] = number;
        into[8..16].copy_from_slice(&order.put_u64(self.payload + len as u64));
        len
    }

    /// Writes the words of a frame that is no message; returns its code, and the length of the
    /// header.
    #[cold]
    fn extend(&self, rows: &[Row], order: Order, into: &mut [u8; LONGEST_HEADER]) -> (u8, usize) {
        let mut len = BASE;
        let mut extend = |value: u64| {
            into[len..len + 8].copy_from_slice(&order.put_u64(value));
            len += 8;
        };
        self.data.into_iter().for_each(&mut extend);
        let code = match self.kind {
            FrameKind::Message | FrameKind::Tagged(_) | FrameKind::Ack => MESSAGE,
            FrameKind::Read(_) => READ,
            FrameKind::Answer => ANSWER,
            FrameKind::Write(_) => WRITE,
            FrameKind::Atomic(atomic) => {
                extend(u64::from(atomic.to_code()));
                ATOMIC
            }
            FrameKind::Refused(ref denial) => {
                let Denial { asked, row, why } = **denial;
                let (code, detail) = why.to_words();
                extend(code | u64::from(row) << 8 | u64::from(asked) << 16);
                extend(detail);
                REFUSED
            }
            FrameKind::Checked => CHECKED,
        };
        for row in rows {
            [row.addr, row.len, row.key]
                .into_iter()
                .for_each(&mut extend);
        }
        (code, len)
    }

    /// The header at the start of these bytes, and its length; `None` while some of it is missing.
    ///
    /// Version and number are not looked at: released peers write anything there.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8], order: Order) -> Result<Option<(Self, usize)>, Broken> {
        Self::decode_in(bytes, order, false)
    }

    /// The same, perhaps of a connection on which RXM is spoken.
    pub(super) fn decode_in(
        bytes: &[u8],
        order: Order,
        is_rxm: bool,
    ) -> Result<Option<(Self, usize)>, Broken> {
        let Some(base) = bytes.first_chunk::<BASE>() else {
            return Ok(None);
        };
        let [_, code, f0, f1, op, rows, len, _, total @ ..] = *base;
        let (flags, len, total) = (order.u16([f0, f1]), usize::from(len), order.u64(total));
        if !(BASE..=LONGEST_HEADER).contains(&len) {
            return Err(Broken("a header of a length that none has"));
        }
        let Some(payload) = total.checked_sub(len as u64) else {
            return Err(Broken("a frame that is shorter than its header"));
        };
        let Some(rest) = bytes.get(BASE..len) else {
            return Ok(None);
        };
        let mut words = rest.as_chunks::<8>().0.iter().map(|word| order.u64(*word));
        let mut next = || words.next().ok_or(Broken("a header that lacks a part"));
        let has_data = flags & HAS_DATA != 0;
        let (mut data, mut extended) = (None, 0);
        let code = if is_rxm && code == MESSAGE && flags & RAW_TAGGED != 0 {
            TAGGED
        } else {
            code
        };
        let kind = match (code, op) {
            (MESSAGE, ACK) if payload > 0 || len > BASE => {
                return Err(Broken("an acknowledgement with something in it"));
            }
            (MESSAGE, ACK) => FrameKind::Ack,
            (MESSAGE | TAGGED, _) => {
                if has_data {
                    (data, extended) = (Some(next()?), 8);
                }
                if code == TAGGED {
                    extended += 8;
                    FrameKind::Tagged(next()?)
                } else {
                    FrameKind::Message
                }
            }
            _ => {
                let kind;
                (kind, data, extended) = one_sided([code, rows], has_data, payload, rest, order)?;
                kind
            }
        };
        if BASE + extended != len {
            return Err(Broken("a header whose length is not that of its parts"));
        }
        let wants_ack = flags & (WANTS_ACK | WANTS_COMMIT) != 0;
        Ok(Some((
            Self {
                kind,
                data,
                wants_ack,
                payload,
            },
            len,
        )))
    }
}

/// What a frame is that is no message, its data, and how long its extension has to be.
#[cold]
fn one_sided(
    [code, rows]: [u8; 2],
    has_data: bool,
    payload: u64,
    rest: &[u8],
    order: Order,
) -> Result<(FrameKind, Option<u64>, usize), Broken> {
    let mut words = rest.as_chunks::<8>().0.iter().map(|word| order.u64(*word));
    let mut next = || words.next().ok_or(Broken("a header that lacks a part"));
    let places = usize::from(rows) * ROW;
    let (kind, data, extended) = match code {
        READ | WRITE if usize::from(rows) > MOST_ROWS => {
            return Err(Broken("more rows than a one-sided operation has"));
        }
        READ => (FrameKind::Read(rows), None, places),
        WRITE if has_data => (FrameKind::Write(rows), Some(next()?), 8 + places),
        WRITE => (FrameKind::Write(rows), None, places),
        ANSWER => (FrameKind::Answer, None, 0),
        5..=7 => return Err(Broken("a rendezvous that was not agreed on")),
        ATOMIC => {
            let atomic = u32::try_from(next()?).ok().and_then(AtomicSpec::from_code);
            let atomic = atomic.ok_or(Broken("an atomic operation that there is not"))?;
            (FrameKind::Atomic(atomic), None, 8 + ROW)
        }
        REFUSED => {
            let (word, detail) = (next()?, next()?);
            let why = Denied::from_words(word & 0xff, detail);
            let why = why.ok_or(Broken("a refusal of nothing"))?;
            let denial = Denial {
                asked: word >> 16 & 1 == 1,
                row: (word >> 8) as u8,
                why,
            };
            (FrameKind::Refused(denial.into()), None, 16)
        }
        CHECKED => (FrameKind::Checked, None, 0),
        _ => return Err(Broken("an unknown operation")),
    };
    if payload > 0 && matches!(kind, FrameKind::Read(_) | FrameKind::Refused(_)) {
        return Err(Broken("a question with bytes behind it"));
    }
    Ok((kind, data, extended))
}
