//! Over TCP: addresses, connections, what "sent" means, memory of other machines, and what is not
//! there.
//!
//! The provider `tcp` carries messages, tagged and untagged, and reads and writes of memory,
//! between processes on this machine and on others. It speaks the wire of libfabric's native
//! endpoints without connections: the provider `tcp` of libfabric 1.18 and later, `net` of 1.16 and
//! 1.17 (`FI_PROTO_XNET`).
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
//! An address is the IP address and port where an endpoint listens: `tcp://10.0.0.5:7000`,
//! `tcp://[2001:db8::1]:7000`. `fi_sockaddr_in://` and `fi_sockaddr_in6://` say the same. A name of
//! a host, as in `tcp://localhost:7000`, is looked up by calls that are awaited, as
//! [`Endpoint::bind`](crate::Endpoint::bind), [`Endpoint::lookup`](crate::Endpoint::lookup) and
//! [`Endpoint::connect`](crate::Endpoint::connect), and by [`resolve`](crate::resolve()) for all
//! others, on a thread for calls that block. Behind an IP address or a host there is always a port.
//! Port 0 asks for a free one where an endpoint is bound: tell peers
//! [`Endpoint::name`](crate::Endpoint::name), which has it. `tcp://` alone binds to the network
//! inside this machine, or, in a domain of a certain network, to this machine's address there.
//!
//! [`discover`](crate::discover()) offers any network (fabric `tcp`, domain `tcp`), and then each
//! that this machine is in, as `fi_info` does: the fabric `192.0.2.0/24`, the domain `eth0`, and
//! the address there. The latter is a choice of address, not a wall: an endpoint that is given
//! another one is bound to that. Link-local addresses (`fe80::`) are not offered, for they say
//! nothing without the link.
//!
//! An endpoint listens at one address of one machine, not at all of them (`0.0.0.0`): it calls its
//! peers from that address, and they know it by it. An endpoint on `127.0.0.1` reaches no other
//! machine.
//!
//! # Talking with libfabric
//!
//! A peer may be a program with libfabric, with nothing changed there: an endpoint of type
//! `FI_EP_RDM` of the provider `net` of libfabric 1.16 and 1.17, or `tcp` since 1.18. Its name is a
//! `sockaddr_in` or `sockaddr_in6`, which is [`Address::socket`](crate::Address::socket) here; how
//! programs tell each other their names is theirs. The example `fi_pingpong` is a whole program of
//! that kind: a peer for libfabric's own `fi_pingpong`.
//!
//! What a program of libfabric 1.17 or older (Debian 12) calls the provider `tcp` with endpoints of
//! that type is another protocol, `tcp;ofi_rxm`: it is understood as well, see
//! [below](#the-other-dialect).
//!
//! Two things to know. A libfabric program makes progress only while it looks at its queues: it
//! accepts nobody and takes nothing in between. And it reads no further than the first message that
//! it has no receive for, but for a few short tagged ones; what is behind that waits.
//!
//! # The other dialect
//!
//! An endpoint answers whoever asks for a connection in its own dialect, on the same port: the
//! native one (`FI_PROTO_XNET`), or RXM (`FI_PROTO_RXM`, the provider `tcp;ofi_rxm` of any
//! libfabric). It asks in the native one itself, and once more in RXM if it is told that it was not
//! understood; what a peer speaks is remembered with its address. Peers of both kinds live side by
//! side. Nothing has to be said for that.
//!
//! Who knows that its peers speak RXM asks them in it at once, and saves the first question: with
//! the hint [`provider("tcp;ofi_rxm")`](crate::Hints::provider), which is answered by infos of the
//! protocol [`Protocol::Rxm`](crate::Protocol::Rxm), or with
//! [`BindOptions::protocol`](crate::BindOptions::protocol). Such an endpoint finds native peers
//! too, by a second question. The first one may leave a libfabric peer of the native kind with a
//! connection that nobody uses, so it is not the way to begin with strangers.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{EpType, Hints, Protocol, discover};
//! let found = discover(&Hints::new().provider("tcp;ofi_rxm").ep_type(EpType::Rdm)).await?;
//! assert!(found.iter().all(|info| info.ep.protocol == Some(Protocol::Rxm)));
//! // Without a wish the native dialect comes first.
//! let found = discover(&Hints::new().provider("tcp").ep_type(EpType::Rdm)).await?;
//! assert_eq!(found[0].ep.protocol, Some(Protocol::Tcp));
//! # Ok(()) }
//! ```
//!
//! What is otherwise towards a peer that speaks RXM:
//!
//! * A message of more than 16 KiB stays in its sender's buffer until the peer reads it from there.
//!   Its send ends when the peer says that it has all of it, so it waits for the peer's progress;
//!   this side reads ahead, into the endpoint's budget, and a libfabric peer only once a receive is
//!   there.
//! * `FI_DELIVERY_COMPLETE` of messages is refused, by the send: nothing in this dialect asks for
//!   it.
//! * Reads and writes are those of the native dialect, with everything that is said of them
//!   [below](#memory-of-other-machines), in both directions. A libfabric peer that speaks RXM takes
//!   a while to look after a connection that has ended: what it posts before that fails there with
//!   `FI_ENOTCONN`.
//! * Atomic operations are there with libfabric peers too, in both directions, in all types and
//!   operations that both have: not complex numbers and `long double`. A peer has to have asked for
//!   `FI_ATOMIC`. A wrong one fails alone, at this side with [`Error::Key`](crate::Error::Key),
//!   whichever of key, right and range was wrong, for libfabric does not say which. Here values lie
//!   at multiples of their size, as anywhere; libfabric's side does not ask for that. A libfabric
//!   peer sends up to 16288 bytes of values in up to four places, which are all checked before the
//!   first is touched.
//! * libfabric's RXM executes atomic operations when it comes to look at them, and its tcp provider
//!   reads and writes as they come. So reads and writes wait here for the responses to atomic
//!   operations that were posted before them to such a peer.
//! * A message nobody has asked for, and for which the budget has no room, holds up the messages
//!   behind it and nothing else: up to 8 MiB more are kept for each connection, so that the answers
//!   behind them are heard.
//!
//! # Connections
//!
//! The first message to a peer, or a `lookup`, makes a connection; both sides send over it. Where
//! both dial at once, the connection stays that the greater address has asked for, as in libfabric,
//! and messages wait meanwhile. Nobody there is [`NoSuchPeer`](crate::Error::NoSuchPeer) as soon as
//! the network says so, and [`TimedOut`](crate::Error::TimedOut) after ten seconds if it says
//! nothing. An endpoint that is bound to this machine's own address, as `tcp://` is, reaches nobody
//! elsewhere: that is [`Unreachable`](crate::Error::Unreachable).
//!
//! A connection that ends fails what is under way to that peer, and is
//! [`PeerDown`](crate::EventKind::PeerDown); the next message dials anew, so a peer that was
//! started again under its address is reached again. What had come before is still received, but
//! for half a message. TCP does not tell a process that was killed between two messages from an
//! endpoint that was closed: both are [`Closed`](crate::DownReason::Closed). A machine that goes
//! without a word is noticed after half a minute of silence, or what
//! [`SocketOptions::silence`](crate::SocketOptions::silence) says, or, if something is on its way
//! to it, when the network gives up.
//!
//! Endpoints that are connected with one peer are another type, with a chapter of their own:
//! [`connections`](super::connected_endpoints). They speak the same wire, and what follows holds for them
//! too.
//!
//! # Sent
//!
//! A send that has ended well says this: the buffer is free, and the message is with this machine's
//! network, or is about to be handed to it by whoever drives the domain (`FI_INJECT_COMPLETE`). It
//! does not say, as over shared memory, that the peer has it. If the peer dies, what it had not
//! read is lost, though it was sent.
//!
//! [`delivery_complete`](crate::SendRequest::delivery_complete) waits for the peer's
//! acknowledgement, which this wire has: all of the message is at the peer's endpoint then, and
//! what becomes of it is the peer's business. It may not be in a receive yet: that is less than
//! over shared memory, and as much as libfabric says. When a receive takes a message nobody says
//! (`FI_MATCH_COMPLETE` is not offered). Libfabric peers that ask for delivery to be acknowledged
//! are answered likewise.
//!
//! An endpoint that is closed goes on handing over what was sent, in the background, for up to five
//! seconds. What is [taken from where it lies](#sockets) is the exception: buffer and connection
//! stay until the peer reads or goes, or the kernel gives up on it, after minutes, also when
//! endpoint and domain are dropped.
//!
//! Several short messages that are sent between two looks at the domain leave together, with the
//! first one ahead.
//!
//! # Memory of other machines
//!
//! [`Endpoint::write`](crate::Endpoint::write), `read`, the calls for several places (up to four,
//! as libfabric's provider), data for the target's queue, and counters are those of [one-sided
//! operations](super::one_sided) everywhere:
//!
//! ```
//! # #[tokio::main(flavor = "multi_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Access, Endpoint, Progress};
//!
//! // Under automatic progress it serves its memory whatever the program does.
//! let owner = Endpoint::options().progress(Progress::Auto).bind("tcp://").await?;
//! let region = owner.domain().alloc(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! let own = owner.domain().register_buffer(vec![7u8; 100], Access::REMOTE_READ, None)?;
//!
//! let user = Endpoint::bind("tcp://").await?;
//! let peer = user.lookup(owner.name()).await?;
//! user.write(peer, region.remote().at(8), "hello").await?;          // it is there when this has ended
//! assert_eq!(region.load::<u8>(8)?, b'h');
//! assert_eq!(user.read(peer, own.remote().slice(..3)).await?[..], [7, 7, 7]);
//! # Ok(()) }
//! ```
//!
//! What is otherwise:
//!
//! * The owner's process does what is asked, with [`alloc`](crate::Domain::alloc)ed memory and
//!   registered buffers alike, so it has to make progress for every operation: under manual
//!   progress something in its domain must be waited for. There are no windows.
//! * Every operation waits for its answer: a read for the bytes, a write for an acknowledgement
//!   that is sent when the bytes are there. Many may be under way.
//! * What is posted behind a read may overtake it: long answers leave when there is room, and read
//!   the memory then. The offer lacks [`MsgOrder::WAR`](crate::MsgOrder::WAR) and `SAR`, as
//!   libfabric's does; who needs them posts a [fence](super::ordering). All other pairs keep their
//!   order.
//! * While the owner has a registered buffer in hand, or its queue has no room for what comes with
//!   data, the connection of who writes there waits, and everything behind it.
//! * Memory belongs to the connection in no way: whoever can connect to an endpoint that serves it,
//!   and knows a key, has the rights that were granted.
//!
//! Endpoints of this library tell each other why something was refused, and fail that operation
//! alone. They also have all atomic operations. Both is agreed on when a connection begins, in a
//! way that libfabric does not notice. **Of a libfabric peer** a wrong key, right or range ends the
//! connection, since its wire has no word for it: what was under way there fails with
//! [`PeerGone`](crate::Error::PeerGone), and the next operation connects anew; what it asks for
//! wrongly of this side ends its own. Atomic operations on its memory are
//! [`NotSupported`](crate::Error::NotSupported), unless it speaks [RXM](#the-other-dialect), which
//! has them.
//!
//! Keys and places are as in any domain here: keys of 64 bits, which the owner chooses or has
//! chosen; places from the start of the region, or addresses where the domain [agreed to
//! that](super::one_sided#memory-with-a-key). Libfabric's provider has the former (`mr_mode` empty).
//! It reports no length with the data of a write before 1.18.
//!
//! # Slow and hostile peers
//!
//! A message nobody has asked for is buffered within the endpoint's budget of 16 MiB. Beyond it
//! that connection is not read until somebody asks, and TCP holds its sender back; other
//! connections go on. What is to be sent to a peer that does not read waits in its own queue, with
//! credits of its own.
//!
//! A peer that asks for more than it reads has its questions wait, up to a thousand of them, and
//! costs one piece of an answer at a time; then it is not listened to until it reads. Answers and
//! messages to one peer take turns, at the end of each or every 64 KiB: neither a peer that asks
//! for more and more, nor an endpoint that sends more and more, keeps the other kind waiting longer
//! than what has begun.
//!
//! What a peer writes is checked before it is used, and a length is a claim until the bytes are
//! there: no memory is taken for it. A peer that breaks the rules loses its connection. Somebody
//! who connects has ten seconds to say who it is, and at most 64 may be saying it.
//!
//! The wire knows no authentication and no encryption: whoever reaches the port is a peer, and
//! whoever can connect from a peer's IP address can pass for it. Networks that are not trusted need
//! something below, as WireGuard or IPsec.
//!
//! # epoll and io_uring
//!
//! While somebody looks for messages, sockets are read and written by calls that do not block;
//! nothing is faster. What happens when nobody looks, or when a socket is full, can be chosen, for
//! a domain before its first endpoint:
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
//! * [`SocketIo::Epoll`](crate::SocketIo::Epoll): the kernel tells that a socket has something, or
//!   room again, and a pass makes the calls.
//! * [`SocketIo::IoUring`](crate::SocketIo::IoUring): before it sleeps the domain has the kernel
//!   receive from all connections at once, into memory of the domain (1 MiB), and is woken with the
//!   bytes. The rest of a long message for which a socket has no room is handed over in one piece,
//!   and sent from where it lies without waking anybody. Connections are begun by the kernel too,
//!   which ends an attempt that nobody answers when its time is over; errors are the same. Linux
//!   6.0 or later.
//! * [`SocketIo::Auto`](crate::SocketIo::Auto), the default: what `FABRIC_SOCKET_IO` says, `epoll`,
//!   `io_uring` or `auto`. `auto` is epoll. From the variable `io_uring` is a wish: where the
//!   kernel refuses it, it is epoll. The `Debug` output of a domain tells which it is.
//!
//! A ring is never used in a forked child. Under manual progress the kernel does its work when the
//! thread that handed it over makes a call or sleeps; a thread that computes for long holds it up
//! until the next tick of the clock.
//!
//! # Sockets
//!
//! [`SocketOptions`](crate::SocketOptions) say, for a domain before its first endpoint, what is set
//! on its sockets:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, SocketOptions};
//! let options = SocketOptions::new().ports(41_000..=41_999).receive_buffer(4 << 20);
//! let ep = Endpoint::options().socket_options(options).bind("tcp://").await?;
//! # drop(ep); Ok(()) }
//! ```
//!
//! * Ports: where endpoints listen that ask for any. Those they call from are the kernel's choice.
//! * Congestion control: connections inside this machine have `reno` unless something else is said,
//!   for `bbr`, which some machines have by default, paces them to half of what they can.
//!   `fabric-bench rate --provider tcp --congestion bbr` shows it. Others have what the machine
//!   has.
//! * Buffers of sockets: what is said ends the kernel's own adapting. For long ways only, where the
//!   bandwidth times the round trip is more than the machine lets the kernel grow to.
//! * Zero copy: [`zero_copy_from`](crate::SocketOptions::zero_copy_from) has the network take long
//!   messages and writes from where they lie, over io_uring; with epoll it says nothing. It is said
//!   of a domain, not of a door. For machines whose network reads the memory of programs:
//!   everywhere else the kernel copies them all the same, says so, and is not asked again on that
//!   connection. [`EndpointStats`](crate::EndpointStats) count both: one copy for each connection
//!   where it was given up.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, SocketIo, SocketOptions};
//! let options = SocketOptions::new().zero_copy_from(256 << 10);
//! // What asks for a ring by name fails where the kernel refuses one.
//! # if Endpoint::options().socket_io(SocketIo::IoUring).bind("tcp://").await.is_err() { return Ok(()) }
//! let ep = Endpoint::options().socket_io(SocketIo::IoUring).socket_options(options).bind("tcp://").await?;
//! # let peer = ep.lookup(ep.name()).await?;
//! # let receiving = ep.recv().start()?;
//! let sent = ep.send(peer, vec![7; 1 << 20]).await?;      // over when the peer's machine has all of it
//! # receiving.await?;
//! assert_eq!(sent.buf.len(), 1 << 20);                    // so nobody reads what is written here now
//! println!("{} without a copy", ep.stats().zero_copy);
//! # Ok(()) }
//! ```
//!
//! A send that is taken from where it lies ends later than others: not when the kernel has it, but
//! when the peer's machine has acknowledged it. So it waits for a peer that does not read, also
//! when it is taken back or its endpoint is closed in the middle, until that connection is gone;
//! completions may come in another order than posts. To drop its future is as safe as with any
//! other: the buffer is freed when nobody reads it any more.
//!
//! The [traffic class](crate::TrafficClass) that hints ask for, of the domain or of the transmit
//! context, is written into the header of every packet, as a code point for differentiated services
//! ([`TrafficClass::dscp`](crate::TrafficClass::dscp)), over IPv4 and IPv6, by both sides each for
//! what it sends. Networks heed it or do not.
//!
//! # What is not there
//!
//! The rendezvous of the native dialect, which is agreed off when a connection begins; and RXM's
//! rendezvous by writing, which libfabric has where both sides were told to. Neither is offered.
