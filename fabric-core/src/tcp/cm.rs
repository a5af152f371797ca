//! Connection management messages: a request and its reply, each with private data of the endpoint
//! or program.

use super::{ByteOrder, ProtocolViolation, VendorExtension, vendor_extension};

/// Maximum length of the private data of a control message, in bytes.
pub const MAX_CM_PRIVATE_DATA: usize = 256;

/// Length of the header of a control message, in bytes.
const HEADER_LEN: usize = 32;
const VERSION: u8 = 3;

/// Type of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmKind {
    /// Connection request.
    Request,
    /// Acceptance.
    Accept,
    /// Rejection.
    Reject,
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmMessage {
    /// Type of the message.
    pub kind: CmKind,
    /// Byte order of the sender's integers; unused in a rejection.
    pub byte_order: ByteOrder,
    /// Vendor extension of the sender; `None` if the sender included none in the header.
    pub vendor_extension: Option<VendorExtension>,
    private_data: Vec<u8>,
}

impl CmMessage {
    /// Builds a message of this machine; `None` when the private data are longer than
    /// [`MAX_CM_PRIVATE_DATA`].
    #[must_use]
    pub fn new(kind: CmKind, private: &[u8]) -> Option<Self> {
        (private.len() <= MAX_CM_PRIVATE_DATA).then(|| Self {
            kind,
            byte_order: ByteOrder::NATIVE,
            vendor_extension: None,
            private_data: private.to_vec(),
        })
    }

    /// Returns the message with this vendor extension, or without one.
    #[must_use]
    pub fn with_vendor_extension(self, extension: Option<VendorExtension>) -> Self {
        Self {
            vendor_extension: extension,
            ..self
        }
    }

    /// Returns the private data of the message.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Encodes the message. The bytes must be sent in one write: a libfabric peer rejects a header
    /// that arrives in two parts.
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
        if let Some(extension) = self.vendor_extension {
            bytes[vendor_extension::EXTENSION_RANGE].copy_from_slice(&extension.encode(self.kind));
        }
        bytes.extend_from_slice(&self.private_data);
        bytes
    }

    /// Parses the message at the start of `bytes`; returns it with its length, or `None` when it is
    /// incomplete.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when the message is malformed.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, ProtocolViolation> {
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            // An incomplete header may already be malformed.
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
            _ => return Err(ProtocolViolation("unknown type of control message")),
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if len > MAX_CM_PRIVATE_DATA {
            return Err(ProtocolViolation(
                "control message with more than 256 bytes of private data",
            ));
        }
        let mut probe = [0; 8];
        probe.copy_from_slice(&header[24..]);
        let order = match ByteOrder::from_probe(probe) {
            Some(order) => order,
            None if kind == CmKind::Reject => ByteOrder::NATIVE,
            None => return Err(ProtocolViolation("control message of unknown byte order")),
        };
        let Some(private) = bytes.get(HEADER_LEN..HEADER_LEN + len) else {
            return Ok(None);
        };
        let extension = VendorExtension::decode(kind, &header[vendor_extension::EXTENSION_RANGE]);
        Ok(Some((
            Self {
                kind,
                byte_order: order,
                vendor_extension: extension,
                private_data: private.to_vec(),
            },
            HEADER_LEN + len,
        )))
    }
}

const VERSION_MISMATCH: ProtocolViolation =
    ProtocolViolation("control message of an unsupported version");
