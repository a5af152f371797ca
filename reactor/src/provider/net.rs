//! Sockets of the internet, as the providers that use them make them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use fabric_core::{Address, Error, Result, Scheme};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A socket that never blocks, of the family of this address.
pub(super) fn socket(at: SocketAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Binds a socket to an address.
pub(super) fn bind(socket: impl AsFd, scheme: Scheme, at: SocketAddr) -> Result<()> {
    rustix::net::bind(socket, &at).map_err(refused("bind", scheme, at))
}

/// Where a socket is bound, which tells the port when 0 was asked for.
pub(super) fn name(socket: impl AsFd) -> Result<SocketAddr> {
    let name = rustix::net::getsockname(socket).and_then(SocketAddr::try_from);
    name.map_err(|errno| Error::os("getsockname", errno.raw_os_error()))
}

/// What it means that a call which takes an address was refused.
pub(super) fn refused(call: &'static str, scheme: Scheme, at: SocketAddr) -> impl Fn(Errno) -> Error {
    move |errno| match (errno, Address::of_socket(scheme, at)) {
        (Errno::ADDRINUSE, Ok(at)) => Error::AddressInUse(at),
        (errno, _) => Error::os(call, errno.raw_os_error()),
    }
}

pub(super) fn unwatchable(error: io::Error) -> Error {
    Error::os("epoll_ctl", error.raw_os_error().unwrap_or_default())
}
