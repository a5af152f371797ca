//! Servers and clients: address handles, peer death, restarts, shared receives, tracing.
//!
//! After this chapter you can write a server that outlives its clients, and a client that notices
//! the death of its server and finds the next one.
//!
//! # Requests and replies
//!
//! A client adds the server as a peer and gets an address handle ([`FiAddr`]). The server needs no
//! names: its address vector ([`Domain::auto_insert_address_vector`], the one of
//! [`Endpoint::bind`]) *auto-inserts* every peer that connects, and the [`source`](Message::source)
//! of a request is where the reply goes. The tests run `serve` and `request` as they stand here,
//! with clients that are killed in the middle of long requests.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
#![doc = include_str!("samples/serving.rs")]
//! use std::time::Duration;
//! use tokio::time::timeout;
//!
//! let (server, client) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let name = server.name().clone();
//! let serving = tokio::spawn(serve(server));
//! let limit = Duration::from_secs(20);
//!
//! let server = timeout(limit, client.add_peer(&name)).await.expect("in time")?;
//! for number in 0..10 {
//!     let reply = timeout(limit, request(&client, server, number, "echo"));
//!     let reply = reply.await.expect("in time")?;
//!     assert_eq!(&reply[..], b"echo");
//! }
//!
//! serving.abort();                                             // the server is gone
//! let _ = serving.await;
//! let failed = timeout(limit, request(&client, server, 10, "echo")).await.expect("in time");
//! let failed = failed.unwrap_err();
//! assert!(matches!(failed, Error::PeerGone(_) | Error::NoSuchPeer(_)));
//! # Ok(()) }
//! ```
//!
//! * **The client posts the receive before it sends the request.** If the server dies in between,
//!   the posted receive fails; a receive that is posted after the death waits until the server is
//!   back. A reply that matches a posted receive is not buffered.
//! * **Each request has a number as its tag**, so several requests can be pending, and a late reply
//!   does not match the receive of the next request. [Discard late
//!   replies](super::cancellation#timeouts-and-tags).
//! * **Each wait has a time limit.** If the server's process lives but makes no progress, pending
//!   sends and receives wait without limit. `add_peer` waits for the server's answer: over `shm`
//!   without limit; over `tcp` it fails with [`TimedOut`](Error::TimedOut) after ten seconds, and
//!   so does a send that has to connect first.
//! * **The server's receive is from any source.** The death of a client in the middle of a request
//!   is an event, not an error of the receive.
//! * **The server starts its replies and does not await them**, so a client that receives nothing
//!   does not delay the others. The replies to that client fill the ring, then one peer's share of
//!   the transmit credits. Further replies to it are refused with
//!   [`WouldBlock`](Error::WouldBlock), and `serve` discards them.
//!
//! A request that failed with [`PeerGone`](Error::PeerGone) or timed out may have been executed. A
//! request that failed with [`NoSuchPeer`](Error::NoSuchPeer) was not executed.
//!
//! # When a peer dies
//!
//! Which error an operation returns depends on when the death is noticed and on the handle.
//! [`Error::is_peer_unavailable`] is true for all of these errors: test with it, and use the table
//! only to tell the cases apart.
//!
//! | | handle from `add_peer` or `insert` | auto-inserted handle |
//! |---|---|---|
//! | pending send or directed receive | [`PeerGone`](Error::PeerGone) | [`PeerGone`](Error::PeerGone) |
//! | next send, also one that waited for a credit | [`NoSuchPeer`](Error::NoSuchPeer) | [`StaleAddress`](Error::StaleAddress) |
//! | next send, while messages of the peer are still to be received | [`NoSuchPeer`](Error::NoSuchPeer) | [`NoSuchPeer`](Error::NoSuchPeer) |
//! | next send, while messages of the peer are still to be received and a new process has bound the peer's name | reaches the new process | [`PeerGone`](Error::PeerGone) |
//! | directed receive that is posted later | takes what had arrived; else waits for the peer to come back | takes what had arrived; else [`PeerGone`](Error::PeerGone), later [`StaleAddress`](Error::StaleAddress) |
//! | receive from any source | waits for other senders | waits for other senders |
//! | [`Endpoint::add_peer`] of its name | [`NoSuchPeer`](Error::NoSuchPeer); the handle stays | [`NoSuchPeer`](Error::NoSuchPeer) |
//! | another process binds its name | the handle reaches the new process | the new process gets a handle with a new generation |
//! | event queue | [`PeerDown`](EventKind::PeerDown) | [`PeerDown`](EventKind::PeerDown) |
//!
//! Over `tcp`, [`PeerDown`](EventKind::PeerDown) of a killed process has the reason
//! [`Died`](DownReason::Died), or [`Closed`](DownReason::Closed) if the process was killed between
//! two messages: the kernel then closes the connection with a FIN.
//!
//! A message that arrived completely before the death is still received. A partial message is
//! discarded:
//!
//! | receive | when its sender dies in the middle of the message |
//! |---|---|
//! | from any source: `recv`, `recv_into`, `recv_loan` | goes on waiting, at its place in posting order |
//! | from any source, of a [shared receive context](SharedRxContext), with connected endpoints too | goes on waiting |
//! | from any source, of several messages ([`recv_multi`](Endpoint::recv_multi)) | goes on; the message is not reported, its place in the buffer counts as used |
//! | directed ([`from`](Request::from)) | fails with [`PeerGone`](Error::PeerGone) |
//! | of a claimed message ([`Claimed`]) | fails with [`PeerGone`](Error::PeerGone), with the part that arrived |
//! | any, of a [connected endpoint](super::connected_endpoints) with receives of its own | fails with [`PeerGone`](Error::PeerGone) |
//!
//! Until a receive completes, its buffer may hold bytes of a discarded partial message.
//!
//! # The last messages of a peer
//!
//! [`PeerDown`](EventKind::PeerDown) may be read before the last messages and queue entries of the
//! peer. Over `shm` the event is queued when the peer's socket ends, while its last records are
//! still in the ring. Over `tcp` the event is queued after everything that had arrived was
//! received; but a `select!` over the event queue and the completion queue may take the event
//! first. With
//! `biased;` and the completion queue first this is rarer, and still possible: polling the event
//! queue makes [progress](super::progress#polls-make-progress), which can add an entry and the
//! event in one pass. Therefore do not end a transfer on `PeerDown`. Two rules are safe:
//!
//! * **Let the sender wait for an answer** before it ends.
//! * **Post a directed receive** ([`from`](Request::from)) while the peer is connected. It fails
//!   with [`PeerGone`](Error::PeerGone) only after everything that the peer had sent was received:
//!   the entries of its last writes and messages are then in the queue, and
//!   [`try_read_batch`](CompletionQueue::try_read_batch) returns them. `select!` may still take the
//!   failed receive before these entries: read the queue before you give up.
//!   [`one_sided`](super::one_sided#large-transfers) has a sample.
//!
//! # Noticing a death
//!
//! An endpoint that is closed or dropped notifies its peers, and sends to that endpoint fail at
//! once. A killed process notifies no peer; the kernel closes its sockets. A closed socket wakes a
//! peer that sleeps at once. A peer that does not sleep checks its sockets after every 2048
//! [passes](super::progress#polls-make-progress) and after every 64 operations; until then short
//! sends to the dead process still complete.
//!
//! # Lifetime of address handles
//!
//! * **A handle from `add_peer` or `insert`** stands for the name. It survives the death and the
//!   restart of the peer, until you [`remove`](AddressVector::remove) it.
//! * **An auto-inserted handle** stands for one endpoint of one process. It is valid while the peer
//!   is connected, and then until the last message from that peer has been received. A reply to a
//!   client that has disconnected is an error, and never reaches a later process of the same name.
//!   An endpoint that connects again before its handle is released keeps the handle.
//! * **`add_peer` or `insert` of an auto-inserted peer** makes its handle permanent, with the same
//!   value. Remove it yourself. [`AddressVector::lookup`] does not.
//! * Receives directed at a handle that is removed or released fail with
//!   [`StaleAddress`](Error::StaleAddress).
//!
//! # State for each client
//!
//! A server keys its state for each client by the handle. It frees the state
//!
//! * on [`PeerDown`](EventKind::PeerDown), whose `source` is the handle;
//! * when a reply fails with an error for which [`Error::is_peer_unavailable`] is true: at once,
//!   or, if the reply was started and dropped, as an
//!   [`OperationFailed`](EventKind::OperationFailed). Requests of a client that has left may be
//!   read after its `PeerDown`. They create the state again, and no second `PeerDown` follows.
//! * after an [`Overrun`](EventKind::Overrun), if [`lookup`](AddressVector::lookup) of the handle
//!   fails: see [`backpressure`](super::backpressure#queue-entries).
//!
//! A server that sends no replies removes from time to time the handles whose `lookup` fails. The
//! tests run this server with clients that are killed while their requests wait:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
#![doc = include_str!("samples/sessions.rs")]
//! let (server, client) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_server = client.add_peer(server.name()).await?;
//! let events = server.take_events().expect("the first call gets the queue");
//! tokio::spawn(serve_sessions(server, events));
//!
//! let reply = client.recv().tag(1).from(to_server).start()?;
//! client.send(to_server, "a request").tag(1).await?;
//! assert_eq!(&reply.await?[..], b"1 requests, 1 clients");
//! # Ok(()) }
//! ```
//!
//! # Shared receive context
//!
//! A server may have an endpoint for each service or tenant. Endpoints that share a receive context
//! ([`SharedRxContext`], `fi_srx_context`) take their receives from that context, in posting order:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::info::SHARED_CONTEXT;
//! use fabric_async::{CqBind, Endpoint, Fabric, Hints, discover};
//! use futures_util::StreamExt;
//! let hints = Hints::new().provider("shm").ep_rx_ctx_cnt(SHARED_CONTEXT);
//! let info = discover(&hints)?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let (mut cq, av) = (domain.completion_queue(256)?, domain.auto_insert_address_vector()?);
//! let pool = domain.shared_rx_context(&info)?.bind_av(&av)?.bind_cq(&cq, CqBind::RECV)?.open()?;
//! let mut tenants = std::collections::HashMap::new();
//! for _ in 0..64 {
//!     let ep = domain.endpoint(&info)?.bind_av(&av)?.bind_shared_rx(&pool)?.enable()?;
//!     tenants.insert(ep.id(), ep);
//! }
//! pool.post_all((0..8).map(|number| pool.recv_into(vec![0; 4096]).context(number)))?;
//!
//! let client = Endpoint::bind("shm://").await?;
//! for tenant in tenants.values() {
//!     let peer = client.add_peer(tenant.name()).await?;
//!     client.send(peer, "a request").await?;
//!     let request = cq.next().await.expect("the queue is open");
//!     let ep = &tenants[&pool.received_by(&request.transfer).expect("it is open")];
//!     assert_eq!(ep.id(), tenant.id());
//!     let number = request.context;
//!     let request = request.into_result::<Vec<u8>>()?;
//!     ep.send(request.source()?, "a reply").await?;     // by the endpoint that got the request
//!     pool.recv_into(request.into_buf()).context(number).post()?;
//!     assert_eq!(&client.recv().await?[..], b"a reply");
//! }
//! # Ok(()) }
//! ```
//!
//! * The context takes all kinds of receives, probes and claims; a directed receive matches its
//!   peer at every endpoint. The endpoints refuse receives with
//!   [`NotSupported`](Error::NotSupported).
//! * Completions go to the queue of the *context*, because an entry is reserved before the endpoint
//!   is known. Counters of the endpoint count them.
//! * Unexpected messages wait in the context, in the order of arrival, within one budget.
//! * Endpoints and context share one address vector: a client of several endpoints has one handle,
//!   and a [`PeerConnected`](EventKind::PeerConnected) and a [`PeerDown`](EventKind::PeerDown) for
//!   each.
//! * When one endpoint closes, its messages stay and the receives go on waiting; a message that was
//!   arriving there is discarded. The context closes after its endpoints; its receives then end
//!   with [`Canceled`](Error::Canceled).
//!
//! # A server that restarts
//!
//! A name is in use until its endpoint is closed or its process ends, also by `kill -9`. Until then
//! [`bind`](Endpoint::bind) of the name fails with [`AddressInUse`](Error::AddressInUse). Clients
//! keep their handles: new operations fail with [`NoSuchPeer`](Error::NoSuchPeer) until the new
//! server has bound the name. Retry after a pause.
//!
//! # A client that restarts
//!
//! A client that is started again is a new peer to the server, whether it binds the same name or
//! another one: when it connects, it gets a new auto-inserted handle, and a
//! [`PeerConnected`](EventKind::PeerConnected) names it. The handle of the former process is
//! released when the last message from that process was received; replies to that handle fail and
//! never reach the new process. Therefore
//!
//! * free the state of the former process as [above](#state-for-each-client), and create the
//!   state of the new process on [`PeerConnected`](EventKind::PeerConnected) or with its first
//!   request: the two events can arrive in either order;
//! * a client that needs its former state sends an id of its own with the first request, because
//!   neither the handle nor the name identifies it;
//! * a client repeats the requests that were not answered before it died only if executing them
//!   twice does no harm.
//!
//! A handle from an `add_peer` or `insert` of the *server* stands for the name and reaches the
//! restarted client.
//!
//! # Tracing
//!
//! The crate emits [`tracing`](https://docs.rs/tracing) events when objects and connections change,
//! and none for single messages:
//!
//! | target | level | event | fields |
//! |---|---|---|---|
//! | `fabric::endpoint` | debug | endpoint opened, endpoint closed | `endpoint`, its [`id`](Endpoint::id); `name` |
//! | `fabric::connection` | debug | peer connected, peer closed its endpoint | `endpoint`, `peer` |
//! | `fabric::connection` | info | peer died | `endpoint`, `peer` |
//! | `fabric::connection` | info | peer ended while holding loans (their memory is not reused) | `endpoint`, `peer`, `loans` |
//! | `fabric::connection` | warn | protocol violation by peer | `endpoint`, `peer`, `what` |
//! | `fabric::connection` | warn | inbound connection refused | `endpoint`, `error` |
//! | `fabric::connection` | debug | connection requested, connected: of [connected endpoints](super::connected_endpoints) | `endpoint`, `peer` |
//! | `fabric::connection` | debug | connection shut down: of a connected endpoint | `endpoint`, `peer`, `reason` |
//! | `fabric::connection` | info | connect failed: of a connected endpoint | `endpoint`, `error` |
//! | `fabric::connection` | debug | every address of the host failed: of a bind or connect to a host with several addresses | `tried`, the number of addresses |
//! | `fabric::progress` | debug | driver started, driver ended | `driver`: `task` or `thread` |
//! | `fabric::progress` | error | a waker, the drop of a buffer, or the subscriber panicked | |
//!
//! No lock is held while an event is emitted: a subscriber may use the endpoint.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
