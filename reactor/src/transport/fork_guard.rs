//! Whether this is still the process that made something.
//!
//! A child that was forked shares what its parent has: the other end of a connection, shared
//! memory, the set that the parent sleeps on. Whatever a child drops is dropped a second time, and
//! must not end what its parent goes on using. So ends are only made known by the process that
//! began.
#![allow(unsafe_code)] // one call: a function to be run in children

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lead from the first process of this program to this one.
static FORK_DEPTH: AtomicU32 = AtomicU32::new(0);

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkGuard(u32);

impl ForkGuard {
    /// This process.
    pub(crate) fn current_process() -> Self {
        static COUNTED: Once = Once::new();
        COUNTED.call_once(|| {
            // SAFETY: the function is there as long as the program, and may run in a child that was
            // just forked: it does nothing but add. Without the memory to remember it children are
            // not told apart, as they never were.
            unsafe { libc::pthread_atfork(None, None, Some(on_fork_child)) };
        });
        Self(FORK_DEPTH.load(Ordering::Relaxed))
    }

    /// Whether this is it.
    pub(crate) fn in_original_process(self) -> bool {
        FORK_DEPTH.load(Ordering::Relaxed) == self.0
    }
}

extern "C" fn on_fork_child() {
    FORK_DEPTH.fetch_add(1, Ordering::Relaxed);
}
