//! Connected endpoints: endpoints of type `FI_EP_MSG`.
//!
//! After this chapter you can accept or reject connections one by one, connect to a listening
//! endpoint, exchange private data, and handle the end of a connection.
//!
//! A [`ConnectedEndpoint`] is connected to one peer for its whole life; its calls name no peer, and
//! it has no address vector. Its infos have the type [`EpType::Msg`]. The providers `shm` and `tcp`
//! have connected endpoints; over `tcp` in the wire format of libfabric's provider since 1.8, so
//! the peer may be a libfabric program (`fi_pingpong -p tcp -e msg`). A program that takes the
//! address as an argument works with `shm://name` and with `tcp://host:port`. Use them to admit
//! peers one by one, and to have a queue, a budget and an end for each; [connectionless
//! endpoints](super::client_server) talk with many peers.
//!
//! ```
//! use fabric_async::{ConnectedEndpoint, Error, PassiveEndpoint, Result};
//!
//! async fn serve(mut listener: PassiveEndpoint) -> Result<()> {
//!     loop {
//!         let request = listener.accept().await?;
//!         if request.private_data() != b"friend" {
//!             request.reject("friends only")?;
//!             continue;
//!         }
//!         let ep = request.accept("welcome")?;
//!         tokio::spawn(async move {
//!             // Until the connection ends.
//!             while let Ok(message) = ep.recv().await {
//!                 ep.send(message.into_bytes()).await?;
//!             }
//!             Ok::<_, Error>(())
//!         });
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
//! let listener = PassiveEndpoint::bind("tcp://127.0.0.1:0").await?;
//! let name = listener.name().clone();
//! tokio::spawn(serve(listener));
//!
//! let ep = ConnectedEndpoint::connect(&name).private_data("friend").await?;
//! ep.send("hello").await?;
//! assert_eq!(&ep.recv().await?[..], b"hello");
//!
//! let rejected = ConnectedEndpoint::connect(&name).await.unwrap_err();
//! assert_eq!(rejected, Error::RejectedByPeer { peer: name, data: b"friends only".to_vec() });
//! # Ok(()) }
//! ```
//!
//! # Connecting
//!
//! [`ConnectedEndpoint::connect`] completes when the peer has accepted. Each side may send up to
//! [`MAX_PRIVATE_DATA`] bytes of private data; [`ConnectedEndpoint::private_data`] returns the data
//! of the other side. Longer data is refused with [`TooLong`](Error::TooLong).
//!
//! | error | when |
//! |---|---|
//! | [`NoSuchPeer`](Error::NoSuchPeer) | no process listens there |
//! | [`RejectedByPeer`](Error::RejectedByPeer) | the peer's program rejected, with its private data; over `tcp` also, without data, if the endpoint there is connectionless |
//! | [`Protocol`](Error::Protocol) | over `tcp`: a program with another protocol listens there |
//! | [`ConnectionRefused`](Error::ConnectionRefused) | over `shm`: the endpoint there is connectionless, or takes no connection of this process within the time limit |
//! | [`OtherUser`](Error::OtherUser) | over `shm`: the process there is another user's |
//! | [`PeerGone`](Error::PeerGone) | the peer closed the connection |
//! | [`TimedOut`](Error::TimedOut) | no answer within ten seconds, or [`Connect::timeout`]; a libfabric program answers only while it reads its event queue |
//!
//! A host name, as in `tcp://localhost:7000`, is resolved. Its addresses are tried in order until a
//! peer accepts. Dropping the future ends the attempt; an endpoint that the peer has accepted by
//! then gets [`Shutdown`](EventKind::Shutdown).
//!
//! Over `tcp`, a connectionless endpoint that adds a passive endpoint as a peer produces a
//! connection request whose private data is its protocol handshake. When the program rejects that
//! request, `add_peer` fails with [`Error::ConnectionRefused`] and the reason
//! [`RefusalReason::Resources`], since the wire format carries no reason. The private data tells
//! such requests from those of connected endpoints. Over `shm` the two types of endpoint refuse
//! each other with [`RefusalReason::EpType`], and the program sees no request.
//!
//! # Shared memory
//!
//! Over `shm`, connected endpoints have everything that connectionless ones have, such as loans,
//! windows and single copies. A passive endpoint listens at its name; a connecting endpoint has a
//! name of its own, at which no peer can connect to it, and an accepted endpoint has the name of
//! the passive endpoint. Only processes of the same user can connect. The death of a process is
//! reported at once as [`Shutdown`](EventKind::Shutdown) with [`Died`](DownReason::Died).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{ConnectedEndpoint, PassiveEndpoint};
//! # use std::future::IntoFuture;
//! let mut listener = PassiveEndpoint::bind("shm://").await?;        // or "shm://name"
//! let connect = ConnectedEndpoint::connect(listener.name()).private_data("hello");
//! let accepting = async { listener.accept().await?.accept("") };
//! let (client, server) = tokio::try_join!(connect.into_future(), accepting)?;
//! assert_eq!((server.private_data(), server.name()), (&b"hello"[..], listener.name()));
//! let mut loan = client.domain().loan(5).await?;
//! loan.copy_from_slice(b"frame");
//! client.send(loan).await?;
//! assert_eq!(&server.recv().await?[..], b"frame");
//! # Ok(()) }
//! ```
//!
//! # Accepting
//!
//! [`PassiveEndpoint::accept`] returns [`ConnectionRequest`]s. Each is accepted, rejected, or
//! dropped, which rejects it without data. A request can be accepted in any domain of the provider
//! with [`EndpointBuilder::accept`]. With [`ConnectionRequest::accept`] the endpoints of one
//! passive endpoint share a domain and have queues of their own
//! ([`ConnectedEndpoint::take_completions`], [`ConnectedEndpoint::take_events`]).
//!
//! Socket options and ports of the listener and its connections are set with
//! [`PassiveEndpointBuilder::socket_options`], or [`BindOptions::socket_options`] before
//! [`listen`](BindOptions::listen). Options of the accepting domain, with its [`TrafficClass`],
//! take precedence.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, SocketOptions};
//! let options = SocketOptions::new().port_range(43_000..=43_999).send_buffer(1 << 20);
//! let listener = Endpoint::options().socket_options(options).listen("tcp://localhost:0").await?;
//! assert!((43_000..=43_999).contains(&listener.name().socket_addr().unwrap().port()));
//! # Ok(()) }
//! ```
//!
//! A connection has ten seconds to send its request; 256 may be pending, and the oldest is evicted.
//! Up to 128 requests wait for `accept`; further connections wait in the kernel's backlog, of 4096
//! over `tcp` and 1024 over `shm`, or `net.core.somaxconn` if it is lower.
//!
//! Over `shm` a connect beyond that is tried again after about 1 ms, and then after twice the delay
//! each time up to 16 ms. So is a connect that was evicted, and one of a process that has 64
//! connections without a request at the passive endpoint, or 64 requests that wait for `accept`.
//! When the connect timeout has passed, the attempt fails with [`RefusalReason::Resources`].
//!
//! # Messages and memory
//!
//! [`ConnectedEndpoint::peer`] is the address of the one peer, the destination of sends and the
//! sender of messages. The peer has no address handle: the [source](Done::source) of a message is
//! [`UnknownSource`](Error::UnknownSource), and directed receives are
//! [`NotSupported`](Error::NotSupported). The accepting side may send at once: messages that arrive
//! before the first receive are buffered.
//!
//! [One-sided](super::one_sided) reads and writes and [delivery](super::ordering#completion-levels)
//! work with libfabric peers too. Endpoints of this library also have atomic operations, if both
//! have [`Caps::ATOMIC`]. With a libfabric peer a [wrong access ends the
//! connection](super::tcp#remote-memory).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Access, ConnectedEndpoint, PassiveEndpoint};
//! # use std::future::IntoFuture;
//! let mut listener = PassiveEndpoint::bind("tcp://127.0.0.1:0").await?;
//! let connecting = ConnectedEndpoint::connect(listener.name()).into_future();
//! let accepting = async { listener.accept().await?.accept("") };
//! let (client, server) = tokio::try_join!(connecting, accepting)?;
//! let tickets = server.domain().alloc(8, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! tokio::spawn(async move { server.recv().await });               // makes progress for its domain
//! for number in 0..3u64 {
//!     let ticket = client.fetch_add(tickets.remote().at(0), 1u64).await?;
//!     assert_eq!(ticket, number);
//! }
//! # Ok(()) }
//! ```
//!
//! # Tags
//!
//! Endpoints of this library announce tagged messages and atomic operations while they connect, in
//! bytes that libfabric sends as zeros and ignores. A libfabric peer accepts tagged messages only
//! if its endpoint has a shared receive context, which it does not announce; without a shared
//! receive context it crashes. A tagged send to a peer that announced nothing is therefore
//! [`NotSupported`](Error::NotSupported), unless your program declares that the peer supports tags:
//! [`Connect::peer_supports_tags`] or [`ConnectionRequest::peer_supports_tags`]. Tagged messages
//! from such a peer are received. An endpoint over `tcp` without [`Caps::TAGGED`] treats a tagged
//! message as a protocol violation. Over `shm` the capabilities of both sides are always known.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{ConnectedEndpoint, PassiveEndpoint};
//! let mut listener = PassiveEndpoint::bind("tcp://127.0.0.1:0").await?;
//! // Needed for libfabric peers only: endpoints of this library announce tags themselves.
//! let connecting =
//!     ConnectedEndpoint::connect(listener.name()).peer_supports_tags().into_future();
//! let accepting = async { listener.accept().await?.accept("") };
//! let (client, server) = tokio::try_join!(connecting, accepting)?;
//! client.send("second").tag(2).await?;
//! client.send("first").tag(1).await?;
//! assert_eq!(&server.recv().tag(1).await?[..], b"first");
//! assert_eq!(&server.recv().tag(2).await?[..], b"second");
//! # Ok(()) }
//! # use std::future::IntoFuture;
//! ```
//!
//! # Shared receive context
//!
//! Connected endpoints, accepted or connecting, may share a [receive
//! context](super::client_server#shared-receive-context). It is bound to no address vector:
//! [`received_by`](SharedRxContext::received_by) tells which endpoint a message came to, and that
//! endpoint replies.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::info::SHARED_CONTEXT;
//! use fabric_async::{ConnectedEndpoint, EpType, Fabric, Hints, discover};
//! use std::collections::HashMap;
//!
//! let hints = Hints::new().provider("tcp").ep_type(EpType::Msg).ep_rx_ctx_cnt(SHARED_CONTEXT);
//! let info = discover(&hints)?.swap_remove(0);
//! let fabric = Fabric::open(&info)?;
//! let domain = fabric.domain(&info)?;
//! let pool = domain.shared_rx_context(&info)?.open()?;
//! let mut listener = fabric.passive_endpoint(&info)?.listen()?;
//!
//! let (name, mut clients) = (listener.name().clone(), HashMap::new());
//! let connecting = tokio::spawn(async move {
//!     tokio::try_join!(ConnectedEndpoint::connect(&name), ConnectedEndpoint::connect(&name))
//! });
//! for _ in 0..2 {
//!     let request = listener.accept().await?;
//!     let ep = domain.endpoint(&info)?.bind_shared_rx(&pool)?.accept(request, "")?;
//!     clients.insert(ep.id(), ep);
//! }
//! let (one, two) = connecting.await.expect("a task that ends")?;
//! for client in [two, one] {
//!     client.send("a request").await?;
//!     let request = pool.recv().await?;
//!     let ep = &clients[&pool.received_by(&request.transfer).expect("it is open")];
//!     ep.send("a reply").await?;
//!     assert_eq!(&client.recv().await?[..], b"a reply");
//! }
//! # Ok(()) }
//! ```
//!
//! When one connection ends, all receives of the context stay posted, also a receive that a partial
//! message of that peer had matched. Sends to that peer fail, and the event queue gets a
//! [`Shutdown`](EventKind::Shutdown). The event may come before the last messages of that peer are
//! received: keep the endpoint until the context [holds no message](SharedRxContext::stats),
//! because `received_by` returns nothing for closed endpoints. All connections share one budget of
//! 16 MiB for unexpected messages.
//!
//! # End of a connection
//!
//! [`ConnectedEndpoint::shutdown`], dropping or closing the endpoint, and the death of the process
//! end the connection. Over `tcp` the bytes of completed sends are written to the kernel in the
//! background for up to five seconds, while the process lives; over `shm` a completed send is in
//! the ring, where the peer finds it also after the sender's death.
//!
//! At the other side sends fail at once with [`PeerGone`](Error::PeerGone), or with
//! [`Protocol`](Error::Protocol) if the peer violated the protocol, and the event queue gets one
//! [`Shutdown`](EventKind::Shutdown). Receives first get everything that arrived, and fail with the
//! same error afterwards. So the event may come before the last messages are received: a server
//! receives until `PeerGone`, not until `Shutdown`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! # use fabric_async::{ConnectedEndpoint, Error, PassiveEndpoint};
//! # let mut listener = PassiveEndpoint::bind("shm://").await?;
//! # let name = listener.name().to_string();
//! # let accepting = async { listener.accept().await?.accept("") };
//! # let (client, server) = tokio::try_join!(ConnectedEndpoint::connect(&name), accepting)?;
//! client.send("the last request").await?;
//! client.shutdown()?;
//! let mut served = 0;
//! loop {
//!     match server.recv().await {
//!         Ok(_request) => served += 1,
//!         Err(failed) if matches!(failed.error, Error::PeerGone(_)) => break,
//!         Err(failed) => return Err(failed.error),
//!     }
//! }
//! assert_eq!(served, 1);
//! # Ok(()) }
//! ```
//!
//! Over `tcp` the kernel closes the connection of a killed process in the same way as a closed
//! endpoint does. If the process was killed between two messages, the reason of the event is
//! therefore [`Closed`](DownReason::Closed). While an unexpected message does not fit into the
//! budget, the endpoint reads no further, and notices the end of the connection only when the
//! program has received that message.
//!
//! A connected endpoint cannot be connected again: open a new one.
//!
//! A machine that vanishes is noticed after 30 seconds of silence (keepalive), or, if bytes are on
//! their way to it, when the kernel gives up.
//!
//! # Events
//!
//! | event | C |
//! |---|---|
//! | [`ConnectionRequest`](EventKind::ConnectionRequest) at a passive endpoint that is bound to the queue; [`try_accept`](PassiveEndpoint::try_accept) has the request | `FI_CONNREQ` |
//! | [`Connected`](EventKind::Connected), on both sides | `FI_CONNECTED` |
//! | [`ConnectFailed`](EventKind::ConnectFailed) | an error entry |
//! | [`Shutdown`](EventKind::Shutdown) | `FI_SHUTDOWN` |
//!
//! [`EndpointBuilder::connect`] has an example.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
