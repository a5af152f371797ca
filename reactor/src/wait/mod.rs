//! Waiting: how long to spin before sleeping, and the descriptors to sleep on.

#[cfg(not(all(test, loom)))]
mod epoll;
mod policy;

#[cfg(not(all(test, loom)))]
pub(crate) use epoll::EpollSet;
pub use policy::WaitPolicy;
pub(crate) use policy::{PollSpinner, SpinBudget};

#[cfg(all(test, loom))]
pub(crate) use crate::models::EpollSet;

/// Converts a failure of `epoll_ctl` to an error of this crate.
pub(crate) fn epoll_ctl_error(error: std::io::Error) -> fabric_core::Error {
    fabric_core::Error::os("epoll_ctl", error.raw_os_error().unwrap_or_default())
}
