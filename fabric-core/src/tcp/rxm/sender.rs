//! Prefixes of what is sent.

use super::{ATOMIC_IOV_LEN, ATOMIC_STATUS_LEN, AtomicHeader, PacketKind, RxmPacket};
use crate::tcp::WireRmaIov;

/// The sending half of a connection.
#[derive(Clone, Copy, Debug)]
pub struct RxmSender {
    /// What the peer has said that packets to it must quote.
    connection: u32,
}

impl RxmSender {
    /// To a peer that packets must quote this to.
    #[must_use]
    pub fn new(connection: u32) -> Self {
        Self { connection }
    }

    /// A whole message.
    #[must_use]
    pub fn eager(&self, tag: Option<u64>, data: Option<u64>, len: usize) -> RxmPacket {
        self.packet(PacketKind::Eager, 0, (tag, data), len as u64)
    }

    /// Where a message lies, which has the number that is the key there.
    #[must_use]
    pub fn rendezvous(&self, row: WireRmaIov, tag: Option<u64>, data: Option<u64>) -> RxmPacket {
        self.packet(PacketKind::Rendezvous, row.key, (tag, data), row.len)
    }

    /// A message of this number has been read.
    #[must_use]
    pub fn rendezvous_done(&self, message: u64) -> RxmPacket {
        self.packet(PacketKind::RendezvousDone, message, (None, None), 0)
    }

    /// An atomic operation of this number, with so many bytes of operands.
    #[must_use]
    pub fn atomic(&self, number: u64, atomic: AtomicHeader, operands: usize) -> RxmPacket {
        self.packet(
            PacketKind::Atomic(atomic),
            number,
            (None, None),
            (ATOMIC_IOV_LEN + operands) as u64,
        )
    }

    /// What has come of the atomic operation of this number, with so many bytes that were fetched.
    #[must_use]
    pub fn atomic_response(&self, number: u64, atomic: AtomicHeader, fetched: usize) -> RxmPacket {
        let kind = PacketKind::AtomicResponse(atomic.for_response());
        self.packet(
            kind,
            number,
            (None, None),
            (ATOMIC_STATUS_LEN + fetched) as u64,
        )
    }

    fn packet(
        &self,
        kind: PacketKind,
        message: u64,
        (tag, data): (Option<u64>, Option<u64>),
        len: u64,
    ) -> RxmPacket {
        RxmPacket {
            kind,
            connection_id: self.connection,
            message_id: message,
            tag,
            data,
            len,
        }
    }
}
