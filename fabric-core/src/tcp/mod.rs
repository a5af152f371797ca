//! What libfabric's tcp provider speaks, without sockets: codecs and the logic of a connection.
//!
//! | file | subject |
//! |---|---|
//! | `order` | in which order the peer writes its integers |
//! | `control` | how a connection begins: request, acceptance, refusal |
//! | `mark` | what a peer is known to take, and how connected endpoints say it |
//! | `native` | what endpoints without connections of their own say in it, and who may keep a connection |
//! | `dialect` | which of two dialects they speak |
//! | `frame`, `rows` | the header of everything that follows; the places that one-sided operations name |
//! | `inbox` | a stream of bytes becomes messages; those of the other dialect, and where they wait |
//! | `outbox` | messages become a stream of bytes |
//! | `asked` | what this side has asked of the peer, and has not heard of |
//! | `serving`, `writes`, `atomics` | what the peer does to memory of this side: answers to its reads; its writes as they arrive; its atomic operations |
//! | `offers` | messages of this side that the peer may read where they lie |
//! | `rxm` | the other dialect |
//!
//! Control version 3 and data version 3: in use since libfabric 1.8, and between endpoints of both
//! ages.

mod atomics;
mod byte_order;
mod cm;
mod frame;
mod frame_reader;
mod frame_writer;
mod native;
mod pending;
mod protocol;
mod rendezvous;
mod responder;
mod rma_iov;
pub mod rxm;
mod vendor_extension;
mod writes;

pub use byte_order::ByteOrder;
pub use cm::{CmKind, CmMessage, MAX_CM_PRIVATE_DATA};
pub use frame::{AckDue, Frame, FrameKind, MAX_HEADER_LEN, RmaNack};
pub use frame_reader::{FrameReader, MAX_MESSAGE, ReadOutcome, UnexpectedPolicy};
pub use frame_writer::FrameWriter;
pub use native::{ExistingConnection, RdmCmData, Resolution, resolve_simultaneous_connect};
pub use pending::PendingRequests;
pub use protocol::{ConnectReply, ConnectRequest, Negotiated, WireProtocol};
pub use rendezvous::RendezvousSends;
pub use responder::{ResponseQueue, ResponseStatus};
pub use rma_iov::{MAX_RMA_IOV, RmaIovList, WireRmaIov};
pub use vendor_extension::{PeerCaps, Supported, VendorExtension};

/// The peer said what it must not: why its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolViolation(pub &'static str);
