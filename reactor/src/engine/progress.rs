//! The engine of a domain: the domain's state and its transport under one lock, and what makes
//! progress.
//!
//! # The lock
//!
//! One mutex guards slots, matching, queues and what arrives over the domain. Critical sections are
//! bounded (a pass moves a bounded number of bytes), with two exceptions: an unread loan that is
//! taken back is copied whole, and `process_vm_readv` waits for slow memory of the sender. Wakers
//! are called and buffers dropped after unlocking (`Deferred`). User code that runs under the lock
//! is the clone of a waker and the methods of a `CustomBuf`.
//!
//! Lock order: the domain first. A connection over shared memory has a lock of its own, taken alone
//! or under the domain's, never before it. The lock of loans is taken last. In mode `Shared` an
//! uncontended lock costs two atomic operations per call. The alternative is a leader/follower
//! scheme with a try-lock and a "missed" flag, in which another step can lose wake-ups. It saves
//! nothing, because the lock is held for a fraction of a microsecond.
//!
//! A domain that one thread owns has the same locks without atomic operations (`sys/thread_lock`).
//! Other threads wake its driver instead of locking the domain.
//!
//! In a domain that one thread at a time uses (`Serial`), the lock is a flag that says who is in
//! the domain (`sys/use_flag`), and connections have no lock of their own: a call enters the flag
//! once, also a send over the fast path (`fast_path`). A call that finds another user is refused if
//! it posts or configures ([`Engine::lock_or_refuse`]). A call that polls, ends or drops something
//! waits for the other user, as for a mutex, so no completion and no cancellation is lost. Both are
//! counted, and an event reports the first. The driver is no user: users wait for the end of its
//! pass.
//!
//! # Progress
//!
//! A poll of an operation or a queue drives the domain for up to a few microseconds. The *driver*
//! makes progress when no task polls: a task of the runtime (manual progress) or a thread
//! (automatic progress). The driver belongs to no operation, because the task that polled last may
//! be dropped or busy. An application that polls under automatic progress drives in place; the
//! thread then only watches.
//!
//! **Invariant.** Whenever the lock is free and a task waits for something of this domain, at least
//! one holds: (1) the driver is awake and will make another pass; (2) the domain is *armed*: every
//! peer rings its doorbell with its next message, and the driver sleeps on the doorbells; (3) the
//! waiting tasks keep themselves runnable (policy spin, or the driver is gone). With automatic
//! progress (1) or (2) holds even if no task waits, within one period of the thread's watch. Where
//! an event loop of the program drives the domain (`event_loop`), the domain is armed or its
//! wake-up eventfd is readable whenever the lock is free, also if no task waits. The invariant is
//! modelled in `models/progress` and `models/event_loop`.
//!
//! A driver that finds the lock taken skips its step, with any thread model. No wake-up is lost,
//! because it then stays awake: `DriverStep::Yield` makes another step, and only a step with the
//! lock makes the driver sleep. So unlocking does not check whether a driver was kept out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};

use fabric_core::completion::Outcome;
use fabric_core::event::EventKind;
use fabric_core::transport::{EpId, OpKey, OpenDomain, RxEngine, TransportDomain, WaitSet};

use super::driver_phase::{DriverKind, DriverPhase};
use super::endpoint_table::EndpointTable;
use super::state::deferred::DeferredActions;
use super::state::domain_state::DomainState;
use super::state::pending_work::FollowUp;
use super::state::regions::SharedRegions;
use super::state::update_queue::UpdateQueue;
use super::wait_policy::{PollSpinner, WaitRules};
use crate::sys::EpollSet;
use crate::sys::fork_guard::ForkGuard;
use crate::sys::thread_lock::{
    ConnectionLockMode, DomainGuard, DomainLock, DomainLockMode, LockMode,
};
use crate::sys::use_flag::Role;

/// A transport whose domains run under this engine.
pub type EngineTransport = dyn OpenDomain<DomainState, ConnectionLockMode>;

/// The domain of an [`EngineTransport`].
pub(crate) type EngineTransportDomain = dyn TransportDomain<DomainState>;

/// Posts between two polls of the descriptors: a program that only posts, and whose posts all
/// complete inline, also has to notice the end of a peer.
const POSTS_PER_FD_POLL: u32 = if cfg!(loom) { 1 } else { 64 };

/// Number of connections on which something has moved, after which a poll ends and its task is
/// woken, so that other tasks of the executor run in between. In a pass a connection receives up to
/// 64 KiB over `shm`, and up to 128 KiB over `tcp`. So a poll receives 1 to 2 MiB, which takes less
/// than a millisecond, or makes one pass over more connections.
const MAX_MOVED_PER_POLL: u64 = 16;

/// Passes between two polls of the descriptors while a thread spins, for new connections and dead
/// peers.
const PASSES_PER_FD_POLL: u64 = 2048;

pub(crate) struct EngineState {
    pub(crate) transport: Box<EngineTransportDomain>,
    /// Dropped before the operations: a transport may have borrowed their buffers.
    pub(crate) endpoints: EndpointTable,
    pub(crate) domain: DomainState,
    /// A forked child makes no progress: the connections belong to the parent.
    pub(crate) fork_guard: ForkGuard,
    pub(crate) driver: DriverPhase,
    pub(crate) armed: bool,
    pub(crate) spinner: PollSpinner,
    /// The number of passes.
    pub(crate) passes: u64,
    /// The sum over all passes of the connections on which something moved. Limits what one poll
    /// moves.
    pub(crate) moved_connections: u64,
    /// The number of posts, and of receives that have completed inline; wraps.
    pub(crate) posts: u32,
    /// How often the driver went to sleep.
    pub(crate) parks: u64,
    /// Whether an event has reported that two threads used the domain at the same time.
    concurrent_use_reported: bool,
}

/// The engine of one domain.
pub(crate) struct Engine {
    pub(crate) waits: WaitRules,
    /// Whether each message leaves at once, also of those that are posted together.
    pub(crate) sends_at_once: bool,
    pub(crate) driver_kind: DriverKind,
    pub(crate) wait_set: Arc<EpollSet>,
    /// The number of polls by the application. The driver thread in standby checks whether it
    /// changes.
    pub(crate) app_polls: AtomicU64,
    /// Which threads use the domain.
    pub(crate) lock_mode: DomainLockMode,
    /// Whether the driver of a domain with an owner has ended on another thread, which cannot lock
    /// the domain.
    pub(crate) driver_ended_off_thread: Arc<AtomicBool>,
    /// Updates that are queued until the state is locked next.
    pub(crate) updates: Arc<UpdateQueue>,
    state: DomainLock<EngineState>,
}

impl Engine {
    pub(crate) fn new(
        transport: Box<EngineTransportDomain>,
        wait_set: Arc<EpollSet>,
        waits: WaitRules,
        sends_at_once: bool,
        driver_kind: DriverKind,
        lock_mode: DomainLockMode,
        regions: SharedRegions,
    ) -> Self {
        let state = EngineState {
            endpoints: EndpointTable::new(&*transport),
            fork_guard: ForkGuard::current_process(),
            transport,
            domain: DomainState::new(regions),
            driver: DriverPhase::NotRunning,
            armed: false,
            spinner: waits.poll_spinner(),
            passes: 0,
            moved_connections: 0,
            posts: 0,
            parks: 0,
            concurrent_use_reported: false,
        };
        Self {
            waits,
            sends_at_once,
            driver_kind,
            wait_set,
            app_polls: AtomicU64::new(0),
            driver_ended_off_thread: Arc::default(),
            updates: Arc::default(),
            state: DomainLock::new(lock_mode.clone(), state),
            lock_mode,
        }
    }

    /// Locks the domain for a call of the program that waits for other threads: one that polls,
    /// reads, ends or drops something.
    pub(crate) fn lock(&self) -> EngineGuard<'_> {
        self.guard(self.state.lock())
    }

    /// Locks the domain for a call of the program that posts or configures. `None` if the domain is
    /// used by one thread at a time, and another thread uses it.
    #[inline(always)] // on the small-message path
    pub(crate) fn lock_or_refuse(&self) -> Option<EngineGuard<'_>> {
        self.state.lock_or_refuse().map(|state| self.guard(state))
    }

    /// Locks the domain for a pass that is no use by the application.
    pub(crate) fn lock_for_progress(&self) -> EngineGuard<'_> {
        self.guard(self.state.lock_as(Role::Driver))
    }

    /// Locks the domain for a step of the driver, if no other thread has locked it.
    pub(crate) fn try_lock(&self) -> Option<EngineGuard<'_>> {
        self.state.try_lock().map(|state| self.guard(state))
    }

    /// Reads the state without applying updates, for models of who applies them.
    #[cfg(all(test, loom))]
    pub(crate) fn peek<T>(&self, read: impl FnOnce(&DomainState) -> T) -> T {
        read(&self.state.lock().domain)
    }

    /// Applies the updates from other threads before the caller uses the state.
    #[inline(always)] // on the small-message path
    fn guard<'a>(&'a self, state: DomainGuard<'a, EngineState>) -> EngineGuard<'a> {
        let mut locked = EngineGuard {
            engine: self,
            state: Some(state),
        };
        if self.updates.has_updates() {
            locked.apply_updates();
        }
        locked
    }

    /// Drives the domain until `ready` returns a value, for a few microseconds at most; then
    /// `register` stores the waker.
    pub(crate) fn poll<T>(
        &self,
        waker: &Waker,
        mut ready: impl FnMut(&mut DomainState) -> Option<T>,
        register: impl FnOnce(&mut DomainState, &Waker),
    ) -> Poll<T> {
        let mut value = None;
        let is_ready = |domain: &mut DomainState| {
            value = ready(domain);
            value.is_some()
        };
        let driven = self.drive(waker, is_ready, register);
        driven.map(|locked| {
            locked.unlock();
            value.expect("`drive` returns ready only after `ready` returned a value")
        })
    }

    /// Drives the domain until something is ready, for a few microseconds at most; then `register`
    /// stores the waker. The caller takes what is ready before it [unlocks](EngineGuard::unlock).
    #[inline(always)] // on the small-message path
    pub(crate) fn drive(
        &self,
        waker: &Waker,
        mut is_ready: impl FnMut(&mut DomainState) -> bool,
        register: impl FnOnce(&mut DomainState, &Waker),
    ) -> Poll<EngineGuard<'_>> {
        let is_ready = |state: &mut EngineState| is_ready(&mut state.domain);
        self.drive_locked(self.lock(), (waker, 0), is_ready, register)
    }

    /// Drives the domain until the operation has ended, for the task whose future the operation
    /// has. The operation has no waker meanwhile: the task finds the result itself, and a wake-up
    /// of a running task costs two atomic operations and another poll. Returns the waker of an
    /// operation that has ended, to be dropped without the lock.
    #[inline(always)] // on the small-message path
    pub(crate) fn drive_op<'a>(
        &'a self,
        mut locked: EngineGuard<'a>,
        key: OpKey,
        waker: &Waker,
    ) -> Poll<(EngineGuard<'a>, Option<Waker>)> {
        let mut registered = locked.domain.take_op_waker(key);
        // The task still counts among those that share the spin time.
        let uncounted = usize::from(registered.is_some());
        let is_done =
            |state: &mut EngineState| state.domain.ops.is_done(key) || state.try_recv_posted(key);
        let driven = self.drive_locked(locked, (waker, uncounted), is_done, |domain, waker| {
            domain.restore_op_waker(key, waker, registered.take());
        });
        driven.map(|locked| (locked, registered))
    }

    /// Drives the domain as [`drive`](Self::drive), for a caller that has locked it. `uncounted` is
    /// the number of waiting tasks that the domain does not count now.
    #[inline(always)] // on the small-message path
    pub(crate) fn drive_locked<'a>(
        &'a self,
        mut locked: EngineGuard<'a>,
        (waker, uncounted): (&Waker, usize),
        mut is_ready: impl FnMut(&mut EngineState) -> bool,
        register: impl FnOnce(&mut DomainState, &Waker),
    ) -> Poll<EngineGuard<'a>> {
        self.count_app_poll();
        let mut attempts = 0;
        let moved_limit = locked.moved_connections + MAX_MOVED_PER_POLL;
        loop {
            let mut has_ended = is_ready(&mut locked);
            if !has_ended {
                locked.disarm_for_poll();
                if locked.domain.pending_work.has_batched() {
                    locked.write_batched();
                    has_ended = is_ready(&mut locked);
                }
            }
            if !has_ended {
                locked.progress();
                has_ended = is_ready(&mut locked);
            }
            if has_ended {
                if attempts > 0 {
                    locked.spinner.record_hit();
                }
                return Poll::Ready(locked);
            }
            let waiting = locked.domain.deferred.waiting() + uncounted;
            let has_moved_much = locked.moved_connections >= moved_limit;
            if has_moved_much || attempts >= locked.spinner.spin_limit(waiting) {
                if !has_moved_much {
                    locked.spinner.record_miss(attempts);
                }
                register(&mut locked.domain, waker);
                let stay_runnable = locked.ensure_driven_for_waiter();
                drop(locked);
                // There is more to move, probably also for this task.
                if stay_runnable || has_moved_much {
                    waker.wake_by_ref();
                }
                return Poll::Pending;
            }
            // No pause in between: releasing and taking the lock is one, and a message that arrives
            // during a pause instruction is noticed that much later.
            attempts += 1;
            if self.lock_mode.is_shared() {
                drop(locked);
                locked = self.lock();
            } else if !locked.domain.deferred.is_empty() || self.updates.has_updates() {
                locked.yield_lock();
            }
        }
    }

    /// Counts a poll of the application. The lock is held, so a plain store suffices.
    pub(crate) fn count_app_poll(&self) {
        self.app_polls.store(
            self.app_polls.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// Prepares a wait on a descriptor, in the role of the driver. Makes a pass and polls the
    /// descriptors; unless something is ready or has moved then, `register` stores a waker that
    /// makes the descriptor readable. Returns whether the caller may block: nothing is ready, and
    /// what becomes ready later calls the waker or, in an event loop, makes the domain's descriptor
    /// readable.
    pub(crate) fn prepare_wait(
        &self,
        is_ready: impl FnOnce(&mut DomainState) -> bool,
        register: impl FnOnce(&mut DomainState),
    ) -> bool {
        let mut locked = self.lock_for_progress();
        if self.is_in_event_loop() {
            // The pass below does what the wake-up was for, and every wake-up from now on is after
            // this call. The domain is armed or woken again before the lock is released.
            self.wait_set.drain_wake_eventfd();
            // Threads that queue updates wake without the lock, after they have queued.
            if self.updates.has_updates() {
                locked.apply_updates();
            }
        }
        locked.disarm_for_poll();
        let moved = locked.poll_fds() | locked.progress();
        self.count_app_poll();
        if is_ready(&mut locked.domain) || (moved && self.is_in_event_loop()) {
            locked.unlock();
            return false;
        }
        register(&mut locked.domain);
        !locked.ensure_driven_for_waiter()
    }

    /// Returns whether an event loop of the program drives the domain.
    #[inline]
    pub(crate) fn is_in_event_loop(&self) -> bool {
        self.driver_kind == DriverKind::EventLoop
    }

    /// Makes one pass and polls the descriptors, without waiting. Returns whether anything moved.
    pub(crate) fn progress(&self) -> bool {
        self.lock().progress_once()
    }
}

/// The deferred actions of a call, which wake tasks and drop buffers. They run when the value is
/// dropped: a caller with a lock of its own drops the value after it has released the lock.
#[derive(Debug, Default)]
#[must_use = "tasks are woken when it is dropped"]
pub struct CallEnd(DeferredActions);

impl Drop for CallEnd {
    fn drop(&mut self) {
        std::mem::take(&mut self.0).run();
    }
}

/// The locked engine; deferred actions run when the guard is dropped.
pub(crate) struct EngineGuard<'a> {
    engine: &'a Engine,
    state: Option<DomainGuard<'a, EngineState>>,
}

impl std::ops::Deref for EngineGuard<'_> {
    type Target = EngineState;

    fn deref(&self) -> &EngineState {
        self.state.as_ref().expect("present until drop")
    }
}

impl std::ops::DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut EngineState {
        self.state.as_mut().expect("present until drop")
    }
}

impl Drop for EngineGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.domain.deferred.is_empty() {
            self.unlock_and_run_deferred();
        }
    }
}

impl<'a> EngineGuard<'a> {
    pub(crate) fn engine(&self) -> &'a Engine {
        self.engine
    }

    /// Does the follow-up work of a call, and releases the lock. The result runs the deferred
    /// actions when it is dropped.
    pub(crate) fn finish_later(mut self) -> CallEnd {
        self.finish();
        CallEnd(self.domain.deferred.take_actions())
    }

    /// Releases the lock for a moment and runs the deferred actions.
    pub(crate) fn yield_lock(&mut self) {
        self.unlock_and_run_deferred();
        self.state = Some(self.engine.state.lock());
        if self.engine.updates.has_updates() {
            self.apply_updates();
        }
    }

    #[cold]
    fn unlock_and_run_deferred(&mut self) {
        let actions = self.domain.deferred.take_actions();
        self.state = None;
        actions.run();
    }

    /// Makes one pass for the application and polls the descriptors. Returns whether anything
    /// moved.
    #[inline(always)] // part of each empty pass
    pub(crate) fn progress_once(&mut self) -> bool {
        self.disarm_for_poll();
        let moved = self.poll_fds() | self.progress();
        self.report_concurrent_use();
        self.ensure_driven();
        moved
    }

    /// Reports that two threads used the domain at the same time, unless an event has reported it.
    #[inline]
    pub(crate) fn report_concurrent_use(&mut self) {
        if let Some(flag) = self.engine.lock_mode.use_flag()
            && flag.concurrent_uses() > 0
            && !self.concurrent_use_reported
        {
            self.push_concurrent_use();
        }
    }

    #[cold]
    fn push_concurrent_use(&mut self) {
        self.concurrent_use_reported = true;
        let domain = &mut self.domain;
        domain
            .eqs
            .push_of_domain(EventKind::ConcurrentUse, &mut domain.deferred);
    }

    /// Disarms the domain: peers need not ring their doorbells from now on.
    pub(crate) fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.disarm_transport();
        }
    }

    /// Arms the domain: peers ring their doorbells from now on. Returns false when something has
    /// arrived already.
    pub(crate) fn arm(&mut self) -> bool {
        let state = &mut **self;
        state.armed = !state.shared_rx_has_work() && state.arm_transport();
        state.armed
    }

    /// Disarms before the application polls.
    #[inline]
    pub(crate) fn disarm_for_poll(&mut self) {
        if self.armed {
            self.disarm_armed();
        }
    }

    #[cold]
    fn disarm_armed(&mut self) {
        self.disarm();
        if self.engine.driver_kind == DriverKind::Thread
            && matches!(self.driver, DriverPhase::Asleep(_))
        {
            // The thread must not sleep without armed doorbells, so it goes to standby.
            self.driver = DriverPhase::Standby;
            self.engine.wait_set.wake();
        }
    }

    /// Makes one pass for the application, without waiting.
    pub(crate) fn poll_once(&mut self) -> bool {
        self.disarm_for_poll();
        self.progress()
    }

    /// Makes one pass: moves what can be moved, once.
    pub(crate) fn progress(&mut self) -> bool {
        let state = &mut **self;
        state.domain.pending_work.begin_pass();
        state.passes += 1;
        let polls_fds = state.passes.is_multiple_of(PASSES_PER_FD_POLL);
        let any_ready = polls_fds && self.poll_fds();
        let moved = self.progress_transport();
        self.run_follow_ups();
        any_ready | moved
    }

    /// Polls the descriptors: connections, hang-ups, doorbells. Returns whether any was ready; a
    /// pass must follow then.
    pub(crate) fn poll_fds(&mut self) -> bool {
        let engine = self.engine;
        let state = &mut **self;
        if !state.fork_guard.in_original_process() {
            // The events are for the parent process.
            return false;
        }
        let mut any = false;
        // Level-triggered descriptors stay ready until they are handled; what does not fit into one
        // poll is returned by the next.
        engine
            .wait_set
            .wait(Some(std::time::Duration::ZERO), |token| {
                any = true;
                state.on_ready(token);
            });
        self.run_follow_ups();
        any
    }

    /// Counts posts, and polls the descriptors every [`POSTS_PER_FD_POLL`] posts.
    #[inline]
    pub(crate) fn count_posts(&mut self, count: u32) {
        let previous = self.posts / POSTS_PER_FD_POLL;
        self.posts = self.posts.wrapping_add(count);
        if self.posts / POSTS_PER_FD_POLL != previous {
            self.poll_fds_and_progress();
        }
    }

    /// Polls the descriptors, and makes a pass if any was ready.
    #[cold]
    pub(crate) fn poll_fds_and_progress(&mut self) {
        if self.poll_fds() {
            // A peer that rang has cleared its flag, and its doorbell was read here: the domain is
            // no longer armed.
            self.poll_once();
        }
    }

    /// Runs the follow-ups of transport calls, such as granting credits and announcing addresses,
    /// completes flushes, and wakes those that wait for loans.
    #[inline]
    pub(crate) fn run_follow_ups(&mut self) {
        if self.domain.pending_work.has_follow_ups() {
            self.run_follow_ups_slow();
        }
        if !self.domain.flushes.is_empty() {
            self.domain.end_flushes();
        }
        if !self.domain.loan_waiters.is_empty() {
            self.domain.wake_loan_waiter();
        }
    }

    /// Hands batched messages to the kernel, and completes what the kernel has taken.
    #[cold]
    pub(crate) fn write_batched(&mut self) {
        let state = &mut **self;
        for ep in state.domain.pending_work.take_batched() {
            let _ = state.with_transport(ep, |transport, ctx| transport.write_batched(ctx));
        }
        self.run_follow_ups();
    }

    #[cold]
    fn run_follow_ups_slow(&mut self) {
        let mut resumed = false;
        let engine = self.engine;
        let state = &mut **self;
        while let Some(follow_up) = state.domain.pending_work.pop() {
            match follow_up {
                FollowUp::GrantCredits(ep) => state.grant_credits(ep),
                FollowUp::PublishAddr(av, addr) => state.publish_addr(av, addr),
                FollowUp::ReleaseAddr(av, addr) => state.release_addr(av, addr),
                FollowUp::StartArrivalTimer => {
                    if state.fork_guard.in_original_process() {
                        state.domain.arrival_timer.start(&engine.wait_set);
                    }
                }
                FollowUp::MakePass => {
                    state.progress_transport();
                    resumed = true;
                }
            }
        }
        if resumed {
            // There may be more than one pass takes, and no peer rings for it.
            self.disarm();
            self.wake_driver();
        }
    }

    /// Releases the lock after something that was ready was taken.
    #[inline(always)] // on the small-message path
    pub(crate) fn unlock(mut self) {
        self.run_follow_ups();
        self.ensure_driven();
    }

    /// Returns whether the domain needs a driver.
    #[inline]
    pub(crate) fn needs_driver(&self) -> bool {
        let tasks_stay_runnable = self.engine.waits.tasks_stay_runnable();
        self.domain.needs_driver(tasks_stay_runnable)
    }

    /// Establishes the invariant for waiting tasks, before a caller that does not wait releases the
    /// lock.
    pub(crate) fn ensure_driven(&mut self) {
        if !self.armed && (self.engine.is_in_event_loop() || self.needs_driver()) {
            self.ensure_driver();
        }
    }

    /// Establishes the invariant before a caller that will wait releases the lock. Returns true
    /// when the caller must keep itself runnable.
    pub(crate) fn ensure_driven_for_waiter(&mut self) -> bool {
        if !self.engine.lock_mode.is_shared() {
            self.report_exclusion_events();
        }
        let stays_runnable = self.engine.waits.tasks_stay_runnable();
        let is_in_event_loop = self.engine.is_in_event_loop();
        if !self.armed && (!stays_runnable || is_in_event_loop) {
            self.ensure_driver();
        }
        let is_driven = match is_in_event_loop {
            true => self.armed,
            false => !matches!(self.driver, DriverPhase::NotRunning),
        };
        stays_runnable || !is_driven
    }

    /// Reports that the driver has ended on a thread that cannot lock the domain, and that two
    /// threads used the domain at the same time.
    #[cold]
    fn report_exclusion_events(&mut self) {
        if self.engine.driver_ended_off_thread.load(Ordering::Relaxed)
            && !matches!(self.driver, DriverPhase::NotRunning)
        {
            self.end_driver();
        }
        self.report_concurrent_use();
    }

    /// Notes that the driver has ended, reports it, and wakes all waiting tasks, which keep
    /// themselves runnable from now on.
    pub(crate) fn end_driver(&mut self) {
        self.driver = DriverPhase::NotRunning;
        let domain = &mut self.domain;
        domain
            .eqs
            .push_of_domain(EventKind::DriverEnded, &mut domain.deferred);
        domain.wake_all();
    }

    /// Arms again or wakes the driver, after a call left work for a pass or for a peer.
    #[cold]
    pub(crate) fn rearm_or_wake(&mut self) {
        if !self.armed {
            self.ensure_driver();
        } else if !self.arm() {
            self.wake_driver();
        }
    }

    /// Wakes a sleeping driver task that spins, else arms the domain.
    fn ensure_driver(&mut self) {
        let engine = self.engine;
        if engine.is_in_event_loop() {
            // The event loop, unlike a driver, makes no pass before it sleeps again.
            if self.domain.pending_work.needs_pass() || !self.arm() {
                self.wake_driver();
            }
            return;
        }
        match &mut self.driver {
            DriverPhase::Awake | DriverPhase::NotRunning => {}
            DriverPhase::Asleep(waker) if engine.waits.driver_spins() && waker.is_some() => {
                if let Some(waker) = waker.take() {
                    self.driver = DriverPhase::Awake;
                    self.domain.deferred.wake(waker);
                }
            }
            DriverPhase::Asleep(_) | DriverPhase::Standby => {
                if !self.arm() {
                    self.wake_driver();
                }
            }
        }
    }

    /// Wakes the driver from sleep or standby, or the event loop.
    pub(crate) fn wake_driver(&mut self) {
        if self.engine.is_in_event_loop() {
            return self.engine.wait_set.wake();
        }
        match std::mem::replace(&mut self.driver, DriverPhase::Awake) {
            DriverPhase::Asleep(Some(waker)) => self.domain.deferred.wake(waker),
            DriverPhase::Asleep(None) | DriverPhase::Standby => self.engine.wait_set.wake(),
            other => self.driver = other,
        }
    }
}

impl EngineState {
    /// Posts the operations that waited for released credits.
    fn grant_credits(&mut self, ep: EpId) {
        loop {
            let DomainState { endpoints, ops, .. } = &mut self.domain;
            let has_executing = |peer| ops.has_executing_ops_to(ep, peer);
            let Some(ep_state) = endpoints.get_mut(ep) else {
                return;
            };
            let Some(key) = ep_state.tx_credits.next_ready(has_executing) else {
                return;
            };
            self.post_with_credit(ep, key);
        }
    }

    fn post_with_credit(&mut self, ep: EpId, key: OpKey) {
        let Some(op) = self.domain.ops.grant_credit(key) else {
            return;
        };
        if op.is_wait() {
            // A permit keeps its credit until it is used or dropped.
            return self.domain.end_wait(key);
        }
        op.execute();
        let Some(tx_op) = op.tx_op else { return };
        let queued =
            self.with_transport(ep, |transport, ctx| transport.queue_send(ctx, key, &tx_op));
        if let Err(error) = queued.flatten() {
            self.domain.complete(key, Outcome::failed(error));
        }
    }
}
