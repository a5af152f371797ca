//! Messages that leave together: collected while more follows, and sent with one call.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::Outcome;
use fabric_core::provider::{Host, OpKey};
use rustix::io::Errno;

use super::batch::{BATCH, Batch};

/// The operation of a message that was collected, and its length.
#[derive(Clone, Copy, Debug)]
struct Collected {
    op: OpKey,
    len: usize,
}

/// What was collected and has not left.
#[derive(Default)]
pub(super) struct Outbox {
    /// Made with the first of them.
    batch: Option<(Batch, [Option<Collected>; BATCH])>,
    waiting: Range<usize>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.end == BATCH
    }

    /// Adds a message; there is room unless it is full. Its operation is [named](Self::name) next.
    pub(super) fn put(&mut self, to: SocketAddr, payload: Payload<'_>) {
        let (batch, ops) = self
            .batch
            .get_or_insert_with(|| (Batch::new(), [None; BATCH]));
        batch.put(self.waiting.end, to, payload);
        ops[self.waiting.end] = None;
        self.waiting.end += 1;
    }

    /// This is the operation of the message that was added last.
    pub(super) fn name(&mut self, op: OpKey, len: usize) {
        if let Some((_, ops)) = &mut self.batch
            && let Some(last) = self.waiting.clone().last()
        {
            ops[last] = Some(Collected { op, len });
        }
    }

    /// Sends what was collected, and completes what has left; false when there was no room for some
    /// of it.
    pub(super) fn flush(&mut self, host: &mut dyn Host, socket: BorrowedFd<'_>) -> bool {
        let Some((batch, ops)) = &mut self.batch else {
            return true;
        };
        while !self.waiting.is_empty() {
            let (count, error) = match batch.send(socket, self.waiting.clone()) {
                Ok(count) => (count, None),
                Err(Errno::AGAIN) => return false,
                // It is that of the first of them.
                Err(errno) => (1, Some(Error::os("sendmmsg", errno.raw_os_error()))),
            };
            for _ in 0..count {
                let Some(Collected { op, len }) = self.waiting.next().and_then(|at| ops[at].take())
                else {
                    continue;
                };
                match &error {
                    Some(error) => host.complete(op, Outcome::failed(error.clone())),
                    None => host.sent(op, len, None),
                }
            }
        }
        self.waiting = 0..0;
        true
    }

    /// What has not left ends with this error, and does not leave.
    pub(super) fn fail(&mut self, host: &mut dyn Host, error: &Error) {
        let Some((_, ops)) = &mut self.batch else {
            return;
        };
        for at in std::mem::take(&mut self.waiting) {
            if let Some(Collected { op, .. }) = ops[at].take() {
                host.complete(op, Outcome::failed(error.clone()));
            }
        }
    }
}
