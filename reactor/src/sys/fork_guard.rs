//! Detects that an object is used in a forked child of the process that created the object.
//!
//! A forked child shares the parent's sockets, shared memory and epoll descriptors. If the child
//! drops its copy of an object, the parent still uses the object. So only the process that created
//! a connection, loan or region tells the peer that the object ends. A `pthread_atfork` handler
//! increments a counter in each child; a guard compares the counter with its value at creation.
#![allow(unsafe_code)] // one call: `pthread_atfork`

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the first process of this program and this one.
static FORK_DEPTH: AtomicU32 = AtomicU32::new(0);

/// The process that created an object, by its fork depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkGuard(u32);

impl ForkGuard {
    /// Returns a guard for this process.
    pub(crate) fn current_process() -> Self {
        static HANDLER_REGISTERED: Once = Once::new();
        HANDLER_REGISTERED.call_once(|| {
            // SAFETY: the handler is a function, so its pointer is always valid. The handler is
            // async-signal-safe, as a child of a threaded process requires: it only increments an
            // atomic counter.
            // If the registration fails (ENOMEM), forked children are not detected.
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
