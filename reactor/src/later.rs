//! What must not happen under a lock: waking tasks and dropping what belongs to the user.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use fabric_core::buf::AnyBuf;

/// Collected under the lock, carried out after it is gone.
#[derive(Debug, Default)]
pub(crate) struct Later {
    chores: Vec<Chore>,
}

#[derive(Debug)]
enum Chore {
    Wake(Waker),
    DropWaker(Waker),
    DropBuffer(AnyBuf),
}

impl Later {
    /// Wake this task.
    pub(crate) fn wake(&mut self, waker: Waker) {
        self.chores.push(Chore::Wake(waker));
    }

    /// Drop this waker: it may be the last owner of a task, and that task may own operations.
    pub(crate) fn discard_waker(&mut self, waker: Waker) {
        self.chores.push(Chore::DropWaker(waker));
    }

    /// Drop this buffer: its type may be the user's.
    pub(crate) fn discard(&mut self, buf: AnyBuf) {
        if !matches!(buf, AnyBuf::None) {
            self.chores.push(Chore::DropBuffer(buf));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chores.is_empty()
    }

    /// Carries everything out. A panic of user code is logged and does not keep the rest from happening.
    pub(crate) fn run(self) {
        for chore in self.chores {
            let ran = catch_unwind(AssertUnwindSafe(|| match chore {
                Chore::Wake(waker) => waker.wake(),
                Chore::DropWaker(waker) => drop(waker),
                Chore::DropBuffer(buf) => drop(buf),
            }));
            if ran.is_err() {
                tracing::error!(target: "fabric::progress", "a waker, or the drop of a buffer, panicked");
            }
        }
    }
}
