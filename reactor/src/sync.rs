//! The synchronisation primitives of this crate: the standard ones, or loom's in a model.

#[cfg(not(loom))]
pub(crate) use spin::mutex::{SpinMutex as Mutex, SpinMutexGuard as MutexGuard};
#[cfg(not(any(loom, target_arch = "x86_64")))]
use std::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
/// Letting go of it is a plain store, which a mutex that puts its waiters to sleep cannot do: there whoever lets go must find
/// out, with an atomic exchange, whether somebody sleeps. What is done under a lock is short, so who finds it taken
/// looks again, and gives its core away, for longer and longer, should the holder not have one.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(loom))]
    return mutex.try_lock().unwrap_or_else(|| wait_for(mutex));
    #[cfg(loom)]
    mutex.lock().unwrap()
}

#[cfg(not(loom))]
#[cold]
fn wait_for<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let mut looks = 0;
    loop {
        while mutex.is_locked() {
            match looks {
                0..SPINS => spin(),
                SPINS..YIELDS => yield_now(),
                // The holder may be of lower priority than this thread, to which yielding would mean nothing.
                _ => std::thread::sleep(NAP),
            }
            looks += 1;
        }
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
    }
}

/// How often a taken lock is looked at before this thread gives its core away, and before it sleeps.
#[cfg(not(loom))]
const SPINS: u32 = 64;
#[cfg(not(loom))]
const YIELDS: u32 = SPINS + 64;
/// How long it sleeps.
#[cfg(not(loom))]
const NAP: std::time::Duration = std::time::Duration::from_micros(20);
