//! A timerfd that is watched by an epoll set, like a socket.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use fabric_core::Result;
use fabric_core::transport::WaitSet;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::fork_guard::ForkGuard;
use super::os_error::{epoll_ctl_error, os_error};

/// A timerfd that is watched by an epoll set, like a socket.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    fork_guard: ForkGuard,
}

impl Timer {
    pub(crate) fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(os_error("timerfd_create"))?;
        Ok(Self {
            fd,
            fork_guard: ForkGuard::current_process(),
        })
    }

    /// Adds the timer to an epoll set, which reports `token` when the timer expires.
    pub(crate) fn watch(&self, wait_set: &dyn WaitSet, token: u64) -> Result<()> {
        wait_set
            .watch(self.fd.as_fd(), token)
            .map_err(epoll_ctl_error)
    }

    /// Removes the timer from an epoll set; no effect in a forked child, which shares the epoll
    /// descriptor with its parent.
    pub(crate) fn unwatch(&self, wait_set: &dyn WaitSet) {
        if self.fork_guard.in_original_process() {
            wait_set.unwatch(self.fd.as_fd());
        }
    }

    /// Makes the timer readable after this time, at least one microsecond; `None` disarms it.
    pub(crate) fn set(&self, after: Option<Duration>) {
        // The value zero would disarm the timer.
        let after = after.map(|after| after.max(Duration::from_micros(1)));
        let value = after.and_then(|after| Timespec::try_from(after).ok());
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let spec = Itimerspec {
            it_interval: zero,
            it_value: value.unwrap_or(zero),
        };
        let _ = rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec);
    }
}
