//! Atomic operations and what is said to them.

use crate::atomic::{AtomicCall, AtomicOp, AtomicSpec, Datatype, MAX_ATOMIC_BYTES};
use crate::error::Error;
use crate::mr::AccessError;
use crate::tcp::rma_iov::RMA_IOV_LEN;
use crate::tcp::{ByteOrder, MAX_RMA_IOV, ProtocolViolation, RmaIovList, WireRmaIov};
use crate::transport::RmaIov;

use super::EAGER_LIMIT;

/// Bytes of the places before the operands: always room for all that there may be.
pub(crate) const ATOMIC_IOV_LEN: usize = MAX_RMA_IOV * RMA_IOV_LEN;
/// The most bytes of operands and comparands.
pub const MAX_OPERAND_BYTES: usize = EAGER_LIMIT - ATOMIC_IOV_LEN;
/// Bytes before what was fetched: a status, and how many bytes that is.
pub(crate) const ATOMIC_STATUS_LEN: usize = 8;

/// What the prefix of a packet says of an atomic operation: numbers of `fi_atomic(3)`, of which
/// this library may not know all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicHeader {
    /// How it is called.
    pub call: AtomicCall,
    /// On what.
    pub datatype: u8,
    /// What is computed.
    pub op: u8,
    /// How many places it is about; 0 in a response.
    pub rma_iov_count: u8,
}

impl AtomicHeader {
    /// This operation on one place.
    #[must_use]
    pub fn from_spec(spec: AtomicSpec) -> Self {
        let place = |at: Option<usize>| at.map_or(u8::MAX, |at| at as u8);
        let datatype = place(
            Datatype::ALL
                .iter()
                .position(|datatype| *datatype == spec.datatype),
        );
        let op = place(AtomicOp::ALL.iter().position(|op| *op == spec.op));
        Self {
            call: spec.call,
            datatype,
            op,
            rma_iov_count: 1,
        }
    }

    /// The operation, if this library has it.
    #[must_use]
    pub fn spec(self) -> Option<AtomicSpec> {
        let (datatype, op) = (
            *Datatype::ALL.get(usize::from(self.datatype))?,
            *AtomicOp::ALL.get(usize::from(self.op))?,
        );
        let spec = AtomicSpec {
            op,
            datatype,
            call: self.call,
        };
        spec.check().is_ok().then_some(spec)
    }

    /// What the response to it says of it.
    #[must_use]
    pub fn for_response(self) -> Self {
        Self {
            rma_iov_count: 0,
            ..self
        }
    }
}

/// How many bytes of operands, comparands among them, come with so many bytes of values.
pub(crate) fn operand_bytes(spec: AtomicSpec, values: usize) -> Option<usize> {
    match spec {
        AtomicSpec {
            op: AtomicOp::Read, ..
        } => Some(0),
        AtomicSpec {
            call: AtomicCall::Compare,
            ..
        } => values.checked_mul(2),
        _ => Some(values),
    }
}

/// One place, of so many values.
pub(crate) fn encode_rma_iov(row: WireRmaIov) -> [u8; ATOMIC_IOV_LEN] {
    let mut bytes = [0; ATOMIC_IOV_LEN];
    for (word, into) in [row.addr, row.len, row.key]
        .into_iter()
        .zip(bytes.chunks_mut(8))
    {
        into.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// So many places, each of so many values.
///
/// # Errors
/// There are none, or too many.
pub(crate) fn decode_rma_iovs(
    bytes: &[u8; ATOMIC_IOV_LEN],
    count: u8,
) -> Result<RmaIovList, ProtocolViolation> {
    let count = usize::from(count);
    if !(1..=MAX_RMA_IOV).contains(&count) {
        return Err(ProtocolViolation(
            "an atomic operation on no place, or on too many",
        ));
    }
    Ok(RmaIovList::decode(
        &bytes[..count * RMA_IOV_LEN],
        count,
        ByteOrder::NATIVE,
    ))
}

/// How an atomic operation has ended at the peer, as libfabric writes it: 0, or the negative number
/// of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicStatus(pub i32);

impl AtomicStatus {
    /// It was done.
    pub const SUCCESS: Self = Self(0);
    /// There is no such operation.
    pub const NOT_SUPPORTED: Self = Self(-95);
    const ACCESS_DENIED: Self = Self(-13);
    const INVALID: Self = Self(-22);

    /// It was not done for this reason. libfabric has one word for a wrong key, right and range.
    #[must_use]
    pub fn from_access_error(why: AccessError) -> Self {
        match why {
            AccessError::UnknownKey | AccessError::NotGranted | AccessError::OutOfBounds(_) => {
                Self::ACCESS_DENIED
            }
            AccessError::Misaligned => Self::INVALID,
        }
    }

    /// What whoever has asked for it hears, on this place.
    pub(crate) fn to_error(self, place: &RmaIov) -> Error {
        match self {
            Self::ACCESS_DENIED => Error::Key {
                key: place.key,
                why: "is refused by the peer: key, right or range",
            },
            Self::NOT_SUPPORTED => Error::NotSupported("this atomic operation, by the peer"),
            Self(number) => Error::os("fi_atomic of the peer", number.saturating_abs()),
        }
    }

    /// What stands before so many bytes that were fetched: the one part of this dialect in the
    /// order of the network.
    pub(crate) fn encode(self, fetched: usize) -> [u8; ATOMIC_STATUS_LEN] {
        let mut bytes = [0; ATOMIC_STATUS_LEN];
        bytes[..4].copy_from_slice(&self.0.to_be_bytes());
        bytes[4..].copy_from_slice(&(fetched as u32).to_be_bytes());
        bytes
    }

    /// The status, and what was fetched, of the body of a response.
    ///
    /// # Errors
    /// It is shorter than it says, or longer.
    pub(crate) fn decode(body: &[u8]) -> Result<(Self, &[u8]), ProtocolViolation> {
        const WRONG: ProtocolViolation =
            ProtocolViolation("a response to an atomic operation that is not as long as it says");
        let (words, fetched) = body.split_first_chunk::<ATOMIC_STATUS_LEN>().ok_or(WRONG)?;
        let [s0, s1, s2, s3, l0, l1, l2, l3] = *words;
        if u32::from_be_bytes([l0, l1, l2, l3]) as usize != fetched.len() {
            return Err(WRONG);
        }
        Ok((Self(i32::from_be_bytes([s0, s1, s2, s3])), fetched))
    }
}

const _: () = assert!(
    2 * MAX_ATOMIC_BYTES <= MAX_OPERAND_BYTES,
    "what this side asks for is taken"
);
