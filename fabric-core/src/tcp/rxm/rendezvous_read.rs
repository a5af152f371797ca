//! A rendezvous message that the receiver reads in pieces.

use crate::tcp::{RmaIovList, WireRmaIov};
use crate::transport::PartialId;

/// Maximum length of one read request, in bytes.
const MAX_READ_LEN: u64 = 512 << 10;
/// Maximum number of reads in flight on a connection. With two, the peer has the next request when
/// it finishes a response.
pub const MAX_READS_IN_FLIGHT: usize = 2;

/// A rendezvous message that is being read from its sender's memory.
#[derive(Debug)]
pub struct RendezvousRead {
    /// The message in the receive queue.
    pub partial: PartialId,
    /// Id of the message, assigned by its sender.
    pub message_id: u64,
    iovs: RmaIovList,
    /// Index of the remote range that is read next, and how much of it has been requested.
    next: (usize, u64),
    /// Bytes requested.
    requested: u64,
    /// Bytes received.
    received: u64,
    len: u64,
}

impl RendezvousRead {
    /// Returns the read of a message with this id and length, located at `iovs`.
    #[must_use]
    pub fn new(partial: PartialId, message_id: u64, iovs: RmaIovList, len: u64) -> Self {
        Self {
            partial,
            message_id,
            iovs,
            next: (0, 0),
            requested: 0,
            received: 0,
            len,
        }
    }

    /// Returns the next remote range to request; `None` when the whole message has been requested.
    pub fn next_read(&mut self) -> Option<WireRmaIov> {
        loop {
            let (index, from) = self.next;
            let iov = self.iovs.get(index)?;
            let len = (iov.len - from).min(MAX_READ_LEN);
            if len == 0 {
                self.next = (index + 1, 0);
                continue;
            }
            self.next.1 += len;
            self.requested += len;
            return Some(WireRmaIov {
                addr: iov.addr + from,
                len,
                key: iov.key,
            });
        }
    }

    /// Returns whether the whole message has been requested.
    #[must_use]
    pub fn is_fully_requested(&self) -> bool {
        self.requested == self.len
    }

    /// Accounts for `count` bytes received; returns whether the message is complete.
    ///
    /// # Panics
    /// When fewer bytes were requested.
    pub fn on_received(&mut self, count: u64) -> bool {
        assert!(
            count <= self.requested - self.received,
            "more bytes received than requested"
        );
        self.received += count;
        self.received == self.len
    }
}
