//! The engine of one domain: a provider and a hub under one lock, and who makes them move.
//!
//! # The lock
//!
//! One lock guards everything of a domain. Critical sections are bounded (a pass moves a bounded
//! number of bytes) and contain no user code: what would run some (wakers, drops) is put off until
//! the lock is gone ([`Later`]).
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
use fabric_core::provider::{EpId, Host, OpKey, ProviderDomain, WaitSet};

use crate::hub::{FollowUp, Hub};
use crate::later::Later;
use crate::ops::Phase;
use crate::shared::SharedContexts;
use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use crate::wait::{PollSet, Spinner, WaitPolicy};

/// Posts between two looks: a program that only posts, and whose posts all end at once, hears of
/// the end of a peer too.
const POSTS_PER_LOOK: u32 = if cfg!(loom) { 1 } else { 64 };

/// Passes between two looks at the descriptors while somebody spins: new connections and dead
/// peers.
const PASSES_PER_LOOK: u64 = 2048;

/// What the driver is doing.
pub(crate) enum Driver {
    /// Nobody was appointed yet, or the runtime that ran it is gone: tasks keep themselves
    /// runnable.
    Gone,
    /// It is making passes, or has been woken to.
    Awake,
    /// It sleeps on the descriptors. The task's waker, unless it is a thread.
    Asleep(Option<Waker>),
    /// The thread looks from time to time whether anybody polls.
    Watching,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Gone => "not started",
            Self::Awake => "awake",
            Self::Asleep(_) => "asleep",
            Self::Watching => "watching",
        })
    }
}

pub(crate) struct State {
    pub(crate) provider: Box<dyn ProviderDomain>,
    pub(crate) hub: Hub,
    pub(crate) shared: SharedContexts,
    pub(crate) driver: Driver,
    pub(crate) armed: bool,
    pub(crate) spinner: Spinner,
    passes: u64,
    /// Calls that posted something.
    posts: u32,
    /// How often the driver went to sleep.
    pub(crate) parks: u64,
}

impl State {
    /// Passes made so far.
    pub(crate) fn passes(&self) -> u64 {
        self.passes
    }
}

/// The engine of one domain.
pub(crate) struct Engine {
    pub(crate) policy: WaitPolicy,
    pub(crate) progress: Progress,
    pub(crate) set: Arc<PollSet>,
    /// Passes made by polls of the application: an idle thread looks whether it moves.
    pub(crate) polls: AtomicU64,
    state: Mutex<State>,
}

impl Engine {
    pub(crate) fn new(
        provider: Box<dyn ProviderDomain>,
        set: Arc<PollSet>,
        policy: WaitPolicy,
        progress: Progress,
    ) -> Self {
        let state = State {
            provider,
            hub: Hub::new(),
            shared: SharedContexts::new(),
            driver: Driver::Gone,
            armed: false,
            spinner: Spinner::new(policy),
            passes: 0,
            posts: 0,
            parks: 0,
        };
        Self {
            policy,
            progress,
            set,
            polls: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked {
            engine: self,
            state: Some(lock(&self.state)),
        }
    }

    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        try_lock(&self.state).map(|state| Locked {
            engine: self,
            state: Some(state),
        })
    }

    /// Drives until `ready` has something, a few microseconds at most; then `register` remembers
    /// the waker.
    pub(crate) fn poll<T>(
        &self,
        waker: &Waker,
        mut ready: impl FnMut(&mut Hub) -> Option<T>,
        register: impl FnOnce(&mut Hub, &Waker),
    ) -> Poll<T> {
        let mut value = None;
        let is_ready = |hub: &mut Hub| {
            value = ready(hub);
            value.is_some()
        };
        let driven = self.drive(waker, is_ready, register);
        driven.map(|locked| {
            locked.leave();
            value.expect("it is ready")
        })
    }

    /// Drives until something is ready, a few microseconds at most; then `register` remembers the
    /// waker. What is ready is to be taken before the lock is [left](Locked::leave).
    #[inline(always)] // on the way of a small message
    pub(crate) fn drive(
        &self,
        waker: &Waker,
        mut is_ready: impl FnMut(&mut Hub) -> bool,
        register: impl FnOnce(&mut Hub, &Waker),
    ) -> Poll<Locked<'_>> {
        let mut looks = 0;
        loop {
            let mut locked = self.lock();
            if is_ready(&mut locked.hub) {
                return Poll::Ready(locked);
            }
            locked.wake_up();
            if !locked.hub.collected.is_empty() {
                locked.write_collected();
                if is_ready(&mut locked.hub) {
                    self.polled();
                    return Poll::Ready(locked);
                }
            }
            locked.pass();
            if is_ready(&mut locked.hub) {
                if looks > 0 {
                    locked.spinner.hit();
                }
                self.polled();
                return Poll::Ready(locked);
            }
            // Those who wait share the time: a round of all their polls takes no longer than that
            // of one.
            if looks >= locked.spinner.looks() / locked.hub.waiters.max(1) as u32 {
                if looks > 0 {
                    locked.spinner.miss();
                }
                self.polled();
                register(&mut locked.hub, waker);
                let stay_runnable = locked.settle_waiting();
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
    fn polled(&self) {
        self.polls.store(
            self.polls.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// Moves what can be moved, once, without waiting. Returns whether anything moved.
    pub(crate) fn pass(&self) -> bool {
        let mut locked = self.lock();
        locked.wake_up();
        let moved = locked.look() | locked.pass();
        locked.settle();
        moved
    }
}

/// The locked state; what has to happen outside of the lock happens when this is dropped.
pub(crate) struct Locked<'a> {
    engine: &'a Engine,
    state: Option<MutexGuard<'a, State>>,
}

impl std::ops::Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("present until drop")
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("present until drop")
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.hub.later.is_empty() {
            self.unlock_and_run();
        }
    }
}

impl Locked<'_> {
    /// Lets go of the lock for a moment, and does what has to happen outside of it.
    pub(crate) fn pause(&mut self) {
        self.unlock_and_run();
        self.state = Some(lock(&self.engine.state));
    }

    #[cold]
    fn unlock_and_run(&mut self) {
        let later = std::mem::take(&mut self.hub.later);
        self.state = None;
        Later::run(later);
    }

    /// Peers need not ring from now on.
    pub(crate) fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.provider.disarm();
        }
    }

    /// Peers must ring from now on; false when there is news already.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = !self.has_shared_chores() && self.provider.arm();
        self.armed
    }

    /// The application polls.
    pub(crate) fn wake_up(&mut self) {
        if self.armed {
            self.disarm();
            if self.engine.progress == Progress::Auto && matches!(self.driver, Driver::Asleep(_)) {
                // The thread must not sleep without doorbells: it shall look from time to time.
                self.driver = Driver::Watching;
                self.engine.set.kick();
            }
        }
    }

    /// The application polls, once and without waiting.
    pub(crate) fn glance(&mut self) -> bool {
        self.wake_up();
        self.pass()
    }

    /// Moves what can be moved, once.
    pub(crate) fn pass(&mut self) -> bool {
        let state = &mut **self;
        state.hub.goes_on = false;
        // What was collected leaves with this pass.
        state.hub.collected.clear();
        let mut moved = state.progress();
        state.passes += 1;
        if state.passes.is_multiple_of(PASSES_PER_LOOK) {
            moved |= self.look();
        }
        self.follow_up();
        moved
    }

    /// Looks at the descriptors: connections, hang-ups.
    pub(crate) fn look(&mut self) -> bool {
        let set = self.engine.set.clone();
        let state = &mut **self;
        let (provider, hub) = (&mut state.provider, &mut state.hub);
        let mut any = false;
        // Level-triggered descriptors stay ready until they are dealt with; what does not fit is
        // seen next time.
        set.wait(Some(std::time::Duration::ZERO), |token| {
            any = true;
            provider.ready(hub, token);
        });
        self.follow_up();
        any
    }

    /// So many posts are over.
    #[inline]
    pub(crate) fn posted(&mut self, count: u32) {
        let before = self.posts / POSTS_PER_LOOK;
        self.posts = self.posts.wrapping_add(count);
        if self.posts / POSTS_PER_LOOK != before {
            self.look_up();
        }
    }

    #[cold]
    pub(crate) fn look_up(&mut self) {
        if self.look() {
            // What rang has been heard, here and by nobody else: the domain is not armed any more.
            self.wake_up();
        }
    }

    /// Does what a call of the provider made possible: sends that waited for credit, numbers to
    /// announce.
    #[inline]
    pub(crate) fn follow_up(&mut self) {
        if !self.hub.follow_ups.is_empty() {
            self.follow_up_all();
        }
        if !self.hub.flushes.is_empty() {
            self.hub.end_flushes();
        }
    }

    /// Hands what was collected to the kernel, and completes what it has taken.
    #[cold]
    pub(crate) fn write_collected(&mut self) {
        let state = &mut **self;
        for ep in state.hub.collected.drain(..).collect::<Vec<_>>() {
            state.provider.write_collected(&mut state.hub, ep);
        }
        self.follow_up();
    }

    #[cold]
    fn follow_up_all(&mut self) {
        let mut resumed = false;
        let state = &mut **self;
        while !state.hub.follow_ups.is_empty() {
            let what = state.hub.follow_ups.remove(0);
            match what {
                FollowUp::Grant(ep) => state.grant(ep),
                FollowUp::Announce(av, addr) => state.announce(av, addr),
                FollowUp::Dismiss(av, addr) => state.dismiss(av, addr),
                FollowUp::Resume => {
                    state.progress();
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
    pub(crate) fn leave(mut self) {
        self.follow_up();
        self.settle();
    }

    /// Before the lock is released with nothing to wait for: makes the invariant hold for the
    /// others.
    pub(crate) fn settle(&mut self) {
        if !self.armed && self.hub.is_awaited(self.engine.policy) {
            self.keep_going();
        }
    }

    /// Before the lock is released by somebody who will wait. True when they must keep themselves
    /// runnable.
    pub(crate) fn settle_waiting(&mut self) -> bool {
        if self.engine.policy == WaitPolicy::Spin {
            return true;
        }
        if !self.armed {
            self.keep_going();
        }
        matches!(self.driver, Driver::Gone)
    }

    /// A call has left something that a pass would move, or that waits for a peer.
    #[cold]
    pub(crate) fn see_to_it(&mut self) {
        if !self.armed {
            self.keep_going();
        } else if !self.arm() {
            self.wake_driver();
        }
    }

    /// Wakes the driver, or arms the domain where the driver only listens.
    fn keep_going(&mut self) {
        let policy = self.engine.policy;
        match &mut self.driver {
            Driver::Awake | Driver::Gone => {}
            Driver::Asleep(waker) if policy != WaitPolicy::Park && waker.is_some() => {
                if let Some(waker) = waker.take() {
                    self.driver = Driver::Awake;
                    self.hub.later.wake(waker);
                }
            }
            Driver::Asleep(_) | Driver::Watching => {
                if !self.arm() {
                    self.wake_driver();
                }
            }
        }
    }

    /// Wakes the driver from wherever it is.
    pub(crate) fn wake_driver(&mut self) {
        match std::mem::replace(&mut self.driver, Driver::Awake) {
            Driver::Asleep(Some(waker)) => self.hub.later.wake(waker),
            Driver::Asleep(None) | Driver::Watching => self.engine.set.kick(),
            other => self.driver = other,
        }
    }
}

impl State {
    /// Posts what waited for the credits that came back.
    fn grant(&mut self, ep: EpId) {
        loop {
            let Hub { eps, ops, .. } = &mut self.hub;
            let under_way = |peer| ops.is_under_way(ep, peer);
            let Some(bound) = eps.get_mut(ep.0) else {
                return;
            };
            let Some(key) = bound.transmit.next(under_way) else {
                // Only now: what was granted is in its queue.
                return bound.hold();
            };
            self.post_granted(ep, key);
        }
    }

    fn post_granted(&mut self, ep: EpId, key: OpKey) {
        let Some(op) = self.hub.ops.get_mut(key) else {
            return;
        };
        let had_credit = std::mem::replace(&mut op.credit, true);
        op.phase = Phase::Posted;
        if op.permit {
            // A permit keeps its credit until it is used or dropped.
            op.phase = Phase::Done;
            let waiter = op.waker.take();
            self.hub.wake_waiter(waiter);
            return;
        }
        let Some(spec) = op.spec else { return };
        self.hub.sends += usize::from(!had_credit);
        if let Err(error) = self.provider.queue_send(&mut self.hub, ep, key, &spec) {
            self.hub.complete(key, Outcome::failed(error));
        }
    }
}
