//! Objects, rules and protocols of the fabric: what a transport must do, how hints are negotiated,
//! how messages are matched. No I/O, no system calls, no runtime, no clock.
//!
//! | module | subject |
//! |---|---|
//! | [`info`], [`flags`] | attributes, capabilities, negotiation |
//! | [`tree`] | objects, parents, child counts, dependencies |
//! | [`address`], [`host`], [`av`] | addresses, host names, address vectors |
//! | [`buf`] | owned buffers, gather and scatter, buffer pool, loans |
//! | [`completion`], [`event`], [`extension`] | what operations, domains and providers report |
//! | [`matching`], [`rx`] | which receive takes which message, and where its bytes go |
//! | [`mr`], [`atomic`] | memory regions, keys, access checks; atomic operations |
//! | [`sockets`] | socket options |
//! | [`error`], [`stats`] | errors; counters of operations |
//! | [`transport`] | the traits between the progress engine and a transport |
//! | [`tcp`] | libfabric's TCP protocols, without sockets |

#![warn(missing_debug_implementations)]

pub mod address;
pub mod atomic;
pub mod av;
pub mod buf;
pub mod completion;
pub mod error;
pub mod event;
pub mod extension;
pub mod flags;
pub mod host;
pub mod info;
pub mod matching;
pub mod mr;
mod op;
pub mod rx;
pub mod sockets;
pub mod stats;
pub mod tcp;
pub mod transport;
pub mod tree;

pub use address::{Address, FiAddr, Scheme};
pub use error::{Error, RefusalReason, Resource, Result};
pub use sockets::SocketOptions;
