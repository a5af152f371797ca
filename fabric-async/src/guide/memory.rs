//! Memory: who owns a buffer, how much is buffered, and what can a peer do to it?
//!
//! # Owned buffers
//!
//! A buffer is given to an operation and comes back with its end. Between the two it belongs to the
//! operation: a future that is dropped or forgotten cannot free memory that a copy is still using.
//! Success gives it back in [`Done`], failure in [`Failed`], a refused post in [`Failed`] at once,
//! a queue in [`Completion::into_result`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error};
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.lookup(ep.name()).await?;
//! let mut buf = vec![7; 100];
//! for _ in 0..3 {
//!     buf = ep.send(me, buf).await?.into_buf();            // the same allocation each time
//! }
//! let small = ep.recv_into(vec![0; 10].into_boxed_slice()).await.unwrap_err();
//! assert_eq!(small.error, Error::Truncated { len: 10, lost: 90 });
//! assert_eq!(&small.buf[..], [7; 10]);                     // what fitted, in your buffer
//! # Ok(()) }
//! ```
//!
//! | type | send | receive: room | length afterwards |
//! |---|---|---|---|
//! | `Vec<u8>`, `BytesMut` | yes | its *capacity* | that of the message |
//! | `Box<[u8]>` | yes | its length | unchanged; the message is at the start |
//! | [`PooledBuf`] | yes | any message | that of the message |
//! | `Box<dyn` [`CustomBuf`]`>` | yes | its window | as it is told |
//! | [`Loan`](crate::Loan) | as a copy | cannot receive | |
//! | `Bytes`, `String`, `&'static str`, `&'static [u8]`, `&'static [u8; N]` | yes | cannot receive | |
//! | [`Gather`](crate::Gather) | yes | cannot receive | |
//! | [`Scatter`](crate::Scatter) | what it has received | that of its parts | each part for itself |
//!
//! A vector's room is its capacity, so `Vec::with_capacity(64)` and `vec![0; 64]` are equally good,
//! and a vector that once held more takes more. [`Done`] dereferences to the valid bytes of every
//! type that has them in one place. A message that is longer than the room is [`Error::Truncated`]:
//! its first bytes are in the buffer, the others are gone.
//!
//! # Vectors of buffers
//!
//! A header here and a body there need not be joined first: [`Gather`](crate::Gather) is several
//! buffers that go out as one message or one write, [`Scatter`](crate::Scatter) several that one
//! message, or what is read, is laid into. The pieces go straight into the ring or the peer's
//! region, and straight out of it; the other side does not see how a message was cut. Each buffer
//! of a `Scatter` is filled before the next one gets anything. Empty pieces and empty vectors are
//! fine: a message of nothing is a message. What does not fit is [`Error::Truncated`], as always.
//! There may be `tx.iov_limit` buffers, of a receive `rx.iov_limit` (64 with `shm`, 16 with `sim`);
//! more are [`Error::TooLong`](crate::Error::TooLong), and come back.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Gather, Scatter};
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.lookup(ep.name()).await?;
//! let body = bytes::Bytes::from_static(b"the body, wherever it lies");
//! let mut sent = ep.send(me, Gather::from((vec![1u8; 8], body))).await?.into_buf();
//! let header = sent.take::<Vec<u8>>(0);                    // the parts come back
//!
//! let room = Scatter::from((Vec::with_capacity(8), Vec::with_capacity(100)));
//! let got = ep.recv_into(room).await?.into_buf().into_parts::<Vec<u8>>().expect("two vectors");
//! assert_eq!((Some(&got[0]), &got[1][..]), (header.as_ref(), &b"the body, wherever it lies"[..]));
//! # Ok(()) }
//! ```
//!
//! # Pooled buffers
//!
//! [`Endpoint::recv`] needs no buffer: it takes one from the domain's pool when a message arrives,
//! and grows it to the message. [`Done::into_bytes`] turns it into `Bytes` without copying,
//! [`PooledBuf::into_vec`] into a vector. The memory returns to the pool with its last owner. The
//! pool keeps sizes that are powers of two from 256 bytes to 1 MiB, and at most 4 MiB of each;
//! larger buffers come from the allocator and go back there. A message that waited as unexpected is
//! handed over as it is.
//!
//! # One buffer for many messages
//!
//! A buffer for each message is one post for each message, and as much room as the longest may
//! need. [`Endpoint::recv_multi`](crate::Endpoint::recv_multi) posts one large buffer instead, and
//! messages of any length are put into it one behind the other. Each is yielded as `Bytes` that
//! share the memory, so keeping one keeps the buffer; the memory goes when the last of them is
//! dropped. Once they are gone, `try_reclaim` makes what was left the whole buffer again:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! # use bytes::BytesMut;
//! # use fabric_async::Endpoint;
//! # use futures_util::StreamExt;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.lookup(b.name()).await?;
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
//! Two of them posted, and one posted again when it has ended, keep a fast sender going.
//!
//! # Your own kind of buffer
//!
//! [`CustomBuf`] is for memory of another kind: pinned, from an arena, mapped. Implementing it is
//! `unsafe`, because the bytes must stay where they are while the value moves. Its methods are
//! called with the lock of the domain held: they must be short, must not panic, and must not call
//! into the fabric. Its drop happens without the lock.
//!
//! # Memory that is lent
//!
//! A large message need not be copied at all. [`Endpoint::loan`](crate::Endpoint::loan) is memory
//! that peers can map; it is written in place and [lent](crate::Endpoint::lend), and what that
//! takes does not depend on its length. The receiver reads it where it lies, with
//! [`Endpoint::recv_lent`](crate::Endpoint::recv_lent), and holds it as long as the
//! [`Lent`](crate::Lent) lives; any other receive copies it, once. Then the memory comes back by
//! itself and is kept for the next loan of its size, rounded up to a power of two from 4 KiB. It
//! counts with 128 bytes towards the budget of unexpected messages, wherever it waits.
//!
//! Each piece of it is a descriptor of the lender's. How deep a pipeline of frames gets is for its
//! ends to say: 256 loans of 4 MiB are a gigabyte under way. Let the reader answer, and lend as
//! many as were answered.
//!
//! A peer may have 256 loans at a time; what is more is copied. A domain has 4 GiB of them at most,
//! then [`loan`](crate::Endpoint::loan) is [`Error::Again`](crate::Error::Again). What a peer had
//! whose connection ended is given up, since it may still be reading. What it received stays
//! readable after the sender's death. A peer keeps the memory mapped that it was lent once, and can
//! see what is written there later, also for others of the same user.
//!
//! # One copy
//!
//! A message goes through the ring in pieces, and is copied twice at the same time: in, and out. A
//! long one from an ordinary buffer, with nothing else on its way to the same peer, is copied once
//! instead. It stays in the sender's buffer; the receiver copies it straight from there, from
//! process to process (`process_vm_readv`), up to 256 KiB in a pass, and the send ends when it has
//! all of it. That takes half of the time or less where the kernel copies about as quickly as
//! processes do, which is tried when the first endpoint is opened; elsewhere nobody gets it
//! unasked. In a stream the ring is quicker, because one side fills it while the other empties it.
//! Who asks for it by a length gets it for each message of that length.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let ep = Endpoint::options().single_copy_from(1 << 20).bind("shm://").await?;
//! let me = ep.lookup(ep.name()).await?;
//! for len in [100_000, 2_000_000] {
//!     let (sent, got) = tokio::join!(ep.send(me, vec![7; len]), ep.recv());
//!     assert_eq!((sent?.transfer.len, got?.len()), (len, len));
//! }
//! let stats = ep.stats();
//! assert_eq!(stats.pieces.count + stats.single_copy.count, 2);   // which way they went
//! # Ok(()) }
//! ```
//!
//! * The length from which on this is done, by itself or not, is said with
//!   [`BindOptions::single_copy_from`](crate::BindOptions::single_copy_from) or
//!   [`DomainBuilder::single_copy_from`](crate::DomainBuilder::single_copy_from). With `usize::MAX`
//!   on either side it is not done: such a domain reads nobody's memory, and lets nobody read its
//!   own. Programs that distrust others of their user may want that: a sender whose memory answers
//!   slowly, because it lies in a file system of its own, holds up the receiver's domain. So may
//!   programs that a filter of system calls ends for `process_vm_readv`, which is otherwise called
//!   when the first endpoint is opened.
//! * Whether the kernel allows it is tried for each connection and direction when it is made: the
//!   receiver reads a number of the sender's. Process namespaces, Yama's `ptrace_scope`, filters of
//!   system calls and processes that cannot be dumped forbid it.
//! * [`EndpointStats`](crate::EndpointStats) counts what went which way, and the `Debug` text of a
//!   domain tells how many peers are read.
//! * A message nobody has asked for is copied into the budget of [unexpected
//!   messages](#messages-nobody-has-asked-for-yet) if it fits there. If not, it waits in the
//!   sender's buffer, costs 128 bytes of the budget, and holds up nothing behind it.
//! * A dropped send is delivered all the same: the operation keeps the buffer until the receiver
//!   has it. If the sender's endpoint closes or its process ends before, the message is lost and,
//!   where it was being received, the receive fails with [`Error::PeerGone`]; bytes that can be
//!   those of another are never seen.
//! * Buffers of your [own kind][`CustomBuf`] go through the ring: they may lie where no other
//!   process can read. So do several buffers that are [gathered](crate::Gather).
//!
//! # Messages nobody has asked for yet
//!
//! A message that no posted receive accepts is *unexpected*. It is copied out of the ring and kept,
//! so that the sender can go on, within a budget of 16 MiB per endpoint (4 MiB with the `sim`
//! provider). Each counts with its full length and 128 bytes. Over the budget nothing is dropped.
//! The message stays in the ring, and its sender is *held back*:
//!
//! * Only that sender. Others have rings of their own; but they share the budget for unexpected
//!   messages.
//! * Everything behind the message, in its ring, waits with it: also a message that a posted
//!   receive would take. A program that waits for tag 2 while a sender pours out tag 1 beyond the
//!   budget waits for ever. Post receives for what peers are allowed to send, or agree on limits.
//! * Posting a receive that accepts the message releases it.
//! * Answers that came after their timeout are such messages: see
//!   [`cancellation`](super::cancellation).
//! * A [probe](crate::Endpoint::probe) finds the message that is held back, and it alone is taken
//!   in beyond the budget.
//!
//! A message longer than the budget is not buffered when it arrives. It waits for its receive and
//! goes directly into the buffer.
//!
//! # Sizes
//!
//! | | |
//! |---|---|
//! | longest message | `info.ep.max_msg_size`: 2^40 bytes in `shm`, 2^30 in `sim`; more is [`Error::TooLong`] to send, and [`Error::Truncated`] to receive |
//! | longest [inject](crate::Endpoint::inject) | `info.tx.inject_size`: 4096 bytes, or what was asked for |
//! | ring | 128 KiB of shared memory per direction and peer, made with the first operation for the peer |
//! | name | 80 bytes of ASCII letters, digits and `._-:@+` |
//!
//! # When a peer dies
//!
//! The ring of a direction is made by its sender and mapped by both. Each side keeps its mapping
//! until it is done with it, so the death of the other cannot take it away. The survivor
//!
//! * still receives the messages that lie whole in the ring; those it had still to
//!   [copy](#one-copy) are gone;
//! * fails the receive a message was arriving in with [`Error::PeerGone`], or discards the part if
//!   nobody had it;
//! * fails the sends to the peer that had not ended, with their buffers, and receives directed at
//!   it;
//! * gets [`EventKind::PeerDown`] with a [`DownReason`].
//!
//! A receive from anybody goes on waiting. A send that had succeeded may have died unread, see
//! [`ordering`](super::ordering). The next send to the same name makes a new connection, or is
//! [`Error::NoSuchPeer`].
//!
//! What becomes of the peer's number? One that was looked up or inserted is the user's own. It
//! survives the death of the peer, and its restart, and costs a row of the table until it is
//! removed. The number of a guest is taken back by the welcoming address vector that gave it, once
//! the last message that had arrived before was received and looked at. [`serving`](super::client_server)
//! has the whole table.
//!
//! # Nothing left behind
//!
//! A name is a Unix socket in the abstract namespace, the memory has no name, the doorbell is that
//! socket. The kernel removes them all with the last process that holds them, also after `kill -9`.
//! There is no file to clean up, and the size of `/dev/shm` does not matter. A name in use cannot
//! be taken by a second endpoint: [`Error::AddressInUse`]. Abstract names belong to a network
//! namespace, so containers with separate networks do not see each other. Containers that share a
//! network do, also if each has process numbers of its own.
//!
//! # Trust
//!
//! Both sides ask the kernel for the other's effective user and deal only with their own. Between
//! processes of one user the rule is: what a peer writes is never believed. Lengths, tags and kinds
//! are copied out of the shared memory once and checked. The memory is sealed, so that it cannot
//! shrink under the reader. Memory for a long message is taken as its bytes arrive, beyond the
//! first MiB. A peer that breaks the protocol loses its connection, and the [`DownReason`] of its
//! [`EventKind::PeerDown`] says what it broke. A connection attempt that is refused is an
//! [`EventKind::Rejected`], with the error.
//!
//! What a hostile process of the same user *can* do:
//!
//! * name memory of its own that answers slowly (of a file system it serves) as a long message, and
//!   so hold up a domain that copies it, unless that is [turned off](#one-copy);
//! * change the bytes of its own messages while they are copied;
//! * use up the budget for unexpected messages, and descriptors, one connection after another;
//! * give a false name when it connects. A source is what the peer says, not a proof of who it is.
//!   What ends with an impostor is its own connection.
//!
//! Processes of one user can do worse to each other by other means. If they must not trust each
//! other, give them different users; they cannot connect then.
//!
//! [`Done`]: crate::Done
//! [`Done::into_bytes`]: crate::Done::into_bytes
//! [`Failed`]: crate::Failed
//! [`Completion::into_result`]: crate::Completion::into_result
//! [`PooledBuf`]: crate::PooledBuf
//! [`PooledBuf::into_vec`]: crate::PooledBuf::into_vec
//! [`CustomBuf`]: crate::CustomBuf
//! [`Endpoint::recv`]: crate::Endpoint::recv
//! [`Error::Truncated`]: crate::Error::Truncated
//! [`Error::TooLong`]: crate::Error::TooLong
//! [`Error::PeerGone`]: crate::Error::PeerGone
//! [`Error::NoSuchPeer`]: crate::Error::NoSuchPeer
//! [`Error::AddressInUse`]: crate::Error::AddressInUse
//! [`EventKind::PeerDown`]: crate::EventKind::PeerDown
//! [`EventKind::Rejected`]: crate::EventKind::Rejected
//! [`DownReason`]: crate::DownReason
