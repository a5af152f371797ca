//! The state of an operation in an io_uring instance, and the meaning of its completions.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::completion::{ReleasedBuffer, SendResult, ZeroCopyOutcome};
use super::cqe::TIMEOUT_BIT;
use super::send_msg::SendMsg;
use super::timed_op::TimedOp;

/// Asks the kernel to report whether it has copied the bytes of a zero-copy send
/// (`IORING_SEND_ZC_REPORT_USAGE`), and the report (`IORING_NOTIF_USAGE_ZC_COPIED`).
pub(super) const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
pub(super) const NOTIF_USAGE_ZC_COPIED: u32 = 1 << 31;
/// The state of an operation.
#[derive(Debug)]
pub(super) struct UringSlot {
    /// Distinguishes the operations that use this slot one after another.
    pub(super) generation: u32,
    /// The owner of the operation; `None` when it is detached.
    pub(super) owner: Option<u64>,
    /// The socket of the operation, open as long as the kernel uses it.
    pub(super) socket: Option<Arc<OwnedFd>>,
    /// The message of a send.
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
    /// The send has not ended, or the operation is not a zero-copy send.
    Pending,
    /// The send has ended; `has_sent` is whether bytes were sent.
    SendDone { has_sent: bool },
}

impl UringSlot {
    /// Returns the state of a new operation on this socket. `Uring::push_op` sets the generation.
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

    /// Records the end of a zero-copy send. Returns a copy of the owned bytes, because the kernel
    /// still reads the message. The slot drops its reference to the socket, so that closing the
    /// socket ends the connection; the end of the connection releases the memory.
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

    /// Returns the buffer of a zero-copy send, after the kernel has released it. `is_copied` is
    /// whether the kernel has copied the bytes.
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

/// Returns the index of the slot of an operation or its timer.
pub(super) fn slot_index(user_data: u64) -> usize {
    (user_data & !TIMEOUT_BIT) as u32 as usize
}
