//! Over UDP: messages that are datagrams, what may become of them, groups, and what is not there.
//!
//! The provider `udp` has endpoints of type [`EpType::Dgram`](crate::EpType::Dgram): unreliable,
//! without connections, a message per datagram. It speaks the wire of libfabric's provider of that
//! name (`FI_PROTO_UDP`), which is UDP and nothing else: no header, no tag, no acknowledgement.
//! Whoever sends datagrams is a peer.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, EpType, Error};
//!
//! let server = Endpoint::bind("udp://127.0.0.1:0").await?;          // port 0: any that is free
//! let client = Endpoint::bind("udp://127.0.0.1:0").await?;
//! let peer = client.lookup(server.name()).await?;                   // as fi_udp://127.0.0.1:40189
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
//! # What may become of a message
//!
//! It may be lost, come twice, or come behind one that was sent after it. Inside one machine none
//! of that happens as long as the receiver looks in time. A send has ended well when this machine's
//! network has taken it (`FI_TRANSMIT_COMPLETE`), and nobody learns whether anybody was there: a
//! [`lookup`](crate::Endpoint::lookup) asks nobody either, and there are no events of peers that
//! come and go. What the network has to say later of a datagram that found nobody is not reported,
//! least of all as the failure of another. What it refuses at once, as an address without a route,
//! is the failure of that send.
//!
//! When the network has no room, sends wait for it, with their credits, as elsewhere.
//!
//! # Lengths
//!
//! A message has at most 1472 bytes, what Ethernet carries in one piece, and libfabric's limit as
//! well. A longer one is refused when it is posted. Others may send longer ones: a datagram that is
//! longer than this, or than the buffer that receives it, is
//! [`Truncated`](crate::Error::Truncated), which tells how much was lost. An empty one is a
//! message.
//!
//! # Messages nobody has asked for
//!
//! They are buffered within the endpoint's budget of 4 MiB (a message counts with 128 bytes more
//! than its length). Beyond it they are thrown away, and counted in
//! [`EndpointStats::dropped`](crate::EndpointStats::dropped): nobody can be held back. What the
//! kernel has thrown away, because nobody looked in time, is not counted there.
//!
//! # Addresses and senders
//!
//! An address is the IP address and port where an endpoint is bound: `udp://10.0.0.5:7000`,
//! `udp://[2001:db8::1]:7000`. Where `udp` is expected, `fi_sockaddr_in://` and
//! `fi_sockaddr_in6://` say the same. Names of hosts are looked up as over
//! [TCP](crate::guide::tcp#addresses). `udp://` alone binds to the network inside this machine. An
//! endpoint is bound to one address, not to all of a machine (`0.0.0.0`), and reaches those of its
//! own family. Addresses that mean something on one link only (`fe80::`) are not reached.
//!
//! The sender of a message is told by where it came from. If that is in the address vector, it is
//! the [`source`](crate::Done::source); a welcoming vector takes in whoever sends. Since nobody
//! takes leave, an endpoint remembers 1024 senders, and forgets one that has been silent for long
//! when another comes: the number of such a guest is taken back when none of its messages waits any
//! more. Who is to keep its number is [inserted](crate::AddressVector::insert) or looked up.
//!
//! An IP address proves nothing: whoever is let by the networks between can send under any. Nothing
//! is encrypted.
//!
//! # Groups
//!
//! [`Endpoint::join`](crate::Endpoint::join) joins a multicast group of IPv4 until the
//! [`Group`](crate::Group) is dropped. What is sent to the address of a group arrives at all its
//! members, those on other machines of the same network among them (a time to live of 1). Groups
//! are joined, and sent to, on the network of the endpoint's own address: endpoints on `127.0.0.1`
//! meet inside this machine. A libfabric peer is a member if it is bound to all addresses of its
//! machine and the port of the group.
//!
//! # Sockets
//!
//! Of [`SocketOptions`](crate::SocketOptions), the buffers and the ports concern datagrams too. A
//! larger receive buffer holds longer floods: the machine's own limit is `net.core.rmem_max`.
//! Traffic classes are as over [TCP](crate::guide::tcp#sockets).
//!
//! # What is not there
//!
//! Tags, completion data, directed receives, receives of several messages, fences,
//! `FI_MATCH_COMPLETE` and `FI_DELIVERY_COMPLETE`, one-sided operations and atomics: none of them
//! is offered, and using one is [`NotSupported`](crate::Error::NotSupported). Groups of IPv6, which
//! libfabric has not either. Its layered protocol, which makes datagrams reliable (`udp;ofi_rxd`).
//! io_uring.
