//! Updates that an engine has not applied: of other threads, and of drops beside another use.

use std::collections::VecDeque;

use fabric_core::transport::OpKey;
use fabric_core::{Address, FiAddr};

use super::bindings::AvId;
use crate::sys::sync::{AtomicBool, Mutex, Ordering, lock};

/// A change that an engine applies when it is locked next.
#[derive(Debug)]
pub(crate) enum Update {
    /// Insert this address, which gets this handle, into the copy of a vector.
    InsertAddress(AvId, FiAddr, Address),
    /// Remove a handle from the copy of a vector.
    RemoveAddress(AvId, FiAddr),
    /// Close the copy of a vector.
    CloseAv(AvId),
    /// A region was closed or unlocked, for which accesses may wait.
    RegionChanged,
    /// The future of an operation was dropped.
    DropFuture {
        key: OpKey,
        /// Whether an operation that has not begun is canceled.
        cancels: bool,
    },
    /// A permit was dropped.
    DropPermit {
        key: OpKey,
        /// Whether a posted operation has taken over the credit.
        credit_used: bool,
    },
}

/// The updates that an engine has not applied.
#[derive(Debug, Default)]
pub(crate) struct UpdateQueue {
    updates: Mutex<VecDeque<Update>>,
    /// Whether there are updates. Written under the lock of `updates`.
    has_updates: AtomicBool,
}

impl UpdateQueue {
    pub(crate) fn push(&self, update: Update) {
        let mut updates = lock(&self.updates);
        updates.push_back(update);
        self.has_updates.store(true, Ordering::Relaxed);
    }

    /// Returns whether there are updates. An update that was pushed before something that this
    /// thread has synchronized with is seen.
    #[inline]
    pub(crate) fn has_updates(&self) -> bool {
        self.has_updates.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> VecDeque<Update> {
        let mut updates = lock(&self.updates);
        self.has_updates.store(false, Ordering::Relaxed);
        std::mem::take(&mut *updates)
    }
}
