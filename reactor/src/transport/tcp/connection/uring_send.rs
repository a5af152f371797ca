//! What io_uring sends for a connection.

use crate::sys::uring::OpId;

/// The send of a connection in io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UringSend {
    Idle,
    /// The pending bytes, and the rest of the first operation of the queue in its own buffer.
    Borrowed(OpId),
    /// The pending bytes, and all of the first operation (its length), whose buffer io_uring
    /// owns.
    Owned(OpId, usize),
    /// The send has ended without sending all of the first operation, whose buffer io_uring still
    /// owns.
    AwaitingBuffer(OpId),
}
