//! Descriptions of memory regions: what peers need to access a region.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use fabric_core::flags::Access;
use fabric_core::mr::KEY_NOTAVAIL;
use fabric_core::{Error, Result};

#[cfg(doc)]
use crate::domain::Domain;

/// The description of a memory region, which peers need to access the region: send it to them.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteRegion {
    /// The key, or [`KEY_NOTAVAIL`](Self::KEY_NOTAVAIL).
    pub key: u64,
    /// Length in bytes.
    pub len: u64,
    /// The access rights granted.
    pub access: Access,
    /// The offset of the first byte: 0, or the virtual address of the byte if the owner's domain
    /// was opened with [`MrMode::VIRT_ADDR`](crate::info::MrMode::VIRT_ADDR). [`at`](Self::at) and
    /// [`slice`](Self::slice) add it to their offsets.
    pub base: u64,
}

/// A position in a peer's memory: a key and an offset.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// The key of the region.
    pub key: u64,
    /// Bytes from the start of the region, or a virtual address if the owner's domain uses
    /// [`MrMode::VIRT_ADDR`](crate::info::MrMode::VIRT_ADDR).
    pub offset: u64,
}

/// A range of a peer's memory (`struct fi_rma_iov`).
#[derive(Clone, Copy, PartialEq, Eq)]
#[doc(alias = "fi_rma_iov")]
pub struct RemoteSlice {
    /// The key of the region.
    pub key: u64,
    /// As [`RemoteAddr::offset`].
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
}

impl RemoteRegion {
    /// Length of [`RemoteRegion::to_bytes`] in bytes.
    pub const ENCODED_LEN: usize = 25;

    /// The key of a region whose key has not been mapped yet, in a domain that requires
    /// [`MrMode::RAW`](crate::info::MrMode::RAW): peers [map](Domain::map_raw) the raw key.
    #[doc(alias = "FI_KEY_NOTAVAIL")]
    pub const KEY_NOTAVAIL: u64 = KEY_NOTAVAIL;

    /// Creates a description from its parts, with base 0.
    #[must_use]
    pub fn new(key: u64, len: u64, access: Access) -> Self {
        Self {
            key,
            len,
            access,
            base: 0,
        }
    }

    /// Sets the virtual address of the first byte, for a region of a domain with `FI_MR_VIRT_ADDR`.
    #[doc(alias = "FI_MR_VIRT_ADDR")]
    #[must_use]
    pub fn with_base(self, base: u64) -> Self {
        Self { base, ..self }
    }

    /// Returns the position `offset` bytes after the start. The offset is checked when the memory
    /// is accessed.
    #[must_use]
    pub fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr {
            key: self.key,
            offset: self.rma_offset(offset),
        }
    }

    /// Returns a range of the region; `remote.slice(..)` is all of it. The range is checked when
    /// the memory is accessed; a range whose end is before its start is empty.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<u64>) -> RemoteSlice {
        let (start, len) = start_and_len(range, self.len);
        RemoteSlice {
            key: self.key,
            offset: self.rma_offset(start),
            len,
        }
    }

    /// Returns the offset on the wire of a position. If the sum overflows, returns the offset
    /// before `base`, which is outside of the region, so that the access fails.
    fn rma_offset(&self, offset: u64) -> u64 {
        self.base
            .checked_add(offset)
            .unwrap_or(self.base.wrapping_sub(1))
    }

    /// Encodes the description for sending it to a peer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16] = self.access.bits() as u8;
        bytes[17..].copy_from_slice(&self.base.to_le_bytes());
        bytes
    }

    /// Decodes a description that a peer sent.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the length or the access rights are not valid.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let invalid = |why: &str| Error::Invalid {
            what: "encoded RemoteRegion",
            why: why.into(),
        };
        let bytes: [u8; Self::ENCODED_LEN] = bytes.try_into().map_err(|_| {
            invalid(&format!(
                "it has {} bytes, expected {}",
                bytes.len(),
                Self::ENCODED_LEN
            ))
        })?;
        let u64_at = |at: usize| {
            let little_endian = bytes[at..at + 8].iter().rev();
            little_endian.fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let access = Access::from_bits(u32::from(bytes[16]))
            .ok_or_else(|| invalid("unknown access bits"))?;
        Ok(Self {
            key: u64_at(0),
            len: u64_at(8),
            access,
            base: u64_at(17),
        })
    }
}

/// Returns where a range of a region of `region_len` bytes starts, and its length, which is 0 if
/// its end is before its start.
pub(crate) fn start_and_len(range: impl RangeBounds<u64>, region_len: u64) -> (u64, usize) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(previous) => previous.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => region_len,
    };
    let len = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
    (start, len)
}

// Keys are printed in hexadecimal, as in the texts of errors.

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRegion")
            .field("key", &format_args!("{:#x}", self.key))
            .field("len", &self.len)
            .field("access", &self.access)
            .field("base", &format_args!("{:#x}", self.base))
            .finish()
    }
}

impl fmt::Debug for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteAddr")
            .field("key", &format_args!("{:#x}", self.key))
            .field("offset", &self.offset)
            .finish()
    }
}

impl fmt::Debug for RemoteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSlice")
            .field("key", &format_args!("{:#x}", self.key))
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_print_as_in_error_texts() {
        let remote = RemoteRegion::new(0x1f, 100, Access::REMOTE_READ);
        let why = "is unknown";
        let error = Error::Key { key: 0x1f, why }.to_string();
        assert!(error.starts_with("memory key 0x1f "), "{error}");
        let (at, range) = (remote.at(3), remote.slice(..3));
        for text in [
            format!("{remote:?}"),
            format!("{at:?}"),
            format!("{range:?}"),
        ] {
            assert!(text.contains("key: 0x1f,"), "{text}");
        }
    }

    #[test]
    fn remote_region_encoding_round_trips() {
        let remote = RemoteRegion::new(u64::MAX - 1, 1 << 40, Access::REMOTE_READ);
        assert_eq!(RemoteRegion::from_bytes(&remote.to_bytes()), Ok(remote));
        let with_address = remote.with_base(1 << 63);
        assert_eq!(
            RemoteRegion::from_bytes(&with_address.to_bytes()),
            Ok(with_address)
        );
        assert_eq!(
            (with_address.at(5).offset, with_address.slice(5..).offset),
            ((1 << 63) + 5, (1 << 63) + 5)
        );
        assert_eq!(
            with_address.at(1 << 63).offset,
            (1 << 63) - 1,
            "an overflowing offset is outside of the region"
        );
        assert!(RemoteRegion::from_bytes(&remote.to_bytes()[1..]).is_err());
        let mut unknown_access = remote.to_bytes();
        unknown_access[16] = 0xff;
        assert!(RemoteRegion::from_bytes(&unknown_access).is_err());
        let slice = |slice: RemoteSlice| (slice.offset, slice.len);
        assert_eq!(slice(remote.slice(..)), (0, 1 << 40));
        assert_eq!(slice(remote.slice(3..=7)), (3, 5));
        assert_eq!(slice(remote.slice((1 << 40) - 2..)), ((1 << 40) - 2, 2));
        let (late, early) = (9, 4);
        assert_eq!(slice(remote.slice(late..early)), (9, 0));
    }
}
