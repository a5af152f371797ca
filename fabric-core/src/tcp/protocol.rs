//! Two dialects are spoken by endpoints that connect on demand, and the beginning of a connection
//! tells them apart.
//!
//! Who is asked knows by the length of the private data. Who asks does not know whom it asks: it
//! asks in the native dialect first. Who speaks only RXM refuses that in two bytes, and is asked
//! again. The other way round would not do: native endpoints take a request in RXM for one of their
//! own.

use super::rxm::{RxmAccept, RxmConnect, RxmReject};
use super::{CmKind, CmMessage, PeerCaps, ProtocolViolation, RdmCmData, VendorExtension};

/// What is spoken over a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireProtocol {
    /// That of the provider itself: messages are frames.
    #[default]
    Native,
    /// That of `tcp;ofi_rxm`: messages are packets within frames.
    Rxm,
}

/// What an endpoint asks for a connection with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectRequest {
    /// In the native dialect.
    Native(RdmCmData),
    /// In RXM.
    Rxm(RxmConnect),
}

/// What both sides know when a connection has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiated {
    /// Messages are frames.
    Native {
        /// What the peer takes.
        peer_caps: PeerCaps,
    },
    /// Messages are packets, which quote numbers.
    Rxm {
        /// What the peer takes beyond what RXM has.
        peer_caps: PeerCaps,
        /// What the peer quotes.
        local_connection: u32,
        /// What the peer wants to be quoted.
        remote_connection: u32,
    },
}

/// What becomes of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectReply {
    /// There is a connection with this instance of the peer, if it has said which.
    Accepted(Negotiated, Option<u32>),
    /// Another connection stands in the way.
    AlreadyConnected,
    /// It is to be asked in the other dialect.
    RetryWith(WireProtocol),
    /// There is no connection, and that is all.
    Rejected,
}

impl ConnectRequest {
    /// A question in this dialect, of an endpoint that listens at this port.
    #[must_use]
    pub fn new(dialect: WireProtocol, port: u16, instance: u32, connection: u32) -> Self {
        match dialect {
            WireProtocol::Native => Self::Native(RdmCmData::new(port, instance)),
            WireProtocol::Rxm => Self::Rxm(RxmConnect {
                port,
                instance,
                connection,
            }),
        }
    }

    /// The dialect it is in.
    #[must_use]
    pub fn protocol(&self) -> WireProtocol {
        match self {
            Self::Native(_) => WireProtocol::Native,
            Self::Rxm(_) => WireProtocol::Rxm,
        }
    }

    /// Where the asking side listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Native(hello) => hello.port,
            Self::Rxm(request) => request.port,
        }
    }

    /// The instance of the asking side.
    #[must_use]
    pub fn instance(&self) -> u32 {
        match self {
            Self::Native(hello) => hello.instance,
            Self::Rxm(request) => request.instance,
        }
    }

    /// The private data of the request.
    #[must_use]
    pub fn private_data(&self) -> Vec<u8> {
        match self {
            Self::Native(hello) => hello.encode().to_vec(),
            Self::Rxm(request) => request.encode().to_vec(),
        }
    }

    /// The question with this private data.
    ///
    /// # Errors
    /// Why it is none that could be answered.
    pub fn decode(private: &[u8]) -> Result<Self, ProtocolViolation> {
        if let Some(request) = RxmConnect::decode(private) {
            return request.map(Self::Rxm);
        }
        let hello = RdmCmData::decode(private).filter(|hello| hello.port != 0);
        hello
            .map(Self::Native)
            .ok_or(ProtocolViolation("a request of another kind of endpoint"))
    }

    /// What an endpoint that says this of itself marks its side of a connection with that was asked
    /// for by this question. What is said in the native dialect says it already.
    #[must_use]
    pub fn vendor_extension(&self, own: VendorExtension) -> Option<VendorExtension> {
        match self {
            Self::Native(_) => None,
            Self::Rxm(_) => Some(own),
        }
    }

    /// The private data of the acceptance, of an endpoint that is this instance and wants packets
    /// to quote this, and what is agreed on with it, where the question was marked with that.
    #[must_use]
    pub fn accept(
        &self,
        instance: u32,
        connection: u32,
        mark: Option<VendorExtension>,
    ) -> (Vec<u8>, Negotiated) {
        match self {
            Self::Native(hello) => {
                let agreed = Negotiated::Native {
                    peer_caps: PeerCaps::rdm(hello.requests_extension()),
                };
                (hello.acceptance(instance).encode().to_vec(), agreed)
            }
            Self::Rxm(request) => {
                let takes = PeerCaps::rdm(mark.is_some());
                let agreed = Negotiated::Rxm {
                    peer_caps: takes,
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
                    agreed,
                )
            }
        }
    }

    /// The private data of the refusal when another connection stands in the way.
    #[must_use]
    pub fn reject(&self) -> Vec<u8> {
        match self {
            Self::Native(hello) => hello.encode().to_vec(),
            Self::Rxm(_) => RxmReject::Connected.encode().to_vec(),
        }
    }

    /// The private data of the refusal of a request with this private data that could not be
    /// [read](Self::read).
    #[must_use]
    pub fn reject_undecodable(private: &[u8]) -> Vec<u8> {
        match RxmConnect::decode(private) {
            Some(_) => RxmReject::Refused.encode().to_vec(),
            None => private.to_vec(),
        }
    }

    /// What the peer says to it.
    ///
    /// # Errors
    /// Why that is no answer.
    pub fn on_reply(&self, control: &CmMessage) -> Result<ConnectReply, ProtocolViolation> {
        let said = control.private_data();
        match (control.kind, self) {
            (CmKind::Request, _) => Err(ProtocolViolation("a question instead of an answer")),
            (CmKind::Accept, Self::Native(_)) => {
                let hello = RdmCmData::decode(said);
                let takes = PeerCaps::rdm(hello.is_some_and(RdmCmData::accepts_extension));
                Ok(ConnectReply::Accepted(
                    Negotiated::Native { peer_caps: takes },
                    hello.map(|hello| hello.instance),
                ))
            }
            (CmKind::Accept, Self::Rxm(request)) => match RxmAccept::decode(said) {
                Some(RxmAccept {
                    instance,
                    connection,
                }) => {
                    let takes = PeerCaps::rdm(control.vendor_extension.is_some());
                    let agreed = Negotiated::Rxm {
                        peer_caps: takes,
                        local_connection: request.connection,
                        remote_connection: connection,
                    };
                    Ok(ConnectReply::Accepted(agreed, Some(instance)))
                }
                // It takes what it was asked for a question of its own dialect.
                None if said.len() == RdmCmData::LEN => {
                    Ok(ConnectReply::RetryWith(WireProtocol::Native))
                }
                None => Err(ProtocolViolation(
                    "an acceptance of another kind of endpoint",
                )),
            },
            (CmKind::Reject, Self::Native(hello)) if said == hello.encode() => {
                Ok(ConnectReply::AlreadyConnected)
            }
            (CmKind::Reject, Self::Native(_)) if RxmReject::decode(said).is_some() => {
                Ok(ConnectReply::RetryWith(WireProtocol::Rxm))
            }
            (CmKind::Reject, Self::Rxm(_))
                if RxmReject::decode(said) == Some(RxmReject::Connected) =>
            {
                Ok(ConnectReply::AlreadyConnected)
            }
            (CmKind::Reject, Self::Rxm(request)) if said == request.encode() => {
                Ok(ConnectReply::RetryWith(WireProtocol::Native))
            }
            (CmKind::Reject, _) => Ok(ConnectReply::Rejected),
        }
    }
}
