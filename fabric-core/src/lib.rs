//! The contract of the fabric and its pure logic: what an object is, what a provider must do, how
//! hints are negotiated and how messages are matched. No I/O, no system calls, no runtime, no
//! clock.
//!
//! | room | subject |
//! |---|---|
//! | [`info`], [`flags`] | what can be asked for, what is offered, and who refuses what |
//! | [`tree`] | objects, parents, child counts |
//! | [`address`], [`host`], [`av`] | addresses as text, and as numbers in a vector |
//! | [`buf`] | owned buffers that may be lent to an operation |
//! | [`completion`], [`event`] | what an operation or a domain reports |
//! | [`matching`], [`rx`] | which receive gets which message, and where its bytes go |
//! | [`mr`], [`atomic`] | memory that peers reach, and what atomic operations compute |
//! | [`sockets`] | what can be set on sockets |
//! | [`error`], [`stats`] | what can go wrong, and what was done |
//! | [`provider`] | the traits between the progress engine and a provider |
//! | [`sim`] | a provider inside one process with seeded delay and reordering |
//! | [`tcp`] | what is spoken over TCP, without sockets |

pub mod address;
pub mod atomic;
pub mod av;
pub mod buf;
pub mod completion;
pub mod error;
pub mod event;
pub mod flags;
pub mod host;
pub mod info;
pub mod matching;
pub mod mr;
pub mod rx;
pub mod sim;
pub mod sockets;
pub mod stats;
pub mod tcp;
pub mod transport;
pub mod tree;

pub use address::{Address, FiAddr, Scheme};
pub use error::{Error, RejectReason, Resource, Result};
pub use sockets::SocketOptions;
