//! What must not happen under a lock: waking tasks, dropping what belongs to the user, and
//! telling the subscriber of `tracing`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use fabric_core::buf::AnyBuf;

use crate::notes::Note;

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
    Tell(Note),
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

    /// Tell the subscriber of this: it may be the user's, and use the domain.
    pub(crate) fn note(&mut self, note: Note) {
        self.chores.push(Chore::Tell(note));
    }

    /// Tells at once, where there is no lock. A panic of the subscriber is the caller's as little
    /// as one of a waker.
    pub(crate) fn tell(note: Note) {
        let mut later = Self::default();
        later.note(note);
        later.run();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chores.is_empty()
    }

    /// Carries everything out. A panic of user code is logged and does not keep the rest from
    /// happening.
    pub(crate) fn run(self) {
        for chore in self.chores {
            let ran = catch_unwind(AssertUnwindSafe(|| match chore {
                Chore::Wake(waker) => waker.wake(),
                Chore::DropWaker(waker) => drop(waker),
                Chore::DropBuffer(buf) => drop(buf),
                Chore::Tell(note) => note.tell(),
            }));
            if ran.is_err() {
                tracing::error!(target: "fabric::progress", "a waker, the drop of a buffer, or a subscriber panicked");
            }
        }
    }
}
