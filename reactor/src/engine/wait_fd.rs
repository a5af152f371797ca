//! Descriptors for event loops of the program.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::sys::EpollSet;

/// The descriptor of a domain, a queue or a counter (`FI_GETWAIT`), for an event loop.
///
/// An event loop waits until the descriptor is readable, and reads nothing from it. Cheap to clone:
/// clones are the same descriptor, which is open as long as its object or a clone exists.
#[derive(Clone, Debug)]
#[doc(alias = "FI_GETWAIT")]
#[doc(alias = "FI_WAIT_FD")]
pub struct WaitFd(Arc<EpollSet>);

impl From<Arc<EpollSet>> for WaitFd {
    fn from(set: Arc<EpollSet>) -> Self {
        Self(set)
    }
}

impl AsFd for WaitFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl AsRawFd for WaitFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd().as_raw_fd()
    }
}
