//! What must not happen under a lock: waking tasks, dropping what belongs to the user, and
//! telling the subscriber of `tracing`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use fabric_core::buf::AnyBuf;

use crate::trace::TraceEvent;

/// Collected under the lock, carried out after it is gone.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    actions: Vec<DeferredAction>,
}

#[derive(Debug)]
enum DeferredAction {
    Wake(Waker),
    DropWaker(Waker),
    DropBuffer(AnyBuf),
    EmitTrace(TraceEvent),
}

impl Deferred {
    /// Wake this task.
    pub(crate) fn wake(&mut self, waker: Waker) {
        self.actions.push(DeferredAction::Wake(waker));
    }

    /// Drop this waker: it may be the last owner of a task, and that task may own operations.
    pub(crate) fn drop_waker(&mut self, waker: Waker) {
        self.actions.push(DeferredAction::DropWaker(waker));
    }

    /// Drop this buffer: its type may be the user's.
    pub(crate) fn drop_buffer(&mut self, buf: AnyBuf) {
        if !matches!(buf, AnyBuf::None) {
            self.actions.push(DeferredAction::DropBuffer(buf));
        }
    }

    /// Tell the subscriber of this: it may be the user's, and use the domain.
    pub(crate) fn trace(&mut self, note: TraceEvent) {
        self.actions.push(DeferredAction::EmitTrace(note));
    }

    /// Tells at once, where there is no lock. A panic of the subscriber is the caller's as little
    /// as one of a waker.
    pub(crate) fn emit_now(note: TraceEvent) {
        let mut later = Self::default();
        later.trace(note);
        later.run();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Carries everything out. A panic of user code is logged and does not keep the rest from
    /// happening.
    pub(crate) fn run(self) {
        for chore in self.actions {
            let ran = catch_unwind(AssertUnwindSafe(|| match chore {
                DeferredAction::Wake(waker) => waker.wake(),
                DeferredAction::DropWaker(waker) => drop(waker),
                DeferredAction::DropBuffer(buf) => drop(buf),
                DeferredAction::EmitTrace(note) => note.emit(),
            }));
            if ran.is_err() {
                tracing::error!(target: "fabric::progress", "a waker, the drop of a buffer, or a subscriber panicked");
            }
        }
    }
}
