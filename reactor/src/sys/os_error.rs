//! Errors of system calls as errors of this crate.

use std::io;

use fabric_core::Error;
use rustix::io::Errno;

/// Returns the conversion of a failure of the system call `call`.
pub(crate) fn os_error(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::os(call, errno.raw_os_error())
}

/// Converts a failure of `epoll_ctl`.
pub(crate) fn epoll_ctl_error(error: io::Error) -> Error {
    Error::os("epoll_ctl", error.raw_os_error().unwrap_or_default())
}

/// Returns the `errno` of the last system call of this thread.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
