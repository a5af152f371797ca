//! Operations that have several places in the peer's memory.
//!
//! The spec of such an operation says where it is now. It goes through its places twice: first each
//! is checked, and mapped or known to be served by then; then the bytes move. So what can be
//! refused is refused before anything has moved. An operation with one place goes through it once.

use fabric_core::transport::{EngineContext, TxOp};

use super::QueuedTx;

/// How far an operation is among its places.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IovCursor {
    /// The place that its spec tells of, by number.
    index: usize,
    /// Bytes of the places before that.
    pub(super) bytes_before: usize,
    /// The places have been checked.
    checked: bool,
    /// Bytes of which the peer has been told.
    pub(super) bytes_notified: usize,
}

/// The spec of an operation that begins: at the first of its places.
pub(crate) fn at_start(spec: &TxOp, host: &dyn EngineContext) -> TxOp {
    let first = spec
        .rma_iov_id
        .and_then(|spread| host.rma_iovs(spread).first().copied());
    TxOp {
        remote: first.or(spec.remote),
        ..*spec
    }
}

impl IovCursor {
    /// Whether the place is only to be checked.
    pub(super) fn is_checking(&self, spec: &TxOp) -> bool {
        spec.rma_iov_id.is_some() && !self.checked
    }
}

impl QueuedTx {
    /// What the peer is told at this place: data comes with the last.
    pub(super) fn notification(&self, host: &dyn EngineContext) -> TxOp {
        let is_last =
            |spread| self.cursor.checked && self.cursor.index + 1 == host.rma_iovs(spread).len();
        let data = self
            .spec
            .data
            .filter(|_| self.spec.rma_iov_id.is_none_or(is_last));
        TxOp { data, ..self.spec }
    }

    /// How many bytes the peer is told of at this place. What comes with data stands for all it was
    /// not told of before.
    pub(super) fn bytes_to_notify(&self, spec: &TxOp) -> usize {
        let since = if spec.data.is_some() {
            self.cursor.bytes_notified
        } else {
            self.cursor.bytes_before
        };
        self.sent - since
    }

    /// This place was dealt with: goes on to the next, or ends.
    pub(super) fn next_iov(&mut self, host: &dyn EngineContext) {
        let places = self
            .spec
            .rma_iov_id
            .map_or(&[][..], |spread| host.rma_iovs(spread));
        self.cursor.bytes_before = self.sent;
        self.cursor.index += 1;
        if self.cursor.index >= places.len() {
            if self.cursor.checked || places.is_empty() {
                self.total = Some(self.sent);
                return;
            }
            self.cursor.checked = true;
            self.cursor.index = 0;
        }
        self.spec.remote = Some(places[self.cursor.index]);
    }
}
