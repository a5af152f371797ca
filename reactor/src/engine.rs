//! The engine of one domain: a provider and a hub under one lock, and who makes them move.
//!
//! # The lock
//!
//! One lock guards everything of a domain. Critical sections are bounded (a pass moves a bounded
//! number of bytes) and contain no user code: what would run some (wakers, drops) is put off until
//! the lock is gone ([`Deferred`]).
//!
//! # Progress
//!
//! Whoever polls an operation or a queue drives the domain, for up to a few microseconds within one
//! poll. What keeps things moving when nobody polls is the *driver*: a task of the runtime (manual
//! progress) or a thread (auto progress). The driver belongs to no operation, so it does not matter
//! which task polled last, or whether it was dropped or is busy.
//!
//! **Invariant.** Whenever the lock is free and a task waits for something of this domain, at least
//! one holds: (1) the driver is awake and will make another pass; (2) the domain is *armed*: every
//! peer rings its doorbell with its next message, and the driver sleeps on the doorbells; (3) the
//! waiting tasks keep themselves runnable (policy spin, or the driver is gone). With auto progress
//! (1) or (2) holds even if nobody waits, within one period of the thread's watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use fabric_core::completion::Outcome;
use fabric_core::info::Progress;
use fabric_core::transport::{EngineContext, EpId, OpKey, TransportDomain, WaitSet};

use crate::deferred::Deferred;
use crate::domain_state::{DomainState, FollowUp};
use crate::ops::OpPhase;
use crate::shared_rx::SharedRxContexts;
use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use crate::wait::{EpollSet, PollSpinner, WaitPolicy};

/// Posts between two looks: a program that only posts, and whose posts all end at once, hears of
/// the end of a peer too.
const POSTS_PER_FD_POLL: u32 = if cfg!(loom) { 1 } else { 64 };

/// Passes between two looks at the descriptors while somebody spins: new connections and dead
/// peers.
const PASSES_PER_FD_POLL: u64 = 2048;

/// What the driver is doing.
pub(crate) enum DriverStatus {
    /// Nobody was appointed yet, or the runtime that ran it is gone: tasks keep themselves
    /// runnable.
    NotRunning,
    /// It is making passes, or has been woken to.
    Awake,
    /// It sleeps on the descriptors. The task's waker, unless it is a thread.
    Asleep(Option<Waker>),
    /// The thread looks from time to time whether anybody polls.
    Standby,
}

impl std::fmt::Debug for DriverStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotRunning => "not started",
            Self::Awake => "awake",
            Self::Asleep(_) => "asleep",
            Self::Standby => "watching",
        })
    }
}

pub(crate) struct EngineState {
    pub(crate) transport: Box<dyn TransportDomain>,
    pub(crate) domain: DomainState,
    pub(crate) shared_rx_contexts: SharedRxContexts,
    pub(crate) driver: DriverStatus,
    pub(crate) armed: bool,
    pub(crate) spinner: PollSpinner,
    passes: u64,
    /// Calls that posted something.
    posts: u32,
    /// How often the driver went to sleep.
    pub(crate) parks: u64,
}

impl EngineState {
    /// Passes made so far.
    pub(crate) fn passes(&self) -> u64 {
        self.passes
    }
}

/// The engine of one domain.
pub(crate) struct Engine {
    pub(crate) policy: WaitPolicy,
    pub(crate) progress_mode: Progress,
    pub(crate) wait_set: Arc<EpollSet>,
    /// Passes made by polls of the application: an idle thread looks whether it moves.
    pub(crate) app_polls: AtomicU64,
    state: Mutex<EngineState>,
}

impl Engine {
    pub(crate) fn new(
        provider: Box<dyn TransportDomain>,
        wait_set: Arc<EpollSet>,
        policy: WaitPolicy,
        progress_mode: Progress,
    ) -> Self {
        let state = EngineState {
            transport: provider,
            domain: DomainState::new(),
            shared_rx_contexts: SharedRxContexts::new(),
            driver: DriverStatus::NotRunning,
            armed: false,
            spinner: PollSpinner::new(policy),
            passes: 0,
            posts: 0,
            parks: 0,
        };
        Self {
            policy,
            progress_mode,
            wait_set,
            app_polls: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn lock(&self) -> EngineGuard<'_> {
        EngineGuard {
            engine: self,
            state: Some(lock(&self.state)),
        }
    }

    pub(crate) fn try_lock(&self) -> Option<EngineGuard<'_>> {
        try_lock(&self.state).map(|state| EngineGuard {
            engine: self,
            state: Some(state),
        })
    }

    /// Drives until `ready` has something, a few microseconds at most; then `register` remembers
    /// the waker.
    pub(crate) fn poll<T>(
        &self,
        waker: &Waker,
        mut ready: impl FnMut(&mut DomainState) -> Option<T>,
        register: impl FnOnce(&mut DomainState, &Waker),
    ) -> Poll<T> {
        let mut value = None;
        let is_ready = |hub: &mut DomainState| {
            value = ready(hub);
            value.is_some()
        };
        let driven = self.drive(waker, is_ready, register);
        driven.map(|locked| {
            locked.unlock();
            value.expect("it is ready")
        })
    }

    /// Drives until something is ready, a few microseconds at most; then `register` remembers the
    /// waker. What is ready is to be taken before the lock is [left](Locked::leave).
    #[inline(always)] // on the way of a small message
    pub(crate) fn drive(
        &self,
        waker: &Waker,
        mut is_ready: impl FnMut(&mut DomainState) -> bool,
        register: impl FnOnce(&mut DomainState, &Waker),
    ) -> Poll<EngineGuard<'_>> {
        let mut looks = 0;
        loop {
            let mut locked = self.lock();
            if is_ready(&mut locked.domain) {
                return Poll::Ready(locked);
            }
            locked.disarm_for_poll();
            if !locked.domain.collected.is_empty() {
                locked.write_collected();
                if is_ready(&mut locked.domain) {
                    self.count_app_poll();
                    return Poll::Ready(locked);
                }
            }
            locked.progress();
            if is_ready(&mut locked.domain) {
                if looks > 0 {
                    locked.spinner.record_hit();
                }
                self.count_app_poll();
                return Poll::Ready(locked);
            }
            // Those who wait share the time: a round of all their polls takes no longer than that
            // of one.
            if looks >= locked.spinner.spin_limit() / locked.domain.waiters.max(1) as u32 {
                if looks > 0 {
                    locked.spinner.record_miss();
                }
                self.count_app_poll();
                register(&mut locked.domain, waker);
                let stay_runnable = locked.ensure_driven_for_waiter();
                drop(locked);
                if stay_runnable {
                    waker.wake_by_ref();
                }
                return Poll::Pending;
            }
            // No pause in between: letting go of the lock and taking it again is one, and a message
            // that comes during the pause instruction is noticed that much later.
            drop(locked);
            looks += 1;
        }
    }

    /// Counts a poll of the application. Under the lock, so that nobody else does now.
    fn count_app_poll(&self) {
        self.app_polls.store(
            self.app_polls.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// Moves what can be moved, once, without waiting. Returns whether anything moved.
    pub(crate) fn progress(&self) -> bool {
        let mut locked = self.lock();
        locked.disarm_for_poll();
        let moved = locked.poll_fds() | locked.progress();
        locked.ensure_driven();
        moved
    }
}

/// The locked state; what has to happen outside of the lock happens when this is dropped.
pub(crate) struct EngineGuard<'a> {
    engine: &'a Engine,
    state: Option<MutexGuard<'a, EngineState>>,
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

impl EngineGuard<'_> {
    /// Lets go of the lock for a moment, and does what has to happen outside of it.
    pub(crate) fn yield_lock(&mut self) {
        self.unlock_and_run_deferred();
        self.state = Some(lock(&self.engine.state));
    }

    #[cold]
    fn unlock_and_run_deferred(&mut self) {
        let later = std::mem::take(&mut self.domain.deferred);
        self.state = None;
        Deferred::run(later);
    }

    /// Peers need not ring from now on.
    pub(crate) fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.transport.disarm();
        }
    }

    /// Peers must ring from now on; false when there is news already.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = !self.shared_rx_has_work() && self.transport.arm();
        self.armed
    }

    /// The application polls.
    pub(crate) fn disarm_for_poll(&mut self) {
        if self.armed {
            self.disarm();
            if self.engine.progress_mode == Progress::Auto
                && matches!(self.driver, DriverStatus::Asleep(_))
            {
                // The thread must not sleep without doorbells: it shall look from time to time.
                self.driver = DriverStatus::Standby;
                self.engine.wait_set.wake();
            }
        }
    }

    /// The application polls, once and without waiting.
    pub(crate) fn poll_once(&mut self) -> bool {
        self.disarm_for_poll();
        self.progress()
    }

    /// Moves what can be moved, once.
    pub(crate) fn progress(&mut self) -> bool {
        let state = &mut **self;
        state.domain.progress_requested = false;
        // What was collected leaves with this pass.
        state.domain.collected.clear();
        let mut moved = state.progress_transport();
        state.passes += 1;
        if state.passes.is_multiple_of(PASSES_PER_FD_POLL) {
            moved |= self.poll_fds();
        }
        self.run_follow_ups();
        moved
    }

    /// Looks at the descriptors: connections, hang-ups.
    pub(crate) fn poll_fds(&mut self) -> bool {
        let set = self.engine.wait_set.clone();
        let state = &mut **self;
        let (provider, hub) = (&mut state.transport, &mut state.domain);
        let mut any = false;
        // Level-triggered descriptors stay ready until they are dealt with; what does not fit is
        // seen next time.
        set.wait(Some(std::time::Duration::ZERO), |token| {
            any = true;
            provider.ready(hub, token);
        });
        self.run_follow_ups();
        any
    }

    /// So many posts are over.
    #[inline]
    pub(crate) fn count_posts(&mut self, count: u32) {
        let before = self.posts / POSTS_PER_FD_POLL;
        self.posts = self.posts.wrapping_add(count);
        if self.posts / POSTS_PER_FD_POLL != before {
            self.poll_fds_and_disarm();
        }
    }

    #[cold]
    pub(crate) fn poll_fds_and_disarm(&mut self) {
        if self.poll_fds() {
            // What rang has been heard, here and by nobody else: the domain is not armed any more.
            self.disarm_for_poll();
        }
    }

    /// Does what a call of the provider made possible: sends that waited for credit, numbers to
    /// announce.
    #[inline]
    pub(crate) fn run_follow_ups(&mut self) {
        if !self.domain.follow_ups.is_empty() {
            self.run_follow_ups_slow();
        }
        if !self.domain.flushes.is_empty() {
            self.domain.end_flushes();
        }
    }

    /// Hands what was collected to the kernel, and completes what it has taken.
    #[cold]
    pub(crate) fn write_collected(&mut self) {
        let state = &mut **self;
        for ep in state.domain.collected.drain(..).collect::<Vec<_>>() {
            state.transport.write_collected(&mut state.domain, ep);
        }
        self.run_follow_ups();
    }

    #[cold]
    fn run_follow_ups_slow(&mut self) {
        let mut resumed = false;
        let state = &mut **self;
        while !state.domain.follow_ups.is_empty() {
            let what = state.domain.follow_ups.remove(0);
            match what {
                FollowUp::GrantCredits(ep) => state.grant_credits(ep),
                FollowUp::PublishAddr(av, addr) => state.publish_addr(av, addr),
                FollowUp::ReleaseAddr(av, addr) => state.release_addr(av, addr),
                FollowUp::ResumeProgress => {
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

    /// Lets go of the lock, after something that was ready was taken.
    #[inline]
    pub(crate) fn unlock(mut self) {
        self.run_follow_ups();
        self.ensure_driven();
    }

    /// Before the lock is released with nothing to wait for: makes the invariant hold for the
    /// others.
    pub(crate) fn ensure_driven(&mut self) {
        if !self.armed && self.domain.needs_driver(self.engine.policy) {
            self.ensure_driver();
        }
    }

    /// Before the lock is released by somebody who will wait. True when they must keep themselves
    /// runnable.
    pub(crate) fn ensure_driven_for_waiter(&mut self) -> bool {
        if self.engine.policy == WaitPolicy::Spin {
            return true;
        }
        if !self.armed {
            self.ensure_driver();
        }
        matches!(self.driver, DriverStatus::NotRunning)
    }

    /// A call has left something that a pass would move, or that waits for a peer.
    #[cold]
    pub(crate) fn rearm_or_wake(&mut self) {
        if !self.armed {
            self.ensure_driver();
        } else if !self.arm() {
            self.wake_driver();
        }
    }

    /// Wakes the driver, or arms the domain where the driver only listens.
    fn ensure_driver(&mut self) {
        let policy = self.engine.policy;
        match &mut self.driver {
            DriverStatus::Awake | DriverStatus::NotRunning => {}
            DriverStatus::Asleep(waker) if policy != WaitPolicy::Park && waker.is_some() => {
                if let Some(waker) = waker.take() {
                    self.driver = DriverStatus::Awake;
                    self.domain.deferred.wake(waker);
                }
            }
            DriverStatus::Asleep(_) | DriverStatus::Standby => {
                if !self.arm() {
                    self.wake_driver();
                }
            }
        }
    }

    /// Wakes the driver from wherever it is.
    pub(crate) fn wake_driver(&mut self) {
        match std::mem::replace(&mut self.driver, DriverStatus::Awake) {
            DriverStatus::Asleep(Some(waker)) => self.domain.deferred.wake(waker),
            DriverStatus::Asleep(None) | DriverStatus::Standby => self.engine.wait_set.wake(),
            other => self.driver = other,
        }
    }
}

impl EngineState {
    /// Posts what waited for the credits that came back.
    fn grant_credits(&mut self, ep: EpId) {
        loop {
            let DomainState {
                endpoints: eps,
                ops,
                ..
            } = &mut self.domain;
            let under_way = |peer| ops.has_posted_ops_to(ep, peer);
            let Some(bound) = eps.get_mut(ep.0) else {
                return;
            };
            let Some(key) = bound.tx_credits.next_ready(under_way) else {
                // Only now: what was granted is in its queue.
                return bound.update_fast_path();
            };
            self.post_with_credit(ep, key);
        }
    }

    fn post_with_credit(&mut self, ep: EpId, key: OpKey) {
        let Some(op) = self.domain.ops.get_mut(key) else {
            return;
        };
        let had_credit = std::mem::replace(&mut op.holds_credit, true);
        op.phase = OpPhase::Posted;
        if op.no_transfer {
            // A permit keeps its credit until it is used or dropped.
            op.phase = OpPhase::Done;
            let waiter = op.waker.take();
            self.domain.wake_waiter(waiter);
            return;
        }
        let Some(spec) = op.spec else { return };
        self.domain.pending_sends += usize::from(!had_credit);
        if let Err(error) = self.transport.queue_send(&mut self.domain, ep, key, &spec) {
            self.domain.complete(key, Outcome::failed(error));
        }
    }
}
