//! What is kept of an operation in a ring, and what its completions say.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric_core::buf::AnyBuf;
use fabric_core::provider::OpKey;
use io_uring::cqueue;
use rustix::io::Errno;

use super::message::Message;
use super::timed::Timed;

/// The kernel is to say whether it has copied what it was to send from where it lies
/// (`IORING_SEND_ZC_REPORT_USAGE`), and says so (`IORING_NOTIF_USAGE_ZC_COPIED`).
pub(super) const REPORT_USAGE: u16 = 1 << 3;
pub(super) const COPIED: u32 = 1 << 31;
/// What marks the second completion of such a send (`IORING_CQE_F_NOTIF`).
pub(super) const NOTIF: u32 = 1 << 3;
/// What a timer has in its name besides that of its operation. No ring has so many slots.
pub(super) const TIMER: u64 = 1 << 31;

/// What has become of a send.
#[derive(Debug)]
pub(crate) struct Sent {
    /// How many bytes have left, or why none.
    pub(crate) result: Result<usize, Errno>,
    /// The bytes that were given away with it.
    pub(crate) own: Box<[u8]>,
}

/// A buffer that a send was given.
#[derive(Debug)]
pub(crate) struct Released {
    /// The operation that has given it.
    pub(crate) op: OpKey,
    pub(crate) buf: AnyBuf,
    /// How its bytes were sent, if they were.
    pub(crate) way: Option<Way>,
}

/// How bytes were sent that the kernel was given where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From there.
    ZeroCopy,
    /// From a copy all the same.
    Copied,
}

/// An operation.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    /// `None` when nobody wants to hear of it.
    pub(super) owner: Option<u64>,
    /// What it works on; open as long as the kernel works on it.
    pub(super) socket: Option<Arc<OwnedFd>>,
    pub(super) message: Option<Box<Message>>,
    /// Of an operation that has its time.
    pub(super) timed: Option<Box<Timed>>,
    /// Of a send with a buffer.
    pub(super) stage: Stage,
}

/// How far a send with a buffer has come. It has two completions: of the send, and of the last look
/// at its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has none; or it has not ended.
    Whole,
    /// The send has ended, and something has left or nothing.
    Ended { has_sent: bool },
}

/// A completion as it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw {
    pub(super) name: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

impl Slot {
    /// Of an operation on this socket that needs nothing else, before it has its number.
    pub(super) fn new(socket: &Arc<OwnedFd>, owner: u64) -> Self {
        let (socket, owner) = (Some(socket.clone()), Some(owner));
        Self {
            generation: 0,
            owner,
            socket,
            message: None,
            timed: None,
            stage: Stage::Whole,
        }
    }

    /// A send with a buffer has ended. What was given away with it is copied: it is still being
    /// looked at. The connection is not held by that, so that it ends when it is closed, and the
    /// last look with it.
    pub(super) fn ended(&mut self, result: Result<usize, Errno>) -> Option<Sent> {
        self.socket = None;
        self.stage = Stage::Ended {
            has_sent: result.is_ok_and(|count| count > 0),
        };
        Some(Sent {
            result,
            own: self.message.as_ref()?.own().into(),
        })
    }

    /// The kernel has looked at the buffer for the last time.
    pub(super) fn released(self, is_copied: bool) -> Option<Released> {
        let (op, buf) = self.message?.into_parts().1?;
        let way = match self.stage {
            Stage::Ended { has_sent: true } if is_copied => Some(Way::Copied),
            Stage::Ended { has_sent: true } => Some(Way::ZeroCopy),
            _ => None,
        };
        Some(Released { op, buf, way })
    }
}

impl Raw {
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

    pub(super) fn of(entry: cqueue::Entry) -> Self {
        Self {
            name: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }
    }
}

/// The position of the slot of this name, which may be that of a timer.
pub(super) fn index(name: u64) -> usize {
    (name & !TIMER) as u32 as usize
}
