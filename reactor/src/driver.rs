//! The driver: what keeps a domain moving when no application task polls it.
//!
//! Under manual progress a task of the runtime drives, under auto progress a thread; both run the
//! same turns. A driver that wakes makes passes until there has been no news for a while, arms the
//! doorbells and sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::Duration;

use fabric_core::info::Progress;
use fabric_core::transport::WaitSet;
use fabric_core::{Error, Result};

use crate::deferred::Deferred;
use crate::engine::{DriverStatus, Engine};
use crate::sync;
use crate::trace::TraceEvent;
use crate::wait::{EpollSet, SpinBudget, WaitPolicy};

/// How often the thread looks whether the application still polls.
const STANDBY_PERIOD: Duration = Duration::from_millis(1);

/// Turns of a driver that is awake between two looks at the descriptors.
const STEPS_PER_FD_POLL: u32 = 16;

/// What the driver is to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverStep {
    /// Make another turn.
    StepAgain,
    /// Somebody else drives: let others run, then make another turn.
    Yield,
    /// Sleep until the descriptor is readable, or until the waker given to the turn is woken.
    Sleep,
    /// Sleep likewise, but look again soon.
    Standby,
}

/// The state of a driver between its turns.
#[derive(Debug)]
pub(crate) struct DriverState {
    spin_budget: SpinBudget,
    app_polls_seen: u64,
    steps: u32,
}

impl DriverState {
    pub(crate) fn new() -> Self {
        Self {
            spin_budget: SpinBudget::new(),
            app_polls_seen: 0,
            steps: 0,
        }
    }

    /// One turn. `waker` is the driver's own, if it is a task.
    pub(crate) fn step(&mut self, engine: &Engine, waker: Option<&Waker>) -> DriverStep {
        let Some(mut locked) = engine.try_lock() else {
            return DriverStep::Yield;
        };
        let auto = engine.progress_mode == Progress::Auto;
        let polls = engine.app_polls.load(Ordering::Relaxed);
        let application_polls = auto && polls != self.app_polls_seen;
        self.app_polls_seen = polls;
        if application_polls && !locked.armed && !locked.domain.needs_driver(engine.policy) {
            // The application drives in place; a second driver would only be in its way.
            self.spin_budget.stop();
            locked.driver = DriverStatus::Standby;
            return DriverStep::Standby;
        }
        // The descriptors are looked at after a sleep, before one, and now and then between.
        let look = !matches!(locked.driver, DriverStatus::Awake)
            || self.steps.is_multiple_of(STEPS_PER_FD_POLL);
        self.steps = self.steps.wrapping_add(1);
        let news = (look && locked.poll_fds()) | locked.progress();
        if news {
            self.spin_budget.on_progress();
            locked.disarm();
            locked.driver = DriverStatus::Awake;
            return DriverStep::StepAgain;
        }
        if auto || locked.domain.needs_driver(engine.policy) {
            // Armed anew even if armed before: who rang a doorbell took its flag down, and the
            // message may be gone.
            let spins = !locked.armed
                && engine.policy != WaitPolicy::Park
                && self.spin_budget.should_spin();
            if spins || locked.poll_fds() || !locked.arm() {
                locked.driver = DriverStatus::Awake;
                return DriverStep::StepAgain;
            }
        } else if locked.poll_fds() {
            // More was ready than one look takes, and what wakes the driver is only told of
            // changes.
            locked.driver = DriverStatus::Awake;
            return DriverStep::StepAgain;
        }
        self.spin_budget.stop();
        locked.driver = DriverStatus::Asleep(waker.cloned());
        locked.parks += 1;
        DriverStep::Sleep
    }
}

/// Runs the driver of an auto-progress domain on a thread of its own, until the domain is gone.
pub(crate) fn spawn_thread(engine: &Arc<Engine>, name: String) -> Result<()> {
    let (set, engine) = (engine.wait_set.clone(), Arc::downgrade(engine));
    let spawned = thread::Builder::new()
        .name(name)
        .spawn(move || run_thread(&set, &engine));
    spawned
        .map(drop)
        .map_err(|error: io::Error| Error::os("clone", error.raw_os_error().unwrap_or_default()))
}

/// Drives a domain from this thread, until it is gone.
pub(crate) fn run_thread(set: &EpollSet, engine: &Weak<Engine>) {
    let _leave = DriverExitGuard(engine.clone(), "thread");
    Deferred::emit_now(TraceEvent::DriverStarted("thread"));
    let mut turns = DriverState::new();
    loop {
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let next = turns.step(&engine, None);
        drop(engine);
        match next {
            DriverStep::StepAgain => sync::spin_loop(),
            // Where there are fewer cores than threads that look, whoever drives may be waiting for
            // this one.
            DriverStep::Yield => sync::yield_now(),
            // What is ready is looked at in the next turn.
            DriverStep::Sleep => drop(set.wait(None, |_| {})),
            DriverStep::Standby => drop(set.wait(Some(STANDBY_PERIOD), |_| {})),
        }
        if matches!(next, DriverStep::Sleep | DriverStep::Standby) {
            set.drain_wake_eventfd();
        }
    }
}

/// Whoever drove has gone, because its runtime went or because it panicked: from now on tasks keep
/// themselves runnable.
struct DriverExitGuard(Weak<Engine>, &'static str);

impl Drop for DriverExitGuard {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            let mut locked = engine.lock();
            locked.driver = DriverStatus::NotRunning;
            locked.domain.wake_all();
        }
        Deferred::emit_now(TraceEvent::DriverEnded(self.1));
    }
}

/// What a driver that is a task sleeps on: readable when there may be news.
pub struct WaitFd(Arc<EpollSet>);

impl AsFd for WaitFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Drives a domain from a task, for as long as the domain is open.
pub struct TaskDriver {
    wait_set: Arc<EpollSet>,
    engine: Weak<Engine>,
    state: DriverState,
    _exit_guard: DriverExitGuard,
}

impl TaskDriver {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        let (wait_set, engine) = (engine.wait_set.clone(), Arc::downgrade(engine));
        Deferred::emit_now(TraceEvent::DriverStarted("task"));
        Self {
            wait_set,
            _exit_guard: DriverExitGuard(engine.clone(), "task"),
            engine,
            state: DriverState::new(),
        }
    }

    /// What it sleeps on.
    #[must_use]
    pub fn wait_fd(&self) -> WaitFd {
        WaitFd(self.wait_set.clone())
    }

    /// Drives; ready when the domain is gone. `readable` polls the doorbell for having become
    /// readable, and forgets that it was: what comes afterwards makes it readable again. An error
    /// of it ends the driver.
    pub fn poll<E>(
        &mut self,
        cx: &mut Context<'_>,
        mut readable: impl FnMut(&mut Context<'_>) -> Poll<Result<(), E>>,
    ) -> Poll<()> {
        loop {
            let Some(engine) = self.engine.upgrade() else {
                return Poll::Ready(());
            };
            let next = self.state.step(&engine, Some(cx.waker()));
            drop(engine);
            if matches!(next, DriverStep::StepAgain | DriverStep::Yield) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if ready!(readable(cx)).is_err() {
                return Poll::Ready(());
            }
            self.wait_set.drain_wake_eventfd();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Whoever sleeps on the set finds the engine gone and leaves.
        self.wait_set.wake();
    }
}
