//! What goes past the lock of a domain: it is called without it, by anybody at any time.

use crate::buf::{Loan, Payload};
use crate::error::Result;

use super::TxOp;

/// What became of something that was tried without the domain's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPathResult {
    /// It is done.
    Done,
    /// Likewise, and it is time to look at the domain's descriptors.
    SentPollDue,
    /// It is not, and the domain is to be asked.
    WouldBlock,
}

/// Where loans come from. Called without the lock of the domain, since fresh memory takes its time.
pub trait LoanAllocator: Send + Sync {
    /// Memory that is there, of this many bytes or somewhat more.
    fn take_free(&self, len: usize) -> Option<Loan>;

    /// Fresh memory.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) when too much is lent; what the operating system
    /// refuses.
    fn allocate(&self, len: usize) -> Result<Loan>;
}

/// The way to the peers of one endpoint for what can be done there at once. Called without the lock
/// of the domain, by anybody at any time; it counts what it does, for
/// [`TransportStats`](crate::stats::ProviderStats).
pub trait FastPath: Send + Sync {
    /// As [`TransportDomain::try_send`](super::TransportDomain::try_send), and keeps to its order:
    /// never before what was posted before it.
    fn try_send(&self, spec: &TxOp, payload: Payload<'_>) -> FastPathResult;

    /// As [`TransportDomain::try_atomic`](super::TransportDomain::try_atomic).
    fn try_atomic(&self, spec: &TxOp, operands: &[u8], result: &mut [u8]) -> FastPathResult;

    /// From now on, until this is taken back, somebody waits whom nothing must overtake. Called
    /// with the lock.
    fn set_blocked(&self, held: bool);
}
