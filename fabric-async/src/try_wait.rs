//! Whether a program may block on a wait descriptor.

/// Whether a program may block on a [`WaitFd`](crate::WaitFd) now (`fi_trywait(3)`).
///
/// See [`guide::event_loops`](crate::guide::event_loops).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a program that blocks without `TryWait::Block` may sleep for ever"]
#[doc(alias = "fi_trywait")]
pub enum TryWait {
    /// The program may block: nothing is ready, and whatever becomes ready later makes the
    /// descriptor readable (`FI_SUCCESS`).
    Block,
    /// The program must not block: something is ready or progress is due. Read the object, then ask
    /// again (`-FI_EAGAIN`).
    Poll,
}

impl TryWait {
    pub(crate) fn from_may_block(may_block: bool) -> Self {
        if may_block { Self::Block } else { Self::Poll }
    }
}
