//! Collected messages: posted with FI_MORE, sent with one call.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::Outcome;
use fabric_core::transport::{EngineContext, OpKey};
use rustix::io::Errno;

use super::batch::{BATCH_LEN, DatagramBatch};

/// The operation of a collected message, and its length in bytes.
#[derive(Clone, Copy, Debug)]
struct Collected {
    op: OpKey,
    len: usize,
}

/// The messages that were collected and not sent.
#[derive(Default)]
pub(super) struct SendBatch {
    /// Allocated with the first message.
    batch: Option<(DatagramBatch, [Option<Collected>; BATCH_LEN])>,
    pending: Range<usize>,
}

impl SendBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending.end == BATCH_LEN
    }

    /// Adds a message, whose operation [`name`](Self::name) sets next; the batch must not be full.
    pub(super) fn push(&mut self, to: SocketAddr, payload: Payload<'_>) {
        let (batch, ops) = self
            .batch
            .get_or_insert_with(|| (DatagramBatch::new(), [None; BATCH_LEN]));
        batch.write(self.pending.end, to, payload);
        ops[self.pending.end] = None;
        self.pending.end += 1;
    }

    /// Sets the operation of the message that was added last.
    pub(super) fn name(&mut self, op: OpKey, len: usize) {
        if let Some((_, ops)) = &mut self.batch
            && let Some(last) = self.pending.clone().last()
        {
            ops[last] = Some(Collected { op, len });
        }
    }

    /// Sends the collected messages, and completes those that were sent; false when the socket had
    /// no room for some.
    pub(super) fn flush(&mut self, engine: &mut dyn EngineContext, socket: BorrowedFd<'_>) -> bool {
        let Some((batch, ops)) = &mut self.batch else {
            return true;
        };
        while !self.pending.is_empty() {
            let (count, error) = match batch.send(socket, self.pending.clone()) {
                Ok(count) => (count, None),
                Err(Errno::AGAIN) => return false,
                // The error is that of the first message.
                Err(errno) => (1, Some(Error::os("sendmmsg", errno.raw_os_error()))),
            };
            for _ in 0..count {
                let Some(Collected { op, len }) = self.pending.next().and_then(|at| ops[at].take())
                else {
                    continue;
                };
                match &error {
                    Some(error) => engine.complete(op, Outcome::failed(error.clone())),
                    None => engine.sent(op, len, None),
                }
            }
        }
        self.pending = 0..0;
        true
    }

    /// Fails the messages that were not sent, and drops them.
    pub(super) fn fail(&mut self, engine: &mut dyn EngineContext, error: &Error) {
        let Some((_, ops)) = &mut self.batch else {
            return;
        };
        for at in std::mem::take(&mut self.pending) {
            if let Some(Collected { op, .. }) = ops[at].take() {
                engine.complete(op, Outcome::failed(error.clone()));
            }
        }
    }
}
