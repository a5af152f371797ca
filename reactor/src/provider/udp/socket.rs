//! Sockets for datagrams.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fabric_core::provider::{Interest, WaitSet};
use fabric_core::{Error, Result, Scheme};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_ip_add_membership, set_ip_multicast_if, set_socket_recv_buffer_size, set_socket_reuseaddr,
};
use rustix::net::{SendFlags, SocketType};

use crate::provider::net::{self, Tuning};
use crate::provider::origin::Origin;
use crate::wait::unwatchable;

/// Bytes of datagrams that the kernel is asked to keep until they are looked at. It gives what the
/// machine allows.
const KERNEL_BUFFER: usize = 4 << 20;

/// A socket that is bound and watched. It never blocks.
pub(super) struct Socket {
    fd: OwnedFd,
    origin: Origin,
    wait: Arc<dyn WaitSet>,
    token: u64,
}

/// What a send came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Gone,
    NoRoom,
}

fn os(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::os(call, errno.raw_os_error())
}

fn tune(fd: &OwnedFd, at: SocketAddr, tuning: &Tuning) -> Result<()> {
    if tuning.options.receive_buffer.is_none() {
        // Whatever there is, is enough to work with.
        let _ = set_socket_recv_buffer_size(fd, KERNEL_BUFFER);
    }
    tuning.apply(fd, at).map_err(os("setsockopt"))
}

impl Socket {
    /// Binds to an address, and says to which when the port is 0.
    pub(super) fn open(
        at: SocketAddr,
        tuning: &Tuning,
        watch: (Arc<dyn WaitSet>, u64),
    ) -> Result<(Self, SocketAddr)> {
        let fd = net::socket(at, SocketType::DGRAM).map_err(os("socket"))?;
        tune(&fd, at, tuning)?;
        tuning.open_at(at, |at| net::bind(&fd, Scheme::Udp, at))?;
        if let SocketAddr::V4(at) = at {
            // Groups are reached by way of the network where the endpoint is at home.
            set_ip_multicast_if(&fd, at.ip()).map_err(os("setsockopt(IP_MULTICAST_IF)"))?;
        }
        let name = net::name(&fd)?;
        Ok((Self::watched(fd, watch)?, name))
    }

    /// Binds to a group, which others on this machine may do as well, and joins it on the network
    /// of this interface.
    pub(super) fn join(
        group: SocketAddrV4,
        interface: Ipv4Addr,
        tuning: &Tuning,
        watch: (Arc<dyn WaitSet>, u64),
    ) -> Result<Self> {
        let at = SocketAddr::V4(group);
        let fd = net::socket(at, SocketType::DGRAM).map_err(os("socket"))?;
        tune(&fd, at, tuning)?;
        set_socket_reuseaddr(&fd, true).map_err(os("setsockopt(SO_REUSEADDR)"))?;
        net::bind(&fd, Scheme::Udp, at)?;
        set_ip_add_membership(&fd, group.ip(), &interface)
            .map_err(os("setsockopt(IP_ADD_MEMBERSHIP)"))?;
        Self::watched(fd, watch)
    }

    fn watched(fd: OwnedFd, (wait, token): (Arc<dyn WaitSet>, u64)) -> Result<Self> {
        wait.watch(fd.as_fd(), token).map_err(unwatchable)?;
        Ok(Self {
            fd,
            origin: Origin::here(),
            wait,
            token,
        })
    }

    /// Sends a datagram.
    pub(super) fn send(&self, to: SocketAddr, bytes: &[u8]) -> Result<Sent, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            return match rustix::net::sendto(&self.fd, bytes, flags, &to) {
                Ok(_) => Ok(Sent::Gone),
                Err(Errno::AGAIN) => Ok(Sent::NoRoom),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(errno),
            };
        }
    }

    /// Whether it is this process's, and not that of the parent it was forked from.
    pub(super) fn is_ours(&self) -> bool {
        self.origin.is_here()
    }

    /// Watches for room to send as well, or no longer.
    pub(super) fn watch_room(&self, room: bool) {
        let interest = if room { Interest::Both } else { Interest::Read };
        // It is watched already, so there is nothing that could be refused.
        let _ = self.wait.rewatch(self.fd.as_fd(), self.token, interest);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_ours() {
            self.wait.unwatch(self.fd.as_fd());
        }
    }
}
