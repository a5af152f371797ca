//! Private data of `FI_EP_RDM` endpoints, and which connection stays when two endpoints connect to
//! each other at the same time.
//!
//! An RXM request takes precedence over a native request, whichever address is greater: a peer that
//! sends an RXM request may support no other protocol, and then rejects the native request anyway.

use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr};

use super::{ConnectRequest, WireProtocol};

/// Private data of a native request or acceptance of an `FI_EP_RDM` endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmCmData {
    /// Highest protocol version of the initiator, or the version that the acceptor has chosen.
    pub version: u8,
    /// Feature bits. Bit 0: behind a firewall. libfabric ignores the other bits of a request. Its
    /// acceptance has them as zero, or, in versions that knew no features, as in the request. So
    /// endpoints of this library recognise each other by values that differ between request and
    /// acceptance.
    pub features: u8,
    /// Port on which the initiator listens.
    pub port: u16,
    /// Instance: a random number of the endpoint, which differs after a restart; never 0.
    pub instance: u32,
}

/// The version without rendezvous frames, which every peer supports.
const VERSION_NO_RENDEZVOUS: u8 = 0;
/// Bit that newer peers add to the version that they have chosen.
const VERSION_CHOSEN: u8 = 0x80;

/// Feature bit of libfabric: the endpoint is behind a firewall.
const FIREWALLED: u8 = 1;
/// Feature bits of a request of this library.
const EXTENSION_REQUEST: u8 = 0xa4;
/// Feature bits of an acceptance of this library.
const EXTENSION_ACCEPT: u8 = 0x58;

impl RdmCmData {
    /// Length of the private data, in bytes.
    pub const LEN: usize = 8;

    /// Returns the private data of a request.
    #[must_use]
    pub fn new(port: u16, instance: u32) -> Self {
        Self {
            version: VERSION_NO_RENDEZVOUS,
            features: EXTENSION_REQUEST,
            port,
            instance,
        }
    }

    /// Encodes the private data.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let [p0, p1] = self.port.to_be_bytes();
        let [i0, i1, i2, i3] = self.instance.to_be_bytes();
        [self.version, self.features, p0, p1, i0, i1, i2, i3]
    }

    /// Decodes private data; `None` when they have another length.
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

    /// Returns the private data of the acceptance of this request: the version without rendezvous,
    /// encoded as the initiator expects it.
    #[must_use]
    pub fn acceptance(self, instance: u32) -> Self {
        let version = if self.version == VERSION_NO_RENDEZVOUS {
            VERSION_NO_RENDEZVOUS
        } else {
            VERSION_NO_RENDEZVOUS | VERSION_CHOSEN
        };
        let extension = if self.requests_extension() {
            EXTENSION_ACCEPT
        } else {
            0
        };
        Self {
            version,
            features: self.features & FIREWALLED | extension,
            port: self.port,
            instance,
        }
    }

    /// Returns whether the initiator is of this library, in a version with the vendor extension.
    #[must_use]
    pub fn requests_extension(self) -> bool {
        self.features & !FIREWALLED == EXTENSION_REQUEST
    }

    /// Returns whether the acceptor is of this library, in a version with the vendor extension.
    #[must_use]
    pub fn accepts_extension(self) -> bool {
        self.features & !FIREWALLED == EXTENSION_ACCEPT
    }
}

/// State of this side's connection to a peer from which a request has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingConnection {
    /// No connection.
    None,
    /// This side has sent a request in this protocol and has no reply yet.
    Connecting(WireProtocol),
    /// An established connection.
    Connected,
}

/// Decision on a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The request is accepted.
    Accept,
    /// The request is accepted and replaces the attempt of this side to connect.
    Replace,
    /// The request is accepted in addition to the connection of this side: the endpoint connects
    /// to itself.
    AcceptLoopback,
    /// The request is rejected.
    Reject,
    /// The request is rejected, and this side verifies its connection with the peer: the peer may
    /// have lost the connection, or the initiator may be another endpoint than it claims.
    RejectAndVerify,
}

/// Decides on a connection request whose initiator claims the address `theirs`. When both sides
/// connect at the same time, the connection requested by the greater address stays. When the
/// requests use different protocols, the RXM request wins, because its initiator may not support
/// the native protocol. A request never replaces an established connection, because anybody can
/// claim an address. `is_own` says whether this endpoint has sent the request, to itself.
#[must_use]
pub fn resolve_simultaneous_connect(
    ours: SocketAddr,
    theirs: SocketAddr,
    request: &ConnectRequest,
    existing: ExistingConnection,
    is_own: bool,
) -> Resolution {
    match (existing, wire_order(theirs).cmp(&wire_order(ours))) {
        (_, Ordering::Equal) if is_own => Resolution::AcceptLoopback,
        (_, Ordering::Equal) => Resolution::Reject,
        (ExistingConnection::None, _) => Resolution::Accept,
        (ExistingConnection::Connecting(protocol), _) if protocol != request.protocol() => {
            match request.protocol() {
                WireProtocol::Rxm => Resolution::Replace,
                WireProtocol::Native => Resolution::Reject,
            }
        }
        (ExistingConnection::Connecting(_), Ordering::Less) => Resolution::Reject,
        (ExistingConnection::Connecting(_), Ordering::Greater) => Resolution::Replace,
        (ExistingConnection::Connected, _) => Resolution::RejectAndVerify,
    }
}

/// Returns the key by which addresses are compared: the bytes of the address in wire order, then
/// the port.
fn wire_order(addr: SocketAddr) -> (Vec<u8>, u16) {
    let bytes = match addr.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    (bytes, addr.port())
}
