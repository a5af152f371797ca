//! Ordering: order of messages, matching, fences, completion levels.
//!
//! After this chapter you can tell which receive a message matches, in which order operations take
//! effect, and what a completed send proves.
//!
//! # Order between two endpoints
//!
//! The place of an operation in the order is fixed when the operation is
//! [posted](super::overview#when-an-operation-is-posted): by the first poll of its future, or by
//! `.start()`, `.post()` or [`inject`](Request::inject). So `join!` posts in the order in which its
//! futures are written, and `select!` in random order.
//!
//! Messages from one endpoint to another arrive in posting order (`FI_ORDER_SAS`), all of them
//! together: short and long, tagged and untagged, awaited, started, posted and injected. A
//! [`Permit`] is a credit, not a place in the order. [Datagrams](super::udp) have no order.
//!
//! A receiver of a message sees what was written to its memory before the message was posted.
//! One-sided operations to one peer take effect in posting order too, and no message overtakes one
//! that was posted before it, except these pairs:
//!
//! | provider | not ordered | `info.tx.msg_order` has no | to order them |
//! |---|---|---|---|
//! | `shm` | a read or write after a message: the memory is accessed when the ring has taken the message, which may still wait for its receive | [`RAS`](MsgOrder::RAS), [`WAS`](MsgOrder::WAS) | send the message with [`delivery_complete`](Request::delivery_complete), and [fence](#fences) the read or write |
//! | `tcp`, `sim` | a write or message after a read: the peer reads its memory when it sends the response | [`WAR`](MsgOrder::WAR), [`SAR`](MsgOrder::SAR) | [fence](#fences) the write or message |
//!
//! # Matching
//!
//! A receive accepts a message by three criteria:
//!
//! * **Kind.** Tagged receives accept tagged messages, untagged receives untagged ones.
//! * **Tag.** `(sent ^ wanted) & !ignore == 0`; see [`Request::tag_ignoring`].
//! * **Source.** A directed receive ([`from`](Request::from)) accepts messages of that peer
//!   only.
//!
//! An arriving message goes to the *earliest posted* receive that accepts it. A receive takes the
//! *earliest arrived* unexpected message that it accepts, one that is still arriving after whole
//! ones of other peers. All posted receives are in one queue: posting order decides, not how
//! specific a receive is.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.add_peer(b.name()).await?;
//! let from_a = b.add_peer(a.name()).await?;
//!
//! let any_source = b.recv().tag(1).start()?;              // posted first
//! let from_a = b.recv().tag(1).from(from_a).start()?;
//! let untagged = b.recv().start()?;
//! a.send(to_b, "first").tag(1).await?;
//! a.send(to_b, "second").tag(1).await?;
//! a.send(to_b, "third").await?;
//!
//! assert_eq!(&untagged.await?[..], b"third");             // awaited in any order
//! assert_eq!(&from_a.await?[..], b"second");
//! assert_eq!(&any_source.await?[..], b"first");
//! # Ok(()) }
//! ```
//!
//! A [multi-receive](Endpoint::recv_multi) keeps its place until its buffer is full: a message that
//! it accepts goes to no later receive, even while the multi-receive waits for room in its stream
//! or queue. A message that does not fit into the rest of the buffer goes to the next receive. A
//! [probe](Endpoint::probe) finds the message that a receive posted at that moment would get. A
//! [claimed](Claimed) message keeps its place in the order of arrival, and returns there if it is
//! requeued.
//!
//! # Sources
//!
//! A message names its sender by an address handle of the receiver's address vector. Messages of a
//! sender that is not in the address vector match only receives from any source, and their
//! [`source`](Message::source) is [`Error::UnknownSource`]. When the sender's address is inserted,
//! its unexpected messages are offered to directed receives in the order of arrival. After a
//! [`remove`](AddressVector::remove) its messages arrive without a source. The address vector of
//! [`Endpoint::bind`] inserts every peer that connects, so every message has a source: see
//! [`client_server`](super::client_server).
//!
//! With [`Caps::SOURCE_ERR`] (`FI_SOURCE_ERR`) the receive of a message without a source ends with
//! [`Error::SourceNotInserted`], which has the address of the sender. The message is in the buffer:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Caps, Endpoint, Error, Fabric, Hints, discover};
//! let caps = Caps::MSG | Caps::SOURCE | Caps::SOURCE_ERR;
//! let info = discover(&Hints::new().provider("shm").caps(caps))?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let av = domain.address_vector()?;
//! let server = domain.endpoint(&info)?.bind_av(&av)?.enable()?;
//! let client = Endpoint::bind("shm://").await?;
//! client.send(client.add_peer(server.name()).await?, "hello").await?;
//!
//! let failed = server.recv().await.unwrap_err();
//! let Error::SourceNotInserted { address: Some(name) } = failed.error else { panic!() };
//! assert_eq!(&failed.buf[..], b"hello");
//! server.send(av.insert(name)?, "welcome").await?;
//! assert_eq!(&client.recv().await?[..], b"welcome");
//! # Ok(()) }
//! ```
//!
//! Counters count such a message as an error. Writes with completion data are not affected.
//!
//! # What is not ordered
//!
//! * Messages from different senders, or to different receivers.
//! * Completions of receives. A long message that matched first may complete after a short one from
//!   another sender.
//! * Completions of [single-copy](super::memory#single-copy) sends: shorter sends posted later may
//!   complete earlier. Sends through the ring complete in order.
//! * Messages before and after a restart of the peer.
//! * A [requeued](super::cancellation#requeued-messages) message.
//!
//! # Fences
//!
//! Operations to one peer *begin* in posting order, but may end in another order.
//! [`fence`](Request::fence) (`FI_FENCE`, [`Caps::FENCE`]) delays an operation until all operations
//! posted earlier to its peer have *ended*:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Access, Endpoint};
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.add_peer(ep.name()).await?;
//! let table = ep.domain().alloc(16, Access::REMOTE_WRITE)?;
//! ep.write(me, table.remote().at(0), vec![1; 16]).post()?;
//! ep.send(me, "the table is written").fence().post()?;
//! ep.recv().await?;
//! assert_eq!(table.load::<u64>(8)?, u64::from_ne_bytes([1; 8]));
//! # Ok(()) }
//! ```
//!
//! The fenced operation waits on the initiator's side and holds its credit; later operations to the
//! same peer wait behind it, or are refused with [`Error::WouldBlock`]. Canceling the fenced
//! operation lifts the fence.
//!
//! # What "sent" means
//!
//! Over shared memory, a send completes when the peer's endpoint has the whole message: in its
//! ring, or copied (`FI_TRANSMIT_COMPLETE`). The buffer is returned. The completion does *not* mean
//! that a receive took the message. [`tcp`](super::tcp#what-sent-means) and
//! [`udp`](super::udp#delivery) promise less.
//!
//! * A short message is usually complete within the call that posts it. A sender can be ahead of
//!   its receiver by the size of the ring.
//! * A [single-copy](super::memory#single-copy) message completes when the peer has copied it.
//! * If the peer dies afterwards, unread messages are lost, and only
//!   [`PeerDown`](EventKind::PeerDown) reports the death.
//! * If *this* process ends afterwards, the message is delivered.
//!
//! `.start()`, `.post()` and [`inject`](Request::inject) return when a message is *accepted*. The
//! message may still wait in this process for a connection or for room. Before the process ends,
//! await the operation, take its completion from the queue, or [flush](super::batching#flush).
//!
//! # Completion levels
//!
//! Let the peer reply if you must know that a message was *processed*. To know that it was
//! *received*, raise the completion level of the send:
//!
//! | level | a send completes when | request method | providers |
//! |---|---|---|---|
//! | transmit, the default | the peer's endpoint has the message | [`transmit_complete`](Request::transmit_complete) | `shm` |
//! | the same over sockets | the kernel has the message: `FI_INJECT_COMPLETE` over `tcp`, `FI_TRANSMIT_COMPLETE` over `udp` | the same | `tcp`, `sim`, `udp` |
//! | match | a receive has taken it, perhaps not yet all its bytes | [`match_complete`](Request::match_complete) | `shm` |
//! | delivery | its bytes are in the receive's buffer, and the receive has ended | [`delivery_complete`](Request::delivery_complete) | `shm`; [`tcp`](super::tcp#what-sent-means) and `sim` with a weaker meaning |
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.add_peer(b.name()).await?;
//! let sent = a.send(to_b, "the last word").delivery_complete();
//! let (sent, got) = tokio::join!(sent, b.recv());         // alone, the send would wait for ever
//! assert_eq!((sent?.into_buf(), &got?[..]), ("the last word", &b"the last word"[..]));
//! # Ok(()) }
//! ```
//!
//! The default of an endpoint is set by [`Hints::tx_op_flags`] with [`OpFlags::DELIVERY_COMPLETE`]
//! or `MATCH_COMPLETE`; with both it is delivery. [`inject`](Request::inject) has no level.
//!
//! * On both levels the send of an unexpected message waits for a receive, although the peer may
//!   have buffered the message; libfabric may complete the send there. Two programs that both await
//!   such a send before they receive deadlock.
//! * A [claim](Claimed) does not complete the send; receiving or discarding the claimed message
//!   does. A truncated message counts as delivered.
//! * The message of a dropped receive is requeued; its sender is notified once.
//! * The send keeps its buffer, its credit and its queue entry until the peer's notification. Other
//!   messages pass it; a [fence](Request::fence) does not. A send that has begun cannot be
//!   canceled.
//! * If the peer closes or dies before the notification, the send fails, though the message may
//!   have been received.
//! * Writes and atomic operations complete when the peer's memory has changed: `delivery_complete`
//!   changes nothing for them.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
