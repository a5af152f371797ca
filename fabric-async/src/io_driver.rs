//! Finding out whether a Tokio runtime has an I/O driver.
//!
//! Tokio has no call that tells: registering a descriptor on a runtime without I/O panics. The
//! panic is caught here, and it is not the program's: its panic hook does not see it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{ptr, thread};

use tokio::runtime::{Handle, Id};

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send>;

/// Runtimes that are remembered: the panic hook is replaced once for each of them, and not for each
/// domain.
const REMEMBERED: usize = 64;

/// The last runtimes that turned out to have an I/O driver. Also the lock under which panic hooks
/// are replaced.
static HAVE_IO: Mutex<VecDeque<Id>> = Mutex::new(VecDeque::new());

thread_local! {
    /// This thread registers a descriptor, and a panic says that the runtime has no I/O driver.
    static PROBES: Cell<bool> = const { Cell::new(false) };
}

/// Runs `register`, which registers a descriptor on this runtime. `None` when the runtime has no
/// I/O driver.
///
/// With `panic = "abort"` the process ends instead, with Tokio's message.
pub(crate) fn with_io<T>(runtime: &Handle, register: impl FnOnce() -> T) -> Option<T> {
    if have_io().contains(&runtime.id()) {
        return Some(register());
    }
    let registered = if cfg!(panic = "abort") || thread::panicking() {
        // The hook can only be replaced by a thread that does not panic.
        panic::catch_unwind(AssertUnwindSafe(register)).ok()
    } else {
        unseen(have_io(), register)
    };
    if registered.is_some() {
        let mut known = have_io();
        known.truncate(REMEMBERED - 1);
        known.push_front(runtime.id());
    }
    registered
}

fn have_io() -> MutexGuard<'static, VecDeque<Id>> {
    HAVE_IO.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs this; `None` when it panics, which the program's panic hook does not see. Panics of other
/// threads go to that hook meanwhile. `_alone` keeps others from doing the same at the same time.
fn unseen<T>(_alone: MutexGuard<'_, VecDeque<Id>>, act: impl FnOnce() -> T) -> Option<T> {
    let programs = Arc::new(panic::take_hook());
    let forward = programs.clone();
    let filter: Hook = Box::new(move |info| {
        if !PROBES.get() {
            forward(info);
        }
    });
    let installed = ptr::from_ref(&*filter).cast::<()>();
    panic::set_hook(filter);
    PROBES.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(act)).ok();
    PROBES.set(false);
    let current = panic::take_hook();
    if ptr::addr_eq(&*current, installed) {
        drop(current);
        // The filter had the only other reference, and no hook runs while another is taken.
        panic::set_hook(Arc::try_unwrap(programs).unwrap_or_else(|shared| {
            Box::new(move |info: &PanicHookInfo<'_>| shared(info)) as Hook
        }));
    } else {
        // The program has set another one meanwhile. If that calls the filter, it still forwards.
        panic::set_hook(current);
    }
    done
}
