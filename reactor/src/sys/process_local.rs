//! A value of each process: a forked child has a value of its own.
#![allow(unsafe_code)] // pointer to a leaked value

use std::sync::atomic::{AtomicPtr, Ordering};

use super::fork_guard::ForkGuard;

/// A value of each process, created when it is used first. A forked child does not use the value of
/// its parent, since a lock that a thread of the parent holds stays held in the child.
///
/// Values are leaked: the value of a parent may be in use in its child.
pub(crate) struct ProcessLocal<T: 'static> {
    current: AtomicPtr<ProcessValue<T>>,
    create: fn() -> T,
}

/// The value of the process of the guard.
struct ProcessValue<T> {
    fork_guard: ForkGuard,
    value: T,
}

impl<T: Send + Sync> ProcessLocal<T> {
    /// Creates a value that `create` initialises in each process.
    pub(crate) const fn new(create: fn() -> T) -> Self {
        let current = AtomicPtr::new(std::ptr::null_mut());
        Self { current, create }
    }

    /// Returns the value of this process. Does not block: of two threads that create the value at
    /// the same time, one drops what it has created.
    pub(crate) fn get(&self) -> &'static T {
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: the pointer is null, or points to a value that was leaked.
            if let Some(current) = unsafe { current.as_ref() }
                && current.fork_guard.in_original_process()
            {
                return &current.value;
            }
            let own = Box::into_raw(Box::new(ProcessValue {
                fork_guard: ForkGuard::current_process(),
                value: (self.create)(),
            }));
            // SYNC: the release pairs with the acquire above.
            let exchanged =
                self.current
                    .compare_exchange(current, own, Ordering::AcqRel, Ordering::Relaxed);
            if exchanged.is_err() {
                // SAFETY: the exchange failed, so no other thread has seen this value.
                drop(unsafe { Box::from_raw(own) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn threads_of_a_process_share_one_value() {
        static VALUE: ProcessLocal<Mutex<u32>> = ProcessLocal::new(Mutex::default);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| *VALUE.get().lock().unwrap() += 1);
            }
        });
        assert_eq!(*VALUE.get().lock().unwrap(), 8);
    }
}
