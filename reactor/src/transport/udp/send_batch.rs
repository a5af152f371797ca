//! Batched messages: posted with FI_MORE, and sent with one `sendmmsg` by a post without FI_MORE, a
//! flush, a full batch or a progress pass.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::sys::datagrams::{BATCH_LEN, DatagramBatch};
use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::Outcome;
use fabric_core::transport::{EndpointContext, EngineContext, OpKey};
use rustix::io::Errno;

/// The operation of a batched message, and its length in bytes.
#[derive(Clone, Copy, Debug)]
struct BatchedOp {
    op: OpKey,
    len: usize,
}

/// Copies of messages for the next `sendmmsg`, with their operations.
#[derive(Default)]
pub(super) struct SendBatch {
    /// Allocated with the first message.
    batch: Option<(DatagramBatch, [Option<BatchedOp>; BATCH_LEN])>,
    /// Indices of the messages in `batch` that are not sent yet.
    pending: Range<usize>,
}

impl SendBatch {
    /// Returns the number of unsent messages.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether no message is unsent.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns whether no message can be added before all messages were sent.
    pub(super) fn is_full(&self) -> bool {
        self.pending.end == BATCH_LEN
    }

    /// Copies a message into the batch, which must not be full. The caller sets the operation of
    /// the message with [`set_last_op`](Self::set_last_op).
    pub(super) fn push(&mut self, to: SocketAddr, payload: Payload<'_>) {
        let (batch, ops) = self
            .batch
            .get_or_insert_with(|| (DatagramBatch::new(), [None; BATCH_LEN]));
        batch.write(self.pending.end, to, payload);
        ops[self.pending.end] = None;
        self.pending.end += 1;
    }

    /// Sets the operation of the message that was added last, and the length of the message.
    pub(super) fn set_last_op(&mut self, op: OpKey, len: usize) {
        if let Some((_, ops)) = &mut self.batch
            && let Some(last) = self.pending.clone().last()
        {
            ops[last] = Some(BatchedOp { op, len });
        }
    }

    /// Sends the messages, and completes their operations. Returns false if messages are left
    /// because the socket had no room (EAGAIN).
    pub(super) fn flush(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        socket: BorrowedFd<'_>,
    ) -> bool {
        let Some((batch, ops)) = &mut self.batch else {
            return true;
        };
        while !self.pending.is_empty() {
            let (count, error) = match batch.send(socket, self.pending.clone()) {
                Ok(count) => (count, None),
                Err(Errno::AGAIN) => return false,
                // Only the first message has failed.
                Err(errno) => (1, Some(Error::os("sendmmsg", errno.raw_os_error()))),
            };
            for _ in 0..count {
                let Some(BatchedOp { op, len }) =
                    self.pending.next().and_then(|index| ops[index].take())
                else {
                    continue;
                };
                match &error {
                    Some(error) => ctx.complete(op, Outcome::failed(error.clone())),
                    None => ctx.complete_send(op, len, None),
                }
            }
        }
        self.pending = 0..0;
        true
    }

    /// Removes the unsent messages and fails their operations.
    pub(super) fn fail(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        let Some((_, ops)) = &mut self.batch else {
            return;
        };
        for index in std::mem::take(&mut self.pending) {
            if let Some(BatchedOp { op, .. }) = ops[index].take() {
                ctx.complete(op, Outcome::failed(error.clone()));
            }
        }
    }
}
