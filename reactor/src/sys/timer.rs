//! A timerfd that is watched by an epoll set, like a socket.

use std::sync::Arc;
use std::time::Duration;

use fabric_core::Result;
use fabric_core::transport::WaitSet;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::os_error::os_error;
use super::watched_fd::WatchedFd;

/// A timerfd that is watched by an epoll set, like a socket.
pub(crate) struct Timer(WatchedFd);

impl Timer {
    /// Creates a timer; the epoll set reports `token` when the timer expires.
    pub(crate) fn new(wait_set: &Arc<dyn WaitSet>, token: u64) -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(os_error("timerfd_create"))?;
        let mut fd = WatchedFd::new(fd);
        fd.watch(wait_set, token)?;
        Ok(Self(fd))
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
        let _ = rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec);
    }
}
