//! The driver: makes progress when no application task polls the domain.
//!
//! Under manual progress a task of the runtime drives, under automatic progress a thread; both run
//! the same steps (`driver_phase` has the kinds of drivers, and their phases). A driver that wakes
//! makes passes until nothing has arrived for a while, arms the doorbells and sleeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::Duration;
use std::{fmt, io};

use fabric_core::transport::WaitSet;
use fabric_core::{Error, Result};

use super::driver_phase::{DriverKind, DriverPhase};
use super::progress::Engine;
use super::state::deferred::Deferred;
use super::state::trace::TraceEvent;
use super::wait_fd::WaitFd;
use super::wait_policy::SpinBudget;
use crate::sys::EpollSet;
use crate::sys::sync;
use crate::sys::thread_lock::{DomainLockMode, LockMode};

/// Interval at which the driver thread checks whether the application still polls.
const STANDBY_PERIOD: Duration = Duration::from_millis(1);

/// Steps of an awake driver between two polls of the descriptors.
const STEPS_PER_FD_POLL: u32 = 16;

/// What the driver does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverStep {
    /// Make another step.
    StepAgain,
    /// Yield to other threads or tasks, which hold the lock, and make another step.
    Yield,
    /// Sleep until the descriptor is readable, or until the waker passed to the step is woken.
    Sleep,
    /// Sleep as for [`Sleep`](Self::Sleep), but for at most [`STANDBY_PERIOD`].
    Standby,
}

/// The state of a driver between its steps.
#[derive(Debug)]
pub(crate) struct DriverState {
    spin_budget: SpinBudget,
    app_polls_seen: u64,
    steps: u32,
}

impl DriverState {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self {
            spin_budget: engine.waits.spin_budget(),
            app_polls_seen: 0,
            steps: 0,
        }
    }

    /// Makes one step. `waker` is the driver's own waker if the driver is a task.
    pub(crate) fn step(&mut self, engine: &Engine, waker: Option<&Waker>) -> DriverStep {
        let Some(mut locked) = engine.try_lock() else {
            return DriverStep::Yield;
        };
        locked.report_concurrent_use();
        let is_thread = engine.driver_kind == DriverKind::Thread;
        let polls = engine.app_polls.load(Ordering::Relaxed);
        let application_polls = is_thread && polls != self.app_polls_seen;
        self.app_polls_seen = polls;
        if application_polls && !locked.armed && !locked.needs_driver() {
            // The application drives in place, and a second driver would contend for the lock.
            self.spin_budget.stop();
            locked.driver = DriverPhase::Standby;
            return DriverStep::Standby;
        }
        // The descriptors are polled after a sleep, before one, and every `STEPS_PER_FD_POLL`
        // steps.
        let poll_fds = !matches!(locked.driver, DriverPhase::Awake)
            || self.steps.is_multiple_of(STEPS_PER_FD_POLL);
        self.steps = self.steps.wrapping_add(1);
        let progressed = (poll_fds && locked.poll_fds()) | locked.progress();
        if progressed {
            self.spin_budget.on_progress();
            locked.disarm();
            locked.driver = DriverPhase::Awake;
            return DriverStep::StepAgain;
        }
        if is_thread || locked.needs_driver() {
            // Arms again even if armed before: a peer that rang a doorbell has cleared its flag,
            // and its message may have been read from the socket already.
            let spins =
                !locked.armed && engine.waits.driver_spins() && self.spin_budget.should_spin();
            if spins || locked.poll_fds() || !locked.arm() {
                locked.driver = DriverPhase::Awake;
                return DriverStep::StepAgain;
            }
        } else if locked.poll_fds() {
            // More was ready than one poll of the set returns, and the driver is woken by changes
            // only (edge-triggered).
            locked.driver = DriverPhase::Awake;
            return DriverStep::StepAgain;
        }
        self.spin_budget.sleep();
        locked.driver = DriverPhase::Asleep(waker.cloned());
        locked.parks += 1;
        DriverStep::Sleep
    }
}

/// Spawns the driver thread of an auto-progress domain; it runs until the domain is closed.
pub(crate) fn spawn_thread(engine: &Arc<Engine>, name: String) -> Result<()> {
    let (set, engine) = (engine.wait_set.clone(), Arc::downgrade(engine));
    let spawned = thread::Builder::new()
        .name(name)
        .spawn(move || run_thread(&set, &engine));
    spawned
        .map(drop)
        .map_err(|error: io::Error| Error::os("clone", error.raw_os_error().unwrap_or_default()))
}

/// Drives a domain from this thread until the domain is closed.
pub(crate) fn run_thread(set: &EpollSet, engine: &Weak<Engine>) {
    let Some(open) = engine.upgrade() else {
        return;
    };
    let _exit_guard = DriverExitGuard::new(&open);
    let mut state = DriverState::new(&open);
    drop(open);
    loop {
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let next = state.step(&engine, None);
        drop(engine);
        match next {
            DriverStep::StepAgain => sync::spin_loop(),
            // With fewer cores than spinning threads, the thread that holds the lock may be waiting
            // for this core.
            DriverStep::Yield => sync::yield_now(),
            // Ready descriptors are handled in the next step.
            DriverStep::Sleep => drop(set.wait(None, |_| {})),
            DriverStep::Standby => drop(set.wait(Some(STANDBY_PERIOD), |_| {})),
        }
        if matches!(next, DriverStep::Sleep | DriverStep::Standby) {
            set.drain_wake_eventfd();
        }
    }
}

/// Marks the driver as not running when it ends, because its runtime was shut down or it panicked,
/// and reports that as an event of the domain. From then on waiting tasks keep themselves runnable.
struct DriverExitGuard {
    engine: Weak<Engine>,
    lock_mode: DomainLockMode,
    /// Set on a thread that cannot lock the domain.
    ended_elsewhere: Arc<AtomicBool>,
    kind: DriverKind,
}

impl DriverExitGuard {
    fn new(engine: &Arc<Engine>) -> Self {
        Deferred::emit_now(TraceEvent::DriverStarted(engine.driver_kind.name()));
        Self {
            lock_mode: engine.lock_mode.clone(),
            ended_elsewhere: engine.driver_ended_off_thread.clone(),
            engine: Arc::downgrade(engine),
            kind: engine.driver_kind,
        }
    }
}

impl Drop for DriverExitGuard {
    fn drop(&mut self) {
        if !self.lock_mode.may_lock_here() {
            self.ended_elsewhere.store(true, Ordering::Relaxed);
        } else if let Some(engine) = self.engine.upgrade() {
            engine.lock_for_progress().end_driver();
        }
        Deferred::emit_now(TraceEvent::DriverEnded(self.kind.name()));
    }
}

/// Drives a domain from a task until the domain is closed. The driver of a domain that one thread
/// owns ends when it is polled on another thread.
pub struct TaskDriver {
    wait_set: Arc<EpollSet>,
    engine: Weak<Engine>,
    state: DriverState,
    exit_guard: DriverExitGuard,
}

impl TaskDriver {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self {
            wait_set: engine.wait_set.clone(),
            engine: Arc::downgrade(engine),
            exit_guard: DriverExitGuard::new(engine),
            state: DriverState::new(engine),
        }
    }

    /// Returns the descriptor on which the driver sleeps.
    #[must_use]
    pub fn wait_fd(&self) -> WaitFd {
        WaitFd::from(self.wait_set.clone())
    }

    /// Drives the domain; ready when the domain is closed. `readable` polls the descriptor for
    /// readability and clears the readiness, so that later changes make it readable again. An error
    /// of `readable` ends the driver.
    pub fn poll<E>(
        &mut self,
        cx: &mut Context<'_>,
        mut readable: impl FnMut(&mut Context<'_>) -> Poll<Result<(), E>>,
    ) -> Poll<()> {
        loop {
            if !self.exit_guard.lock_mode.may_lock_here() {
                return Poll::Ready(());
            }
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
        // A driver that sleeps on the set wakes up, finds the engine gone and ends.
        self.wait_set.wake();
    }
}

/// Wakes the driver of a domain, from threads that may not make progress in the domain.
#[derive(Clone, Debug)]
pub struct DomainWaker {
    lock_mode: DomainLockMode,
    wait_set: Weak<EpollSet>,
}

impl DomainWaker {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self {
            lock_mode: engine.lock_mode.clone(),
            wait_set: Arc::downgrade(&engine.wait_set),
        }
    }

    /// Returns whether the calling thread may make progress in the domain.
    #[must_use]
    pub fn may_lock_here(&self) -> bool {
        self.lock_mode.may_lock_here()
    }

    /// Wakes the driver, which makes a pass, or makes the descriptor of a domain in an event loop
    /// readable.
    pub fn wake(&self) {
        if let Some(wait_set) = self.wait_set.upgrade() {
            wait_set.wake();
        }
    }
}

impl fmt::Debug for TaskDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskDriver")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
