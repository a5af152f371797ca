//! Attempts to connect: one place that begins them, and two ways behind it.
//!
//! By the call: epoll tells what has become of it, and the clock of the endpoint ends it. Or by the
//! ring, which has the time of the attempt as well, so that neither is needed before there is a
//! connection. What cannot be done by the ring, or is disturbed there, is done by the call, which
//! goes on with what was begun.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fabric_core::provider::{Interest, WaitSet};
use fabric_core::{Address, Error, Result};
use rustix::io::Errno;

use super::socket::Socket;
use crate::uring::{Ended, SharedRing, Ticket};

/// From where an attempt is made; who is told what has become of it, and with which token; and
/// where it is made, unless by the call.
pub(super) struct Ways<'a> {
    pub(super) from: SocketAddr,
    pub(super) wait: &'a Arc<dyn WaitSet>,
    pub(super) token: u64,
    pub(super) ring: Option<&'a SharedRing>,
}

/// An attempt.
pub(super) struct Dialing {
    to: SocketAddr,
    in_ring: Option<InRing>,
}

/// What the ring says of one.
pub(super) enum Heard {
    /// There may be a connection: the socket knows.
    Done,
    Failed(Errno),
    /// Nobody has answered in time.
    Late,
    /// It goes on by the call.
    GoesOn,
    /// It would, but cannot be watched.
    Lost,
}

impl Dialing {
    /// Begins to connect a socket with a peer.
    ///
    /// # Errors
    /// What is known at once.
    pub(super) fn begin(
        socket: &mut Socket,
        (name, to): (&Address, SocketAddr),
        until: Instant,
        ways: &Ways<'_>,
    ) -> Result<Self> {
        let failed = |errno| unreachable(ways.from, (name, to), errno);
        let in_ring = match ways.ring {
            Some(ring) => InRing::begin(ring, socket, to, until, ways.token).map_err(failed)?,
            None => None,
        };
        if in_ring.is_none() {
            by_call(socket, to, ways.wait, ways.token)?.map_err(failed)?;
        }
        Ok(Self { to, in_ring })
    }

    /// Whether the ring has it, and its time.
    pub(super) fn is_in_ring(&self) -> bool {
        self.in_ring.is_some()
    }

    /// The ring says something; nothing if that is of another attempt.
    pub(super) fn heard(
        &mut self,
        socket: &mut Socket,
        (ticket, ended): (Ticket, Ended),
        (wait, token): (&Arc<dyn WaitSet>, u64),
    ) -> Option<Heard> {
        self.in_ring.take_if(|in_ring| in_ring.ticket == ticket)?;
        Some(match ended {
            Ended::Itself(Ok(_)) => Heard::Done,
            Ended::Itself(Err(errno)) => Heard::Failed(errno),
            Ended::TimedOut => Heard::Late,
            Ended::Disturbed => match by_call(socket, self.to, wait, token) {
                Ok(Ok(())) => Heard::GoesOn,
                Ok(Err(errno)) => Heard::Failed(errno),
                Err(_) => Heard::Lost,
            },
        })
    }
}

/// An attempt that the ring has. It is taken back when this is dropped.
struct InRing {
    ring: SharedRing,
    ticket: Ticket,
}

impl InRing {
    /// Nothing when the ring cannot have it now.
    fn begin(
        ring: &SharedRing,
        socket: &Socket,
        to: SocketAddr,
        until: Instant,
        token: u64,
    ) -> Result<Option<Self>, Errno> {
        let mut open = ring.lock();
        let time = until.saturating_duration_since(Instant::now());
        let Ok(ticket) = open.connect(socket.shared(), token, to, time) else {
            return Ok(None);
        };
        let is_handed_over = open.submit().is_ok();
        let failure = open.failure(ticket).filter(|errno| is_of_here(*errno));
        drop(open);
        let begun = Self {
            ring: ring.clone(),
            ticket,
        };
        match failure {
            Some(errno) => Err(errno),
            // Otherwise nobody would know when its time begins.
            None => Ok(is_handed_over.then_some(begun)),
        }
    }
}

impl Drop for InRing {
    fn drop(&mut self) {
        let mut ring = self.ring.lock();
        ring.abandon(self.ticket);
        // What is queued goes with what is queued next, if not now.
        let _ = ring.submit();
    }
}

/// Begins, or goes on, by the call.
fn by_call(
    socket: &mut Socket,
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
fn is_of_here(errno: Errno) -> bool {
    let from_there = [Errno::CONNREFUSED, Errno::CONNRESET, Errno::TIMEDOUT];
    !from_there.contains(&errno)
}

/// Why there is no connection from here, with a peer and where that is.
pub(super) fn unreachable(
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
