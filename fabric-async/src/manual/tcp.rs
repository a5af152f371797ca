//! Over TCP: addresses, connections, what "sent" means, and what is not there.
//!
//! The provider `tcp` carries messages, tagged and untagged, between processes on this machine and on others. It speaks
//! the wire of libfabric's native endpoints without connections: the provider `tcp` of libfabric 1.18 and later, `net` of
//! 1.16 and 1.17 (`FI_PROTO_XNET`).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//!
//! let server = Endpoint::bind("tcp://127.0.0.1:0").await?;          // port 0: any that is free
//! let client = Endpoint::bind("tcp://127.0.0.1:0").await?;
//! let peer = client.lookup(server.name()).await?;                   // as fi_tcp://127.0.0.1:40189
//! client.send(peer, "hello").tag(7).await?;
//! let got = server.recv().tag(7).await?;
//! server.send(got.source()?, "and back").await?;                    // over the same connection
//! assert_eq!(&client.recv().await?[..], b"and back");
//! # Ok(()) }
//! ```
//!
//! # Addresses
//!
//! An address is the IP address and port where an endpoint listens: `tcp://10.0.0.5:7000`, `tcp://[2001:db8::1]:7000`.
//! `fi_sockaddr_in://` and `fi_sockaddr_in6://` say the same. Names of hosts are not looked up. `tcp://` alone binds to the
//! network inside this machine, or, in a domain of a certain network, to this machine's address there.
//!
//! [`discover`](crate::discover()) offers any network (fabric `tcp`, domain `tcp`), and then each that this machine is in, as
//! `fi_info` does: the fabric `192.0.2.0/24`, the domain `eth0`, and the address there. The latter is a choice of
//! address, not a wall: an endpoint that is given another one is bound to that. Link-local addresses (`fe80::`) are not offered, for
//! they say nothing without the link.
//!
//! An endpoint listens at one address of one machine, not at all of them (`0.0.0.0`): it calls its peers from that address,
//! and they know it by it. An endpoint on `127.0.0.1` reaches no other machine.
//!
//! # Talking with libfabric
//!
//! A peer may be a program with libfabric, with nothing changed there: an endpoint of type `FI_EP_RDM` of the provider `net` of
//! libfabric 1.16 and 1.17, or `tcp` since 1.18. Its name is a `sockaddr_in` or `sockaddr_in6`, which is
//! [`Address::socket`](crate::Address::socket) here; how programs tell each other their names is theirs. The example
//! `fi_pingpong` is a whole program of that kind: a peer for libfabric's own `fi_pingpong`.
//!
//! Two things to know. A libfabric program makes progress only while it looks at its queues: it accepts nobody and takes nothing
//! in between. And it reads no further than the first message that it has no receive for, but for a few short tagged ones;
//! what is behind that waits.
//!
//! # Connections
//!
//! The first message to a peer, or a `lookup`, makes a connection; both sides send over it. Where both dial at once,
//! the connection stays that the greater address has asked for, as in libfabric, and messages wait meanwhile. Nobody there
//! is [`NoSuchPeer`](crate::Error::NoSuchPeer) as soon as the network says so, and after ten seconds if it says nothing.
//!
//! A connection that ends fails what is under way to that peer, and is [`PeerDown`](crate::EventKind::PeerDown); the
//! next message dials anew, so a peer that was started again under its address is reached again. What had come before is still
//! received, but for half a message. TCP does not tell a process that was killed between two messages from an endpoint
//! that was closed: both are [`Closed`](crate::DownReason::Closed). A machine that goes without a word is noticed after half
//! a minute of silence, or, if something is on its way to it, when the network gives up.
//!
//! # Sent
//!
//! A send that has ended well says this: the buffer is free, and the message is with this machine's network, or is about
//! to be handed to it by whoever drives the domain (`FI_INJECT_COMPLETE`). It does not say, as over shared memory, that the
//! peer has it. If the peer dies, what it had not read is lost, though it was sent. Who must know waits for an
//! answer. Libfabric peers that ask for delivery to be acknowledged are answered when the whole message has arrived.
//!
//! An endpoint that is closed goes on handing over what was sent, in the background, for up to five seconds.
//!
//! Several short messages that are sent between two looks at the domain leave together, with the first one ahead.
//!
//! # Slow and hostile peers
//!
//! A message nobody has asked for is buffered within the endpoint's budget of 16 MiB. Beyond it that connection is not read
//! until somebody asks, and TCP holds its sender back; other connections go on. What is to be sent to a peer that does
//! not read waits in its own queue, with credits of its own.
//!
//! What a peer writes is checked before it is used, and a length is a claim until the bytes are there: no memory is taken
//! for it. A peer that breaks the rules loses its connection. Somebody who connects has ten seconds to say who it is,
//! and at most 64 may be saying it.
//!
//! The wire knows no authentication and no encryption: whoever reaches the port is a peer, and whoever can connect from a peer's
//! IP address can pass for it. Networks that are not trusted need something below, as WireGuard or IPsec.
//!
//! # epoll and io_uring
//!
//! While somebody looks for messages, sockets are read and written by calls that do not block; nothing is faster. What happens
//! when nobody looks, or when a socket is full, can be chosen, for a domain before its first endpoint:
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
//! * [`SocketIo::Epoll`](crate::SocketIo::Epoll): the kernel tells that a socket has something, or room again, and a pass
//!   makes the calls.
//! * [`SocketIo::IoUring`](crate::SocketIo::IoUring): before it sleeps the domain has the kernel receive from all connections at
//!   once, into memory of the domain (1 MiB), and is woken with the bytes. The rest of a long message for which a socket has no room is
//!   handed over in one piece, and sent from where it lies without waking anybody. Linux 6.0 or later.
//! * [`SocketIo::Auto`](crate::SocketIo::Auto), the default: what `FABRIC_SOCKET_IO` says, `epoll`, `io_uring` or `auto`. `auto`
//!   is epoll. From the variable `io_uring` is a wish: where the kernel refuses it, it is epoll. The `Debug` output of a
//!   domain tells which it is.
//!
//! A ring is never used in a forked child. Under manual progress the kernel does its work when the thread that handed it over
//! makes a call or sleeps; a thread that computes for long holds it up until the next tick of the clock.
//!
//! # What is not there
//!
//! One-sided operations and atomics, `FI_DELIVERY_COMPLETE`, connected endpoints (`FI_EP_MSG`), libfabric's layered
//! protocol (`tcp;ofi_rxm`, which Debian 12's `fi_pingpong -p tcp -e rdm` speaks), its rendezvous, which is agreed off when a
//! connection begins. [`discover`](crate::discover()) refuses hints for the first three by name; the others are
//! not offered.
