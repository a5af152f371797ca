//! How the endpoints of a domain send long messages.

use super::cma::SingleCopyPolicy;
use super::loans::LoanPool;

/// The loan pool and the single-copy policy of a domain, which its endpoints send long messages
/// with.
#[derive(Clone, Debug)]
pub(super) struct TxSettings {
    /// The domain's chunks, which carry messages that are sent as loans.
    pub(super) loan_pool: LoanPool,
    /// Which messages the receiver copies directly, where the kernel permits it.
    pub(super) single_copy: SingleCopyPolicy,
}
