//! The reserve descriptor of the process.
//!
//! A process at its descriptor limit cannot receive a message with a descriptor, so the message
//! would stay in the socket. The process then closes the reserve descriptor, which makes room for
//! one descriptor, receives and drops the message, and creates the reserve descriptor anew. If no
//! descriptor is free then, a closer creates it after a close: what was received may still wait for
//! the closer.
//!
//! A forked child has a reserve descriptor of its own.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use rustix::io::Errno;

use super::process_local::ProcessLocal;

/// The reserve descriptor of a process.
#[derive(Default)]
struct FdReserve {
    fd: Mutex<Option<OwnedFd>>,
    /// Whether the descriptor could not be created anew.
    is_missing: AtomicBool,
}

static RESERVE: ProcessLocal<FdReserve> = ProcessLocal::new(FdReserve::default);

/// Creates a descriptor (an eventfd) that is closed when another one is needed at the descriptor
/// limit.
pub(crate) fn create() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
}

/// Locks the reserve descriptor. A caller at the descriptor limit closes the reserve descriptor,
/// receives and drops a message with one descriptor, and [restores](restore) the reserve.
pub(crate) fn lock() -> MutexGuard<'static, Option<OwnedFd>> {
    let reserve = RESERVE.get().fd.lock();
    reserve.unwrap_or_else(|e| e.into_inner())
}

/// Creates the locked reserve descriptor anew. If no descriptor is free, [`restore_if_missing`]
/// does so later.
pub(crate) fn restore(mut reserve: MutexGuard<'static, Option<OwnedFd>>) {
    *reserve = reserve.take().or_else(|| create().ok());
    let is_missing = &RESERVE.get().is_missing;
    is_missing.store(reserve.is_none(), Ordering::Relaxed);
}

/// Creates the reserve descriptor if [`restore`] could not. A closer calls this after each close.
pub(super) fn restore_if_missing() {
    if RESERVE.get().is_missing.load(Ordering::Relaxed) {
        restore(lock());
    }
}
