//! Sockets of this process that belong to endpoints, found by their addresses among its
//! descriptors. The tables of the kernel do not always have what was there all the time, while
//! other sockets come and go.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::socket_type;
use rustix::net::{SocketType, getpeername, getsockname};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Another descriptor of the socket of this kind (`tcp` or `udp`) at this address; of the one that
/// listens there, or that is connected with nobody, or of the one that is connected with this peer.
pub(crate) fn find_socket(kind: &str, here: SocketAddr, there: Option<SocketAddr>) -> OwnedFd {
    let wanted = if kind == "tcp" {
        SocketType::STREAM
    } else {
        SocketType::DGRAM
    };
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let is_it = |socket: &OwnedFd| {
        let own = getsockname(socket)
            .ok()
            .and_then(|at| SocketAddr::try_from(at).ok());
        let peer = getpeername(socket)
            .ok()
            .flatten()
            .and_then(|at| SocketAddr::try_from(at).ok());
        socket_type(socket) == Ok(wanted) && own == Some(here) && peer == there
    };
    let own = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let numbers = own.map(|number| number.to_str().unwrap().parse().unwrap());
    // One that was closed meanwhile is not it.
    let sockets =
        numbers.filter_map(|number| pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).ok());
    sockets.into_iter().find(is_it).expect("such a socket")
}
