//! Operations that bypass the lock of a domain: called without it, from any thread at any time.

use crate::address::FiAddr;
use crate::buf::{Loan, Payload};
use crate::completion::OpKind;
use crate::error::{Error, Result};

use super::{RmaIov, TxOp};

/// Outcome of an attempt without the domain's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPathResult {
    /// The operation is done.
    Done,
    /// The operation is done, and the domain's descriptors are due to be polled.
    SentPollDue,
    /// The operation was not done; it must go through the domain.
    WouldBlock,
}

/// Allocator of loans. Called without the lock of the domain, because fresh memory takes time.
pub trait LoanAllocator: Send + Sync {
    /// Takes free memory of `len` bytes or slightly more.
    fn take_free(&self, len: usize) -> Option<Loan>;

    /// Allocates fresh memory.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) when the limit of loans is reached;
    /// [`Error::TooLong`](crate::Error::TooLong) when the limit is shorter than the loan; the error
    /// of the operating system.
    fn allocate(&self, len: usize) -> Result<Loan>;

    /// Sets the limit of the bytes that are held by the program, loaned to peers, or free for the
    /// next loan.
    fn set_limit(&self, bytes: usize);

    /// Returns how many times memory has become free.
    fn times_freed(&self) -> u64;

    /// Sets whether a task waits for memory. While one waits, memory that becomes free outside a
    /// pass of this domain wakes the wait set.
    fn set_awaited(&self, awaited: bool);

    /// Returns whether a task waits for memory.
    fn is_awaited(&self) -> bool;

    /// Returns the error of an allocation that would have to wait, with the bytes in use and the
    /// limit.
    fn would_block(&self) -> Error;
}

/// Sends inline to the peers of one endpoint. The methods are called without the lock of the
/// domain, from any thread at any time; they count their operations for
/// [`EndpointStats`](crate::stats::EndpointStats).
pub trait FastPath: Send + Sync {
    /// Sends as [`TransportEndpoint::try_send`](super::TransportEndpoint::try_send) does, and keeps
    /// the posting order: no message overtakes an operation that was posted earlier.
    fn try_send(&self, tx_op: &TxOp, payload: Payload<'_>) -> FastPathResult;

    /// Sends a [plain](TxOp::is_plain) message as [`try_send`](Self::try_send) does.
    fn try_send_plain(&self, peer: FiAddr, bytes: &[u8]) -> FastPathResult {
        let tx_op = TxOp::new(OpKind::Send, peer);
        self.try_send(&tx_op, Payload::Contiguous(bytes))
    }

    /// Writes bytes without completion data and `FI_FENCE` to one range of this length, as
    /// [`try_send`](Self::try_send) does.
    fn try_write_plain(&self, peer: FiAddr, remote: &RmaIov, bytes: &[u8]) -> FastPathResult {
        let tx_op = TxOp::one_sided(OpKind::Write, peer, *remote);
        self.try_send(&tx_op, Payload::Contiguous(bytes))
    }

    /// Executes as [`TransportEndpoint::try_atomic`](super::TransportEndpoint::try_atomic) does.
    fn try_atomic(&self, tx_op: &TxOp, operands: &[u8], result: &mut [u8]) -> FastPathResult;
}

/// A fast path as its engine has it.
pub trait BlockableFastPath: FastPath {
    /// Blocks or unblocks the fast path: while operations are queued, no other may overtake them.
    /// Called with the domain's lock held.
    fn set_blocked(&self, blocked: bool);
}
