//! What is kept of an operation in a ring, and what its completions say.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric_core::buf::AnyBuf;
use fabric_core::transport::OpKey;
use io_uring::cqueue;
use rustix::io::Errno;

use super::send_msg::SendMsg;
use super::timed::TimedOp;

/// The kernel is to say whether it has copied what it was to send from where it lies
/// (`IORING_SEND_ZC_REPORT_USAGE`), and says so (`IORING_NOTIF_USAGE_ZC_COPIED`).
pub(super) const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
pub(super) const NOTIF_USAGE_ZC_COPIED: u32 = 1 << 31;
/// What marks the second completion of such a send (`IORING_CQE_F_NOTIF`).
pub(super) const CQE_F_NOTIF: u32 = 1 << 3;
/// What a timer has in its name besides that of its operation. No ring has so many slots.
pub(super) const TIMEOUT_BIT: u64 = 1 << 31;

/// What has become of a send.
#[derive(Debug)]
pub(crate) struct SendResult {
    /// How many bytes have left, or why none.
    pub(crate) result: Result<usize, Errno>,
    /// The bytes that were given away with it.
    pub(crate) owned: Box<[u8]>,
}

/// A buffer that a send was given.
#[derive(Debug)]
pub(crate) struct ReleasedBuffer {
    /// The operation that has given it.
    pub(crate) op: OpKey,
    pub(crate) buf: AnyBuf,
    /// How its bytes were sent, if they were.
    pub(crate) zero_copy: Option<ZeroCopyOutcome>,
}

/// How bytes were sent that the kernel was given where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopyOutcome {
    /// From there.
    ZeroCopy,
    /// From a copy all the same.
    Copied,
}

/// An operation.
#[derive(Debug)]
pub(super) struct UringSlot {
    pub(super) generation: u32,
    /// `None` when nobody wants to hear of it.
    pub(super) owner: Option<u64>,
    /// What it works on; open as long as the kernel works on it.
    pub(super) socket: Option<Arc<OwnedFd>>,
    pub(super) message: Option<Box<SendMsg>>,
    /// Of an operation that has its time.
    pub(super) timed: Option<Box<TimedOp>>,
    /// Of a send with a buffer.
    pub(super) zero_copy_stage: ZeroCopyStage,
}

/// How far a send with a buffer has come. It has two completions: of the send, and of the last look
/// at its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeroCopyStage {
    /// It has none; or it has not ended.
    Pending,
    /// The send has ended, and something has left or nothing.
    SendDone { has_sent: bool },
}

/// A completion as it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    pub(super) user_data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

impl UringSlot {
    /// Of an operation on this socket that needs nothing else, before it has its number.
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

    /// A send with a buffer has ended. What was given away with it is copied: it is still being
    /// looked at. The connection is not held by that, so that it ends when it is closed, and the
    /// last look with it.
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

    /// The kernel has looked at the buffer for the last time.
    pub(super) fn into_released_buffer(self, is_copied: bool) -> Option<ReleasedBuffer> {
        let (op, buf) = self.message?.into_parts().1?;
        let way = match self.zero_copy_stage {
            ZeroCopyStage::SendDone { has_sent: true } if is_copied => {
                Some(ZeroCopyOutcome::Copied)
            }
            ZeroCopyStage::SendDone { has_sent: true } => Some(ZeroCopyOutcome::ZeroCopy),
            _ => None,
        };
        Some(ReleasedBuffer {
            op,
            buf,
            zero_copy: way,
        })
    }
}

impl Cqe {
    /// How many bytes have moved, or why not. It has another meaning in a word about a buffer.
    pub(super) fn result(&self) -> Result<usize, Errno> {
        let count =
            u32::try_from(self.result).map_err(|_| Errno::from_raw_os_error(-self.result))?;
        Ok(count as usize)
    }

    /// The last word about this slot, if that has something to wait for.
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

/// The position of the slot of this name, which may be that of a timer.
pub(super) fn slot_index(name: u64) -> usize {
    (name & !TIMEOUT_BIT) as u32 as usize
}
