//! libfabric's tcp protocols without sockets: codecs and the state machine of a connection.
//!
//! | file | subject |
//! |---|---|
//! | `byte_order` | byte order of a connection's integers |
//! | `cm` | connection management messages: request, acceptance, rejection |
//! | `vendor_extension` | capabilities of the peer, and how they are negotiated |
//! | `native` | private data of `FI_EP_RDM` endpoints, and simultaneous connects |
//! | `protocol` | native protocol or RXM |
//! | `frame`, `rma_iov` | header of a frame; its remote ranges |
//! | `frame_reader` | the receiving half of a connection: bytes to messages |
//! | `frame_writer` | the sending half of a connection: messages to bytes |
//! | `pending` | requests of this side without a response |
//! | `responder`, `writes`, `atomics` | accesses of the peer to memory of this side |
//! | `rendezvous` | messages of this side that the peer reads from their buffers |
//! | `rxm` | the RXM protocol |
//!
//! Nothing in this module reads or writes a socket, or waits: the tcp transport passes received
//! bytes to a [`FrameReader`], and sends the bytes of a [`FrameWriter`].
//!
//! Control messages and frames have version 3, as in libfabric 1.8 and all later releases.

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
pub use frame_reader::{FrameReader, MAX_MESSAGE, ReadOutcome, StopReason, UnexpectedPolicy};
pub use frame_writer::FrameWriter;
pub use native::{ExistingConnection, RdmCmData, Resolution, resolve_simultaneous_connect};
pub use pending::PendingRequests;
pub use protocol::{ConnectReply, ConnectRequest, Negotiated, WireProtocol};
pub use rendezvous::RendezvousSends;
pub use responder::{ResponseQueue, ResponseStatus};
pub use rma_iov::{MAX_RMA_IOV, RmaIovList, WireRmaIov};
pub use vendor_extension::{PeerCaps, Supported, VendorExtension};

/// Violation of the protocol by the peer, described by the text. A violation ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolViolation(pub &'static str);
