//! Messages that leave together: collected while more follows, and sent with one call.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use fabric_core::buf::Payload;
use fabric_core::event::EventKind;
use fabric_core::provider::{EpId, Host};
use fabric_core::{Error, FiAddr};
use rustix::io::Errno;

use super::batch::{BATCH, Batch};

/// What was collected and has not left.
#[derive(Default)]
pub(super) struct Outbox {
    /// Made with the first of them.
    batch: Option<(Batch, [Option<FiAddr>; BATCH])>,
    waiting: Range<usize>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.end == BATCH
    }

    /// Adds a message; there is room unless it is full.
    pub(super) fn put(&mut self, (peer, to): (FiAddr, SocketAddr), payload: Payload<'_>) {
        let (batch, peers) = self
            .batch
            .get_or_insert_with(|| (Batch::new(), [None; BATCH]));
        batch.put(self.waiting.end, to, payload);
        peers[self.waiting.end] = Some(peer);
        self.waiting.end += 1;
    }

    /// Sends what was collected; false when there was no room for some of it. Their senders have
    /// gone on: that one could not be sent is an event.
    pub(super) fn flush(&mut self, host: &mut dyn Host, ep: EpId, socket: BorrowedFd<'_>) -> bool {
        let Some((batch, peers)) = &mut self.batch else {
            return true;
        };
        while !self.waiting.is_empty() {
            match batch.send(socket, self.waiting.clone()) {
                Ok(count) => self.waiting.start += count,
                Err(Errno::AGAIN) => return false,
                Err(errno) => {
                    let error = Error::os("sendmmsg", errno.raw_os_error());
                    host.event(
                        ep,
                        EventKind::OperationFailed {
                            peer: peers[self.waiting.start],
                            error,
                        },
                    );
                    self.waiting.start += 1;
                }
            }
        }
        self.waiting = 0..0;
        true
    }
}
