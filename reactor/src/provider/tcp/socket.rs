//! Sockets that never block, and the clock of an endpoint.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fabric_core::provider::{Interest, WaitSet};
use fabric_core::{Error, Result, Scheme};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::congestion;
use crate::provider::net::{self, Tuning, refused, socket};
use crate::provider::origin::Origin;
use crate::wait::unwatchable;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// A peer that says nothing for so long is gone, unless something else is said.
const SILENCE: Duration = Duration::from_secs(30);
/// The kernel asks so many times whether it is still there, in the second half of that time.
const ATTEMPTS: u32 = 3;
/// Bytes that are thrown away in one go: a peer may send them faster than that.
const DRAINED: usize = 64 << 10;

/// Where peers connect.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    origin: Origin,
}

/// A connection.
pub(crate) struct Socket {
    /// Shared with operations in a ring, which keep it open until they have ended.
    fd: Arc<OwnedFd>,
    origin: Origin,
    watched: Option<(Arc<dyn WaitSet>, u64)>,
}

/// What a receive found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Nothing,
    Bytes(usize),
    /// The peer sends no more.
    End,
    /// The connection is broken.
    Broken,
}

/// What a send came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Bytes(usize),
    NoRoom,
    Broken,
}

impl Listener {
    /// Listens at an address, and says at which when the port is 0.
    pub(crate) fn open(at: SocketAddr, tuning: &Tuning) -> Result<(Self, SocketAddr)> {
        tuning.open_at(at, |at| Self::open_here(at, tuning))
    }

    fn open_here(at: SocketAddr, tuning: &Tuning) -> Result<(Self, SocketAddr)> {
        let os = |call| move |errno: Errno| Error::os(call, errno.raw_os_error());
        let socket = socket(at, SocketType::STREAM).map_err(os("socket"))?;
        tuning.apply(&socket, at).map_err(os("setsockopt"))?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)
            .map_err(os("setsockopt(SO_REUSEADDR)"))?;
        net::bind(&socket, Scheme::Tcp, at)?;
        rustix::net::listen(&socket, BACKLOG).map_err(refused("listen", Scheme::Tcp, at))?;
        let name = net::name(&socket)?;
        Ok((
            Self {
                fd: socket,
                origin: Origin::here(),
            },
            name,
        ))
    }

    pub(crate) fn watch(&self, wait: &dyn WaitSet, token: u64) -> Result<()> {
        wait.watch(self.fd.as_fd(), token).map_err(unwatchable)
    }

    pub(crate) fn unwatch(&self, wait: &dyn WaitSet) {
        if self.origin.is_here() {
            wait.unwatch(self.fd.as_fd());
        }
    }

    /// Accepts a connection; `None` when there is none.
    pub(crate) fn accept(
        &self,
        at: SocketAddr,
        tuning: &Tuning,
    ) -> Result<Option<(Socket, SocketAddr)>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            return match rustix::net::acceptfrom_with(&self.fd, flags) {
                Ok((socket, from)) => match from.and_then(|from| SocketAddr::try_from(from).ok()) {
                    Some(from) => {
                        congestion::control(&socket, (at, from), tuning)?;
                        Ok(Some((Socket::new(socket, tuning)?, from)))
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

impl Drop for Listener {
    /// Nobody can connect any more, whichever forked child still has this.
    fn drop(&mut self) {
        if self.origin.is_here() {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
        }
    }
}

impl Socket {
    fn new(fd: OwnedFd, tuning: &Tuning) -> Result<Self, Errno> {
        rustix::net::sockopt::set_tcp_nodelay(&fd, true)?;
        // A machine that has gone says nothing.
        rustix::net::sockopt::set_socket_keepalive(&fd, true)?;
        bear_silence(&fd, tuning.options.silence.unwrap_or(SILENCE))?;
        Ok(Self {
            fd: Arc::new(fd),
            origin: Origin::here(),
            watched: None,
        })
    }

    /// Sets what is said here and was not when it was accepted. What is not said stays.
    pub(crate) fn retune(&self, tuning: &Tuning) -> Result<()> {
        let set = |from: SocketAddr| {
            tuning.apply(&self.fd, from)?;
            if let Some(silence) = tuning.options.silence {
                bear_silence(&self.fd, silence)?;
            }
            match &tuning.options.congestion_control {
                Some(_) => congestion::control(&self.fd, (from, from), tuning),
                None => Ok(()),
            }
        };
        set(self.name()?).map_err(|errno| Error::os("setsockopt", errno.raw_os_error()))
    }

    /// Its address on this side.
    pub(crate) fn name(&self) -> Result<SocketAddr> {
        net::name(&self.fd)
    }

    pub(crate) fn shared(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// One that is to connect, from the address that peers know this side by.
    pub(crate) fn open(from: SocketAddr, to: SocketAddr, tuning: &Tuning) -> Result<Self, Errno> {
        let socket = socket(to, SocketType::STREAM)?;
        tuning.apply(&socket, to)?;
        congestion::control(&socket, (from, to), tuning)?;
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
    pub(crate) fn dialed(&self) -> Result<bool, Errno> {
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
        if self.watched.is_none() {
            wait.watch(self.fd.as_fd(), token).map_err(unwatchable)?;
            self.watched = Some((wait.clone(), token));
            if interest == Interest::Read {
                return Ok(());
            }
        }
        wait.rewatch(self.fd.as_fd(), token, interest)
            .map_err(unwatchable)
    }

    pub(crate) fn unwatch(&mut self) {
        if let Some((wait, _)) = self.watched.take()
            && self.origin.is_here()
        {
            wait.unwatch(self.fd.as_fd());
        }
    }

    /// Sends what there is room for.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> Sent {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let sent = match parts {
                [one] => rustix::net::send(&self.fd, one, flags),
                many => {
                    rustix::net::sendmsg(&self.fd, many, &mut SendAncillaryBuffer::default(), flags)
                }
            };
            return match sent {
                Ok(count) => Sent::Bytes(count),
                Err(Errno::AGAIN | Errno::NOBUFS) => Sent::NoRoom,
                Err(Errno::INTR) => continue,
                Err(_) => Sent::Broken,
            };
        }
    }

    /// Receives what there is and room for.
    pub(crate) fn recv(&self, into: &mut [u8]) -> Received {
        loop {
            return match rustix::net::recv(&self.fd, &mut *into, RecvFlags::DONTWAIT) {
                Ok((0, _)) => Received::End,
                Ok((count, _)) => Received::Bytes(count),
                Err(Errno::AGAIN) => Received::Nothing,
                Err(Errno::INTR) => continue,
                Err(_) => Received::Broken,
            };
        }
    }

    /// Whether it is this process's, and not that of the parent it was forked from.
    pub(crate) fn is_ours(&self) -> bool {
        self.origin.is_here()
    }

    /// Says that nothing more is sent.
    pub(crate) fn finish(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    /// Throws away what has arrived, up to a bound; true when more may come.
    pub(crate) fn drain(&self) -> bool {
        let mut room = [MaybeUninit::<u8>::uninit(); 4096];
        for _ in 0..DRAINED / room.len() {
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
fn bear_silence(socket: impl AsFd, silence: Duration) -> Result<(), Errno> {
    let socket = socket.as_fd();
    let pause = (silence.as_secs() / 2 / u64::from(ATTEMPTS)).max(1);
    let idle = silence.as_secs() - pause * u64::from(ATTEMPTS);
    rustix::net::sockopt::set_tcp_keepidle(socket, Duration::from_secs(idle))?;
    rustix::net::sockopt::set_tcp_keepintvl(socket, Duration::from_secs(pause))?;
    rustix::net::sockopt::set_tcp_keepcnt(socket, ATTEMPTS)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.unwatch();
    }
}

/// A clock that is watched like a socket.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    origin: Origin,
}

impl Timer {
    pub(crate) fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| Error::os("timerfd_create", errno.raw_os_error()))?;
        Ok(Self {
            fd,
            origin: Origin::here(),
        })
    }

    pub(crate) fn watch(&self, wait: &dyn WaitSet, token: u64) -> Result<()> {
        wait.watch(self.fd.as_fd(), token).map_err(unwatchable)
    }

    pub(crate) fn unwatch(&self, wait: &dyn WaitSet) {
        if self.origin.is_here() {
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
