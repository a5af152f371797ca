//! Descriptors that a transport waits on.

use std::io;
use std::os::fd::BorrowedFd;

use super::EpId;

/// Token with which a wait set reports a descriptor of an endpoint.
///
/// Packed, the kind has 2 bits, the endpoint 32 and the id 30. An endpoint id keeps all of its 32
/// bits, because a domain that accepts many connections may use a new endpoint id for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitToken {
    /// Kind of descriptor, below 4; each transport defines its kinds.
    pub kind: u8,
    /// The endpoint that owns the descriptor.
    pub ep: EpId,
    /// Id within the endpoint, below `2^30 - 3`.
    pub id: u32,
}

impl WaitToken {
    /// The packed token of a descriptor that the endpoints of a domain share.
    pub const SHARED: u64 = u64::MAX - 1;

    /// The packed token of the engine's timer for messages that make no progress.
    pub const ARRIVAL_TIMER: u64 = u64::MAX - 2;

    const ID_BITS: u32 = 30;

    /// Packs the token into the value that a wait set keeps.
    #[must_use]
    pub fn pack(self) -> u64 {
        debug_assert!(
            self.kind < 4 && self.id < (1 << Self::ID_BITS) - 3,
            "token kind or id out of range"
        );
        u64::from(self.kind) << (u32::BITS + Self::ID_BITS)
            | u64::from(self.ep.0) << Self::ID_BITS
            | u64::from(self.id)
    }

    /// Returns the token that was packed into this value.
    #[must_use]
    pub fn unpack(packed: u64) -> Self {
        Self {
            kind: (packed >> (u32::BITS + Self::ID_BITS)) as u8,
            ep: EpId((packed >> Self::ID_BITS) as u32),
            id: packed as u32 & ((1 << Self::ID_BITS) - 1),
        }
    }
}

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
    /// Hung up: the peer has closed or reset the connection.
    HangUp,
}

/// Wait set of a domain: a set of descriptors, and a doorbell inside the process.
pub trait WaitSet: Send + Sync {
    /// Wakes the thread that sleeps on the set.
    fn wake(&self);

    /// Watches a descriptor: while it is readable or hung up, the engine calls
    /// [`TransportEndpoint::ready`](super::TransportEndpoint::ready) of the endpoint in the token.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_token_equals_packed_token() {
        for ep in [0, 1, 1 << 28, u32::MAX].map(EpId) {
            for (kind, id) in [(0, 0), (1, 7), (3, (1 << 30) - 4)] {
                let token = WaitToken { kind, ep, id };
                assert_eq!(WaitToken::unpack(token.pack()), token);
                assert_ne!(token.pack(), WaitToken::SHARED);
                assert_ne!(token.pack(), WaitToken::ARRIVAL_TIMER);
            }
        }
    }
}
