//! Connected endpoints (`FI_EP_MSG`): one peer, one connection, no listener.
//!
//! The endpoint's address vector contains only the peer, so the engine sees an endpoint like any
//! other. The request and the accept carry a `VendorExtension`, from which the connection's
//! `PeerCaps` are made.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fabric_core::flags::Caps;
use fabric_core::tcp::{ByteOrder, Negotiated, PeerCaps, VendorExtension};
use fabric_core::transport::{
    ConnectMode, ConnectParams, Connected, EndpointConnection, EndpointContext, EngineContext,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, Result};

use super::super::handshake::{ConnectAnswer, HandshakeStep, RequestPayload};
use super::passive::{AcceptedConnection, TcpConnReqHandle};
use super::peer::TcpPeer;
use super::{EndpointKind, EndpointResources, TcpEndpoint};

/// Maximum bytes of one read. Each connected endpoint has memory for one read, and may be one of
/// many.
const MSG_SCRATCH_LEN: usize = 64 << 10;

/// The state of a connected endpoint.
pub(super) struct MsgEndpointState {
    /// Position in the list of peers.
    peer: usize,
    /// Whether the endpoint has FI_TAGGED.
    supports_tags: bool,
    /// Whether the program has declared that the peer has FI_TAGGED.
    peer_supports_tags: bool,
    /// Why there is no connection any more; `None` before and while the endpoint is connected.
    disconnect_error: Option<Error>,
}

impl TcpEndpoint {
    /// Opens a connected endpoint, by a connect or by the accept of a connection request.
    ///
    /// # Errors
    /// Failures that are known at once.
    pub(crate) fn open_connected(
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        caps: Caps,
        ConnectParams {
            fi_addr,
            peer: peer_name,
            data,
            peer_supports_tags,
            mode,
        }: ConnectParams<'_>,
        resources: EndpointResources,
    ) -> Result<Self> {
        let remote_addr = resources.network.socket_addr(peer_name)?;
        let (vendor_extension, supports_tags) = (
            VendorExtension::from_caps(caps),
            caps.contains(Caps::TAGGED),
        );
        let msg_kind = |peer| {
            EndpointKind::Msg(MsgEndpointState {
                peer,
                supports_tags,
                peer_supports_tags,
                disconnect_error: None,
            })
        };
        let local_addr = unspecified_addr(remote_addr);
        let name = resources.network.address(local_addr)?;
        let mut endpoint = Self::new(ctx.ep(), (local_addr, name), msg_kind(0), resources);
        endpoint.set_caps(caps);
        let peer = endpoint.find_or_add_peer(remote_addr, peer_name);
        endpoint.peers.set_fi_addr(peer, fi_addr);
        endpoint.kind = msg_kind(peer);
        match mode {
            ConnectMode::Connect { from, timeout } => {
                if let Some(from) = from {
                    endpoint.local_addr = source_addr(from, remote_addr)?;
                }
                endpoint.open_timer()?;
                let connection_index = endpoint.start_connect(
                    peer,
                    RequestPayload::Msg(vendor_extension, data.to_vec()),
                    (timeout, None),
                )?;
                endpoint.peers[peer].set_connecting(connection_index);
            }
            ConnectMode::Accept(handle) => {
                let handle: Box<dyn Any> = handle;
                let Ok(request) = handle.downcast::<TcpConnReqHandle>() else {
                    let why = "the request was received by another provider".into();
                    return Err(Error::Invalid {
                        what: "connection request",
                        why,
                    });
                };
                request.apply_config(&endpoint.socket_config)?;
                let accepted = request
                    .accept(vendor_extension, data)
                    .ok_or_else(|| Error::PeerGone(peer_name.clone()))?;
                endpoint.establish(ctx, accepted, Vec::new())?;
            }
        }
        Ok(endpoint)
    }

    /// Adds the connection after the handshake, and reports the connected endpoint to the engine
    /// with the peer's private data.
    fn establish(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        AcceptedConnection {
            socket,
            byte_order,
            vendor_extension,
            trailing_bytes,
        }: AcceptedConnection,
        data: Vec<u8>,
    ) -> Result<()> {
        let EndpointKind::Msg(MsgEndpointState {
            peer,
            peer_supports_tags,
            ..
        }) = self.kind
        else {
            return Ok(());
        };
        self.local_addr = socket.local_addr()?;
        self.name = self.network.address(self.local_addr)?;
        self.connections.set_read_len(MSG_SCRATCH_LEN);
        self.timer.close();
        let peer_caps = PeerCaps::msg(vendor_extension, peer_supports_tags);
        let negotiated = (
            Negotiated::Native { peer_caps },
            ByteOrder::NATIVE.negotiate(byte_order),
        );
        let connection = self.add_connection(ctx, (peer, None), socket, negotiated, trailing_bytes);
        self.peers[peer].set_tx_connection(connection);
        ctx.on_connected(
            &self.peers[peer].address,
            Ok(Connected {
                name: self.name.clone(),
                data,
                tx_caps: peer_caps.tx_caps(),
                credentials: None,
            }),
        );
        Ok(())
    }

    /// Handles a step of the outbound handshake of a connected endpoint.
    pub(super) fn on_msg_handshake_step(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        step: HandshakeStep,
    ) {
        let Some(handshake) = self.connections.outbound(connection_index) else {
            return;
        };
        let TcpPeer {
            address: name,
            socket_addr: to,
            ..
        } = &self.peers[handshake.peer];
        let error = match step {
            HandshakeStep::Pending => return,
            HandshakeStep::TimedOut => Error::TimedOut(name.clone()),
            HandshakeStep::Failed(failure) => failure.into_error(self.local_addr, (name, *to)),
            // The reply to an FI_EP_MSG request is an `Answer`.
            HandshakeStep::Reply(..) => Error::PeerGone(name.clone()),
            HandshakeStep::Answer(ConnectAnswer::Rejected { private_data }) => {
                Error::RejectedByPeer {
                    peer: name.clone(),
                    data: private_data,
                }
            }
            HandshakeStep::Answer(ConnectAnswer::Accepted {
                byte_order,
                vendor_extension,
                private_data,
                trailing_bytes,
            }) => {
                let Some(handshake) = self.connections.take_outbound(connection_index) else {
                    return;
                };
                let accepted = AcceptedConnection {
                    socket: handshake.into_socket(),
                    byte_order,
                    vendor_extension,
                    trailing_bytes,
                };
                match self.establish(ctx, accepted, private_data) {
                    Ok(()) => return,
                    Err(error) => error,
                }
            }
        };
        self.connect_failed(ctx, connection_index, error);
    }

    /// Handles a failed handshake: reports the error to the engine.
    fn connect_failed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        error: Error,
    ) {
        let EndpointKind::Msg(msg) = &mut self.kind else {
            return;
        };
        self.connections.take_outbound(connection_index);
        msg.disconnect_error = Some(error.clone());
        let peer = &mut self.peers[msg.peer];
        peer.end_connecting();
        ctx.on_connected(&peer.address, Err(error));
        self.timer.close();
    }

    /// Returns whether tagged messages are a protocol violation.
    pub(super) fn rejects_tagged(&self) -> bool {
        matches!(
            self.kind,
            EndpointKind::Msg(MsgEndpointState {
                supports_tags: false,
                ..
            })
        )
    }

    /// Notes that the connection has ended and all its received messages were taken. Does nothing
    /// for other endpoints than `FI_EP_MSG`.
    pub(super) fn set_disconnected(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        why: Error,
    ) {
        if let EndpointKind::Msg(msg) = &mut self.kind {
            msg.disconnect_error.get_or_insert(why);
            self.fail_recvs_if_disconnected(ctx);
        }
    }

    /// Fails the posted receives of a connected endpoint whose connection has ended.
    pub(super) fn fail_recvs_if_disconnected(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        if let EndpointKind::Msg(MsgEndpointState {
            disconnect_error: Some(why),
            ..
        }) = &self.kind
            && !ctx.shares_rx()
        {
            ctx.fail_posted(why);
        }
    }

    /// Returns the error of sends while there is no connection.
    pub(super) fn disconnect_error(&self) -> Error {
        match &self.kind {
            EndpointKind::Msg(MsgEndpointState {
                disconnect_error: Some(why),
                ..
            }) => why.clone(),
            EndpointKind::Msg(msg) => Error::PeerGone(self.peers[msg.peer].address.clone()),
            _ => Error::Closed(Class::Endpoint),
        }
    }
}

/// Returns the unspecified address of the same address family.
fn unspecified_addr(family_of: SocketAddr) -> SocketAddr {
    let ip = if family_of.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    SocketAddr::new(ip, 0)
}

/// Returns the local address to connect from.
///
/// # Errors
/// [`Error::Invalid`] if the two addresses are of different families.
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

impl<E: EngineContext> EndpointConnection<E> for TcpEndpoint {
    fn shutdown(&mut self, ctx: &mut EndpointContext<'_, E>) {
        let EndpointKind::Msg(MsgEndpointState { peer, .. }) = self.kind else {
            return;
        };
        self.fail_sends(ctx, peer, &Error::Canceled);
        if !ctx.shares_rx() {
            ctx.fail_posted(&Error::Canceled);
        }
        let connection = self.connections.all_established().next();
        if let Some((connection_index, _)) = connection {
            if let EndpointKind::Msg(msg) = &mut self.kind {
                msg.disconnect_error = Some(Error::ShutDown);
            }
            self.flush_or_fail_unwritten(ctx, connection_index, &Error::Canceled);
            self.close_connection(ctx, connection_index);
        }
    }
}
