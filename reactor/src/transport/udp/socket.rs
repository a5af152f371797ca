//! Datagram sockets of an endpoint and of its multicast groups.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fabric_core::buf::Payload;
use fabric_core::transport::{Interest, WaitSet};
use fabric_core::{Error, Result, Scheme};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_ip_add_membership, set_ip_multicast_if, set_socket_recv_buffer_size, set_socket_reuseaddr,
};
use rustix::net::{SendFlags, SocketType};

use crate::sys::datagrams::MAX_MESSAGE;
use crate::sys::os_error::os_error;
use crate::sys::watched_fd::WatchedFd;
use crate::transport::net::{self, SocketConfig};

/// Default `SO_RCVBUF`, in bytes; the kernel caps the value at `net.core.rmem_max`.
const DEFAULT_RECV_BUFFER: usize = 4 << 20;

/// A bound, non-blocking socket that the domain's epoll set watches.
pub(super) struct UdpSocket {
    fd: WatchedFd,
}

/// The result of a `sendto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendToResult {
    Sent,
    WouldBlock,
}

/// Sets the socket options before the socket is bound.
fn apply_config(fd: &OwnedFd, at: SocketAddr, config: &SocketConfig) -> Result<()> {
    if config.options.receive_buffer.is_none() {
        // With a smaller buffer the kernel drops more datagrams, which UDP permits.
        let _ = set_socket_recv_buffer_size(fd, DEFAULT_RECV_BUFFER);
    }
    config.apply(fd, at).map_err(os_error("setsockopt"))
}

impl UdpSocket {
    /// Opens and binds a socket; returns the socket, and its address with the bound port.
    pub(super) fn open(
        at: SocketAddr,
        config: &SocketConfig,
        watch: (Arc<dyn WaitSet>, u64),
    ) -> Result<(Self, SocketAddr)> {
        let fd = net::open_socket(at, SocketType::DGRAM).map_err(os_error("socket"))?;
        apply_config(&fd, at, config)?;
        config.bind_in_port_range(at, |at| net::bind(&fd, Scheme::Udp, at))?;
        if let SocketAddr::V4(at) = at {
            // Multicast datagrams leave through the interface of the endpoint's address.
            set_ip_multicast_if(&fd, at.ip()).map_err(os_error("setsockopt(IP_MULTICAST_IF)"))?;
        }
        let name = net::local_addr(&fd)?;
        Ok((Self::register(fd, watch)?, name))
    }

    /// Opens a socket, binds the socket to a multicast group with `SO_REUSEADDR`, and joins the
    /// group on the interface with this address.
    pub(super) fn open_group(
        group: SocketAddrV4,
        interface: Ipv4Addr,
        config: &SocketConfig,
        watch: (Arc<dyn WaitSet>, u64),
    ) -> Result<Self> {
        let at = SocketAddr::V4(group);
        let fd = net::open_socket(at, SocketType::DGRAM).map_err(os_error("socket"))?;
        apply_config(&fd, at, config)?;
        set_socket_reuseaddr(&fd, true).map_err(os_error("setsockopt(SO_REUSEADDR)"))?;
        net::bind(&fd, Scheme::Udp, at)?;
        set_ip_add_membership(&fd, group.ip(), &interface)
            .map_err(os_error("setsockopt(IP_ADD_MEMBERSHIP)"))?;
        Self::register(fd, watch)
    }

    /// Watches the bound socket for input.
    fn register(fd: OwnedFd, (wait_set, token): (Arc<dyn WaitSet>, u64)) -> Result<Self> {
        let mut fd = WatchedFd::new(fd);
        fd.watch(&wait_set, token)?;
        Ok(Self { fd })
    }

    /// Sends a message. An error is that of this message: an unconnected socket does not report
    /// errors of earlier messages.
    pub(super) fn send(&self, to: SocketAddr, payload: Payload<'_>) -> Result<SendToResult> {
        let len = payload.len();
        if len > MAX_MESSAGE {
            // The length was checked when the send was posted; a user-defined buffer may have grown
            // since.
            return Err(Error::TooLong {
                what: "message",
                len,
                limit: MAX_MESSAGE,
            });
        }
        let sent = match payload.as_contiguous() {
            Some(bytes) => self.send_bytes(to, bytes),
            None => {
                let mut bytes = [0; MAX_MESSAGE];
                payload.for_each(|at, piece| bytes[at..at + piece.len()].copy_from_slice(piece));
                self.send_bytes(to, &bytes[..len])
            }
        };
        sent.map_err(os_error("sendto"))
    }

    fn send_bytes(&self, to: SocketAddr, bytes: &[u8]) -> Result<SendToResult, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            return match rustix::net::sendto(&self.fd, bytes, flags, &to) {
                Ok(_) => Ok(SendToResult::Sent),
                Err(Errno::AGAIN) => Ok(SendToResult::WouldBlock),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(errno),
            };
        }
    }

    /// Returns whether this process opened the socket; false in a forked child.
    pub(super) fn in_original_process(&self) -> bool {
        self.fd.in_original_process()
    }

    /// Sets whether the domain's epoll set reports room in the socket's send buffer.
    pub(super) fn watch_writable(&self, enabled: bool) {
        let interest = if enabled {
            Interest::Both
        } else {
            Interest::Read
        };
        self.fd.set_interest(interest);
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
