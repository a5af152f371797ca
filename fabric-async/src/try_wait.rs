//! Wait descriptors of queues and counters, and whether a program may block on one.

use std::sync::OnceLock;

use fabric_core::Result;
use fabric_reactor::{DomainHandle, WaitObject};

/// Whether a program may block on a [`WaitFd`](crate::WaitFd) now (`fi_trywait(3)`).
///
/// See [`guide::event_loops`](crate::guide::event_loops).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a program that blocks without `TryWait::Block` may sleep for ever"]
#[doc(alias = "fi_trywait")]
pub enum TryWait {
    /// The program may block (`FI_SUCCESS`): nothing is ready, and the descriptor becomes readable
    /// when something is.
    Block,
    /// The program must not block (`-FI_EAGAIN`): something is ready or progress is due. Read the
    /// object, then call `prepare_wait` again.
    Poll,
}

impl TryWait {
    pub(crate) fn from_may_block(may_block: bool) -> Self {
        if may_block { Self::Block } else { Self::Poll }
    }
}

/// The descriptor of a queue or counter, which the first use creates.
#[derive(Default)]
pub(crate) struct LazyWaitObject(OnceLock<WaitObject>);

impl LazyWaitObject {
    /// Returns the descriptor, if it was created.
    pub(crate) fn get(&self) -> Option<&WaitObject> {
        self.0.get()
    }

    /// Returns the descriptor. The first call creates it; it watches the domain, if there is one.
    pub(crate) fn get_or_open(&self, watched: Option<&DomainHandle>) -> Result<&WaitObject> {
        if self.0.get().is_none() {
            let object = WaitObject::new()?;
            if let Some(domain) = watched {
                object.watch(domain)?;
            }
            // If another thread has set a descriptor meanwhile, this one is closed again.
            let _ = self.0.set(object);
        }
        Ok(self.0.get().expect("set above, and never unset"))
    }
}
