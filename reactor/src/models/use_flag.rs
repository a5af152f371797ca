//! Models of the flag of a domain that one thread at a time uses: one thread is inside, and what it
//! has written is seen by the next.

use std::sync::Arc;

use loom::thread;

use crate::sys::sync::{AtomicU32, Ordering};
use crate::sys::use_flag::{Role, UseFlag};

/// A flag, and a value that only the thread in the flag uses. The value is loaded and stored
/// without order: an increment is lost if two threads are in the flag, or if entering does not
/// order.
struct Guarded {
    flag: UseFlag,
    value: AtomicU32,
}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flag: UseFlag::new(),
            value: AtomicU32::new(0),
        })
    }

    /// Increments the value and leaves, as the thread in the flag.
    fn increment_and_leave(&self) {
        let value = self.value.load(Ordering::Relaxed);
        self.value.store(value + 1, Ordering::Relaxed);
        self.flag.leave();
    }

    /// Returns the value, of which no other thread is a user.
    fn value(&self) -> u32 {
        assert!(self.flag.enter(Role::User));
        let value = self.value.load(Ordering::Relaxed);
        self.flag.leave();
        value
    }
}

/// Two users post at the same time: at least one enters, and one that is refused changes nothing.
#[test]
fn second_user_is_refused_or_enters_afterwards() {
    loom::model(|| {
        let guarded = Guarded::new();
        let post = |guarded: &Guarded| {
            let has_entered = guarded.flag.enter_or_refuse();
            if has_entered {
                guarded.increment_and_leave();
            }
            u32::from(has_entered)
        };
        let other = {
            let guarded = guarded.clone();
            thread::spawn(move || post(&guarded))
        };
        let entered = post(&guarded) + other.join().unwrap();
        assert!(entered >= 1);
        assert_eq!(guarded.value(), entered);
        assert_eq!(guarded.flag.concurrent_uses(), u64::from(2 - entered));
    });
}

/// A user that posts beside the driver is never refused: it waits for the end of the pass. The
/// driver skips the pass if the user is inside.
#[test]
fn driver_does_not_refuse_the_user() {
    loom::model(|| {
        let guarded = Guarded::new();
        let driver = {
            let guarded = guarded.clone();
            thread::spawn(move || {
                let has_entered = guarded.flag.try_enter(Role::Driver);
                if has_entered {
                    guarded.increment_and_leave();
                }
                u32::from(has_entered)
            })
        };
        assert!(guarded.flag.enter_or_refuse());
        guarded.increment_and_leave();
        let passes = driver.join().unwrap();
        assert_eq!(guarded.value(), 1 + passes);
        assert_eq!(guarded.flag.concurrent_uses(), 0);
    });
}

/// A poll and a drop of two users wait for each other, and both enter.
#[test]
fn waiting_users_both_enter() {
    loom::model(|| {
        let guarded = Guarded::new();
        let enter = |guarded: &Guarded| {
            assert!(guarded.flag.enter(Role::User));
            assert!(guarded.flag.is_held_by_current_thread());
            guarded.increment_and_leave();
            assert!(!guarded.flag.is_held_by_current_thread());
        };
        let other = {
            let guarded = guarded.clone();
            thread::spawn(move || enter(&guarded))
        };
        enter(&guarded);
        other.join().unwrap();
        assert_eq!(guarded.value(), 2);
    });
}
