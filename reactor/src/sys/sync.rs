//! Synchronisation primitives of this crate: those of the standard library and of `parking_lot`, or
//! loom's in a model.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use spin::mutex::{SpinMutex as SpinLock, SpinMutexGuard as SpinGuard};
#[cfg(not(any(loom, target_arch = "x86_64")))]
use std::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, Mutex as SpinLock, MutexGuard, MutexGuard as SpinGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

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

/// Locks a mutex if it is free.
#[inline]
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(not(loom))]
    return mutex.try_lock();
    #[cfg(loom)]
    mutex.try_lock().ok()
}

/// Locks a mutex. A panic of the thread that holds the lock does not poison what it guards. The
/// user code that runs under the lock of a domain (`engine/progress`) is the clone of a waker, and
/// methods of a `CustomBuf`, whose panics receives catch.
///
/// A spinning thread takes such a lock again as soon as it has released the lock. This mutex passes
/// itself on to a waiting thread after half a millisecond, so every thread gets its turn.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(loom))]
    return mutex.lock();
    #[cfg(loom)]
    mutex.lock().unwrap()
}

/// Locks a spin lock: for data that is locked briefly, though maybe often.
///
/// Releasing it is a plain store. A mutex that puts its waiters to sleep needs an atomic exchange
/// there, to find out whether a thread sleeps. A thread that finds the lock taken spins, then
/// yields its core, and finally sleeps: the holder may have a lower priority, and then yielding has
/// no effect.
#[inline]
pub(crate) fn lock_spin<T>(lock: &SpinLock<T>) -> SpinGuard<'_, T> {
    #[cfg(not(loom))]
    return lock.try_lock().unwrap_or_else(|| lock_spin_slow(lock));
    #[cfg(loom)]
    lock.lock().unwrap()
}

#[cfg(not(loom))]
#[cold]
fn lock_spin_slow<T>(lock: &SpinLock<T>) -> SpinGuard<'_, T> {
    let mut attempts = 0;
    loop {
        if let Some(guard) = lock.try_lock() {
            return guard;
        }
        attempts += 1;
        match attempts {
            0..SPIN_LIMIT => spin_loop(),
            SPIN_LIMIT..YIELD_LIMIT => yield_now(),
            _ => {
                std::thread::sleep(BACKOFF_SLEEP);
                attempts = 0;
            }
        }
    }
}

/// Attempts before the thread yields its core, and before it sleeps.
#[cfg(not(loom))]
const SPIN_LIMIT: u32 = 64;
#[cfg(not(loom))]
const YIELD_LIMIT: u32 = SPIN_LIMIT + 64;
/// How long the thread sleeps before the next attempt.
#[cfg(not(loom))]
const BACKOFF_SLEEP: std::time::Duration = std::time::Duration::from_micros(20);
