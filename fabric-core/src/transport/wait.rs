//! What a provider waits on.

use std::io;
use std::os::fd::BorrowedFd;

/// How a provider waits for its sockets, and hands them what does not fit at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "FI_TCP_IO_URING")]
pub enum SocketIo {
    /// What the environment variable `FABRIC_SOCKET_IO` says: `epoll`, `io_uring` (and epoll where
    /// the kernel refuses it), or `auto`, which is the better one by measurement: epoll.
    #[default]
    Auto,
    /// System calls that never block, and epoll.
    Epoll,
    /// The same while somebody looks, and io_uring when nobody does: what comes is received, and
    /// what is long is sent, by the kernel alone. Connections are begun there in either case.
    IoUring,
}

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read, or the end.
    Read,
    /// Room to write.
    Write,
    /// Either.
    Both,
}

/// What a provider waits on: a set of descriptors, and a doorbell inside the process.
pub trait WaitSet: Send + Sync {
    /// Wakes whoever sleeps on the set.
    fn wake(&self);

    /// Watches a descriptor: as long as it is readable or hung up,
    /// [`TransportDomain::ready`](super::TransportDomain::ready) is told with the token.
    ///
    /// # Errors
    /// What the operating system refuses.
    fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()>;

    /// Watches a descriptor that is watched already for something else. It stays with its token.
    ///
    /// # Errors
    /// What the operating system refuses.
    fn set_interest(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        let _ = (fd, token, interest);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Stops watching. To be called before the descriptor is closed.
    fn unwatch(&self, fd: BorrowedFd<'_>);
}
