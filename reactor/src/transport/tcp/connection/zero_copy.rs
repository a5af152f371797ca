//! Messages that are given to the ring with their buffers, for the network to take them from there.
//!
//! The kernel looks at such a buffer until the peer's machine has acknowledged all of it, whatever
//! becomes of the operation and of the connection. So the ring has it, and gives it back when the
//! kernel says that it looks no more ([`CompletionKind::BufferReleased`](crate::uring::What)); the host keeps the
//! end of the operation until then ([`Host::take_buffer`](fabric_core::transport::Host::entrust)). What
//! follows in the queue need not wait for that, unless not all of the message has left: the rest is
//! sent as usual, from a buffer that must be back.
//!
//! It pays where the hardware reads the memory of programs. Where the kernel says that it has
//! copied, or that it cannot do this, the connection goes on without.

use fabric_core::buf::Payload;
use fabric_core::transport::{EngineContext, OpKey};
use rustix::io::Errno;

use super::TcpConnection;
use super::sending::MAX_BUFFERED_MESSAGE;
use super::uring_io::UringSend;
use crate::uring::{OpId, ZeroCopyOutcome};

/// What a connection gives away, and has given.
#[derive(Debug, Default)]
pub(super) struct ZeroCopyState {
    /// Messages from this length on.
    threshold: Option<usize>,
    /// Also where the kernel copies all the same.
    keep_if_copied: bool,
    /// Sends whose buffers the ring has.
    op_ids: Vec<OpId>,
}

/// Whether the kernel does not know it, or not for this socket, or has no memory to account for it,
/// or cannot hold on to memory of this kind.
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
    /// Messages from this length on are taken from where they lie, where the ring can do that.
    pub(crate) fn set_zero_copy_threshold(&mut self, from: Option<usize>, insists: bool) {
        if let Some(lane) = &mut self.uring_io
            && let Some(from) = from
            && lane.uring.lock().supports_zero_copy()
        {
            (lane.zero_copy.threshold, lane.zero_copy.keep_if_copied) =
                (Some(from.max(MAX_BUFFERED_MESSAGE)), insists);
        }
    }

    pub(super) fn disable_zero_copy(&mut self) {
        if let Some(lane) = &mut self.uring_io {
            lane.zero_copy.threshold = None;
        }
    }

    /// Whether this message is to be given to the ring with its buffer. All of it goes into one
    /// send.
    pub(super) fn should_zero_copy(&self, payload: Payload<'_>) -> bool {
        let from = self
            .uring_io
            .as_ref()
            .and_then(|lane| lane.zero_copy.threshold);
        from.is_some_and(|from| payload.len() >= from) && {
            let mut parts = 1;
            payload.for_each(|_, part| parts += usize::from(!part.is_empty()));
            parts <= crate::uring::MAX_IOVECS
                && payload.len() <= crate::uring::MAX_SEND_LEN - self.writer.pending().len()
        }
    }

    /// Gives it to the ring, behind what is pending. False when it has to be sent otherwise.
    pub(super) fn send_zero_copy(
        &mut self,
        op: OpKey,
        len: usize,
        host: &mut dyn EngineContext,
    ) -> bool {
        let Some(lane) = &mut self.uring_io else {
            return false;
        };
        let Some(buf) = host.take_buffer(op) else {
            return false;
        };
        let own = self.writer.take_pending().into_boxed_slice();
        let begun =
            lane.uring
                .lock()
                .send_zero_copy(self.socket.shared_fd(), lane.owner, own, (op, buf));
        match begun {
            Ok(ticket) => {
                lane.send_state = UringSend::Owned(ticket, len);
                lane.zero_copy.op_ids.push(ticket);
                true
            }
            Err((own, buf)) => {
                host.return_buffer(op, buf);
                self.writer.restore_pending(&own);
                false
            }
        }
    }

    /// The ring has not sent all of the first operation of the queue, and has its buffer still.
    pub(super) fn await_buffer(&mut self, ticket: OpId) {
        if let Some(lane) = &mut self.uring_io {
            lane.send_state = UringSend::AwaitingBuffer(ticket);
        }
    }

    /// The operation has its buffer again, which was sent in this way.
    pub(super) fn on_buffer_released(&mut self, ticket: OpId, way: Option<ZeroCopyOutcome>) {
        let Some(lane) = &mut self.uring_io else {
            return;
        };
        let zero_copy = &mut lane.zero_copy;
        let Some(at) = zero_copy.op_ids.iter().position(|given| *given == ticket) else {
            return;
        };
        zero_copy.op_ids.swap_remove(at);
        if way == Some(ZeroCopyOutcome::Copied) && !zero_copy.keep_if_copied {
            zero_copy.threshold = None;
        }
        if lane.send_state == UringSend::AwaitingBuffer(ticket) {
            lane.send_state = UringSend::Idle;
        }
    }
}
