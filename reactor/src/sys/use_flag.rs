//! The flag of a domain that one thread at a time uses: who is in the domain.
//!
//! The program promises that its threads call the domain one after the other. The flag keeps the
//! domain sound if the program breaks the promise: it is entered by a compare-exchange, which
//! notices a second user, and left by a plain store. The driver is no user. It makes bounded
//! passes, and users wait for their end.
//!
//! **Invariant.** The id of a thread is in the word from that thread's successful compare-exchange
//! to its own store in `leave`. So a thread that reads its own id holds the flag, and no other
//! thread does.

use std::num::NonZeroU64;

use super::sync::{AtomicU64, Backoff, Ordering};
use super::thread_id::thread_id;

/// The word of a flag while no thread is in the domain.
const FREE: u64 = 0;
/// The bit of the word that says that the thread is the driver.
const DRIVER: u64 = 1;

/// Who enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A call of the program.
    User,
    /// A pass that the program has not called: of the driver, or for the reader of an event queue.
    Driver,
}

/// Who is in the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupant {
    /// A call of another thread.
    User,
    /// A pass of another thread.
    Driver,
    /// This thread: it runs code of the program in the domain.
    ThisThread,
}

/// The flag of a domain.
#[derive(Debug)]
pub struct UseFlag {
    /// [`FREE`], or twice the id of the thread in the domain, plus [`DRIVER`] for a pass.
    word: AtomicU64,
    /// The number of calls that found another user in the domain.
    concurrent_uses: AtomicU64,
}

impl UseFlag {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(FREE),
            concurrent_uses: AtomicU64::new(0),
        }
    }

    /// Enters if no thread is in the domain.
    #[inline]
    pub(crate) fn try_enter(&self, role: Role) -> bool {
        self.enter_if_free(role, thread_id()).is_ok()
    }

    /// Enters for a call of the program. Waits for a pass to end. Returns false if another user is
    /// in the domain, which is counted, or this thread.
    #[inline(never)] // callers without a flag stay short
    pub(crate) fn enter_or_refuse(&self) -> bool {
        let thread = thread_id();
        let mut backoff = Backoff::default();
        loop {
            match self.enter_if_free(Role::User, thread) {
                Ok(()) => return true,
                Err(Occupant::Driver) => backoff.pause(),
                Err(Occupant::User) => {
                    self.count_concurrent_use();
                    return false;
                }
                Err(Occupant::ThisThread) => return false,
            }
        }
    }

    /// Enters when no thread is in the domain. A call of the program that waits for another user is
    /// counted when it begins to wait. Returns false if this thread is in the domain.
    #[inline(never)] // callers without a flag stay short
    pub(crate) fn enter(&self, role: Role) -> bool {
        let thread = thread_id();
        let mut backoff = Backoff::default();
        let mut has_met_user = false;
        loop {
            match self.enter_if_free(role, thread) {
                Ok(()) => return true,
                Err(Occupant::ThisThread) => return false,
                Err(Occupant::User) if role == Role::User && !has_met_user => {
                    has_met_user = true;
                    self.count_concurrent_use();
                }
                Err(_) => backoff.pause(),
            }
        }
    }

    /// Leaves the domain. Only the thread that is in the domain leaves it.
    #[inline]
    pub(crate) fn leave(&self) {
        debug_assert!(self.is_held_by_current_thread());
        // SYNC: pairs with the acquire in `enter_if_free`.
        self.word.store(FREE, Ordering::Release);
    }

    /// Returns whether this thread is in the domain.
    #[inline]
    pub(crate) fn is_held_by_current_thread(&self) -> bool {
        // No other thread writes the id of this one, so no order is needed.
        self.word.load(Ordering::Relaxed) >> 1 == thread_id().get()
    }

    /// Returns how many calls found another user in the domain.
    pub(crate) fn concurrent_uses(&self) -> u64 {
        self.concurrent_uses.load(Ordering::Relaxed)
    }

    #[inline]
    fn enter_if_free(&self, role: Role, thread: NonZeroU64) -> Result<(), Occupant> {
        let thread = thread.get();
        let word = match role {
            Role::User => thread << 1,
            Role::Driver => thread << 1 | DRIVER,
        };
        // SYNC: pairs with the release in `leave`.
        let entered = self
            .word
            .compare_exchange(FREE, word, Ordering::Acquire, Ordering::Relaxed);
        match entered {
            Ok(_) => Ok(()),
            Err(other) if other >> 1 == thread => Err(Occupant::ThisThread),
            Err(other) if other & DRIVER != 0 => Err(Occupant::Driver),
            Err(_) => Err(Occupant::User),
        }
    }

    #[cold]
    fn count_concurrent_use(&self) {
        self.concurrent_uses.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Calls `act` on another thread.
    fn on_another_thread<T: Send>(act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(act).join().unwrap())
    }

    #[test]
    fn second_user_is_refused_and_counted() {
        let flag = UseFlag::new();
        assert!(flag.enter_or_refuse());
        assert!(!on_another_thread(|| flag.enter_or_refuse()));
        assert!(!on_another_thread(|| flag.try_enter(Role::Driver)));
        assert!(!on_another_thread(|| flag.is_held_by_current_thread()));
        assert!(
            flag.is_held_by_current_thread(),
            "the first user is unharmed"
        );
        assert_eq!(flag.concurrent_uses(), 1, "the driver is no user");
        flag.leave();
        assert!(on_another_thread(|| flag.enter_or_refuse()));
    }

    #[test]
    fn call_from_within_a_call_does_not_enter() {
        let flag = UseFlag::new();
        for role in [Role::User, Role::Driver] {
            assert!(flag.enter(role));
            assert!(!flag.enter(Role::User) && !flag.enter_or_refuse());
            flag.leave();
        }
        assert_eq!(flag.concurrent_uses(), 0, "one thread is one user");
    }

    #[test]
    fn waiting_users_enter_one_after_the_other() {
        let flag = UseFlag::new();
        let total = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for role in [Role::User, Role::User, Role::Driver] {
                let (flag, total) = (&flag, &total);
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        assert!(flag.enter(role));
                        // Not atomic: the flag excludes the others.
                        let seen = total.load(Ordering::Relaxed);
                        total.store(seen + 1, Ordering::Relaxed);
                        flag.leave();
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 30_000);
    }

    #[test]
    fn waiting_user_is_counted_once_when_it_begins_to_wait() {
        let flag = UseFlag::new();
        std::thread::scope(|scope| {
            assert!(flag.enter_or_refuse());
            let waiting = scope.spawn(|| flag.enter(Role::User));
            let driver = scope.spawn(|| {
                assert!(flag.enter(Role::Driver));
                flag.leave();
            });
            while flag.concurrent_uses() == 0 {
                std::thread::yield_now();
            }
            flag.leave();
            assert!(waiting.join().unwrap());
            assert_eq!(flag.concurrent_uses(), 1);
            flag.word.store(FREE, Ordering::Release);
            driver.join().unwrap();
        });
        assert_eq!(flag.concurrent_uses(), 1, "the driver is not counted");
    }

    #[test]
    fn user_waits_for_the_driver_and_is_not_counted() {
        let flag = UseFlag::new();
        std::thread::scope(|scope| {
            assert!(flag.try_enter(Role::Driver));
            let user = scope.spawn(|| flag.enter_or_refuse());
            flag.leave();
            assert!(user.join().unwrap());
        });
        assert_eq!(flag.concurrent_uses(), 0);
    }
}
