//! Actions that must not run under a lock: waking tasks, dropping user objects, and emitting
//! `tracing` events.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use fabric_core::buf::AnyBuf;

use super::trace::TraceEvent;

/// Actions that are queued under the lock and run after it is released, and the number of tasks
/// that wait: the number of [`WakerSlot`]s with a waker.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    actions: DeferredActions,
    waiting: usize,
}

/// Actions to run without the lock.
#[derive(Debug, Default)]
pub(crate) struct DeferredActions {
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
        let DeferredActions { first, others } = &mut self.actions;
        if first.is_none() {
            *first = Some(action);
        } else {
            others.push(action);
        }
    }

    /// Returns the number of waiting tasks.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Wakes a task that is not counted as waiting, after unlocking.
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
        deferred.actions.run();
    }

    /// Returns whether no action is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.actions.first.is_none()
    }

    /// Takes the actions, to be run without the lock.
    pub(crate) fn take_actions(&mut self) -> DeferredActions {
        std::mem::take(&mut self.actions)
    }
}

/// Holds the waker of a task while it waits; [`Deferred`] counts the wakers of all slots.
#[derive(Debug, Default)]
pub(crate) struct WakerSlot(Option<Waker>);

impl WakerSlot {
    pub(crate) const EMPTY: Self = Self(None);

    /// Registers the waker of a task, in place of an earlier one.
    pub(crate) fn register(&mut self, waker: &Waker, deferred: &mut Deferred) {
        match &mut self.0 {
            Some(registered) if registered.will_wake(waker) => {}
            Some(registered) => {
                deferred.drop_waker(std::mem::replace(registered, waker.clone()));
            }
            empty => {
                *empty = Some(waker.clone());
                deferred.waiting += 1;
            }
        }
    }

    /// Takes the waker while its task polls.
    #[inline]
    pub(crate) fn take(&mut self, deferred: &mut Deferred) -> Option<Waker> {
        let waker = self.0.take()?;
        deferred.waiting -= 1;
        Some(waker)
    }

    /// Registers the waker of a task: `taken`, which was [taken](Self::take) before, if it wakes
    /// the same task.
    pub(crate) fn restore(&mut self, taken: Option<Waker>, waker: &Waker, deferred: &mut Deferred) {
        match taken {
            Some(same) if self.0.is_none() && same.will_wake(waker) => {
                self.0 = Some(same);
                deferred.waiting += 1;
            }
            taken => {
                if let Some(other) = taken {
                    deferred.drop_waker(other);
                }
                self.register(waker, deferred);
            }
        }
    }

    /// Wakes the waiting task after unlocking, if there is one.
    #[inline]
    pub(crate) fn wake(&mut self, deferred: &mut Deferred) {
        if let Some(waker) = self.take(deferred) {
            deferred.wake(waker);
        }
    }

    /// Drops the waker of a task that no longer waits, after unlocking.
    #[inline]
    pub(crate) fn clear(&mut self, deferred: &mut Deferred) {
        if let Some(waker) = self.take(deferred) {
            deferred.drop_waker(waker);
        }
    }

    /// Returns whether no task waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl DeferredActions {
    /// Runs all actions. A panic of user code is logged, and the remaining actions run.
    pub(crate) fn run(self) {
        for action in self.first.into_iter().chain(self.others) {
            let has_returned = contain_panic(|| match action {
                DeferredAction::Wake(waker) => waker.wake(),
                DeferredAction::DropWaker(waker) => drop(waker),
                DeferredAction::DropBuffer(buf) => drop(buf),
                DeferredAction::EmitTrace(event) => event.emit(),
            });
            if !has_returned {
                // The subscriber may be what panicked, and may panic again.
                contain_panic(|| {
                    tracing::error!(
                        target: "fabric::progress",
                        "panic in a waker, in the drop of a buffer, or in a tracing subscriber"
                    );
                });
            }
        }
    }
}

/// Calls user code, and returns whether it has returned: false after a panic. The payload of the
/// panic is leaked, because its drop is user code that may panic too.
fn contain_panic(user_code: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(user_code)) {
        Ok(()) => true,
        Err(payload) => {
            std::mem::forget(payload);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// A panic payload, the drop of which panics.
    struct PanickingPayload;

    impl Drop for PanickingPayload {
        fn drop(&mut self) {
            panic!("drop of a panic payload");
        }
    }

    /// A waker or a subscriber that counts its calls and panics in each.
    struct PanickingUserCode(Arc<AtomicUsize>);

    impl PanickingUserCode {
        fn count_and_panic(&self) -> ! {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::panic::panic_any(PanickingPayload)
        }
    }

    impl Wake for PanickingUserCode {
        fn wake(self: Arc<Self>) {
            self.count_and_panic()
        }
    }

    impl Subscriber for PanickingUserCode {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn event(&self, _: &Event<'_>) {
            self.count_and_panic()
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// Neither a subscriber that panics in every event nor a panic payload whose drop panics
    /// prevents the actions that follow.
    #[test]
    fn all_actions_run_although_each_panics() {
        let (wakes, events) = (Arc::default(), Arc::default());
        let waker = || Waker::from(Arc::new(PanickingUserCode(Arc::clone(&wakes))));
        let mut deferred = Deferred::default();
        for _ in 0..3 {
            deferred.wake(waker());
            deferred.trace(TraceEvent::DriverStarted("test"));
        }
        deferred.wake(waker());
        let actions = deferred.take_actions();
        tracing::subscriber::with_default(PanickingUserCode(Arc::clone(&events)), || {
            actions.run();
            Deferred::emit_now(TraceEvent::DriverEnded("test"));
        });
        assert_eq!(wakes.load(Ordering::Relaxed), 4);
        // The four events of the domain, and an error for each of the eight panics.
        assert_eq!(events.load(Ordering::Relaxed), 4 + 8);
    }
}
