//! The header of everything that follows the beginning of a connection.

use super::{Broken, Order};

const VERSION: u8 = 3;
const BASE: usize = 16;
/// The longest header: data and four rows of a one-sided operation.
pub const LONGEST_HEADER: usize = 120;
/// Bytes of a row: address, length, key.
const ROW: usize = 24;
const ROWS: usize = 4;

const HAS_DATA: u16 = 0x0001;
const WANTS_ACK: u16 = 0x0004;
const WANTS_COMMIT: u16 = 0x0008;
/// What an acknowledgement has in the field of the operation.
const ACK: u8 = 2;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A message.
    Message,
    /// A message with this tag.
    Tagged(u64),
    /// A frame that asked for it has arrived.
    Ack,
    /// A one-sided operation: a read, its answer, or a write.
    OneSided,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// An acknowledgement that is owed to the peer. There is no other way to one: a libfabric peer does not survive one that
/// it has not asked for.
#[derive(Debug)]
#[must_use]
pub struct Owed(());

impl Frame {
    /// A message.
    #[must_use]
    pub fn message(tag: Option<u64>, data: Option<u64>, payload: usize) -> Self {
        let kind = tag.map_or(FrameKind::Message, FrameKind::Tagged);
        Self { kind, data, wants_ack: false, payload: payload as u64 }
    }

    /// The answer to a frame that asked for it.
    #[must_use]
    pub fn ack(_: Owed) -> Self {
        Self { kind: FrameKind::Ack, data: None, wants_ack: false, payload: 0 }
    }

    /// What is owed for this frame once all of it has arrived.
    pub fn owes(&self) -> Option<Owed> {
        self.wants_ack.then_some(Owed(()))
    }

    /// Writes the header with this number into the room, and returns its length.
    pub fn encode(&self, order: Order, number: u8, into: &mut [u8; LONGEST_HEADER]) -> usize {
        let mut len = BASE;
        let mut extend = |value: u64| {
            into[len..len + 8].copy_from_slice(&order.put_u64(value));
            len += 8;
        };
        if let Some(data) = self.data {
            extend(data);
        }
        if let FrameKind::Tagged(tag) = self.kind {
            extend(tag);
        }
        let flags =
            if self.data.is_some() { HAS_DATA } else { 0 } | if self.wants_ack { WANTS_ACK } else { 0 };
        into[0] = VERSION;
        into[1] = u8::from(matches!(self.kind, FrameKind::Tagged(_)));
        into[2..4].copy_from_slice(&order.put_u16(flags));
        into[4] = if self.kind == FrameKind::Ack { ACK } else { 0 };
        into[5] = 0;
        into[6] = len as u8;
        into[7] = number;
        into[8..16].copy_from_slice(&order.put_u64(self.payload + len as u64));
        len
    }

    /// The header at the start of these bytes, and its length; `None` while some of it is missing.
    ///
    /// Version and number are not looked at: released peers write anything there.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8], order: Order) -> Result<Option<(Self, usize)>, Broken> {
        let Some(base) = bytes.first_chunk::<BASE>() else { return Ok(None) };
        let [_, code, f0, f1, op, rows, len, _, total @ ..] = *base;
        let (flags, len, total) = (order.u16([f0, f1]), usize::from(len), order.u64(total));
        if !(BASE..=LONGEST_HEADER).contains(&len) {
            return Err(Broken("a header of a length that none has"));
        }
        let Some(payload) = total.checked_sub(len as u64) else {
            return Err(Broken("a frame that is shorter than its header"));
        };
        let Some(rest) = bytes.get(BASE..len) else { return Ok(None) };
        let mut words = rest.as_chunks::<8>().0.iter().map(|word| order.u64(*word));
        let mut extended = 0;
        let mut next = || {
            extended += 8;
            words.next().ok_or(Broken("a header that lacks a part"))
        };
        let has_data = flags & HAS_DATA != 0;
        let (mut data, mut kind) = (None, FrameKind::OneSided);
        match (code, op) {
            (0, ACK) if payload > 0 || len > BASE => {
                return Err(Broken("an acknowledgement with something in it"));
            }
            (0, ACK) => kind = FrameKind::Ack,
            (0 | 1, _) => {
                data = if has_data { Some(next()?) } else { None };
                kind = if code == 1 { FrameKind::Tagged(next()?) } else { FrameKind::Message };
            }
            (2 | 4, _) => {
                if usize::from(rows) > ROWS {
                    return Err(Broken("more rows than a one-sided operation has"));
                }
                data = if code == 4 && has_data { Some(next()?) } else { None };
                extended += usize::from(rows) * ROW;
            }
            (3, _) => {}
            (5..=7, _) => return Err(Broken("a rendezvous that was not agreed on")),
            _ => return Err(Broken("an unknown operation")),
        }
        if BASE + extended != len {
            return Err(Broken("a header whose length is not that of its parts"));
        }
        let wants_ack = flags & (WANTS_ACK | WANTS_COMMIT) != 0;
        Ok(Some((Self { kind, data, wants_ack, payload }, len)))
    }
}
