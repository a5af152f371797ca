//! Epoll sets with an eventfd to wake who waits: of a domain, with the sockets of its transport,
//! and of an object that an event loop waits on.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fabric_core::Result;
use fabric_core::transport::{Interest, WaitSet};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::os_error::{epoll_ctl_error, os_error};

/// The token of the wake-up eventfd.
const WAKE_TOKEN: u64 = u64::MAX;

/// An epoll set, level-triggered. Polling the set does not drain its eventfd, so an application
/// thread that polls cannot consume a wake-up. The driver drains it, and so do `prepare_wait` and
/// `WaitObject::reset` of an event loop.
#[derive(Debug)]
pub(crate) struct EpollSet {
    epoll: OwnedFd,
    wake_eventfd: OwnedFd,
}

impl EpollSet {
    pub(crate) fn new() -> Result<Self> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os_error("epoll_create1"))?;
        let wake_eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(os_error("eventfd2"))?;
        let set = Self {
            epoll,
            wake_eventfd,
        };
        set.watch(set.wake_eventfd.as_fd(), WAKE_TOKEN)
            .map_err(epoll_ctl_error)?;
        Ok(set)
    }

    /// Returns the descriptor that is readable when any descriptor in the set is ready.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Resets the wake-up eventfd; called by the driver before it checks for progress.
    pub(crate) fn drain_wake_eventfd(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake_eventfd, &mut count);
    }

    /// Waits and calls `each` with the token of every ready descriptor; returns their number.
    /// Without a timeout it waits until a descriptor is ready.
    pub(crate) fn wait(
        &self,
        timeout: Option<std::time::Duration>,
        mut each: impl FnMut(u64),
    ) -> usize {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // Not initialized: a pass that finds no event costs the system call alone.
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; 32];
        // An interrupted or failed wait counts as empty: the caller checks for progress in any
        // case.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer[..], timeout.as_ref()) else {
            return 0;
        };
        for event in events.iter() {
            let token = event.data.u64();
            if token != WAKE_TOKEN {
                each(token);
            }
        }
        events.len()
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
            Interest::HangUp => epoll::EventFlags::RDHUP,
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
