//! Completions, and the ids of operations.

use fabric_core::buf::AnyBuf;
use fabric_core::transport::OpKey;
use rustix::io::Errno;

use super::buffers::LeasedBuffer;

/// The id of an operation: its user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId(pub(super) u64);

/// A completion of an operation.
#[derive(Debug)]
pub(crate) struct UringCompletion {
    /// The owner of the operation: the token of its connection.
    pub(crate) owner: u64,
    pub(crate) op_id: OpId,
    pub(crate) kind: CompletionKind,
    /// Whether this is the last completion of its operation.
    pub(crate) is_last: bool,
}

/// The kind of a completion.
#[derive(Debug)]
pub(crate) enum CompletionKind {
    /// Bytes were received.
    Received(LeasedBuffer),
    /// The peer has shut down its sending direction.
    Eof,
    /// A send has ended.
    Sent(SendResult),
    /// The kernel has released the buffer of a zero-copy send. `Sent` was reported before.
    BufferReleased(ReleasedBuffer),
    /// A receive has failed or was canceled.
    Failed(Errno),
    /// A timed operation has ended.
    Timed(TimedOutcome),
}

/// The end of a send.
#[derive(Debug)]
pub(crate) struct SendResult {
    /// The number of bytes sent, or the error.
    pub(crate) result: Result<usize, Errno>,
    /// The owned bytes of the message, also those that were sent.
    pub(crate) owned: Box<[u8]>,
}

/// The buffer of a zero-copy send.
#[derive(Debug)]
pub(crate) struct ReleasedBuffer {
    /// The operation to which the buffer belongs.
    pub(crate) op: OpKey,
    pub(crate) buf: AnyBuf,
    /// How the bytes were sent; `None` if no byte was sent.
    pub(crate) zero_copy: Option<ZeroCopyOutcome>,
}

/// How the bytes of a zero-copy send were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopyOutcome {
    /// The kernel sent the bytes in place.
    ZeroCopy,
    /// The kernel copied the bytes.
    Copied,
}

/// The outcome of a timed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedOutcome {
    /// The operation has completed or failed: the number of bytes, or the error.
    Completed(Result<usize, Errno>),
    /// The timeout has expired.
    TimedOut,
    /// The operation was canceled, or the thread that submitted it has exited.
    Interrupted,
}
