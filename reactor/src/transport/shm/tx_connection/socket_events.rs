//! What the peer says on the socket, and how the connection ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric_core::event::DownReason;
use fabric_core::flags::Access;
use fabric_core::transport::Incarnation;
use fabric_core::{Error, RejectReason};

use super::super::control::{
    self, ControlEvent, ControlMessage, ControlRead, MemoryGrant, READS_PER_POLL,
};
use super::super::mapped_regions::MappedRegion;
use super::super::rx_connection::PeerIdentity;
use super::super::shared_memory::SharedMapping;
use super::super::socket;
use super::{TxConnection, TxConnectionState};

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct ConnectionEnd {
    pub(crate) error: Error,
    pub(crate) reason: DownReason,
    /// Which endpoint was at the other end, if it had welcomed this one.
    pub(crate) identity: Option<PeerIdentity>,
}

/// Why it ends.
enum TxEndCause {
    PeerDown(DownReason),
    /// Another endpoint has the name of the one that this connection is for.
    Replaced,
    Rejected(RejectReason),
    ProtocolViolation(&'static str),
}

/// An answer is one to what was asked, or a breach.
fn require_solicited(was_asked: bool, breach: &'static str) -> Result<(), TxEndCause> {
    if was_asked {
        Ok(())
    } else {
        Err(TxEndCause::ProtocolViolation(breach))
    }
}

impl TxConnection {
    /// The socket is readable: an answer, a ring, or the end.
    pub(crate) fn on_readable(&mut self) -> Option<ConnectionEnd> {
        for _ in 0..READS_PER_POLL {
            let (TxConnectionState::Connecting(wires) | TxConnectionState::Established(wires)) =
                &self.state
            else {
                return None;
            };
            let heard = match control::recv_control(&wires.socket) {
                ControlRead::WouldBlock => return None,
                ControlRead::Message(said) => self.on_control(said),
                ControlRead::Malformed(what) => Err(TxEndCause::ProtocolViolation(what)),
                ControlRead::VersionMismatch(_) => {
                    Err(TxEndCause::ProtocolViolation("another version"))
                }
                ControlRead::NoDescriptors => Err(TxEndCause::ProtocolViolation(
                    "descriptors with what is no grant",
                )),
                ControlRead::HungUp => Err(TxEndCause::PeerDown(DownReason::Died)),
            };
            if let Err(why) = heard {
                return Some(self.connection_end(why));
            }
        }
        None
    }

    fn connection_end(&self, why: TxEndCause) -> ConnectionEnd {
        let (peer, identity) = (self.peer_address.clone(), self.identity());
        // Of an endpoint that nothing was sent to there is no end to be told.
        let identity = identity.filter(|_| !matches!(why, TxEndCause::Replaced));
        let (error, reason) = match why {
            TxEndCause::Replaced => (Error::PeerGone(peer), DownReason::Closed),
            TxEndCause::PeerDown(reason) => (Error::PeerGone(peer), reason),
            TxEndCause::Rejected(reason) => (
                Error::ConnectionRefused { peer, reason },
                DownReason::Closed,
            ),
            TxEndCause::ProtocolViolation(what) => (
                Error::Protocol {
                    peer,
                    what: what.into(),
                },
                DownReason::Protocol(what),
            ),
        };
        ConnectionEnd {
            error,
            reason,
            identity,
        }
    }

    fn on_control(&mut self, said: ControlEvent) -> Result<(), TxEndCause> {
        let word = match said {
            ControlEvent::Grant(grant) => {
                return require_solicited(self.on_grant(grant), "memory nobody has asked for");
            }
            ControlEvent::GrantWithoutFd(key) => {
                let why = Err("came without memory: out of descriptors");
                return require_solicited(
                    self.on_map_answer(key, why),
                    "memory nobody has asked for",
                );
            }
            ControlEvent::Message(word) => word,
        };
        match word {
            ControlMessage::Doorbell if matches!(self.state, TxConnectionState::Established(_)) => {
                Ok(())
            }
            ControlMessage::Doorbell => {
                Err(TxEndCause::ProtocolViolation("a ring before the welcome"))
            }
            ControlMessage::Ready => self.greet(),
            ControlMessage::Accept(incarnation) => self.on_accept(incarnation),
            ControlMessage::MrNotFound(key) => require_solicited(
                self.on_map_answer(key, Err("is unknown")),
                "an answer to what nobody has asked",
            ),
            ControlMessage::MrServedByOwner(key, heeds) => require_solicited(
                self.on_mr_served(key, heeds),
                "an answer to what nobody has asked",
            ),
            ControlMessage::Reject(reason) => Err(TxEndCause::Rejected(reason)),
            ControlMessage::EndpointClosed => Err(TxEndCause::PeerDown(DownReason::Closed)),
            ControlMessage::Disconnect
            | ControlMessage::MapMr(_)
            | ControlMessage::UnmapLoan(_) => Err(TxEndCause::ProtocolViolation(
                "a word only the sender may say",
            )),
        }
    }

    /// The peer waits for the hello.
    fn greet(&mut self) -> Result<(), TxEndCause> {
        let TxConnectionState::Connecting(wires) = &mut self.state else {
            return Err(TxEndCause::ProtocolViolation("ready after the welcome"));
        };
        match wires.greet(&self.peer_address) {
            Ok(true) => Ok(()),
            Ok(false) => Err(TxEndCause::ProtocolViolation("ready a second time")),
            Err(Error::ConnectionRefused { reason, .. }) => Err(TxEndCause::Rejected(reason)),
            Err(Error::PeerGone(_)) => Err(TxEndCause::PeerDown(DownReason::Died)),
            Err(_) => Err(TxEndCause::ProtocolViolation(
                "a hello that could not be sent",
            )),
        }
    }

    /// The peer has taken the segment.
    fn on_accept(&mut self, incarnation: u64) -> Result<(), TxEndCause> {
        self.state = match std::mem::replace(&mut self.state, TxConnectionState::Closed) {
            TxConnectionState::Connecting(mut wires) if wires.has_greeted() => {
                wires.on_accept(incarnation, self.resources.single_copy);
                let identity = Incarnation::from(wires.peer_identity);
                if self.expected.is_some_and(|expected| expected != identity) {
                    control::send_control(&wires.socket, ControlMessage::Disconnect);
                    // Not live: nothing may be sent there, not even now.
                    self.state = TxConnectionState::Connecting(wires);
                    return Err(TxEndCause::Replaced);
                }
                TxConnectionState::Established(wires)
            }
            other => {
                self.state = other;
                return Err(TxEndCause::ProtocolViolation(
                    "a second welcome, or one before the hello",
                ));
            }
        };
        Ok(())
    }

    /// The peer has sent memory; false when it was not asked for it.
    fn on_grant(&mut self, grant: MemoryGrant<OwnedFd>) -> bool {
        let MemoryGrant {
            key,
            len,
            access,
            base,
            rma_events: heeds,
            memory,
        } = grant;
        let window =
            SharedMapping::map_from_peer(&memory, len, access.contains(Access::REMOTE_WRITE));
        socket::close_in_background(vec![memory]);
        self.on_map_answer(
            key,
            window.map(|area| MappedRegion {
                key,
                mapping: Arc::new(area),
                access,
                base,
                rma_events: heeds,
            }),
        )
    }

    fn on_mr_served(&mut self, key: u64, heeds: bool) -> bool {
        let TxConnectionState::Established(wires) = &mut self.state else {
            return false;
        };
        let asked = wires.mapped_regions.is_query_pending(key);
        if asked {
            wires.mapped_regions.on_mr_served(key, heeds);
        }
        asked
    }

    fn on_map_answer(&mut self, key: u64, window: Result<MappedRegion, &'static str>) -> bool {
        let TxConnectionState::Established(wires) = &mut self.state else {
            return false;
        };
        let asked = wires.mapped_regions.is_query_pending(key);
        if asked {
            wires.mapped_regions.on_map_answer(
                key,
                window,
                self.queue.iter().any(|queued| queued.targets_key(key)),
            );
        }
        asked
    }
}
