//! Endpoints that connect on demand: what they say of themselves, and which connection stays when
//! both dial at once.

use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr};

use super::{ConnectRequest, WireProtocol};

/// What an endpoint says of itself in the private data of a request, and its peer in the
/// acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmCmData {
    /// The highest version of the protocol, or the one that was chosen.
    pub version: u8,
    /// Bit 0: behind a firewall. The others mean nothing to libfabric, which gives none of them
    /// back, or, before it knew any, those it was asked with: so peers of this library know each
    /// other by one number in the request and another one in the answer.
    pub features: u8,
    /// Where the asking side listens.
    pub port: u16,
    /// Another number when the endpoint is started again; never 0.
    pub instance: u32,
}

/// The version without a rendezvous, which every peer speaks.
const VERSION_NO_RENDEZVOUS: u8 = 0;
/// What newer peers add to a version that they have chosen.
const VERSION_CHOSEN: u8 = 0x80;

const FIREWALLED: u8 = 1;
/// Among the features of a request, and of its acceptance, of this library.
const EXTENSION_REQUEST: u8 = 0xa4;
const EXTENSION_ACCEPT: u8 = 0x58;

impl RdmCmData {
    /// How many bytes it is.
    pub const LEN: usize = 8;

    /// What an endpoint asks with.
    #[must_use]
    pub fn new(port: u16, instance: u32) -> Self {
        Self {
            version: VERSION_NO_RENDEZVOUS,
            features: EXTENSION_REQUEST,
            port,
            instance,
        }
    }

    /// The bytes.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let [p0, p1] = self.port.to_be_bytes();
        let [i0, i1, i2, i3] = self.instance.to_be_bytes();
        [self.version, self.features, p0, p1, i0, i1, i2, i3]
    }

    /// What these bytes say; `None` when they are of another length.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [version, features, p0, p1, i0, i1, i2, i3] = *bytes.as_array()?;
        let instance = u32::from_be_bytes([i0, i1, i2, i3]);
        Some(Self {
            version,
            features,
            port: u16::from_be_bytes([p0, p1]),
            instance,
        })
    }

    /// The answer to a request with this: the plain version, said as the asking side expects it.
    #[must_use]
    pub fn acceptance(self, instance: u32) -> Self {
        let version = if self.version == VERSION_NO_RENDEZVOUS {
            VERSION_NO_RENDEZVOUS
        } else {
            VERSION_NO_RENDEZVOUS | VERSION_CHOSEN
        };
        let kin = if self.requests_extension() {
            EXTENSION_ACCEPT
        } else {
            0
        };
        Self {
            version,
            features: self.features & FIREWALLED | kin,
            port: self.port,
            instance,
        }
    }

    /// Whether who asks with this is of this library, and of an age to understand what only that
    /// says.
    #[must_use]
    pub fn requests_extension(self) -> bool {
        self.features & !FIREWALLED == EXTENSION_REQUEST
    }

    /// Whether who accepts with this is.
    #[must_use]
    pub fn accepts_extension(self) -> bool {
        self.features & !FIREWALLED == EXTENSION_ACCEPT
    }
}

/// What this side has of a connection with a peer that asks for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingConnection {
    /// Nothing.
    None,
    /// It has asked too, in this dialect, and has no answer yet.
    Connecting(WireProtocol),
    /// A connection with this instance of the peer; `None` while that is not known.
    Connected(Option<u32>),
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It is accepted.
    Accept,
    /// It is accepted, and what this side has of a connection is given up.
    Replace,
    /// It is accepted beside what this side has: an endpoint that talks with itself.
    AcceptLoopback,
    /// It is refused.
    Reject,
}

/// What becomes of a request from this peer. When both ask at once the connection stays that the
/// greater address has asked for; a peer that was started again replaces what there was before.
/// When both ask in different dialects the one in RXM stays, whose asking side may not understand
/// the other.
#[must_use]
pub fn resolve_simultaneous_connect(
    ours: SocketAddr,
    theirs: SocketAddr,
    question: &ConnectRequest,
    rivals: ExistingConnection,
) -> Resolution {
    match (rivals, wire_order(theirs).cmp(&wire_order(ours))) {
        (ExistingConnection::None, _) => Resolution::Accept,
        (_, Ordering::Equal) => Resolution::AcceptLoopback,
        (ExistingConnection::Connecting(asked), _) if asked != question.protocol() => {
            match question.protocol() {
                WireProtocol::Rxm => Resolution::Replace,
                WireProtocol::Native => Resolution::Reject,
            }
        }
        (ExistingConnection::Connecting(_), Ordering::Less) => Resolution::Reject,
        (ExistingConnection::Connecting(_), Ordering::Greater) => Resolution::Replace,
        (ExistingConnection::Connected(None), _) => Resolution::Reject,
        (ExistingConnection::Connected(Some(known)), _) if known == question.instance() => {
            Resolution::Reject
        }
        (ExistingConnection::Connected(Some(_)), _) => Resolution::Replace,
    }
}

/// Addresses are compared as they are written on the wire: the bytes of the address, then those of
/// the port.
fn wire_order(at: SocketAddr) -> (Vec<u8>, u16) {
    let bytes = match at.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    (bytes, at.port())
}
