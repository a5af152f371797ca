//! The state of an operation in an io_uring instance, and the meaning of its completions.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric_core::buf::AnyBuf;
use fabric_core::transport::OpKey;
use io_uring::cqueue;
use rustix::io::Errno;

use super::send_msg::SendMsg;
use super::timed::TimedOp;

/// Asks the kernel to report whether it has copied the bytes of a zero-copy send
/// (`IORING_SEND_ZC_REPORT_USAGE`), and the report (`IORING_NOTIF_USAGE_ZC_COPIED`).
pub(super) const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
pub(super) const NOTIF_USAGE_ZC_COPIED: u32 = 1 << 31;
/// Marks the second completion of a zero-copy send (`IORING_CQE_F_NOTIF`).
pub(super) const CQE_F_NOTIF: u32 = 1 << 3;
/// The bit that distinguishes the user data of a timer from that of its operation. No instance has
/// so many slots.
pub(super) const TIMEOUT_BIT: u64 = 1 << 31;

/// The result of a send.
#[derive(Debug)]
pub(crate) struct SendResult {
    /// The bytes sent, or the error.
    pub(crate) result: Result<usize, Errno>,
    /// The owned bytes of the message.
    pub(crate) owned: Box<[u8]>,
}

/// The buffer of a zero-copy send.
#[derive(Debug)]
pub(crate) struct ReleasedBuffer {
    /// The operation to which the buffer belongs.
    pub(crate) op: OpKey,
    pub(crate) buf: AnyBuf,
    /// How the bytes were sent, if they were.
    pub(crate) zero_copy: Option<ZeroCopyOutcome>,
}

/// How the bytes of a zero-copy send were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopyOutcome {
    /// Without a copy.
    ZeroCopy,
    /// From a copy that the kernel made all the same.
    Copied,
}

/// The state of an operation.
#[derive(Debug)]
pub(super) struct UringSlot {
    pub(super) generation: u32,
    /// The owner of the operation; `None` when it is detached.
    pub(super) owner: Option<u64>,
    /// The socket of the operation, open as long as the kernel uses it.
    pub(super) socket: Option<Arc<OwnedFd>>,
    pub(super) message: Option<Box<SendMsg>>,
    /// The timeout state of a timed operation.
    pub(super) timed: Option<Box<TimedOp>>,
    /// The stage of a zero-copy send.
    pub(super) zero_copy_stage: ZeroCopyStage,
}

/// The stage of a zero-copy send. It has two completions: the end of the send, and the release of
/// its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeroCopyStage {
    /// The send has not ended; or the operation is not a zero-copy send.
    Pending,
    /// The send has ended, with or without bytes sent.
    SendDone { has_sent: bool },
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    pub(super) user_data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

impl UringSlot {
    /// Creates the state of an operation on this socket, without a generation yet.
    pub(super) fn new(socket: &Arc<OwnedFd>, owner: u64) -> Self {
        let (socket, owner) = (Some(socket.clone()), Some(owner));
        Self {
            generation: 0,
            owner,
            socket,
            message: None,
            timed: None,
            zero_copy_stage: ZeroCopyStage::Pending,
        }
    }

    /// Records the end of a zero-copy send. The owned bytes are copied, because the kernel still
    /// reads the message. The slot releases the socket, so that the connection ends when it is
    /// closed, and the release of the memory follows.
    pub(super) fn on_send_done(&mut self, result: Result<usize, Errno>) -> Option<SendResult> {
        self.socket = None;
        self.zero_copy_stage = ZeroCopyStage::SendDone {
            has_sent: result.is_ok_and(|count| count > 0),
        };
        Some(SendResult {
            result,
            owned: self.message.as_ref()?.owned().into(),
        })
    }

    /// Returns the buffer, after the kernel has released it.
    pub(super) fn into_released_buffer(self, is_copied: bool) -> Option<ReleasedBuffer> {
        let (op, buf) = self.message?.into_parts().1?;
        let zero_copy = match self.zero_copy_stage {
            ZeroCopyStage::SendDone { has_sent: true } if is_copied => {
                Some(ZeroCopyOutcome::Copied)
            }
            ZeroCopyStage::SendDone { has_sent: true } => Some(ZeroCopyOutcome::ZeroCopy),
            _ => None,
        };
        Some(ReleasedBuffer { op, buf, zero_copy })
    }
}

impl Cqe {
    /// Returns the number of bytes, or the error. Not meaningful for a notification about a buffer.
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

/// Returns the index of the slot of this user data, which may be that of a timer.
pub(super) fn slot_index(user_data: u64) -> usize {
    (user_data & !TIMEOUT_BIT) as u32 as usize
}
