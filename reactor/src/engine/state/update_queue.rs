//! Updates from other threads that an engine has not applied.

use std::collections::VecDeque;

use fabric_core::{Address, FiAddr};

use super::bindings::AvId;
use crate::sys::sync::{AtomicBool, Mutex, Ordering, lock};

/// A change that another engine of the domain applies.
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
