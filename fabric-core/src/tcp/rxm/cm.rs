//! What endpoints say of themselves when a connection begins.

use super::EAGER_LIMIT;
use crate::tcp::ProtocolViolation;

const CM_VERSION: u8 = 1;
const ENDIANNESS: u8 = if cfg!(target_endian = "big") { 1 } else { 2 };
const CTRL_VERSION: u8 = 4;
const OP_VERSION: u8 = 3;
/// Credits are not counted: TCP holds back who sends too much.
const FLOW_CONTROL_OFF: u8 = 2;
/// Receives that are said to be posted. Nobody looks at it.
const RX_SIZE: u32 = 4096;

/// What an endpoint says that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxmConnect {
    /// Where it listens.
    pub port: u16,
    /// Another number when the endpoint is started again; never 0.
    pub instance: u32,
    /// What packets to it must quote.
    pub connection: u32,
}

impl RxmConnect {
    /// How many bytes it is.
    pub const LEN: usize = 24;

    /// The bytes.
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

    /// What these bytes say; `None` when they are of another length, and so of another dialect.
    ///
    /// # Errors
    /// Why this side does not talk with who says it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Result<Self, ProtocolViolation>> {
        let bytes: &[u8; Self::LEN] = bytes.as_array()?;
        let [
            greeting,
            order,
            control,
            operations,
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
        if greeting != CM_VERSION || control != CTRL_VERSION || operations != OP_VERSION {
            return Some(Err(ProtocolViolation(
                "a request of another version of RXM",
            )));
        }
        if order != ENDIANNESS {
            return Some(Err(ProtocolViolation(
                "a request of RXM from a machine of the other byte order",
            )));
        }
        if u32::from_ne_bytes([e0, e1, e2, e3]) as usize != EAGER_LIMIT {
            return Some(Err(ProtocolViolation(
                "a request of RXM with another limit of eager messages",
            )));
        }
        let port = u16::from_ne_bytes([p0, p1]);
        if port == 0 {
            return Some(Err(ProtocolViolation(
                "a request of RXM from an endpoint that does not listen",
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

/// What an endpoint says that accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxmAccept {
    /// Another number when the endpoint is started again.
    pub instance: u32,
    /// What packets to it must quote.
    pub connection: u32,
}

impl RxmAccept {
    /// How many bytes it is.
    pub const LEN: usize = 16;

    /// The bytes.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&encode_conn_id(self.instance, self.connection));
        bytes[8..12].copy_from_slice(&RX_SIZE.to_ne_bytes());
        bytes[12] = FLOW_CONTROL_OFF;
        bytes
    }

    /// What these bytes say; `None` when they are of another length, and so of another dialect.
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

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxmReject {
    /// It is not said.
    Unspecified,
    /// The two do not understand each other.
    Refused,
    /// There is a connection already, or one that goes before.
    Connected,
}

impl RxmReject {
    /// The bytes.
    #[must_use]
    pub fn encode(self) -> [u8; 2] {
        [CM_VERSION, self as u8]
    }

    /// What these bytes say; `None` when they are of another length, and so of another dialect.
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

/// Instance and connection, of the last of these bytes.
fn decode_conn_id(bytes: &[u8; 24]) -> (u32, u32) {
    let [.., i0, i1, i2, i3, i4, i5, i6, i7] = *bytes;
    let id = u64::from_ne_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
    ((id >> 32) as u32, id as u32)
}
