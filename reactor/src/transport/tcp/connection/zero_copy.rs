//! Messages that the kernel sends from their buffer (`SocketOptions::zero_copy_threshold`).
//!
//! The kernel reads the buffer until the peer's machine has acknowledged all of it, whatever
//! becomes of operation, connection, endpoint and domain. So the io_uring instance owns the buffer,
//! and returns it when the kernel reports that it is done. Such a send has two completions. With
//! the first the next operation begins, and this one is done as far as TCP is concerned; with the
//! second the buffer returns (`return_buffer`), and only then does the engine report the
//! completion. The rest of a message that was not sent whole is sent in the usual way when the
//! buffer is back. An instance that is dropped leaves such memory to a thread (`uring::orphaned`).
//!
//! It pays where hardware reads the memory of programs. The first report of the kernel that it
//! copied anyway, or cannot do this, is the last such send of the connection. Read responses from
//! regions, which belong to their owner meanwhile, and long messages in RXM, which are such
//! responses, are copied.
//!
//! Decision: a zero-copy send completes when its buffer is free. A completion returns the buffer,
//! so it cannot come with the kernel's first completion, as one without a buffer could. Hence a
//! send waits for a peer that does not read, also when the connection is lost. So it is opt-in.

use fabric_core::buf::Payload;
use fabric_core::transport::{EngineContext, OpKey};
use rustix::io::Errno;

use super::TcpConnection;
use super::sending::MAX_BUFFERED_MESSAGE;
use super::uring_io::UringSend;
use crate::uring::{OpId, ZeroCopyOutcome};

/// The zero-copy sends of a connection.
#[derive(Debug, Default)]
pub(super) struct ZeroCopyState {
    /// Shortest message that is sent from its buffer, in bytes; `None` turns zero copy off.
    threshold: Option<usize>,
    /// Zero copy stays on although the kernel has copied.
    keep_if_copied: bool,
    /// Sends whose buffers io_uring owns.
    op_ids: Vec<OpId>,
}

/// Returns whether the error means that the kernel has no zero copy, or not for this socket, lacks
/// memory to account for it, or cannot pin memory of this kind.
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
    /// Sends messages from this length on from their buffer, if the io_uring instance supports it.
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

    pub(super) fn disable_zero_copy(&mut self) {
        if let Some(io) = &mut self.uring_io {
            io.zero_copy.threshold = None;
        }
    }

    /// Returns whether this message is sent from its buffer. All of it must fit into one send.
    pub(super) fn should_zero_copy(&self, payload: Payload<'_>) -> bool {
        let threshold = self.uring_io.as_ref().and_then(|io| io.zero_copy.threshold);
        threshold.is_some_and(|threshold| payload.len() >= threshold) && {
            let mut parts = 1;
            payload.for_each(|_, part| parts += usize::from(!part.is_empty()));
            parts <= crate::uring::MAX_IOVECS
                && payload.len() <= crate::uring::MAX_SEND_LEN - self.writer.pending().len()
        }
    }

    /// Gives the first operation's buffer to io_uring and sends it behind the pending bytes. False
    /// when it has to be sent by copying.
    pub(super) fn send_zero_copy(
        &mut self,
        op: OpKey,
        len: usize,
        engine: &mut impl EngineContext,
    ) -> bool {
        let Some(io) = &mut self.uring_io else {
            return false;
        };
        let Some(buf) = engine.take_buffer(op) else {
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
                engine.return_buffer(op, buf);
                self.writer.restore_pending(&pending);
                false
            }
        }
    }

    /// Notes that the send has ended without sending all of the first operation, whose buffer
    /// io_uring still owns.
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
        let Some(at) = zero_copy.op_ids.iter().position(|owned| *owned == op_id) else {
            return;
        };
        zero_copy.op_ids.swap_remove(at);
        if outcome == Some(ZeroCopyOutcome::Copied) && !zero_copy.keep_if_copied {
            zero_copy.threshold = None;
        }
        if io.send_state == UringSend::AwaitingBuffer(op_id) {
            io.send_state = UringSend::Idle;
        }
    }
}
