//! A server and its clients: how do they find each other, and what does it look like when one is
//! gone?
//!
//! # Requests and replies
//!
//! The server has a name that everybody knows. A client looks it up, and thereby gets a number for
//! it. The server gets a number for each client without asking: the address vector of
//! [`Endpoint::bind`](crate::Endpoint::bind) is welcoming, so a client that connects is a *guest*,
//! and the [`source`](crate::Done::source) of its request is where the reply goes.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error, FiAddr, Message, Result};
//! use std::time::Duration;
//! use tokio::time::timeout;
//!
//! async fn serve(ep: Endpoint) -> Result<()> {
//!     loop {
//!         let request = ep.recv().tag_mask(0, !0).await?;
//!         let (Ok(client), Some(number)) = (request.source(), request.tag()) else { continue };
//!         let reply = ep.send(client, request.into_bytes()).tag(number).start();
//!         match reply.map_err(|failed| failed.error) {
//!             Ok(reply) => drop(reply),                       // it goes on by itself
//!             Err(Error::Again(_)) => {}                      // this client does not take its replies
//!             Err(error) if error.is_peer_gone() => {}        // it has left
//!             Err(error) => return Err(error),
//!         }
//!     }
//! }
//!
//! async fn request(ep: &Endpoint, server: FiAddr, number: u64, text: &'static str) -> Result<Message> {
//!     let reply = ep.recv().tag(number).from(server).start()?; // first the receive,
//!     ep.send(server, text).tag(number).await?;                // then the request
//!     Ok(reply.await?)
//! }
//!
//! let (server, client) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let name = server.name().clone();
//! let serving = tokio::spawn(serve(server));
//! let limit = Duration::from_secs(20);
//!
//! let server = timeout(limit, client.lookup(&name)).await.expect("in time")?;
//! for number in 0..10 {
//!     let reply = timeout(limit, request(&client, server, number, "echo")).await.expect("in time")?;
//!     assert_eq!(&reply[..], b"echo");
//! }
//!
//! serving.abort();                                             // the server is gone
//! let _ = serving.await;
//! let failed = timeout(limit, request(&client, server, 10, "echo")).await.expect("in time").unwrap_err();
//! assert!(matches!(failed, Error::PeerGone(_) | Error::NoSuchPeer(_)));
//! # Ok(()) }
//! ```
//!
//! Why it is written like this:
//!
//! * **The receive is posted before the request is sent.** If the server dies in between, a receive
//!   that is posted fails. One that is posted afterwards waits for the server to come back, which
//!   may be never. And a reply that finds its receive is not buffered on the way.
//! * **Each request has a number, as its tag.** Several can be under way, and the reply to one that
//!   was given up is not taken for the next one's. Late replies have to be taken away now and then:
//!   see [`cancellation`](super::cancellation).
//! * **Each wait has a limit.** A server that lives but makes no progress is not gone, and nothing
//!   fails. The limit covers `lookup` too: it waits until the server answers.
//! * **The server starts its replies, and does not await them.** A client that takes nothing fills
//!   its ring, then its share of the credits, and is refused. Awaiting would let it stop the server
//!   for everybody.
//!
//! A request that failed with [`PeerGone`], or ran out of time, may have been carried out. Only one
//! that failed with [`NoSuchPeer`] was certainly not.
//!
//! # The faces of "the peer is gone"
//!
//! It depends on whose number it is. One from [`Endpoint::lookup`] or [`AddressVector::insert`] is
//! *your own*. That of a guest is on loan.
//!
//! | | a number of your own | the number of a guest |
//! |---|---|---|
//! | an operation that is under way: a send, a directed receive | [`PeerGone`] | [`PeerGone`] |
//! | the next send | [`NoSuchPeer`] | [`StaleAddress`]; as long as messages of it wait, [`NoSuchPeer`] |
//! | a directed receive that is posted later | takes what had arrived; else waits for the peer to come back | takes what had arrived; if that has nothing for it, [`PeerGone`]; afterwards [`StaleAddress`] |
//! | a receive from anybody | waits for others | waits for others |
//! | [`Endpoint::lookup`] of its name | [`NoSuchPeer`]; the number stays | [`NoSuchPeer`] |
//! | somebody comes by that name | the number is good again | a guest again, with a new number |
//! | the event queue | [`PeerDown`] | [`PeerDown`] |
//!
//! A send that still waits for a credit is not under way: for it the second row holds. A send that
//! has ended well says nothing of all this: the message was in the ring, and may have died there
//! unread.
//!
//! How soon is it known? An endpoint that is closed or dropped says goodbye, and sends to it fail
//! at once. A process that was killed says nothing. The kernel hangs up its sockets, and this side
//! notices with the next look at them: at once while it sleeps, and within some passes, or 64
//! posts, while it polls. A short message that is sent until then goes into a ring that nobody
//! reads.
//!
//! # How long a number lives
//!
//! * **Your own** lives until you [`remove`](crate::AddressVector::remove) it. It stands for the
//!   name, so it survives the death and the restart of the peer: the next send after the restart
//!   makes a new connection.
//! * **A guest's** lives while the guest is connected, and then until the last message that it sent
//!   was received and looked at. So a request can always be told by its source, and a reply to a
//!   client that has left is an error, never somebody else's mail. A guest that comes back
//!   meanwhile keeps its number.
//! * **A guest you look up** or insert becomes your own, under the number it has. Do so if you want
//!   to reach it after it has restarted; then remove it yourself, one day.
//! * Receives that are directed at a number when it is removed, or taken back, end with
//!   [`StaleAddress`].
//!
//! A server that keeps something for each client keys it by the number, and lets go of it at
//! [`PeerDown`], whose `source` is that number. Requests may still wait at that moment, and come
//! afterwards. If the event queue has overrun, see [`backpressure`](super::backpressure).
//!
//! # Many endpoints, one pool of receives
//!
//! A server may have many endpoints: a name for each service, or for each tenant. Each with
//! receives of its own would need as many as it may get at once, and most would lie idle. Endpoints
//! that *share* a receive context ([`SharedReceive`](crate::SharedReceive), `fi_srx_context`) live
//! on one pool: receives are posted to the context, and a message that comes to any of them takes
//! one, in posting order.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{CqBind, Endpoint, Fabric, Hints, SHARED_CONTEXT, discover};
//! use futures_util::StreamExt;
//! let hints = Hints::new().provider("shm").ep_rx_ctx_cnt(SHARED_CONTEXT);
//! let info = discover(&hints).await?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let (mut cq, av) = (domain.completion_queue(256)?, domain.welcoming_address_vector()?);
//! let pool = domain.shared_receive(&info)?.bind_av(&av)?.bind_cq(&cq, CqBind::RECV)?.open()?;
//! let mut tenants = std::collections::HashMap::new();
//! for _ in 0..64 {
//!     let ep = domain.endpoint(&info)?.bind_av(&av)?.bind_shared(&pool)?.enable().await?;
//!     tenants.insert(ep.id(), ep);
//! }
//! pool.post_all((0..8).map(|number| pool.recv_into(vec![0; 4096]).context(number)))?;
//!
//! let client = Endpoint::bind("shm://").await?;
//! for tenant in tenants.values() {
//!     let peer = client.lookup(tenant.name()).await?;
//!     client.send(peer, "a request").await?;
//!     let request = cq.next().await.expect("the queue is open");
//!     let ep = &tenants[&pool.received_by(&request.transfer).expect("it is open")];
//!     assert_eq!(ep.id(), tenant.id());
//!     let number = request.context;
//!     let request = request.into_result::<Vec<u8>>()?;
//!     ep.send(request.source()?, "an answer").await?;          // by the endpoint that was asked
//!     pool.recv_into(request.into_buf()).context(number).post()?;
//!     assert_eq!(&client.recv().await?[..], b"an answer");
//! }
//! # Ok(()) }
//! ```
//!
//! * All kinds of receives work there, probes and claims too; directed ones hear their peer at
//!   every endpoint. The endpoints themselves refuse them
//!   ([`NotSupported`](crate::Error::NotSupported)).
//! * Completions go to the queue that the *context* is bound to: an entry is reserved when a
//!   receive is posted, and it is not known then who will get the message.
//! * Messages that nobody has asked for wait in the context, in the order they came, within one
//!   budget for all.
//! * The endpoints and the context have one address vector. A client that talks to several of them
//!   has one number, and a [`PeerConnected`](crate::EventKind::PeerConnected) and a [`PeerDown`]
//!   for each.
//! * An endpoint that closes leaves what it had received. A receive that it had begun to fill ends
//!   with [`Closed`](crate::Error::Closed); the others wait on. The context closes after its
//!   endpoints, and then its receives end with [`Canceled`](crate::Error::Canceled).
//!
//! # A server that restarts
//!
//! A name belongs to the process that bound it. When that process is gone the name is free, also
//! after `kill -9`; while it lives a second [`bind`](crate::Endpoint::bind) is
//! [`Error::AddressInUse`]. Clients need not look the name up again. They see [`PeerGone`] for what
//! was under way, then [`NoSuchPeer`] until the new server is there: try again after a pause. The
//! new server knows nothing of the old one's clients, and gets them as guests with their first
//! request.
//!
//! # What is told to `tracing`
//!
//! Besides the event queue, which is for programs, there is the [`tracing`] subscriber of the
//! process, for those who run them. It hears of the rare things, never of single messages:
//!
//! | target | level | what | fields |
//! |---|---|---|---|
//! | `fabric::endpoint` | debug | endpoint opened, endpoint closed | `endpoint`, its [`id`](crate::Endpoint::id); `name` |
//! | `fabric::connection` | debug | peer connected, peer closed | `endpoint`, `peer` |
//! | `fabric::connection` | info | peer died | `endpoint`, `peer` |
//! | `fabric::connection` | info | loans given up, because the peer that had them is gone | `endpoint`, `peer`, `loans` |
//! | `fabric::connection` | warn | peer broke the protocol | `endpoint`, `peer`, `what` |
//! | `fabric::connection` | warn | caller refused | `endpoint`, `error` |
//! | `fabric::progress` | debug | driver started, driver ended | `driver`: `task` or `thread` |
//! | `fabric::progress` | error | a waker, the drop of a buffer, or the subscriber panicked | |
//!
//! No lock is held meanwhile: a subscriber may use the endpoint that it hears of.
//!
//! [`tracing`]: https://docs.rs/tracing
//! [`Endpoint::lookup`]: crate::Endpoint::lookup
//! [`AddressVector::insert`]: crate::AddressVector::insert
//! [`PeerGone`]: crate::Error::PeerGone
//! [`NoSuchPeer`]: crate::Error::NoSuchPeer
//! [`StaleAddress`]: crate::Error::StaleAddress
//! [`Error::AddressInUse`]: crate::Error::AddressInUse
//! [`PeerDown`]: crate::EventKind::PeerDown
