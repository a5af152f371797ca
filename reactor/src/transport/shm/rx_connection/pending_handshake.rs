//! Callers: who is let in, and what the others are told.

use std::sync::Arc;

use fabric_core::matching::PeerKey;
use fabric_core::{Address, Error, RejectReason, Scheme};
use rustix::io::Errno;

use super::super::cma::CmaPeer;
use super::super::control::{self, ControlMessage, ControlRead, VERSION};
use super::super::segment::{Segment, SegmentError};
use super::super::socket::ShmSocket;
use super::{LocalEndpoint, PeerIdentity, RxConnection};

/// A connection that has not said hello yet.
#[derive(Debug)]
pub(crate) struct PendingHandshake {
    socket: ShmSocket,
    /// Its user was checked, and it was told that the receiver is ready.
    admitted: bool,
}

/// What became of a hello.
pub(crate) enum HandshakeOutcome {
    /// Nothing was said yet.
    Pending(PendingHandshake),
    /// A peer.
    Established(Box<RxConnection>),
    /// Nobody to talk to.
    Rejected(Error),
    /// It left without a word.
    Disconnected,
}

impl PendingHandshake {
    /// A connection that was just accepted.
    pub(crate) fn new(socket: ShmSocket) -> Self {
        Self {
            socket,
            admitted: false,
        }
    }

    /// Reads the hello and answers it, as this endpoint.
    pub(crate) fn poll_handshake(mut self, key: PeerKey, here: LocalEndpoint) -> HandshakeOutcome {
        let refuse = |socket: &ShmSocket, reason: RejectReason, error: Error| {
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
                return refuse(&self.socket, RejectReason::User, error);
            }
            Err(error) => return refuse(&self.socket, RejectReason::Malformed, error),
        };
        if !self.admitted {
            self.admitted = true;
            self.socket.admit_rights();
            control::send_control(&self.socket, ControlMessage::Ready);
        }
        let broke = |what: &'static str| Error::Protocol {
            peer: placeholder_address(peer.pid),
            what: what.into(),
        };
        let hello = match control::recv_hello(&self.socket) {
            ControlRead::WouldBlock => return HandshakeOutcome::Pending(self),
            ControlRead::HungUp => return HandshakeOutcome::Disconnected,
            ControlRead::NoDescriptors => {
                let error = Error::os("recvmsg", Errno::MFILE.raw_os_error());
                return refuse(&self.socket, RejectReason::Resources, error);
            }
            ControlRead::Message(hello) => hello,
            ControlRead::Malformed(what) => {
                return refuse(&self.socket, RejectReason::Malformed, broke(what));
            }
            ControlRead::VersionMismatch(theirs) => {
                let reason = RejectReason::Version {
                    theirs,
                    ours: VERSION,
                };
                let error = Error::ConnectionRefused {
                    peer: placeholder_address(peer.pid),
                    reason,
                };
                return refuse(&self.socket, reason, error);
            }
        };
        match Segment::map_from_peer(&hello.segment, hello.lines) {
            Ok(segment) => {
                let process = peer.pid.filter(|_| here.cma_enabled);
                let reach =
                    process.and_then(|id| CmaPeer::new(&hello.from, id, &self.socket, &segment));
                if reach.is_some() {
                    segment.set_cma_capable();
                }
                control::send_control(&self.socket, ControlMessage::Accept(here.incarnation));
                let identity = PeerIdentity {
                    pid: peer.pid,
                    incarnation: hello.incarnation,
                };
                let mut peer =
                    RxConnection::new(hello.from, identity, here, segment, self.socket, key);
                peer.cma_peer = reach.map(Arc::new);
                HandshakeOutcome::Established(Box::new(peer))
            }
            Err(SegmentError::Malformed(what)) => {
                let error = Error::Protocol {
                    peer: hello.from,
                    what: what.into(),
                };
                refuse(&self.socket, RejectReason::Malformed, error)
            }
            Err(SegmentError::NoResources(error)) => {
                refuse(&self.socket, RejectReason::Resources, error)
            }
        }
    }
}

/// Something to call a process by that has not told its name.
fn placeholder_address(process: Option<i32>) -> Address {
    let process = process.map_or("unknown".into(), |process| process.to_string());
    Address::new(Scheme::Shm, &format!("process-{process}"))
        .unwrap_or_else(|_| unreachable!("a short plain name"))
}
