//! The wait set of a domain without a kernel: an edge is returned to the first thread that polls;
//! the wake-up eventfd is returned to every poll until the driver drains it.

use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use fabric_core::Result;
use fabric_core::transport::WaitSet;
use loom::sync::{Condvar, Mutex};

use crate::sys::sync::lock;

/// Stands in for `wait::EpollSet`.
#[derive(Debug)]
pub(crate) struct EpollSet {
    signals: Mutex<EpollSignals>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct EpollSignals {
    /// The wake-up eventfd: level-triggered.
    wake_eventfd: bool,
    /// Doorbells of peers: edge-triggered.
    doorbells: Vec<u64>,
    /// Whether the set became readable since the runtime last asked.
    readable: bool,
    task_waker: Option<Waker>,
}

impl EpollSet {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            signals: Mutex::new(EpollSignals::default()),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("a model has no descriptors")
    }

    pub(crate) fn drain_wake_eventfd(&self) {
        lock(&self.signals).wake_eventfd = false;
    }

    /// Sleeps without a timeout, and polls with a timeout of zero. Any other timeout lets other
    /// threads run first, since loom has no time.
    pub(crate) fn wait(&self, timeout: Option<Duration>, mut each: impl FnMut(u64)) -> usize {
        if timeout.is_some_and(|timeout| !timeout.is_zero()) {
            loom::thread::yield_now();
        }
        let mut signals = lock(&self.signals);
        while timeout.is_none() && !signals.wake_eventfd && signals.doorbells.is_empty() {
            signals = self
                .changed
                .wait(signals)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        let (tokens, is_woken) = (std::mem::take(&mut signals.doorbells), signals.wake_eventfd);
        drop(signals);
        tokens.iter().copied().for_each(&mut each);
        tokens.len() + usize::from(is_woken)
    }

    /// Rings the doorbell of a peer with this token.
    pub(super) fn ring_doorbell(&self, token: u64) {
        self.signal(|signals| {
            if !signals.doorbells.contains(&token) {
                signals.doorbells.push(token);
            }
        });
    }

    /// Acts as a runtime's registration of the descriptor: true once after the set became readable,
    /// otherwise the waker is kept.
    pub(super) fn became_readable(&self, waker: &Waker) -> bool {
        let mut signals = lock(&self.signals);
        let readable = std::mem::take(&mut signals.readable);
        let previous = signals.task_waker.take();
        if !readable {
            signals.task_waker = Some(waker.clone());
        }
        drop(signals);
        drop(previous);
        readable
    }

    fn signal(&self, raise: impl FnOnce(&mut EpollSignals)) {
        let mut signals = lock(&self.signals);
        raise(&mut signals);
        signals.readable = true;
        let task = signals.task_waker.take();
        drop(signals);
        self.changed.notify_one();
        task.into_iter().for_each(Waker::wake);
    }
}

impl WaitSet for EpollSet {
    fn wake(&self) {
        self.signal(|signals| signals.wake_eventfd = true);
    }

    fn watch(&self, _: BorrowedFd<'_>, _: u64) -> std::io::Result<()> {
        unreachable!("a model has no descriptors")
    }

    fn unwatch(&self, _: BorrowedFd<'_>) {}
}
