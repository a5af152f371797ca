//! Finds the sockets of endpoints among the descriptors of this process, by their addresses. The
//! tables under /proc/net may miss an existing socket while other sockets come and go.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::socket_type;
use rustix::net::{SocketType, getpeername, getsockname};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Returns a duplicate of the descriptor of the `tcp` or `udp` socket with this local address and
/// this peer address; `None` is a socket without a peer.
pub(crate) fn find_socket(kind: &str, local: SocketAddr, peer: Option<SocketAddr>) -> OwnedFd {
    let wanted = if kind == "tcp" {
        SocketType::STREAM
    } else {
        SocketType::DGRAM
    };
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let is_it = |socket: &OwnedFd| {
        let local_addr = getsockname(socket)
            .ok()
            .and_then(|at| SocketAddr::try_from(at).ok());
        let peer_addr = getpeername(socket)
            .ok()
            .flatten()
            .and_then(|at| SocketAddr::try_from(at).ok());
        socket_type(socket) == Ok(wanted) && local_addr == Some(local) && peer_addr == peer
    };
    let own = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let numbers = own.map(|number| number.to_str().unwrap().parse().unwrap());
    // Descriptors may be closed meanwhile.
    let sockets =
        numbers.filter_map(|number| pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).ok());
    sockets
        .into_iter()
        .find(is_it)
        .expect("a socket with these addresses")
}
