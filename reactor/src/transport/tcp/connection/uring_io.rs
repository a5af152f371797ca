//! A connection by way of a ring: what comes while nobody looks, and what is sent as there is room.
//!
//! While somebody looks, a connection is read by calls that do not block, which is the faster way.
//! Before everybody sleeps it *listens*: the kernel receives into memory of the ring, and goes on
//! doing so until it is stopped. It is never read in both ways at once, or bytes would change
//! places: a connection that is to be read by calls again is stopped first, and waits for the last
//! completion.
//!
//! What there is no room for is handed to the ring: bytes that were collected, and all that is left
//! of a long message, which stays in its operation's buffer. Until that send has ended nothing else
//! is sent, and the operation does not end.
//!
//! A long message may also be given to the ring with its buffer, for the network to take it from
//! there (`zero_copy`).
#![allow(unsafe_code)] // bytes that the kernel sends from where they lie

use std::collections::VecDeque;

use fabric_core::buf::Payload;
use fabric_core::transport::EngineContext;
use rustix::io::Errno;

use super::super::socket::ReadResult;
use super::sending::MAX_IOVECS;
use super::zero_copy::{ZeroCopyState, is_zero_copy_unavailable};
use super::{QueuedOp, TcpConnection};
use crate::uring::{CompletionKind, LeasedBuffer, OpId, SendResult, SharedUring, UringCompletion};

/// Passes without news after which a connection that listens is read by calls again: somebody is
/// looking.
const SYSCALL_READ_PASSES: u32 = 32;

/// What a connection has in the ring.
pub(super) struct UringIo {
    pub(super) uring: SharedUring,
    /// Whom completions are for.
    pub(super) owner: u64,
    recv_state: UringRecv,
    /// What came and was not read.
    received: VecDeque<LeasedBuffer>,
    /// Receiving has failed, and the socket does not say so again.
    recv_failed: bool,
    pub(super) send_state: UringSend,
    pub(super) zero_copy: ZeroCopyState,
}

/// What the ring is sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UringSend {
    Idle,
    /// What was collected, and what is left of the first operation, where it lies.
    Borrowed(OpId),
    /// What was collected, and all of the first operation, so many bytes, whose buffer it has.
    Owned(OpId, usize),
    /// Nothing any more, but it has the buffer of the first operation, and not all of that has
    /// left.
    AwaitingBuffer(OpId),
}

impl UringSend {
    fn op_id(self) -> Option<OpId> {
        match self {
            Self::Borrowed(ticket) | Self::Owned(ticket, _) => Some(ticket),
            Self::Idle | Self::AwaitingBuffer(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UringRecv {
    /// By calls.
    Inactive,
    /// By the ring.
    Active(OpId),
    /// By the ring, for the last time.
    Stopping(OpId),
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
            recv_failed: false,
            send_state,
            zero_copy,
        }
    }

    /// What the ring has received; nothing where calls are to be made.
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
            UringRecv::Inactive if self.recv_failed => Some(ReadResult::Failed),
            UringRecv::Inactive => None,
            _ => Some(ReadResult::WouldBlock),
        }
    }

    /// Receives no more by the ring, once that has ended; what has come waits in memory of its own.
    fn cancel_recv(&mut self) {
        if let UringRecv::Active(ticket) = self.recv_state {
            self.uring.lock().cancel(ticket);
            self.recv_state = UringRecv::Stopping(ticket);
        }
    }

    /// Likewise at once: what has come is there to be read.
    fn cancel_recv_and_wait(&mut self) {
        if let UringRecv::Active(ticket) | UringRecv::Stopping(ticket) = self.recv_state {
            self.received.extend(self.uring.lock().cancel_recv(ticket));
            self.recv_state = UringRecv::Inactive;
        }
    }

    /// What came does not keep memory that others need.
    fn detach_leases(&mut self) {
        for lease in std::mem::take(&mut self.received) {
            self.received.push_back(lease.into_owned());
        }
    }
}

impl TcpConnection {
    pub(super) fn uses_uring(&self) -> bool {
        self.uring_io.is_some()
    }

    /// Whether the ring is sending.
    pub(crate) fn is_uring_sending(&self) -> bool {
        self.uring_io
            .as_ref()
            .is_some_and(|lane| lane.send_state != UringSend::Idle)
    }

    /// Reads what has come, by whichever way it came.
    pub(super) fn read(&mut self, into: &mut [u8]) -> ReadResult {
        match self
            .uring_io
            .as_mut()
            .and_then(|lane| lane.read_received(into))
        {
            Some(received) => received,
            None => self.socket.recv(into),
        }
    }

    /// Nobody looks from now on: the ring, or epoll, tells of what comes. False when something has
    /// come.
    pub(crate) fn arm_uring_recv(&mut self) -> bool {
        let is_read = self.is_reading();
        let Some(lane) = &mut self.uring_io else {
            return true;
        };
        if !is_read || lane.recv_state != UringRecv::Inactive {
            return !is_read || lane.received.is_empty();
        }
        if lane.recv_failed || !lane.received.is_empty() {
            return false;
        }
        match lane
            .uring
            .lock()
            .recv_multishot(self.socket.shared_fd(), lane.owner)
        {
            Ok(ticket) => lane.recv_state = UringRecv::Active(ticket),
            Err(_) => return false,
        }
        true
    }

    /// Somebody has looked, and there was nothing.
    pub(super) fn on_idle_pass(&mut self) {
        if self.idle_passes == SYSCALL_READ_PASSES
            && let Some(lane) = &mut self.uring_io
        {
            lane.cancel_recv();
        }
    }

    /// What has come is read by calls from now on, and by what the ring has of it.
    pub(super) fn stop_uring_recv(&mut self) {
        if let Some(lane) = &mut self.uring_io {
            lane.cancel_recv_and_wait();
        }
    }

    /// It is not read from for now.
    pub(super) fn pause_uring_recv(&mut self) {
        if let Some(lane) = &mut self.uring_io {
            lane.cancel_recv();
            lane.detach_leases();
        }
    }

    /// Hands the ring what is pending, and behind it these bytes, of the operation that is first in
    /// the queue.
    pub(super) fn send_via_uring(&mut self, payload: Payload<'_>) {
        let Some(lane) = &mut self.uring_io else {
            return;
        };
        let own = self.writer.take_pending().into_boxed_slice();
        let mut parts: [&[u8]; MAX_IOVECS] = [&[]; MAX_IOVECS];
        let mut count = 0;
        payload.for_each(|_, piece| {
            if let Some(part) = parts.get_mut(count) {
                *part = piece;
                count += 1;
            }
        });
        let mut ring = lane.uring.lock();
        // SAFETY: they are in the buffer of an operation, which stays where it is until the
        // operation is completed, and that is done only by who has called `take_back`, or has heard
        // of the end of the send, before: `drive` does nothing while the ring is sending,
        // `Endpoint::fail_sends` and `into_socket` take back, and an operation that has begun is
        // not cancelled.
        match unsafe { ring.send(self.socket.shared_fd(), lane.owner, own, &parts[..count]) } {
            Ok(ticket) => lane.send_state = UringSend::Borrowed(ticket),
            Err(own) => {
                drop(ring);
                self.writer.restore_pending(&own);
                // The next pass tries again.
                self.write_blocked = false;
            }
        }
    }

    /// Something has come of an operation in the ring.
    pub(crate) fn on_uring_completion(
        &mut self,
        completion: UringCompletion,
        queue: &mut VecDeque<QueuedOp>,
        host: &mut dyn EngineContext,
    ) {
        let is_held = !self.is_reading();
        let Some(lane) = &mut self.uring_io else {
            return;
        };
        let ticket = completion.op_id;
        match completion.kind {
            CompletionKind::Sent(sent) if lane.send_state.op_id() == Some(ticket) => {
                let was = std::mem::replace(&mut lane.send_state, UringSend::Idle);
                let is_all = self.on_uring_sent(&sent, was, queue);
                self.complete_written(host);
                match was {
                    UringSend::Owned(..) if is_all => self.finish_first(queue, host),
                    UringSend::Owned(..) => self.await_buffer(ticket),
                    _ => {}
                }
            }
            CompletionKind::BufferReleased(released) => {
                self.on_buffer_released(ticket, released.zero_copy)
            }
            _ if ![UringRecv::Active(ticket), UringRecv::Stopping(ticket)]
                .contains(&lane.recv_state) => {}
            CompletionKind::Received(lease) => {
                lane.received
                    .push_back(if is_held { lease.into_owned() } else { lease })
            }
            // The socket says it again to who asks; and what has its time is no connection yet.
            CompletionKind::Eof
            | CompletionKind::Sent(_)
            | CompletionKind::Timed(_)
            | CompletionKind::Failed(Errno::CANCELED | Errno::NOBUFS | Errno::INTR) => {}
            CompletionKind::Failed(_) => lane.recv_failed = true,
        }
        if let Some(lane) = &mut self.uring_io
            && completion.is_last
            && [UringRecv::Active(ticket), UringRecv::Stopping(ticket)].contains(&lane.recv_state)
        {
            lane.recv_state = UringRecv::Inactive;
        }
    }

    /// Ends what the ring is sending, and waits for that: the first operation of the queue is this
    /// side's again, unless all of it had left.
    pub(crate) fn cancel_uring_send(
        &mut self,
        queue: &mut VecDeque<QueuedOp>,
        host: &mut dyn EngineContext,
    ) {
        let (was, is_all) = self.take_uring_send(queue);
        self.complete_written(host);
        let has_left = match was {
            UringSend::Owned(..) => is_all,
            UringSend::Borrowed(_) => queue
                .front()
                .is_some_and(|first| first.bytes_sent == Some(host.payload(first.op).len())),
            UringSend::Idle | UringSend::AwaitingBuffer(_) => false,
        };
        if has_left && self.writer.is_open() {
            self.finish_first(queue, host);
        }
    }

    /// All of the first operation of the queue has been sent by the ring.
    fn finish_first(&mut self, queue: &mut VecDeque<QueuedOp>, host: &mut dyn EngineContext) {
        let end = self.writer.written();
        self.writer.end_frame();
        if let Some(QueuedOp {
            op,
            spec,
            bytes_sent: sent,
        }) = queue.pop_front()
        {
            self.response_bytes = 0;
            self.on_transmitted((op, spec), sent.unwrap_or(0), end, host);
        }
    }

    /// Likewise, whatever becomes of the operation. Returns what the ring had, and whether it has
    /// sent all that it was given to be kept.
    fn take_uring_send(&mut self, queue: &mut VecDeque<QueuedOp>) -> (UringSend, bool) {
        let Some(lane) = &mut self.uring_io else {
            return (UringSend::Idle, false);
        };
        let was = std::mem::replace(&mut lane.send_state, UringSend::Idle);
        let sent = was
            .op_id()
            .and_then(|ticket| lane.uring.lock().cancel_send(ticket));
        let is_all = sent.is_some_and(|sent| self.on_uring_sent(&sent, was, queue));
        (was, is_all)
    }

    /// The ring has sent, or not. Returns whether it has sent all that it was given to be kept.
    fn on_uring_sent(
        &mut self,
        sent: &SendResult,
        was: UringSend,
        queue: &mut VecDeque<QueuedOp>,
    ) -> bool {
        self.write_blocked = false;
        let count = sent.result.unwrap_or(0);
        let own = count.min(sent.owned.len());
        self.writer.restore_pending(&sent.owned[own..]);
        if let Some(QueuedOp {
            bytes_sent: Some(sent),
            ..
        }) = queue.front_mut()
        {
            *sent += count - own;
        }
        let UringSend::Owned(_, len) = was else {
            self.close_write_on_error(sent.result);
            return false;
        };
        match sent.result {
            Err(errno) if is_zero_copy_unavailable(errno) => self.disable_zero_copy(),
            result => self.close_write_on_error(result),
        }
        count == sent.owned.len() + len
    }

    /// Who has submitted a send may have ended meanwhile, and it with them. Everything else is the
    /// connection's end.
    fn close_write_on_error(&mut self, result: Result<usize, Errno>) {
        if !matches!(
            result,
            Ok(_) | Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN)
        ) {
            self.close_write();
        }
    }

    /// Nothing of it is in the ring any more, or will be heard of.
    pub(super) fn detach_from_uring(&mut self) {
        self.take_uring_send(&mut VecDeque::new());
        if let Some(lane) = self.uring_io.take() {
            let mut ring = lane.uring.lock();
            if let UringRecv::Active(ticket) | UringRecv::Stopping(ticket) = lane.recv_state {
                ring.detach(ticket);
                // What is queued goes with what is queued next, if not now.
                let _ = ring.submit();
            }
        }
    }
}
