//! RXM atomic operations and their responses: the codec.

use crate::atomic::{AtomicCall, AtomicOp, AtomicSpec, Datatype, MAX_ATOMIC_BYTES};
use crate::error::Error;
use crate::mr::AccessError;
use crate::tcp::rma_iov::RMA_IOV_LEN;
use crate::tcp::{ByteOrder, MAX_RMA_IOV, ProtocolViolation, RmaIovList, WireRmaIov};
use crate::transport::RmaIov;

use super::EAGER_LIMIT;

/// Length of the remote ranges in front of the operands, in bytes: always that of the maximum
/// number of ranges.
pub(crate) const ATOMIC_IOV_LEN: usize = MAX_RMA_IOV * RMA_IOV_LEN;
/// Maximum length of operands and comparands together, in bytes.
pub const MAX_OPERAND_BYTES: usize = EAGER_LIMIT - ATOMIC_IOV_LEN;
/// Length of the header in front of fetched values, in bytes: a status and the length of the
/// values.
pub(crate) const ATOMIC_STATUS_LEN: usize = 8;

/// Fields of a packet header for an atomic operation: codes of `fi_atomic(3)`, not all of which
/// this library supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicHeader {
    /// Base, fetching or compare operation.
    pub call: AtomicCall,
    /// Data type.
    pub datatype: u8,
    /// Operation.
    pub op: u8,
    /// Number of remote ranges; 0 in a response.
    pub rma_iov_count: u8,
}

impl AtomicHeader {
    /// Returns the header of this operation on one remote range.
    #[must_use]
    pub fn from_spec(spec: AtomicSpec) -> Self {
        let code = |index: Option<usize>| index.map_or(u8::MAX, |index| index as u8);
        let datatype = code(
            Datatype::ALL
                .iter()
                .position(|datatype| *datatype == spec.datatype),
        );
        let op = code(AtomicOp::ALL.iter().position(|op| *op == spec.op));
        Self {
            call: spec.call,
            datatype,
            op,
            rma_iov_count: 1,
        }
    }

    /// Returns the operation if this library supports it.
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

    /// Returns the header of the response.
    #[must_use]
    pub fn for_response(self) -> Self {
        Self {
            rma_iov_count: 0,
            ..self
        }
    }
}

/// Returns the length of the operands, with comparands, for `values` bytes of values.
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

/// Encodes one remote range; its length counts values.
pub(crate) fn encode_rma_iov(iov: WireRmaIov) -> [u8; ATOMIC_IOV_LEN] {
    let mut bytes = [0; ATOMIC_IOV_LEN];
    for (word, into) in [iov.addr, iov.len, iov.key]
        .into_iter()
        .zip(bytes.chunks_mut(8))
    {
        into.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Decodes `count` remote ranges, whose lengths count values.
///
/// # Errors
/// [`ProtocolViolation`] when there are none or too many.
pub(crate) fn decode_rma_iovs(
    bytes: &[u8; ATOMIC_IOV_LEN],
    count: u8,
) -> Result<RmaIovList, ProtocolViolation> {
    let count = usize::from(count);
    if !(1..=MAX_RMA_IOV).contains(&count) {
        return Err(ProtocolViolation(
            "atomic operation whose number of remote ranges is not 1 to 4",
        ));
    }
    Ok(RmaIovList::decode(
        &bytes[..count * RMA_IOV_LEN],
        count,
        ByteOrder::NATIVE,
    ))
}

/// Status of an RXM atomic operation, as libfabric encodes it: 0, or a negative errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicStatus(pub i32);

impl AtomicStatus {
    /// The operation was executed.
    pub const SUCCESS: Self = Self(0);
    /// The operation is not supported (`EOPNOTSUPP`).
    pub const NOT_SUPPORTED: Self = Self(-95);
    const ACCESS_DENIED: Self = Self(-13);
    const INVALID: Self = Self(-22);

    /// Returns the status of a failed access check. libfabric has one code for a wrong key, right
    /// and range.
    #[must_use]
    pub fn from_access_error(error: AccessError) -> Self {
        match error {
            AccessError::UnknownKey
            | AccessError::NotGranted
            | AccessError::NotRefreshed
            | AccessError::OutOfBounds(_) => Self::ACCESS_DENIED,
            AccessError::Misaligned => Self::INVALID,
        }
    }

    /// Returns the error for the initiator of an operation on this remote range.
    pub(crate) fn to_error(self, remote: &RmaIov) -> Error {
        match self {
            Self::ACCESS_DENIED => Error::Key {
                key: remote.key,
                why: "was rejected by the peer: wrong key, access right or range",
            },
            Self::NOT_SUPPORTED => {
                Error::NotSupported("this atomic operation or data type, by the peer")
            }
            Self(errno) => Error::os("fi_atomic of the peer", errno.saturating_abs()),
        }
    }

    /// Encodes the header in front of `fetched` bytes of values. It is the one part of RXM in
    /// network byte order.
    pub(crate) fn encode(self, fetched: usize) -> [u8; ATOMIC_STATUS_LEN] {
        let mut bytes = [0; ATOMIC_STATUS_LEN];
        bytes[..4].copy_from_slice(&self.0.to_be_bytes());
        bytes[4..].copy_from_slice(&(fetched as u32).to_be_bytes());
        bytes
    }

    /// Splits the body of a response into status and fetched values.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when the length of the values differs from the length field.
    pub(crate) fn decode(body: &[u8]) -> Result<(Self, &[u8]), ProtocolViolation> {
        const WRONG: ProtocolViolation =
            ProtocolViolation("response to an atomic operation whose length field is wrong");
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
    "the largest atomic operation of this library fits into a packet"
);
