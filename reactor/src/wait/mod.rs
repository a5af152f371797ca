//! Waiting: how long to look before sleeping, and what to sleep on.

#[cfg(not(all(test, loom)))]
mod epoll;
mod policy;

#[cfg(not(all(test, loom)))]
pub(crate) use epoll::EpollSet;
pub use policy::WaitPolicy;
pub(crate) use policy::{PollSpinner, SpinBudget};

#[cfg(all(test, loom))]
pub(crate) use crate::models::EpollSet;

/// What it means that a set does not watch a descriptor.
pub(crate) fn epoll_ctl_error(error: std::io::Error) -> fabric_core::Error {
    fabric_core::Error::os("epoll_ctl", error.raw_os_error().unwrap_or_default())
}
