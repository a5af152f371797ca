//! RXM: the protocol of libfabric's `tcp;ofi_rxm` over a connection of the tcp provider.
//!
//! | file | subject |
//! |---|---|
//! | `cm` | private data of a connection request and its reply |
//! | `packet` | codec of the packet header |
//! | `atomic` | codec of atomic operations and their responses |
//! | `rendezvous` | codec of a message's location in the sender's memory |
//! | `rendezvous_read` | a rendezvous message that the receiver reads in pieces |
//! | `receiver` | segmented and rendezvous messages that are arriving |
//! | `sender` | packet headers of sent messages |
//!
//! Connections and frames are those of the native protocol. A message is a packet within a frame. A
//! short message is one packet. A longer one comes in segments, or is a rendezvous message: a
//! packet says where the message is in the sender's memory, and the receiver reads the message with
//! RMA reads and reports the end of the last read. The sender chooses between the two. This library
//! sends every message above 16 KiB as a rendezvous message. It accepts segments and never sends
//! them: libfabric 1.17's provider `net` accepts segments, `tcp` does not, and nothing in the
//! handshake tells which of the two the peer uses.
//!
//! An atomic operation is a packet, and so is its response. They carry an id that the initiator
//! chooses. Reads and writes are frames, as in the native protocol.
//!
//! Integers are in native byte order: a peer of the other byte order is rejected in the handshake.

mod atomic;
mod cm;
mod packet;
mod receiver;
mod rendezvous;
mod rendezvous_read;
mod sender;

pub use atomic::{AtomicHeader, AtomicStatus, MAX_OPERAND_BYTES};
pub use cm::{RxmAccept, RxmConnect, RxmReject};
pub use packet::{EAGER_LIMIT, PACKET_HEADER_LEN, PacketKind, RxmPacket, SegmentType};
pub use receiver::{MAX_SEGMENTED_MESSAGES, RxmReceiver};
pub use rendezvous_read::{MAX_READS_IN_FLIGHT, RendezvousRead};
pub use sender::RxmSender;

pub(crate) use atomic::{
    ATOMIC_IOV_LEN, ATOMIC_STATUS_LEN, decode_rma_iovs, encode_rma_iov, operand_bytes,
};
pub(crate) use rendezvous::{
    RENDEZVOUS_LEN, decode as decode_rendezvous, encode as encode_rendezvous,
};
