//! Connected endpoints: who calls, who answers, and how a connection ends.
//!
//! An endpoint of type [`EpType::Msg`] (`FI_EP_MSG`) is connected with one peer, from its beginning
//! to the end of the connection. The provider `tcp` has them, on the wire that libfabric's has
//! spoken since 1.8, so either side may be a program with libfabric (`fi_pingpong -p tcp -e msg`).
//! Whoever talks with many takes endpoints [without connections](super::client_server); whoever wants to
//! know its peers one by one, to turn some away, to have a queue and a budget for each, or to hear
//! of the end of each, takes these.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error, PassiveEndpoint};
//!
//! let mut door = PassiveEndpoint::bind("tcp://127.0.0.1:0").await?;
//! let name = door.name().clone();
//! tokio::spawn(async move {
//!     while let Some(request) = door.next().await {
//!         if request.private_data() != b"friend" {
//!             request.reject("friends only")?;
//!             continue;
//!         }
//!         let ep = request.accept("welcome").await?;
//!         tokio::spawn(async move {
//!             // Until the peer goes.
//!             while let Ok(message) = ep.recv().await {
//!                 ep.send(ep.peer()?, message.into_bytes()).await?;
//!             }
//!             Ok::<_, Error>(())
//!         });
//!     }
//!     Ok::<_, Error>(())
//! });
//!
//! let ep = Endpoint::connect(&name).private_data("friend").await?;
//! ep.send(ep.peer()?, "hello").await?;
//! assert_eq!(&ep.recv().await?[..], b"hello");
//!
//! let turned_away = Endpoint::connect(&name).await.unwrap_err();
//! assert_eq!(turned_away, Error::Rejected { peer: name, data: b"friends only".to_vec() });
//! # Ok(()) }
//! ```
//!
//! # Calling
//!
//! [`Endpoint::connect`] ends when the peer has accepted. Both sides may say something with that,
//! up to [`MAX_PRIVATE_DATA`] bytes each; afterwards [`Endpoint::private_data`] is what the other
//! has said. Otherwise the error says why not: [`NoSuchPeer`] when nobody listens there,
//! [`Rejected`] with the private data of who does not want to, [`Protocol`] when what listens is
//! something else, [`PeerGone`] when it hangs up, and [`TimedOut`] after ten seconds, or after as
//! long as [`Connect::timeout`](crate::Connect::timeout) says: a libfabric program answers only
//! while it looks at its event queue.
//!
//! A host may be called by its name, `Endpoint::connect("tcp://localhost:7000")`. Its addresses are
//! tried one after the other while there is [`NoSuchPeer`], or [`TimedOut`]; who answers is not
//! passed over, whatever the answer is.
//!
//! Dropping the future gives the attempt up. The other side may have accepted by then: its endpoint
//! hears of the end.
//!
//! Only endpoints of this type are to call a passive endpoint. One without connections that is told
//! its address gets in as far as the request, whose private data are then the bytes by which such
//! endpoints greet each other. When it is rejected, its `lookup` is
//! [`Refused`](crate::Error::Refused), whatever the reason: say who you are in the private data,
//! and look at it.
//!
//! # Answering
//!
//! A [`PassiveEndpoint`] is a stream of [requests](crate::ConnectionRequest). Each is accepted,
//! rejected, or dropped, which rejects it without data. A request takes no part in anything until
//! then: nobody watches its connection, and it can be accepted in any domain of the provider, with
//! [`EndpointBuilder::accept`](crate::EndpointBuilder::accept). With
//! [`ConnectionRequest::accept`](crate::ConnectionRequest::accept) the endpoints of one door share
//! a domain, and have queues of their own, [`Endpoint::completions`] and [`Endpoint::events`].
//!
//! What is set on sockets is said for the passive endpoint, with
//! [`PassiveEndpointBuilder::socket_options`](crate::PassiveEndpointBuilder::socket_options), or
//! with [`BindOptions::socket_options`](crate::BindOptions::socket_options) before
//! [`listen`](crate::BindOptions::listen): the ports it may listen at, and what holds for the
//! connections that come there. The domain where a request is accepted goes before that with what
//! it says itself, [traffic class](crate::TrafficClass) included.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, SocketOptions};
//! let options = SocketOptions::new().ports(43_000..=43_999).send_buffer(1 << 20);
//! let door = Endpoint::options().socket_options(options).listen("tcp://localhost:0").await?;
//! assert!((43_000..=43_999).contains(&door.name().socket().unwrap().port()));
//! # Ok(()) }
//! ```
//!
//! What strangers can cost is bounded. Who has connected has ten seconds to ask, and 256 may be at
//! it: the one that has waited longest makes room. 128 requests wait to be taken; while there are
//! more callers than that, the kernel keeps them waiting (up to 4096, or what `net.core.somaxconn`
//! says), and nobody is turned away.
//!
//! # Talking
//!
//! There is one peer, and [`Endpoint::peer`] is its number: sends take it, and messages have it as
//! their source. That is all there is in the [address vector](crate::Endpoint::address_vector),
//! which cannot be changed. All else is as with any endpoint: buffers, completion data, posts and
//! queues, batches, fences, probes, backpressure, cancellation. Receives name nobody (`from` is
//! [`NotSupported`]).
//!
//! The acceptor may send at once. A message that arrives before anybody receives is buffered, so
//! nothing has to be posted in advance.
//!
//! Memory is [reached](super::one_sided) by reads and writes, and sends can wait for their delivery,
//! as libfabric has both on this wire. Endpoints of this library tell each other why an access is
//! refused, which then fails alone, and have all atomic operations, if both were opened with
//! [`Caps::ATOMIC`](crate::Caps::ATOMIC). Of a libfabric peer, for which the wire has no word that
//! says no, an access with a wrong key, out of range, or without the right, ends the connection, as
//! [`Protocol`] on the side that serves and [`PeerGone`] on the one that asked; and an atomic
//! operation on its memory is [`NotSupported`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Access, Endpoint, PassiveEndpoint};
//! # use std::future::IntoFuture;
//! let mut door = PassiveEndpoint::bind("tcp://127.0.0.1:0").await?;
//! let calling = Endpoint::connect(door.name()).into_future();
//! let answering = async { door.next().await.expect("a passive endpoint that is open").accept("").await };
//! let (client, server) = tokio::try_join!(calling, answering)?;
//! let tickets = server.domain().alloc(8, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! tokio::spawn(async move { server.recv().await });                // keeps its domain moving
//! for number in 0..3u64 {
//!     let ticket = client.fetch_add(client.peer()?, tickets.remote().at(0), 1u64).await?;
//!     assert_eq!(ticket, number);
//! }
//! # Ok(()) }
//! ```
//!
//! # Tags
//!
//! Endpoints of this library tell each other, while they connect, what they take, in bytes that
//! libfabric writes as zeros and does not read: tagged messages, and atomic operations. Those that
//! were opened with [`Caps::TAGGED`](crate::Caps::TAGGED), as they are unless hints leave it out,
//! send such messages to each other as any endpoints do.
//!
//! A libfabric program takes them only where its endpoint has a shared receive context, of which it
//! says nothing; elsewhere one would end the program. So to a peer that has said nothing a send
//! with a tag is [`NotSupported`], and all else goes on. Who knows better says so:
//! [`Connect::peer_takes_tags`](crate::Connect::peer_takes_tags), or
//! [`ConnectionRequest::peer_takes_tags`](crate::ConnectionRequest::peer_takes_tags). What comes
//! from such a peer with a tag is received like any tagged message, and is no sign that it takes
//! some itself. To an endpoint without `TAGGED` it is a breach of the rules.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, PassiveEndpoint};
//! let mut door = PassiveEndpoint::bind("tcp://127.0.0.1:0").await?;
//! // A program of ours has said this itself already; one with libfabric never does.
//! let calling = Endpoint::connect(door.name()).peer_takes_tags().into_future();
//! let answering = async { door.next().await.expect("a passive endpoint that is open").accept("").await };
//! let (client, server) = tokio::try_join!(calling, answering)?;
//! client.send(client.peer()?, "second").tag(2).await?;
//! client.send(client.peer()?, "first").tag(1).await?;
//! assert_eq!(&server.recv().tag(1).await?[..], b"first");
//! assert_eq!(&server.recv().tag(2).await?[..], b"second");
//! # Ok(()) }
//! # use std::future::IntoFuture;
//! ```
//!
//! # Many connections, one pool of receives
//!
//! Endpoints that are connected may [share a receive
//! context](super::client_server#many-endpoints-one-pool-of-receives), accepted ones and those that have
//! called alike: receives are posted to the context, and a message that comes over any of the
//! connections takes one. Nothing of that is seen on the wire. The context is bound to no address
//! vector, for each endpoint has its own peer: [`received_by`](crate::SharedReceive::received_by)
//! tells which endpoint a message came to, and that is the one that answers.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, EpType, Fabric, Hints, SHARED_CONTEXT, discover};
//! use std::collections::HashMap;
//!
//! let hints = Hints::new().provider("tcp").ep_type(EpType::Msg).ep_rx_ctx_cnt(SHARED_CONTEXT);
//! let info = discover(&hints).await?.swap_remove(0);
//! let fabric = Fabric::open(&info)?;
//! let domain = fabric.domain(&info)?;
//! let pool = domain.shared_receive(&info)?.open()?;
//! let mut door = fabric.passive_endpoint(&info)?.listen()?;
//!
//! let (name, mut clients) = (door.name().clone(), HashMap::new());
//! let calling = tokio::spawn(async move {
//!     tokio::try_join!(Endpoint::connect(&name), Endpoint::connect(&name))
//! });
//! for _ in 0..2 {
//!     let request = door.next().await.expect("a passive endpoint that is open");
//!     let ep = domain.endpoint(&info)?.bind_shared(&pool)?.accept(request, "").await?;
//!     clients.insert(ep.id(), ep);
//! }
//! let (one, two) = calling.await.expect("a task that ends")?;
//! for client in [two, one] {
//!     client.send(client.peer()?, "a question").await?;
//!     let question = pool.recv().await?;
//!     let ep = &clients[&pool.received_by(&question.transfer).expect("it is open")];
//!     assert_eq!(question.source(), ep.peer());
//!     ep.send(ep.peer()?, "an answer").await?;
//!     assert_eq!(&client.recv().await?[..], b"an answer");
//! }
//! # Ok(()) }
//! ```
//!
//! A connection that ends leaves the receives there to the others, but for the one that a message
//! of its peer had begun to fill: that fails with [`PeerGone`], and
//! [`received_by`](crate::SharedReceive::received_by) tells from the transfer in the failure whose
//! it was. A server takes this for the loss of one client and posts the receive again; `?` would
//! end it for all. Otherwise its end is an event, and an error of what is sent. [`Shutdown`] may be
//! taken before the last messages of that peer: keep the endpoint, or who it was, until what waits
//! in the pool has been received ([`stats`](crate::SharedReceive::stats)), for of an endpoint that
//! is closed `received_by` knows nothing. Unexpected messages wait within one budget of 16 MiB for
//! all the connections.
//!
//! # The end
//!
//! [`Endpoint::shutdown`] ends the connection, and so does dropping or closing the endpoint, and
//! the death of its process. What was sent before still arrives, handed over in the background for
//! up to five seconds. On the other side, first everything that has come is received; then
//! receives, and sends that are under way, end with [`PeerGone`], or with [`Protocol`] when the
//! peer has broken the rules, and so does everything that is posted later. The event queue says
//! [`Shutdown`] once, with how it ended; a process that is killed between two messages looks like
//! one that closes, so what is to be told apart is to be said. A message for which there was no
//! room, and that nobody has asked for, is in front of the end too, and holds it up until somebody
//! receives. An endpoint is not connected again: open another one.
//!
//! A machine that vanishes without a word is noticed after half a minute of silence (keepalive),
//! or, if something is on its way to it, when the network gives up.
//!
//! # Events
//!
//! Whoever comes from `fi_eq_read` finds the same events:
//! [`ConnectionRequest`](crate::EventKind::ConnectionRequest) at a passive endpoint that is bound
//! to the queue ([`try_next`](crate::PassiveEndpoint::try_next) has the request), [`Connected`] on
//! both sides, [`ConnectFailed`] where C has an error entry, [`Shutdown`].
//! [`EndpointBuilder::connect`](crate::EndpointBuilder::connect) has an example with every object
//! spelled out.
//!
//! [`EpType::Msg`]: crate::EpType::Msg
//! [`Endpoint::connect`]: crate::Endpoint::connect
//! [`Endpoint::private_data`]: crate::Endpoint::private_data
//! [`Endpoint::peer`]: crate::Endpoint::peer
//! [`Endpoint::completions`]: crate::Endpoint::completions
//! [`Endpoint::events`]: crate::Endpoint::events
//! [`Endpoint::shutdown`]: crate::Endpoint::shutdown
//! [`MAX_PRIVATE_DATA`]: crate::MAX_PRIVATE_DATA
//! [`PassiveEndpoint`]: crate::PassiveEndpoint
//! [`NoSuchPeer`]: crate::Error::NoSuchPeer
//! [`Rejected`]: crate::Error::Rejected
//! [`Protocol`]: crate::Error::Protocol
//! [`PeerGone`]: crate::Error::PeerGone
//! [`TimedOut`]: crate::Error::TimedOut
//! [`NotSupported`]: crate::Error::NotSupported
//! [`Connected`]: crate::EventKind::Connected
//! [`ConnectFailed`]: crate::EventKind::ConnectFailed
//! [`Shutdown`]: crate::EventKind::Shutdown
