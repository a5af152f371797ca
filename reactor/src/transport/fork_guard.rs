//! Whether this is still the process that created an object.
//!
//! A forked child shares the other end of the parent's connections, its shared memory and the
//! descriptors it sleeps on. Whatever the child drops is dropped a second time, and must not end
//! what the parent still uses. So only the process that created a connection, loan or region
//! announces its end. The process is recognised by a counter that a `pthread_atfork` handler
//! increments.
#![allow(unsafe_code)] // one call: a function to be run in children

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the first process of this program and this one.
static FORK_DEPTH: AtomicU32 = AtomicU32::new(0);

/// The process that created an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkGuard(u32);

impl ForkGuard {
    /// Returns a guard for this process.
    pub(crate) fn current_process() -> Self {
        static COUNTED: Once = Once::new();
        COUNTED.call_once(|| {
            // SAFETY: the handler is a function of this program, so it lives as long as the
            // program, and may run in a child that was just forked: it only adds to an atomic
            // counter. If the registration fails for lack of memory, children are not recognised.
            unsafe { libc::pthread_atfork(None, None, Some(on_fork_child)) };
        });
        Self(FORK_DEPTH.load(Ordering::Relaxed))
    }

    /// Returns whether this is the process for which the guard was created.
    pub(crate) fn in_original_process(self) -> bool {
        FORK_DEPTH.load(Ordering::Relaxed) == self.0
    }
}

extern "C" fn on_fork_child() {
    FORK_DEPTH.fetch_add(1, Ordering::Relaxed);
}
