//! A Tokio-native fabric: libfabric's object model (fabric, domain, endpoint, completion queue,
//! event queue, address vector, memory region, counter, shared receive context) as async objects,
//! over shared memory, tcp and udp, with nothing to install.
//!
//! ```
//! use fabric_async::{Endpoint, Result};
//!
//! #[tokio::main]
//! async fn main() -> Result<()> {
//!     let server = Endpoint::bind("shm://").await?;
//!     let client = Endpoint::bind("shm://").await?;
//!     let peer = client.add_peer(server.name()).await?;
//!     tokio::spawn(async move {
//!         let msg = server.recv().await?;
//!         server.send(msg.source()?, msg.into_bytes()).await?;
//!         Ok::<_, fabric_async::Error>(())
//!     });
//!     client.send(peer, "hello, fabric").await?;
//!     let reply = client.recv().await?;
//!     assert_eq!(&reply[..], b"hello, fabric");
//!     Ok(())
//! }
//! ```
//!
//! # One verb, three endings
//!
//! [`Endpoint::send`] and [`Endpoint::recv`] make a request. It is posted by its ending, in program
//! order:
//!
//! | ending | who hears of the completion | without credit |
//! |---|---|---|
//! | `.await` | the future: [`Done`] or [`Failed`], with the buffer | waits, in order |
//! | [`.start()?`](SendRequest::start) | the returned [`Operation`], awaited later | [`Error::WouldBlock`] |
//! | [`.post()?`](SendRequest::post) | the [`CompletionQueue`], with the [`context`](SendRequest::context) | [`Error::WouldBlock`] |
//!
//! A request is no future yet: `.await`, `select!` and `timeout` make one of it. Where a future is
//! asked for, as by `FuturesUnordered` or `tokio::spawn`, `.start()?` gives an [`Operation`], which
//! borrows nothing; `.into_future()` makes one that may wait for credit.
//!
//! Dropping a future never loses a message and never frees memory that is in use: see
//! [`guide::cancellation`].
//!
//! # Where to read on
//!
//! [`guide`] has the chapters: progress, waiting, batches, cancellation, memory, one-sided
//! operations, ordering, backpressure, servers, connected endpoints, tcp, udp, errors, coming from
//! libfabric, defaults.

mod av;
mod close;
mod counter;
mod cq;
mod discover;
mod domain;
mod driver;
mod endpoint;
mod eq;
mod fabric;
mod flush;
pub mod guide;
mod io_driver;
mod mr;
mod multicast;
mod op;
mod passive;
mod registered;
mod resolve;
mod thread_model;
mod window;

pub use av::{AddressVector, ToAddress};
pub use close::CloseError;
pub use counter::Counter;
pub use cq::CompletionQueue;
pub use discover::discover;
pub use domain::{Domain, DomainBuilder};
pub use endpoint::{
    BindOptions, Connect, Endpoint, EndpointBuilder, SharedRxContext, SharedRxContextBuilder,
};
pub use eq::EventQueue;
pub use fabric::Fabric;
pub use mr::{Allocated, MemoryRegion, RegionBuf, RemoteAddr, RemoteRegion, RemoteSlice};
pub use multicast::MulticastGroup;
pub use op::{
    AtomicMode, AtomicOperation, AtomicRequest, BatchError, Batchable, CancelOutcome, Claim,
    Claimed, ClaimedRecvRequest, Fetching, LendOperation, LendRequest, Message, MessageSlice,
    MultiRecv, MultiRecvRequest, NoFetch, Operation, Permit, PostedMultiRecv, Probe, ReadRequest,
    RecvRequest, Reserve, SendRequest, WriteRequest,
};
pub use passive::{ConnectionRequest, PassiveEndpoint, PassiveEndpointBuilder};
pub use registered::{RegisteredBuffer, RegisteredGuard};
pub use resolve::resolve;
pub use thread_model::{Shared, ThreadModel};
pub use window::RemoteWindow;

pub use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicType, AtomicValues, Datatype};
pub use fabric_core::buf::{
    AnyBuf, CustomBuf, FlatBuf, Gather, IoBuf, IoBufMut, Loan, LoanedBuf, Payload, PooledBuf,
    Scatter,
};
pub use fabric_core::completion::{Completion, Done, Failed, OpKind, Transfer};
pub use fabric_core::event::{DownReason, Event, EventKind};
pub use fabric_core::flags::{Access, Caps, CounterBind, CqBind, Mode, MrMode, MsgOrder, OpFlags};
pub use fabric_core::info::{
    AddrFormat, AvType, DomainAttr, EpAttr, EpType, FabricAttr, Hints, Info, Mismatch, NoMatch,
    Progress, Protocol, ResourceMgmt, RxAttr, SHARED_CONTEXT, Threading, TrafficClass, TxAttr,
    Version,
};
pub use fabric_core::stats::{DomainStats, EndpointStats, OpStats};
pub use fabric_core::transport::{MAX_PRIVATE_DATA, SocketIo};
pub use fabric_core::tree::{Children, Class};
pub use fabric_core::{
    Address, Error, FiAddr, RejectReason, Resource, Result, Scheme, SocketOptions,
};
pub use fabric_reactor::WaitPolicy;
