//! Memory of the sender's that the receiver is to read.

use crate::tcp::rows::ROW;
use crate::tcp::{Broken, MOST_ROWS, Order, Row, Rows};

/// How many bytes it is: places, and how many of them there are.
pub(crate) const OFFER: usize = MOST_ROWS * ROW + 8;

/// A message that lies in this place.
pub(crate) fn encode(row: Row) -> [u8; OFFER] {
    let mut bytes = [0; OFFER];
    for (word, into) in [row.addr, row.len, row.key]
        .into_iter()
        .zip(bytes.chunks_mut(8))
    {
        into.copy_from_slice(&word.to_ne_bytes());
    }
    bytes[MOST_ROWS * ROW] = 1;
    bytes
}

/// Where a message of this length lies.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn decode(bytes: &[u8; OFFER], len: u64) -> Result<Rows, Broken> {
    let count = usize::from(bytes[MOST_ROWS * ROW]);
    if !(1..=MOST_ROWS).contains(&count) {
        return Err(Broken("a rendezvous without places, or with too many"));
    }
    let rows = Rows::decode(&bytes[..count * ROW], count, Order::NATIVE);
    if rows
        .iter()
        .any(|row| row.addr.checked_add(row.len).is_none())
    {
        return Err(Broken("a rendezvous with memory beyond the end of all"));
    }
    if len == 0 || rows.total() != Some(len) {
        return Err(Broken(
            "a rendezvous whose places are not as long as its message",
        ));
    }
    Ok(rows)
}
