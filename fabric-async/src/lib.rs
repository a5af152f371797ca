//! libfabric's object model for Tokio: fabrics, domains, endpoints, completion queues, event
//! queues, address vectors, memory regions, counters and shared receive contexts as async objects,
//! over shared memory, TCP and UDP, in pure Rust.
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
//! # Requests and how they are posted
//!
//! [`Endpoint::send`], [`Endpoint::recv`] and the other operations return a request. The request is
//! posted in one of three ways:
//!
//! | call | the completion goes to | without credit |
//! |---|---|---|
//! | `.await` | the future: [`Done`] or [`Failed`], with the buffer | waits, in posting order |
//! | [`.start()?`](Request::start) | the returned [`Operation`], awaited later | [`Error::WouldBlock`] |
//! | [`.post()?`](Request::post) | the [`CompletionQueue`], with the [`context`](Request::context) | [`Error::WouldBlock`] |
//!
//! A future posts nothing until it is polled: `.await` posts with the first poll, `.start()` and
//! `.post()` post at once. So operations are posted in the order of their first polls: consecutive
//! `.await`s in program order, the futures of `join!` in the order written, those of `select!` in
//! random order. A branch of `select!` that `if` disables posts nothing.
//! [`send(..).inject()`](Request::inject) copies borrowed bytes, without a completion.
//!
//! A request is not a future yet: `.await`, `select!` and `timeout` turn it into one, as does
//! `.into_future()` where a future is required, as by `FuturesUnordered` or `std::pin::pin!`. That
//! [future](RequestFuture) borrows the endpoint; an [`Operation`] from `.start()?` borrows nothing
//! and can be passed to `tokio::spawn`.
//!
//! Dropping a future never loses a received message and never frees memory that is in use: see
//! [`guide::cancellation`].
//!
//! # Threads and process-wide state
//!
//! The crate creates the following, each when the first object that needs it is opened:
//!
//! | what | name | created | ends |
//! |---|---|---|---|
//! | a task on the current Tokio runtime, per domain | | when a domain with manual progress is opened, unless an [event loop](DomainBuilder::driven_by_event_loop) drives it | with the domain |
//! | a thread per domain | `fab-`, the provider and the domain's id: `fab-shm-7` | when a domain with [automatic progress](guide::progress) is opened | with the domain |
//! | up to 8 threads | `fab-close` | when the first descriptor that an `shm` peer has sent is closed: the peer can make `close` block | the first never, the others when idle |
//! | up to 4 threads | `fab-mr` | when memory is [registered asynchronously](Domain::alloc_async) | when no registration is pending |
//! | a spare eventfd. At `RLIMIT_NOFILE` the library closes it to make room for a descriptor from a peer | | when the first endpoint over `shm` is opened | never |
//! | a thread | `fab-linger` | when the first `tcp` connection closes with unsent bytes, to send them for up to 5 s | never |
//! | a thread per domain | `fab-uring-drop` | when a domain with io_uring closes while the kernel reads buffers of zero-copy sends | when the kernel has released them |
//! | a `pthread_atfork` handler | | with the first domain over `shm`, `tcp` or `udp` | never |
//! | a filter around the panic hook | | when the first domain with a driver task is opened | never |
//!
//! The handler counts forks, so that a forked child notifies no peer when it drops its copies of
//! the parent's objects. A forked child has none of the threads and must not use those copies: see
//! [fork](guide::errors#fork). The child starts its own `fab-close` and `fab-mr` when it needs the
//! threads, but no `fab-linger`: a child [flushes](Endpoint::flush) before it closes `tcp`
//! connections of its own.
//!
//! The filter hides one panic, by which Tokio reports a runtime without I/O, and passes all others
//! to the hook that was set before. A hook that the program sets later replaces the filter.
//!
//! Host names are resolved on Tokio's blocking threads. The crate reads the environment
//! variables `FI_PROVIDER` and `FABRIC_SOCKET_IO`: see [parameters](guide::defaults#environment).
//!
//! # The guide
//!
//! | chapter | subject |
//! |---|---|
//! | [`guide::overview`] | a summary: posting, dropping, memory limits, the death of a peer |
//! | [`guide::progress`] | which thread moves the bytes, and when none does |
//! | [`guide::wait_policy`] | spinning, parking, and what each costs |
//! | [`guide::threads`] | thread models: messages without locks, one domain for each core |
//! | [`guide::event_loops`] | waiting with epoll, without Tokio |
//! | [`guide::batching`] | batches, selective completion |
//! | [`guide::cancellation`] | what happens when a future is dropped |
//! | [`guide::memory`] | buffers, pools, loans, buffering limits, trust in peers |
//! | [`guide::ordering`] | order of messages, matching, fences, completion levels |
//! | [`guide::one_sided`] | memory regions, reads, writes, atomic operations |
//! | [`guide::backpressure`] | credits, queue entries, limits of receives |
//! | [`guide::client_server`] | a server and its clients, address handles, restarts, shared receives, tracing |
//! | [`guide::connected_endpoints`] | endpoints of type `FI_EP_MSG` |
//! | [`guide::streams`] | byte streams and frames in place of Tokio's sockets |
//! | [`guide::tcp`] | the `tcp` provider, libfabric peers, io_uring, sockets |
//! | [`guide::udp`] | the `udp` provider, datagrams, multicast |
//! | [`guide::errors`] | where failures are reported, `fi_errno` numbers, close, fork |
//! | [`guide::from_libfabric`] | the C call for each call here; what is not there |
//! | [`guide::defaults`] | default values, limits and their reasons |
//!
//! Read [`guide::overview`] first.

#![warn(missing_debug_implementations)]

pub mod async_mr;
pub mod atomic;
mod auto_traits;
mod av;
pub mod buf;
mod close;
mod counter;
mod cq;
mod discover;
mod domain;
mod domain_inner;
mod driver;
mod endpoint;
mod endpoint_inner;
mod eq;
pub mod extension;
mod fabric;
mod flush;
pub mod guide;
pub mod info;
mod io_driver;
mod loan;
mod local_mr;
mod mr;
mod multicast;
mod op;
mod open_domains;
pub mod ops;
mod passive;
mod raw_key;
mod registered;
mod registration;
mod remote_region;
mod resolve;
pub mod resource_domain;
pub mod stats;
pub mod stream;
pub mod thread_model;
mod try_wait;
mod window;

pub use av::{AddressVector, ToAddress};
pub use close::CloseError;
pub use counter::Counter;
pub use cq::CompletionQueue;
pub use discover::discover;
pub use domain::{Domain, DomainBuilder};
pub use endpoint::{
    BindOptions, Connect, ConnectedEndpoint, Endpoint, EndpointBuilder, SharedRxContext,
    SharedRxContextBuilder,
};
pub use eq::{EventQueue, EventWriter};
pub use fabric::Fabric;
pub use mr::{Allocated, MemoryRegion};
pub use multicast::MulticastGroup;
pub use op::{
    AsEndpoint, BatchError, CancelOutcome, Claimed, Message, MultiRecv, Operation, Permit,
    PostedMultiRecv, Request, RequestFuture,
};
pub use passive::{ConnectionRequest, PassiveEndpoint, PassiveEndpointBuilder};
pub use registered::{RegisteredBuffer, RegisteredGuard};
pub use remote_region::{RemoteAddr, RemoteRegion, RemoteSlice};
pub use resolve::resolve;
pub use try_wait::TryWait;
pub use window::RemoteWindow;

pub use fabric_core::buf::{Loan, LoanedBuf, PooledBuf};
pub use fabric_core::completion::{Completion, Done, Failed, OpKind, Transfer};
pub use fabric_core::event::{DownReason, Event, EventKind};
pub use fabric_core::flags::{Access, Caps, CounterBind, CqBind, OpFlags};
pub use fabric_core::info::{EpType, Hints, Info, Progress, Protocol, Scope};
pub use fabric_core::transport::{MAX_PRIVATE_DATA, SocketIo, WaitPolicy};
pub use fabric_core::tree::{Children, Class};
pub use fabric_core::{
    Address, Error, FiAddr, RefusalReason, Resource, Result, Scheme, SocketOptions,
};
pub use fabric_reactor::WaitFd;
