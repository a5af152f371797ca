//! One-sided operations with several remote ranges (`fi_rma_iov`).
//!
//! The engine keeps the ranges (`rma_iovs`), and such an operation always goes to the queue. The
//! operation visits its ranges twice. In the first visit each range is checked: mapped and checked
//! here, or checked by an owner that serves the region, which gets a request of length 0. In the
//! second visit the bytes move. So an operation that is refused has not moved any bytes. An
//! operation with one range visits that range once.

use fabric_core::transport::{EndpointContext, EngineContext, TxOp};

use super::QueuedTx;

/// Position of an operation among its remote ranges.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IovCursor {
    /// Index of the current range, which is in `QueuedTx::tx_op.remote`.
    index: usize,
    /// Bytes of the ranges before the current one.
    pub(super) bytes_before: usize,
    /// Whether all ranges have been checked.
    ranges_checked: bool,
    /// Bytes whose access the peer was notified of.
    pub(super) bytes_notified: usize,
}

/// Returns an operation whose current remote range is the first.
pub(crate) fn at_start(tx_op: &TxOp, ctx: &EndpointContext<'_, impl EngineContext>) -> TxOp {
    let first = tx_op
        .rma_iov_id
        .and_then(|iov_id| ctx.rma_iovs(iov_id).first().copied());
    TxOp {
        remote: first.or(tx_op.remote),
        ..*tx_op
    }
}

impl IovCursor {
    /// Returns whether the operation is in its first visit, which only checks its ranges.
    pub(super) fn is_checking_ranges(&self, tx_op: &TxOp) -> bool {
        tx_op.rma_iov_id.is_some() && !self.ranges_checked
    }
}

impl QueuedTx {
    /// Returns the operation for the current range. The completion data stays with the last range,
    /// so that the peer is notified of the data once.
    pub(super) fn op_for_range(&self, ctx: &EndpointContext<'_, impl EngineContext>) -> TxOp {
        let is_last = |iov_id| {
            self.cursor.ranges_checked && self.cursor.index + 1 == ctx.rma_iovs(iov_id).len()
        };
        let data = self
            .tx_op
            .data
            .filter(|_| self.tx_op.rma_iov_id.is_none_or(is_last));
        TxOp { data, ..self.tx_op }
    }

    /// Returns the number of bytes that the notification of the current range reports. A
    /// notification with completion data reports all bytes that earlier notifications have not.
    pub(super) fn bytes_to_notify(&self, tx_op: &TxOp) -> usize {
        let already_reported = if tx_op.data.is_some() {
            self.cursor.bytes_notified
        } else {
            self.cursor.bytes_before
        };
        self.sent - already_reported
    }

    /// Moves to the next range; from the last range to the second visit, or, by setting `total`, to
    /// the end of the operation.
    pub(super) fn advance_or_finish(&mut self, ctx: &EndpointContext<'_, impl EngineContext>) {
        let iovs = self
            .tx_op
            .rma_iov_id
            .map_or(&[][..], |iov_id| ctx.rma_iovs(iov_id));
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
