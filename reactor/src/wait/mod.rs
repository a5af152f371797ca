//! Waiting: how long to look before sleeping, and what to sleep on.

mod policy;
#[cfg(not(all(test, loom)))]
mod set;

pub use policy::WaitPolicy;
pub(crate) use policy::{Spinner, Window};
#[cfg(not(all(test, loom)))]
pub(crate) use set::PollSet;

#[cfg(all(test, loom))]
pub(crate) use crate::models::PollSet;

/// What it means that a set does not watch a descriptor.
pub(crate) fn unwatchable(error: std::io::Error) -> fabric_core::Error {
    fabric_core::Error::os("epoll_ctl", error.raw_os_error().unwrap_or_default())
}
