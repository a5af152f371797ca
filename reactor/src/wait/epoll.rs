//! What a sleeping domain waits on: an epoll set with the doorbells and sockets of its provider,
//! and a doorbell of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fabric_core::transport::{Interest, WaitSet};
use fabric_core::{Error, Result};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::epoll_ctl_error;

/// The token of the domain's own doorbell.
const WAKE_TOKEN: u64 = u64::MAX;

/// An epoll set, level-triggered. The domain's own doorbell in it is drained by the driver only:
/// whoever else looks at the set cannot swallow it.
#[derive(Debug)]
pub(crate) struct EpollSet {
    epoll: OwnedFd,
    wake_eventfd: OwnedFd,
}

impl EpollSet {
    pub(crate) fn new() -> Result<Self> {
        let failed = |call| move |errno: rustix::io::Errno| Error::os(call, errno.raw_os_error());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create1"))?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(failed("eventfd2"))?;
        let set = Self {
            epoll,
            wake_eventfd: doorbell,
        };
        set.watch(set.wake_eventfd.as_fd(), WAKE_TOKEN)
            .map_err(epoll_ctl_error)?;
        Ok(set)
    }

    /// The descriptor that is readable when anything in the set is.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Silences the domain's own doorbell; for the driver, before it looks for news.
    pub(crate) fn drain_wake_eventfd(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake_eventfd, &mut count);
    }

    /// Waits and hands the token of every ready descriptor to `each`; returns how many there were.
    /// No timeout: as long as it takes.
    pub(crate) fn wait(
        &self,
        timeout: Option<std::time::Duration>,
        mut each: impl FnMut(u64),
    ) -> usize {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 32];
        // An interrupted or failed wait is an empty one: the caller looks for news anyway.
        let count = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()).unwrap_or(0);
        for event in &events[..count] {
            let token = event.data.u64();
            if token != WAKE_TOKEN {
                each(token);
            }
        }
        count
    }
}

impl WaitSet for EpollSet {
    fn wake(&self) {
        // A full counter means that a wake-up is pending already.
        let _ = rustix::io::write(&self.wake_eventfd, &1u64.to_ne_bytes());
    }

    fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        Ok(epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    fn set_interest(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        let read = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let flags = match interest {
            Interest::Read => read,
            Interest::Write => epoll::EventFlags::OUT,
            Interest::Both => read | epoll::EventFlags::OUT,
        };
        Ok(epoll::modify(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }
}
