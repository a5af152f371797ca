//! Locks without a value: a mutex whose waiters sleep, and a spin lock.
//!
//! In a model the mutex is loom's, so that loom reports a deadlock. The spin lock is the same.
#![allow(unsafe_code)] // the contract of a lock

#[cfg(not(loom))]
use parking_lot::lock_api::{self, RawMutex as _};

use super::sync::{AtomicBool, Backoff, Ordering};

#[cfg(not(loom))]
pub(crate) use parking_lot::RawMutex;

/// A lock without a value.
///
/// # Safety
/// While a thread holds the lock, no other call of `lock` or `try_lock` acquires the lock. What a
/// holder does happens before what the next holder does.
pub(crate) unsafe trait RawLock {
    /// Returns a lock that no thread holds.
    fn new() -> Self;

    /// Acquires the lock when no thread holds it.
    fn lock(&self);

    /// Acquires the lock if no thread holds it. Returns whether it was acquired.
    fn try_lock(&self) -> bool;

    /// Releases the lock.
    ///
    /// # Safety
    /// The calling thread holds the lock.
    unsafe fn unlock(&self);
}

// SAFETY: the contract of `lock_api::RawMutex` is the same.
#[cfg(not(loom))]
unsafe impl RawLock for RawMutex {
    #[inline]
    fn new() -> Self {
        Self::INIT
    }

    #[inline]
    fn lock(&self) {
        lock_api::RawMutex::lock(self);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        lock_api::RawMutex::try_lock(self)
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { lock_api::RawMutex::unlock(self) };
    }
}

/// The mutex of a model.
#[cfg(loom)]
pub(crate) struct RawMutex {
    mutex: loom::sync::Mutex<()>,
    /// The guard of the thread that holds the mutex.
    guard: std::cell::Cell<Option<loom::sync::MutexGuard<'static, ()>>>,
}

// SAFETY: all threads of a model are on one thread of the system.
#[cfg(loom)]
unsafe impl Send for RawMutex {}
// SAFETY: as for `Send`.
#[cfg(loom)]
unsafe impl Sync for RawMutex {}

#[cfg(loom)]
impl RawMutex {
    /// Returns the mutex, for a guard that is in this value and is dropped before it.
    fn mutex(&self) -> &'static loom::sync::Mutex<()> {
        // SAFETY: a `ThreadGuard` borrows this value while `guard` has a guard.
        unsafe { &*std::ptr::from_ref(&self.mutex) }
    }
}

// SAFETY: the mutex is locked while `guard` has its guard, which only the holder sets and takes.
#[cfg(loom)]
unsafe impl RawLock for RawMutex {
    fn new() -> Self {
        Self {
            mutex: loom::sync::Mutex::new(()),
            guard: std::cell::Cell::new(None),
        }
    }

    fn lock(&self) {
        self.guard.set(self.mutex().lock().ok());
    }

    fn try_lock(&self) -> bool {
        let guard = self.mutex().try_lock().ok();
        let is_locked = guard.is_some();
        if is_locked {
            self.guard.set(guard);
        }
        is_locked
    }

    unsafe fn unlock(&self) {
        drop(self.guard.take());
    }
}

/// A spin lock. Releasing it is a plain store: a mutex that puts its waiters to sleep needs an
/// atomic exchange there, to find out whether a thread sleeps.
pub(crate) struct RawSpinLock(AtomicBool);

// SAFETY: at most one thread holds the lock: the flag goes from false to true by compare-exchange,
// and the holder sets it to false. The acquire and the release order what the holders do.
unsafe impl RawLock for RawSpinLock {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // SYNC: pairs with the release in `unlock`.
        self.0
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SYNC: pairs with the acquire in `try_lock`.
        self.0.store(false, Ordering::Release);
    }
}

impl RawSpinLock {
    #[cold]
    fn lock_slow(&self) {
        let mut backoff = Backoff::default();
        while !self.try_lock() {
            backoff.pause();
        }
    }
}
