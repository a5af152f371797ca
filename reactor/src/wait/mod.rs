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
