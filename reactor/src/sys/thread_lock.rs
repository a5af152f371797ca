//! The locks of a domain and of its connections, in the modes that [`DomainLockMode`] and
//! [`ConnectionLockMode`] list.
//!
//! A [`ThreadLock`] that all threads share is a mutex around a value. In mode `Pinned` the thread
//! that creates the lock owns the value: locking compares the thread and a flag, without atomic
//! read-modify-write operations. In a domain of mode `Serial` the lock of the domain is the
//! domain's [`UseFlag`], which locking enters by one compare-exchange. The locks of the domain's
//! connections are then taken only by a thread that is in the domain: locking compares the thread
//! in the flag, as in mode `Pinned`.
//!
//! **Invariant.** At most one guard of a lock exists. In mode `Shared` the raw lock is held while a
//! guard exists. In mode `Serial` the thread of the domain lock's guard is in the flag. All other
//! locks have a thread that may enter: the owner, or the thread in the flag, which is one at a
//! time. Only that thread changes `entered` from false to true, so that no two threads do;
//! `entered` is true while a guard exists. Guards stay on their thread. Thread ids are not reused,
//! so after the end of the owner no thread enters.
#![allow(unsafe_code)] // the value of a lock

use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use fabric_core::transport::ThreadMode;

use super::raw_lock::{RawLock, RawMutex, RawSpinLock};
use super::sync::{AtomicBool, Ordering, UnsafeCell, cell_ptr, cell_ptr_mut};
use super::thread_id::{assigned_thread_id, thread_id};
use super::use_flag::{Role, UseFlag};

/// The lock of a domain's state, whose waiters sleep.
///
/// A spinning thread takes such a lock again as soon as it has released the lock. The mutex passes
/// itself on to a waiting thread after half a millisecond, so every thread gets its turn. A panic
/// of the thread that holds the lock does not poison the value.
pub(crate) type DomainLock<T> = ThreadLock<T, DomainLockMode>;
pub(crate) type DomainGuard<'a, T> = ThreadGuard<'a, T, DomainLockMode>;

/// The lock of a connection, which is held briefly, and whose waiters spin.
pub(crate) type ConnectionLock<T> = ThreadLock<T, ConnectionLockMode>;
pub(crate) type ConnectionLockGuard<'a, T> = ThreadGuard<'a, T, ConnectionLockMode>;

/// How the lock of a domain excludes threads.
#[derive(Clone, Debug)]
pub(crate) enum DomainLockMode {
    /// All threads lock the value, under a raw lock.
    Shared,
    /// This thread locks the value.
    Pinned(NonZeroU64),
    /// One thread at a time locks the value, and enters the flag by locking.
    Serial(Arc<UseFlag>),
}

/// How the lock of a connection excludes threads.
#[derive(Clone, Debug)]
pub enum ConnectionLockMode {
    /// All threads lock the value, under a raw lock.
    Shared,
    /// This thread locks the value.
    Pinned(NonZeroU64),
    /// The thread in the flag of the domain locks the value.
    HeldByDomain(Arc<UseFlag>),
}

/// The mode of a lock, as the locking code sees it.
///
/// # Safety
/// The answers to `is_shared`, `owner` and `flag` do not change. A mode that is not shared and has
/// no flag lets at most one thread at a time lock, and what that thread does happens before
/// `may_lock_here` returns true on the next one.
pub(crate) unsafe trait LockMode {
    /// The lock of threads that share the value.
    type Raw: RawLock;

    /// Returns whether all threads lock the value, under the raw lock.
    fn is_shared(&self) -> bool;

    /// Returns the thread that owns the value.
    fn owner(&self) -> Option<NonZeroU64>;

    /// Returns the flag that a thread enters by locking.
    fn flag(&self) -> Option<&UseFlag>;

    /// Returns whether the calling thread may lock what has this mode.
    fn may_lock_here(&self) -> bool;

    /// Panics, for a call of a thread that may not lock here.
    fn refuse_thread(&self) -> !;
}

/// Returns whether the calling thread is the owner. A thread without an id owns nothing.
#[inline]
fn is_owner(owner: NonZeroU64) -> bool {
    Some(owner) == assigned_thread_id()
}

impl DomainLockMode {
    /// Returns the mode of a domain that the calling thread opens.
    pub(crate) fn new(mode: ThreadMode) -> Self {
        match mode {
            ThreadMode::Shared => Self::Shared,
            ThreadMode::Pinned => Self::Pinned(thread_id()),
            ThreadMode::Serial => Self::Serial(Arc::new(UseFlag::new())),
        }
    }

    /// Returns the mode of the domain's connections, whose locks are also taken under the lock of
    /// the domain.
    pub(crate) fn of_connections(&self) -> ConnectionLockMode {
        match self {
            Self::Shared => ConnectionLockMode::Shared,
            Self::Pinned(owner) => ConnectionLockMode::Pinned(*owner),
            Self::Serial(flag) => ConnectionLockMode::HeldByDomain(flag.clone()),
        }
    }

    /// Returns the flag of a domain that one thread at a time uses.
    pub(crate) fn use_flag(&self) -> Option<&Arc<UseFlag>> {
        match self {
            Self::Serial(flag) => Some(flag),
            Self::Shared | Self::Pinned(_) => None,
        }
    }
}

// SAFETY: an owner stays the same. The flag of `Serial` is the one that locking enters.
unsafe impl LockMode for DomainLockMode {
    type Raw = RawMutex;

    #[inline]
    fn is_shared(&self) -> bool {
        matches!(self, Self::Shared)
    }

    #[inline]
    fn owner(&self) -> Option<NonZeroU64> {
        match self {
            Self::Pinned(owner) => Some(*owner),
            Self::Shared | Self::Serial(_) => None,
        }
    }

    #[inline]
    fn flag(&self) -> Option<&UseFlag> {
        match self {
            Self::Serial(flag) => Some(flag),
            Self::Shared | Self::Pinned(_) => None,
        }
    }

    #[inline]
    fn may_lock_here(&self) -> bool {
        self.owner().is_none_or(is_owner)
    }

    #[cold]
    fn refuse_thread(&self) -> ! {
        panic!("a call on a Pinned domain from a thread that does not own it");
    }
}

// SAFETY: an owner stays the same. One thread at a time is in the flag, and enters it after the
// thread before has left.
unsafe impl LockMode for ConnectionLockMode {
    type Raw = RawSpinLock;

    #[inline]
    fn is_shared(&self) -> bool {
        matches!(self, Self::Shared)
    }

    #[inline]
    fn owner(&self) -> Option<NonZeroU64> {
        match self {
            Self::Pinned(owner) => Some(*owner),
            Self::Shared | Self::HeldByDomain(_) => None,
        }
    }

    #[inline]
    fn flag(&self) -> Option<&UseFlag> {
        None
    }

    #[inline]
    fn may_lock_here(&self) -> bool {
        match self {
            Self::Shared => true,
            Self::Pinned(owner) => is_owner(*owner),
            Self::HeldByDomain(flag) => flag.is_held_by_current_thread(),
        }
    }

    #[cold]
    fn refuse_thread(&self) -> ! {
        panic!("a connection is locked outside of its domain");
    }
}

/// A value that threads share or take in turn, or that one thread owns.
pub(crate) struct ThreadLock<T, M: LockMode> {
    mode: M,
    raw: M::Raw,
    /// Whether a guard exists, unless the raw lock or the flag says so.
    entered: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: as for a mutex. At most one guard exists, so threads access the value one after the
// other; a value with an owner is accessed by one thread, and may be dropped by another.
unsafe impl<T: Send, M: LockMode<Raw: Sync> + Sync> Sync for ThreadLock<T, M> {}

/// Gives access to the value of a [`ThreadLock`] until it is dropped. At most one exists.
pub(crate) struct ThreadGuard<'a, T, M: LockMode> {
    lock: &'a ThreadLock<T, M>,
    /// The thread that locked unlocks.
    _not_send: PhantomData<(*mut (), &'a mut T)>,
}

impl<T, M: LockMode> ThreadLock<T, M> {
    pub(crate) fn new(mode: M, value: T) -> Self {
        Self {
            mode,
            raw: M::Raw::new(),
            entered: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks the value, for a call of the program that waits for other threads.
    ///
    /// # Panics
    /// When this thread may not lock the value, and, unless all threads share the value, when this
    /// thread holds a guard already.
    #[inline(always)] // on the small-message path
    pub(crate) fn lock(&self) -> ThreadGuard<'_, T, M> {
        self.lock_as(Role::User)
    }

    /// Locks the value as [`lock`](Self::lock), in this role.
    #[inline(always)] // on the small-message path
    pub(crate) fn lock_as(&self, role: Role) -> ThreadGuard<'_, T, M> {
        if self.mode.is_shared() {
            self.raw.lock();
        } else {
            self.enter(role);
        }
        self.guard()
    }

    /// Locks the value as [`lock`](Self::lock), for a call of the program that can be refused.
    /// `None` if another user, or this thread, has entered the flag.
    #[inline(always)] // on the small-message path
    pub(crate) fn lock_or_refuse(&self) -> Option<ThreadGuard<'_, T, M>> {
        if self.mode.is_shared() {
            self.raw.lock();
        } else if !self.enter_or_refuse() {
            return None;
        }
        Some(self.guard())
    }

    /// Locks the value for the driver, if it is free and this thread may.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<ThreadGuard<'_, T, M>> {
        let locked = if self.mode.is_shared() {
            self.raw.try_lock()
        } else {
            self.try_enter(Role::Driver)
        };
        locked.then(|| self.guard())
    }

    #[inline(always)] // on the small-message path
    fn guard(&self) -> ThreadGuard<'_, T, M> {
        ThreadGuard {
            lock: self,
            _not_send: PhantomData,
        }
    }

    /// Marks the value as accessed, if one thread owns it, which is this thread, and there is no
    /// guard.
    #[inline(always)] // on the small-message path
    fn try_enter_as_owner(&self) -> bool {
        let is_owner = self.mode.owner().is_some_and(is_owner);
        let is_free = is_owner && !self.entered.load(Ordering::Relaxed);
        if is_free {
            self.entered.store(true, Ordering::Relaxed);
        }
        is_free
    }

    #[inline(never)] // callers of shared locks stay short
    fn enter(&self, role: Role) {
        if !self.try_enter_as_owner() {
            self.enter_flag(role);
        }
    }

    #[inline(never)] // owners of a value stay short
    fn enter_flag(&self, role: Role) {
        let has_entered = match self.mode.flag() {
            Some(flag) => flag.enter(role),
            None => self.try_mark_entered(),
        };
        if !has_entered {
            self.refuse();
        }
    }

    #[inline(never)] // callers of shared locks stay short
    fn enter_or_refuse(&self) -> bool {
        self.try_enter_as_owner() || self.enter_flag_or_refuse()
    }

    #[inline(never)] // owners of a value stay short
    fn enter_flag_or_refuse(&self) -> bool {
        if let Some(flag) = self.mode.flag() {
            return flag.enter_or_refuse();
        }
        if !self.try_mark_entered() {
            self.refuse();
        }
        true
    }

    #[inline]
    fn try_enter(&self, role: Role) -> bool {
        match self.mode.flag() {
            Some(flag) => flag.try_enter(role),
            None => self.try_mark_entered(),
        }
    }

    /// Sets `entered` if this thread may enter and no guard exists. No other thread can set it
    /// meanwhile.
    #[inline(always)] // on the small-message path
    fn try_mark_entered(&self) -> bool {
        // SYNC: pairs with the release in `leave`. A guard may outlast the call that took it.
        let is_free = self.mode.may_lock_here() && !self.entered.load(Ordering::Acquire);
        if is_free {
            self.entered.store(true, Ordering::Relaxed);
        }
        is_free
    }

    /// Marks the value as free.
    #[inline]
    fn leave(&self) {
        match self.mode.flag() {
            Some(flag) => flag.leave(),
            // SYNC: pairs with the acquire in `try_mark_entered`.
            None => self.entered.store(false, Ordering::Release),
        }
    }

    #[cold]
    fn refuse(&self) -> ! {
        if self.mode.may_lock_here() {
            panic!("a waker or a buffer's method called the domain that is calling it");
        }
        self.mode.refuse_thread();
    }
}

impl<T, M: LockMode> Deref for ThreadGuard<'_, T, M> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard.
        unsafe { &*cell_ptr(&self.lock.value) }
    }
}

impl<T, M: LockMode> DerefMut for ThreadGuard<'_, T, M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, borrowed exclusively.
        unsafe { &mut *cell_ptr_mut(&self.lock.value) }
    }
}

impl<T, M: LockMode> Drop for ThreadGuard<'_, T, M> {
    #[inline(always)] // on the small-message path
    fn drop(&mut self) {
        if self.lock.mode.is_shared() {
            // SAFETY: this guard's thread locked the raw lock.
            unsafe { self.lock.raw.unlock() };
        } else {
            self.lock.leave();
        }
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
        fn count_with<M: LockMode<Raw: Sync> + Sync>(mode: M) {
            let lock = ThreadLock::new(mode, 0_u64);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
                }
            });
            assert_eq!(*lock.lock(), 40_000);
        }
        count_with(DomainLockMode::Shared);
        count_with(ConnectionLockMode::Shared);
    }

    #[test]
    fn owner_enters_once_at_a_time() {
        let lock = DomainLock::new(DomainLockMode::new(ThreadMode::Pinned), 1);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        let refused = panic_message(|| drop(lock.lock()));
        assert!(refused.contains("that is calling it"), "{refused}");
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
        let mode = DomainLockMode::new(ThreadMode::Pinned);
        let connection = ConnectionLock::new(mode.of_connections(), vec![1]);
        let lock = DomainLock::new(mode.clone(), vec![1]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!mode.may_lock_here());
                assert!(lock.try_lock().is_none());
                let refused = panic_message(|| drop(lock.lock()));
                assert!(refused.contains("does not own it"), "{refused}");
                assert!(connection.try_lock().is_none());
            });
        });
        assert!(lock.try_lock().is_some() && connection.try_lock().is_some());
        // The value may be dropped on another thread.
        std::thread::scope(|scope| drop(scope.spawn(move || drop(lock))));
    }

    #[test]
    fn serial_lock_refuses_a_second_user() {
        let lock = DomainLock::new(DomainLockMode::new(ThreadMode::Serial), 1);
        let guard = lock.lock_or_refuse().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(lock.lock_or_refuse().is_none() && lock.try_lock().is_none());
            });
        });
        let refused = panic_message(|| drop(lock.lock()));
        assert!(refused.contains("that is calling it"), "{refused}");
        assert_eq!(*guard, 1, "the refused calls changed nothing");
        drop(guard);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("of the holder");
        }));
        assert!(failed.is_err() && lock.lock_or_refuse().is_some());
    }

    #[test]
    fn serial_users_that_wait_lose_no_update() {
        let lock = DomainLock::new(DomainLockMode::new(ThreadMode::Serial), 0);
        std::thread::scope(|scope| {
            for role in [Role::User, Role::User, Role::Driver] {
                let lock = &lock;
                scope.spawn(move || (0..10_000).for_each(|_| *lock.lock_as(role) += 1));
            }
        });
        assert_eq!(*lock.lock(), 30_000);
    }

    #[test]
    fn connections_are_locked_by_the_thread_in_the_flag() {
        let mode = DomainLockMode::new(ThreadMode::Serial);
        let connection = ConnectionLock::new(mode.of_connections(), 0);
        let domain = DomainLock::new(mode, ());
        let refused = panic_message(|| drop(connection.lock()));
        assert!(refused.contains("outside of its domain"), "{refused}");
        let in_domain = domain.lock();
        let guard = connection.lock();
        assert!(connection.try_lock().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(connection.try_lock().is_none()));
        });
        drop((guard, in_domain));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let _in_domain = domain.lock();
                        *connection.lock() += 1;
                    }
                });
            }
        });
        let _in_domain = domain.lock();
        assert_eq!(*connection.lock(), 4000);
    }

    #[test]
    fn locks_that_threads_share_are_not_reentered() {
        let lock = DomainLock::new(DomainLockMode::new(ThreadMode::Shared), ());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none() && lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
