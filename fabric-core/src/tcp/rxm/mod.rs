//! The other dialect: what libfabric's `tcp;ofi_rxm` says over a connection of the tcp provider.
//!
//! | file | subject |
//! |---|---|
//! | `greeting` | what endpoints say of themselves when a connection begins |
//! | `packet` | the prefix that every message has |
//! | `atomic` | atomic operations and what is said to them: the codec |
//! | `offer` | memory of the sender's that the receiver is to read: the codec |
//! | `fetch` | the receiver reads it, piece by piece |
//! | `incoming` | what has come of messages in segments and of those that are fetched |
//! | `outgoing` | prefixes of what is sent |
//!
//! A short message is one packet. A longer one comes in segments, or is offered: a packet says
//! where it lies with its sender, the receiver reads it with one-sided reads, and says so when it
//! has it. Which way is up to the sender. Here it is always the latter: libfabric 1.17 does not
//! take segments over this provider.
//!
//! An atomic operation is a packet, and so is the response to it, which every one has. They bear a
//! number that the asking side chooses. Reads and writes are frames, as in the native dialect.
//!
//! Integers are in the order of both machines: those of different orders do not get as far as
//! packets.

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
pub(crate) use rendezvous::{RENDEZVOUS_LEN, decode as decode_offer, encode as encode_offer};
