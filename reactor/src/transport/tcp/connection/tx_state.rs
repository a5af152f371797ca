//! The state of the send side of a connection: what may still be sent, room in the socket, and
//! the share of responses.

use fabric_core::transport::Batching;

use super::limits::SCHEDULING_QUANTUM;

/// The send side of a connection.
#[derive(Debug)]
pub(super) struct TxState {
    phase: TxPhase,
    /// Whether the socket had no room at the last write.
    is_blocked: bool,
    batching: Batching,
    /// Whether something was sent since the last pass.
    has_sent: bool,
    /// Bytes of responses that were sent since bytes of a queued operation were last sent.
    response_bytes: usize,
}

/// What may still be sent on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxPhase {
    /// Operations and responses.
    Open,
    /// Only the pending bytes: a message that was partly sent will not be finished. The stream ends
    /// behind them.
    Aborting,
    /// Nothing. Data that the peer sent before may still be readable.
    Closed,
}

impl TxState {
    pub(super) fn new(batching: Batching) -> Self {
        Self {
            batching,
            phase: TxPhase::Open,
            is_blocked: false,
            has_sent: false,
            response_bytes: 0,
        }
    }

    pub(super) fn phase(&self) -> TxPhase {
        self.phase
    }

    /// Lets only the pending bytes be sent, unless the send side is closed.
    pub(super) fn abort(&mut self) {
        if self.phase == TxPhase::Open {
            self.phase = TxPhase::Aborting;
        }
    }

    /// Closes the send side, for good.
    pub(super) fn close(&mut self) {
        self.phase = TxPhase::Closed;
        self.is_blocked = false;
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Returns whether bytes may be written, and the socket may have room for them.
    pub(super) fn can_write(&self) -> bool {
        self.phase != TxPhase::Closed && !self.is_blocked
    }

    /// Sets whether the socket had no room at the last write. Returns whether the value has
    /// changed.
    pub(super) fn set_blocked(&mut self, is_blocked: bool) -> bool {
        std::mem::replace(&mut self.is_blocked, is_blocked) != is_blocked
    }

    /// Returns whether messages are batched until the next pass.
    pub(super) fn is_batching(&self) -> bool {
        match self.batching {
            Batching::Off => false,
            Batching::AfterFirst => self.has_sent,
            Batching::Always => true,
        }
    }

    /// Notes that a message was sent.
    pub(super) fn on_sent(&mut self) {
        self.has_sent = true;
    }

    /// Notes that a pass begins.
    pub(super) fn begin_pass(&mut self) {
        self.has_sent = false;
    }

    /// Notes that bytes of a queued operation were sent: responses have their quantum again.
    pub(super) fn on_operation_sent(&mut self) {
        self.response_bytes = 0;
    }

    /// Notes that bytes of responses were sent.
    pub(super) fn on_responses_sent(&mut self, bytes: usize) {
        self.response_bytes = self.response_bytes.saturating_add(bytes);
    }

    /// Returns how many bytes of responses may be sent before a queued operation.
    pub(super) fn response_quantum(&self) -> usize {
        SCHEDULING_QUANTUM.saturating_sub(self.response_bytes)
    }
}
