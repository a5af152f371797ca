//! Descriptors that the domain's epoll set watches.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fabric_core::Result;
use fabric_core::transport::{Interest, WaitSet};

use super::fork_guard::ForkGuard;
use super::os_error::epoll_ctl_error;

/// A descriptor that an epoll set may watch, at most until the descriptor is dropped.
pub(crate) struct WatchedFd {
    fd: OwnedFd,
    /// The epoll set and its token for the descriptor; `None` while the descriptor is not watched.
    watch: Option<(Arc<dyn WaitSet>, u64)>,
    fork_guard: ForkGuard,
}

impl WatchedFd {
    /// Takes a descriptor that is not watched.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            watch: None,
            fork_guard: ForkGuard::current_process(),
        }
    }

    /// Adds the descriptor to an epoll set, which reports `token` when the descriptor is readable.
    pub(crate) fn watch(&mut self, wait_set: &Arc<dyn WaitSet>, token: u64) -> Result<()> {
        wait_set
            .watch(self.fd.as_fd(), token)
            .map_err(epoll_ctl_error)?;
        self.watch = Some((wait_set.clone(), token));
        Ok(())
    }

    /// Removes the descriptor from the epoll set; no effect in a forked child, which shares the
    /// epoll descriptor with its parent.
    pub(crate) fn unwatch(&mut self) {
        if self.in_original_process()
            && let Some((wait_set, _)) = self.watch.take()
        {
            wait_set.unwatch(self.fd.as_fd());
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Sets what the epoll set reports of a descriptor that is watched, so that `epoll_ctl` cannot
    /// fail for lack of memory.
    pub(crate) fn set_interest(&self, interest: Interest) {
        if let Some((wait_set, token)) = &self.watch {
            let _ = wait_set.set_interest(self.fd.as_fd(), *token, interest);
        }
    }

    /// Returns false in a forked child.
    pub(crate) fn in_original_process(&self) -> bool {
        self.fork_guard.in_original_process()
    }
}

impl AsFd for WatchedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for WatchedFd {
    fn drop(&mut self) {
        self.unwatch();
    }
}
