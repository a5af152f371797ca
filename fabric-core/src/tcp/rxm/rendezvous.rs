//! Codec of a rendezvous message's location in the sender's memory.

use crate::tcp::rma_iov::RMA_IOV_LEN;
use crate::tcp::{ByteOrder, MAX_RMA_IOV, ProtocolViolation, RmaIovList, WireRmaIov};

/// Length of the body of a rendezvous packet, in bytes: remote ranges and their number.
pub(crate) const RENDEZVOUS_LEN: usize = MAX_RMA_IOV * RMA_IOV_LEN + 8;

/// Encodes the location of a message in one remote range.
pub(crate) fn encode(iov: WireRmaIov) -> [u8; RENDEZVOUS_LEN] {
    let mut bytes = [0; RENDEZVOUS_LEN];
    for (word, into) in [iov.addr, iov.len, iov.key]
        .into_iter()
        .zip(bytes.chunks_mut(8))
    {
        into.copy_from_slice(&word.to_ne_bytes());
    }
    bytes[MAX_RMA_IOV * RMA_IOV_LEN] = 1;
    bytes
}

/// Decodes the location of a message of `len` bytes.
///
/// # Errors
/// [`ProtocolViolation`] when the remote ranges are invalid or do not add up to `len`.
pub(crate) fn decode(
    bytes: &[u8; RENDEZVOUS_LEN],
    len: u64,
) -> Result<RmaIovList, ProtocolViolation> {
    let count = usize::from(bytes[MAX_RMA_IOV * RMA_IOV_LEN]);
    if !(1..=MAX_RMA_IOV).contains(&count) {
        return Err(ProtocolViolation(
            "rendezvous packet whose number of remote ranges is not 1 to 4",
        ));
    }
    let iovs = RmaIovList::decode(&bytes[..count * RMA_IOV_LEN], count, ByteOrder::NATIVE);
    if iovs
        .iter()
        .any(|iov| iov.addr.checked_add(iov.len).is_none())
    {
        return Err(ProtocolViolation(
            "rendezvous packet whose remote range overflows",
        ));
    }
    if len == 0 || iovs.total() != Some(len) {
        return Err(ProtocolViolation(
            "rendezvous packet whose remote ranges do not add up to the message length",
        ));
    }
    Ok(iovs)
}
