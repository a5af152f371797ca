//! Operations with several remote ranges (`fi_rma_iov`).
//!
//! The ranges are kept by the engine (`rma_iovs`), and the operation always goes to the queue. It
//! visits its ranges twice: first each is mapped, or its owner is asked for an access of length 0,
//! which checks it; then the bytes move. So everything that can be refused is refused before a byte
//! has moved. An operation with one range visits it once.

use fabric_core::transport::{EngineContext, TxOp};

use super::QueuedTx;

/// Position of an operation among its remote ranges.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IovCursor {
    /// Index of the range that the operation's spec holds now.
    index: usize,
    /// Bytes of the ranges before the current one.
    pub(super) bytes_before: usize,
    /// Whether all ranges have been checked.
    checked: bool,
    /// Bytes of which the peer has been notified.
    pub(super) bytes_notified: usize,
}

/// Returns the spec of an operation that starts: at the first of its ranges.
pub(crate) fn at_start(spec: &TxOp, engine: &dyn EngineContext) -> TxOp {
    let first = spec
        .rma_iov_id
        .and_then(|iov_id| engine.rma_iovs(iov_id).first().copied());
    TxOp {
        remote: first.or(spec.remote),
        ..*spec
    }
}

impl IovCursor {
    /// Returns whether the current range is only to be checked.
    pub(super) fn is_validating_ranges(&self, spec: &TxOp) -> bool {
        spec.rma_iov_id.is_some() && !self.checked
    }
}

impl QueuedTx {
    /// Returns the spec for the notification of this range: data comes with the last range.
    pub(super) fn notification_spec(&self, engine: &dyn EngineContext) -> TxOp {
        let is_last =
            |iov_id| self.cursor.checked && self.cursor.index + 1 == engine.rma_iovs(iov_id).len();
        let data = self
            .spec
            .data
            .filter(|_| self.spec.rma_iov_id.is_none_or(is_last));
        TxOp { data, ..self.spec }
    }

    /// Returns how many bytes the notification of this range reports. A notification with data
    /// covers all bytes that were not reported before.
    pub(super) fn bytes_to_notify(&self, spec: &TxOp) -> usize {
        let since = if spec.data.is_some() {
            self.cursor.bytes_notified
        } else {
            self.cursor.bytes_before
        };
        self.sent - since
    }

    /// Moves on to the next range, or completes the operation.
    pub(super) fn advance_or_finish(&mut self, engine: &dyn EngineContext) {
        let iovs = self
            .spec
            .rma_iov_id
            .map_or(&[][..], |iov_id| engine.rma_iovs(iov_id));
        self.cursor.bytes_before = self.sent;
        self.cursor.index += 1;
        if self.cursor.index >= iovs.len() {
            if self.cursor.checked || iovs.is_empty() {
                self.total = Some(self.sent);
                return;
            }
            self.cursor.checked = true;
            self.cursor.index = 0;
        }
        self.spec.remote = Some(iovs[self.cursor.index]);
    }
}
