//! Handshakes of incoming connections: which are accepted, and the reply to the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_core::matching::PeerKey;
use fabric_core::{Address, Error, RefusalReason, Scheme};
use rustix::io::Errno;

use super::super::cma::CmaPeer;
use super::super::control::{self, ControlMessage, ControlRead, VERSION};
use super::super::segment::{Segment, SegmentError};
use super::super::socket::ShmSocket;
use super::{LocalEndpoint, PeerIdentity, RxConnection};

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
        let reject = |socket: &ShmSocket, reason: RefusalReason, error: Error| {
            control::send_control(socket, ControlMessage::Reject(reason));
            HandshakeOutcome::Rejected(error)
        };
        let ours = rustix::process::geteuid().as_raw();
        let peer = match self.socket.credentials() {
            Ok(peer) if peer.uid == ours => peer,
            Ok(peer) => {
                let error = Error::OtherUser {
                    peer: placeholder_address(peer.pid),
                    theirs: peer.uid,
                    ours,
                };
                return reject(&self.socket, RefusalReason::User, error);
            }
            Err(error) => return reject(&self.socket, RefusalReason::Malformed, error),
        };
        if !self.admitted {
            self.admitted = true;
            self.socket.admit_rights();
            control::send_control(&self.socket, ControlMessage::Ready);
        }
        let violation = |what: &'static str| Error::Protocol {
            peer: placeholder_address(peer.pid),
            what: what.into(),
        };
        let hello = match control::recv_hello(&self.socket) {
            ControlRead::WouldBlock => return HandshakeOutcome::Pending(self),
            ControlRead::HungUp => return HandshakeOutcome::Disconnected,
            ControlRead::DescriptorLimitReached => {
                let error = Error::os("recvmsg", Errno::MFILE.raw_os_error());
                return reject(&self.socket, RefusalReason::Resources, error);
            }
            ControlRead::Message(hello) => hello,
            ControlRead::Malformed(what) => {
                return reject(&self.socket, RefusalReason::Malformed, violation(what));
            }
            ControlRead::VersionMismatch(theirs) => {
                let reason = RefusalReason::Version {
                    theirs,
                    ours: VERSION,
                };
                let error = Error::ConnectionRefused {
                    peer: placeholder_address(peer.pid),
                    reason,
                };
                return reject(&self.socket, reason, error);
            }
        };
        match Segment::map_from_peer(&hello.segment, hello.lines) {
            Ok(segment) => {
                let process = peer.pid.filter(|_| local.cma_enabled);
                let cma_peer =
                    process.and_then(|id| CmaPeer::new(&hello.from, id, &self.socket, &segment));
                if cma_peer.is_some() {
                    segment.set_cma_capable();
                }
                control::send_control(&self.socket, ControlMessage::Accept(local.incarnation));
                let identity = PeerIdentity {
                    pid: peer.pid,
                    incarnation: hello.incarnation,
                };
                let mut peer =
                    RxConnection::new(hello.from, identity, local, segment, self.socket, key);
                peer.cma_peer = cma_peer.map(Arc::new);
                HandshakeOutcome::Established(Box::new(peer))
            }
            Err(SegmentError::Malformed(what)) => {
                let error = Error::Protocol {
                    peer: hello.from,
                    what: what.into(),
                };
                reject(&self.socket, RefusalReason::Malformed, error)
            }
            Err(SegmentError::NoResources(error)) => {
                reject(&self.socket, RefusalReason::Resources, error)
            }
        }
    }
}

/// Returns an address for a process whose endpoint name is not known.
fn placeholder_address(process: Option<i32>) -> Address {
    let process = process.map_or("unknown".into(), |process| process.to_string());
    Address::new(Scheme::Shm, &format!("process-{process}"))
        .unwrap_or_else(|_| unreachable!("process address is a valid name"))
}
