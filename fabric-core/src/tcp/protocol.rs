//! The protocol of a connection: native or RXM.
//!
//! The acceptor recognises the protocol of a request by the length of the private data. The
//! initiator does not know which protocols the peer speaks, so it sends a native request first. A
//! peer that speaks only RXM rejects the native request with two bytes of private data; then the
//! initiator sends an RXM request. The reverse order would fail: native endpoints take an RXM
//! request for a native one.

use super::rxm::{RxmAccept, RxmConnect, RxmReject};
use super::{CmKind, CmMessage, PeerCaps, ProtocolViolation, RdmCmData, VendorExtension};

/// Protocol of the messages on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireProtocol {
    /// The protocol of libfabric's tcp provider: messages are frames.
    #[default]
    Native,
    /// The protocol of `tcp;ofi_rxm`: messages are packets within frames.
    Rxm,
}

/// Private data of a connection request of an `FI_EP_RDM` endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectRequest {
    /// A request in the native protocol.
    Native(RdmCmData),
    /// A request in RXM.
    Rxm(RxmConnect),
}

/// Parameters of an established connection, known to both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiated {
    /// Messages are frames.
    Native {
        /// Capabilities of the peer.
        peer_caps: PeerCaps,
    },
    /// Messages are packets, which carry connection ids.
    Rxm {
        /// Capabilities of the peer beyond those of RXM.
        peer_caps: PeerCaps,
        /// Connection id that the peer puts into its packets.
        local_connection: u32,
        /// Connection id that the peer expects in packets sent to it.
        remote_connection: u32,
    },
}

/// Outcome of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectReply {
    /// The connection is established, with these parameters and this instance of the peer. `None`
    /// if the peer sent no instance.
    Accepted(Negotiated, Option<u32>),
    /// The peer rejected the request in favour of another connection between both endpoints.
    AlreadyConnected,
    /// The peer does not speak the protocol of the request: a request in this one is to follow.
    RetryWith(WireProtocol),
    /// The peer rejected the request.
    Rejected,
}

impl ConnectRequest {
    /// Returns a request in this protocol, of an endpoint that listens on `port`. `connection` is
    /// the connection id that RXM packets to the endpoint must carry.
    #[must_use]
    pub fn new(protocol: WireProtocol, port: u16, instance: u32, connection: u32) -> Self {
        match protocol {
            WireProtocol::Native => Self::Native(RdmCmData::new(port, instance)),
            WireProtocol::Rxm => Self::Rxm(RxmConnect {
                port,
                instance,
                connection,
            }),
        }
    }

    /// Returns the protocol of the request.
    #[must_use]
    pub fn protocol(&self) -> WireProtocol {
        match self {
            Self::Native(_) => WireProtocol::Native,
            Self::Rxm(_) => WireProtocol::Rxm,
        }
    }

    /// Returns the port on which the initiator listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Native(native) => native.port,
            Self::Rxm(request) => request.port,
        }
    }

    /// Returns the instance of the initiator.
    #[must_use]
    pub fn instance(&self) -> u32 {
        match self {
            Self::Native(native) => native.instance,
            Self::Rxm(request) => request.instance,
        }
    }

    /// Returns the private data of the request.
    #[must_use]
    pub fn private_data(&self) -> Vec<u8> {
        match self {
            Self::Native(native) => native.encode().to_vec(),
            Self::Rxm(request) => request.encode().to_vec(),
        }
    }

    /// Parses the private data of a request.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when the private data are not those of an `FI_EP_RDM` endpoint.
    pub fn decode(private: &[u8]) -> Result<Self, ProtocolViolation> {
        if let Some(request) = RxmConnect::decode(private) {
            return request.map(Self::Rxm);
        }
        let native = RdmCmData::decode(private).filter(|native| native.port != 0);
        native.map(Self::Native).ok_or(ProtocolViolation(
            "private data of the connection request are not those of an FI_EP_RDM endpoint",
        ))
    }

    /// Returns the vendor extension for the control message that carries this request or its reply,
    /// given the extension of this endpoint. `None` for a native request, whose private data carry
    /// the extension.
    #[must_use]
    pub fn vendor_extension(&self, own: VendorExtension) -> Option<VendorExtension> {
        match self {
            Self::Native(_) => None,
            Self::Rxm(_) => Some(own),
        }
    }

    /// Returns the private data of the acceptance by an endpoint of this instance that expects
    /// `connection` in packets, and the negotiated parameters. `extension` is the vendor extension
    /// of the request.
    #[must_use]
    pub fn accept(
        &self,
        instance: u32,
        connection: u32,
        extension: Option<VendorExtension>,
    ) -> (Vec<u8>, Negotiated) {
        match self {
            Self::Native(native) => {
                let negotiated = Negotiated::Native {
                    peer_caps: PeerCaps::rdm(native.requests_extension()),
                };
                (native.acceptance(instance).encode().to_vec(), negotiated)
            }
            Self::Rxm(request) => {
                let peer_caps = PeerCaps::rdm(extension.is_some());
                let negotiated = Negotiated::Rxm {
                    peer_caps,
                    local_connection: connection,
                    remote_connection: request.connection,
                };
                (
                    RxmAccept {
                        instance,
                        connection,
                    }
                    .encode()
                    .to_vec(),
                    negotiated,
                )
            }
        }
    }

    /// Returns the private data of the rejection in favour of another connection.
    #[must_use]
    pub fn reject(&self) -> Vec<u8> {
        match self {
            Self::Native(native) => native.encode().to_vec(),
            Self::Rxm(_) => RxmReject::Connected.encode().to_vec(),
        }
    }

    /// Returns the private data of the rejection for lack of resources.
    #[must_use]
    pub fn reject_for_resources(&self) -> Vec<u8> {
        match self {
            Self::Native(_) => Vec::new(),
            Self::Rxm(_) => RxmReject::Unspecified.encode().to_vec(),
        }
    }

    /// Returns the private data of the rejection of a request whose private data
    /// [`decode`](Self::decode) failed to parse. Empty for an initiator of type `FI_EP_MSG`, whose
    /// private data belong to the program.
    #[must_use]
    pub fn reject_undecodable(private: &[u8]) -> Vec<u8> {
        match RxmConnect::decode(private) {
            Some(_) => RxmReject::Refused.encode().to_vec(),
            None if RdmCmData::decode(private).is_some() => private.to_vec(),
            None => Vec::new(),
        }
    }

    /// Interprets the peer's reply to this request.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when the message is not a reply to the request.
    pub fn on_reply(&self, control: &CmMessage) -> Result<ConnectReply, ProtocolViolation> {
        let private = control.private_data();
        match (control.kind, self) {
            (CmKind::Request, _) => Err(ProtocolViolation(
                "connection request received instead of a reply",
            )),
            (CmKind::Accept, Self::Native(_)) => {
                let native = RdmCmData::decode(private);
                let peer_caps = PeerCaps::rdm(native.is_some_and(RdmCmData::accepts_extension));
                Ok(ConnectReply::Accepted(
                    Negotiated::Native { peer_caps },
                    native.map(|native| native.instance),
                ))
            }
            (CmKind::Accept, Self::Rxm(request)) => match RxmAccept::decode(private) {
                Some(RxmAccept {
                    instance,
                    connection,
                }) => {
                    let peer_caps = PeerCaps::rdm(control.vendor_extension.is_some());
                    let negotiated = Negotiated::Rxm {
                        peer_caps,
                        local_connection: request.connection,
                        remote_connection: connection,
                    };
                    Ok(ConnectReply::Accepted(negotiated, Some(instance)))
                }
                // The peer took the RXM request for a native one.
                None if private.len() == RdmCmData::LEN => {
                    Ok(ConnectReply::RetryWith(WireProtocol::Native))
                }
                None => Err(ProtocolViolation(
                    "private data of the acceptance are not those of an FI_EP_RDM endpoint",
                )),
            },
            (CmKind::Reject, Self::Native(native)) if private == native.encode() => {
                Ok(ConnectReply::AlreadyConnected)
            }
            (CmKind::Reject, Self::Native(_)) if RxmReject::decode(private).is_some() => {
                Ok(ConnectReply::RetryWith(WireProtocol::Rxm))
            }
            (CmKind::Reject, Self::Rxm(_))
                if RxmReject::decode(private) == Some(RxmReject::Connected) =>
            {
                Ok(ConnectReply::AlreadyConnected)
            }
            (CmKind::Reject, Self::Rxm(request)) if private == request.encode() => {
                Ok(ConnectReply::RetryWith(WireProtocol::Native))
            }
            (CmKind::Reject, _) => Ok(ConnectReply::Rejected),
        }
    }
}
