//! Descriptors that a transport waits on.

use std::io;
use std::os::fd::BorrowedFd;

/// How a transport waits for its sockets, and how it sends what the socket buffer does not accept
/// at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "FI_TCP_IO_URING")]
pub enum SocketIo {
    /// The value of the environment variable `FABRIC_SOCKET_IO`: `epoll`, `io_uring` (epoll where
    /// the kernel does not support io_uring), or `auto`: epoll, which was faster in measurements.
    #[default]
    Auto,
    /// Non-blocking system calls and epoll.
    Epoll,
    /// Non-blocking system calls while a task polls, and io_uring while no task does: then io_uring
    /// receives, and sends long messages. Connections are always established with io_uring.
    IoUring,
}

/// Readiness a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable, or hung up.
    Read,
    /// Writable.
    Write,
    /// Readable or writable.
    Both,
}

/// Wait set of a domain: a set of descriptors, and a doorbell inside the process.
pub trait WaitSet: Send + Sync {
    /// Wakes the thread that sleeps on the set.
    fn wake(&self);

    /// Watches a descriptor: while it is readable or hung up, the engine calls
    /// [`TransportDomain::ready`](super::TransportDomain::ready) with the token.
    ///
    /// # Errors
    /// The error of the operating system.
    fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()>;

    /// Changes the interest in a descriptor that is watched already. The descriptor keeps its
    /// token.
    ///
    /// # Errors
    /// The error of the operating system; [`io::ErrorKind::Unsupported`] by default.
    fn set_interest(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        let _ = (fd, token, interest);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Stops watching a descriptor. Must be called before the descriptor is closed.
    fn unwatch(&self, fd: BorrowedFd<'_>);
}
