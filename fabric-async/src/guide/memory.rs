//! Memory: buffers, pools, loans, buffering limits, and trust in peers.
//!
//! After this chapter you can choose a buffer type for each operation, avoid copies of large
//! messages, bound what peers make an endpoint hold, and know what another process can do to yours.
//!
//! # Owned buffers
//!
//! A buffer is moved into an operation and returned when the operation ends: in [`Done`] on
//! success, in [`Failed`] on failure or when the post is refused, and from
//! [`Completion::into_result`] on a queue.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error};
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.add_peer(ep.name()).await?;
//! let mut buf = vec![7; 100];
//! for _ in 0..3 {
//!     buf = ep.send(me, buf).await?.into_buf();            // the same allocation each time
//! }
//! let small = ep.recv_into(vec![0; 10].into_boxed_slice()).await.unwrap_err();
//! assert_eq!(small.error, Error::Truncated { len: 10, lost: 90 });
//! assert_eq!(&small.buf[..], [7; 10]);                     // the first bytes, in your buffer
//! # Ok(()) }
//! ```
//!
//! | type | send | room of a receive | length afterwards |
//! |---|---|---|---|
//! | `Vec<u8>`, `BytesMut` | yes | its *capacity* | that of the message |
//! | `Box<[u8]>`, `[u8; N]` | yes | its length | unchanged; the message is at the start |
//! | [`PooledBuf`] | yes | any message | that of the message |
//! | `Box<dyn` [`CustomBuf`]`>` | yes | its writable window | set by its methods |
//! | [`Loan`] | yes, without a copy over `shm` | cannot receive | |
//! | [`LoanedBuf`] | yes, without a copy where it can be lent | any message | that of the message |
//! | `Bytes`, `Arc<[u8]>`, `String`, `&'static str`, `&'static [u8]`, `&'static [u8; N]` | yes | cannot receive | |
//! | [`DeviceBuffer`](crate::buf::device::DeviceBuffer) | yes, copied from the device | its length | unchanged; the message is at the start |
//! | [`Gather`] | yes | cannot receive | |
//! | [`Scatter`] | what it has received | sum of its parts | set for each part |
//!
//! In a future that is spawned, `join!` of a send of a literal does not compile: rustc reports that
//! the implementation of `IoBuf` is not general enough. Send an array, a `Vec` or `Bytes`, or use
//! `.start()`.
//!
//! An array of up to 31 bytes lies in the operation itself: posting it allocates nothing. A longer
//! one is moved to the heap when its operation has to wait. A `String` cannot be received into,
//! because a peer may send bytes that are not UTF-8: receive a `Vec<u8>` and convert it.
//!
//! [`Done`] dereferences to the received bytes where the type has them in one slice. A message that
//! is longer than the room fails with [`Error::Truncated`]: its first bytes are in the buffer, the
//! rest is lost.
//!
//! A [`CustomBuf`] is memory of your own: pinned, mapped, from an arena. Its methods run under the
//! lock of the domain: they must be short, must not panic, and must not call the fabric.
//! Implementing it is `unsafe`: the bytes must stay in place while the value moves.
//!
//! A [`DeviceBuffer`](crate::buf::device::DeviceBuffer) is memory of a device. Only functions that
//! the program sets with [`Domain::set_device_copy`] copy it; see
//! [`device`](mod@crate::buf::device).
//!
//! # Vectored buffers
//!
//! [`Gather`] sends several buffers as one message or one write; [`Scatter`] receives one message,
//! or the bytes of a read, into several. The other side does not see the parts. A `Scatter` fills
//! each part before the next. Empty parts and empty vectors are valid. The number of parts is
//! limited by `tx.iov_limit` and `rx.iov_limit` (64 by default); more fail with [`Error::TooMany`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::buf::{Gather, Scatter};
//! use fabric_async::Endpoint;
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.add_peer(ep.name()).await?;
//! let body = bytes::Bytes::from_static(b"the body");
//! let mut sent = ep.send(me, Gather::from((vec![1u8; 8], body))).await?.into_buf();
//! let header = sent.take::<Vec<u8>>(0);                    // the parts come back
//!
//! let room = Scatter::from((Vec::with_capacity(8), Vec::with_capacity(100)));
//! let got = ep.recv_into(room).await?.into_buf().into_parts::<Vec<u8>>().expect("two vectors");
//! assert_eq!((Some(&got[0]), &got[1][..]), (header.as_ref(), &b"the body"[..]));
//! # Ok(()) }
//! ```
//!
//! # Pooled buffers
//!
//! [`Endpoint::recv`] takes a buffer when a message arrives, so the caller passes no buffer and a
//! message of any length fits. [`Message::into_bytes`] turns it into `Bytes` without a copy,
//! [`PooledBuf::into_vec`] into a vector. When the last owner drops the buffer, it is kept for the
//! next message. There are buffers of powers of two from 256 bytes to 1 MiB. Of each size, a
//! thread keeps 256 KiB for itself, in at most 32 buffers, and the threads of the process share
//! 4 MiB. Other buffers go back to the allocator. A thread that receives messages and drops them
//! takes and keeps its own buffers, without a lock.
//!
//! The memory of a pooled buffer is reserved once, at the length in the message's header. The
//! kernel provides pages as bytes arrive, so a peer that announces a length without sending costs
//! address space only. If the allocator refuses the length, the receive fails with
//! [`Error::OutOfMemory`] and the message is lost.
//!
//! # One buffer for many messages
//!
//! [`Endpoint::recv_multi`] posts one large buffer for many messages of any length, one behind the
//! other (`FI_MULTI_RECV`). Each message is yielded as `Bytes` that share the memory. When all are
//! dropped, `BytesMut::try_reclaim` makes the whole buffer available again:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! # use bytes::BytesMut;
//! # use fabric_async::Endpoint;
//! # use futures_util::StreamExt;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.add_peer(b.name()).await?;
//! let mut buf = BytesMut::with_capacity(4096);
//! for round in 0..3 {
//!     let mut messages = b.recv_multi(buf).min_free(1000).start()?;
//!     for len in [2000, 1000, 500] {
//!         a.send(to_b, vec![round; len]).await?;       // 596 bytes are left: fewer than 1000
//!     }
//!     let mut lengths = Vec::new();
//!     while let Some(message) = messages.next().await {
//!         lengths.push(message?.len());                // dropped here; or kept, with into_buf
//!     }
//!     assert_eq!(lengths, [2000, 1000, 500]);
//!     buf = messages.into_rest();
//!     assert!(buf.try_reclaim(4096));                  // the same memory, no allocation
//! }
//! # Ok(()) }
//! ```
//!
//! A receiver with two such buffers, each posted again when it is full, always has a posted
//! receive.
//!
//! # Loans
//!
//! [`Domain::loan`] allocates memory that peers can map. The program writes the loan in place and
//! [sends](Endpoint::send) it at a cost that does not depend on its length; then the peer has the
//! memory, and the [`Loan`] that the send returns is empty. [`Endpoint::recv_loan`] leaves the
//! bytes in place for as long as the [`LoanedBuf`] lives; any other receive copies them once. Then
//! the memory returns to the lender, which keeps it for the next loan of its size (a power of two
//! from 4 KiB). An unexpected loan counts 320 bytes towards the budget of unexpected messages.
//!
//! The lender could still write to the memory, so safe code cannot borrow the bytes of a
//! [`LoanedBuf`]. Safe methods copy the bytes out, in parts or through the stack, or have the
//! kernel write them to a descriptor. [`LoanedBuf::as_slice`] borrows the bytes; the method is
//! `unsafe`, for programs that trust their peers.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::io::Read;
//! use fabric_async::Endpoint;
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.add_peer(ep.name()).await?;
//! let mut frame = ep.domain().loan(10_000).await?;
//! frame.fill(3);
//! ep.send(me, frame).await?;
//! let frame = ep.recv_loan().await?.into_buf();
//!
//! let mut header = [0; 4];
//! assert_eq!(frame.read_at(0, &mut header), 4);
//! let mut sum = 0;
//! frame.for_each_chunk(|chunk| sum += chunk.iter().map(|byte| u64::from(*byte)).sum::<u64>());
//! assert_eq!((header, sum), ([3; 4], 30_000));
//!
//! let (mut reader, writer) = std::os::unix::net::UnixStream::pair()?;
//! let written = frame.write_to(&writer, 4)?;               // what is behind the header, or less
//! let mut copy = vec![0; written];
//! reader.read_exact(&mut copy)?;
//! assert!(written > 0 && copy.iter().all(|byte| *byte == 3));
//! # Ok(()) }
//! ```
//!
//! A received loan that is sent on stays a loan, along a chain of any length and back to the
//! lender: the next receiver maps the same memory, and the memory returns to the lender when the
//! last holder drops it. The send returns the [`LoanedBuf`], so one loan can be sent to several
//! peers.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let (source, filter) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let sink = Endpoint::bind("shm://").await?;
//! let (to_filter, to_sink) =
//!     (source.add_peer(filter.name()).await?, filter.add_peer(sink.name()).await?);
//! let mut frame = source.domain().loan(8 << 20).await?;
//! frame[0] = 7;
//! source.send(to_filter, frame).await?;
//! let frame = filter.recv_loan().await?.into_buf();
//! filter.send(to_sink, frame).await?;                      // returns the loan, dropped here
//! let frame = sink.recv_loan().await?;
//! assert!(frame.is_in_place() && frame.len() == 8 << 20);
//! assert_eq!((filter.stats().loaned, filter.stats().segmented.bytes), (1, 0));
//! # Ok(()) }
//! ```
//!
//! * Each loan is a file descriptor of the lender. An endpoint keeps the descriptors of up to 256
//!   received loans to send them on. All endpoints of a process keep at most a quarter of
//!   `RLIMIT_NOFILE`, and one endpoint at most half of that quarter. Further loans are copied when
//!   they are sent on, and so are loans that were received in another domain, or that a provider
//!   without loans sends.
//! * One peer may hold 256 loans; further ones are copied. A domain has at most 4 GiB of loans, or
//!   [`loan_limit`](DomainBuilder::loan_limit); beyond that [`Domain::loan`] waits until loans
//!   return, and [`Domain::try_loan`] fails with [`Error::WouldBlock`]. Waiting calls get loans in
//!   the order of the calls; a request above the limit fails at once.
//! * When the connection to a peer ends, the lender never reuses the memory of the loans that the
//!   peer holds, because the peer may still read it. Loans that a receiver holds stay readable. The
//!   same holds along a chain: the lender does not reuse a loan that any later holder lost, nor the
//!   loans that a process held or had sent on when it died, while their receivers still read them.
//! * A loan returns only while each process that has sent it on makes progress. The driver of the
//!   domain does so, unless its runtime is blocked.
//! * A peer keeps the memory of returned loans mapped, and can read what the lender later writes
//!   there for other peers.
//!
//! # Single copy
//!
//! A message normally goes through the ring in segments and is copied twice: the sender copies
//! segments in while the receiver copies earlier ones out. A long message to a peer with an empty
//! send queue is copied once instead: the message stays in the sender's buffer, the receiver copies
//! it with `process_vm_readv`, up to 256 KiB per pass, and the send ends when the receiver has all
//! bytes. A single copy takes half the time or less where the kernel copies about as fast as user
//! code. The library measures that when the first endpoint opens; where the kernel is slower,
//! single copy is off by default.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let ep = Endpoint::options().single_copy_threshold(1 << 20).bind("shm://").await?;
//! let me = ep.add_peer(ep.name()).await?;
//! for len in [100_000, 2_000_000] {
//!     let (sent, got) = tokio::join!(ep.send(me, vec![7; len]), ep.recv());
//!     assert_eq!((sent?.transfer.len, got?.len()), (len, len));
//! }
//! let stats = ep.stats();
//! assert_eq!(stats.segmented.count + stats.single_copy_tx.count, 2);   // by which path
//! # Ok(()) }
//! ```
//!
//! * [`BindOptions::single_copy_threshold`] and [`DomainBuilder::single_copy_threshold`] set a
//!   length from which every message is copied once. `usize::MAX` on either side turns single copy
//!   off. Turn it off where reading a peer's memory may block (memory mapped from a user-space file
//!   system), which delays the receiver's domain, or where a system call filter kills the process
//!   for `process_vm_readv`.
//! * Each connection tests in each direction whether the kernel allows `process_vm_readv`. Process
//!   namespaces, Yama's `ptrace_scope`, system call filters and non-dumpable processes forbid the
//!   call. [`EndpointStats`] counts both paths; the `Debug` text of a domain tells from how many
//!   peers it can copy.
//! * An unexpected message is copied if it fits into the [budget](#unexpected-messages). Otherwise
//!   it waits in the sender's buffer, counts 320 bytes towards the budget, and later messages pass
//!   it.
//! * A dropped send keeps its buffer until the receiver has the message. If the sender closes or
//!   dies before that, the message is lost: a receive from any source waits for the next message, a
//!   directed receive fails with [`Error::PeerGone`].
//! * A [`CustomBuf`] and a [`Gather`] of several buffers go through the ring.
//!
//! # Unexpected messages
//!
//! A message that no posted receive accepts is *unexpected*. It is copied out of the ring and kept,
//! within a budget of 16 MiB per endpoint or shared receive context (8 MiB with `udp`).
//! Each message counts with its buffer (a power of two from 256 bytes, beyond 1 MiB its length) and
//! 320 bytes. No message beyond the budget is dropped (except by [`udp`](super::udp)): the message
//! stays in the ring and the ring fills, so the sends of that peer wait.
//!
//! Each message is charged to its sender, so one peer does not use up the budget:
//!
//! * 2 MiB of the 16 MiB are a reserve. Of the other 14 MiB, a peer may use half of what the other
//!   peers leave: one peer alone gets 7 MiB, the next one 3.5 MiB. The peer of a
//!   [`ConnectedEndpoint`] gets the whole budget, unless the endpoint has a shared receive context.
//!   That budget has room for 16 messages of the endpoint's `max_msg_size` (at least 64 KiB), if
//!   this is less.
//! * A peer that has used its share can use 4 KiB of the reserve.
//! * A *source* is an IPv4 address or an IPv6 network of 64 bits over `tcp`, and another process
//!   over `shm`. All peers of a source that the program has not inserted share one limit: half of
//!   what the others leave of the 14 MiB, and 1 MiB of the reserve. Over `shm` so do inserted peers
//!   that this endpoint has not connected to. Insert the addresses of peers that you rely on.
//! * Messages of peers that have left stay, and count. When the reserve is used up too, or a limit
//!   of connections is reached, messages of the peers that use most are discarded, which
//!   [`EventKind::MessagesDiscarded`] and [`EndpointStats::discarded`] report.
//!
//! What follows for a message that has no room:
//!
//! * Everything behind the message in its ring or its stream waits too, even a message that a
//!   posted receive accepts. Over `shm`, a message that is [copied once](#single-copy) has room
//!   longer: only 320 bytes of it count until it is buffered. A program that waits for tag 2 while
//!   a sender floods tag 1 beyond the budget waits for ever. Post receives for what peers may send,
//!   or agree on limits. The event [`EventKind::PeerOverBudget`] names such a peer, once until all
//!   its buffered messages were received, and [`EndpointStats::held_connections`] counts the
//!   connections that wait now.
//! * Posting a receive that accepts the message takes it out of the ring. A
//!   [probe](Endpoint::probe) finds the message and leaves it there. For a claim the endpoint
//!   buffers the message, beyond the budget if need be. Such messages have a limit of their own, as
//!   large as the budget and with the same shares; one of them may be longer. A claim beyond the
//!   limit fails with [`Resource::BufferBeyondBudget`]: receive or discard claimed messages before
//!   the next claim. The message of a dropped claim counts until it is received.
//! * A message longer than the share of a peer is not buffered: it waits for its receive.
//! * A receive takes a buffered message before one that waits in its connection. But a message that
//!   waits is passed by later messages of other peers only a limited number of times: it is
//!   received even while they fill the budget again after each receive. Multi-receives, probes and
//!   claims keep to this too.
//! * Replies that arrive after a [timeout](super::cancellation#timeouts-and-tags) are unexpected
//!   messages.
//!
//! # Messages that stop arriving
//!
//! A message that arrives in pieces fills a receive or a buffer from its first piece on; over `tcp`
//! from the first 4 KiB on. A receive that is posted takes a whole message of another peer before
//! one that is arriving in a buffer. If less than 4 KiB of a message follow in 100 milliseconds, a
//! whole message of another peer may take its receive. What has arrived then goes to another
//! receive, or is buffered within the share of its sender; the rest may still arrive.
//!
//! The connection of a message without progress ends with [`DownReason::Stalled`] after the
//! [progress timeout](crate::BindOptions::progress_timeout), 30 seconds by default. It ends after
//! an eighth of that time if another message waits for the receive, and the stalled message is
//! longer than the share of its sender. [`Endpoint::disconnect`] ends the connections with a peer
//! at once.
//!
//! # Cleanup after a crash
//!
//! A name is a Unix socket in the abstract namespace, and the shared memory is a memfd. The kernel
//! removes both with the last process that holds them, also after `kill -9`: no file is left, and
//! the size of `/dev/shm` does not matter. The surviving peer still receives the messages that are
//! complete in the ring; [`client_server`](super::client_server#when-a-peer-dies) has the errors of
//! its operations.
//!
//! A name in use cannot be bound again ([`Error::AddressInUse`]). Abstract names belong to a
//! network namespace: containers reach each other if they share the network, also with separate
//! process namespaces.
//!
//! # Trust
//!
//! `shm` connects processes of one effective user only. The kernel's credentials of a peer are
//! checked before anything is received from it; another user gets [`Error::OtherUser`], and a poll
//! refuses at most two such connections, so they do not delay peers of this user. Between processes
//! of one user, nothing that a peer writes is trusted: lengths, tags and kinds are copied out of
//! shared memory once and then checked, and the memory is allocated, and sealed so that it cannot
//! shrink. A peer that breaks the protocol loses its connection, and the [`DownReason`] of
//! [`EventKind::PeerDown`] says why. Connections that this endpoint refused are an
//! [`EventKind::InboundRefused`]. Descriptors from peers are closed on up to eight `fab-close`
//! threads, because `close` may block; while all of these are blocked and 64 descriptors wait, no
//! connection is accepted, and established ones go on. Memory of peers is released on a further
//! thread.
//!
//! All shared memory of a process, its own and that of its peers, takes at most a quarter of the
//! mappings that Linux permits (`vm.max_map_count`). Beyond it, `alloc`, `loan` and connecting fail
//! with [`Error::Os`] (`ENOMEM`), and peers that connect are refused. Received loans take at most
//! half of these mappings. A peer whose share is used up copies its loans into the ring; a peer
//! that grants more loans nevertheless loses its connection.
//!
//! A hostile process of the same user *can*
//!
//! * offer a long message in memory whose reads block, and so delay the domain that copies it,
//!   unless [single copy](#single-copy) is off;
//! * change the bytes of its own messages while they are copied;
//! * free pages of memory that it can write, with `fallocate`: if the machine has no memory when
//!   such a page is used again (strict overcommit), the access raises `SIGBUS`;
//! * use up the connections of an endpoint, with several processes: the endpoint then
//!   [refuses](crate::SocketOptions::max_inbound) further ones of peers that were not inserted;
//! * make the lender lose the memory of loans, by reporting them as lost or by ending the
//!   connection;
//! * give a false name when it connects: a source is not a proof of identity. A false name does not
//!   give access to the connection of the process with that name, and the end of the process that
//!   gave it ends no operation with that process.
//!
//! Run processes that must not trust each other as different users.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
