//! The reserve descriptors of the process.
//!
//! A process at its descriptor limit cannot receive a message with descriptors, so the message
//! would stay in the socket. The process then closes the reserve descriptors, which makes room for
//! the descriptors of a memory grant, receives and drops the message, and creates the reserve
//! descriptors anew. If too few descriptors are free then, a closer creates them after a close:
//! what was received may still wait for the closer.
//!
//! A forked child has reserve descriptors of its own.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::io::Errno;

use super::process_local::ProcessLocal;

/// The reserve descriptors: as many as the longest memory grant has.
pub(crate) type ReservedFds = [OwnedFd; 2];

/// The reserve descriptors of a process.
#[derive(Default)]
struct FdReserve {
    fds: Mutex<Option<ReservedFds>>,
    /// Notified when the descriptors were created anew.
    restored: Condvar,
    /// Whether the descriptors could not be created anew.
    is_missing: AtomicBool,
}

static RESERVE: ProcessLocal<FdReserve> = ProcessLocal::new(FdReserve::default);

/// Creates a descriptor (an eventfd) that is closed when another one is needed at the descriptor
/// limit.
pub(crate) fn create() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
}

/// How long a caller waits for descriptors that a closer still has to create.
const RESTORE_TIMEOUT: Duration = Duration::from_millis(20);

/// Locks the reserve descriptors. A caller at the descriptor limit closes them, receives and drops
/// a message with up to as many descriptors, and [restores](restore) the reserve.
pub(crate) fn lock() -> MutexGuard<'static, Option<ReservedFds>> {
    let reserve = RESERVE.get().fds.lock();
    reserve.unwrap_or_else(|e| e.into_inner())
}

/// Locks the reserve descriptors as [`lock`]. If a closer still has to create them, because the
/// descriptors of the last message are being closed, waits for that for 20 ms at most.
pub(crate) fn lock_restored() -> MutexGuard<'static, Option<ReservedFds>> {
    let FdReserve {
        restored,
        is_missing,
        ..
    } = RESERVE.get();
    let is_awaited = |fds: &mut Option<_>| fds.is_none() && is_missing.load(Ordering::Relaxed);
    let waited = restored.wait_timeout_while(lock(), RESTORE_TIMEOUT, is_awaited);
    waited.unwrap_or_else(|e| e.into_inner()).0
}

/// Creates the locked reserve descriptors anew. If too few descriptors are free,
/// [`restore_if_missing`] does so later.
pub(crate) fn restore(mut reserve: MutexGuard<'static, Option<ReservedFds>>) {
    let created = || Some([create().ok()?, create().ok()?]);
    *reserve = reserve.take().or_else(created);
    let FdReserve {
        restored,
        is_missing,
        ..
    } = RESERVE.get();
    is_missing.store(reserve.is_none(), Ordering::Relaxed);
    restored.notify_all();
}

/// Creates the reserve descriptors if [`restore`] could not. A closer calls this after each close.
pub(super) fn restore_if_missing() {
    if RESERVE.get().is_missing.load(Ordering::Relaxed) {
        restore(lock());
    }
}
