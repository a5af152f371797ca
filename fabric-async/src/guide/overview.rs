//! Overview: posting, dropping, memory bounds, and the death of a peer.
//!
//! After this chapter you can tell, for each call, when its operation is posted, what dropping its
//! future or handle does, which limit bounds the memory behind it, and where the death of a peer is
//! reported. The other chapters give the details.
//!
//! # When an operation is posted
//!
//! [`Endpoint::send`], [`Endpoint::recv`] and the other operations return a *request*. A request
//! does nothing until it is posted. Operations to one peer keep the order in which they were
//! posted.
//!
//! | call | posted | completion goes to | if no transmit credit or queue entry is free |
//! |---|---|---|---|
//! | `request.await`, `select!`, `join!`, `timeout`, `request.into_future()` | by the first poll of the future | the future | waits, in posting order |
//! | `request.start()?` | by this call | the returned [`Operation`] | [`Error::WouldBlock`] |
//! | `request.post()?` | by this call | the [`CompletionQueue`], with the [`context`](Request::context) | [`Error::WouldBlock`] |
//! | `request.inject()?` ([`Request::inject`]) | by this call; the bytes are copied | no one; a later failure is an event | [`Error::WouldBlock`] |
//!
//! Posting order is the order of these calls and first polls. `join!` polls its futures in the
//! order in which they are written, `select!` in random order unless it is `biased`. A future that
//! was never polled has posted nothing: a branch of `select!` that `if` disables, or a future that
//! is dropped first. Neither has a poll for which the task had no [cooperative
//! budget](tokio::task::coop) left; the task is polled again at once.
//!
//! A posted operation reports to exactly one place; bound counters are incremented as well.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error};
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.add_peer(ep.name()).await?;
//! let mut queue = ep.completions().expect("only the first call returns the queue");
//!
//! let receive = ep.recv().start()?;                  // posted first
//! ep.recv_into(vec![0; 8]).context(7).post()?;       // posted second
//! ep.send(me, "first").await?;
//! ep.send(me, "second").await?;
//! assert_eq!(&receive.await?[..], b"first");
//! let mut out = Vec::new();
//! queue.next_batch(&mut out, 1).await;
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
//! A buffer belongs to its operation, not to the future, so dropping a future never frees memory
//! that is in use. Dropping a future never loses a message.
//!
//! | dropped future | effect |
//! |---|---|
//! | a request, or a future that was not polled | none; nothing was posted |
//! | a receive without a message | withdrawn; its buffer is dropped |
//! | a receive that a message has matched | the message goes to the next receive that accepts it |
//! | a send, a write, an atomic operation that was posted | goes on; a failure becomes an event; with [`cancel_on_drop`](Request::cancel_on_drop) it is withdrawn if it has not begun |
//! | a send that waits for a credit | withdrawn; nothing is sent |
//! | a future that waits for a queue entry, a counter value, a probe, a permit or a flush | none |
//!
//! [`cancellation`](super::cancellation) has the complete table.
//!
//! Handles keep objects open. Operations, streams, permits, probes, claimed messages and windows do
//! not.
//!
//! | dropped handle | effect |
//! |---|---|
//! | the last clone of an [`Endpoint`] | the endpoint closes: its operations fail with [`Error::Canceled`], which returns their buffers; peers are notified |
//! | the last [`SharedRxContext`] | closes when the endpoints that share it are closed; its receives end with [`Error::Canceled`] |
//! | [`CompletionQueue`] | its entries are lost, receives posted to it are withdrawn, sends go on; posts to it are refused with [`Error::Closed`] |
//! | [`EventQueue`] | its events are lost |
//! | the last clone of a [`Counter`] or an [`AddressVector`] | it closes; the vector when the endpoints bound to it are closed |
//! | [`MemoryRegion`], [`RegisteredBuffer`] | the memory key is revoked; peers get [`Error::Key`] |
//! | [`Domain`], [`Fabric`] | closes when its children are closed: a child keeps its parent open |
//! | [`PassiveEndpoint`] | stops listening; requests that were not taken are rejected |
//! | [`Permit`] | the credit is returned |
//! | [`Claimed`] | the message returns to its place in the queue |
//! | [`MulticastGroup`] | the endpoint leaves the group |
//!
//! Keep the endpoint in a variable: `Endpoint::bind("shm://").await?.recv().start()?` drops it at
//! the end of the statement, and the operation ends with [`Error::Canceled`].
//!
//! # What bounds memory
//!
//! | what | bound | beyond it |
//! |---|---|---|
//! | unexpected messages (no receive is posted) | 16 MiB per endpoint; 4 MiB with `sim` and `udp` | the sender is held back; `udp` discards and counts |
//! | sends that wait for a full ring or socket, also after their future was dropped without [`cancel_on_drop`](Request::cancel_on_drop) | `info.tx.size` credits, 1024; at most a quarter of them for one peer | `.await` waits, other calls are refused |
//! | sends that `.await` a credit | none: each is a future that you hold | |
//! | posted receives | `info.rx.size`, 1024 | refused |
//! | completions | the capacity of the queue; an entry is reserved by the post | the post is refused |
//! | events | the capacity of the event queue | counted, reported as one [`Overrun`](EventKind::Overrun) |
//! | ring of `shm` | 128 KiB for each direction and peer | sends are queued and hold a credit until the ring has room |
//! | loans of `shm` | 256 to one peer, 4 GiB per domain | copied; [`Endpoint::loan`] is refused |
//! | idle pooled buffers | 4 MiB of each size up to 1 MiB | freed |
//!
//! [`defaults`](super::defaults) lists all values.
//!
//! # Where the death of a peer is reported
//!
//! | who | what |
//! |---|---|
//! | the event queue of the endpoint, or of its domain | [`EventKind::PeerDown`] with a [`DownReason`], once |
//! | sends, writes, reads and atomic operations to it that are under way | [`Error::PeerGone`], with the buffer |
//! | receives directed at it ([`from`](Request::from)) | [`Error::PeerGone`], after the messages that arrived completely |
//! | receives from any source | nothing: they wait for other senders; a partial message is discarded |
//! | receives of a [connected endpoint](super::connected_endpoints) | [`Error::PeerGone`] |
//! | [windows](RemoteWindow) of its memory | [`Error::PeerGone`] |
//! | sends that ended before | nothing: the peer may not have received the message |
//! | senders of [datagrams](super::udp) | nothing |
//!
//! An address handle from [`Endpoint::add_peer`] or [`AddressVector::insert`] stays valid over a
//! restart of the peer. A handle that was inserted automatically when a peer connected is valid for
//! that process only. [`client_server`](super::client_server#when-a-peer-dies) has a table of what
//! each operation then returns.

#[cfg(doc)]
use crate::*;
