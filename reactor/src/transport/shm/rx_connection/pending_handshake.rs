//! Handshakes of incoming connections: which are accepted, and the reply to the others.

use std::time::{Duration, Instant};

use fabric_core::matching::PeerKey;
use fabric_core::{Address, Error, RefusalReason, Scheme};
use rustix::io::Errno;

use super::super::control::{self, ControlMessage, ControlRead, VERSION};
use super::super::segment::{Segment, SegmentError};
use super::super::socket::{PeerCredentials, ShmSocket};
use super::{LocalEndpoint, RxConnection};

/// A connection whose hello has not arrived yet.
#[derive(Debug)]
pub(crate) struct PendingHandshake {
    socket: ShmSocket,
    /// Whether the peer's user was checked and `Ready` was sent.
    admitted: bool,
    accepted_at: Instant,
}

/// Result of [`PendingHandshake::poll_handshake`].
pub(crate) enum HandshakeOutcome {
    /// The hello has not arrived yet.
    Pending(PendingHandshake),
    /// The peer is connected.
    Established(Box<RxConnection>),
    /// The connection was rejected for this reason.
    Rejected(Error),
    /// The peer hung up before its hello.
    Disconnected,
}

impl PendingHandshake {
    /// Wraps a connection that was just accepted.
    pub(crate) fn new(socket: ShmSocket) -> Self {
        Self {
            socket,
            admitted: false,
            accepted_at: Instant::now(),
        }
    }

    /// Returns the time since the connection was accepted.
    pub(crate) fn age(&self) -> Duration {
        self.accepted_at.elapsed()
    }

    /// Checks the peer, receives its hello, and accepts or rejects the connection.
    pub(crate) fn poll_handshake(mut self, key: PeerKey, local: LocalEndpoint) -> HandshakeOutcome {
        let reject = |socket: &ShmSocket, rejection: Rejection| {
            control::send_control(socket, ControlMessage::Reject(rejection.reason));
            HandshakeOutcome::Rejected(rejection.error)
        };
        let peer = match admit(&self.socket, &mut self.admitted) {
            Ok(peer) => peer,
            Err(rejection) => return reject(&self.socket, rejection),
        };
        let hello = match control::recv_hello(&self.socket) {
            ControlRead::WouldBlock => return HandshakeOutcome::Pending(self),
            ControlRead::HungUp => return HandshakeOutcome::Disconnected,
            ControlRead::Message(hello) => hello,
            refused => return reject(&self.socket, Rejection::of_read(&refused, peer)),
        };
        match Segment::map_from_peer(&hello.segment, hello.lines) {
            Ok(segment) => {
                let end = (hello.from, peer, hello.incarnation);
                let peer = RxConnection::establish(end, local, segment, self.socket, key);
                peer.send_accept();
                HandshakeOutcome::Established(Box::new(peer))
            }
            Err(error) => reject(&self.socket, Rejection::of_segment(error, hello.from)),
        }
    }
}

/// Why a connection is rejected: what the peer is told, and the local error.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub(crate) reason: RefusalReason,
    pub(crate) error: Error,
}

impl Rejection {
    /// Returns the rejection of a peer whose first message is invalid.
    pub(crate) fn of_read<T>(read: &ControlRead<T>, peer: PeerCredentials) -> Self {
        let peer = placeholder_address(peer.pid);
        match *read {
            ControlRead::DescriptorLimitReached => Self {
                reason: RefusalReason::Resources,
                error: Error::os("recvmsg", Errno::MFILE.raw_os_error()),
            },
            ControlRead::VersionMismatch(theirs) => {
                let reason = RefusalReason::Version {
                    theirs,
                    ours: VERSION,
                };
                Self {
                    reason,
                    error: Error::ConnectionRefused { peer, reason },
                }
            }
            ControlRead::WrongEpType => Self::protocol(
                RefusalReason::EpType,
                peer,
                "handshake of the other type of endpoint (FI_EP_RDM, FI_EP_MSG)",
            ),
            ControlRead::Malformed(what) => Self::protocol(RefusalReason::Malformed, peer, what),
            ControlRead::Message(_) | ControlRead::WouldBlock | ControlRead::HungUp => {
                Self::protocol(RefusalReason::Malformed, peer, "incomplete handshake")
            }
        }
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

    pub(crate) fn protocol(reason: RefusalReason, peer: Address, what: &'static str) -> Self {
        let what = what.into();
        Self {
            reason,
            error: Error::Protocol { peer, what },
        }
    }
}

/// Checks the user of a peer that has connected. Then permits descriptors and sends `Ready`, unless
/// that was done before.
pub(crate) fn admit(socket: &ShmSocket, admitted: &mut bool) -> Result<PeerCredentials, Rejection> {
    let ours = rustix::process::geteuid().as_raw();
    let peer = match socket.credentials() {
        Ok(peer) if peer.uid == ours => peer,
        Ok(peer) => {
            return Err(Rejection {
                reason: RefusalReason::User,
                error: Error::OtherUser {
                    peer: placeholder_address(peer.pid),
                    theirs: peer.uid,
                    ours,
                },
            });
        }
        Err(error) => {
            let reason = RefusalReason::Malformed;
            return Err(Rejection { reason, error });
        }
    };
    if !std::mem::replace(admitted, true) {
        socket.admit_rights();
        control::send_control(socket, ControlMessage::Ready);
    }
    Ok(peer)
}

/// Returns an address for a process whose endpoint name is not known.
pub(crate) fn placeholder_address(process: Option<i32>) -> Address {
    let process = process.map_or("unknown".into(), |process| process.to_string());
    Address::new(Scheme::Shm, &format!("process-{process}"))
        .unwrap_or_else(|_| unreachable!("process address is a valid name"))
}
