//! Models of the locks: at most one thread has the value, the next one sees what it has written,
//! and a thread that is refused touches nothing.
//!
//! loom reports accesses of the value that race: two threads that hold the lock, and a release that
//! does not order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fabric_core::transport::ThreadMode;
use loom::thread;

use crate::sys::thread_lock::{ConnectionLock, DomainLock, DomainLockMode};

/// Runs two calls at the same time, and returns their results.
fn run_both<T: Send + 'static, S>(
    first: impl FnOnce() -> T + Send + 'static,
    second: impl FnOnce() -> S,
) -> (T, S) {
    let first = thread::spawn(first);
    let second = second();
    (first.join().expect("first thread panicked"), second)
}

/// The locks of a domain in mode `Serial`.
struct SerialLocks {
    mode: DomainLockMode,
    domain: DomainLock<u32>,
    connection: ConnectionLock<u32>,
}

impl SerialLocks {
    fn new() -> Arc<Self> {
        let mode = DomainLockMode::new(ThreadMode::Serial);
        Arc::new(Self {
            domain: DomainLock::new(mode.clone(), 0),
            connection: ConnectionLock::new(mode.of_connections(), 0),
            mode,
        })
    }

    fn concurrent_uses(&self) -> u64 {
        let flag = self.mode.use_flag();
        flag.expect("the mode is serial").concurrent_uses()
    }
}

/// In mode `Shared` a call waits for another thread's.
#[test]
fn shared_locks_lose_no_update() {
    loom::model(|| {
        let mode = DomainLockMode::new(ThreadMode::Shared);
        let domain = Arc::new(DomainLock::new(mode.clone(), 0));
        let connection = Arc::new(ConnectionLock::new(mode.of_connections(), 0));
        let other = (domain.clone(), connection.clone());
        let add = |domain: &DomainLock<u32>, connection: &ConnectionLock<u32>| {
            *connection.lock() += 1;
            let passed = domain.try_lock().map(|mut value| *value += 1).is_some();
            *domain.lock() += 1;
            u32::from(passed)
        };
        let (first, second) = run_both(
            move || add(&other.0, &other.1),
            || add(&domain, &connection),
        );
        assert_eq!(
            (*domain.lock(), *connection.lock()),
            (2 + first + second, 2)
        );
    });
}

/// In mode `Pinned` the owner enters while another thread calls. That thread is refused by every
/// call and touches nothing.
#[test]
fn other_thread_is_refused_beside_the_owner() {
    loom::model(|| {
        let mode = DomainLockMode::new(ThreadMode::Pinned);
        let lock = Arc::new(DomainLock::new(mode, 0));
        let shared = lock.clone();
        let refused = move || {
            let add = |lock: &DomainLock<u32>| *lock.lock() += 1;
            let panic = catch_unwind(AssertUnwindSafe(|| add(&shared))).unwrap_err();
            let message = panic.downcast_ref::<&str>();
            assert!(message.is_some_and(|message| message.contains("does not own it")));
            assert!(shared.try_lock().is_none());
        };
        let owner = || {
            for _ in 0..2 {
                *lock.lock() += 1;
                *lock.try_lock().expect("the owner has left") += 1;
            }
        };
        run_both(refused, owner);
        assert_eq!(*lock.lock(), 4);
    });
}

/// In mode `Serial`, of two calls that post at the same time at least one enters. One that is
/// refused changes nothing and is counted. The call in the domain locks connections.
#[test]
fn second_user_is_refused_or_enters_afterwards() {
    loom::model(|| {
        let locks = SerialLocks::new();
        let post = |locks: &SerialLocks| {
            let Some(mut value) = locks.domain.lock_or_refuse() else {
                return 0;
            };
            *value += 1;
            *locks.connection.lock() += 1;
            1
        };
        let others = locks.clone();
        let (first, second) = run_both(move || post(&others), || post(&locks));
        let entered = first + second;
        assert!(entered >= 1);
        let value = locks.domain.lock();
        assert_eq!((*value, *locks.connection.lock()), (entered, entered));
        assert_eq!(locks.concurrent_uses(), u64::from(2 - entered));
    });
}

/// A call that posts beside the driver is never refused: it waits for the end of the pass. The
/// driver skips the pass if the user is inside.
#[test]
fn driver_does_not_refuse_the_user() {
    loom::model(|| {
        let locks = SerialLocks::new();
        let driven = locks.clone();
        let pass = move || {
            driven
                .domain
                .try_lock()
                .map(|mut value| *value += 1)
                .is_some()
        };
        let post = || {
            *locks
                .domain
                .lock_or_refuse()
                .expect("the driver is no user") += 1
        };
        let (passed, ()) = run_both(pass, post);
        assert_eq!(*locks.domain.lock(), 1 + u32::from(passed));
        assert_eq!(locks.concurrent_uses(), 0);
    });
}

/// A poll and a drop of two users wait for each other, and both enter.
#[test]
fn waiting_users_both_enter() {
    loom::model(|| {
        let locks = SerialLocks::new();
        let other = locks.clone();
        run_both(
            move || *other.domain.lock() += 1,
            || *locks.domain.lock() += 1,
        );
        assert_eq!(*locks.domain.lock(), 2);
    });
}
