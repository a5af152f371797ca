//! Control messages that the receiving end of a connection sends, and the end of the connection.
//!
//! A readable socket brings answers to the handshake, responses to map requests, doorbells, or the
//! hang-up. Every message is checked against the state of the connection; a message that does not
//! fit the state is a protocol violation, which ends the connection. The endpoint handles the
//! [`ConnectionEnd`].

use std::sync::Arc;

use fabric_core::event::DownReason;
use fabric_core::flags::Access;
use fabric_core::transport::Incarnation;
use fabric_core::{Error, RefusalReason};

use super::super::control::{
    self, ControlEvent, ControlMessage, MemoryGrant, READS_PER_POLL, ReadError,
};
use super::super::mapped_regions::{MappedRegion, MappedRegions};
use super::super::rx_connection::PeerIdentity;
use super::super::shared_memory;
use super::{TxConnection, TxConnectionState};
use crate::sys::closer::PeerFd;

const UNSOLICITED_GRANT: &str = "unsolicited memory grant";
const UNSOLICITED_RESPONSE: &str = "unsolicited response";

/// The end of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionEnd {
    /// Error of the operations that have not completed.
    pub(crate) error: Error,
    /// Reason in the event.
    pub(crate) reason: DownReason,
    /// Peer in the event; no event is reported if this is `None`. The identity is known if the peer
    /// had accepted.
    pub(crate) identity: Option<PeerIdentity>,
}

/// Cause of the end of a connection.
enum TxEndCause {
    PeerDown(DownReason),
    /// The endpoint that accepted has the name of the expected peer, but another incarnation.
    Replaced,
    Rejected(RefusalReason),
    ProtocolViolation(&'static str),
    /// A system call of this process failed before the peer accepted.
    LocalError(Error),
}

impl TxConnection {
    /// Reads the socket: handles up to [`READS_PER_POLL`] control messages. Returns the end of the
    /// connection, if the connection has ended.
    pub(crate) fn on_readable(&mut self) -> Option<ConnectionEnd> {
        for _ in 0..READS_PER_POLL {
            let channel = self.state.channel()?;
            let result = match control::recv_control(&channel.socket) {
                Ok(Some(event)) => self.on_control(event),
                Ok(None) => return None,
                Err(ReadError::HungUp) => Err(TxEndCause::PeerDown(DownReason::Died)),
                Err(error) => Err(TxEndCause::ProtocolViolation(error.violation())),
            };
            if let Err(cause) = result {
                return Some(self.connection_end(cause));
            }
        }
        None
    }

    fn connection_end(&self, cause: TxEndCause) -> ConnectionEnd {
        let peer = self.peer_address.clone();
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
            // The connection was not established, so no event with this reason is reported.
            TxEndCause::LocalError(error) => (error, DownReason::Closed),
        };
        ConnectionEnd {
            error,
            reason,
            identity: self.identity(),
        }
    }

    /// Handles a control message or a memory grant.
    fn on_control(&mut self, event: ControlEvent) -> Result<(), TxEndCause> {
        let message = match event {
            ControlEvent::Grant(grant) => return self.on_grant(grant),
            ControlEvent::GrantWithoutFd(key) => {
                let denial = Err("cannot be mapped: no descriptor left (RLIMIT_NOFILE)");
                return self.on_map_response(key, denial, UNSOLICITED_GRANT);
            }
            ControlEvent::Message(message) => message,
        };
        match message {
            ControlMessage::Doorbell if self.state.established().is_some() => Ok(()),
            ControlMessage::Doorbell => Err(TxEndCause::ProtocolViolation(
                "control message out of order: doorbell before accept",
            )),
            ControlMessage::Ready => self.send_hello(),
            ControlMessage::Accept(incarnation) => self.on_accept(incarnation),
            ControlMessage::MrNotFound(key) => {
                self.on_map_response(key, Err("is unknown"), UNSOLICITED_RESPONSE)
            }
            ControlMessage::MrServedByOwner { key, rma_events } => {
                self.requested_regions(key, UNSOLICITED_RESPONSE)?
                    .on_mr_served(key, rma_events);
                Ok(())
            }
            ControlMessage::Reject(reason) => Err(TxEndCause::Rejected(reason)),
            ControlMessage::RetryLater => self.on_retry_later(),
            ControlMessage::EndpointClosed | ControlMessage::Disconnect => {
                Err(TxEndCause::PeerDown(DownReason::Closed))
            }
            ControlMessage::MapMr(_) | ControlMessage::UnmapLoan(_) => Err(
                TxEndCause::ProtocolViolation("unexpected control message from a receiver"),
            ),
        }
    }

    /// Handles `RetryLater` before `Accept`: a connectionless endpoint connects again later.
    fn on_retry_later(&mut self) -> Result<(), TxEndCause> {
        match (&self.state, &self.retry) {
            (TxConnectionState::Connecting(_), Some(_)) => self
                .connect_later()
                .map_err(|_| TxEndCause::Rejected(RefusalReason::Resources)),
            _ => Err(TxEndCause::ProtocolViolation(
                "control message out of order: retry after accept",
            )),
        }
    }

    /// Handles `Ready`: sends the hello.
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

    /// Handles `Accept` with the incarnation of the peer's endpoint: the connection is established,
    /// unless another incarnation is expected.
    fn on_accept(&mut self, incarnation: u64) -> Result<(), TxEndCause> {
        self.state = match std::mem::replace(&mut self.state, TxConnectionState::Closed) {
            TxConnectionState::Connecting(mut channel) if channel.hello_sent() => {
                channel.on_accept(incarnation, self.settings.single_copy);
                let identity = Incarnation::from(channel.peer_identity);
                if self
                    .expected_incarnation
                    .is_some_and(|expected| expected != identity)
                {
                    // An established connection would send queued operations to this endpoint, and
                    // would report an event of its end.
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

    /// Handles a memory grant: maps the region.
    fn on_grant(&mut self, grant: MemoryGrant<PeerFd>) -> Result<(), TxEndCause> {
        let MemoryGrant {
            key,
            len,
            access,
            base,
            rma_events,
            memory,
            control_page,
        } = grant;
        let writable = access.contains(Access::REMOTE_WRITE);
        let mapping = match control_page {
            None => shared_memory::map_from_peer(&memory, len, writable),
            Some(page) => shared_memory::map_data_from_peer(&memory, &page, len, writable),
        };
        let region = mapping.map(|mapping| MappedRegion {
            key,
            mapping: Arc::new(mapping),
            access,
            base,
            rma_events,
        });
        self.on_map_response(key, region, UNSOLICITED_GRANT)
    }

    /// Handles the response to a map request: the mapped region, or the reason why there is none.
    ///
    /// # Errors
    /// `unsolicited` if the region was not requested.
    fn on_map_response(
        &mut self,
        key: u64,
        region: Result<MappedRegion, &'static str>,
        unsolicited: &'static str,
    ) -> Result<(), TxEndCause> {
        let is_awaited = self.queue.iter().any(|queued| queued.targets_key(key));
        self.requested_regions(key, unsolicited)?
            .on_map_response(key, region, is_awaited);
        Ok(())
    }

    /// Returns the regions of the peer if the response to a map request for this key is pending.
    ///
    /// # Errors
    /// `unsolicited` if no response is pending.
    fn requested_regions(
        &mut self,
        key: u64,
        unsolicited: &'static str,
    ) -> Result<&mut MappedRegions, TxEndCause> {
        let channel = self.state.established_mut();
        channel
            .map(|channel| &mut channel.mapped_regions)
            .filter(|regions| regions.is_map_request_pending(key))
            .ok_or(TxEndCause::ProtocolViolation(unsolicited))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::av::AddressTable;
    use fabric_core::{Address, Scheme};
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};

    use super::super::super::cma::SingleCopyPolicy;
    use super::super::super::loans::LoanPool;
    use super::super::super::socket::{ShmSocket, SocketConnect};
    use super::super::super::tx_settings::TxSettings;
    use super::super::channel::TxChannel;
    use super::*;

    /// A failed system call of this process is neither a protocol violation of the peer nor an
    /// event.
    #[test]
    fn failed_sendmsg_of_hello_is_an_os_error() {
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
        let Ok(SocketConnect::Connected(socket, server)) = ShmSocket::connect(&peer) else {
            panic!("the listener has room for a connection");
        };
        let channel = TxChannel::new((socket, server), &peer, 1, &settings).unwrap();
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
        assert!(end.identity.is_none(), "no event is reported");
    }
}
