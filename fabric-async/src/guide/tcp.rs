//! The `tcp` provider: addresses, libfabric peers, completion, remote memory, io_uring, sockets.
//!
//! After this chapter you can use endpoints between machines, talk to libfabric programs, and
//! choose how sockets are driven.
//!
//! The provider carries tagged and untagged messages, reads, writes and atomic operations. Its wire
//! format is that of libfabric's connectionless endpoints (`FI_PROTO_XNET`): the provider `tcp`
//! since libfabric 1.18, `net` in 1.16 and 1.17. [RXM](#the-rxm-protocol) is understood as well.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//!
//! let server = Endpoint::bind("tcp://127.0.0.1:0").await?;          // port 0: any free port
//! let client = Endpoint::bind("tcp://127.0.0.1:0").await?;
//! let peer = client.add_peer(server.name()).await?;               // as fi_tcp://127.0.0.1:40189
//! client.send(peer, "hello").tag(7).await?;
//! let got = server.recv().tag(7).await?;
//! server.send(got.source()?, "and back").await?;                    // over the same connection
//! assert_eq!(&client.recv().await?[..], b"and back");
//! # Ok(()) }
//! ```
//!
//! # Addresses
//!
//! An address is an IP address and a port: `tcp://10.0.0.5:7000`, `tcp://[2001:db8::1]:7000`, or
//! with the schemes `fi_sockaddr_in://` and `fi_sockaddr_in6://`. Host names
//! (`tcp://localhost:7000`) are resolved, on a blocking thread, by the calls that are awaited
//! ([`Endpoint::bind`], [`Endpoint::add_peer`], [`ConnectedEndpoint::connect`]) and by
//! [`resolve`](resolve()). The port is required. Port 0 binds a free one: tell peers
//! [`Endpoint::name`]. `tcp://` alone binds to the loopback address, or, in the domain of a network
//! interface, to its address.
//!
//! An endpoint is bound to one address, not to all of a machine (`0.0.0.0`): it connects from that
//! address, and peers know it by it. One on `127.0.0.1` reaches no other machine
//! ([`Unreachable`](Error::Unreachable)).
//!
//! [`discover`](discover()) offers any network (fabric `tcp`, domain `tcp`) and then each network
//! of the machine, as `fi_info` does: fabric `192.0.2.0/24`, domain `eth0`. The latter selects a
//! default address and does not restrict it. Link-local addresses (`fe80::`) are not offered.
//!
//! # Libfabric peers
//!
//! A peer may be an unmodified libfabric program with an endpoint of type `FI_EP_RDM`. Its name is
//! a `sockaddr_in` or `sockaddr_in6` ([`Address::socket_addr`]). The example `fi_pingpong` is such
//! a peer. A libfabric program makes progress only while it reads its queues, and reads no further
//! than the first message without a receive, except for a few short tagged ones.
//!
//! # The RXM protocol
//!
//! In libfabric 1.17 and older (Debian 12) the provider `tcp` with `FI_EP_RDM` is `tcp;ofi_rxm`,
//! another protocol (`FI_PROTO_RXM`). An endpoint accepts both protocols on one port. It connects
//! with the native one, tries RXM if that is rejected, and remembers the peer's protocol. Nothing
//! has to be configured.
//!
//! If all peers speak RXM, the hint [`provider("tcp;ofi_rxm")`](Hints::provider), which yields
//! infos of [`Protocol::Rxm`], or [`BindOptions::protocol`] saves the first attempt. Such an
//! endpoint finds native peers by a second attempt, but the first may leave an unused connection at
//! a native libfabric peer.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{EpType, Hints, Protocol, discover};
//! let found = discover(&Hints::new().provider("tcp;ofi_rxm").ep_type(EpType::Rdm))?;
//! assert!(found.iter().all(|info| info.ep.protocol == Some(Protocol::Rxm)));
//! // Without this hint the native protocol comes first.
//! let found = discover(&Hints::new().provider("tcp").ep_type(EpType::Rdm))?;
//! assert_eq!(found[0].ep.protocol, Some(Protocol::Tcp));
//! # Ok(()) }
//! ```
//!
//! Differences towards an RXM peer:
//!
//! * A message of more than 16 KiB stays in the sender's buffer until the peer reads it; the send
//!   completes when the peer has it. This side reads ahead within the budget, a libfabric peer only
//!   when a receive is posted.
//! * `FI_DELIVERY_COMPLETE` of messages is refused by the send.
//! * Reads and writes are as with native peers. A libfabric RXM peer is slow to notice the end of a
//!   connection; what it posts before fails there with `FI_ENOTCONN`.
//! * Atomic operations work with libfabric peers that asked for `FI_ATOMIC`, in both directions,
//!   with the types and operations that both have. A wrong one fails alone with [`Error::Key`],
//!   because libfabric does not say what was wrong. Values must be aligned to their size here. A
//!   libfabric peer sends up to 16288 bytes of values in up to four places, all checked before the
//!   first changes.
//! * Libfabric executes atomic operations later than reads and writes that follow them, so reads
//!   and writes wait here for earlier atomic operations to such a peer.
//! * An unexpected message beyond the budget holds back only messages: up to 8 MiB per connection
//!   are buffered, so that the responses behind it are read.
//!
//! # Connections
//!
//! The first message to a peer, or an `add_peer`, makes a connection, which both sides use. When
//! both connect at once, that of the greater address stays, as in libfabric. No listener is
//! [`NoSuchPeer`](Error::NoSuchPeer); no answer within ten seconds is
//! [`TimedOut`](Error::TimedOut).
//!
//! The end of a connection fails the pending operations to that peer and is a
//! [`PeerDown`](EventKind::PeerDown). The next message connects again, so a restarted peer is
//! reached. Complete messages that had arrived are still received. TCP does not distinguish a
//! process that was killed between two messages from a closed endpoint: both are
//! [`DownReason::Closed`]. A machine that vanishes is noticed after 30 seconds of silence
//! ([`SocketOptions::idle_timeout`]), or, if bytes are on their way to it, when the kernel gives
//! up.
//!
//! [Connected endpoints](super::connected_endpoints) use the same wire format, and the rest of this
//! chapter holds for them too.
//!
//! # What "sent" means
//!
//! A send completes when the kernel's socket buffer has all bytes of the message, as after Tokio's
//! `write_all`, over epoll and io_uring. The kernel sends them even if this process computes or
//! ends. That is more than `FI_INJECT_COMPLETE`, the level that the offer names;
//! `FI_TRANSMIT_COMPLETE` is not offered. It does not mean that the peer has the message: what a
//! peer had not read is lost when it dies, and, as with any TCP socket, when this process ends
//! without having read what the peer sent.
//!
//! Short messages that are posted before the first is awaited (`start`, `post`, `post_all`,
//! `join!`) are batched: the next poll that is not ready, or the driver, hands them to the kernel
//! in one system call, and they complete. Messages that are awaited one by one take a call each. An
//! [injected](Request::inject) message reports nothing: [flush](super::batching#flush) before the
//! process ends.
//!
//! [`delivery_complete`](Request::delivery_complete) waits for the peer's acknowledgement: the
//! message is at the peer's endpoint, though perhaps not in a receive, as in libfabric.
//! `FI_MATCH_COMPLETE` is not offered.
//!
//! A closed endpoint goes on handing over what was sent, in the background, for up to five seconds.
//! With [zero copy](#sockets), buffer and connection stay until the peer reads or the connection
//! ends.
//!
//! # Remote memory
//!
//! [One-sided operations](super::one_sided) differ from `shm` as follows:
//!
//! ```
//! # #[tokio::main(flavor = "multi_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Access, Endpoint, Progress};
//!
//! // Under automatic progress it serves its memory whatever the program does.
//! let owner = Endpoint::options().progress(Progress::Auto).bind("tcp://").await?;
//! let region = owner.domain().alloc(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! let own = owner.domain().register(vec![7u8; 100], Access::REMOTE_READ, None)?;
//!
//! let user = Endpoint::bind("tcp://").await?;
//! let peer = user.add_peer(owner.name()).await?;
//! user.write(peer, region.remote().at(8), "hello").await?;      // in the region when it completes
//! assert_eq!(region.load::<u8>(8)?, b'h');
//! assert_eq!(user.read(peer, own.remote().slice(..3)).await?[..], [7, 7, 7]);
//! # Ok(()) }
//! ```
//!
//! * The owner executes every operation, on allocated regions and registered buffers, so it must
//!   make progress. There are no windows. One operation has up to four remote ranges.
//! * Every operation waits for its response: a read for the bytes, a write for an acknowledgement
//!   that is sent when the bytes are in place.
//! * A write may overtake an earlier read: responses are sent when there is room, and read the
//!   memory then. [`MsgOrder::WAR`] and `SAR` are not offered; use a
//!   [fence](super::ordering#fences).
//! * While the owner holds the slice of a registered buffer, or its queue has no room for a write
//!   with data, the connection waits.
//! * Rights belong to no connection: every peer that can connect and knows a key has them.
//!
//! Endpoints of this library negotiate atomic operations and error responses, invisibly to
//! libfabric. **A libfabric peer** has no error response: a wrong key, right or range ends the
//! connection. Pending operations fail with [`PeerGone`](Error::PeerGone), and a wrong access by
//! the peer is [`Protocol`](Error::Protocol) on this side. Atomic operations on its memory are
//! [`NotSupported`](Error::NotSupported), unless it speaks [RXM](#the-rxm-protocol). Keys have 64
//! bits; offsets count from the start of the region, or are [virtual
//! addresses](super::one_sided#regions). Libfabric before 1.18 reports no length with the data of a
//! write.
//!
//! # Slow and hostile peers
//!
//! An [unexpected message](super::memory#unexpected-messages) beyond the budget stops reading from
//! its connection, and TCP holds the sender back. Sends to a peer that does not read wait with
//! their own credits. Other connections go on.
//!
//! A peer that requests more than it reads has at most 1024 requests queued and costs one segment
//! of a response at a time; then its connection is not read. Responses and messages to one peer
//! alternate every 64 KiB.
//!
//! Everything from a peer is checked before use, and an announced length allocates no memory until
//! its bytes arrive. A peer that violates the protocol loses its connection. A connection has ten
//! seconds to complete its handshake; at most 64 may be pending. There is no authentication and no
//! encryption: every process that reaches the port is a peer, and one that uses a peer's IP address
//! can pass for it. Use WireGuard or IPsec on networks that are not trusted.
//!
//! # epoll and io_uring
//!
//! While tasks poll, sockets are read and written by nonblocking system calls. [`SocketIo`]
//! selects, per domain and before its first endpoint, what happens while it sleeps or a socket is
//! full:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error, SocketIo};
//! let ep = match Endpoint::options().socket_io(SocketIo::IoUring).bind("tcp://").await {
//!     // A container that forbids it, or an old kernel.
//!     Err(Error::Os { call: "io_uring_setup", .. }) => Endpoint::bind("tcp://").await?,
//!     ep => ep?,
//! };
//! # drop(ep); Ok(()) }
//! ```
//!
//! | value | effect |
//! |---|---|
//! | [`SocketIo::Epoll`] | the kernel reports readable and writable sockets, and a pass makes the calls |
//! | [`SocketIo::IoUring`] | Linux 6.0 or later. Before it sleeps, the domain submits receives for all connections, into 1 MiB of its memory. The rest of a long message is sent from its buffer in one submission. The kernel enforces connect timeouts. |
//! | [`SocketIo::Auto`], the default | `FABRIC_SOCKET_IO`: `epoll`, `io_uring` or `auto`, which is epoll. From the variable, `io_uring` falls back to epoll where the kernel refuses it. |
//!
//! The `Debug` text of a domain says which is used. io_uring is not used in a forked child. Under
//! manual progress the kernel completes submissions when the submitting thread makes a system call
//! or sleeps; a thread that computes delays them until the next clock tick.
//!
//! # Sockets
//!
//! [`SocketOptions`] are set per domain, before its first endpoint:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, SocketIo, SocketOptions};
//! let options = SocketOptions::new().port_range(41_000..=41_999).zero_copy_threshold(256 << 10);
//! // Asking for io_uring fails where the kernel refuses it.
//! # if Endpoint::options().socket_io(SocketIo::IoUring).bind("tcp://").await.is_err() { return Ok(()) }
//! let ep = Endpoint::options().socket_io(SocketIo::IoUring).socket_options(options);
//! let ep = ep.bind("tcp://").await?;
//! # let peer = ep.add_peer(ep.name()).await?;
//! # let receiving = ep.recv().start()?;
//! let sent = ep.send(peer, vec![7; 1 << 20]).await?;   // completes when the peer's machine has it
//! # receiving.await?;
//! assert_eq!(sent.buf.len(), 1 << 20);
//! println!("{} without a copy", ep.stats().zero_copy);
//! # Ok(()) }
//! ```
//!
//! * **Ports**: where endpoints listen that bind port 0. The kernel chooses the ports they connect
//!   from.
//! * **Congestion control**: `reno` inside this machine, because `bbr`, the default of some
//!   machines, paces to half of what is possible (`fabric-bench rate --provider tcp --congestion
//!   bbr`); the machine's default elsewhere.
//! * **Socket buffers**: a fixed size ends the kernel's autotuning. For long paths only, where
//!   bandwidth times round trip exceeds what the kernel grows to.
//! * **Zero copy** ([`zero_copy_threshold`](SocketOptions::zero_copy_threshold)): the network
//!   interface reads long messages and writes from your buffer. io_uring only; ignored with epoll
//!   and by passive endpoints. Where the kernel copies nevertheless, it says so, and the connection
//!   stops asking; [`EndpointStats`] counts both. Such a send completes when the peer's machine has
//!   acknowledged it, so it waits for a peer that does not read, also when it is canceled or its
//!   endpoint is closed, and completions may leave posting order.
//! * **Traffic class**: the [`TrafficClass`] of the hints, for the domain or the transmit context,
//!   is written to every packet as a DSCP ([`TrafficClass::dscp`]), by each side for what it sends.
//!
//! # What is not there
//!
//! The rendezvous of the native protocol, which is negotiated off, and RXM's rendezvous by writing.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
