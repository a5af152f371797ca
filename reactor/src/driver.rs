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
use fabric_core::provider::WaitSet;
use fabric_core::{Error, Result};

use crate::engine::{Driver, Engine};
use crate::later::Later;
use crate::notes::Note;
use crate::sync;
use crate::wait::{PollSet, WaitPolicy, Window};

/// How often the thread looks whether the application still polls.
const WATCH: Duration = Duration::from_millis(1);

/// Turns of a driver that is awake between two looks at the descriptors.
const TURNS_PER_LOOK: u32 = 16;

/// What the driver is to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Make another turn.
    Again,
    /// Somebody else drives: let others run, then make another turn.
    Busy,
    /// Sleep until the descriptor is readable, or until the waker given to the turn is woken.
    Sleep,
    /// Sleep likewise, but look again soon.
    Watch,
}

/// The state of a driver between its turns.
#[derive(Debug)]
pub(crate) struct Turns {
    window: Window,
    polls_seen: u64,
    turns: u32,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self {
            window: Window::new(),
            polls_seen: 0,
            turns: 0,
        }
    }

    /// One turn. `waker` is the driver's own, if it is a task.
    pub(crate) fn turn(&mut self, engine: &Engine, waker: Option<&Waker>) -> Next {
        let Some(mut locked) = engine.try_lock() else {
            return Next::Busy;
        };
        let auto = engine.progress == Progress::Auto;
        let polls = engine.polls.load(Ordering::Relaxed);
        let application_polls = auto && polls != self.polls_seen;
        self.polls_seen = polls;
        if application_polls && !locked.armed && !locked.hub.is_awaited(engine.policy) {
            // The application drives in place; a second driver would only be in its way.
            self.window.close();
            locked.driver = Driver::Watching;
            return Next::Watch;
        }
        // The descriptors are looked at after a sleep, before one, and now and then between.
        let look =
            !matches!(locked.driver, Driver::Awake) || self.turns.is_multiple_of(TURNS_PER_LOOK);
        self.turns = self.turns.wrapping_add(1);
        let news = (look && locked.look()) | locked.pass();
        if news {
            self.window.news();
            locked.disarm();
            locked.driver = Driver::Awake;
            return Next::Again;
        }
        if auto || locked.hub.is_awaited(engine.policy) {
            // Armed anew even if armed before: who rang a doorbell took its flag down, and the
            // message may be gone.
            let spins =
                !locked.armed && engine.policy != WaitPolicy::Park && self.window.look_again();
            if spins || locked.look() || !locked.arm() {
                locked.driver = Driver::Awake;
                return Next::Again;
            }
        } else if locked.look() {
            // More was ready than one look takes, and what wakes the driver is only told of
            // changes.
            locked.driver = Driver::Awake;
            return Next::Again;
        }
        self.window.close();
        locked.driver = Driver::Asleep(waker.cloned());
        locked.parks += 1;
        Next::Sleep
    }
}

/// Runs the driver of an auto-progress domain on a thread of its own, until the domain is gone.
pub(crate) fn spawn(engine: &Arc<Engine>, name: String) -> Result<()> {
    let (set, engine) = (engine.set.clone(), Arc::downgrade(engine));
    let spawned = thread::Builder::new()
        .name(name)
        .spawn(move || run(&set, &engine));
    spawned
        .map(drop)
        .map_err(|error: io::Error| Error::os("clone", error.raw_os_error().unwrap_or_default()))
}

/// Drives a domain from this thread, until it is gone.
pub(crate) fn run(set: &PollSet, engine: &Weak<Engine>) {
    let _leave = Leave(engine.clone(), "thread");
    Later::tell(Note::Drives("thread"));
    let mut turns = Turns::new();
    loop {
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let next = turns.turn(&engine, None);
        drop(engine);
        match next {
            Next::Again => sync::spin(),
            // Where there are fewer cores than threads that look, whoever drives may be waiting for
            // this one.
            Next::Busy => sync::yield_now(),
            // What is ready is looked at in the next turn.
            Next::Sleep => drop(set.wait(None, |_| {})),
            Next::Watch => drop(set.wait(Some(WATCH), |_| {})),
        }
        if matches!(next, Next::Sleep | Next::Watch) {
            set.drain();
        }
    }
}

/// Whoever drove has gone, because its runtime went or because it panicked: from now on tasks keep
/// themselves runnable.
struct Leave(Weak<Engine>, &'static str);

impl Drop for Leave {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            let mut locked = engine.lock();
            locked.driver = Driver::Gone;
            locked.hub.wake_everybody();
        }
        Later::tell(Note::DrivesNoMore(self.1));
    }
}

/// What a driver that is a task sleeps on: readable when there may be news.
pub struct Doorbell(Arc<PollSet>);

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Drives a domain from a task, for as long as the domain is open.
pub struct TaskDriver {
    set: Arc<PollSet>,
    engine: Weak<Engine>,
    turns: Turns,
    _leave: Leave,
}

impl TaskDriver {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        let (set, engine) = (engine.set.clone(), Arc::downgrade(engine));
        Later::tell(Note::Drives("task"));
        Self {
            set,
            _leave: Leave(engine.clone(), "task"),
            engine,
            turns: Turns::new(),
        }
    }

    /// What it sleeps on.
    #[must_use]
    pub fn doorbell(&self) -> Doorbell {
        Doorbell(self.set.clone())
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
            let next = self.turns.turn(&engine, Some(cx.waker()));
            drop(engine);
            if matches!(next, Next::Again | Next::Busy) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if ready!(readable(cx)).is_err() {
                return Poll::Ready(());
            }
            self.set.drain();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Whoever sleeps on the set finds the engine gone and leaves.
        self.set.kick();
    }
}
