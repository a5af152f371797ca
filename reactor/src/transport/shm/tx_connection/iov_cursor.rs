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
    /// Index of the range that `remote` of the operation holds now.
    index: usize,
    /// Bytes of the ranges before the current one.
    pub(super) bytes_before: usize,
    /// Whether all ranges have been checked.
    ranges_checked: bool,
    /// Bytes of which the peer has been notified.
    pub(super) bytes_notified: usize,
}

/// Returns an operation with its first remote range, at which it starts.
pub(crate) fn at_start(tx_op: &TxOp, engine: &impl EngineContext) -> TxOp {
    let first = tx_op
        .rma_iov_id
        .and_then(|iov_id| engine.rma_iovs(iov_id).first().copied());
    TxOp {
        remote: first.or(tx_op.remote),
        ..*tx_op
    }
}

impl IovCursor {
    /// Returns whether the current range is only to be checked.
    pub(super) fn is_checking_ranges(&self, tx_op: &TxOp) -> bool {
        tx_op.rma_iov_id.is_some() && !self.ranges_checked
    }
}

impl QueuedTx {
    /// Returns the operation for the current range. Only that of the last range has the data, with
    /// which the peer is notified.
    pub(super) fn op_for_range(&self, engine: &impl EngineContext) -> TxOp {
        let is_last = |iov_id| {
            self.cursor.ranges_checked && self.cursor.index + 1 == engine.rma_iovs(iov_id).len()
        };
        let data = self
            .tx_op
            .data
            .filter(|_| self.tx_op.rma_iov_id.is_none_or(is_last));
        TxOp { data, ..self.tx_op }
    }

    /// Returns how many bytes the notification of this range reports. A notification with data
    /// covers all bytes that were not reported before.
    pub(super) fn bytes_to_notify(&self, tx_op: &TxOp) -> usize {
        let since = if tx_op.data.is_some() {
            self.cursor.bytes_notified
        } else {
            self.cursor.bytes_before
        };
        self.sent - since
    }

    /// Moves on to the next range, or completes the operation.
    pub(super) fn advance_or_finish(&mut self, engine: &impl EngineContext) {
        let iovs = self
            .tx_op
            .rma_iov_id
            .map_or(&[][..], |iov_id| engine.rma_iovs(iov_id));
        self.cursor.bytes_before = self.sent;
        self.cursor.index += 1;
        if self.cursor.index >= iovs.len() {
            if self.cursor.ranges_checked || iovs.is_empty() {
                self.total = Some(self.sent);
                return;
            }
            self.cursor.ranges_checked = true;
            self.cursor.index = 0;
        }
        self.tx_op.remote = Some(iovs[self.cursor.index]);
    }
}
