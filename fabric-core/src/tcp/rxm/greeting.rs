//! What endpoints say of themselves when a connection begins.

use super::EAGER;
use crate::tcp::Broken;

const GREETING: u8 = 1;
const ORDER: u8 = if cfg!(target_endian = "big") { 1 } else { 2 };
const CONTROL: u8 = 4;
const OPERATIONS: u8 = 3;
/// Credits are not counted: TCP holds back who sends too much.
const FLOW_CONTROL_OFF: u8 = 2;
/// Receives that are said to be posted. Nobody looks at it.
const RECEIVES: u32 = 4096;

/// What an endpoint says that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where it listens.
    pub port: u16,
    /// Another number when the endpoint is started again; never 0.
    pub instance: u32,
    /// What packets to it must quote.
    pub connection: u32,
}

impl Request {
    /// How many bytes it is.
    pub const BYTES: usize = 24;

    /// The bytes.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&[GREETING, ORDER, CONTROL, OPERATIONS]);
        bytes[4..6].copy_from_slice(&self.port.to_ne_bytes());
        bytes[6] = FLOW_CONTROL_OFF;
        bytes[8..12].copy_from_slice(&(EAGER as u32).to_ne_bytes());
        bytes[12..16].copy_from_slice(&RECEIVES.to_ne_bytes());
        bytes[16..].copy_from_slice(&id(self.instance, self.connection));
        bytes
    }

    /// What these bytes say; `None` when they are of another length, and so of another dialect.
    ///
    /// # Errors
    /// Why this side does not talk with who says it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Result<Self, Broken>> {
        let bytes: &[u8; Self::BYTES] = bytes.as_array()?;
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
        if greeting != GREETING || control != CONTROL || operations != OPERATIONS {
            return Some(Err(Broken("a request of another version of RXM")));
        }
        if order != ORDER {
            return Some(Err(Broken(
                "a request of RXM from a machine of the other byte order",
            )));
        }
        if u32::from_ne_bytes([e0, e1, e2, e3]) as usize != EAGER {
            return Some(Err(Broken(
                "a request of RXM with another limit of eager messages",
            )));
        }
        let port = u16::from_ne_bytes([p0, p1]);
        if port == 0 {
            return Some(Err(Broken(
                "a request of RXM from an endpoint that does not listen",
            )));
        }
        let (instance, connection) = halves(bytes);
        Some(Ok(Self {
            port,
            instance,
            connection,
        }))
    }
}

/// What an endpoint says that accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acceptance {
    /// Another number when the endpoint is started again.
    pub instance: u32,
    /// What packets to it must quote.
    pub connection: u32,
}

impl Acceptance {
    /// How many bytes it is.
    pub const BYTES: usize = 16;

    /// The bytes.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&id(self.instance, self.connection));
        bytes[8..12].copy_from_slice(&RECEIVES.to_ne_bytes());
        bytes[12] = FLOW_CONTROL_OFF;
        bytes
    }

    /// What these bytes say; `None` when they are of another length, and so of another dialect.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.as_array()?;
        let mut last = [0; 24];
        last[16..].copy_from_slice(&bytes[..8]);
        let (instance, connection) = halves(&last);
        Some(Self {
            instance,
            connection,
        })
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It is not said.
    Unspecified,
    /// The two do not understand each other.
    Refused,
    /// There is a connection already, or one that goes before.
    Connected,
}

impl Rejection {
    /// The bytes.
    #[must_use]
    pub fn encode(self) -> [u8; 2] {
        [GREETING, self as u8]
    }

    /// What these bytes say; `None` when they are of another length, and so of another dialect.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [GREETING, 1] => Some(Self::Refused),
            [GREETING, 2] => Some(Self::Connected),
            [GREETING, _] => Some(Self::Unspecified),
            _ => None,
        }
    }
}

fn id(instance: u32, connection: u32) -> [u8; 8] {
    (u64::from(instance) << 32 | u64::from(connection)).to_ne_bytes()
}

/// Instance and connection, of the last of these bytes.
fn halves(bytes: &[u8; 24]) -> (u32, u32) {
    let [.., i0, i1, i2, i3, i4, i5, i6, i7] = *bytes;
    let id = u64::from_ne_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
    ((id >> 32) as u32, id as u32)
}
