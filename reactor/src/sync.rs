//! The synchronisation primitives of this crate: the standard ones, or loom's in a model.

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

/// A full fence: what was stored before it is seen before what is loaded after it.
///
/// On x86-64 a swap of a word of one's own does what `mfence` does and takes half the time.
pub(crate) fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        let own = AtomicU32::new(0);
        std::hint::black_box(&own).swap(1, Ordering::SeqCst);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    fence(Ordering::SeqCst);
}

/// Between two looks of a thread that has nothing else to do.
pub(crate) fn spin_loop() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Lets other threads have the core.
pub(crate) fn yield_now() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Locks if nobody else has.
#[inline]
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(not(loom))]
    return mutex.try_lock();
    #[cfg(loom)]
    mutex.try_lock().ok()
}

/// Locks. What a lock guards is kept consistent by not calling user code under it.
///
/// Threads that look for messages take such a lock again as soon as they have let go of it. This
/// one is handed over after half a millisecond, so that others get their turn.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(loom))]
    return mutex.lock();
    #[cfg(loom)]
    mutex.lock().unwrap()
}

/// Locks what nobody holds for long, or has again and again.
///
/// Letting go of it is a plain store, which a mutex that puts its waiters to sleep cannot do: there
/// whoever lets go must find out, with an atomic exchange, whether somebody sleeps. Who finds it
/// taken looks again, gives its core away, and sleeps at last, should the holder be of lower
/// priority, to which yielding would mean nothing.
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
    let mut looks = 0;
    loop {
        if let Some(guard) = lock.try_lock() {
            return guard;
        }
        looks += 1;
        match looks {
            0..SPIN_LIMIT => spin_loop(),
            SPIN_LIMIT..YIELD_LIMIT => yield_now(),
            _ => {
                std::thread::sleep(BACKOFF_SLEEP);
                looks = 0;
            }
        }
    }
}

/// How often a taken lock is looked at before this thread gives its core away, and before it
/// sleeps.
#[cfg(not(loom))]
const SPIN_LIMIT: u32 = 64;
#[cfg(not(loom))]
const YIELD_LIMIT: u32 = SPIN_LIMIT + 64;
/// How long it sleeps.
#[cfg(not(loom))]
const BACKOFF_SLEEP: std::time::Duration = std::time::Duration::from_micros(20);
