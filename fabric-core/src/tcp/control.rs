//! How a connection begins: one message each way, with a few bytes for those who talk over it.

use super::{Broken, Mark, Order, mark};

/// The most private data that a control message carries.
pub const PRIVATE_BYTES: usize = 256;

const HEADER: usize = 32;
const VERSION: u8 = 3;

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// Let us be connected.
    Request,
    /// We are.
    Accept,
    /// We are not.
    Refuse,
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// What it says.
    pub kind: ControlKind,
    /// The order its sender writes integers in; means nothing in a refusal.
    pub order: Order,
    /// What the endpoint of this library that sends it says of itself.
    pub mark: Option<Mark>,
    private: Vec<u8>,
}

impl Control {
    /// A message of this machine; `None` when the private data is longer than can be said.
    #[must_use]
    pub fn new(kind: ControlKind, private: &[u8]) -> Option<Self> {
        (private.len() <= PRIVATE_BYTES).then(|| Self {
            kind,
            order: Order::NATIVE,
            mark: None,
            private: private.to_vec(),
        })
    }

    /// The same with a mark, if there is to be one.
    #[must_use]
    pub fn marked(self, mark: Option<Mark>) -> Self {
        Self { mark, ..self }
    }

    /// What those who talk over the connection say in it.
    #[must_use]
    pub fn private(&self) -> &[u8] {
        &self.private
    }

    /// The bytes. They must leave in one write: a libfabric peer takes a header that comes in two
    /// parts for a broken one.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[0] = VERSION;
        bytes[1] = match self.kind {
            ControlKind::Request => 0,
            ControlKind::Accept => 1,
            ControlKind::Refuse => 6,
        };
        bytes[2..4].copy_from_slice(&(self.private.len() as u16).to_be_bytes());
        if self.kind != ControlKind::Refuse {
            bytes[24..32].copy_from_slice(&self.order.put_u64(1));
        }
        if let Some(mark) = self.mark {
            bytes[mark::AT].copy_from_slice(&mark.encode(self.kind));
        }
        bytes.extend_from_slice(&self.private);
        bytes
    }

    /// The message at the start of these bytes, and its length; `None` while some of it is missing.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Broken> {
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            // What is there can be wrong already.
            return if bytes.first().is_some_and(|version| *version != VERSION) {
                Err(OTHER)
            } else {
                Ok(None)
            };
        };
        let [version, kind, high, low, ..] = *header;
        if version != VERSION {
            return Err(OTHER);
        }
        let kind = match kind {
            0 => ControlKind::Request,
            1 => ControlKind::Accept,
            6 => ControlKind::Refuse,
            _ => return Err(Broken("a control message of an unknown kind")),
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if len > PRIVATE_BYTES {
            return Err(Broken("more private data than a control message carries"));
        }
        let mut probe = [0; 8];
        probe.copy_from_slice(&header[24..]);
        let order = match Order::of_probe(probe) {
            Some(order) => order,
            None if kind == ControlKind::Refuse => Order::NATIVE,
            None => return Err(Broken("a control message of unknown byte order")),
        };
        let Some(private) = bytes.get(HEADER..HEADER + len) else {
            return Ok(None);
        };
        let mark = Mark::decode(kind, &header[mark::AT]);
        Ok(Some((
            Self {
                kind,
                order,
                mark,
                private: private.to_vec(),
            },
            HEADER + len,
        )))
    }
}

const OTHER: Broken = Broken("a control message of another version");
