//! Atomic operations on memory of peers (`fi_atomic(3)`): operations, types and values.
//!
//! [`Endpoint::atomic`](crate::Endpoint::atomic) and the calls beside it create the requests.

pub use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicType, AtomicValues, Datatype};

pub use crate::op::{AtomicMode, AtomicOperation, Fetching, NoFetch, RemoteAtomicOp};
