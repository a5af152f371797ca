//! Connected endpoints (`FI_EP_MSG`): one peer, one connection, no listener, for as long as the
//! connection lasts.
//!
//! The endpoint's address vector contains only the peer, so the engine sees an endpoint like any
//! other. Both control messages carry a `VendorExtension`, which sets the connection's `PeerCaps`.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use fabric_core::flags::Caps;
use fabric_core::rx::RxSource;
use fabric_core::tcp::{ByteOrder, Negotiated, PeerCaps, VendorExtension, WireProtocol};
use fabric_core::transport::{ConnectMode, ConnectParams, Connected, EngineContext, EpId, WaitSet};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, Result, Scheme};

use super::super::handshake::{ConnectAnswer, HandshakeStep, RequestPayload};
use super::super::socket::TcpSocket;
use super::passive::TcpConnReqHandle;
use super::{ConnectionState, EndpointKind, TcpEndpoint, TcpPeer};
use crate::transport::net::SocketConfig;
use crate::uring::SharedUring;

/// Bytes that one read takes at most: such endpoints may be many, and each has memory for that.
const MSG_SCRATCH_LEN: usize = 64 << 10;

/// The state of a connected endpoint.
pub(super) struct MsgEndpointState {
    /// Position in the list of peers.
    peer: usize,
    /// The program has declared that the peer has FI_TAGGED.
    /// The endpoint has FI_TAGGED.
    supports_tags: bool,
    peer_supports_tags: bool,
    /// Why there is no connection any more.
    disconnect_error: Option<Error>,
}

/// A connection that both sides have accepted.
pub(super) struct AcceptedConnection {
    pub(super) socket: TcpSocket,
    pub(super) byte_order: ByteOrder,
    /// The vendor extension of the peer's endpoint.
    pub(super) vendor_extension: Option<VendorExtension>,
    /// Bytes that followed the peer's control message.
    pub(super) trailing_bytes: Vec<u8>,
}

impl TcpEndpoint {
    pub(crate) fn open_connected(
        host: &mut dyn EngineContext,
        (id, caps, tuning): (EpId, Caps, SocketConfig),
        ConnectParams {
            fi_addr: number,
            peer: name,
            data,
            peer_supports_tags: peer_takes_tags,
            mode: way,
        }: ConnectParams<'_>,
        (wait, receiving, ring): (Arc<dyn WaitSet>, RxSource<'_>, Option<SharedUring>),
    ) -> Result<Self> {
        let wrong = || Error::WrongScheme {
            provider: "tcp",
            address: name.clone(),
        };
        let at = name
            .socket_addr()
            .filter(|_| name.scheme() == Scheme::Tcp)
            .ok_or_else(wrong)?;
        let (mark, takes_tags) = (
            VendorExtension::from_caps(caps),
            caps.contains(Caps::TAGGED),
        );
        let single = |peer| {
            EndpointKind::Msg(MsgEndpointState {
                peer,
                supports_tags: takes_tags,
                peer_supports_tags: peer_takes_tags,
                disconnect_error: None,
            })
        };
        let role = single(0);
        let mut opened = Self::new(
            id,
            (unspecified_addr(at), tuning),
            role,
            (wait, receiving, ring),
        )?;
        opened.set_caps(caps);
        let peer = TcpPeer {
            fi_addr: Some(number),
            ..TcpPeer::new(name.clone(), at, WireProtocol::Native)
        };
        let peer = opened.peers.insert(peer);
        opened.peer_by_socket_addr.insert(at, peer);
        opened.peer_by_fi_addr.resize(number.index() + 1, None);
        opened.peer_by_fi_addr[number.index()] = Some(peer);
        opened.kind = single(peer);
        match way {
            ConnectMode::Connect {
                from,
                timeout: patience,
            } => {
                if let Some(from) = from {
                    opened.local_addr = source_addr(from, at)?;
                }
                opened.open_timer()?;
                opened.start_connect(peer, RequestPayload::Msg(mark, data.to_vec()), patience)?;
            }
            ConnectMode::Accept(handle) => {
                let handle: Box<dyn Any> = handle;
                let Ok(called) = handle.downcast::<TcpConnReqHandle>() else {
                    let why = "the request was received by another provider".into();
                    return Err(Error::Invalid {
                        what: "connection request",
                        why,
                    });
                };
                called.apply_config(&opened.socket_config)?;
                let accepted = called
                    .accept(mark, data)
                    .ok_or_else(|| Error::PeerGone(name.clone()))?;
                opened.establish(host, accepted, Vec::new())?;
            }
        }
        Ok(opened)
    }

    /// Sets the endpoint up after the connection was accepted, and reports it to the engine.
    fn establish(
        &mut self,
        host: &mut dyn EngineContext,
        AcceptedConnection {
            socket,
            byte_order: order,
            vendor_extension: mark,
            trailing_bytes: rest,
        }: AcceptedConnection,
        data: Vec<u8>,
    ) -> Result<()> {
        let EndpointKind::Msg(MsgEndpointState {
            peer,
            peer_supports_tags: peer_takes_tags,
            ..
        }) = self.kind
        else {
            return Ok(());
        };
        self.local_addr = socket.local_addr()?;
        self.name = Address::from_socket_addr(Scheme::Tcp, self.local_addr)?;
        self.scratch = vec![0; MSG_SCRATCH_LEN].into();
        self.close_timer();
        let takes = PeerCaps::msg(mark, peer_takes_tags);
        let spoken = (
            Negotiated::Native { peer_caps: takes },
            ByteOrder::NATIVE.negotiate(order),
        );
        let link = self.add_connection(host, (peer, None), socket, spoken, rest);
        self.peers[peer].connection = Some(link);
        host.on_connected(
            self.id,
            &self.peers[peer].address,
            Ok(Connected {
                name: self.name.clone(),
                data,
            }),
        );
        Ok(())
    }

    /// Handles a step of the handshake.
    pub(super) fn on_msg_handshake_step(
        &mut self,
        host: &mut dyn EngineContext,
        at: usize,
        greeting: HandshakeStep,
    ) {
        let Some(ConnectionState::Outbound(asked)) = self.connections.get(at) else {
            return;
        };
        let TcpPeer {
            address: name,
            socket_addr: to,
            ..
        } = &self.peers[asked.peer];
        let error = match greeting {
            HandshakeStep::Pending => return,
            HandshakeStep::TimedOut => Error::TimedOut(name.clone()),
            HandshakeStep::Failed(failure) => failure.into_error(self.local_addr, (name, *to)),
            // An FI_EP_MSG request gets no FI_EP_RDM reply.
            HandshakeStep::Reply(..) => Error::PeerGone(name.clone()),
            HandshakeStep::Answer(ConnectAnswer::Rejected {
                private_data: private,
            }) => Error::Rejected {
                peer: name.clone(),
                data: private,
            },
            HandshakeStep::Answer(ConnectAnswer::Accepted {
                byte_order: order,
                vendor_extension: mark,
                private_data: private,
                trailing_bytes: rest,
            }) => {
                let ConnectionState::Outbound(asked) = self.connections.remove(at) else {
                    return;
                };
                let joining = AcceptedConnection {
                    socket: asked.into_socket(),
                    byte_order: order,
                    vendor_extension: mark,
                    trailing_bytes: rest,
                };
                match self.establish(host, joining, private) {
                    Ok(()) => return,
                    Err(error) => error,
                }
            }
        };
        self.connect_failed(host, at, error);
    }

    fn connect_failed(&mut self, host: &mut dyn EngineContext, at: usize, error: Error) {
        let EndpointKind::Msg(single) = &mut self.kind else {
            return;
        };
        self.connections.try_remove(at);
        single.disconnect_error = Some(error.clone());
        let peer = &mut self.peers[single.peer];
        peer.connection = None;
        host.on_connected(self.id, &peer.address, Err(error));
        self.close_timer();
    }

    /// Whether tagged messages are a protocol violation.
    pub(super) fn rejects_tagged(&self) -> bool {
        matches!(
            self.kind,
            EndpointKind::Msg(MsgEndpointState {
                supports_tags: false,
                ..
            })
        )
    }

    /// Closes the connection; collected bytes are sent in the background.
    ///
    /// # Errors [`Error::NotSupported`] if the endpoint is not connected (`FI_EP_MSG`).
    pub(crate) fn shutdown(&mut self, host: &mut dyn EngineContext) -> Result<()> {
        let EndpointKind::Msg(MsgEndpointState { peer, .. }) = self.kind else {
            return Err(Error::NotSupported(
                "endpoint is not connection-oriented (FI_EP_MSG)",
            ));
        };
        self.fail_sends(host, peer, &Error::Canceled);
        if !self.rx.is_shared() {
            self.rx.own.fail_posted(host, &Error::Canceled);
        }
        let link = self
            .connections
            .iter()
            .find_map(|(at, stage)| matches!(stage, ConnectionState::Established(_)).then_some(at));
        if let Some(at) = link {
            if let EndpointKind::Msg(single) = &mut self.kind {
                single.disconnect_error = Some(Error::Closed(Class::Endpoint));
            }
            self.end_unwritten(host, at, &Error::Canceled);
            self.close_connection(host, at);
        }
        Ok(())
    }

    /// Notes that the connection has ended and everything received was taken.
    pub(super) fn set_disconnected(&mut self, host: &mut dyn EngineContext, why: Error) {
        if let EndpointKind::Msg(single) = &mut self.kind {
            single.disconnect_error.get_or_insert(why);
            self.fail_recvs_if_disconnected(host);
        }
    }

    /// Fails posted receives once nothing more can arrive.
    pub(super) fn fail_recvs_if_disconnected(&mut self, host: &mut dyn EngineContext) {
        if let EndpointKind::Msg(MsgEndpointState {
            disconnect_error: Some(why),
            ..
        }) = &self.kind
            && !self.rx.is_shared()
        {
            self.rx.own.fail_posted(host, why);
        }
    }

    /// Returns why nothing can be sent.
    pub(super) fn disconnect_error(&self) -> Error {
        match &self.kind {
            EndpointKind::Msg(MsgEndpointState {
                disconnect_error: Some(why),
                ..
            }) => why.clone(),
            EndpointKind::Msg(single) => Error::PeerGone(self.peers[single.peer].address.clone()),
            _ => Error::Closed(Class::Endpoint),
        }
    }
}

/// Returns the unspecified address of the family of this one.
fn unspecified_addr(like: SocketAddr) -> SocketAddr {
    let ip = if like.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    SocketAddr::new(ip, 0)
}

/// Returns the local address to connect from.
///
/// # Errors [`Error::Invalid`] if the two addresses are of different families.
fn source_addr(from: &Address, to: SocketAddr) -> Result<SocketAddr> {
    let Some(from) = from.socket_addr() else {
        return Ok(unspecified_addr(to));
    };
    if from.is_ipv4() != to.is_ipv4() {
        let why = format!("{from} and {to} are of different address families");
        return Err(Error::Invalid {
            what: "address to connect from",
            why,
        });
    }
    Ok(from)
}
