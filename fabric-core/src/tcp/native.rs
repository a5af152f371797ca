//! Endpoints that connect on demand: what they say of themselves, and which connection stays when
//! both dial at once.

use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr};

use super::{Dialect, Question};

/// What an endpoint says of itself in the private data of a request, and its peer in the
/// acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
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
const PLAIN: u8 = 0;
/// What newer peers add to a version that they have chosen.
const CHOSEN: u8 = 0x80;

const FIREWALLED: u8 = 1;
/// Among the features of a request, and of its acceptance, of this library.
const KIN_ASKS: u8 = 0xa4;
const KIN_ANSWERS: u8 = 0x58;

impl Hello {
    /// How many bytes it is.
    pub const BYTES: usize = 8;

    /// What an endpoint asks with.
    #[must_use]
    pub fn new(port: u16, instance: u32) -> Self {
        Self {
            version: PLAIN,
            features: KIN_ASKS,
            port,
            instance,
        }
    }

    /// The bytes.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
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
    pub fn accepted_by(self, instance: u32) -> Self {
        let version = if self.version == PLAIN {
            PLAIN
        } else {
            PLAIN | CHOSEN
        };
        let kin = if self.is_kin() { KIN_ANSWERS } else { 0 };
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
    pub fn is_kin(self) -> bool {
        self.features & !FIREWALLED == KIN_ASKS
    }

    /// Whether who accepts with this is.
    #[must_use]
    pub fn answers_kin(self) -> bool {
        self.features & !FIREWALLED == KIN_ANSWERS
    }
}

/// What this side has of a connection with a peer that asks for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rivals {
    /// Nothing.
    None,
    /// It has asked too, in this dialect, and has no answer yet.
    Asking(Dialect),
    /// A connection with this instance of the peer; `None` while that is not known.
    Connected(Option<u32>),
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is accepted.
    Accept,
    /// It is accepted, and what this side has of a connection is given up.
    Replace,
    /// It is accepted beside what this side has: an endpoint that talks with itself.
    Both,
    /// It is refused.
    Refuse,
}

/// What becomes of a request from this peer. When both ask at once the connection stays that the
/// greater address has asked for; a peer that was started again replaces what there was before.
/// When both ask in different dialects the one in RXM stays, whose asking side may not understand
/// the other.
#[must_use]
pub fn arbitrate(
    ours: SocketAddr,
    theirs: SocketAddr,
    question: &Question,
    rivals: Rivals,
) -> Verdict {
    match (rivals, rank(theirs).cmp(&rank(ours))) {
        (Rivals::None, _) => Verdict::Accept,
        (_, Ordering::Equal) => Verdict::Both,
        (Rivals::Asking(asked), _) if asked != question.dialect() => match question.dialect() {
            Dialect::Rxm => Verdict::Replace,
            Dialect::Native => Verdict::Refuse,
        },
        (Rivals::Asking(_), Ordering::Less) => Verdict::Refuse,
        (Rivals::Asking(_), Ordering::Greater) => Verdict::Replace,
        (Rivals::Connected(None), _) => Verdict::Refuse,
        (Rivals::Connected(Some(known)), _) if known == question.instance() => Verdict::Refuse,
        (Rivals::Connected(Some(_)), _) => Verdict::Replace,
    }
}

/// Addresses are compared as they are written on the wire: the bytes of the address, then those of
/// the port.
fn rank(at: SocketAddr) -> (Vec<u8>, u16) {
    let bytes = match at.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    (bytes, at.port())
}
