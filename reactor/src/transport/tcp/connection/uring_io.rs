//! A connection over io_uring: receives while the domain sleeps, and sends as the socket has room.
//!
//! While a thread polls, a connection is read by non-blocking calls, which is faster. Before the
//! domain sleeps, every idle connection arms a multishot receive into buffers of the io_uring
//! instance; one call submits all of them, and the instance's eventfd is in the domain's epoll set.
//! A pass delivers completions before it polls connections. After 32 passes without input, a
//! connection stops its armed receive, and is read by calls after the last completion. The
//! connection never reads in both ways at once, which would reorder bytes.
//!
//! Bytes that a full socket does not take become one io_uring send: the pending bytes, which the
//! instance owns meanwhile, and the rest of the long message, which stays in its operation's
//! buffer. Until that send has ended nothing else is sent, and the operation does not complete. To
//! end the operation earlier, the connection cancels the send and waits for its completion.
//!
//! A long message may also be sent from its buffer (`zero_copy`).
#![allow(unsafe_code)] // the kernel reads the buffers of operations in place

use std::collections::VecDeque;

use fabric_core::buf::Payload;
use fabric_core::transport::{EndpointContext, EngineContext};
use rustix::io::Errno;

use super::super::socket::ReadResult;
use super::limits::MAX_IOVECS;
use super::uring_send::UringSend;
use super::zero_copy::{ZeroCopyState, is_zero_copy_unavailable};
use super::{QueuedTxOp, TcpConnection};
use crate::sys::uring::{
    CompletionKind, LeasedBuffer, OpId, SendResult, SharedUring, UringCompletion,
};

/// Passes without input after which a connection with an armed receive is read by calls again: a
/// thread is polling.
const SYSCALL_READ_PASSES: u32 = 32;

/// Receives and sends of one connection in io_uring.
pub(super) struct UringIo {
    pub(super) uring: SharedUring,
    /// The token of the connection. Completions of the connection carry this token.
    pub(super) owner: u64,
    recv_state: UringRecv,
    /// Received buffers that were not read yet.
    received: VecDeque<LeasedBuffer>,
    pub(super) send_state: UringSend,
    pub(super) zero_copy: ZeroCopyState,
}

impl UringSend {
    fn op_id(self) -> Option<OpId> {
        match self {
            Self::Borrowed(op_id) | Self::Owned(op_id, _) => Some(op_id),
            Self::Idle | Self::AwaitingBuffer(_) => None,
        }
    }
}

/// The receive of a connection in io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UringRecv {
    /// The connection is read by calls.
    Inactive,
    /// A multishot receive is armed.
    Active(OpId),
    /// The receive was canceled; its last completion is pending.
    Stopping(OpId),
    /// The receive has failed with an error that the socket does not report again.
    Failed,
}

impl UringRecv {
    /// Returns the receive that has not ended.
    fn op_id(self) -> Option<OpId> {
        match self {
            Self::Active(op_id) | Self::Stopping(op_id) => Some(op_id),
            Self::Inactive | Self::Failed => None,
        }
    }
}

impl UringIo {
    pub(super) fn new(uring: SharedUring, owner: u64) -> Self {
        let (received, zero_copy) = (VecDeque::new(), ZeroCopyState::default());
        let (recv_state, send_state) = (UringRecv::Inactive, UringSend::Idle);
        Self {
            uring,
            owner,
            recv_state,
            received,
            send_state,
            zero_copy,
        }
    }

    /// Reads what io_uring has received; `None` if the socket is to be read by calls.
    fn read_received(&mut self, into: &mut [u8]) -> Option<ReadResult> {
        let mut count = 0;
        while count < into.len()
            && let Some(lease) = self.received.front_mut()
        {
            let part = lease.len().min(into.len() - count);
            into[count..count + part].copy_from_slice(&lease[..part]);
            lease.advance(part);
            count += part;
            if lease.is_empty() {
                self.received.pop_front();
            }
        }
        match self.recv_state {
            _ if count > 0 => Some(ReadResult::Bytes(count)),
            UringRecv::Inactive => None,
            UringRecv::Active(_) | UringRecv::Stopping(_) => Some(ReadResult::WouldBlock),
            UringRecv::Failed => Some(ReadResult::Failed),
        }
    }

    /// Returns the number of bytes that io_uring has received and that were not read; `None` while
    /// the receive has not ended.
    fn unread_len(&self) -> Option<usize> {
        let unread = self.received.iter().map(|lease| lease.len()).sum();
        self.recv_state.op_id().is_none().then_some(unread)
    }

    /// Cancels the receive. The connection is not read by calls before the receive's last
    /// completion.
    fn cancel_recv(&mut self) {
        if let UringRecv::Active(op_id) = self.recv_state {
            self.uring.lock().cancel(op_id);
            self.recv_state = UringRecv::Stopping(op_id);
        }
    }

    /// Cancels the receive and waits for its last completion. Afterwards all received bytes can be
    /// read.
    fn cancel_recv_and_wait(&mut self) {
        if let Some(op_id) = self.recv_state.op_id() {
            self.received.extend(self.uring.lock().cancel_recv(op_id));
            self.recv_state = UringRecv::Inactive;
        }
    }

    /// Copies received bytes out of the buffers of the io_uring instance, so that other connections
    /// can use the buffers.
    fn detach_leases(&mut self) {
        for _ in 0..self.received.len() {
            if let Some(lease) = self.received.pop_front() {
                self.received.push_back(lease.into_owned());
            }
        }
    }
}

impl TcpConnection {
    /// Returns whether the I/O backend is io_uring.
    pub(super) fn uses_uring(&self) -> bool {
        self.uring_io.is_some()
    }

    /// Returns whether a send is in io_uring.
    pub(crate) fn is_uring_sending(&self) -> bool {
        self.uring_io
            .as_ref()
            .is_some_and(|io| io.send_state != UringSend::Idle)
    }

    /// Reads what has arrived, from io_uring or by a call.
    pub(super) fn read(&mut self, into: &mut [u8]) -> ReadResult {
        match self.uring_io.as_mut().and_then(|io| io.read_received(into)) {
            Some(received) => received,
            None => self.socket.recv(into),
        }
    }

    /// Returns the number of bytes that have arrived and were not read; `None` while io_uring may
    /// still receive some.
    pub(super) fn unread_len(&self) -> Option<usize> {
        let received = self
            .uring_io
            .as_ref()
            .map_or(Some(0), UringIo::unread_len)?;
        Some(received.saturating_add(self.socket.unread_len()))
    }

    /// Prepares for sleep: with io_uring, arms a multishot receive. Returns false when there is
    /// input already, or the receive could not be armed.
    pub(crate) fn arm_uring_recv(&mut self) -> bool {
        let is_reading = self.is_reading();
        let Some(io) = &mut self.uring_io else {
            return true;
        };
        if !is_reading {
            return true;
        }
        if !io.received.is_empty() {
            return false;
        }
        match io.recv_state {
            UringRecv::Active(_) | UringRecv::Stopping(_) => return true,
            UringRecv::Failed => return false,
            UringRecv::Inactive => {}
        }
        let armed = io
            .uring
            .lock()
            .recv_multishot(self.socket.shared_fd(), io.owner);
        if let Ok(op_id) = armed {
            io.recv_state = UringRecv::Active(op_id);
        }
        armed.is_ok()
    }

    /// Handles a pass without input: after [`SYSCALL_READ_PASSES`], stops the armed receive.
    pub(super) fn on_idle_pass(&mut self) {
        if self.rx.count_idle_pass() == SYSCALL_READ_PASSES
            && let Some(io) = &mut self.uring_io
        {
            io.cancel_recv();
        }
    }

    /// Switches back to reading by calls; data that io_uring has received is read first.
    pub(super) fn stop_uring_recv(&mut self) {
        if let Some(io) = &mut self.uring_io {
            io.cancel_recv_and_wait();
        }
    }

    /// Stops receiving while this side does not read.
    pub(super) fn pause_uring_recv(&mut self) {
        if let Some(io) = &mut self.uring_io {
            io.cancel_recv();
            io.detach_leases();
        }
    }

    /// Sends the pending bytes and behind them `payload`, of the first operation of the queue, in
    /// one io_uring send.
    pub(super) fn send_via_uring(&mut self, payload: Payload<'_>) {
        let Some(io) = &mut self.uring_io else {
            return;
        };
        let pending = self.writer.take_pending().into_boxed_slice();
        let mut parts: [&[u8]; MAX_IOVECS] = [&[]; MAX_IOVECS];
        let mut count = 0;
        payload.for_each_borrowed(|piece| {
            if let Some(part) = parts.get_mut(count) {
                *part = piece;
                count += 1;
            }
        });
        let mut uring = io.uring.lock();
        // SAFETY: the parts are in the buffer of an operation, which stays where it is until the
        // operation is completed: a payload this long is not that of an `InlineBuf`. An operation
        // is completed only after `cancel_send` has returned or the send's completion was handled:
        // `send_queued` does nothing while io_uring is sending, `TcpEndpoint::fail_sends` and
        // `into_socket` cancel the send, and an operation that has begun is not canceled.
        match unsafe { uring.send(self.socket.shared_fd(), io.owner, pending, &parts[..count]) } {
            Ok(op_id) => io.send_state = UringSend::Borrowed(op_id),
            Err(pending) => {
                drop(uring);
                self.writer.restore_pending(&pending);
                // The next pass tries again.
                self.tx.set_blocked(false);
            }
        }
    }

    /// Handles a completion of an operation of this connection.
    pub(crate) fn on_uring_completion(
        &mut self,
        completion: UringCompletion,
        queue: &mut VecDeque<QueuedTxOp>,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        let is_paused = !self.is_reading();
        let Some(io) = &mut self.uring_io else {
            return;
        };
        let op_id = completion.op_id;
        match completion.kind {
            CompletionKind::Sent(sent) if io.send_state.op_id() == Some(op_id) => {
                let previous = std::mem::replace(&mut io.send_state, UringSend::Idle);
                let all_sent = self.on_uring_sent(&sent, previous, queue);
                self.complete_written(ctx);
                match previous {
                    UringSend::Owned(..) if all_sent => self.finish_first(queue, ctx),
                    UringSend::Owned(..) => self.await_buffer(op_id),
                    _ => {}
                }
            }
            CompletionKind::BufferReleased(released) => {
                self.on_buffer_released(op_id, released.zero_copy)
            }
            _ if io.recv_state.op_id() != Some(op_id) => {}
            CompletionKind::Received(lease) => {
                io.received
                    .push_back(if is_paused { lease.into_owned() } else { lease })
            }
            // A read of the socket reports the end of the stream again. A timed operation belongs
            // to an attempt to connect.
            CompletionKind::Eof
            | CompletionKind::Sent(_)
            | CompletionKind::Timed(_)
            | CompletionKind::Failed(Errno::CANCELED | Errno::NOBUFS | Errno::INTR) => {}
            CompletionKind::Failed(_) => io.recv_state = UringRecv::Failed,
        }
        if let Some(io) = &mut self.uring_io
            && completion.is_last
            && io.recv_state.op_id() == Some(op_id)
        {
            io.recv_state = UringRecv::Inactive;
        }
    }

    /// Cancels the send in io_uring and waits for its end. Afterwards the kernel does not read the
    /// first operation's buffer, unless io_uring owns the buffer; an operation of which all bytes
    /// were sent is finished.
    pub(crate) fn cancel_uring_send(
        &mut self,
        queue: &mut VecDeque<QueuedTxOp>,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        let (previous, all_sent) = self.take_uring_send(queue);
        self.complete_written(ctx);
        let was_sent = match previous {
            UringSend::Owned(..) => all_sent,
            UringSend::Borrowed(_) => queue
                .front()
                .is_some_and(|first| first.bytes_sent == Some(ctx.payload(first.op).len())),
            UringSend::Idle | UringSend::AwaitingBuffer(_) => false,
        };
        if was_sent && self.writer.is_open() {
            self.finish_first(queue, ctx);
        }
    }

    /// Removes the first operation of the queue, all bytes of which io_uring has sent.
    fn finish_first(
        &mut self,
        queue: &mut VecDeque<QueuedTxOp>,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        let end = self.writer.total_written();
        self.writer.end_frame();
        if let Some(QueuedTxOp {
            op,
            tx_op,
            bytes_sent,
        }) = queue.pop_front()
        {
            self.tx.on_operation_sent();
            self.on_transmitted((op, tx_op), bytes_sent.unwrap_or(0), end, ctx);
        }
    }

    /// Cancels the send in io_uring and waits for its end. Returns the previous state, and whether
    /// a send in the state [`UringSend::Owned`] has sent all bytes.
    fn take_uring_send(&mut self, queue: &mut VecDeque<QueuedTxOp>) -> (UringSend, bool) {
        let Some(io) = &mut self.uring_io else {
            return (UringSend::Idle, false);
        };
        let previous = std::mem::replace(&mut io.send_state, UringSend::Idle);
        let sent = previous
            .op_id()
            .and_then(|op_id| io.uring.lock().cancel_send(op_id));
        let all_sent = sent.is_some_and(|sent| self.on_uring_sent(&sent, previous, queue));
        (previous, all_sent)
    }

    /// Handles the end of a send. Returns whether a send in the state [`UringSend::Owned`] has sent
    /// all bytes.
    fn on_uring_sent(
        &mut self,
        sent: &SendResult,
        previous: UringSend,
        queue: &mut VecDeque<QueuedTxOp>,
    ) -> bool {
        self.tx.set_blocked(false);
        let count = sent.result.unwrap_or(0);
        let pending_sent = count.min(sent.owned.len());
        self.writer.restore_pending(&sent.owned[pending_sent..]);
        if let Some(QueuedTxOp {
            bytes_sent: Some(bytes_sent),
            ..
        }) = queue.front_mut()
        {
            *bytes_sent += count - pending_sent;
        }
        let UringSend::Owned(_, len) = previous else {
            self.close_write_on_error(sent.result);
            return false;
        };
        match sent.result {
            Err(errno) if is_zero_copy_unavailable(errno) => self.disable_zero_copy(),
            result => self.close_write_on_error(result),
        }
        count == sent.owned.len() + len
    }

    /// Stops sending if the error is one of the connection. With ECANCELED and EINTR, the thread
    /// that submitted the send has ended; EAGAIN is a socket without room.
    fn close_write_on_error(&mut self, result: Result<usize, Errno>) {
        if !matches!(
            result,
            Ok(_) | Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN)
        ) {
            self.close_write();
        }
    }

    /// Detaches the connection from io_uring: its send has ended, and later completions of its
    /// receive are discarded.
    pub(super) fn detach_from_uring(&mut self) {
        self.take_uring_send(&mut VecDeque::new());
        if let Some(io) = self.uring_io.take() {
            let mut uring = io.uring.lock();
            if let Some(op_id) = io.recv_state.op_id() {
                uring.detach(op_id);
                // If the submission fails, the next one includes the cancellation.
                let _ = uring.submit();
            }
        }
    }
}
