//! Sockets that never block, and the clock of an endpoint.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fabric_core::transport::{Interest, WaitSet};
use fabric_core::{Error, Result, Scheme};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::congestion;
use crate::transport::fork_guard::ForkGuard;
use crate::transport::net::{self, SocketConfig, addr_error, open_socket};
use crate::wait::epoll_ctl_error;

/// Connections that may wait to be accepted.
const LISTEN_BACKLOG: i32 = 4096;

/// A peer that says nothing for so long is gone, unless something else is said.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The kernel asks so many times whether it is still there, in the second half of that time.
const KEEPALIVE_PROBES: u32 = 3;
/// Bytes that are thrown away in one go: a peer may send them faster than that.
const MAX_DISCARD_BYTES: usize = 64 << 10;

/// Where peers connect.
#[derive(Debug)]
pub(crate) struct TcpListener {
    fd: OwnedFd,
    fork_guard: ForkGuard,
}

/// A connection.
pub(crate) struct TcpSocket {
    /// Shared with operations in a ring, which keep it open until they have ended.
    fd: Arc<OwnedFd>,
    fork_guard: ForkGuard,
    registration: Option<(Arc<dyn WaitSet>, u64)>,
}

/// What a receive found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    WouldBlock,
    Bytes(usize),
    /// The peer sends no more.
    Eof,
    /// The connection is broken.
    Failed,
}

/// What a send came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    Bytes(usize),
    WouldBlock,
    Failed,
}

impl TcpListener {
    /// Listens at an address, and says at which when the port is 0.
    pub(crate) fn open(at: SocketAddr, tuning: &SocketConfig) -> Result<(Self, SocketAddr)> {
        tuning.bind_in_port_range(at, |at| Self::bind(at, tuning))
    }

    fn bind(at: SocketAddr, tuning: &SocketConfig) -> Result<(Self, SocketAddr)> {
        let os = |call| move |errno: Errno| Error::os(call, errno.raw_os_error());
        let socket = open_socket(at, SocketType::STREAM).map_err(os("socket"))?;
        tuning.apply(&socket, at).map_err(os("setsockopt"))?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)
            .map_err(os("setsockopt(SO_REUSEADDR)"))?;
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

    pub(crate) fn watch(&self, wait: &dyn WaitSet, token: u64) -> Result<()> {
        wait.watch(self.fd.as_fd(), token).map_err(epoll_ctl_error)
    }

    pub(crate) fn unwatch(&self, wait: &dyn WaitSet) {
        if self.fork_guard.in_original_process() {
            wait.unwatch(self.fd.as_fd());
        }
    }

    /// Accepts a connection; `None` when there is none.
    pub(crate) fn accept(
        &self,
        at: SocketAddr,
        tuning: &SocketConfig,
    ) -> Result<Option<(TcpSocket, SocketAddr)>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            return match rustix::net::acceptfrom_with(&self.fd, flags) {
                Ok((socket, from)) => match from.and_then(|from| SocketAddr::try_from(from).ok()) {
                    Some(from) => {
                        congestion::set_algorithm(&socket, (at, from), tuning)?;
                        Ok(Some((TcpSocket::new(socket, tuning)?, from)))
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
    /// Nobody can connect any more, whichever forked child still has this.
    fn drop(&mut self) {
        if self.fork_guard.in_original_process() {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
        }
    }
}

impl TcpSocket {
    fn new(fd: OwnedFd, tuning: &SocketConfig) -> Result<Self, Errno> {
        rustix::net::sockopt::set_tcp_nodelay(&fd, true)?;
        // A machine that has gone says nothing.
        rustix::net::sockopt::set_socket_keepalive(&fd, true)?;
        set_keepalive(
            &fd,
            tuning.options.idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT),
        )?;
        Ok(Self {
            fd: Arc::new(fd),
            fork_guard: ForkGuard::current_process(),
            registration: None,
        })
    }

    /// Sets what is said here and was not when it was accepted. What is not said stays.
    pub(crate) fn apply_config(&self, tuning: &SocketConfig) -> Result<()> {
        let set = |from: SocketAddr| {
            tuning.apply(&self.fd, from)?;
            if let Some(silence) = tuning.options.idle_timeout {
                set_keepalive(&self.fd, silence)?;
            }
            match &tuning.options.congestion_control {
                Some(_) => congestion::set_algorithm(&self.fd, (from, from), tuning),
                None => Ok(()),
            }
        };
        set(self.local_addr()?).map_err(|errno| Error::os("setsockopt", errno.raw_os_error()))
    }

    /// Its address on this side.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr> {
        net::local_addr(&self.fd)
    }

    pub(crate) fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// One that is to connect, from the address that peers know this side by.
    pub(crate) fn open(
        from: SocketAddr,
        to: SocketAddr,
        tuning: &SocketConfig,
    ) -> Result<Self, Errno> {
        let socket = open_socket(to, SocketType::STREAM)?;
        tuning.apply(&socket, to)?;
        congestion::set_algorithm(&socket, (from, to), tuning)?;
        // Both ends of a connection tell who the other is by its address.
        if from.is_ipv4() == to.is_ipv4() {
            rustix::net::bind(&socket, &SocketAddr::new(from.ip(), 0))?;
        }
        Self::new(socket, tuning)
    }

    /// Begins to connect, or goes on with what was begun.
    pub(crate) fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        match rustix::net::connect(&self.fd, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR | Errno::ALREADY | Errno::ISCONN) => {
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// What became of the attempt to connect: whether there is a connection yet.
    pub(crate) fn check_connected(&self) -> Result<bool, Errno> {
        rustix::net::sockopt::socket_error(&self.fd)??;
        // Where nobody listens, the kernel may have given this side the very port it calls, and let
        // it call itself.
        let this = rustix::net::getsockname(&self.fd)?;
        match rustix::net::getpeername(&self.fd) {
            Ok(peer) if peer == Some(this) => Err(Errno::CONNREFUSED),
            Ok(_) => Ok(true),
            // What woke this side was meant for a socket that had its place before.
            Err(Errno::NOTCONN) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Watches it, instead of what it was watched for so far.
    pub(crate) fn watch(
        &mut self,
        wait: &Arc<dyn WaitSet>,
        token: u64,
        interest: Interest,
    ) -> Result<()> {
        if self.registration.is_none() {
            wait.watch(self.fd.as_fd(), token)
                .map_err(epoll_ctl_error)?;
            self.registration = Some((wait.clone(), token));
            if interest == Interest::Read {
                return Ok(());
            }
        }
        wait.set_interest(self.fd.as_fd(), token, interest)
            .map_err(epoll_ctl_error)
    }

    pub(crate) fn unwatch(&mut self) {
        if let Some((wait, _)) = self.registration.take()
            && self.fork_guard.in_original_process()
        {
            wait.unwatch(self.fd.as_fd());
        }
    }

    /// Sends what there is room for.
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

    /// Receives what there is and room for.
    pub(crate) fn recv(&self, into: &mut [u8]) -> ReadResult {
        loop {
            return match rustix::net::recv(&self.fd, &mut *into, RecvFlags::DONTWAIT) {
                Ok((0, _)) => ReadResult::Eof,
                Ok((count, _)) => ReadResult::Bytes(count),
                Err(Errno::AGAIN) => ReadResult::WouldBlock,
                Err(Errno::INTR) => continue,
                Err(_) => ReadResult::Failed,
            };
        }
    }

    /// Whether it is this process's, and not that of the parent it was forked from.
    pub(crate) fn in_original_process(&self) -> bool {
        self.fork_guard.in_original_process()
    }

    /// Says that nothing more is sent.
    pub(crate) fn shutdown_write(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    /// Throws away what has arrived, up to a bound; true when more may come.
    pub(crate) fn discard_received(&self) -> bool {
        let mut room = [MaybeUninit::<u8>::uninit(); 4096];
        for _ in 0..MAX_DISCARD_BYTES / room.len() {
            match rustix::net::recv(&self.fd, &mut room[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
        true
    }
}

/// How long the other end may say nothing.
fn set_keepalive(socket: impl AsFd, silence: Duration) -> Result<(), Errno> {
    let socket = socket.as_fd();
    let pause = (silence.as_secs() / 2 / u64::from(KEEPALIVE_PROBES)).max(1);
    let idle = silence.as_secs() - pause * u64::from(KEEPALIVE_PROBES);
    rustix::net::sockopt::set_tcp_keepidle(socket, Duration::from_secs(idle))?;
    rustix::net::sockopt::set_tcp_keepintvl(socket, Duration::from_secs(pause))?;
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

/// A clock that is watched like a socket.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    fork_guard: ForkGuard,
}

impl Timer {
    pub(crate) fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| Error::os("timerfd_create", errno.raw_os_error()))?;
        Ok(Self {
            fd,
            fork_guard: ForkGuard::current_process(),
        })
    }

    pub(crate) fn watch(&self, wait: &dyn WaitSet, token: u64) -> Result<()> {
        wait.watch(self.fd.as_fd(), token).map_err(epoll_ctl_error)
    }

    pub(crate) fn unwatch(&self, wait: &dyn WaitSet) {
        if self.fork_guard.in_original_process() {
            wait.unwatch(self.fd.as_fd());
        }
    }

    /// Becomes readable after this time, and not at all after none.
    pub(crate) fn set(&self, after: Option<Duration>) {
        let after = after.map(|after| after.max(Duration::from_micros(1)));
        let value = after.and_then(|after| Timespec::try_from(after).ok());
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let spec = Itimerspec {
            it_interval: none,
            it_value: value.unwrap_or(none),
        };
        let _ = rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "socket_tests.rs"]
mod tests;
