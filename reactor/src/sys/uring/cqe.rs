//! Entries of the completion queue.

use io_uring::cqueue;
use rustix::io::Errno;

/// The bit that distinguishes the user data of a timer from that of its operation. No instance has
/// so many slots.
pub(super) const TIMEOUT_BIT: u64 = 1 << 31;

/// Marks the second completion of a zero-copy send (`IORING_CQE_F_NOTIF`).
pub(super) const CQE_F_NOTIF: u32 = 1 << 3;

/// A completion queue entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    pub(super) user_data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

impl Cqe {
    /// Returns the number of bytes, or the error. Not valid for the second completion of a
    /// zero-copy send.
    pub(super) fn result(&self) -> Result<usize, Errno> {
        let count =
            u32::try_from(self.result).map_err(|_| Errno::from_raw_os_error(-self.result))?;
        Ok(count as usize)
    }

    /// Returns whether this is the last completion of its operation.
    pub(super) fn is_last(&self) -> bool {
        !cqueue::more(self.flags)
    }

    pub(super) fn from_entry(entry: cqueue::Entry) -> Self {
        Self {
            user_data: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }
    }
}
