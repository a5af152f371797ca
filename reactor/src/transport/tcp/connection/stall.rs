//! Messages that make no progress: whether their bytes cannot arrive because of this side.
//!
//! A rendezvous message needs read requests of this side, and their responses, which share the
//! stream with other messages. While this side holds the stream back, has not written the requests,
//! or has written more than the peer takes, the peer does not stall.

use super::{RxPhase, TcpConnection, TxPhase};

/// Number of checks in which the peer has to make progress after this side has delayed a message:
/// five seconds with a long progress timeout.
const CHECKS_AFTER_DELAY: u32 = 100;

/// What checks of arriving messages know about a connection.
#[derive(Debug, Default)]
pub(super) struct StallState {
    /// Number of checks that a message may still make no progress after this side has delayed it.
    checks_left: u32,
}

impl TcpConnection {
    /// Returns whether the peer is the cause that a message has made no progress for the progress
    /// timeout. Called at each check from then on. A message that this side has delayed has
    /// [`CHECKS_AFTER_DELAY`] more.
    pub(crate) fn has_stalled(&mut self) -> bool {
        if self.delays_messages() {
            self.stall.checks_left = CHECKS_AFTER_DELAY;
            return false;
        }
        let is_over = self.stall.checks_left == 0;
        self.stall.checks_left = self.stall.checks_left.saturating_sub(1);
        is_over
    }

    /// Returns whether bytes of messages cannot arrive because of this side: nothing is read, or
    /// read requests wait, in this process or in the kernel, with other bytes that the peer does
    /// not take.
    fn delays_messages(&self) -> bool {
        let is_sending = self.is_write_blocked() || self.is_uring_sending();
        let has_waiting_requests = self.reader.wants_rendezvous_read()
            || self.reader.awaits_rendezvous_response()
                && (is_sending || !self.writer.pending().is_empty());
        self.rx.phase() == RxPhase::Held
            || self.is_backlogged()
            || has_waiting_requests && self.tx.phase() == TxPhase::Open
    }
}
