//! Operations in the transmit queue of a peer.

use fabric_core::transport::{OpKey, TxOp};

/// An operation in the transmit queue of a peer.
#[derive(Debug)]
pub(crate) struct QueuedTxOp {
    pub(crate) op: OpKey,
    pub(crate) tx_op: TxOp,
    /// Payload bytes that were sent; `None` when sending has not begun.
    pub(crate) bytes_sent: Option<usize>,
}
