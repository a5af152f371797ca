//! Waiting for memory of loans until peers return some.

use std::future::poll_fn;
use std::task::ready;

use fabric_core::buf::Loan;
use fabric_core::transport::OpKey;
use fabric_core::{Error, Result};
use tokio::task::coop;

use crate::domain::DomainCore;

/// A place in the domain's queue for memory of loans. Dropping this leaves the queue.
struct LoanWait<'a> {
    domain: &'a DomainCore,
    key: OpKey,
}

impl Drop for LoanWait<'_> {
    fn drop(&mut self) {
        self.domain.core.detach(self.key);
    }
}

/// Allocates memory for a loan of `len` bytes. While the domain's limit is reached or other tasks
/// wait, waits behind them.
pub(crate) async fn loan(domain: &DomainCore, len: usize) -> Result<Loan> {
    match domain.core.try_loan(len) {
        Err(Error::WouldBlock(_)) => {}
        result => return result,
    }
    let Some(key) = domain.core.enqueue_loan() else {
        // The transport has no memory for loans, and so no queue.
        return domain.core.try_loan(len);
    };
    let wait = LoanWait { domain, key };
    poll_fn(|cx| {
        let budget = ready!(coop::poll_proceed(cx));
        let loan = ready!(wait.domain.core.poll_loan(wait.key, len, cx));
        budget.made_progress();
        loan.into()
    })
    .await
}
