//! Byte order of the integers on a connection.

/// Byte order of integers in headers. Each side announces its own when the connection is set up. If
/// both are the same, that byte order is used, else network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// Byte order of this machine.
    pub const NATIVE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    /// Returns the byte order of a machine that encodes the integer 1 as `probe`; `None` if `probe`
    /// is not a 1.
    #[must_use]
    pub fn from_probe(probe: [u8; 8]) -> Option<Self> {
        match (u64::from_le_bytes(probe), u64::from_be_bytes(probe)) {
            (1, _) => Some(Self::Little),
            (_, 1) => Some(Self::Big),
            _ => None,
        }
    }

    /// Returns the byte order of a connection between machines of these byte orders.
    #[must_use]
    pub fn negotiate(self, other: Self) -> Self {
        if self == other { self } else { Self::Big }
    }

    pub(super) fn decode_u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    pub(super) fn decode_u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) fn encode_u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    pub(super) fn encode_u16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}
