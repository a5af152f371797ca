//! Reasons for which a peer's access to a region is refused, and their encoding.

use super::{Region, RmaIov, check_access, misaligned_error, not_granted_error};
use crate::completion::OpKind;
use crate::error::Error;
use crate::flags::Access;

/// The reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// No region has the key.
    UnknownKey,
    /// The region does not grant the access right.
    NotGranted,
    /// The range exceeds the region, which is this many bytes long.
    OutOfBounds(usize),
    /// An atomic value is not aligned to its size.
    Misaligned,
    /// The owner has not refreshed a page of the range.
    NotRefreshed,
}

impl AccessError {
    /// Checks an access by a peer to the last `rest` bytes of `remote`, and returns the region and
    /// the offset in it at which the access begins.
    ///
    /// # Errors
    /// The reason why the access is refused.
    pub fn check<'a>(
        region: Option<&'a Region>,
        kind: OpKind,
        remote: &RmaIov,
        rest: usize,
    ) -> Result<(&'a Region, usize), Self> {
        let remote_rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let Some(region) = region
            .filter(|region| region.access.intersects(remote_rights) && region.memory.is_open())
        else {
            return Err(Self::UnknownKey);
        };
        check_access(remote.key, region.access, remote.required_access(kind))
            .map_err(|_| Self::NotGranted)?;
        match region.checked_offset(remote.offset, rest, remote.align()) {
            Ok(at) => match &region.pages {
                None => Ok((region, at)),
                Some(pages) if pages.are_current(at..at + rest, region.memory.moves()) => {
                    Ok((region, at))
                }
                Some(_) => Err(Self::NotRefreshed),
            },
            Err(Error::OutOfBounds { .. }) => Err(Self::OutOfBounds(region.memory.len())),
            Err(_) => Err(Self::Misaligned),
        }
    }

    /// Encodes the reason as a code above 0 and a detail, which is the length of the region for
    /// [`OutOfBounds`](Self::OutOfBounds).
    #[must_use]
    pub fn to_words(self) -> (u64, u64) {
        match self {
            Self::UnknownKey => (1, 0),
            Self::NotGranted => (2, 0),
            Self::OutOfBounds(limit) => (3, limit as u64),
            Self::Misaligned => (4, 0),
            Self::NotRefreshed => (5, 0),
        }
    }

    /// Decodes a code and its detail; `None` for code 0, which stands for success.
    #[must_use]
    pub fn from_words(code: u64, detail: u64) -> Option<Self> {
        Some(match code {
            0 => return None,
            2 => Self::NotGranted,
            3 => Self::OutOfBounds(usize::try_from(detail).unwrap_or(usize::MAX)),
            4 => Self::Misaligned,
            5 => Self::NotRefreshed,
            _ => Self::UnknownKey,
        })
    }

    /// Converts the reason into the error of the peer's operation of this kind, for the last `rest`
    /// bytes of `remote`.
    #[must_use]
    pub fn to_error(self, kind: OpKind, remote: &RmaIov, rest: usize) -> Error {
        let RmaIov { key, offset, .. } = *remote;
        match self {
            Self::UnknownKey => Error::Key {
                key,
                why: "is unknown",
            },
            Self::NotRefreshed => Error::Key {
                key,
                why: "has pages that its owner has not refreshed (FI_MR_MMU_NOTIFY)",
            },
            Self::NotGranted => not_granted_error(key, remote.required_access(kind)),
            Self::OutOfBounds(limit) => Error::OutOfBounds {
                offset,
                len: rest,
                limit,
            },
            Self::Misaligned => misaligned_error(offset, remote.align()),
        }
    }
}
