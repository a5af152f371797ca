//! Guide: services over the fabric.
//!
//! After this chapter you can move a service of tonic, hyper, axum or tarpc from a socket to shared
//! memory or to the fabric's TCP, and back, and write one with native calls.
//!
//! The fabric takes the place of the socket, and nothing else: the protocols, the generated code,
//! the layers of tower and the timeouts stay. [`FabricIncoming`] accepts, and `FabricConnector`
//! connects. Both sides must use this library: a client of a plain TCP socket cannot connect. For
//! how the bytes travel, see [`fabric_async::guide::streams`].
//!
//! # tonic
//!
//! Two lines change: the listener of the server, and the connector of the client.
//!
//! ```
//! # #[allow(dead_code)]
//! # mod echo { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/echo/mod.rs")); }
//! # use echo::{EchoClient, EchoServer, Message};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use fabric_rpc::{FabricConnector, FabricIncoming};
//! use tonic::transport::{Endpoint, Server};
//!
//! let incoming = FabricIncoming::bind("shm://").await?;               // 1
//! let address = incoming.local_addr().clone();
//! let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! let server = Server::builder()
//!     .add_service(EchoServer)
//!     .serve_with_incoming_shutdown(incoming, async { drop(stopped.await) });
//! let server = tokio::spawn(server);
//!
//! let channel = Endpoint::from_static("http://echo")
//!     .connect_with_connector(FabricConnector::new(address)).await?;  // 2
//! let mut client = EchoClient::new(channel);
//! let reply = client.unary(Message { payload: "hello".into() }).await?;
//! assert_eq!(reply.into_inner().payload, "hello");
//!
//! let _ = stop.send(());
//! server.await??;
//! # Ok(()) }
//! ```
//!
//! The URI of the endpoint is only sent: its authority becomes the header `:authority`. Write
//! `http://` and the name of the service. The fabric address is the argument of the connector.
//!
//! **Who calls.** A service finds a [`FabricConnectInfo`] in the extensions of its request. Over
//! `shm` the user, group and process in it are those that the kernel reports, and they cannot be
//! forged. Over `tcp` peers are not authenticated.
//!
//! **Errors.** tonic decides the code of a call that fails with its connection:
//!
//! | cause | code |
//! |---|---|
//! | no server has the address; the address does not parse | `Unavailable` |
//! | the server was killed during the call | `Unknown`, as over a Unix socket; the source is the [`ConnectionReset`](std::io::ErrorKind::ConnectionReset) of the stream |
//! | the call was sent before the client has noticed that the connection has ended | `Cancelled` |
//!
//! A channel connects again for the next call, also one from `connect_with_connector`, so it works
//! again when a server returns under the same address.
//!
//! **Deadlines and cancellation** travel as in HTTP/2: a call that the client drops, or whose
//! `grpc-timeout` has passed, is dropped by the server.
//!
//! **Options** that set sockets (`tcp_nodelay`, `tcp_keepalive`) have no effect. Over `shm` the
//! death of a peer is noticed at once, without keepalive. A peer that is alive and does not read is
//! not: for that, set `http2_keepalive_interval`.
//!
//! # hyper
//!
//! [`FabricIncoming::accept`] is the accept loop's, and hyper's `TokioIo` makes a connection of the
//! result. `GracefulShutdown` of hyper-util waits for calls in flight. A client of hyper-util takes
//! the connector; with hyper alone, `TokioIo::new(FabricStream::connect(address).await?)` is the
//! connection for `handshake`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use fabric_rpc::{FabricConnector, FabricIncoming};
//! use http_body_util::{BodyExt, Full};
//! use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
//! use hyper_util::client::legacy::Client;
//! use hyper_util::rt::{TokioExecutor, TokioIo};
//! use hyper_util::server::graceful::GracefulShutdown;
//!
//! async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
//!     Ok(Response::new("hello".into()))
//! }
//!
//! let mut incoming = FabricIncoming::bind("shm://").await?;
//! let address = incoming.local_addr().clone();
//! let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
//! let server = tokio::spawn(async move {
//!     let graceful = GracefulShutdown::new();
//!     loop {
//!         let io = tokio::select! {
//!             Some(io) = incoming.accept() => TokioIo::new(io),
//!             _ = &mut stopped => break,
//!             else => break,
//!         };
//!         let connection = http1::Builder::new().serve_connection(io, service_fn(hello));
//!         let connection = graceful.watch(connection);
//!         tokio::spawn(async move { drop(connection.await) });
//!     }
//!     drop(incoming);                       // refuses further clients
//!     graceful.shutdown().await;            // waits for those that are connected
//! });
//!
//! let connector = FabricConnector::new(address);
//! let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
//! let response = client.get("http://hello/".parse()?).await?;
//! assert_eq!(response.into_body().collect().await?.to_bytes(), "hello");
//! let _ = stop.send(());
//! server.await?;
//! # Ok(()) }
//! ```
//!
//! # axum
//!
//! [`FabricIncoming`] is the listener of `axum::serve`, and [`FabricConnectInfo`] what a handler
//! extracts with `ConnectInfo`. The client is that of hyper.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use axum::{Router, extract::ConnectInfo, routing::get};
//! use fabric_rpc::{FabricConnectInfo, FabricIncoming};
//!
//! async fn hello(ConnectInfo(peer): ConnectInfo<FabricConnectInfo>) -> String {
//!     format!("hello, user {:?}", peer.peer_credentials().map(|peer| peer.uid))
//! }
//!
//! let app = Router::new().route("/", get(hello));
//! let app = app.into_make_service_with_connect_info::<FabricConnectInfo>();
//! let incoming = FabricIncoming::bind("shm://").await?;
//! # let signal = async {};
//! axum::serve(incoming, app).with_graceful_shutdown(signal).await
//! # }
//! ```
//!
//! # tarpc
//!
//! `fabric_rpc::tarpc::listen` and `fabric_rpc::tarpc::connect` take the place of those in
//! `tarpc::serde_transport`. A message is one message of the fabric, without a length prefix. The
//! module has an example. A call that the client drops, or whose deadline has passed, is dropped by
//! the server.
//!
//! # Native calls
//!
//! The frameworks send byte streams. The module `native` (feature `native`) sends a request and a
//! response as one message of the fabric each, for services that want its speed and need no schema:
//! bytes go in and bytes come out. Client and handler are services of tower, so its layers apply to
//! both; the example `tower_service` shows a timeout, a limit and retries.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use std::time::Duration;
//! use fabric_rpc::native::{Client, Code, Request, Response, Server, Status};
//!
//! const UPPERCASE: u32 = 1;
//! const SUM: u32 = 2;
//!
//! async fn handle(request: Request) -> Result<Response, Status> {
//!     match request.method {
//!         UPPERCASE => Ok(Response::new(request.body.into_bytes().to_ascii_uppercase())),
//!         SUM => {
//!             let mut sum = 0;
//!             request.body.for_each_chunk(|chunk| {
//!                 sum += chunk.iter().map(|byte| u64::from(*byte)).sum::<u64>();
//!             });
//!             Ok(Response::new(sum.to_le_bytes().to_vec()))
//!         }
//!         _ => Err(Status::new(Code::Unimplemented, "no such method")),
//!     }
//! }
//!
//! let server = Server::bind("shm://").await?;
//! let name = server.name().clone();
//! let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! let service = tower::service_fn(handle);
//! let serving = tokio::spawn(server.serve_with_shutdown(service, async { drop(stopped.await) }));
//!
//! let client = Client::builder(&name).default_timeout(Some(Duration::from_secs(5)));
//! let client = client.connect().await?;
//! let response = client.call(Request::new(UPPERCASE, "hello")).await?;
//! assert_eq!(response.body.into_bytes(), "HELLO");
//!
//! let mut argument = client.lend(1 << 20).await?;      // the server reads it in place
//! argument.fill(1);
//! let response = client.call(Request::new(SUM, argument)).await?;
//! assert_eq!(response.body.into_bytes(), (1_u64 << 20).to_le_bytes()[..]);
//!
//! let failed = client.call(Request::new(3, "")).await.unwrap_err();
//! assert_eq!(failed.code(), Code::Unimplemented);
//! drop(stop);
//! serving.await??;
//! # Ok(()) }
//! ```
//!
//! **Messages.** A request has a method, metadata and a body; a response metadata and a body, or a
//! status with a code, a text and metadata. The tag of a message has the id of its call, and its
//! completion data the method and the time that is left, or the code.
//!
//! **Lent bodies.** `Client::lend` and `Lender::lend` allocate memory that the peer reads in place
//! over `shm`; over `tcp` the bytes are copied. A handler that answers with the body it received
//! passes the memory on. See [loans](fabric_async::guide::memory#loans) for limits, and for why
//! safe code cannot borrow the bytes. A call that fails drops the memory, and a layer that retries
//! cannot copy such a request (`Request::try_clone`): lend and fill the memory for each attempt.
//!
//! **Addresses.** A server binds `shm://name` or `tcp://address:port`; the wildcard address
//! `0.0.0.0` is refused, since clients need an address to reach. A client needs no address: over
//! `tcp` its endpoint gets a free port of the address from which this machine reaches the server.
//! `ClientBuilder::bind_to` sets another one.
//!
//! **Layers of tower.** A layer whose error is no `Status`, such as `Timeout` or `LoadShed`, makes
//! the answer `Internal`, which is not safe to retry. At the server, `max_handler_time` and
//! `max_in_flight` answer with `DeadlineExceeded` and `ResourceExhausted`; at the client,
//! `Request::timeout` sets the time. With a layer that retries, each attempt has that time anew.
//!
//! **Credits.** A client has 256 calls in flight, or `max_in_flight`; more wait. `poll_ready`
//! reserves a credit for the next call. The server refuses requests beyond its limits with
//! `ResourceExhausted`: 256 requests and 256 MiB of each client, 4,096 requests and 1 GiB of all.
//!
//! **Deadlines and cancellation.** A call has no time limit, also while there is no server, unless
//! `Request::timeout` or `ClientBuilder::default_timeout` sets one. It carries the time that is
//! left. When it is over, the
//! client returns `DeadlineExceeded`, and the server drops the handler. When a call is dropped, the
//! client tells the server, which drops the handler too. Late answers are received and discarded:
//! they do not use the budget for [unexpected
//! messages](fabric_async::guide::memory#unexpected-messages). A call that was dropped keeps its
//! credit until its answer arrives or the server leaves.
//!
//! **A server that leaves.** Calls in flight end with `Unavailable`. If `Status::is_retry_safe` is
//! true, the handler was not started: the request was not sent, or the server has refused it. If it
//! is false, nothing is known. Later calls wait for a server of the same name within their time,
//! while the client connects with growing pauses (`ReconnectPolicy`). A client without calls in
//! flight learns of the end of its server when it calls again. If the client's runtime has not run
//! since the end, that call is sent to the server that has ended, and fails; a retry is not safe.
//!
//! **Runtime.** A connection belongs to the Tokio runtime that connected. While that runtime is
//! blocked, calls from other runtimes get no answer.
//!
//! **Handlers** are polled once where the request was received, and become a task if they are not
//! ready. A handler that panics answers with `Internal`, unless panics abort the process.
//!
//! **Tracing.** The target `fabric_rpc::native` has a span of level debug for each client, server,
//! call and request.
//!
//! # Shutdown
//!
//! When a server stops accepting, it drops its [`FabricIncoming`]: clients that wait are rejected,
//! later ones get [`ConnectionRefused`](std::io::ErrorKind::ConnectionRefused), and a new server
//! can take the address. Accepted connections continue, and the frameworks wait for their calls. A
//! connection that is dropped leaves its writes in flight, at most 512 KiB, to a task that ends
//! when the peer has taken them or has disconnected; see
//! [`FabricStream`](fabric_async::stream::FabricStream#end-and-errors).
//!
//! # Speed
//!
//! Each connection has a domain of its own on the client, and shares the listener's on the server.
//! A domain spins shortly before it sleeps (the [wait policy](fabric_async::WaitPolicy) adaptive),
//! which needs a core for each side. Then short calls over `shm` were two to four times as fast as
//! over a Unix socket; without, they were slower. Over `tcp` they took 1.5 times as long as over
//! TCP. The figures are in `docs/performance.md`. [`FabricIncoming::bind_with`] and
//! `FabricConnector::with_options` take other options. The examples `tonic_echo`, `axum_hello` and
//! `tarpc_service` measure the fabric beside the socket it replaces, and `rpc_native` native calls
//! beside tonic over that socket: measure on your machine before you move a service.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::*;
