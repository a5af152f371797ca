//! The packet header of every RXM message.

use super::AtomicHeader;
use crate::atomic::AtomicCall;
use crate::tcp::ProtocolViolation;

/// Length of a packet header, in bytes.
pub const PACKET_HEADER_LEN: usize = 64;
/// Maximum length of a message in one packet, and of a segment, in bytes.
pub const EAGER_LIMIT: usize = 16 << 10;

/// Version of the first part of the header: type, connection id, message id.
const CTRL_VERSION: u8 = 4;
/// Version of the second part of the header: operation code, flags, length, CQ data, tag.
const OP_VERSION: u8 = 2;
/// Flag of a packet with CQ data (`FI_REMOTE_CQ_DATA`).
const HAS_DATA: u32 = 0x0002_0000;
/// Operation code of the first kind of atomic operations; the others follow it.
const FIRST_ATOMIC_OP: u8 = 6;

/// Position of a segment in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentType {
    /// The first segment.
    First,
    /// A segment between the first and the last.
    Middle,
    /// The last segment.
    Last,
}

/// Type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A whole message.
    Eager,
    /// A segment of a message: its type, number and length.
    Segment(SegmentType, u32, u16),
    /// The location of a rendezvous message in the sender's memory.
    Rendezvous,
    /// The receiver has read a rendezvous message.
    RendezvousDone,
    /// An atomic operation.
    Atomic(AtomicHeader),
    /// The response to an atomic operation.
    AtomicResponse(AtomicHeader),
}

impl PacketKind {
    /// Returns whether the packet is a message or part of one.
    #[must_use]
    pub fn is_message(self) -> bool {
        matches!(self, Self::Eager | Self::Segment(..) | Self::Rendezvous)
    }

    /// Returns the operation code, and the last word of the header: the tag of a message, or the
    /// fields of an atomic operation.
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

/// A packet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxmPacket {
    /// Type of the packet.
    pub kind: PacketKind,
    /// Connection id that the receiver expects.
    pub connection_id: u32,
    /// Id of the message, assigned by its sender; 0 for a message of one packet.
    pub message_id: u64,
    /// Tag of a tagged message.
    pub tag: Option<u64>,
    /// CQ data for the receiver's completion.
    pub data: Option<u64>,
    /// Length of the whole message in bytes; for an atomic operation or a response, length behind
    /// the packet header.
    pub len: u64,
}

impl RxmPacket {
    /// Encodes the packet header.
    #[must_use]
    pub fn encode(&self) -> [u8; PACKET_HEADER_LEN] {
        let (kind, size, number, segment_type) = match self.kind {
            PacketKind::Eager => (0, 0, 0, 0),
            PacketKind::Segment(segment_type, number, size) => {
                (1, size, number, segment_type as u64 + 1)
            }
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
        bytes[24..32].copy_from_slice(&segment_type.to_ne_bytes());
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

    /// Decodes a packet header.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when the header is malformed.
    pub fn decode(bytes: &[u8; PACKET_HEADER_LEN]) -> Result<Self, ProtocolViolation> {
        let [ctrl_version, kind, s0, s1, n0, n1, n2, n3, ..] = *bytes;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_ne_bytes(words[at]);
        if ctrl_version != CTRL_VERSION || bytes[32] != OP_VERSION && matches!(kind, 0..=2 | 4 | 5)
        {
            return Err(ProtocolViolation("RXM packet of an unsupported version"));
        }
        let kind = match kind {
            0 => PacketKind::Eager,
            1 => {
                let segment_type = match word(3) & 3 {
                    1 => SegmentType::First,
                    2 => SegmentType::Middle,
                    3 => SegmentType::Last,
                    _ => {
                        return Err(ProtocolViolation("RXM segment of unknown type"));
                    }
                };
                let (size, number) = (
                    u16::from_ne_bytes([s0, s1]),
                    u32::from_ne_bytes([n0, n1, n2, n3]),
                );
                PacketKind::Segment(segment_type, number, size)
            }
            2 => PacketKind::Rendezvous,
            3 => PacketKind::RendezvousDone,
            4 => PacketKind::Atomic(decode_atomic(bytes)?),
            5 => PacketKind::AtomicResponse(decode_atomic(bytes)?),
            6 => {
                return Err(ProtocolViolation(
                    "RXM credit packet, although flow control is off",
                ));
            }
            7 | 8 => {
                return Err(ProtocolViolation(
                    "RXM rendezvous by writes that was not negotiated",
                ));
            }
            _ => return Err(ProtocolViolation("RXM packet of unknown type")),
        };
        let is_message = kind.is_message();
        let tag = match bytes[34] {
            1 if is_message => Some(word(7)),
            0 => None,
            _ if !is_message => None,
            _ => {
                return Err(ProtocolViolation(
                    "RXM message with an unknown operation code",
                ));
            }
        };
        let flags = u32::from_ne_bytes([bytes[36], bytes[37], bytes[38], bytes[39]]);
        let data = (is_message && flags & HAS_DATA != 0).then(|| word(6));
        // libfabric leaves the upper half to the sender.
        let connection_id = word(1) as u32;
        Ok(Self {
            kind,
            connection_id,
            message_id: word(2),
            tag,
            data,
            len: word(5),
        })
    }
}

/// Decodes the header of an atomic operation or its response.
fn decode_atomic(bytes: &[u8; PACKET_HEADER_LEN]) -> Result<AtomicHeader, ProtocolViolation> {
    let call = bytes[34]
        .checked_sub(FIRST_ATOMIC_OP)
        .and_then(|index| AtomicCall::ALL.get(usize::from(index)));
    let call = *call.ok_or(ProtocolViolation(
        "RXM atomic operation with an unknown operation code",
    ))?;
    Ok(AtomicHeader {
        call,
        datatype: bytes[56],
        op: bytes[57],
        rma_iov_count: bytes[58],
    })
}
