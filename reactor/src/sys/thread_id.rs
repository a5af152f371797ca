//! Ids of threads, which are not reused.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(loom))]
thread_local! {
    /// The id of the thread, once it was asked for.
    static THREAD_ID: Cell<Option<NonZeroU64>> = const { Cell::new(None) };
}
// The threads of a model are on one thread of the system.
#[cfg(loom)]
loom::thread_local! {
    static THREAD_ID: Cell<Option<NonZeroU64>> = Cell::new(None);
}

/// Returns the id of the calling thread, if it was asked for before.
#[inline]
pub(crate) fn assigned_thread_id() -> Option<NonZeroU64> {
    THREAD_ID.with(Cell::get)
}

/// Returns the id of the calling thread.
#[inline]
pub(crate) fn thread_id() -> NonZeroU64 {
    assigned_thread_id().unwrap_or_else(assign_thread_id)
}

#[cold]
fn assign_thread_id() -> NonZeroU64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let id = NonZeroU64::MIN.saturating_add(LAST.fetch_add(1, Ordering::Relaxed));
    THREAD_ID.with(|known| known.set(Some(id)));
    id
}
