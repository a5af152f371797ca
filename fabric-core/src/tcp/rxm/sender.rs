//! Packet headers of sent messages.

use super::{ATOMIC_IOV_LEN, ATOMIC_STATUS_LEN, AtomicHeader, PacketKind, RxmPacket};
use crate::tcp::WireRmaIov;

/// The RXM part of a connection's sending half.
#[derive(Clone, Copy, Debug)]
pub struct RxmSender {
    /// Connection id that the peer expects in packets.
    connection: u32,
}

impl RxmSender {
    /// Returns the sender of a connection with this remote connection id.
    #[must_use]
    pub fn new(connection: u32) -> Self {
        Self { connection }
    }

    /// Returns the packet of a whole message.
    #[must_use]
    pub fn eager(&self, tag: Option<u64>, data: Option<u64>, len: usize) -> RxmPacket {
        self.packet(PacketKind::Eager, 0, (tag, data), len as u64)
    }

    /// Returns the packet with the location of a rendezvous message, whose id is the key of the
    /// remote range.
    #[must_use]
    pub fn rendezvous(&self, iov: WireRmaIov, tag: Option<u64>, data: Option<u64>) -> RxmPacket {
        self.packet(PacketKind::Rendezvous, iov.key, (tag, data), iov.len)
    }

    /// Returns the packet that reports that the message with this id has been read.
    #[must_use]
    pub fn rendezvous_done(&self, message_id: u64) -> RxmPacket {
        self.packet(PacketKind::RendezvousDone, message_id, (None, None), 0)
    }

    /// Returns the packet of an atomic operation with this id and `operands` bytes of operands.
    #[must_use]
    pub fn atomic(&self, id: u64, atomic: AtomicHeader, operands: usize) -> RxmPacket {
        self.packet(
            PacketKind::Atomic(atomic),
            id,
            (None, None),
            (ATOMIC_IOV_LEN + operands) as u64,
        )
    }

    /// Returns the packet of the response to the atomic operation with this id, with `fetched`
    /// bytes of values.
    #[must_use]
    pub fn atomic_response(&self, id: u64, atomic: AtomicHeader, fetched: usize) -> RxmPacket {
        let kind = PacketKind::AtomicResponse(atomic.for_response());
        self.packet(kind, id, (None, None), (ATOMIC_STATUS_LEN + fetched) as u64)
    }

    fn packet(
        &self,
        kind: PacketKind,
        message_id: u64,
        (tag, data): (Option<u64>, Option<u64>),
        len: u64,
    ) -> RxmPacket {
        RxmPacket {
            kind,
            connection_id: self.connection,
            message_id,
            tag,
            data,
            len,
        }
    }
}
