//! The `udp` provider: datagrams and multicast groups.
//!
//! After this chapter you can send and receive datagrams, join a multicast group, and know which
//! messages may be lost.
//!
//! Endpoints of type [`EpType::Dgram`] are unreliable and connectionless: one message per datagram,
//! in the wire format of libfabric's `udp` provider (`FI_PROTO_UDP`), which is plain UDP without
//! header, tag or acknowledgement. Every sender of datagrams is a peer. The example `fi_pingpong`
//! is a peer for libfabric's program of that name (`fi_pingpong -p udp -e dgram`), in either role.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, EpType, Error};
//!
//! let server = Endpoint::bind("udp://127.0.0.1:0").await?;          // port 0: any free port
//! let client = Endpoint::bind("udp://127.0.0.1:0").await?;
//! let peer = client.add_peer(server.name()).await?;               // as fi_udp://127.0.0.1:40189
//! client.send(peer, "hello").await?;
//! let got = server.recv().await?;
//! server.send(got.source()?, "and back").await?;
//! assert_eq!(&client.recv().await?[..], b"and back");
//!
//! assert_eq!((client.info().ep.ep_type, client.info().ep.max_msg_size), (EpType::Dgram, 1472));
//! let failed = client.send(peer, vec![0; 1473]).await.unwrap_err();
//! assert!(matches!(failed.error, Error::TooLong { .. }) && failed.buf.len() == 1473);
//! # Ok(()) }
//! ```
//!
//! # Delivery
//!
//! A message may be lost, duplicated or reordered. Inside one machine a message to an open endpoint
//! is lost only if the receiver's socket buffer is full or its [budget](#unexpected-messages) is
//! used up. A send completes when the kernel has the datagram (`FI_TRANSMIT_COMPLETE`). Later
//! network errors are not reported; an immediate one, such as an address without a route, fails
//! that send. [`add_peer`](Endpoint::add_peer) contacts no peer, and no event reports the start or
//! end of a peer. When the sender's socket buffer is full, sends wait with their credits.
//!
//! # Lengths
//!
//! A message has at most 1472 bytes, the payload of an Ethernet frame and libfabric's limit; a
//! longer one is refused by the post. The receive of a datagram that is longer than that, or than
//! the buffer, fails with [`Truncated`](Error::Truncated), which has the number of bytes lost. An
//! empty datagram is a message.
//!
//! # Unexpected messages
//!
//! Unexpected messages are buffered within a budget of 8 MiB, of which one sender can use 3.5 MiB.
//! Messages beyond the budget are
//! discarded and counted in [`EndpointStats::dropped`]. Datagrams that the kernel discards are not
//! counted there.
//!
//! # Addresses and senders
//!
//! Addresses have the same forms as over [`tcp`](super::tcp#addresses): `udp://10.0.0.5:7000`,
//! `udp://[2001:db8::1]:7000`, host names, `fi_sockaddr_in://` and `fi_sockaddr_in6://`. An
//! endpoint is bound to one address and reaches peers of its address family, without link-local
//! ones (`fe80::`).
//!
//! The [`source`](Message::source) of a message is the handle of the address it came from. An
//! auto-inserting vector inserts every sender. An endpoint keeps the handles of 1024 senders. A
//! further sender replaces the oldest of those that have sent one datagram. If more than 768 have
//! sent more than one, a further sender replaces one of these without recent datagrams, or else the
//! one that was recorded first. The handle of a replaced sender is valid until its waiting messages
//! were received; then it is stale, and the sender's next datagram gets a new handle. To keep a
//! handle, [insert](AddressVector::insert) the address or call [`add_peer`](Endpoint::add_peer). An
//! IP address is not authenticated, and nothing is encrypted.
//!
//! # Multicast
//!
//! [`Endpoint::join_multicast`] joins an IPv4 multicast group until the [`MulticastGroup`] is
//! dropped. A message to the group's address reaches all members on the network of the endpoint's
//! own address (time to live 1); a group of endpoints on `127.0.0.1` reaches members on this
//! machine only. A libfabric program receives the group's messages if it is bound to `0.0.0.0` and
//! the group's port.
//!
//! # Sockets
//!
//! Of [`SocketOptions`], the port range and the buffer sizes apply. A larger receive buffer holds
//! longer bursts, up to `net.core.rmem_max`. [Traffic classes](super::tcp#sockets) apply.
//!
//! # What is not there
//!
//! Tags, completion data, directed receives, multi-receive, fences, `FI_MATCH_COMPLETE`,
//! `FI_DELIVERY_COMPLETE`, one-sided and atomic operations are not offered, and fail with
//! [`NotSupported`](Error::NotSupported). There are no IPv6 groups (libfabric has none), no
//! reliable datagrams (`udp;ofi_rxd`), no shared receive contexts and no io_uring. There is one
//! domain for all interfaces.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
