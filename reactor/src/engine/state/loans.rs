//! The tasks that wait for memory of loans.

use std::collections::VecDeque;
use std::sync::Arc;

use fabric_core::transport::{LoanAllocator, OpKey};

use super::domain_state::DomainState;
use super::ops::{OpPhase, OpState};

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
    pub(crate) fn enqueue_loan_waiter(&mut self, allocator: &Arc<dyn LoanAllocator>) -> OpKey {
        let key = self.ops.insert(OpState::wait(None, OpPhase::Waiting));
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
            let has_freed = loan_waiters.freed_before != Some(allocator.times_freed());
            if op.phase() == OpPhase::Waiting && has_freed {
                self.end_wait(first);
            }
            return;
        }
        allocator.set_awaited(false);
    }

    /// Wakes all that wait for memory, because the domain is closed.
    pub(crate) fn end_loan_waits(&mut self) {
        for key in std::mem::take(&mut self.loan_waiters.queue) {
            self.end_wait(key);
        }
        if let Some(allocator) = &self.loan_waiters.allocator {
            allocator.set_awaited(false);
        }
    }

    /// Waits again, as the first, after an attempt in vain.
    pub(crate) fn retry_loan_wait(&mut self, key: OpKey, freed_before: u64) {
        if let Some(op) = self.ops.get_mut(key) {
            op.wait_again();
        }
        self.loan_waiters.freed_before = Some(freed_before);
    }
}
