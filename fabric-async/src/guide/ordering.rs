//! Ordering: what comes before what? What does "sent" mean?
//!
//! # Posting order is program order
//!
//! An operation takes its place when it is posted: at `.start()`, at `.post()`, or at the `.await`.
//! Not when it is polled. Two futures that are polled in the reverse order of their posts still
//! have the order of their posts.
//!
//! # From one sender to one receiver
//!
//! Messages from one endpoint to another arrive in the order in which they were posted
//! (`FI_ORDER_SAS`). This holds for all of them together: short and long, tagged and untagged,
//! awaited, started, posted and injected ones. A short message does not overtake a long one that is
//! still being copied, and a send with a credit does not overtake one to the same peer that waits
//! for credit. [Datagrams](super::udp) have no order but by chance.
//!
//! One-sided operations to one peer take effect in the order of their posts, and messages stay
//! behind those that were posted before them (`FI_ORDER_SAW`, `SAR`, `RAR`, `RAW`, `WAR`, `WAW`):
//! who receives a message sees what was written before it. The other way around nothing is
//! promised: a write does not wait until a message before it was received.
//!
//! Reserving is no way around the order. A [`Permit`](crate::Permit) holds a credit, but not a
//! place: a send with it that finds sends to the same peer waiting gives them its credit, and waits
//! behind them.
//!
//! # Matching
//!
//! A receive accepts a message or not, by three things:
//!
//! * **Kind.** Tagged receives take tagged messages, untagged receives untagged ones. The two never
//!   meet.
//! * **Tag.** `(sent ^ wanted) & !ignore == 0`; see
//!   [`RecvRequest::tag_mask`](crate::RecvRequest::tag_mask).
//! * **Sender.** A receive made with [`from`](crate::RecvRequest::from) takes messages of that peer
//!   only.
//!
//! Then there are two rules. An arriving message goes to the *earliest posted* receive that accepts
//! it. A receive that is posted late takes the *earliest arrived* message that it accepts. Receives
//! from one peer and receives from anybody stand in one queue, so between them the time of posting
//! decides as well, not how exactly they ask.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.lookup(b.name()).await?;
//! let from_a = b.lookup(a.name()).await?;
//!
//! let anybody = b.recv().tag(1).start()?;                 // posted first
//! let from_a = b.recv().tag(1).from(from_a).start()?;
//! let untagged = b.recv().start()?;
//! a.send(to_b, "first").tag(1).await?;
//! a.send(to_b, "second").tag(1).await?;
//! a.send(to_b, "third").await?;
//!
//! assert_eq!(&untagged.await?[..], b"third");             // awaited in any order
//! assert_eq!(&from_a.await?[..], b"second");
//! assert_eq!(&anybody.await?[..], b"first");
//! # Ok(()) }
//! ```
//!
//! A receive of [several messages](crate::Endpoint::recv_multi) keeps its place until it takes no
//! more: what it accepts goes to no receive that was posted after it, even while it has to wait for
//! room in its stream or queue. The message that does not fit into its buffer any more goes to the
//! next receive.
//!
//! A [probe](crate::Endpoint::probe) finds what a receive that is posted at that moment would get.
//! A [claimed](crate::Claimed) message keeps its place in the order of arrival, should it be put
//! back; others are received past it meanwhile.
//!
//! # Unknown senders
//!
//! A message names its sender by a number of the receiver's address vector. If the sender is not in
//! it, only receives from anybody take the message, and [`source`](crate::Done::source) is
//! [`Error::UnknownSource`](crate::Error::UnknownSource). When the address is inserted, messages of
//! that sender that wait are offered again, in the order of their arrival, to the receives that
//! name it. After a [`remove`](crate::AddressVector::remove), messages still arrive, as from a
//! stranger.
//!
//! The address vector of [`Endpoint::bind`](crate::Endpoint::bind) is *welcoming*: it gives every
//! peer that connects a number, and takes it back when the peer is gone and its last message was
//! received and looked at. So every message has a source, and can be answered while its sender
//! lives. See [`serving`](super::client_server).
//!
//! # What is not ordered
//!
//! * Messages from different senders, or to different receivers. A long message does not hold up
//!   one from another sender.
//! * Completions of receives. They come as messages become complete. A receive that was matched
//!   first may complete last, when its message is long, and another sender's is short.
//! * Completions of sends. Those to one peer that go through the ring end in order; a long one that
//!   the peer [copies straight from here](super::memory#one-copy), ends when it has, and shorter
//!   ones behind it may have ended before. They are received in the order in which they were sent.
//! * Messages sent before and after a peer was restarted under the same name: they are two
//!   connections.
//! * A message that was put back by a dropped receive, see [`cancellation`](super::cancellation).
//!
//! # Fences
//!
//! What is posted to one peer also *begins* in that order with the providers there are now, so a
//! write is in the peer's memory before the message that tells of it can be seen. A provider that
//! lets operations overlap need not keep to that. An operation that must not begin before
//! everything posted earlier to its peer has *ended* says [`fence`](crate::SendRequest::fence)
//! (`FI_FENCE`, [`Caps::FENCE`](crate::Caps::FENCE)):
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Access, Endpoint};
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.lookup(ep.name()).await?;
//! let table = ep.domain().alloc(16, Access::REMOTE_WRITE)?;
//! ep.write(me, table.remote().at(0), vec![1; 16]).post()?;
//! ep.send(me, "the table is written").fence().post()?;
//! ep.recv().await?;
//! assert_eq!(table.load::<u64>(8)?, u64::from_ne_bytes([1; 8]));
//! # Ok(()) }
//! ```
//!
//! The fence is kept on this side, whatever the provider: the operation waits with its credit, and
//! what is posted behind it for the same peer waits too, or is refused with
//! [`Error::Again`](crate::Error::Again) where it may not wait. Operations for other peers do not
//! notice. Taking it back lifts it; it costs those who use it a look at the domain's operations.
//!
//! # What "sent" means
//!
//! Over shared memory a send has ended well when the peer's endpoint has the whole message; what it
//! means over TCP [is weaker](super::tcp#sent), and over UDP it is [less
//! still](super::udp#what-may-become-of-a-message). All of it is in the peer's ring then, or the
//! peer has copied it. The buffer is free then, and nothing on this side is needed any more
//! (`FI_TRANSMIT_COMPLETE`). It does *not* mean that a receive took it, nor, of a short one, that
//! the peer looked.
//!
//! * A short message is usually sent within the call that posts it. Up to the size of the ring, a
//!   sender can be that far ahead of its receiver.
//! * A long message that is [copied once](super::memory#one-copy) is sent when the peer has made
//!   enough progress to copy it: into the receive that takes it, or, unexpected, into its budget.
//! * If the peer dies afterwards, what it had not read is lost, and nobody is told beyond
//!   [`PeerDown`](crate::EventKind::PeerDown).
//! * If *this* process ends afterwards, the message is still delivered: the ring outlives its
//!   sender.
//!
//! This is said of sends that have ended. [`try_send`](crate::Endpoint::try_send), `.start()`,
//! `.post()` and [`inject`](crate::Endpoint::inject) return when a message was *accepted*, which
//! may be before: it waits on this side if there is no connection yet, or no room in the ring. A
//! process that ends then takes it along. Await the operation, or take its completion out of the
//! queue, before the program returns from `main`.
//!
//! Whoever needs to know that a message was *processed* lets the peer answer. That it was
//! *received* a send over `shm` and `sim` can wait for itself (over [`tcp`](super::tcp#sent) there
//! is delivery alone, and it says less: the peer's endpoint has all of it):
//!
//! | level | a send ends well when | |
//! |---|---|---|
//! | transmit, the default | the peer's endpoint has the message | [`transmit_complete`](crate::SendRequest::transmit_complete) |
//! | match | a receive has taken it, though perhaps not all its bytes | [`match_complete`](crate::SendRequest::match_complete) |
//! | delivery | all that the receive has room for is in its buffer, and the receive has ended | [`delivery_complete`](crate::SendRequest::delivery_complete) |
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.lookup(b.name()).await?;
//! let sent = a.send(to_b, "the last word").delivery_complete();
//! let (sent, got) = tokio::join!(sent, b.recv());         // alone, the send would wait for ever
//! assert_eq!((sent?.into_buf(), &got?[..]), ("the last word", &b"the last word"[..]));
//! # Ok(()) }
//! ```
//!
//! The default of an endpoint is in its hints: [`tx_op_flags`](crate::Hints::tx_op_flags) with
//! [`OpFlags::DELIVERY_COMPLETE`](crate::OpFlags::DELIVERY_COMPLETE) or `MATCH_COMPLETE`; with both
//! it is delivery. [`inject`](crate::Endpoint::inject) reports nothing, and so knows no level. In
//! detail:
//!
//! * A message that nobody has posted a receive for holds its send back, on both levels, though the
//!   peer may have all of it: libfabric lets a delivery end there. Two programs that both send like
//!   this before they receive wait for each other.
//! * A [claim](crate::Claimed) is no receipt yet; receiving what was claimed is one, and so is
//!   discarding it. A message that was cut to the room of its receive has been delivered.
//! * Sends end in the order in which their messages are received, which need not be that of their
//!   posts.
//! * A receive that is dropped unseen gives its message to the next one. Its sender has been told
//!   once, and is not told again.
//! * Such a send keeps its buffer, its credit and its entry in the queue until the word comes.
//!   Other messages pass it; a [fence](crate::SendRequest::fence) does not. Dropped, it goes on
//!   without a hearer; it cannot be taken back once it has begun.
//! * If the peer closes or dies before that, the send fails, though it may have been received: the
//!   word may be what was lost.
//! * Writes and atomic operations end when the peer's memory has been changed, so they are
//!   delivered when they end; `delivery_complete` is accepted and changes nothing. There is nothing
//!   for them to match.
