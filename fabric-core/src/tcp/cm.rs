//! How a connection begins: one message each way, with a few bytes for those who talk over it.

use super::{ByteOrder, ProtocolViolation, VendorExtension, vendor_extension};

/// The most private data that a control message carries.
pub const MAX_CM_PRIVATE_DATA: usize = 256;

const HEADER_LEN: usize = 32;
const VERSION: u8 = 3;

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmKind {
    /// Let us be connected.
    Request,
    /// We are.
    Accept,
    /// We are not.
    Reject,
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmMessage {
    /// What it says.
    pub kind: CmKind,
    /// The order its sender writes integers in; means nothing in a refusal.
    pub byte_order: ByteOrder,
    /// What the endpoint of this library that sends it says of itself.
    pub vendor_extension: Option<VendorExtension>,
    private_data: Vec<u8>,
}

impl CmMessage {
    /// A message of this machine; `None` when the private data is longer than can be said.
    #[must_use]
    pub fn new(kind: CmKind, private: &[u8]) -> Option<Self> {
        (private.len() <= MAX_CM_PRIVATE_DATA).then(|| Self {
            kind,
            byte_order: ByteOrder::NATIVE,
            vendor_extension: None,
            private_data: private.to_vec(),
        })
    }

    /// The same with a mark, if there is to be one.
    #[must_use]
    pub fn with_vendor_extension(self, mark: Option<VendorExtension>) -> Self {
        Self {
            vendor_extension: mark,
            ..self
        }
    }

    /// What those who talk over the connection say in it.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The bytes. They must leave in one write: a libfabric peer takes a header that comes in two
    /// parts for a broken one.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[0] = VERSION;
        bytes[1] = match self.kind {
            CmKind::Request => 0,
            CmKind::Accept => 1,
            CmKind::Reject => 6,
        };
        bytes[2..4].copy_from_slice(&(self.private_data.len() as u16).to_be_bytes());
        if self.kind != CmKind::Reject {
            bytes[24..32].copy_from_slice(&self.byte_order.encode_u64(1));
        }
        if let Some(mark) = self.vendor_extension {
            bytes[vendor_extension::EXTENSION_RANGE].copy_from_slice(&mark.encode(self.kind));
        }
        bytes.extend_from_slice(&self.private_data);
        bytes
    }

    /// The message at the start of these bytes, and its length; `None` while some of it is missing.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, ProtocolViolation> {
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            // What is there can be wrong already.
            return if bytes.first().is_some_and(|version| *version != VERSION) {
                Err(VERSION_MISMATCH)
            } else {
                Ok(None)
            };
        };
        let [version, kind, high, low, ..] = *header;
        if version != VERSION {
            return Err(VERSION_MISMATCH);
        }
        let kind = match kind {
            0 => CmKind::Request,
            1 => CmKind::Accept,
            6 => CmKind::Reject,
            _ => return Err(ProtocolViolation("a control message of an unknown kind")),
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if len > MAX_CM_PRIVATE_DATA {
            return Err(ProtocolViolation(
                "more private data than a control message carries",
            ));
        }
        let mut probe = [0; 8];
        probe.copy_from_slice(&header[24..]);
        let order = match ByteOrder::from_probe(probe) {
            Some(order) => order,
            None if kind == CmKind::Reject => ByteOrder::NATIVE,
            None => return Err(ProtocolViolation("a control message of unknown byte order")),
        };
        let Some(private) = bytes.get(HEADER_LEN..HEADER_LEN + len) else {
            return Ok(None);
        };
        let mark = VendorExtension::decode(kind, &header[vendor_extension::EXTENSION_RANGE]);
        Ok(Some((
            Self {
                kind,
                byte_order: order,
                vendor_extension: mark,
                private_data: private.to_vec(),
            },
            HEADER_LEN + len,
        )))
    }
}

const VERSION_MISMATCH: ProtocolViolation =
    ProtocolViolation("a control message of another version");
