//! Overview: posting, dropping, memory bounds, and the death of a peer.
//!
//! After this chapter you can tell, for each call, when its operation is posted, what dropping its
//! future or handle does, which limit bounds the memory behind it, and where the death of a peer is
//! reported. The other chapters give the details.
//!
//! # When an operation is posted
//!
//! [`Endpoint::send`], [`Endpoint::recv`] and the other operations return a *request*. A request
//! does nothing until it is posted. Messages to one peer arrive in the order in which they were
//! posted, except datagrams (`udp`). The provider decides which reads and writes are ordered with
//! each other and with messages: see [`ordering`](super::ordering).
//!
//! An operation that is not finished at once takes a *transmit credit* of its endpoint, of which
//! there are 1024. The operation waits for a credit if none is free, and holds the
//! credit until the ring, the kernel or the peer has taken all of it: see
//! [`backpressure`](super::backpressure#transmit-credits).
//!
//! | call | posted | completion goes to | if no transmit credit is free |
//! |---|---|---|---|
//! | `request.await`, `select!`, `join!`, `timeout`, `request.into_future()` | by the first poll of the future | the future | waits, in posting order |
//! | `request.start()?` | by this call | the returned [`Operation`] | [`Error::WouldBlock`] |
//! | `request.post()?` | by this call | the [`CompletionQueue`], with the [`context`](Request::context) | [`Error::WouldBlock`] |
//! | `request.inject()?` ([`Request::inject`]) | by this call; the bytes are copied | none; a later failure is an event | [`Error::WouldBlock`] |
//!
//! `.post()` also reserves an entry of the completion queue, and is refused in the same way if none
//! is free.
//!
//! Posting order is the order of these calls and first polls. `join!` polls its futures in the
//! order in which they are written, `select!` in random order unless it is `biased`. A future that
//! was never polled has posted nothing: a branch of `select!` that `if` disables, or a future that
//! is dropped first. When the task's [cooperative budget](tokio::task::coop) is used up, a poll
//! posts nothing; Tokio polls the task again at once, and that poll posts.
//!
//! An operation that is awaited, or posted with `.start()` or `.post()`, reports its end to exactly
//! one place: the future or the queue. Bound counters are incremented as well. An inject reports
//! only a failure.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error};
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.add_peer(ep.name()).await?;
//! let mut queue = ep.take_completions().expect("only the first call returns the queue");
//!
//! let receive = ep.recv().start()?;                  // posted first
//! ep.recv_into(vec![0; 8]).context(7).post()?;       // posted second
//! ep.send(me, "first").await?;
//! ep.send(me, "second").await?;
//! assert_eq!(&receive.await?[..], b"first");
//! let mut out = Vec::new();
//! queue.read_batch(&mut out, 1).await;
//! assert_eq!((out[0].context, out[0].bytes()), (7, &b"second"[..]));
//!
//! let receive = ep.recv().start()?;
//! drop(ep);                                          // the last handle of the endpoint
//! assert_eq!(receive.await.unwrap_err().error, Error::Canceled);
//! # Ok(()) }
//! ```
//!
//! # What dropping does
//!
//! An operation owns its buffer, and the future does not, so dropping a future never frees memory
//! that is in use. Dropping the future of a receive never loses a message.
//!
//! | dropped request or future | effect |
//! |---|---|
//! | a request, or a future that was not polled | none; nothing was posted |
//! | a receive without a message | canceled; its buffer is dropped |
//! | a receive that a message has matched | the message goes to the next receive that accepts it |
//! | a send, a write or a read that was posted and does not wait for a credit | goes on while the endpoint is open; a failure becomes an event; with [`cancel_on_drop`](Request::cancel_on_drop), canceled if it has not begun |
//! | a send, a write or a read that waits for a credit | canceled; nothing is sent |
//! | an atomic operation that was posted | goes on, also if it waits for a credit; with [`cancel_on_drop`](Request::cancel_on_drop), canceled if it has not begun |
//! | a future that waits for a completion, an event, a counter value, a [probe](Endpoint::probe), a [permit](Endpoint::reserve) or a [flush](Endpoint::flush) | none |
//!
//! [`cancellation`](super::cancellation) has the complete table.
//!
//! A handle keeps its object open. These values do not keep their endpoint open:
//!
//! * operations and streams;
//! * a *permit* ([`Permit`]): a transmit credit that was [reserved](Endpoint::reserve) for a later
//!   send;
//! * a [probe](Endpoint::probe), which finds a message that arrived before its receive was posted,
//!   and a *claimed message* ([`Claimed`]): one that a probe has found and reserved for a receive
//!   that follows;
//! * a *window* ([`RemoteWindow`]): memory of a peer that is mapped into this process.
//!
//! | dropped value | effect |
//! |---|---|
//! | the last clone of an [`Endpoint`] or a [`ConnectedEndpoint`] | the endpoint closes: its operations fail with [`Error::Canceled`], which returns their buffers; peers are notified |
//! | the last [`SharedRxContext`] | closes when the endpoints that share it are closed; its receives end with [`Error::Canceled`] |
//! | [`CompletionQueue`] | its entries are lost, receives posted to it are canceled, sends go on; posts to it are refused with [`Error::Closed`] |
//! | [`EventQueue`] | its events are lost |
//! | the last clone of a [`Counter`] | it closes, and its endpoints stop counting; a counter that is bound to a region closes with the region |
//! | the last clone of an [`AddressVector`] | it closes when the endpoints bound to it are closed |
//! | [`MemoryRegion`], [`RegisteredBuffer`] | the memory key is revoked; peers get [`Error::Key`] |
//! | [`Domain`], [`Fabric`] | closes when its children are closed: a child keeps its parent open |
//! | [`PassiveEndpoint`] | stops listening; connection requests that were not accepted are rejected |
//! | [`Loan`] that was not sent | its memory is reused for the next loan |
//! | [`LoanedBuf`] | its memory returns to the sender |
//! | [`Permit`] | the credit is returned |
//! | [`Claimed`] | the message returns to its place among the messages without a receive |
//! | [`MulticastGroup`] | the endpoint leaves the group |
//!
//! Keep the endpoint in a variable: `Endpoint::bind("shm://").await?.recv().start()?` drops it at
//! the end of the statement, and the operation ends with [`Error::Canceled`].
//!
//! # What bounds memory
//!
//! | what | bound | beyond it |
//! |---|---|---|
//! | unexpected messages, for which no receive is posted | 16 MiB per endpoint, or 16 messages of the `max_msg_size` of a connected one; 8 MiB with `udp` | the message stays in the ring or the socket; when that is full, the peer's sends to this endpoint wait; `udp` discards and counts |
//! | sends that wait while the ring or the socket buffer is full, also after their future was dropped without [`cancel_on_drop`](Request::cancel_on_drop) | `info.tx.size` credits, 1024; at most a quarter of them for one peer | `.await` waits, other calls are refused |
//! | sends that `.await` a credit | none: each is a future that you hold | |
//! | posted receives | `info.rx.size`, 1024 | `.start()` and `.post()` are refused, `.await` is not |
//! | completions | the capacity of the queue; an entry is reserved by the post | the post is refused |
//! | events | the capacity of the event queue | further events are discarded, counted, and reported as one [`Overrun`](EventKind::Overrun) |
//! | events that the program [writes](EventWriter::write) | the capacity of the event queue, beside other events | the write is refused |
//! | ring of `shm` | 128 KiB for each direction and peer, 512 KiB after it was full | sends are queued and hold a credit until the ring has room |
//! | loans of `shm` to one peer | 256 | further loans to the peer are copied |
//! | memory of loans of `shm` | 4 GiB per domain ([`loan_limit`](crate::DomainBuilder::loan_limit)) | [`Domain::loan`] waits, [`Domain::try_loan`] is refused |
//! | free [pooled buffers](super::memory#pooled-buffers) | 4 MiB of each size class (powers of two from 256 B to 1 MiB) per process, and 256 KiB per thread | freed |
//!
//! Under [manual progress](super::progress#manual-progress), while no task waits for an object of
//! the domain and no send is pending, messages over `shm` stay in the ring. Messages over `tcp` and
//! `udp` stay in the socket or are received.
//!
//! [`defaults`](super::defaults) lists all values.
//!
//! # Where the death of a peer is reported
//!
//! | where | what is reported |
//! |---|---|
//! | the event queue of the endpoint, or of its domain | [`EventKind::PeerDown`] with a [`DownReason`], once; perhaps [before its last messages](super::client_server#the-last-messages-of-a-peer) |
//! | pending sends, writes, reads and atomic operations to it | [`Error::PeerGone`], with the buffer |
//! | receives that accept only its messages ([`from`](Request::from)) | [`Error::PeerGone`], after the messages that arrived completely |
//! | receives from any source | nothing: they wait for other senders; a partial message is discarded |
//! | receives of a [connected endpoint](super::connected_endpoints) | [`Error::PeerGone`] |
//! | [windows](RemoteWindow) of its memory | [`Error::PeerGone`] |
//! | sends that completed before | nothing: the peer may not have received the message |
//! | senders of [datagrams](super::udp) | nothing |
//!
//! An address handle from [`Endpoint::add_peer`] or [`AddressVector::insert`] stays valid over a
//! restart of the peer. A handle that was inserted automatically when a peer connected is valid for
//! that process only. [`client_server`](super::client_server#when-a-peer-dies) has a table of what
//! each operation then returns.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
