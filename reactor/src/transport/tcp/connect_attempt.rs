//! Attempts to connect: one place that begins them, and two ways behind it.
//!
//! By the call: epoll tells what has become of it, and the clock of the endpoint ends it. Or by the
//! ring, which has the time of the attempt as well, so that neither is needed before there is a
//! connection. What cannot be done by the ring, or is disturbed there, is done by the call, which
//! goes on with what was begun.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fabric_core::transport::{Interest, WaitSet};
use fabric_core::{Address, Error, Result};
use rustix::io::Errno;

use super::socket::TcpSocket;
use crate::uring::{OpId, SharedUring, TimedOutcome};

/// From where an attempt is made; who is told what has become of it, and with which token; and
/// where it is made, unless by the call.
pub(super) struct ConnectContext<'a> {
    pub(super) local_addr: SocketAddr,
    pub(super) wait_set: &'a Arc<dyn WaitSet>,
    pub(super) token: u64,
    pub(super) uring: Option<&'a SharedUring>,
}

/// An attempt.
pub(super) struct ConnectAttempt {
    peer_addr: SocketAddr,
    uring_connect: Option<UringConnect>,
}

/// What the ring says of one.
pub(super) enum ConnectEvent {
    /// There may be a connection: the socket knows.
    Completed,
    Failed(Errno),
    /// Nobody has answered in time.
    TimedOut,
    /// It goes on by the call.
    FellBack,
    /// It would, but cannot be watched.
    WatchFailed,
}

impl ConnectAttempt {
    /// Begins to connect a socket with a peer.
    ///
    /// # Errors
    /// What is known at once.
    pub(super) fn start(
        socket: &mut TcpSocket,
        (name, to): (&Address, SocketAddr),
        until: Instant,
        ways: &ConnectContext<'_>,
    ) -> Result<Self> {
        let failed = |errno| connect_error(ways.local_addr, (name, to), errno);
        let in_ring = match ways.uring {
            Some(ring) => {
                UringConnect::start(ring, socket, to, until, ways.token).map_err(failed)?
            }
            None => None,
        };
        if in_ring.is_none() {
            connect_syscall(socket, to, ways.wait_set, ways.token)?.map_err(failed)?;
        }
        Ok(Self {
            peer_addr: to,
            uring_connect: in_ring,
        })
    }

    /// Whether the ring has it, and its time.
    pub(super) fn is_in_uring(&self) -> bool {
        self.uring_connect.is_some()
    }

    /// The ring says something; nothing if that is of another attempt.
    pub(super) fn on_uring_completion(
        &mut self,
        socket: &mut TcpSocket,
        (ticket, ended): (OpId, TimedOutcome),
        (wait, token): (&Arc<dyn WaitSet>, u64),
    ) -> Option<ConnectEvent> {
        self.uring_connect
            .take_if(|in_ring| in_ring.op_id == ticket)?;
        Some(match ended {
            TimedOutcome::Completed(Ok(_)) => ConnectEvent::Completed,
            TimedOutcome::Completed(Err(errno)) => ConnectEvent::Failed(errno),
            TimedOutcome::TimedOut => ConnectEvent::TimedOut,
            TimedOutcome::Interrupted => match connect_syscall(socket, self.peer_addr, wait, token)
            {
                Ok(Ok(())) => ConnectEvent::FellBack,
                Ok(Err(errno)) => ConnectEvent::Failed(errno),
                Err(_) => ConnectEvent::WatchFailed,
            },
        })
    }
}

/// An attempt that the ring has. It is taken back when this is dropped.
struct UringConnect {
    uring: SharedUring,
    op_id: OpId,
}

impl UringConnect {
    /// Nothing when the ring cannot have it now.
    fn start(
        ring: &SharedUring,
        socket: &TcpSocket,
        to: SocketAddr,
        until: Instant,
        token: u64,
    ) -> Result<Option<Self>, Errno> {
        let mut open = ring.lock();
        let time = until.saturating_duration_since(Instant::now());
        let Ok(ticket) = open.connect(socket.shared_fd(), token, to, time) else {
            return Ok(None);
        };
        let is_handed_over = open.submit().is_ok();
        let failure = open
            .early_error(ticket)
            .filter(|errno| is_local_failure(*errno));
        drop(open);
        let begun = Self {
            uring: ring.clone(),
            op_id: ticket,
        };
        match failure {
            Some(errno) => Err(errno),
            // Otherwise nobody would know when its time begins.
            None => Ok(is_handed_over.then_some(begun)),
        }
    }
}

impl Drop for UringConnect {
    fn drop(&mut self) {
        let mut ring = self.uring.lock();
        ring.detach(self.op_id);
        // What is queued goes with what is queued next, if not now.
        let _ = ring.submit();
    }
}

/// Begins, or goes on, by the call.
fn connect_syscall(
    socket: &mut TcpSocket,
    to: SocketAddr,
    wait: &Arc<dyn WaitSet>,
    token: u64,
) -> Result<Result<(), Errno>> {
    if let Err(errno) = socket.connect(to) {
        return Ok(Err(errno));
    }
    socket.watch(wait, token, Interest::Write).map(Ok)
}

/// What the call fails with before anything was sent: who has posted something hears it at once,
/// whichever the way.
fn is_local_failure(errno: Errno) -> bool {
    let from_there = [Errno::CONNREFUSED, Errno::CONNRESET, Errno::TIMEDOUT];
    !from_there.contains(&errno)
}

/// Why there is no connection from here, with a peer and where that is.
pub(super) fn connect_error(
    from: SocketAddr,
    (peer, to): (&Address, SocketAddr),
    errno: Errno,
) -> Error {
    match errno {
        // It was there, or its name was, and nobody took the call any more.
        Errno::CONNREFUSED | Errno::CONNRESET => Error::NoSuchPeer(peer.clone()),
        Errno::TIMEDOUT => Error::TimedOut(peer.clone()),
        // The former is what Linux says of a way out of the machine for who is bound within.
        Errno::INVAL | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ADDRNOTAVAIL => {
            let is_within = from.ip().is_loopback() && !to.ip().is_loopback();
            let why = match errno {
                _ if is_within => {
                    "it is bound to an address that is for this machine only".to_owned()
                }
                errno => std::io::Error::from(errno).to_string(),
            };
            Error::Unreachable {
                peer: peer.clone(),
                why: format!("from {}: {why}", from.ip()).into(),
            }
        }
        errno => Error::os("connect", errno.raw_os_error()),
    }
}
