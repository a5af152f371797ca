//! Whether a program may block on a wait descriptor.

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
