//! The prefix that every message has.

use super::AtomicHeader;
use crate::atomic::AtomicCall;
use crate::tcp::ProtocolViolation;

/// How many bytes it is.
pub const PACKET_HEADER_LEN: usize = 64;
/// The longest message that goes in one packet, and the longest segment.
pub const EAGER_LIMIT: usize = 16 << 10;

const CTRL_VERSION: u8 = 4;
const OP_VERSION: u8 = 2;
const HAS_DATA: u32 = 0x0002_0000;
/// The first kind of atomic operations; the others follow it.
const FIRST_ATOMIC_OP: u8 = 6;

/// Which of its message's segments one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentType {
    /// The first.
    First,
    /// Neither.
    Middle,
    /// The last.
    Last,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A message.
    Eager,
    /// Part of a message: which of them, and how long.
    Segment(SegmentType, u32, u16),
    /// Where a message lies.
    Rendezvous,
    /// A message that was offered has been read.
    RendezvousDone,
    /// An atomic operation.
    Atomic(AtomicHeader),
    /// What has come of one.
    AtomicResponse(AtomicHeader),
}

impl PacketKind {
    /// Whether it is a message, or part of one.
    #[must_use]
    pub fn is_message(self) -> bool {
        matches!(self, Self::Eager | Self::Segment(..) | Self::Rendezvous)
    }

    /// What kind of operation it belongs to, and the word behind that, which is the tag of a
    /// message.
    fn op_code(self, tag: Option<u64>) -> (u8, u64) {
        match self {
            Self::Atomic(atomic) | Self::AtomicResponse(atomic) => {
                let word = [
                    atomic.datatype,
                    atomic.op,
                    atomic.rma_iov_count,
                    0,
                    0,
                    0,
                    0,
                    0,
                ];
                (
                    FIRST_ATOMIC_OP
                        + AtomicCall::ALL
                            .iter()
                            .position(|call| *call == atomic.call)
                            .unwrap_or(0) as u8,
                    u64::from_ne_bytes(word),
                )
            }
            _ => (u8::from(tag.is_some()), tag.unwrap_or(0)),
        }
    }
}

/// A prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxmPacket {
    /// What it is.
    pub kind: PacketKind,
    /// What the receiver has said that packets to it must quote.
    pub connection_id: u32,
    /// The number of the message, as its sender counts; 0 of one that is in this packet.
    pub message_id: u64,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
    /// Bytes of the whole message; of an atomic operation, and of a response, those behind the
    /// prefix.
    pub len: u64,
}

impl RxmPacket {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; PACKET_HEADER_LEN] {
        let (kind, size, number, step) = match self.kind {
            PacketKind::Eager => (0, 0, 0, 0),
            PacketKind::Segment(step, number, size) => (1, size, number, step as u64 + 1),
            PacketKind::Rendezvous => (2, 0, 0, 0),
            PacketKind::RendezvousDone => (3, 0, 0, 0),
            PacketKind::Atomic(_) => (4, 0, 0, 0),
            PacketKind::AtomicResponse(_) => (5, 0, 0, 0),
        };
        let mut bytes = [0; PACKET_HEADER_LEN];
        bytes[..2].copy_from_slice(&[CTRL_VERSION, kind]);
        bytes[2..4].copy_from_slice(&size.to_ne_bytes());
        bytes[4..8].copy_from_slice(&number.to_ne_bytes());
        bytes[8..16].copy_from_slice(&u64::from(self.connection_id).to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.message_id.to_ne_bytes());
        bytes[24..32].copy_from_slice(&step.to_ne_bytes());
        bytes[32] = OP_VERSION;
        let (operation, word) = self.kind.op_code(self.tag);
        bytes[34] = operation;
        let flags = if self.data.is_some() { HAS_DATA } else { 0 };
        bytes[36..40].copy_from_slice(&flags.to_ne_bytes());
        bytes[40..48].copy_from_slice(&self.len.to_ne_bytes());
        bytes[48..56].copy_from_slice(&self.data.unwrap_or(0).to_ne_bytes());
        bytes[56..].copy_from_slice(&word.to_ne_bytes());
        bytes
    }

    /// What these bytes say.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8; PACKET_HEADER_LEN]) -> Result<Self, ProtocolViolation> {
        let [control, kind, s0, s1, n0, n1, n2, n3, ..] = *bytes;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_ne_bytes(words[at]);
        if control != CTRL_VERSION || bytes[32] != OP_VERSION && matches!(kind, 0..=2 | 4 | 5) {
            return Err(ProtocolViolation("a packet of another version of RXM"));
        }
        let kind = match kind {
            0 => PacketKind::Eager,
            1 => {
                let step = match word(3) & 3 {
                    1 => SegmentType::First,
                    2 => SegmentType::Middle,
                    3 => SegmentType::Last,
                    _ => {
                        return Err(ProtocolViolation(
                            "a segment that is neither first, last nor between",
                        ));
                    }
                };
                let (size, number) = (
                    u16::from_ne_bytes([s0, s1]),
                    u32::from_ne_bytes([n0, n1, n2, n3]),
                );
                PacketKind::Segment(step, number, size)
            }
            2 => PacketKind::Rendezvous,
            3 => PacketKind::RendezvousDone,
            4 => PacketKind::Atomic(decode_atomic(bytes)?),
            5 => PacketKind::AtomicResponse(decode_atomic(bytes)?),
            6 => return Err(ProtocolViolation("a credit that was not agreed on")),
            7 | 8 => {
                return Err(ProtocolViolation(
                    "a rendezvous by writing, which was not agreed on",
                ));
            }
            _ => return Err(ProtocolViolation("an unknown packet of RXM")),
        };
        let is_message = kind.is_message();
        let tag = match bytes[34] {
            1 if is_message => Some(word(7)),
            0 => None,
            _ if !is_message => None,
            _ => return Err(ProtocolViolation("an operation of RXM that is no message")),
        };
        let flags = u32::from_ne_bytes([bytes[36], bytes[37], bytes[38], bytes[39]]);
        let data = (is_message && flags & HAS_DATA != 0).then(|| word(6));
        // The upper half is the sender's.
        let connection = word(1) as u32;
        Ok(Self {
            kind,
            connection_id: connection,
            message_id: word(2),
            tag,
            data,
            len: word(5),
        })
    }
}

/// What the prefix of an atomic operation, or of a response to one, says of it.
fn decode_atomic(bytes: &[u8; PACKET_HEADER_LEN]) -> Result<AtomicHeader, ProtocolViolation> {
    let call = bytes[34]
        .checked_sub(FIRST_ATOMIC_OP)
        .and_then(|at| AtomicCall::ALL.get(usize::from(at)));
    let call = *call.ok_or(ProtocolViolation(
        "an atomic operation that is called as none is",
    ))?;
    Ok(AtomicHeader {
        call,
        datatype: bytes[56],
        op: bytes[57],
        rma_iov_count: bytes[58],
    })
}
