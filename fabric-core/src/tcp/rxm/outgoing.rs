//! Prefixes of what is sent.

use super::{Atomic, PLACES, Packet, PacketKind, STATUS};
use crate::tcp::Row;

/// The sending half of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// What the peer has said that packets to it must quote.
    connection: u32,
}

impl Outgoing {
    /// To a peer that packets must quote this to.
    #[must_use]
    pub fn new(connection: u32) -> Self {
        Self { connection }
    }

    /// A whole message.
    #[must_use]
    pub fn eager(&self, tag: Option<u64>, data: Option<u64>, len: usize) -> Packet {
        self.packet(PacketKind::Eager, 0, (tag, data), len as u64)
    }

    /// Where a message lies, which has the number that is the key there.
    #[must_use]
    pub fn offer(&self, row: Row, tag: Option<u64>, data: Option<u64>) -> Packet {
        self.packet(PacketKind::Offer, row.key, (tag, data), row.len)
    }

    /// A message of this number has been read.
    #[must_use]
    pub fn done(&self, message: u64) -> Packet {
        self.packet(PacketKind::Done, message, (None, None), 0)
    }

    /// An atomic operation of this number, with so many bytes of operands.
    #[must_use]
    pub fn atomic(&self, number: u64, atomic: Atomic, operands: usize) -> Packet {
        self.packet(
            PacketKind::Atomic(atomic),
            number,
            (None, None),
            (PLACES + operands) as u64,
        )
    }

    /// What has come of the atomic operation of this number, with so many bytes that were fetched.
    #[must_use]
    pub fn response(&self, number: u64, atomic: Atomic, fetched: usize) -> Packet {
        let kind = PacketKind::Response(atomic.answered());
        self.packet(kind, number, (None, None), (STATUS + fetched) as u64)
    }

    fn packet(
        &self,
        kind: PacketKind,
        message: u64,
        (tag, data): (Option<u64>, Option<u64>),
        len: u64,
    ) -> Packet {
        Packet {
            kind,
            connection: self.connection,
            message,
            tag,
            data,
            len,
        }
    }
}
