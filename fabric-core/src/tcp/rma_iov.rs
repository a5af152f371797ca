//! The remote ranges of an RMA operation.

use std::ops::Deref;

use crate::transport::RmaIov;

use super::ByteOrder;

/// Maximum number of remote ranges of one operation.
pub const MAX_RMA_IOV: usize = 4;
/// Length of a remote range on the wire, in bytes: address, length, key.
pub(super) const RMA_IOV_LEN: usize = 24;

/// Ranges of a peer's memory in wire format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RmaIovList {
    iovs: [WireRmaIov; MAX_RMA_IOV],
    count: usize,
}

/// One remote range, in wire format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireRmaIov {
    /// Address of the first byte: a virtual address of the owner (`FI_MR_VIRT_ADDR`), or an offset
    /// from the start of the region.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Key of the region.
    pub key: u64,
}

impl WireRmaIov {
    /// Converts the remote range from wire format.
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
    /// Converts remote ranges to wire format; `None` when there are more than [`MAX_RMA_IOV`].
    #[must_use]
    pub fn from_rma_iovs(iovs: &[RmaIov]) -> Option<Self> {
        let mut list = Self {
            count: iovs.len(),
            ..Self::default()
        };
        for (wire, iov) in list.iovs.get_mut(..iovs.len())?.iter_mut().zip(iovs) {
            *wire = WireRmaIov {
                addr: iov.offset,
                len: iov.len as u64,
                key: iov.key,
            };
        }
        Some(list)
    }

    /// Decodes the last `count` remote ranges of a header.
    pub(super) fn decode(header: &[u8], count: usize, order: ByteOrder) -> Self {
        let mut list = Self {
            count: count.min(MAX_RMA_IOV),
            ..Self::default()
        };
        let bytes = &header[header.len().saturating_sub(list.count * RMA_IOV_LEN)..];
        let mut words = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| order.decode_u64(*word));
        let mut next = || words.next().unwrap_or_default();
        for wire in &mut list.iovs[..list.count] {
            *wire = WireRmaIov {
                addr: next(),
                len: next(),
                key: next(),
            };
        }
        list
    }

    /// Returns the sum of the lengths in bytes; `None` if it overflows.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        self.iter()
            .try_fold(0u64, |sum, iov| sum.checked_add(iov.len))
    }
}

impl Deref for RmaIovList {
    type Target = [WireRmaIov];

    fn deref(&self) -> &[WireRmaIov] {
        &self.iovs[..self.count]
    }
}
