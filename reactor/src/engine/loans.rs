//! Loans of a domain: allocation, and waiting for memory until peers return loans.
//!
//! Waiting tasks are in a queue. The first task tries again whenever memory has become free, and
//! the others wait behind it, so that small loans do not starve a large one. While a task waits,
//! `try_loan` is refused, and peers ring the doorbell when they return a loan.

use std::task::{Context, Poll, ready};

use fabric_core::buf::Loan;
use fabric_core::transport::{LoanAllocator, OpKey};
use fabric_core::{Error, Result};

use super::domain::DomainHandle;
use super::progress::EngineState;

impl EngineState {
    /// Makes passes poll the endpoints whose peers hold loans, because a task waits for memory.
    fn watch_loans(&mut self) {
        let endpoints = self.endpoints.transports_mut();
        let watching =
            endpoints.filter_map(|(ep, transport)| transport.sent_loans()?.watch().then_some(ep));
        for ep in watching.collect::<Vec<_>>() {
            self.endpoints.activate(ep);
        }
    }
}

impl DomainHandle {
    /// Allocates memory that can be written and then lent to a peer, without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when the limit is reached, or a task waits for memory;
    /// [`Error::TooLong`] when the limit is shorter than the loan; what the operating system
    /// refuses.
    pub fn try_loan(&self, len: usize) -> Result<Loan> {
        let Some(allocator) = self.loan_allocator() else {
            return Loan::from_heap(len);
        };
        if allocator.is_awaited() {
            return Err(allocator.would_block());
        }
        self.take_loan(&**allocator, len)
    }

    fn take_loan(&self, allocator: &dyn LoanAllocator, len: usize) -> Result<Loan> {
        if let Some(loan) = allocator.take_free(len) {
            return Ok(loan);
        }
        let mut locked = self.engine().lock();
        for (_, transport) in locked.endpoints.transports_mut() {
            if let Some(loans) = transport.sent_loans() {
                loans.collect();
            }
        }
        drop(locked);
        allocator
            .take_free(len)
            .map_or_else(|| allocator.allocate(len), Ok)
    }

    /// Joins the queue for memory of loans. [`DomainHandle::poll_loan`] waits for it, and
    /// [`DomainHandle::drop_future`] leaves the queue. `None` if the transport has no memory for
    /// loans.
    #[must_use]
    pub fn enqueue_loan(&self) -> Option<OpKey> {
        let allocator = self.loan_allocator()?;
        Some(self.with_engine(|locked| {
            let key = locked.domain.enqueue_loan_waiter(allocator);
            locked.watch_loans();
            key
        }))
    }

    /// Wakes the tasks that wait for memory of loans, because the domain is closed.
    pub fn end_loan_waits(&self) {
        self.with_engine(|locked| locked.domain.end_loan_waits());
    }

    /// Drives the domain until there is memory for a loan of `len` bytes. The operation still has
    /// to be [detached](DomainHandle::drop_future).
    ///
    /// # Errors
    /// Those of [`DomainHandle::try_loan`], but for [`Error::WouldBlock`].
    pub fn poll_loan(&self, key: OpKey, len: usize, cx: &mut Context<'_>) -> Poll<Result<Loan>> {
        let Some(allocator) = self.loan_allocator() else {
            return Poll::Ready(Loan::from_heap(len));
        };
        loop {
            ready!(self.poll_wait(key, cx))?;
            let freed_before = allocator.times_freed();
            match self.take_loan(&**allocator, len) {
                Err(Error::WouldBlock(_)) => self.with_engine(|locked| {
                    locked.domain.retry_loan_wait(key, freed_before);
                    locked.watch_loans();
                }),
                result => return Poll::Ready(result),
            }
        }
    }
}
