//! Control messages of the peer, and the end of a connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric_core::event::DownReason;
use fabric_core::flags::Access;
use fabric_core::transport::Incarnation;
use fabric_core::{Error, RefusalReason};

use super::super::control::{
    self, ControlEvent, ControlMessage, ControlRead, MemoryGrant, READS_PER_POLL,
};
use super::super::mapped_regions::MappedRegion;
use super::super::rx_connection::PeerIdentity;
use super::super::shared_memory::SharedMapping;
use super::super::socket;
use super::{TxConnection, TxConnectionState};

/// The end of a connection: the error for its operations, and the event.
#[derive(Debug)]
pub(crate) struct ConnectionEnd {
    pub(crate) error: Error,
    pub(crate) reason: DownReason,
    /// Identity of the peer's endpoint, if it had accepted.
    pub(crate) identity: Option<PeerIdentity>,
}

/// Cause of the end of a connection.
enum TxEndCause {
    PeerDown(DownReason),
    /// Another endpoint has the name of the peer that this connection was made for.
    Replaced,
    Rejected(RefusalReason),
    ProtocolViolation(&'static str),
    /// A system call of this process failed before the peer accepted.
    LocalError(Error),
}

/// Returns a protocol violation unless the response was requested.
fn require_solicited(is_solicited: bool, violation: &'static str) -> Result<(), TxEndCause> {
    if is_solicited {
        Ok(())
    } else {
        Err(TxEndCause::ProtocolViolation(violation))
    }
}

impl TxConnection {
    /// Handles a readable socket: a response, a doorbell, or the end of the connection.
    pub(crate) fn on_readable(&mut self) -> Option<ConnectionEnd> {
        for _ in 0..READS_PER_POLL {
            let (TxConnectionState::Connecting(channel) | TxConnectionState::Established(channel)) =
                &self.state
            else {
                return None;
            };
            let result = match control::recv_control(&channel.socket) {
                ControlRead::WouldBlock => return None,
                ControlRead::Message(event) => self.on_control(event),
                ControlRead::Malformed(what) => Err(TxEndCause::ProtocolViolation(what)),
                ControlRead::VersionMismatch(_) | ControlRead::WrongEpType => {
                    Err(TxEndCause::ProtocolViolation("protocol version mismatch"))
                }
                ControlRead::DescriptorLimitReached => Err(TxEndCause::ProtocolViolation(
                    "no descriptor left for a received message (RLIMIT_NOFILE)",
                )),
                ControlRead::HungUp => Err(TxEndCause::PeerDown(DownReason::Died)),
            };
            if let Err(cause) = result {
                return Some(self.connection_end(cause));
            }
        }
        None
    }

    fn connection_end(&self, cause: TxEndCause) -> ConnectionEnd {
        let (peer, identity) = (self.peer_address.clone(), self.identity());
        // The end of an endpoint to which nothing was sent is not reported.
        let identity = identity.filter(|_| !matches!(cause, TxEndCause::Replaced));
        let (error, reason) = match cause {
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
            // The connection is not established, so no event with this reason is reported.
            TxEndCause::LocalError(error) => (error, DownReason::Closed),
        };
        ConnectionEnd {
            error,
            reason,
            identity,
        }
    }

    fn on_control(&mut self, event: ControlEvent) -> Result<(), TxEndCause> {
        let message = match event {
            ControlEvent::Grant(grant) => {
                return require_solicited(self.on_grant(grant), "unsolicited memory grant");
            }
            ControlEvent::GrantWithoutFd(key) => {
                let denial = Err("cannot be mapped: no descriptor left (RLIMIT_NOFILE)");
                return require_solicited(
                    self.on_map_response(key, denial),
                    "unsolicited memory grant",
                );
            }
            ControlEvent::Message(message) => message,
        };
        match message {
            ControlMessage::Doorbell if matches!(self.state, TxConnectionState::Established(_)) => {
                Ok(())
            }
            ControlMessage::Doorbell => Err(TxEndCause::ProtocolViolation(
                "control message out of order: doorbell before accept",
            )),
            ControlMessage::Ready => self.send_hello(),
            ControlMessage::Accept(incarnation) => self.on_accept(incarnation),
            ControlMessage::MrNotFound(key) => require_solicited(
                self.on_map_response(key, Err("is unknown")),
                "unsolicited response",
            ),
            ControlMessage::MrServedByOwner(key, rma_events) => {
                require_solicited(self.on_mr_served(key, rma_events), "unsolicited response")
            }
            ControlMessage::Reject(reason) => Err(TxEndCause::Rejected(reason)),
            ControlMessage::EndpointClosed => Err(TxEndCause::PeerDown(DownReason::Closed)),
            ControlMessage::Disconnect
            | ControlMessage::MapMr(_)
            | ControlMessage::UnmapLoan(_) => Err(TxEndCause::ProtocolViolation(
                "unexpected control message from a receiver",
            )),
        }
    }

    /// Sends the hello, for which the peer is ready.
    fn send_hello(&mut self) -> Result<(), TxEndCause> {
        let TxConnectionState::Connecting(channel) = &mut self.state else {
            return Err(TxEndCause::ProtocolViolation(
                "control message out of order: ready after accept",
            ));
        };
        match channel.send_hello(&self.peer_address) {
            Ok(true) => Ok(()),
            Ok(false) => Err(TxEndCause::ProtocolViolation(
                "control message out of order: second ready",
            )),
            Err(Error::ConnectionRefused { reason, .. }) => Err(TxEndCause::Rejected(reason)),
            Err(Error::PeerGone(_)) => Err(TxEndCause::PeerDown(DownReason::Died)),
            Err(error) => Err(TxEndCause::LocalError(error)),
        }
    }

    /// Handles the accept message of the peer.
    fn on_accept(&mut self, incarnation: u64) -> Result<(), TxEndCause> {
        self.state = match std::mem::replace(&mut self.state, TxConnectionState::Closed) {
            TxConnectionState::Connecting(mut channel) if channel.hello_sent() => {
                channel.on_accept(incarnation, self.settings.single_copy);
                let identity = Incarnation::from(channel.peer_identity);
                if self.expected.is_some_and(|expected| expected != identity) {
                    control::send_control(&channel.socket, ControlMessage::Disconnect);
                    // The connection must not become established: nothing may be sent to this
                    // endpoint.
                    self.state = TxConnectionState::Connecting(channel);
                    return Err(TxEndCause::Replaced);
                }
                TxConnectionState::Established(channel)
            }
            other => {
                self.state = other;
                return Err(TxEndCause::ProtocolViolation(
                    "control message out of order: second accept, or accept before hello",
                ));
            }
        };
        Ok(())
    }

    /// Handles a memory grant. Returns false if it was not requested.
    fn on_grant(&mut self, grant: MemoryGrant<OwnedFd>) -> bool {
        let MemoryGrant {
            key,
            len,
            access,
            base,
            rma_events,
            memory,
        } = grant;
        let region =
            SharedMapping::map_from_peer(&memory, len, access.contains(Access::REMOTE_WRITE));
        socket::close_in_background(vec![memory]);
        self.on_map_response(
            key,
            region.map(|mapping| MappedRegion {
                key,
                mapping: Arc::new(mapping),
                access,
                base,
                rma_events,
            }),
        )
    }

    fn on_mr_served(&mut self, key: u64, rma_events: bool) -> bool {
        let TxConnectionState::Established(channel) = &mut self.state else {
            return false;
        };
        let is_pending = channel.mapped_regions.is_map_request_pending(key);
        if is_pending {
            channel.mapped_regions.on_mr_served(key, rma_events);
        }
        is_pending
    }

    fn on_map_response(&mut self, key: u64, region: Result<MappedRegion, &'static str>) -> bool {
        let TxConnectionState::Established(channel) = &mut self.state else {
            return false;
        };
        let is_pending = channel.mapped_regions.is_map_request_pending(key);
        if is_pending {
            channel.mapped_regions.on_map_response(
                key,
                region,
                self.queue.iter().any(|queued| queued.targets_key(key)),
            );
        }
        is_pending
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::av::AddressTable;
    use fabric_core::{Address, Scheme};
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};

    use super::super::super::TxSettings;
    use super::super::super::cma::SingleCopyPolicy;
    use super::super::super::loans::LoanPool;
    use super::super::channel::TxChannel;
    use super::*;

    /// A failed system call of this process is not a protocol violation of the peer.
    #[test]
    fn local_error_of_hello_is_not_blamed_on_the_peer() {
        let name = format!("hello-error-{}", std::process::id());
        let listener =
            rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let path = format!("fabric-async/shm/{name}");
        let path = SocketAddrUnix::new_abstract_name(path.as_bytes()).unwrap();
        rustix::net::bind(&listener, &path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();

        let peer = Address::new(Scheme::Shm, &name).unwrap();
        let addr = AddressTable::new().insert(peer.clone());
        let settings = TxSettings {
            loan_pool: LoanPool::default(),
            single_copy: SingleCopyPolicy::from_len(usize::MAX),
        };
        let channel = TxChannel::connect(&peer, &peer, 1, &settings).unwrap();
        // The socket's send buffer has no room for the hello.
        while rustix::net::send(&channel.socket, &[0; 64], SendFlags::DONTWAIT).is_ok() {}
        let mut tx = TxConnection::new(peer, addr, settings);
        tx.state = TxConnectionState::Connecting(channel);

        let cause = tx.send_hello().err().unwrap();
        let end = tx.connection_end(cause);
        assert!(
            matches!(
                end.error,
                Error::Os {
                    call: "sendmsg",
                    ..
                }
            ),
            "{:?}",
            end.error
        );
        assert!(end.identity.is_none(), "an event would be reported");
    }
}
