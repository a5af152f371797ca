//! Synchronisation primitives of this crate: those of the standard library and of `parking_lot`, or
//! loom's in a model.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::cell::UnsafeCell;
#[cfg(not(any(loom, target_arch = "x86_64")))]
use std::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    },
};

/// Returns a pointer for a read of the cell. In a model, loom checks that no write races with it.
#[inline(always)] // on the small-message path
pub(crate) fn cell_ptr<T>(cell: &UnsafeCell<T>) -> *const T {
    #[cfg(not(loom))]
    return cell.get();
    #[cfg(loom)]
    cell.with(|value| value)
}

/// Returns a pointer for a write of the cell. In a model, loom checks that no access races with it.
#[inline(always)] // on the small-message path
pub(crate) fn cell_ptr_mut<T>(cell: &UnsafeCell<T>) -> *mut T {
    #[cfg(not(loom))]
    return cell.get();
    #[cfg(loom)]
    cell.with_mut(|value| value)
}

/// A full fence: stores before it are visible before loads after it are made.
///
/// On x86-64 a swap of a word of its own orders as `mfence` does and takes half the time.
pub(crate) fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        let word = AtomicU32::new(0);
        std::hint::black_box(&word).swap(1, Ordering::SeqCst);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    fence(Ordering::SeqCst);
}

/// Pauses between two attempts of a spinning thread.
pub(crate) fn spin_loop() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Yields the core to other threads.
pub(crate) fn yield_now() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// The pauses of a thread that waits for another to leave a short critical section: it spins, then
/// yields its core, and finally sleeps, because the other thread may have a lower priority, and
/// then yielding has no effect.
#[derive(Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Pauses before the thread yields its core, and before it sleeps.
    const SPIN_LIMIT: u32 = 64;
    const YIELD_LIMIT: u32 = Self::SPIN_LIMIT + 64;
    /// How long the thread sleeps before the next attempt.
    #[cfg(not(loom))]
    const SLEEP: std::time::Duration = std::time::Duration::from_micros(20);

    /// Makes the next pause.
    #[cold]
    pub(crate) fn pause(&mut self) {
        self.attempts += 1;
        match self.attempts {
            0..Self::SPIN_LIMIT => spin_loop(),
            Self::SPIN_LIMIT..Self::YIELD_LIMIT => yield_now(),
            _ => {
                #[cfg(not(loom))]
                std::thread::sleep(Self::SLEEP);
                self.attempts = 0;
            }
        }
    }
}

/// Locks a mutex. A panic of the thread that holds the lock does not poison what it guards.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(loom))]
    return mutex.lock();
    #[cfg(loom)]
    mutex.lock().unwrap()
}
