//! Event loops of the program: descriptors to wait on, and what has to hold before the program
//! blocks on one (`FI_GETWAIT`, `fi_trywait(3)`).
//!
//! A queue or counter has an epoll set of its own, with an eventfd that the waker of the object
//! writes. `prepare_wait` resets the eventfd, makes a pass, and registers the waker unless the
//! object is ready. After that the program waits like a task, and the invariant of `progress`
//! holds for it: a driver makes progress, and the completion calls the waker.
//!
//! A domain without a driver is driven by the event loop itself
//! ([`DriverKind::EventLoop`](super::DriverKind)). The set of a queue then also contains the set of
//! the domain. The domain is armed, or its wake-up eventfd readable, whenever the lock is free. So
//! a thread that blocks misses no arrival while another thread polls, posts, or takes its
//! doorbells: what the other thread completes calls the waker, and what it leaves undone makes the
//! domain's descriptor readable again. Only `prepare_wait` resets the wake-up eventfd, under the
//! lock, and arms the domain or writes the eventfd again before the lock is released.

use std::sync::Arc;
use std::task::{Wake, Waker};

use fabric_core::Result;
use fabric_core::transport::WaitSet;

use super::domain::DomainHandle;
use super::state::bindings::{CounterId, CqId};
use super::wait_fd::WaitFd;
use crate::sys::EpollSet;
use crate::sys::os_error::epoll_ctl_error;

/// What makes the descriptor of a queue or counter readable.
#[derive(Clone, Debug)]
pub struct WaitObject(Arc<EpollSet>);

impl WaitObject {
    /// Creates the descriptor of a queue or counter. [`watch`](Self::watch) adds its domains.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub fn new() -> Result<Self> {
        Ok(Self(Arc::new(EpollSet::new()?)))
    }

    /// Returns the descriptor.
    #[must_use]
    pub fn fd(&self) -> WaitFd {
        WaitFd::from(self.0.clone())
    }

    /// Makes the descriptor readable also when progress in the domain is due, if an event loop
    /// drives the domain. A descriptor watches a domain at most once.
    ///
    /// # Errors
    /// The operating system refuses it.
    pub fn watch(&self, domain: &DomainHandle) -> Result<()> {
        if domain.engine().is_in_event_loop() {
            let set = &domain.engine().wait_set;
            self.0.watch(set.fd(), 0).map_err(epoll_ctl_error)?;
        }
        Ok(())
    }

    /// Returns a waker that makes the descriptor readable until the next [`reset`](Self::reset).
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(self.0.clone())
    }

    /// Discards wake-ups. To be called before the object is checked and the waker registered.
    pub fn reset(&self) {
        self.0.drain_wake_eventfd();
    }
}

impl Wake for EpollSet {
    fn wake(self: Arc<Self>) {
        WaitSet::wake(&*self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        WaitSet::wake(&**self);
    }
}

impl DomainHandle {
    /// Returns the descriptor of the domain.
    #[must_use]
    pub fn wait_fd(&self) -> WaitFd {
        WaitFd::from(self.engine().wait_set.clone())
    }

    /// Makes a pass. Returns whether the program may block until progress is due: then every
    /// arrival makes the descriptor of a domain in an event loop readable, and the driver of any
    /// other domain makes progress.
    #[must_use]
    pub fn prepare_wait(&self) -> bool {
        self.engine().prepare_wait(|_| false, |_| {})
    }

    /// Makes a pass and registers the waker of `wait` unless the completion queue has completions
    /// or is closed. Returns whether the program may block on the descriptor.
    #[must_use]
    pub fn prepare_cq_wait(&self, cq: CqId, wait: &WaitObject) -> bool {
        wait.reset();
        let waker = wait.waker();
        self.engine().prepare_wait(
            |domain| {
                let queue = domain.cqs.get_mut(cq);
                queue.is_none_or(|queue| !queue.is_empty())
            },
            |domain| domain.register_cq_waker(cq, &waker),
        )
    }

    /// Makes a pass and registers the waker of `wait` unless the counts of a counter differ from
    /// `seen`, its value and error count, or the counter is closed. `waiter` is the registration of
    /// the previous call. Returns whether the program may block on the descriptor.
    #[must_use]
    pub fn prepare_counter_wait(
        &self,
        id: CounterId,
        seen: (u64, u64),
        waiter: &mut Option<u64>,
        wait: &WaitObject,
    ) -> bool {
        wait.reset();
        let waker = wait.waker();
        self.engine().prepare_wait(
            |domain| domain.counters.read(id) != Some(seen),
            |domain| {
                let (value, errors) = seen;
                let next = (value.wrapping_add(1), errors);
                let deferred = &mut domain.deferred;
                let counters = &mut domain.counters;
                counters.register_waiter(id, waiter, next, &waker, deferred);
            },
        )
    }
}
