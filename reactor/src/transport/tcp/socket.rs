//! Listening sockets and connections, with calls that do not block.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fabric_core::extension::TcpInfo;
use fabric_core::transport::{Interest, WaitSet};
use fabric_core::{Result, Scheme};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType};

use super::congestion;
use super::network::{Listener, ReadSchedule};
use crate::sys::fork_guard::ForkGuard;
use crate::sys::os_error::{epoll_ctl_error, os_error};
use crate::sys::sockopt;
use crate::transport::net::{self, SocketConfig, addr_error, open_socket};

/// Connections that the kernel queues before they are accepted.
const LISTEN_BACKLOG: i32 = 4096;

/// Default of `SocketOptions::idle_timeout`: time without an answer after which a peer is
/// considered dead.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of keepalive probes, sent in the second half of the idle timeout.
const KEEPALIVE_PROBES: u32 = 3;
/// Maximum bytes that one call of `discard_received` discards: a peer may send faster than this
/// side reads.
const MAX_DISCARD_BYTES: usize = 64 << 10;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct TcpListener {
    fd: OwnedFd,
    fork_guard: ForkGuard,
}

/// A TCP connection.
pub(crate) struct TcpSocket {
    /// Shared with operations in io_uring, which keep it open until they have ended.
    fd: Arc<OwnedFd>,
    fork_guard: ForkGuard,
    /// The registration in the domain's epoll set; `None` while the socket is not watched.
    registration: Option<Registration>,
    /// When arrived bytes may be read, if the network is simulated.
    schedule: Option<Box<dyn ReadSchedule>>,
}

/// A socket in the domain's epoll set.
struct Registration {
    wait_set: Arc<dyn WaitSet>,
    token: u64,
    interest: Interest,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    WouldBlock,
    Bytes(usize),
    /// The peer has shut down its sending direction.
    Eof,
    /// The connection is broken.
    Failed,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    Bytes(usize),
    WouldBlock,
    Failed,
}

impl TcpListener {
    /// Listens at an address. Returns also the address with the port that was bound.
    pub(crate) fn open(at: SocketAddr, config: &SocketConfig) -> Result<(Self, SocketAddr)> {
        config.bind_in_port_range(at, |at| Self::bind(at, config))
    }

    fn bind(at: SocketAddr, config: &SocketConfig) -> Result<(Self, SocketAddr)> {
        let socket = open_socket(at, SocketType::STREAM).map_err(os_error("socket"))?;
        config.apply(&socket, at).map_err(os_error("setsockopt"))?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)
            .map_err(os_error("setsockopt(SO_REUSEADDR)"))?;
        net::bind(&socket, Scheme::Tcp, at)?;
        rustix::net::listen(&socket, LISTEN_BACKLOG).map_err(addr_error(
            "listen",
            Scheme::Tcp,
            at,
        ))?;
        let name = net::local_addr(&socket)?;
        Ok((
            Self {
                fd: socket,
                fork_guard: ForkGuard::current_process(),
            },
            name,
        ))
    }
}

impl Listener for TcpListener {
    fn watch(&self, wait_set: &dyn WaitSet, token: u64) -> Result<()> {
        wait_set
            .watch(self.fd.as_fd(), token)
            .map_err(epoll_ctl_error)
    }

    fn unwatch(&self, wait_set: &dyn WaitSet) {
        if self.fork_guard.in_original_process() {
            wait_set.unwatch(self.fd.as_fd());
        }
    }

    fn accept(
        &self,
        local: SocketAddr,
        config: &SocketConfig,
    ) -> Result<Option<(TcpSocket, SocketAddr)>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            return match rustix::net::acceptfrom_with(&self.fd, flags) {
                Ok((socket, from)) => match from.and_then(|from| SocketAddr::try_from(from).ok()) {
                    Some(from) => {
                        congestion::set_algorithm(&socket, (local, from), config)?;
                        Ok(Some((TcpSocket::new(socket, config)?, from)))
                    }
                    None => continue,
                },
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => Err(errno),
            };
        }
    }
}

impl Drop for TcpListener {
    /// Shuts the listener down, so that connects fail even if a forked child still has the
    /// descriptor.
    fn drop(&mut self) {
        if self.fork_guard.in_original_process() {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
        }
    }
}

impl TcpSocket {
    /// Returns what the kernel knows about the connection (`TCP_INFO`).
    pub(crate) fn tcp_info(&self) -> Result<TcpInfo> {
        sockopt::tcp_info(&*self.fd)
    }

    fn new(fd: OwnedFd, config: &SocketConfig) -> Result<Self, Errno> {
        rustix::net::sockopt::set_tcp_nodelay(&fd, true)?;
        // Keepalive detects a peer machine that has died.
        rustix::net::sockopt::set_socket_keepalive(&fd, true)?;
        set_keepalive(&fd, idle_timeout(config))?;
        Ok(Self::from_fd(fd, None))
    }

    /// Returns an end of a connected pair of sockets, read by a schedule.
    pub(crate) fn simulated(fd: OwnedFd, schedule: Box<dyn ReadSchedule>) -> Self {
        Self::from_fd(fd, Some(schedule))
    }

    fn from_fd(fd: OwnedFd, schedule: Option<Box<dyn ReadSchedule>>) -> Self {
        Self {
            fd: Arc::new(fd),
            fork_guard: ForkGuard::current_process(),
            registration: None,
            schedule,
        }
    }

    /// Applies the options of the accepting domain that the passive endpoint did not set when the
    /// socket was accepted. Options that are not set stay as they are.
    pub(crate) fn apply_config(&self, config: &SocketConfig) -> Result<()> {
        let set = |local: SocketAddr| {
            config.apply(&self.fd, local)?;
            if let Some(idle_timeout) = config.options.idle_timeout {
                set_keepalive(&self.fd, idle_timeout)?;
            }
            match &config.options.congestion_control {
                Some(_) => congestion::set_algorithm(&self.fd, (local, local), config),
                None => Ok(()),
            }
        };
        set(self.local_addr()?).map_err(os_error("setsockopt"))
    }

    /// Returns the local address.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr> {
        net::local_addr(&self.fd)
    }

    /// Returns the address of the peer; `None` if the socket is not connected, or the network is
    /// simulated.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        let peer = rustix::net::getpeername(&self.fd).ok()??;
        peer.try_into().ok()
    }

    pub(crate) fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Opens a socket to connect to `to`, bound to the IP address of `from` and any port.
    pub(crate) fn open(
        from: SocketAddr,
        to: SocketAddr,
        config: &SocketConfig,
    ) -> Result<Self, Errno> {
        let socket = open_socket(to, SocketType::STREAM)?;
        config.apply(&socket, to)?;
        congestion::set_algorithm(&socket, (from, to), config)?;
        // The peer identifies this side by its IP address.
        if from.is_ipv4() == to.is_ipv4() {
            rustix::net::bind(&socket, &SocketAddr::new(from.ip(), 0))?;
        }
        Self::new(socket, config)
    }

    /// Starts a connect, or continues one that was started.
    pub(crate) fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        if self.schedule.is_some() {
            return Ok(());
        }
        match rustix::net::connect(&self.fd, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR | Errno::ALREADY | Errno::ISCONN) => {
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Returns whether the socket is connected yet, or the error of the connect.
    pub(crate) fn check_connected(&self) -> Result<bool, Errno> {
        if self.schedule.is_some() {
            return Ok(true);
        }
        rustix::net::sockopt::socket_error(&self.fd)??;
        // If no socket listens at the destination, the kernel may have chosen the destination port
        // as the source port, and connected the socket to itself.
        let local = rustix::net::getsockname(&self.fd)?;
        match rustix::net::getpeername(&self.fd) {
            Ok(peer) if peer == Some(local) => Err(Errno::CONNREFUSED),
            Ok(_) => Ok(true),
            // A stale readiness event of an earlier socket under the same token.
            Err(Errno::NOTCONN) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Watches the socket for `interest`. Replaces an earlier interest and token, of the same wait
    /// set; makes no system call if both are set already.
    pub(crate) fn watch(
        &mut self,
        wait_set: &Arc<dyn WaitSet>,
        token: u64,
        interest: Interest,
    ) -> Result<()> {
        let registration = match &mut self.registration {
            Some(registration) => registration,
            None => {
                wait_set
                    .watch(self.fd.as_fd(), token)
                    .map_err(epoll_ctl_error)?;
                self.registration.insert(Registration {
                    wait_set: wait_set.clone(),
                    token,
                    interest: Interest::Read,
                })
            }
        };
        if (registration.token, registration.interest) != (token, interest) {
            wait_set
                .set_interest(self.fd.as_fd(), token, interest)
                .map_err(epoll_ctl_error)?;
            (registration.token, registration.interest) = (token, interest);
        }
        Ok(())
    }

    pub(crate) fn unwatch(&mut self) {
        if let Some(registration) = self.registration.take()
            && self.fork_guard.in_original_process()
        {
            registration.wait_set.unwatch(self.fd.as_fd());
        }
    }

    /// Sends as much as the socket has room for.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> WriteResult {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let sent = match parts {
                [one] => rustix::net::send(&self.fd, one, flags),
                many => {
                    rustix::net::sendmsg(&self.fd, many, &mut SendAncillaryBuffer::default(), flags)
                }
            };
            return match sent {
                Ok(count) => WriteResult::Bytes(count),
                Err(Errno::AGAIN | Errno::NOBUFS) => WriteResult::WouldBlock,
                Err(Errno::INTR) => continue,
                Err(_) => WriteResult::Failed,
            };
        }
    }

    /// Receives what has arrived, up to the length of `into`.
    pub(crate) fn recv(&mut self, into: &mut [u8]) -> ReadResult {
        let mut len = into.len();
        if let Some(schedule) = &mut self.schedule {
            match recv(&self.fd, &mut [0], RecvFlags::PEEK) {
                ReadResult::Bytes(_) => len = len.min(schedule.max_read()),
                nothing => return nothing,
            }
            if len == 0 {
                return ReadResult::WouldBlock;
            }
        }
        recv(&self.fd, &mut into[..len], RecvFlags::empty())
    }

    /// Returns the number of bytes that have arrived and were not read. No more follow after the
    /// peer has closed or reset the connection.
    pub(crate) fn unread_len(&self) -> usize {
        // The call fails for no connected socket.
        rustix::io::ioctl_fionread(&*self.fd).map_or(usize::MAX, |len| len as usize)
    }

    /// Returns whether the peer has closed or reset the connection, even if unread bytes precede
    /// the end of the stream.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        let end = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().intersects(end)
    }

    /// Lets the kernel send a keepalive probe within a second, if the connection is idle. The
    /// kernel of a peer without this connection answers with a reset.
    pub(crate) fn probe_peer(&self) {
        if self.schedule.is_none() {
            // A probe that cannot be sent changes nothing.
            let _ = rustix::net::sockopt::set_tcp_keepidle(&self.fd, Duration::from_secs(1));
        }
    }

    /// Sends keepalive probes after the idle timeout again.
    pub(crate) fn end_probe(&self, config: &SocketConfig) {
        if self.schedule.is_none() {
            let _ = set_keepalive(&self.fd, idle_timeout(config));
        }
    }

    /// Returns whether this socket is the other end of a connection that was accepted from this
    /// address. The addresses in a simulated network cannot be forged.
    pub(crate) fn connects_from(&self, from: SocketAddr) -> bool {
        self.schedule.is_some() || self.local_addr() == Ok(from)
    }

    /// Lets what has arrived be read without delay.
    pub(crate) fn end_delays(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            schedule.end_delays();
        }
    }

    /// Returns whether this process opened the socket; false in a forked child.
    pub(crate) fn in_original_process(&self) -> bool {
        self.fork_guard.in_original_process()
    }

    /// Shuts down the sending direction.
    pub(crate) fn shutdown_write(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    /// Shuts down both directions.
    pub(crate) fn shutdown_both(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    /// Discards what has arrived, up to [`MAX_DISCARD_BYTES`]. Returns whether the peer may still
    /// send: false at the end of the stream, or after an error.
    pub(crate) fn discard_received(&self) -> bool {
        let mut scratch = [MaybeUninit::<u8>::uninit(); 4096];
        for _ in 0..MAX_DISCARD_BYTES / scratch.len() {
            match rustix::net::recv(&self.fd, &mut scratch[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
        true
    }
}

/// Receives from a socket without waiting.
fn recv(fd: &OwnedFd, into: &mut [u8], flags: RecvFlags) -> ReadResult {
    loop {
        return match rustix::net::recv(fd, &mut *into, flags | RecvFlags::DONTWAIT) {
            Ok((0, _)) => ReadResult::Eof,
            Ok((count, _)) => ReadResult::Bytes(count),
            Err(Errno::AGAIN) => ReadResult::WouldBlock,
            Err(Errno::INTR) => continue,
            Err(_) => ReadResult::Failed,
        };
    }
}

fn idle_timeout(config: &SocketConfig) -> Duration {
    config.options.idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT)
}

/// Sets keepalive, so that a peer that does not answer for `idle_timeout` is detected.
fn set_keepalive(socket: impl AsFd, idle_timeout: Duration) -> Result<(), Errno> {
    let socket = socket.as_fd();
    let interval = (idle_timeout.as_secs() / 2 / u64::from(KEEPALIVE_PROBES)).max(1);
    let idle = idle_timeout.as_secs() - interval * u64::from(KEEPALIVE_PROBES);
    rustix::net::sockopt::set_tcp_keepidle(socket, Duration::from_secs(idle))?;
    rustix::net::sockopt::set_tcp_keepintvl(socket, Duration::from_secs(interval))?;
    rustix::net::sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for TcpSocket {
    fn drop(&mut self) {
        self.unwatch();
    }
}

#[cfg(all(test, not(loom)))]
#[path = "socket_tests.rs"]
mod tests;
