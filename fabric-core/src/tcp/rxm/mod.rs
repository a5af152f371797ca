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
mod fetch;
mod greeting;
mod incoming;
mod offer;
mod outgoing;
mod packet;

pub use atomic::{Atomic, MOST_OPERANDS, Status};
pub use fetch::{Fetch, WINDOW};
pub use greeting::{Acceptance, Rejection, Request};
pub use incoming::{Incoming, MESSAGES_IN_SEGMENTS};
pub use outgoing::Outgoing;
pub use packet::{EAGER, PREFIX, Packet, PacketKind, Step};

pub(crate) use atomic::{PLACES, STATUS, decode_places, encode_place, operands};
pub(crate) use offer::{OFFER, decode as decode_offer, encode as encode_offer};
