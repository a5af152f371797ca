//! Detection of a Tokio runtime without an I/O driver.
//!
//! Tokio has no query for the I/O driver: registering a descriptor or a signal on a runtime that
//! has no I/O driver panics. [`catch_missing_io_driver`] catches that panic and hides it from the
//! program's panic hook. Before the first registration in a process, it wraps the hook in a filter,
//! which stays installed. The filter drops the panics of a thread that registers a descriptor, and
//! forwards all others to the hook. The hook is not exchanged for each registration, because a hook
//! that the program sets at the same time could be lost. A hook that the program sets later
//! replaces the filter, and sees the panic; the caller of the registration gets the same error.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::thread;

thread_local! {
    /// Whether this thread registers a descriptor: a panic then means that the runtime has no I/O
    /// driver.
    static IS_REGISTERING: Cell<bool> = const { Cell::new(false) };
}

static INSTALL_FILTER_ONCE: Once = Once::new();

/// Calls `register`, which registers a descriptor on the current runtime. Returns `None` when
/// it panics, which is how Tokio reports a missing I/O driver.
///
/// With `panic = "abort"` the process ends instead, with Tokio's message.
pub(crate) fn catch_missing_io_driver<T>(register: impl FnOnce() -> T) -> Option<T> {
    // A thread that unwinds must not set a hook.
    if cfg!(panic = "unwind") && !thread::panicking() {
        INSTALL_FILTER_ONCE.call_once(install_filter);
    }
    IS_REGISTERING.set(true);
    let registered = panic::catch_unwind(AssertUnwindSafe(register)).ok();
    IS_REGISTERING.set(false);
    registered
}

/// Wraps the panic hook of the process in the filter.
fn install_filter() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !IS_REGISTERING.get() {
            hook(info);
        }
    }));
}
