//! The header of everything that follows the beginning of a connection.

use crate::atomic::AtomicSpec;
use crate::mr::AccessError;

use super::rma_iov::RMA_IOV_LEN;
use super::{ByteOrder, MAX_RMA_IOV, ProtocolViolation, RmaIovList, Supported, WireRmaIov};

const VERSION: u8 = 3;
const BASE_HEADER_LEN: usize = 16;
/// The longest header: data and four rows of a one-sided operation.
pub const MAX_HEADER_LEN: usize = BASE_HEADER_LEN + 8 + MAX_RMA_IOV * RMA_IOV_LEN;

const HAS_DATA: u16 = 0x0001;
const WANTS_ACK: u16 = 0x0004;
const WANTS_COMMIT: u16 = 0x0008;
/// A message with a tag, as libfabric 1.13 to 1.17 says it where RXM is spoken: without a packet.
const RAW_TAGGED: u16 = 0x0080;
/// What an acknowledgement has in the field of the operation.
const ACK_OP: u8 = 2;

const MESSAGE: u8 = 0;
const TAGGED: u8 = 1;
const READ: u8 = 2;
const READ_RSP: u8 = 3;
const WRITE: u8 = 4;
/// What only peers of this library say, to each other. Others know no operation of these numbers.
const ATOMIC: u8 = 0xf1;
const NACK: u8 = 0xf2;
const CHECKED_READ_RSP: u8 = 0xf3;

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
    ReadResponse,
    /// Bytes for so many places.
    Write(u8),
    /// Operands for one place.
    Atomic(AtomicSpec),
    /// Nothing was done, and why.
    Nack(Box<RmaNack>),
    /// An answer to a question: the bytes, and behind them whether they are good.
    CheckedReadResponse,
}

/// Why nothing was done of what a peer has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmaNack {
    /// It has asked for bytes, not given some.
    pub is_read: bool,
    /// Which of its places is meant.
    pub iov_index: u8,
    /// Why.
    pub error: AccessError,
}

/// Bytes of a verdict, behind those of a checked answer.
pub(super) const STATUS_LEN: usize = 16;

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
pub struct AckDue(Option<Box<RmaNack>>);

impl AckDue {
    /// What was to be acknowledged was not done, which is said instead, to a peer that understands
    /// it.
    pub(super) fn nack(self, denial: RmaNack) -> Self {
        Self(Some(denial.into()))
    }
}

impl Frame {
    /// A message, with a tag for a peer that takes it.
    #[must_use]
    pub fn message(tag: Option<Supported<u64>>, data: Option<u64>, payload: usize) -> Self {
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
    pub fn with_ack(self) -> Self {
        Self {
            wants_ack: true,
            ..self
        }
    }

    /// A question for bytes of these places.
    #[must_use]
    pub fn read(rows: &RmaIovList) -> Self {
        Self {
            kind: FrameKind::Read(rows.len() as u8),
            data: None,
            wants_ack: false,
            payload: 0,
        }
    }

    /// Bytes for these places. An acknowledgement is asked for: it comes when they are there.
    #[must_use]
    pub fn write(rows: &RmaIovList, data: Option<u64>, payload: usize) -> Self {
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
    pub fn atomic(atomic: Supported<AtomicSpec>, answers: bool, payload: usize) -> Self {
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
    pub(super) fn read_response(checks: bool, len: u64) -> Self {
        let (kind, more) = if checks {
            (FrameKind::CheckedReadResponse, STATUS_LEN as u64)
        } else {
            (FrameKind::ReadResponse, 0)
        };
        Self {
            kind,
            data: None,
            wants_ack: false,
            payload: len + more,
        }
    }

    /// The refusal of a question.
    pub(super) fn nack(denial: RmaNack) -> Self {
        Self {
            kind: FrameKind::Nack(denial.into()),
            data: None,
            wants_ack: false,
            payload: 0,
        }
    }

    /// The answer to a frame that asked for it.
    #[must_use]
    pub fn ack(owed: AckDue) -> Self {
        let kind = owed.0.map_or(FrameKind::Ack, FrameKind::Nack);
        Self {
            kind,
            data: None,
            wants_ack: false,
            payload: 0,
        }
    }

    /// What is owed for this frame once all of it has arrived.
    pub fn ack_due(&self) -> Option<AckDue> {
        self.wants_ack.then_some(AckDue(None))
    }

    /// Writes the header with this number into the room, and returns its length. The rows are those
    /// it was made for.
    #[inline(always)] // on the way of a small message
    pub fn encode(
        &self,
        rows: &[WireRmaIov],
        order: ByteOrder,
        number: u8,
        into: &mut [u8; MAX_HEADER_LEN],
    ) -> usize {
        let mut len = BASE_HEADER_LEN;
        let mut extend = |value: u64| {
            into[len..len + 8].copy_from_slice(&order.encode_u64(value));
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
            (code, len) = self.encode_one_sided(rows, order, into);
            code
        };
        let flags = if self.data.is_some() { HAS_DATA } else { 0 }
            | if self.wants_ack { WANTS_ACK } else { 0 };
        into[0] = VERSION;
        into[1] = code;
        into[2..4].copy_from_slice(&order.encode_u16(flags));
        into[4] = if self.kind == FrameKind::Ack {
            ACK_OP
        } else {
            0
        };
        into[5] = rows.len() as u8;
        into[6] = len as u8;
        into[7] = number;
        into[8..16].copy_from_slice(&order.encode_u64(self.payload + len as u64));
        len
    }

    /// Writes the words of a frame that is no message; returns its code, and the length of the
    /// header.
    #[cold]
    fn encode_one_sided(
        &self,
        rows: &[WireRmaIov],
        order: ByteOrder,
        into: &mut [u8; MAX_HEADER_LEN],
    ) -> (u8, usize) {
        let mut len = BASE_HEADER_LEN;
        let mut extend = |value: u64| {
            into[len..len + 8].copy_from_slice(&order.encode_u64(value));
            len += 8;
        };
        self.data.into_iter().for_each(&mut extend);
        let code = match self.kind {
            FrameKind::Message | FrameKind::Tagged(_) | FrameKind::Ack => MESSAGE,
            FrameKind::Read(_) => READ,
            FrameKind::ReadResponse => READ_RSP,
            FrameKind::Write(_) => WRITE,
            FrameKind::Atomic(atomic) => {
                extend(u64::from(atomic.to_code()));
                ATOMIC
            }
            FrameKind::Nack(ref denial) => {
                let RmaNack {
                    is_read: asked,
                    iov_index: row,
                    error: why,
                } = **denial;
                let (code, detail) = why.to_words();
                extend(code | u64::from(row) << 8 | u64::from(asked) << 16);
                extend(detail);
                NACK
            }
            FrameKind::CheckedReadResponse => CHECKED_READ_RSP,
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
    pub fn decode(
        bytes: &[u8],
        order: ByteOrder,
    ) -> Result<Option<(Self, usize)>, ProtocolViolation> {
        Self::decode_for(bytes, order, false)
    }

    /// The same, perhaps of a connection on which RXM is spoken.
    pub(super) fn decode_for(
        bytes: &[u8],
        order: ByteOrder,
        is_rxm: bool,
    ) -> Result<Option<(Self, usize)>, ProtocolViolation> {
        let Some(base) = bytes.first_chunk::<BASE_HEADER_LEN>() else {
            return Ok(None);
        };
        let [_, code, f0, f1, op, rows, len, _, total @ ..] = *base;
        let (flags, len, total) = (
            order.decode_u16([f0, f1]),
            usize::from(len),
            order.decode_u64(total),
        );
        if !(BASE_HEADER_LEN..=MAX_HEADER_LEN).contains(&len) {
            return Err(ProtocolViolation("a header of a length that none has"));
        }
        let Some(payload) = total.checked_sub(len as u64) else {
            return Err(ProtocolViolation("a frame that is shorter than its header"));
        };
        let Some(rest) = bytes.get(BASE_HEADER_LEN..len) else {
            return Ok(None);
        };
        let mut words = rest
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| order.decode_u64(*word));
        let mut next = || {
            words
                .next()
                .ok_or(ProtocolViolation("a header that lacks a part"))
        };
        let has_data = flags & HAS_DATA != 0;
        let (mut data, mut extended) = (None, 0);
        let code = if is_rxm && code == MESSAGE && flags & RAW_TAGGED != 0 {
            TAGGED
        } else {
            code
        };
        let kind = match (code, op) {
            (MESSAGE, ACK_OP) if payload > 0 || len > BASE_HEADER_LEN => {
                return Err(ProtocolViolation("an acknowledgement with something in it"));
            }
            (MESSAGE, ACK_OP) => FrameKind::Ack,
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
                (kind, data, extended) =
                    decode_one_sided([code, rows], has_data, payload, rest, order)?;
                kind
            }
        };
        if BASE_HEADER_LEN + extended != len {
            return Err(ProtocolViolation(
                "a header whose length is not that of its parts",
            ));
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
fn decode_one_sided(
    [code, rows]: [u8; 2],
    has_data: bool,
    payload: u64,
    rest: &[u8],
    order: ByteOrder,
) -> Result<(FrameKind, Option<u64>, usize), ProtocolViolation> {
    let mut words = rest
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| order.decode_u64(*word));
    let mut next = || {
        words
            .next()
            .ok_or(ProtocolViolation("a header that lacks a part"))
    };
    let places = usize::from(rows) * RMA_IOV_LEN;
    let (kind, data, extended) = match code {
        READ | WRITE if usize::from(rows) > MAX_RMA_IOV => {
            return Err(ProtocolViolation(
                "more rows than a one-sided operation has",
            ));
        }
        READ => (FrameKind::Read(rows), None, places),
        WRITE if has_data => (FrameKind::Write(rows), Some(next()?), 8 + places),
        WRITE => (FrameKind::Write(rows), None, places),
        READ_RSP => (FrameKind::ReadResponse, None, 0),
        5..=7 => return Err(ProtocolViolation("a rendezvous that was not agreed on")),
        ATOMIC => {
            let atomic = u32::try_from(next()?).ok().and_then(AtomicSpec::from_code);
            let atomic =
                atomic.ok_or(ProtocolViolation("an atomic operation that there is not"))?;
            (FrameKind::Atomic(atomic), None, 8 + RMA_IOV_LEN)
        }
        NACK => {
            let (word, detail) = (next()?, next()?);
            let why = AccessError::from_words(word & 0xff, detail);
            let why = why.ok_or(ProtocolViolation("a refusal of nothing"))?;
            let denial = RmaNack {
                is_read: word >> 16 & 1 == 1,
                iov_index: (word >> 8) as u8,
                error: why,
            };
            (FrameKind::Nack(denial.into()), None, 16)
        }
        CHECKED_READ_RSP => (FrameKind::CheckedReadResponse, None, 0),
        _ => return Err(ProtocolViolation("an unknown operation")),
    };
    if payload > 0 && matches!(kind, FrameKind::Read(_) | FrameKind::Nack(_)) {
        return Err(ProtocolViolation("a question with bytes behind it"));
    }
    Ok((kind, data, extended))
}
