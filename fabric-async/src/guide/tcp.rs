//! The `tcp` provider: addresses, libfabric peers, completion, remote memory, io_uring, sockets.
//!
//! After this chapter you can use endpoints between machines, talk to libfabric programs, and
//! choose how sockets are driven.
//!
//! The provider carries tagged and untagged messages, reads, writes and atomic operations. Its wire
//! format is that of libfabric's connectionless endpoints (`FI_PROTO_XNET`): the provider `tcp`
//! since libfabric 1.18, `net` in 1.16 and 1.17. Endpoints also speak [RXM](#the-rxm-protocol).
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
//! with the schemes `fi_sockaddr_in://` and `fi_sockaddr_in6://`. Calls that take the text also
//! take a [`SocketAddr`](std::net::SocketAddr). Host names (`tcp://localhost:7000`) and names of
//! services (`tcp://localhost:http`) are resolved, on a blocking thread, by the calls that are
//! awaited ([`Endpoint::bind`], [`Endpoint::add_peer`], [`ConnectedEndpoint::connect`]) and by
//! [`resolve`](resolve()). The port is required. Port 0 binds a free one: [`Endpoint::name`] has
//! the port for peers. `tcp://` alone binds to the loopback address, or, in the domain of a network
//! interface, to the address of the interface. Objects that are opened from an info with the
//! address format `FI_SOCKADDR_IN` or `FI_SOCKADDR_IN6`
//! ([`Hints::addr_format`](crate::Hints::addr_format)) have addresses and peers of this IP version
//! only.
//!
//! An endpoint is bound to one address, not to all addresses of a machine (`0.0.0.0`): the endpoint
//! connects from that address, and peers identify it by that address. An endpoint on `127.0.0.1`
//! reaches no other machine ([`Unreachable`](Error::Unreachable)).
//!
//! [`discover`](discover()) offers first the fabric `tcp` with the domain `tcp`, for all networks,
//! and then each network of the machine, as `fi_info` does: fabric `192.0.2.0/24`, domain `eth0`.
//! The domain of an interface selects the default address; an endpoint may be bound to another
//! address. Link-local addresses (`fe80::`) are not offered.
//!
//! # Libfabric peers
//!
//! A peer may be an unmodified libfabric program with an endpoint of type `FI_EP_RDM`. Its name is
//! a `sockaddr_in` or `sockaddr_in6` ([`Address::socket_addr`]). The example `fi_pingpong` is such
//! a peer. A libfabric program makes progress only while it reads its queues, and its connection
//! reads no further than the first message without a receive, except for a few short tagged
//! messages.
//!
//! # The RXM protocol
//!
//! In libfabric 1.17 and older (Debian 12) the provider `tcp` with `FI_EP_RDM` is `tcp;ofi_rxm`,
//! another protocol (`FI_PROTO_RXM`). An endpoint accepts both protocols on one port. It connects
//! with the native protocol, tries RXM if the peer rejects the native protocol, and remembers the
//! peer's protocol.
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
//!   completes when the peer has it. An endpoint of this library reads an unexpected message within
//!   the budget, a libfabric peer only when a receive is posted.
//! * `FI_DELIVERY_COMPLETE` of messages is refused by the send.
//! * Reads and writes are as with native peers. A libfabric RXM peer is slow to notice the end of a
//!   connection; its operations posted before it notices fail with `FI_ENOTCONN`.
//! * Atomic operations work with libfabric peers that asked for `FI_ATOMIC`, in both directions,
//!   with the types and operations that both have. A refused atomic operation fails with
//!   [`Error::Key`] and leaves the connection open; libfabric does not tell the reason. Values must
//!   be aligned to their size here. A libfabric peer sends up to 16288 bytes of values for up to
//!   four ranges; all ranges are checked before the first value changes.
//! * Libfabric executes atomic operations later than reads and writes that follow them, so an
//!   endpoint of this library delays reads and writes until earlier atomic operations to such a
//!   peer have ended.
//! * An unexpected message beyond the budget holds back only messages: the messages behind it are
//!   buffered, so that the responses behind it are read. A connection may buffer 256 KiB in this
//!   way; what exceeds that counts towards the budget of its peer.
//!
//! # Connections
//!
//! The first message to a peer, or an `add_peer`, opens a connection, which both sides use. When
//! both sides connect at the same time, the connection of the greater address stays, as in
//! libfabric. Without a listener the operation fails with [`NoSuchPeer`](Error::NoSuchPeer),
//! without an answer within ten seconds with [`TimedOut`](Error::TimedOut).
//!
//! The end of a connection fails the pending operations to that peer and is a
//! [`PeerDown`](EventKind::PeerDown). The next message connects again, so a restarted peer is
//! reached. Complete messages that had arrived are still received. TCP does not distinguish a
//! process that was killed between two messages from a closed endpoint: both are
//! [`DownReason::Closed`]. A machine that vanishes is noticed after 30 seconds of silence
//! ([`SocketOptions::idle_timeout`]), or, if bytes are on their way to it, when the kernel gives
//! up.
//!
//! A connection request names the port at which its endpoint listens, and everybody can name any
//! port. So a request does not replace a connection whose peer is alive. The endpoint rejects the
//! request, lets the kernel probe its connection, and connects to the named address itself, at most
//! every 100 ms: the process that listens there accepts only if it has lost its connection. A peer
//! that was restarted, or has lost its connection, is thus connected again within about a second.
//!
//! [Connected endpoints](super::connected_endpoints) use the same wire format, and the rest of this
//! chapter holds for them too.
//!
//! # What "sent" means
//!
//! A send completes when the kernel's socket buffer has all bytes of the message, as after Tokio's
//! `write_all`, over epoll and io_uring. The kernel sends them while this process computes. They
//! can be lost if this process ends with unread bytes in the socket, as with any TCP socket, or if
//! the peer dies. That is more than `FI_INJECT_COMPLETE`, the level in the [`Info`];
//! `FI_TRANSMIT_COMPLETE` is not offered. The completion does not mean that the peer has the
//! message.
//!
//! Short messages that are posted before the first is awaited (`start`, `post`, `post_all`,
//! `join!`) are batched: the next poll that is not ready, or the driver, hands the batch to the
//! kernel in one system call, and the sends complete. Messages that are awaited one by one take a
//! system call each. An [injected](Request::inject) message reports nothing:
//! [flush](super::batching#flush) before the process ends.
//!
//! [`delivery_complete`](Request::delivery_complete) waits for the peer's acknowledgement: the
//! message is at the peer's endpoint, though perhaps not in a receive, as in libfabric.
//! `FI_MATCH_COMPLETE` is not offered.
//!
//! After an endpoint closes, its unsent bytes are written in the background for up to five seconds.
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
//! // Under automatic progress the owner serves its memory while the program computes.
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
//!   with data, the owner does not read the connection.
//! * Access rights do not depend on the connection: every peer that can connect and knows a key has
//!   the rights of the region.
//!
//! Endpoints of this library negotiate atomic operations and error responses in bytes that
//! libfabric ignores. **A libfabric peer** has no error response: a wrong key, right or range ends
//! the connection. Pending operations fail with [`PeerGone`](Error::PeerGone). If the peer made the
//! wrong access, they fail with [`Protocol`](Error::Protocol) on this side. Atomic operations on
//! its memory are [`NotSupported`](Error::NotSupported), unless it speaks [RXM](#the-rxm-protocol).
//! Keys have 64 bits; offsets count from the start of the region, or are [virtual
//! addresses](super::one_sided#regions). Libfabric before 1.18 reports no length with the data of a
//! write.
//!
//! # Slow and hostile peers
//!
//! An [unexpected message](super::memory#unexpected-messages) beyond the budget stops reading from
//! its connection, and TCP flow control stops the sender. Sends to a peer that does not read wait
//! and hold their credits. Other connections go on.
//!
//! For a peer that does not read its responses, at most 1024 requests and one segment of a response
//! are queued; then its connection is not read. Responses and messages to one peer alternate every
//! 64 KiB.
//!
//! Everything from a peer is checked before use, and an announced length allocates no memory until
//! its bytes arrive. A peer that violates the protocol loses its connection. A connection has ten
//! seconds to complete its handshake. At most 64 of one source and 256 in all may be pending; a new
//! one evicts the oldest of its source, or of the source with most. A source is an IPv4 address, an
//! IPv6 network of 64 bits, or the loopback addresses together.
//!
//! An endpoint accepts up to 4096 connections of peers that the program has not inserted in the
//! address vector ([`SocketOptions::max_inbound`]); all endpoints of a process together use at most
//! three quarters of `RLIMIT_NOFILE` for them. One source has at most half of the smaller of the
//! two limits ([`SocketOptions::max_inbound_per_source`]). Further ones are refused: they are
//! counted in [`EndpointStats::inbound_refused`] and are
//! [`InboundRefused`](EventKind::InboundRefused) events. Peers that the program has inserted are
//! always accepted.
//!
//! There is no authentication and no encryption: every process that reaches the port can be a peer,
//! also under the address of an endpoint of its machine that has no connection yet, and a process
//! that uses another machine's IP address can impersonate its endpoints. Use WireGuard or IPsec on
//! networks that are not trusted.
//!
//! # epoll and io_uring
//!
//! While tasks poll, sockets are read and written by nonblocking system calls. [`SocketIo`], set
//! per domain before its first endpoint, selects the system interface that is used while the domain
//! sleeps or a socket is full:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error, SocketIo};
//! let ep = match Endpoint::options().socket_io(SocketIo::IoUring).bind("tcp://").await {
//!     // The container forbids io_uring, or the kernel is too old.
//!     Err(Error::Os { call: "io_uring_setup", .. }) => Endpoint::bind("tcp://").await?,
//!     ep => ep?,
//! };
//! # drop(ep); Ok(()) }
//! ```
//!
//! | value | effect |
//! |---|---|
//! | [`SocketIo::Epoll`] | the kernel reports readable and writable sockets, and a pass makes the calls |
//! | [`SocketIo::IoUring`] | Linux 6.0 or later. Before it sleeps, the domain submits receives for all connections, into a buffer ring of 1 MiB. The rest of a long message is sent from its buffer in one submission. The kernel enforces connect timeouts. |
//! | [`SocketIo::Auto`], the default | the value of the environment variable `FABRIC_SOCKET_IO`: `epoll`, `io_uring` or `auto`, which is epoll. `io_uring` from the variable falls back to epoll where the kernel refuses io_uring. |
//!
//! The `Debug` text of a domain says whether epoll or io_uring is used. io_uring is not used in a
//! forked child. Under manual progress the kernel completes submissions when the submitting thread
//! makes a system call or sleeps; a thread that computes delays them until the next clock tick.
//!
//! # Sockets
//!
//! [`SocketOptions`] are set per domain, before its first endpoint:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, SocketIo, SocketOptions};
//! let options = SocketOptions::new().port_range(41_000..=41_999).zero_copy_threshold(256 << 10);
//! // `SocketIo::IoUring` fails where the kernel refuses io_uring.
//! # let refused = Endpoint::options().socket_io(SocketIo::IoUring).bind("tcp://").await.is_err();
//! # if refused { return Ok(()) }
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
//! * **Ports**: the range of ports for endpoints that bind port 0. The kernel chooses the local
//!   ports of outgoing connections.
//! * **Congestion control**: `reno` for connections inside this machine, because `bbr`, the default
//!   of some machines, paces them to half the bandwidth (`fabric-bench rate --provider tcp
//!   --congestion bbr`); the machine's default elsewhere.
//! * **Socket buffers**: a fixed size turns the kernel's autotuning off. Set it only for paths
//!   whose bandwidth-delay product exceeds the kernel's maximum.
//! * **Zero copy** ([`zero_copy_threshold`](SocketOptions::zero_copy_threshold)): the network
//!   interface reads long messages and writes from your buffer. io_uring only; ignored with epoll
//!   and by passive endpoints. If the kernel reports that it copied, the connection stops using
//!   zero copy; [`EndpointStats`] counts both. A zero-copy send completes when the peer's machine
//!   has acknowledged all bytes. The send therefore waits for a peer that does not read, also when
//!   the send is canceled or its endpoint is closed, and sends may complete out of posting order.
//! * **Traffic class**: the [`TrafficClass`] of the hints, for the domain or the transmit context,
//!   is written to every packet as a DSCP ([`TrafficClass::dscp`]). Each side sets the class of its
//!   own packets.
//!
//! # What is not there
//!
//! Neither the native rendezvous nor RXM's rendezvous by write is implemented. The native one is
//! negotiated off.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
