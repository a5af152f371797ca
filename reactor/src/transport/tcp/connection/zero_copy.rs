//! Messages that the kernel sends from their buffer (`SocketOptions::zero_copy_threshold`).
//!
//! The kernel reads the buffer until the peer's machine has acknowledged all of it, also after the
//! operation, the connection, the endpoint or the domain has ended. So the io_uring instance owns
//! the buffer meanwhile. io_uring reports such a send twice. After the first report all bytes are
//! in the socket, and the next operation begins. After the second report the kernel no longer reads
//! the buffer: the instance returns it (`return_buffer`), and the engine reports the completion.
//! The rest of a message that was not sent whole is copied into the socket when the buffer is back.
//! An instance that is dropped leaves such memory to a thread (`uring::orphaned`).
//!
//! Zero copy saves time only where the network hardware reads the memory of programs. Once the
//! kernel reports that it has copied, or that it cannot send in place, the connection sends later
//! messages by copying. Read responses, and long messages in RXM, which are read responses, are
//! copied always: the program may change a region at any time.
//!
//! Decision: a zero-copy send completes when its buffer is free, because the completion returns the
//! buffer. Hence a send to a peer that does not read does not complete, also when the connection is
//! lost. So zero copy is opt-in.

use fabric_core::buf::Payload;
use fabric_core::transport::{EndpointContext, EngineContext, OpKey};
use rustix::io::Errno;

use super::TcpConnection;
use super::limits::MAX_BUFFERED_MESSAGE;
use super::uring_send::UringSend;
use crate::sys::uring::{OpId, ZeroCopyOutcome};

/// The zero-copy sends of a connection.
#[derive(Debug, Default)]
pub(super) struct ZeroCopyState {
    /// Shortest message that is sent from its buffer, in bytes; `None` turns zero copy off.
    threshold: Option<usize>,
    /// Whether zero copy stays on after the kernel has copied.
    keep_if_copied: bool,
    /// Sends whose buffers io_uring owns.
    op_ids: Vec<OpId>,
}

/// Returns whether the error means that the kernel cannot send this buffer in place: zero copy is
/// not supported (by the kernel or the socket), memory for its accounting is short, or the buffer's
/// memory cannot be pinned.
pub(super) fn is_zero_copy_unavailable(errno: Errno) -> bool {
    [
        Errno::INVAL,
        Errno::OPNOTSUPP,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::FAULT,
    ]
    .contains(&errno)
}

impl TcpConnection {
    /// Sets the minimum length in bytes of messages that are sent from their buffer, at least
    /// [`MAX_BUFFERED_MESSAGE`]. Ignored without an io_uring instance that supports zero copy.
    /// `keep_if_copied` is whether zero copy stays on after the kernel has copied.
    pub(crate) fn set_zero_copy_threshold(
        &mut self,
        threshold: Option<usize>,
        keep_if_copied: bool,
    ) {
        if let Some(io) = &mut self.uring_io
            && let Some(threshold) = threshold
            && io.uring.lock().supports_zero_copy()
        {
            (io.zero_copy.threshold, io.zero_copy.keep_if_copied) =
                (Some(threshold.max(MAX_BUFFERED_MESSAGE)), keep_if_copied);
        }
    }

    /// Sends later messages by copying.
    pub(super) fn disable_zero_copy(&mut self) {
        if let Some(io) = &mut self.uring_io {
            io.zero_copy.threshold = None;
        }
    }

    /// Returns whether a message is sent from its buffer: it has the minimum length, and all of it
    /// fits into one send.
    pub(super) fn should_zero_copy(&self, payload: Payload<'_>) -> bool {
        let threshold = self.uring_io.as_ref().and_then(|io| io.zero_copy.threshold);
        threshold.is_some_and(|threshold| payload.len() >= threshold) && {
            let mut parts = 1;
            payload.for_each(|_, part| parts += usize::from(!part.is_empty()));
            parts <= crate::sys::uring::MAX_IOVECS
                && payload.len() <= crate::sys::uring::MAX_SEND_LEN - self.writer.pending().len()
        }
    }

    /// Gives the first operation's buffer to io_uring, which sends it behind the pending bytes.
    /// Returns false when the message has to be sent by copying.
    pub(super) fn send_zero_copy(
        &mut self,
        op: OpKey,
        len: usize,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let Some(io) = &mut self.uring_io else {
            return false;
        };
        let Some(buf) = ctx.take_buffer(op) else {
            return false;
        };
        let pending = self.writer.take_pending().into_boxed_slice();
        let result =
            io.uring
                .lock()
                .send_zero_copy(self.socket.shared_fd(), io.owner, pending, (op, buf));
        match result {
            Ok(op_id) => {
                io.send_state = UringSend::Owned(op_id, len);
                io.zero_copy.op_ids.push(op_id);
                true
            }
            Err((pending, buf)) => {
                ctx.return_buffer(op, buf);
                self.writer.restore_pending(&pending);
                false
            }
        }
    }

    /// Notes that the send has ended before all bytes of the first operation were sent. io_uring
    /// still owns the operation's buffer; sending continues when the buffer is back.
    pub(super) fn await_buffer(&mut self, op_id: OpId) {
        if let Some(io) = &mut self.uring_io {
            io.send_state = UringSend::AwaitingBuffer(op_id);
        }
    }

    /// Handles the return of the buffer of a zero-copy send.
    pub(super) fn on_buffer_released(&mut self, op_id: OpId, outcome: Option<ZeroCopyOutcome>) {
        let Some(io) = &mut self.uring_io else {
            return;
        };
        let zero_copy = &mut io.zero_copy;
        let Some(index) = zero_copy.op_ids.iter().position(|owned| *owned == op_id) else {
            return;
        };
        zero_copy.op_ids.swap_remove(index);
        if outcome == Some(ZeroCopyOutcome::Copied) && !zero_copy.keep_if_copied {
            zero_copy.threshold = None;
        }
        if io.send_state == UringSend::AwaitingBuffer(op_id) {
            io.send_state = UringSend::Idle;
        }
    }
}
