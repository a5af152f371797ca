//! The receiving side of the handshake, from the accepted socket to `Accept` or `Reject`.
//!
//! [`accept`] accepts a connection and checks the user of the peer. A peer of another user is
//! refused at once, before the connection takes a slot or is watched. A peer of this user may send
//! descriptors, and gets `Ready`. A [`PendingHandshake`] then waits for the hello. `rx_table` keeps
//! the pending handshakes of an endpoint; `passive` uses [`accept`] and [`Rejection`] for connection
//! requests too.

use std::time::{Duration, Instant};

use fabric_core::matching::PeerKey;
use fabric_core::{Address, Error, RefusalReason, Scheme};
use rustix::io::Errno;

use super::super::control::{self, ControlMessage, ReadError, VERSION};
use super::super::segment::{Segment, SegmentError};
use super::super::socket::{PeerCredentials, ShmListener, ShmSocket};
use super::{LocalEndpoint, RxConnection};
use crate::sys::os_error::os_error;

/// A connection whose hello has not arrived yet.
#[derive(Debug)]
pub(crate) struct PendingHandshake {
    socket: ShmSocket,
    peer: PeerCredentials,
    accepted_at: Instant,
}

/// Result of [`PendingHandshake::poll_handshake`].
pub(crate) enum HandshakeOutcome {
    /// The hello has not arrived yet.
    Pending(PendingHandshake),
    /// The connection was accepted.
    Established(Box<RxConnection>),
    /// The connection was rejected with this local error.
    Rejected(Error),
    /// The peer hung up before its hello.
    Disconnected,
}

impl PendingHandshake {
    /// Begins the handshake with a peer that was just admitted.
    pub(crate) fn new(socket: ShmSocket, peer: PeerCredentials) -> Self {
        Self {
            socket,
            peer,
            accepted_at: Instant::now(),
        }
    }

    /// Returns the time since the socket was accepted.
    pub(crate) fn age(&self) -> Duration {
        self.accepted_at.elapsed()
    }

    /// Receives the hello of the peer, and sends `Accept` or `Reject`. `key` identifies the
    /// connection in the receive queue.
    pub(crate) fn poll_handshake(self, key: PeerKey, local: LocalEndpoint) -> HandshakeOutcome {
        let reject = |socket: &ShmSocket, rejection: Rejection| {
            control::send_control(socket, ControlMessage::Reject(rejection.reason));
            HandshakeOutcome::Rejected(rejection.error)
        };
        let peer = self.peer;
        let hello = match control::recv_hello(&self.socket) {
            Ok(Some(hello)) => hello,
            Ok(None) => return HandshakeOutcome::Pending(self),
            Err(ReadError::HungUp) => return HandshakeOutcome::Disconnected,
            Err(error) => {
                let rejection = Rejection::of_read(error, placeholder_address(peer.pid));
                return reject(&self.socket, rejection);
            }
        };
        match Segment::map_from_peer(&hello.segment, hello.lines) {
            Ok(segment) => {
                let peer = (hello.from, peer, hello.incarnation);
                let rx = RxConnection::establish(peer, local, segment, self.socket, key);
                rx.send_accept();
                HandshakeOutcome::Established(Box::new(rx))
            }
            Err(error) => reject(&self.socket, Rejection::of_segment(error, hello.from)),
        }
    }
}

/// The rejection of a connection.
#[derive(Debug)]
pub(crate) struct Rejection {
    /// Reason in the `Reject` message.
    pub(crate) reason: RefusalReason,
    /// Error that this side reports.
    pub(crate) error: Error,
}

impl Rejection {
    /// Returns the rejection of a peer whose handshake message is invalid.
    pub(crate) fn of_read(error: ReadError, peer: Address) -> Self {
        let reason = match error {
            ReadError::DescriptorLimitReached => {
                return Self {
                    reason: RefusalReason::Resources,
                    error: os_error("recvmsg")(Errno::MFILE),
                };
            }
            ReadError::VersionMismatch(theirs) => {
                let ours = VERSION;
                let reason = RefusalReason::Version { theirs, ours };
                let error = Error::ConnectionRefused { peer, reason };
                return Self { reason, error };
            }
            ReadError::WrongEpType => RefusalReason::EpType,
            ReadError::Malformed(_) | ReadError::HungUp => RefusalReason::Malformed,
        };
        Self::protocol(reason, peer, error.violation())
    }

    /// Returns the rejection of a peer whose segment cannot be mapped.
    pub(crate) fn of_segment(error: SegmentError, peer: Address) -> Self {
        match error {
            SegmentError::Malformed(what) => Self::protocol(RefusalReason::Malformed, peer, what),
            SegmentError::NoResources(error) => Self {
                reason: RefusalReason::Resources,
                error,
            },
        }
    }

    /// Returns the rejection of a peer that has violated the protocol.
    pub(crate) fn protocol(reason: RefusalReason, peer: Address, what: &'static str) -> Self {
        let what = what.into();
        Self {
            reason,
            error: Error::Protocol { peer, what },
        }
    }
}

/// A connection that was accepted from a backlog.
pub(crate) enum Accepted {
    /// The peer is of this user, and was sent `Ready`.
    Admitted(ShmSocket, PeerCredentials),
    /// The peer is of another user, or its user is not known. The connection was rejected and
    /// closed, with this local error.
    Refused(Error),
}

/// Accepts a connection and checks the user of its peer. Permits descriptors and sends `Ready`, or
/// refuses the connection. `None` if no connection is waiting.
///
/// # Errors
/// Errors of `accept4`.
pub(crate) fn accept(listener: &ShmListener) -> Result<Option<Accepted>, Errno> {
    let Some(socket) = listener.accept()? else {
        return Ok(None);
    };
    let checked = socket.credentials().and_then(|peer| {
        peer.check_user(&placeholder_address(peer.pid))?;
        Ok(peer)
    });
    Ok(Some(match checked {
        Ok(peer) => {
            socket.admit_rights();
            control::send_control(&socket, ControlMessage::Ready);
            Accepted::Admitted(socket, peer)
        }
        Err(error) => {
            control::send_control(&socket, ControlMessage::Reject(RefusalReason::User));
            Accepted::Refused(error)
        }
    }))
}

/// Returns an address for error messages about a process whose endpoint name is not known.
pub(crate) fn placeholder_address(pid: Option<i32>) -> Address {
    let pid = pid.map_or("unknown".into(), |pid| pid.to_string());
    Address::new(Scheme::Shm, &format!("process-{pid}"))
        .unwrap_or_else(|_| unreachable!("process address is a valid name"))
}
