//! RPC and HTTP over [`fabric_async`]: shared memory and TCP in place of the sockets of tonic,
//! hyper, axum and tarpc.
//!
//! A service keeps its code, and the frameworks their protocols: HTTP/2, HTTP/1 and the messages of
//! tarpc travel over a [`FabricStream`](fabric_async::stream::FabricStream) or
//! [`FabricFrames`](fabric_async::stream::FabricFrames). Both sides use this library. The address
//! decides where the bytes go: `shm://name` for processes of one user on this machine,
//! `tcp://host:port` for others.
//!
//! | feature | server | client |
//! |---|---|---|
//! | `tonic` (0.14) | [`FabricIncoming`] for `serve_with_incoming_shutdown` | `FabricConnector` for `connect_with_connector` |
//! | `hyper` (1, with hyper-util) | [`FabricIncoming::accept`] | `FabricConnector` for the `Client` of hyper-util |
//! | `axum` (0.8) | [`FabricIncoming`] for `axum::serve` | that of `hyper` |
//! | `tarpc` (0.38) | `tarpc::listen` | `tarpc::connect` |
//!
//! The feature `native` adds the module `native`: calls that are messages of the fabric, without a
//! framework, for services of tower.
//!
//! No feature is on by default. [`guide`] shows each framework, and what changes for a service that
//! moves from sockets.

#[cfg(feature = "hyper")]
mod connector;
pub mod guide;
mod incoming;
mod io;
#[cfg(feature = "native")]
pub mod native;
#[cfg(feature = "tarpc")]
pub mod tarpc;

#[cfg(feature = "hyper")]
pub use connector::FabricConnector;
pub use incoming::FabricIncoming;
pub use io::{FabricConnectInfo, FabricIo};
