//! Why a peer does not get at memory, as it is told so.

use super::{Region, check_access, required_access};
use crate::completion::OpKind;
use crate::error::Error;
use crate::flags::Access;
use crate::transport::RmaIov;

/// Why an access is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The key stands for nothing.
    UnknownKey,
    /// The right was not granted.
    NotGranted,
    /// The range leaves the region, which is this long.
    OutOfBounds(usize),
    /// A value would lie across its size.
    Misaligned,
}

impl AccessError {
    /// Where the access begins in the region that its key stands for, of which `rest` bytes are to
    /// be accessed from there on.
    ///
    /// # Errors
    /// Why it is denied.
    pub fn check<'a>(
        region: Option<&'a Region>,
        kind: OpKind,
        remote: &RmaIov,
        rest: usize,
    ) -> Result<(&'a Region, usize), Self> {
        let remotely = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let Some(region) = region.filter(|region| region.access.intersects(remotely)) else {
            return Err(Self::UnknownKey);
        };
        let atomic = remote.atomic;
        let rights = required_access(kind, atomic.map(|atomic| atomic.op));
        check_access(remote.key, region.access, rights).map_err(|_| Self::NotGranted)?;
        match region.checked_offset(
            remote.offset,
            rest,
            atomic.map_or(1, |atomic| atomic.datatype.size()),
        ) {
            Ok(at) => Ok((region, at)),
            Err(Error::TooLong { .. }) => Err(Self::OutOfBounds(region.memory.len())),
            Err(_) => Err(Self::Misaligned),
        }
    }

    /// A code, and a number that belongs to it.
    #[must_use]
    pub fn to_words(self) -> (u64, u64) {
        match self {
            Self::UnknownKey => (1, 0),
            Self::NotGranted => (2, 0),
            Self::OutOfBounds(limit) => (3, limit as u64),
            Self::Misaligned => (4, 0),
        }
    }

    /// What these words say; `None` for 0, which denies nothing.
    #[must_use]
    pub fn from_words(code: u64, detail: u64) -> Option<Self> {
        Some(match code {
            0 => return None,
            2 => Self::NotGranted,
            3 => Self::OutOfBounds(usize::try_from(detail).unwrap_or(usize::MAX)),
            4 => Self::Misaligned,
            _ => Self::UnknownKey,
        })
    }

    /// What whoever has asked hears, for `rest` bytes of this place.
    #[must_use]
    pub fn to_error(self, remote: &RmaIov, rest: usize) -> Error {
        let RmaIov {
            key,
            offset,
            atomic,
            ..
        } = *remote;
        match self {
            Self::UnknownKey => Error::Key {
                key,
                why: "is unknown",
            },
            Self::NotGranted => Error::Key {
                key,
                why: "does not grant this access",
            },
            Self::OutOfBounds(limit) => {
                let end = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .checked_add(rest);
                let len = end.unwrap_or(usize::MAX);
                Error::TooLong {
                    what: "memory access, offset included,",
                    len,
                    limit,
                }
            }
            Self::Misaligned => {
                let size = atomic.map_or(1, |atomic| atomic.datatype.size());
                let why = format!("{offset} is not a multiple of {size}, the size of a value");
                Error::Invalid {
                    what: "offset of an atomic operation",
                    why,
                }
            }
        }
    }
}
