//! Operations of a [`Request`](crate::Request), and the traits that decide which modifiers each
//! has.
//!
//! [`RemoteAtomicOp`](crate::atomic::RemoteAtomicOp) is in module `atomic`. Name these types where
//! a function takes or returns a request. The traits are sealed.
//!
//! ```
//! use fabric_async::ops::SendOp;
//! use fabric_async::{Endpoint, FiAddr, Request};
//!
//! fn reply(ep: &Endpoint, to: FiAddr, text: String) -> Request<'_, SendOp, String> {
//!     ep.send(to, text).tag(7)
//! }
//! ```

pub use crate::op::{
    AwaitableOp, BatchOp, BufferOp, BytesOp, ClaimOp, ClaimedRecvOp, DataOp, DeliveryOp, InjectOp,
    MatchingOp, MessageOp, MultiRecvOp, Op, PermitSendOp, ProbeOp, QueuedOp, ReadFrom, ReadOp,
    RecvOp, SelectiveOp, SendOp, TaggedOp, TransmitOp, WriteOp, WriteTo,
};
