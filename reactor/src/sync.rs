//! The synchronisation primitives of this crate: the standard ones, or loom's in a model.

#[cfg(not(any(loom, target_arch = "x86_64")))]
use std::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
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
pub(crate) fn spin() {
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

/// Locks if nobody else has; also after a panic elsewhere.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Locks, also after a panic elsewhere: what the lock guards is kept consistent by not calling user code under it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
