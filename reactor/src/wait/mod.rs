//! Waiting: how long to look before sleeping, and what to sleep on.

mod policy;
mod set;

pub(crate) use policy::{Spinner, Window};
pub use policy::{WaitPolicy, default_policy};
pub(crate) use set::PollSet;
