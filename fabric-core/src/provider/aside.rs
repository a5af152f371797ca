//! What goes past the lock of a domain: it is called without it, by anybody at any time.

use crate::buf::{Loan, Payload};
use crate::error::Result;

use super::SendSpec;

/// What became of something that was tried without the domain's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// It is done.
    Done,
    /// Likewise, and it is time to look at the domain's descriptors.
    Due,
    /// It is not, and the domain is to be asked.
    No,
}

/// Where loans come from. Called without the lock of the domain, since fresh memory takes its time.
pub trait Lender: Send + Sync {
    /// Memory that is there, of this many bytes or somewhat more.
    fn reuse(&self, len: usize) -> Option<Loan>;

    /// Fresh memory.
    ///
    /// # Errors
    /// [`Error::Again`](crate::Error::Again) when too much is lent; what the operating system
    /// refuses.
    fn grow(&self, len: usize) -> Result<Loan>;
}

/// The way to the peers of one endpoint for what can be done there at once. Called without the lock
/// of the domain, by anybody at any time; it counts what it does, for
/// [`ProviderStats`](crate::stats::ProviderStats).
pub trait Express: Send + Sync {
    /// As [`ProviderDomain::send_now`](super::ProviderDomain::send_now), and keeps to its order:
    /// never before what was posted before it.
    fn send_now(&self, spec: &SendSpec, payload: Payload<'_>) -> AtOnce;

    /// As [`ProviderDomain::atomic_now`](super::ProviderDomain::atomic_now).
    fn atomic_now(&self, spec: &SendSpec, operands: &[u8], result: &mut [u8]) -> AtOnce;

    /// From now on, until this is taken back, somebody waits whom nothing must overtake. Called
    /// with the lock.
    fn hold(&self, held: bool);
}
