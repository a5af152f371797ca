//! The header of a frame.
//!
//! Frames that would crash a libfabric peer are unrepresentable. [`Frame::ack`] needs an
//! [`AckDue`], produced only by parsing a frame that requests an ack. There is no constructor for
//! rendezvous frames that were not negotiated. Tagged and atomic frames need a
//! [`Supported<T>`](Supported), produced only by the negotiated [`PeerCaps`](super::PeerCaps). RXM
//! has packets for both.

use crate::atomic::AtomicSpec;
use crate::mr::AccessError;

use super::rma_iov::RMA_IOV_LEN;
use super::{ByteOrder, MAX_RMA_IOV, ProtocolViolation, RmaIovList, Supported, WireRmaIov};

const VERSION: u8 = 3;
const BASE_HEADER_LEN: usize = 16;
/// Maximum length of a header, in bytes: CQ data and four remote ranges.
pub const MAX_HEADER_LEN: usize = BASE_HEADER_LEN + 8 + MAX_RMA_IOV * RMA_IOV_LEN;

// Flags of a frame.
const HAS_DATA: u16 = 0x0001;
const WANTS_ACK: u16 = 0x0004;
const WANTS_COMMIT: u16 = 0x0008;
/// Flag of a tagged message as libfabric 1.13 to 1.17 sends it over RXM: without a packet header.
const RAW_TAGGED: u16 = 0x0080;
/// Value of the field `op_data` in an acknowledgement.
const ACK_OP: u8 = 2;

// Operation codes of libfabric.
const MESSAGE: u8 = 0;
const TAGGED: u8 = 1;
const READ: u8 = 2;
const READ_RSP: u8 = 3;
const WRITE: u8 = 4;
// First and last operation code of the rendezvous frames of libfabric from 1.20 on (request, clear
// to send, data).
const RENDEZVOUS_FIRST: u8 = 5;
const RENDEZVOUS_LAST: u8 = 7;
// Operation codes of frames that only peers of this library send each other. libfabric does not use
// these codes.
const ATOMIC: u8 = 0xf1;
const NACK: u8 = 0xf2;
const CHECKED_READ_RSP: u8 = 0xf3;

/// An access that the access check refuses.
pub(super) const ACCESS_VIOLATION: ProtocolViolation =
    ProtocolViolation("access to memory that the peer may not access");

/// Type of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A message.
    Message,
    /// A message with this tag.
    Tagged(u64),
    /// An acknowledgement.
    Ack,
    /// A read request for this number of remote ranges.
    Read(u8),
    /// The response to a read request: the bytes.
    ReadResponse,
    /// A write to this number of remote ranges.
    Write(u8),
    /// An atomic operation on one remote range: its operands.
    Atomic(AtomicSpec),
    /// An RMA or atomic request was not executed.
    Nack(Box<RmaNack>),
    /// The response to a read request of a same-implementation peer: the bytes, followed by a
    /// status.
    CheckedReadResponse,
}

/// Negative acknowledgement: why a request of the peer was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmaNack {
    /// The request was a read or a fetching atomic operation.
    pub is_read: bool,
    /// Index of the remote range that failed the check.
    pub iov_index: u8,
    /// The reason.
    pub error: AccessError,
}

/// Length of the status that follows the bytes of a checked read response, in bytes.
pub(super) const STATUS_LEN: usize = 16;

/// The header of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Type of the frame.
    pub kind: FrameKind,
    /// CQ data for the receiver's completion.
    pub data: Option<u64>,
    /// The sender requests an acknowledgement.
    wants_ack: bool,
    /// Length of the payload after the header, in bytes.
    pub payload_len: u64,
}

/// An acknowledgement that is due to the peer, or a nack in its place. Only a frame that requests
/// an acknowledgement yields an `AckDue`, because a libfabric peer crashes on an unsolicited one.
#[derive(Debug)]
#[must_use]
pub struct AckDue(Option<Box<RmaNack>>);

impl AckDue {
    /// Turns the acknowledgement into a nack. The peer must be of this library.
    pub(super) fn nack(self, nack: RmaNack) -> Self {
        Self(Some(nack.into()))
    }
}

impl Frame {
    /// Returns the frame of a message; the tag is a token of a peer that supports tags.
    #[must_use]
    pub fn message(tag: Option<Supported<u64>>, data: Option<u64>, payload_len: usize) -> Self {
        let kind = tag.map_or(FrameKind::Message, |tag| {
            FrameKind::Tagged(tag.into_inner())
        });
        Self {
            kind,
            data,
            wants_ack: false,
            payload_len: payload_len as u64,
        }
    }

    /// Returns the frame with a request for an acknowledgement.
    #[must_use]
    pub fn with_ack(self) -> Self {
        Self {
            wants_ack: true,
            ..self
        }
    }

    /// Returns a read request for these remote ranges.
    #[must_use]
    pub fn read(iovs: &RmaIovList) -> Self {
        Self {
            kind: FrameKind::Read(iovs.len() as u8),
            data: None,
            wants_ack: false,
            payload_len: 0,
        }
    }

    /// Returns a write to these remote ranges. It requests an acknowledgement, which the peer sends
    /// when the bytes are in place.
    #[must_use]
    pub fn write(iovs: &RmaIovList, data: Option<u64>, payload_len: usize) -> Self {
        let kind = FrameKind::Write(iovs.len() as u8);
        Self {
            kind,
            data,
            wants_ack: true,
            payload_len: payload_len as u64,
        }
    }

    /// Returns an atomic operation for a peer that supports atomics. It requests an acknowledgement
    /// unless it `fetches`.
    #[must_use]
    pub fn atomic(atomic: Supported<AtomicSpec>, fetches: bool, payload_len: usize) -> Self {
        let kind = FrameKind::Atomic(atomic.into_inner());
        Self {
            kind,
            data: None,
            wants_ack: !fetches,
            payload_len: payload_len as u64,
        }
    }

    /// Returns the header of a read response of `len` bytes. If `with_status`, a status follows the
    /// bytes.
    pub(super) fn read_response(with_status: bool, len: u64) -> Self {
        let (kind, extra) = if with_status {
            (FrameKind::CheckedReadResponse, STATUS_LEN as u64)
        } else {
            (FrameKind::ReadResponse, 0)
        };
        Self {
            kind,
            data: None,
            wants_ack: false,
            payload_len: len + extra,
        }
    }

    /// Returns the nack of a read request.
    pub(super) fn nack(nack: RmaNack) -> Self {
        Self {
            kind: FrameKind::Nack(nack.into()),
            data: None,
            wants_ack: false,
            payload_len: 0,
        }
    }

    /// Returns the acknowledgement or nack that is due.
    #[must_use]
    pub fn ack(due: AckDue) -> Self {
        let kind = due.0.map_or(FrameKind::Ack, FrameKind::Nack);
        Self {
            kind,
            data: None,
            wants_ack: false,
            payload_len: 0,
        }
    }

    /// Returns the acknowledgement that is due once the whole frame has arrived, if it requested
    /// one.
    pub fn ack_due(&self) -> Option<AckDue> {
        self.wants_ack.then_some(AckDue(None))
    }

    /// Writes the header with this sequence number to `into` and returns its length. `iovs` are the
    /// remote ranges of the request; empty for other frames.
    #[inline(always)] // hot path of short messages
    pub fn encode(
        &self,
        iovs: &[WireRmaIov],
        order: ByteOrder,
        sequence: u8,
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
            (code, len) = self.encode_one_sided(iovs, order, into);
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
        into[5] = iovs.len() as u8;
        into[6] = len as u8;
        into[7] = sequence;
        into[8..16].copy_from_slice(&order.encode_u64(self.payload_len + len as u64));
        len
    }

    /// Writes the extension (the part of the header after its first 16 bytes) of a frame that is
    /// not a message; returns the operation code and the length of the header.
    #[cold]
    fn encode_one_sided(
        &self,
        iovs: &[WireRmaIov],
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
            FrameKind::Nack(ref nack) => {
                let RmaNack {
                    is_read,
                    iov_index: index,
                    error,
                } = **nack;
                let (code, detail) = error.to_words();
                extend(code | u64::from(index) << 8 | u64::from(is_read) << 16);
                extend(detail);
                NACK
            }
            FrameKind::CheckedReadResponse => CHECKED_READ_RSP,
        };
        for iov in iovs {
            [iov.addr, iov.len, iov.key]
                .into_iter()
                .for_each(&mut extend);
        }
        (code, len)
    }

    /// Parses the header at the start of `bytes`; returns it with its length, or `None` when it is
    /// incomplete.
    ///
    /// Version and sequence number are ignored: some releases of libfabric write arbitrary values.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when the header is malformed.
    pub fn decode(
        bytes: &[u8],
        order: ByteOrder,
    ) -> Result<Option<(Self, usize)>, ProtocolViolation> {
        Self::decode_for(bytes, order, false)
    }

    /// Parses a header as [`decode`](Self::decode) does. If `is_rxm`, the connection speaks RXM,
    /// and the tagged messages that libfabric 1.13 to 1.17 sends without a packet header are
    /// recognised.
    pub(super) fn decode_for(
        bytes: &[u8],
        order: ByteOrder,
        is_rxm: bool,
    ) -> Result<Option<(Self, usize)>, ProtocolViolation> {
        let Some(base) = bytes.first_chunk::<BASE_HEADER_LEN>() else {
            return Ok(None);
        };
        let [_, code, f0, f1, op, iov_count, len, _, total @ ..] = *base;
        let (flags, len, total) = (
            order.decode_u16([f0, f1]),
            usize::from(len),
            order.decode_u64(total),
        );
        if !(BASE_HEADER_LEN..=MAX_HEADER_LEN).contains(&len) {
            return Err(ProtocolViolation(
                "frame header length outside 16..=120 bytes",
            ));
        }
        let Some(payload_len) = total.checked_sub(len as u64) else {
            return Err(ProtocolViolation("frame shorter than its header"));
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
                .ok_or(ProtocolViolation("frame header shorter than its fields"))
        };
        let has_data = flags & HAS_DATA != 0;
        let (mut data, mut extension_len) = (None, 0);
        let code = if is_rxm && code == MESSAGE && flags & RAW_TAGGED != 0 {
            TAGGED
        } else {
            code
        };
        let kind = match (code, op) {
            (MESSAGE, ACK_OP) if payload_len > 0 || len > BASE_HEADER_LEN => {
                return Err(ProtocolViolation("acknowledgement with a payload"));
            }
            (MESSAGE, ACK_OP) => FrameKind::Ack,
            (MESSAGE | TAGGED, _) => {
                if has_data {
                    (data, extension_len) = (Some(next()?), 8);
                }
                if code == TAGGED {
                    extension_len += 8;
                    FrameKind::Tagged(next()?)
                } else {
                    FrameKind::Message
                }
            }
            _ => {
                let kind;
                (kind, data, extension_len) =
                    decode_one_sided([code, iov_count], has_data, payload_len, rest, order)?;
                kind
            }
        };
        if BASE_HEADER_LEN + extension_len != len {
            return Err(ProtocolViolation("frame header longer than its fields"));
        }
        let wants_ack = flags & (WANTS_ACK | WANTS_COMMIT) != 0;
        Ok(Some((
            Self {
                kind,
                data,
                wants_ack,
                payload_len,
            },
            len,
        )))
    }
}

/// Parses the header extension of a frame that is not a message; returns its type, its CQ data, and
/// the expected length of the extension.
#[cold]
fn decode_one_sided(
    [code, iov_count]: [u8; 2],
    has_data: bool,
    payload_len: u64,
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
            .ok_or(ProtocolViolation("frame header shorter than its fields"))
    };
    let iovs_len = usize::from(iov_count) * RMA_IOV_LEN;
    let (kind, data, extension_len) = match code {
        // A request without a remote range would name no key that the target could check.
        READ | WRITE if !(1..=MAX_RMA_IOV).contains(&usize::from(iov_count)) => {
            return Err(ProtocolViolation(
                "RMA request whose number of remote ranges is not 1 to 4",
            ));
        }
        READ => (FrameKind::Read(iov_count), None, iovs_len),
        WRITE if has_data => (FrameKind::Write(iov_count), Some(next()?), 8 + iovs_len),
        WRITE => (FrameKind::Write(iov_count), None, iovs_len),
        READ_RSP => (FrameKind::ReadResponse, None, 0),
        RENDEZVOUS_FIRST..=RENDEZVOUS_LAST => {
            return Err(ProtocolViolation(
                "rendezvous frame that was not negotiated",
            ));
        }
        ATOMIC => {
            let atomic = u32::try_from(next()?).ok().and_then(AtomicSpec::from_code);
            let atomic =
                atomic.ok_or(ProtocolViolation("unknown atomic operation or data type"))?;
            (FrameKind::Atomic(atomic), None, 8 + RMA_IOV_LEN)
        }
        NACK => {
            let (word, detail) = (next()?, next()?);
            let error = AccessError::from_words(word & 0xff, detail);
            let error = error.ok_or(ProtocolViolation("nack without a reason"))?;
            let nack = RmaNack {
                is_read: word >> 16 & 1 == 1,
                iov_index: (word >> 8) as u8,
                error,
            };
            (FrameKind::Nack(nack.into()), None, 16)
        }
        CHECKED_READ_RSP => (FrameKind::CheckedReadResponse, None, 0),
        _ => return Err(ProtocolViolation("unknown operation code of a frame")),
    };
    if payload_len > 0 && matches!(kind, FrameKind::Read(_) | FrameKind::Nack(_)) {
        return Err(ProtocolViolation("read request or nack with a payload"));
    }
    Ok((kind, data, extension_len))
}
