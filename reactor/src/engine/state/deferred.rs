//! Actions that must not run under a lock: waking tasks, dropping user objects, and emitting
//! `tracing` events.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use fabric_core::buf::AnyBuf;

use super::trace::TraceEvent;

/// Actions that are queued under the lock and run after it is released.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// The first action: mostly there is one, for which no memory is allocated.
    first: Option<DeferredAction>,
    others: Vec<DeferredAction>,
}

#[derive(Debug)]
enum DeferredAction {
    Wake(Waker),
    DropWaker(Waker),
    DropBuffer(AnyBuf),
    EmitTrace(TraceEvent),
}

impl Deferred {
    #[inline(never)] // keeps the callers small
    fn push(&mut self, action: DeferredAction) {
        if self.first.is_none() {
            self.first = Some(action);
        } else {
            self.others.push(action);
        }
    }

    /// Wakes this task after unlocking.
    pub(crate) fn wake(&mut self, waker: Waker) {
        self.push(DeferredAction::Wake(waker));
    }

    /// Drops this waker after unlocking: it may be the last owner of a task, and that task may own
    /// operations.
    pub(crate) fn drop_waker(&mut self, waker: Waker) {
        self.push(DeferredAction::DropWaker(waker));
    }

    /// Drops this buffer after unlocking: its type may be the user's.
    pub(crate) fn drop_buffer(&mut self, buf: AnyBuf) {
        if !matches!(buf, AnyBuf::None) {
            self.push(DeferredAction::DropBuffer(buf));
        }
    }

    /// Emits this event after unlocking: the subscriber may be the user's, and may use the domain.
    pub(crate) fn trace(&mut self, event: TraceEvent) {
        self.push(DeferredAction::EmitTrace(event));
    }

    /// Emits an event at once, where no lock is held. A panic of the subscriber does not reach the
    /// caller.
    pub(crate) fn emit_now(event: TraceEvent) {
        let mut deferred = Self::default();
        deferred.trace(event);
        deferred.run();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Runs all actions. A panic of user code is logged, and the remaining actions run.
    pub(crate) fn run(self) {
        for action in self.first.into_iter().chain(self.others) {
            let ran = catch_unwind(AssertUnwindSafe(|| match action {
                DeferredAction::Wake(waker) => waker.wake(),
                DeferredAction::DropWaker(waker) => drop(waker),
                DeferredAction::DropBuffer(buf) => drop(buf),
                DeferredAction::EmitTrace(event) => event.emit(),
            }));
            if ran.is_err() {
                tracing::error!(target: "fabric::progress", "panic in a waker, in the drop of a buffer, or in a tracing subscriber");
            }
        }
    }
}
