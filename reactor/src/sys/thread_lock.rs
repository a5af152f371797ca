//! Locks that all threads share, or that one thread owns.
//!
//! A [`ThreadLock`] in mode [`ThreadMode::Shared`] is a mutex around a value. In mode
//! [`ThreadMode::Pinned`] the thread that creates the lock owns the value: locking compares the
//! thread and a flag, without atomic read-modify-write operations.
//!
//! **Invariant.** At most one guard of a lock exists. In mode `Shared` the raw lock is held while a
//! guard exists. In mode `Pinned` only the owner reads or writes `entered`, which is true while a
//! guard exists; guards stay on their thread. Thread ids are not reused, so after the end of the
//! owner no thread enters.
#![cfg_attr(not(loom), allow(unsafe_code))] // the value of a lock, and a raw spin lock

use std::cell::Cell;
#[cfg(not(loom))]
use std::cell::UnsafeCell;
#[cfg(not(loom))]
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::{Deref, DerefMut};
#[cfg(not(loom))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric_core::transport::ThreadMode;
#[cfg(not(loom))]
use parking_lot::lock_api::{GuardNoSend, RawMutex};

/// The lock of a domain's state, whose waiters sleep.
///
/// A spinning thread takes such a lock again as soon as it has released the lock. The mutex passes
/// itself on to a waiting thread after half a millisecond, so every thread gets its turn. A panic
/// of the thread that holds the lock does not poison the value.
#[cfg(not(loom))]
pub(crate) type DomainLock<T> = ThreadLock<T, parking_lot::RawMutex>;
#[cfg(not(loom))]
pub(crate) type DomainGuard<'a, T> = ThreadGuard<'a, T, parking_lot::RawMutex>;
#[cfg(loom)]
pub(crate) type DomainLock<T> = ThreadLock<T>;
#[cfg(loom)]
pub(crate) type DomainGuard<'a, T> = ThreadGuard<'a, T>;

/// The lock of a connection, which is held briefly, and whose waiters spin.
#[cfg(not(loom))]
pub(crate) type ConnectionLock<T> = ThreadLock<T, RawSpinLock>;
#[cfg(not(loom))]
pub(crate) type ConnectionLockGuard<'a, T> = ThreadGuard<'a, T, RawSpinLock>;
#[cfg(loom)]
pub(crate) type ConnectionLock<T> = ThreadLock<T>;
#[cfg(loom)]
pub(crate) type ConnectionLockGuard<'a, T> = ThreadGuard<'a, T>;

/// The owner of a value: one thread, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(Option<NonZeroU64>);

impl Owner {
    /// Returns the calling thread in mode `Pinned`, and no owner in mode `Shared`.
    pub(crate) fn new(mode: ThreadMode) -> Self {
        Self(match mode {
            ThreadMode::Shared => None,
            ThreadMode::Pinned => Some(current_thread()),
        })
    }

    /// Returns whether the calling thread may lock what has this owner.
    #[inline]
    pub(crate) fn admits_current_thread(self) -> bool {
        // A thread without an id owns nothing.
        self.0.is_none() || self.0 == THREAD_ID.get()
    }

    /// Returns whether one thread owns the value.
    #[inline]
    pub(crate) fn is_pinned(self) -> bool {
        self.0.is_some()
    }
}

thread_local! {
    /// The id of the thread, once it owns something. Ids are not reused.
    static THREAD_ID: Cell<Option<NonZeroU64>> = const { Cell::new(None) };
}

/// Returns the id of the calling thread.
fn current_thread() -> NonZeroU64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    THREAD_ID.get().unwrap_or_else(|| {
        let id = NonZeroU64::MIN.saturating_add(LAST.fetch_add(1, Ordering::Relaxed));
        THREAD_ID.set(Some(id));
        id
    })
}

/// A value that all threads share under a raw lock, or that one thread owns.
#[cfg(not(loom))]
pub(crate) struct ThreadLock<T, R> {
    owner: Owner,
    raw: R,
    /// Whether the owner holds a guard.
    entered: Cell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: as for a mutex. At most one guard exists, so threads access the value one after the
// other; a value with an owner is accessed by one thread, and may be dropped by another. Only the
// owner accesses `entered`.
#[cfg(not(loom))]
unsafe impl<T: Send, R: Sync> Sync for ThreadLock<T, R> {}

/// The only access to the value of a [`ThreadLock`], until it is dropped.
#[cfg(not(loom))]
pub(crate) struct ThreadGuard<'a, T, R: RawMutex> {
    lock: &'a ThreadLock<T, R>,
    /// The thread that locked unlocks.
    _not_send: PhantomData<(*mut (), &'a mut T)>,
}

#[cfg(not(loom))]
impl<T, R: RawMutex> ThreadLock<T, R> {
    pub(crate) fn new(owner: Owner, value: T) -> Self {
        Self {
            owner,
            raw: R::INIT,
            entered: Cell::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks the value.
    ///
    /// # Panics
    /// With an owner: on another thread, and when the owner holds a guard already.
    #[inline(always)] // on the small-message path
    pub(crate) fn lock(&self) -> ThreadGuard<'_, T, R> {
        if self.owner.is_pinned() {
            self.enter();
        } else {
            self.raw.lock();
        }
        ThreadGuard {
            lock: self,
            _not_send: PhantomData,
        }
    }

    /// Locks the value if it is free and this thread may.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<ThreadGuard<'_, T, R>> {
        let locked = if self.owner.is_pinned() {
            self.try_enter()
        } else {
            self.raw.try_lock()
        };
        locked.then(|| ThreadGuard {
            lock: self,
            _not_send: PhantomData,
        })
    }

    /// Marks the value as accessed.
    #[inline(never)] // callers of shared locks stay short
    fn enter(&self) {
        if !self.try_enter() {
            self.refuse();
        }
    }

    /// Marks the value as accessed, if this thread owns it and does not access it yet.
    #[inline]
    fn try_enter(&self) -> bool {
        self.owner.admits_current_thread() && !self.entered.replace(true)
    }

    #[cold]
    fn refuse(&self) -> ! {
        if self.owner.admits_current_thread() {
            panic!("a call on a domain from within another call on the domain");
        }
        panic!("a call on a domain of one thread from another thread");
    }
}

#[cfg(not(loom))]
impl<T, R: RawMutex> Deref for ThreadGuard<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard.
        unsafe { &*self.lock.value.get() }
    }
}

#[cfg(not(loom))]
impl<T, R: RawMutex> DerefMut for ThreadGuard<'_, T, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(not(loom))]
impl<T, R: RawMutex> Drop for ThreadGuard<'_, T, R> {
    #[inline(always)] // on the small-message path
    fn drop(&mut self) {
        if self.lock.owner.is_pinned() {
            self.lock.entered.set(false);
        } else {
            // SAFETY: this guard's thread locked the raw lock.
            unsafe { self.lock.raw.unlock() };
        }
    }
}

/// A spin lock. Releasing it is a plain store: a mutex that puts its waiters to sleep needs an
/// atomic exchange there, to find out whether a thread sleeps.
///
/// A thread that finds the lock taken spins, then yields its core, and finally sleeps: the holder
/// may have a lower priority, and then yielding has no effect.
#[cfg(not(loom))]
pub(crate) struct RawSpinLock(AtomicBool);

// SAFETY: at most one thread holds the lock: `locked` goes from false to true by compare-exchange,
// and the holder sets it to false. The acquire and the release order what the holders do.
#[cfg(not(loom))]
unsafe impl RawMutex for RawSpinLock {
    type GuardMarker = GuardNoSend;

    #[allow(clippy::declare_interior_mutable_const)] // a constant of the trait
    const INIT: Self = Self(AtomicBool::new(false));

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

#[cfg(not(loom))]
impl RawSpinLock {
    /// Attempts before the thread yields its core, and before it sleeps.
    const SPIN_LIMIT: u32 = 64;
    const YIELD_LIMIT: u32 = Self::SPIN_LIMIT + 64;
    /// How long the thread sleeps before the next attempt.
    const BACKOFF_SLEEP: std::time::Duration = std::time::Duration::from_micros(20);

    #[cold]
    fn lock_slow(&self) {
        let mut attempts = 0;
        while !self.try_lock() {
            attempts += 1;
            match attempts {
                0..Self::SPIN_LIMIT => std::hint::spin_loop(),
                Self::SPIN_LIMIT..Self::YIELD_LIMIT => std::thread::yield_now(),
                _ => {
                    std::thread::sleep(Self::BACKOFF_SLEEP);
                    attempts = 0;
                }
            }
        }
    }
}

/// The lock in a model: loom's mutex in both modes.
#[cfg(loom)]
pub(crate) struct ThreadLock<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
pub(crate) struct ThreadGuard<'a, T>(loom::sync::MutexGuard<'a, T>);

#[cfg(loom)]
impl<T> ThreadLock<T> {
    pub(crate) fn new(_owner: Owner, value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> ThreadGuard<'_, T> {
        ThreadGuard(self.0.lock().unwrap())
    }

    pub(crate) fn try_lock(&self) -> Option<ThreadGuard<'_, T>> {
        self.0.try_lock().ok().map(ThreadGuard)
    }
}

#[cfg(loom)]
impl<T> Deref for ThreadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(loom)]
impl<T> DerefMut for ThreadGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Returns the message of the panic of `call`.
    fn panic_message(call: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.unwrap_or_default()
    }

    #[test]
    fn locks_that_threads_share_lose_no_update() {
        fn count_with<R: RawMutex + Sync>() {
            let lock = ThreadLock::<u64, R>::new(Owner::new(ThreadMode::Shared), 0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
                }
            });
            assert_eq!(*lock.lock(), 40_000);
        }
        count_with::<parking_lot::RawMutex>();
        count_with::<RawSpinLock>();
    }

    #[test]
    fn owner_enters_once_at_a_time() {
        let lock = DomainLock::new(Owner::new(ThreadMode::Pinned), 1);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        let refused = panic_message(|| drop(lock.lock()));
        assert!(refused.contains("within another call"), "{refused}");
        assert_eq!(*guard, 1, "the refused call changed nothing");
        drop(guard);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("of the holder");
        }));
        assert!(failed.is_err() && lock.try_lock().is_some());
    }

    #[test]
    fn other_threads_never_enter() {
        let owner = Owner::new(ThreadMode::Pinned);
        let lock = ConnectionLock::new(owner, vec![1]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!owner.admits_current_thread());
                assert!(lock.try_lock().is_none());
                let refused = panic_message(|| drop(lock.lock()));
                assert!(refused.contains("another thread"), "{refused}");
            });
        });
        assert!(lock.try_lock().is_some());
        // The value may be dropped on another thread.
        std::thread::scope(|scope| drop(scope.spawn(move || drop(lock))));
    }

    #[test]
    fn locks_that_threads_share_are_not_reentered() {
        let lock = DomainLock::new(Owner::new(ThreadMode::Shared), ());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none() && lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
