//! Private data of RXM connection requests, acceptances and rejections.

use super::EAGER_LIMIT;
use crate::tcp::ProtocolViolation;

const CM_VERSION: u8 = 1;
const ENDIANNESS: u8 = if cfg!(target_endian = "big") { 1 } else { 2 };
const CTRL_VERSION: u8 = 4;
const OP_VERSION: u8 = 3;
/// RXM flow control is off: TCP flow control holds back a fast sender.
const FLOW_CONTROL_OFF: u8 = 2;
/// Number of receives announced to the peer. libfabric ignores this number.
const RX_SIZE: u32 = 4096;

/// Private data of an RXM connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxmConnect {
    /// Port on which the initiator listens.
    pub port: u16,
    /// Instance of the endpoint: differs after a restart; never 0.
    pub instance: u32,
    /// Connection id that packets to the initiator must carry.
    pub connection: u32,
}

impl RxmConnect {
    /// Length of the private data, in bytes.
    pub const LEN: usize = 24;

    /// Encodes the private data.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&[CM_VERSION, ENDIANNESS, CTRL_VERSION, OP_VERSION]);
        bytes[4..6].copy_from_slice(&self.port.to_ne_bytes());
        bytes[6] = FLOW_CONTROL_OFF;
        bytes[8..12].copy_from_slice(&(EAGER_LIMIT as u32).to_ne_bytes());
        bytes[12..16].copy_from_slice(&RX_SIZE.to_ne_bytes());
        bytes[16..].copy_from_slice(&encode_conn_id(self.instance, self.connection));
        bytes
    }

    /// Decodes private data; `None` when they have another length, and so belong to another
    /// protocol.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when the request is incompatible with this side.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Result<Self, ProtocolViolation>> {
        let bytes: &[u8; Self::LEN] = bytes.as_array()?;
        let [
            cm_version,
            order,
            ctrl_version,
            op_version,
            p0,
            p1,
            _,
            _,
            e0,
            e1,
            e2,
            e3,
            ..,
        ] = *bytes;
        if cm_version != CM_VERSION || ctrl_version != CTRL_VERSION || op_version != OP_VERSION {
            return Some(Err(ProtocolViolation(
                "RXM connection request of an unsupported version",
            )));
        }
        if order != ENDIANNESS {
            return Some(Err(ProtocolViolation(
                "RXM connection request from a machine of the other byte order",
            )));
        }
        if u32::from_ne_bytes([e0, e1, e2, e3]) as usize != EAGER_LIMIT {
            return Some(Err(ProtocolViolation(
                "RXM connection request with an eager limit other than 16384 bytes",
            )));
        }
        let port = u16::from_ne_bytes([p0, p1]);
        if port == 0 {
            return Some(Err(ProtocolViolation(
                "RXM connection request without a listening port",
            )));
        }
        let (instance, connection) = decode_conn_id(bytes);
        Some(Ok(Self {
            port,
            instance,
            connection,
        }))
    }
}

/// Private data of an RXM acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxmAccept {
    /// Instance of the endpoint: differs after a restart.
    pub instance: u32,
    /// Connection id that packets to the acceptor must carry.
    pub connection: u32,
}

impl RxmAccept {
    /// Length of the private data, in bytes.
    pub const LEN: usize = 16;

    /// Encodes the private data.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&encode_conn_id(self.instance, self.connection));
        bytes[8..12].copy_from_slice(&RX_SIZE.to_ne_bytes());
        bytes[12] = FLOW_CONTROL_OFF;
        bytes
    }

    /// Decodes private data; `None` when they have another length, and so belong to another
    /// protocol.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.as_array()?;
        let mut last = [0; 24];
        last[16..].copy_from_slice(&bytes[..8]);
        let (instance, connection) = decode_conn_id(&last);
        Some(Self {
            instance,
            connection,
        })
    }
}

/// Reason of an RXM rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxmReject {
    /// No reason is given.
    Unspecified,
    /// The request is incompatible with the acceptor.
    Refused,
    /// There is a connection already, or another request takes precedence.
    Connected,
}

impl RxmReject {
    /// Encodes the reason.
    #[must_use]
    pub fn encode(self) -> [u8; 2] {
        [CM_VERSION, self as u8]
    }

    /// Decodes the reason; `None` when the private data have another length, and so belong to
    /// another protocol.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [CM_VERSION, 1] => Some(Self::Refused),
            [CM_VERSION, 2] => Some(Self::Connected),
            [CM_VERSION, _] => Some(Self::Unspecified),
            _ => None,
        }
    }
}

fn encode_conn_id(instance: u32, connection: u32) -> [u8; 8] {
    (u64::from(instance) << 32 | u64::from(connection)).to_ne_bytes()
}

/// Decodes the instance and the connection id in the last eight bytes.
fn decode_conn_id(bytes: &[u8; 24]) -> (u32, u32) {
    let [.., i0, i1, i2, i3, i4, i5, i6, i7] = *bytes;
    let id = u64::from_ne_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
    ((id >> 32) as u32, id as u32)
}
