//! Operations of a [`Request`](crate::Request), the futures of probes, claims and reservations, the
//! items of a [`MultiRecv`](crate::MultiRecv), and the traits that decide which modifiers each
//! operation has.
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
    AwaitableOp, BatchOp, BufferOp, BytesOp, ClaimOp, ClaimedRecvOp, Claiming, DataOp, DeliveryOp,
    InjectOp, MatchingOp, MessageOp, MessageSlice, MultiRecvOp, Op, PermitSendOp, ProbeOp, Probing,
    QueuedOp, ReadFrom, ReadOp, RecvOp, Reserving, SelectiveOp, SendOp, TaggedOp, TransmitOp,
    WriteOp, WriteTo,
};
