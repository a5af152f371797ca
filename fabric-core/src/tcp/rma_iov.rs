//! The places that a one-sided operation names.

use std::ops::Deref;

use crate::transport::RmaIov;

use super::ByteOrder;

/// The most places of one operation.
pub const MAX_RMA_IOV: usize = 4;
/// Bytes of a row: address, length, key.
pub(super) const RMA_IOV_LEN: usize = 24;

/// Places in a peer's memory, as they are written on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RmaIovList {
    iovs: [WireRmaIov; MAX_RMA_IOV],
    count: usize,
}

/// One place: what its owner calls its first byte, its length, and the key of its region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireRmaIov {
    /// Where it begins: an address of the owner's, or bytes from the start of the region, as its
    /// domain has it.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The key of the region.
    pub key: u64,
}

impl WireRmaIov {
    /// The place of this row.
    #[must_use]
    pub fn to_rma_iov(self) -> RmaIov {
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        RmaIov {
            key: self.key,
            offset: self.addr,
            len,
            atomic: None,
        }
    }
}

impl RmaIovList {
    /// These places; `None` when there are more than one operation can name.
    #[must_use]
    pub fn from_rma_iovs(places: &[RmaIov]) -> Option<Self> {
        let mut rows = Self {
            count: places.len(),
            ..Self::default()
        };
        for (row, place) in rows.iovs.get_mut(..places.len())?.iter_mut().zip(places) {
            *row = WireRmaIov {
                addr: place.offset,
                len: place.len as u64,
                key: place.key,
            };
        }
        Some(rows)
    }

    /// The last so many rows of a header.
    pub(super) fn decode(header: &[u8], count: usize, order: ByteOrder) -> Self {
        let mut rows = Self {
            count: count.min(MAX_RMA_IOV),
            ..Self::default()
        };
        let bytes = &header[header.len().saturating_sub(rows.count * RMA_IOV_LEN)..];
        let mut words = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| order.decode_u64(*word));
        let mut next = || words.next().unwrap_or_default();
        for row in &mut rows.iovs[..rows.count] {
            *row = WireRmaIov {
                addr: next(),
                len: next(),
                key: next(),
            };
        }
        rows
    }

    /// Bytes of all places together; `None` when that is no number.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        self.iter()
            .try_fold(0u64, |sum, row| sum.checked_add(row.len))
    }
}

impl Deref for RmaIovList {
    type Target = [WireRmaIov];

    fn deref(&self) -> &[WireRmaIov] {
        &self.iovs[..self.count]
    }
}
