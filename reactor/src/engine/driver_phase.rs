//! What drives a domain, and what the driver does at the moment.

use std::fmt;
use std::task::Waker;

/// What makes progress in a domain when no task polls it. Fixed when the domain is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// A task, which the caller spawns ([`TaskDriver`](super::TaskDriver)).
    Task,
    /// A thread, under automatic progress. It is spawned with the domain.
    Thread,
    /// An event loop of the program, which sleeps on the domain's descriptor.
    EventLoop,
}

impl DriverKind {
    /// Returns the name, for `tracing` events.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Thread => "thread",
            Self::EventLoop => "event loop",
        }
    }
}

/// What the driver of a domain does. It is `NotRunning` in an event loop.
pub(crate) enum DriverPhase {
    /// No driver was started yet, or the runtime that ran it is gone.
    NotRunning,
    /// The driver makes passes, or has been woken to make some.
    Awake,
    /// The driver sleeps on the descriptors. Holds the waker of a driver task, none for a thread.
    Asleep(Option<Waker>),
    /// The driver thread checks from time to time whether the application still polls.
    Standby,
}

impl fmt::Debug for DriverPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRunning => "not started",
            Self::Awake => "awake",
            Self::Asleep(_) => "asleep",
            Self::Standby => "standby",
        })
    }
}
