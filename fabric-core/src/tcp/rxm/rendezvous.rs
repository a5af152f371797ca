//! Memory of the sender's that the receiver is to read.

use crate::tcp::rma_iov::RMA_IOV_LEN;
use crate::tcp::{ByteOrder, MAX_RMA_IOV, ProtocolViolation, RmaIovList, WireRmaIov};

/// How many bytes it is: places, and how many of them there are.
pub(crate) const RENDEZVOUS_LEN: usize = MAX_RMA_IOV * RMA_IOV_LEN + 8;

/// A message that lies in this place.
pub(crate) fn encode(row: WireRmaIov) -> [u8; RENDEZVOUS_LEN] {
    let mut bytes = [0; RENDEZVOUS_LEN];
    for (word, into) in [row.addr, row.len, row.key]
        .into_iter()
        .zip(bytes.chunks_mut(8))
    {
        into.copy_from_slice(&word.to_ne_bytes());
    }
    bytes[MAX_RMA_IOV * RMA_IOV_LEN] = 1;
    bytes
}

/// Where a message of this length lies.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn decode(
    bytes: &[u8; RENDEZVOUS_LEN],
    len: u64,
) -> Result<RmaIovList, ProtocolViolation> {
    let count = usize::from(bytes[MAX_RMA_IOV * RMA_IOV_LEN]);
    if !(1..=MAX_RMA_IOV).contains(&count) {
        return Err(ProtocolViolation(
            "a rendezvous without places, or with too many",
        ));
    }
    let rows = RmaIovList::decode(&bytes[..count * RMA_IOV_LEN], count, ByteOrder::NATIVE);
    if rows
        .iter()
        .any(|row| row.addr.checked_add(row.len).is_none())
    {
        return Err(ProtocolViolation(
            "a rendezvous with memory beyond the end of all",
        ));
    }
    if len == 0 || rows.total() != Some(len) {
        return Err(ProtocolViolation(
            "a rendezvous whose places are not as long as its message",
        ));
    }
    Ok(rows)
}
