//! Loans of a domain: allocation, and waiting for memory until peers return loans.
//!
//! Waiting tasks are in a queue. The first task tries again whenever memory has become free, and
//! the others wait behind it, so that small loans do not starve a large one. While a task waits,
//! `try_loan` is refused, and peers ring the doorbell when they return a loan.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::buf::{AnyBuf, Loan};
use fabric_core::completion::OpKind;
use fabric_core::transport::{EpId, LoanAllocator, OpKey};
use fabric_core::{Error, Result};

use super::domain::DomainHandle;
use super::domain_state::DomainState;
use super::ops::{CompletionTarget, OpPhase, OpState};
use super::progress::EngineState;

/// The endpoint of a waiting operation: memory belongs to the domain.
const NO_ENDPOINT: EpId = EpId(u32::MAX);

/// The tasks that wait for memory, in order.
#[derive(Default)]
pub(crate) struct LoanWaiters {
    /// The operations that complete when it is their turn. Operations that were dropped are removed
    /// later.
    queue: VecDeque<OpKey>,
    /// How many times memory had become free before the last attempt of the first one; `None`
    /// before its first attempt.
    freed_before: Option<u64>,
    allocator: Option<Arc<dyn LoanAllocator>>,
}

impl std::fmt::Debug for LoanWaiters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoanWaiters")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl LoanWaiters {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl DomainState {
    /// Joins the queue for memory.
    fn enqueue_loan_waiter(&mut self, allocator: &Arc<dyn LoanAllocator>) -> OpKey {
        let (target, none) = (CompletionTarget::Future, AnyBuf::None);
        let mut op = OpState::new(NO_ENDPOINT, OpKind::Send, target, none);
        op.no_transfer = true;
        op.phase = OpPhase::Waiting;
        let key = self.ops.insert(op);
        allocator.set_awaited(true);
        self.loan_waiters.allocator = Some(allocator.clone());
        self.loan_waiters.queue.push_back(key);
        key
    }

    /// Lets the first one that waits for memory try, if some has become free since it tried.
    #[cold]
    pub(crate) fn wake_loan_waiter(&mut self) {
        let Self {
            loan_waiters, ops, ..
        } = self;
        let Some(allocator) = &loan_waiters.allocator else {
            return;
        };
        while let Some(&first) = loan_waiters.queue.front() {
            let Some(op) = ops.get(first) else {
                loan_waiters.queue.pop_front();
                loan_waiters.freed_before = None;
                continue;
            };
            let has_news = loan_waiters.freed_before != Some(allocator.times_freed());
            if op.phase == OpPhase::Waiting && has_news {
                self.complete_future(first);
            }
            return;
        }
        allocator.set_awaited(false);
    }

    /// Wakes all that wait for memory, because the domain is closed.
    fn end_loan_waits(&mut self) {
        for key in std::mem::take(&mut self.loan_waiters.queue) {
            self.complete_future(key);
        }
        if let Some(allocator) = &self.loan_waiters.allocator {
            allocator.set_awaited(false);
        }
    }

    /// Waits again, as the first, after an attempt in vain.
    fn retry_loan_wait(&mut self, key: OpKey, freed_before: u64) {
        if let Some(op) = self.ops.get_mut(key) {
            op.phase = OpPhase::Waiting;
        }
        self.loan_waiters.freed_before = Some(freed_before);
    }
}

impl EngineState {
    /// Makes passes poll the endpoints whose peers hold loans, because a task waits for memory.
    fn watch_loans(&mut self) {
        let ids: Vec<_> = self
            .domain
            .endpoints
            .iter()
            .map(|(id, _)| EpId(id))
            .collect();
        for ep in ids {
            // A shared receive context has no loans.
            let _ = self.with_transport(ep, |transport, _| {
                if let Some(loans) = transport.sent_loans() {
                    loans.watch();
                }
            });
        }
    }
}

impl DomainHandle {
    /// Sets how many bytes of loans may exist at a time, for a transport that has memory for loans.
    pub fn set_loan_limit(&self, bytes: usize) {
        if let Some(allocator) = self.loan_allocator() {
            allocator.set_limit(bytes);
        }
    }

    /// Allocates memory that can be written and then lent to a peer, without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when the limit is reached, or somebody waits for memory;
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
        for endpoint in locked.domain.endpoints.iter_mut() {
            let transport = endpoint.transport.as_mut();
            if let Some(loans) = transport.and_then(|transport| transport.sent_loans()) {
                loans.collect();
            }
        }
        drop(locked);
        allocator
            .take_free(len)
            .map_or_else(|| allocator.allocate(len), Ok)
    }

    /// Joins the queue for memory of loans. [`DomainHandle::poll_loan`] waits for it, and
    /// [`DomainHandle::detach`] leaves the queue. `None` if the transport has no memory for loans.
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
    /// to be [detached](DomainHandle::detach).
    ///
    /// # Errors
    /// Those of [`DomainHandle::try_loan`], but for [`Error::WouldBlock`].
    pub fn poll_loan(&self, key: OpKey, len: usize, cx: &mut Context<'_>) -> Poll<Result<Loan>> {
        let Some(allocator) = self.loan_allocator() else {
            return Poll::Ready(Loan::from_heap(len));
        };
        loop {
            ready!(self.poll_permit(key, cx))?;
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
