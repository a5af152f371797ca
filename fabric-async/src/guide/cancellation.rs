//! Cancellation: what happens when a future is dropped.
//!
//! After this chapter you can put any operation into `select!` or `timeout`, and know what happens
//! to its message and its buffer when the future is dropped.
//!
//! A future is canceled by dropping it: a branch of `select!` loses, a timeout fires, a task is
//! aborted. The operation may have begun by then, so the operation owns its buffer until it ends.
//!
//! | dropped while pending | effect |
//! |---|---|
//! | a [`Request`], or a future that was never polled | nothing was posted |
//! | a receive that no message has matched | canceled, and its buffer dropped; no message was taken |
//! | a receive that a message has matched, completely or in part | the message is [requeued](#requeued-messages): the next receive that accepts it gets it |
//! | a send (also of a loan), read or write that waits for a credit | canceled; nothing is sent |
//! | a send, read or write that has a credit | goes on; a later failure becomes an [event](EventKind::OperationFailed) |
//! | a send, read, write or atomic operation with [`cancel_on_drop`](Request::cancel_on_drop) | canceled if it has not begun, and its buffer dropped; goes on otherwise |
//! | an atomic operation without `cancel_on_drop` | takes effect, even if it still waits for a credit: a lock that is taken in a losing branch of `select!` stays taken |
//! | a [`MultiRecv`] stream | messages in it that were not taken, or are arriving, are requeued; the rest of the buffer is dropped |
//! | a [probe](Endpoint::probe) or a [claim](Request::claim) that waits | no message was taken |
//! | a [`Claimed`] message | requeued at its old place |
//! | a [reservation](Endpoint::reserve) that waits | leaves the queue for credits |
//! | a [`Permit`] | the credit goes back |
//! | a [registration](crate::async_mr::RegionFuture), or the handle of a [posted one](crate::async_mr::PendingRegion) | the region is closed, without an event; its buffer is dropped |
//! | [`Endpoint::add_peer`] | the address handle stays in the address vector, and the connection is made |
//! | [`EventQueue::read`], [`CompletionQueue::read_batch`], [`Counter::wait`], [`Endpoint::flush`] | nothing is lost |
//!
//! # A loop over `select!`
//!
//! A receive may lose a race any number of times: no message is lost or duplicated.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! use std::time::Duration;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.add_peer(b.name()).await?;
//! let sender = tokio::spawn(async move {
//!     for number in 0..100u8 {
//!         a.send(to_b, vec![number; 5000]).await?;
//!     }
//!     Ok::<_, fabric_async::Error>(a)
//! });
//!
//! let mut tick = tokio::time::interval(Duration::from_millis(1));
//! let mut expected = 0;
//! while expected < 100 {
//!     tokio::select! {
//!         _ = tick.tick() => {}                       // the receive below is dropped
//!         message = b.recv() => {
//!             let message = message?;
//!             assert_eq!((message.len(), message[0]), (5000, expected));
//!             expected += 1;
//!         }
//!     }
//! }
//! # sender.await.unwrap()?;
//! # Ok(()) }
//! ```
//!
//! To keep one receive posted over all rounds, with its place in posting order, pin its future and
//! pass `&mut receive` to `select!`:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! # use fabric_async::Endpoint;
//! # use std::time::Duration;
//! # let ep = Endpoint::bind("shm://").await?;
//! # let me = ep.add_peer(ep.name()).await?;
//! # ep.send(me, "hello").await?;
//! let mut tick = tokio::time::interval(Duration::from_millis(1));
//! let mut receive = std::pin::pin!(ep.recv().into_future());
//! let message = loop {
//!     tokio::select! {
//!         _ = tick.tick() => {}                       // the receive stays posted
//!         message = &mut receive => break message?,
//!     }
//! };
//! assert_eq!(&message[..], b"hello");
//! # Ok(()) }
//! ```
//!
//! # Posts inside `select!`
//!
//! `select!` polls its branches in random order, unless it is `biased`, until one is ready. The
//! first poll of a branch posts its request.
//!
//! * A send in a branch that was polled and loses is still delivered, unless it waited for a
//!   credit. Repeating it sends the message twice.
//! * A branch with a false precondition (`, if false`), or behind one that is ready at once, is not
//!   polled, and posts nothing.
//!
//! To send exactly once, reserve a credit inside the `select!`, and send in the handler of the
//! branch:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! # use fabric_async::Endpoint;
//! # use std::time::Duration;
//! # let ep = Endpoint::bind("shm://").await?;
//! # let peer = ep.add_peer(ep.name()).await?;
//! tokio::select! {
//!     permit = ep.reserve(peer) => {
//!         permit?.send(&ep, "exactly once").await?;
//!     }
//!     _ = tokio::time::sleep(Duration::from_secs(5)) => {}   // nothing was sent
//! }
//! # assert_eq!(&ep.recv().await?[..], b"exactly once");
//! # Ok(()) }
//! ```
//!
//! # Requeued messages
//!
//! A requeued message is offered to the posted receives, the earliest first. If none accepts it, it
//! waits among the unexpected messages at the place of its arrival, before everything that arrived
//! later. The message keeps its tag, sender and data. The rest of a partial message is appended
//! when it arrives.
//!
//! * **With several posted receives**, a later message may already have matched a later receive.
//!   The requeued message is then received after the later message. With one receive at a time,
//!   order is kept.
//! * **A truncated message stays truncated.** The next receive gets the first part and
//!   [`Error::Truncated`] with the number of bytes lost, even if it has room for all. Where
//!   receives may be dropped, use [`Endpoint::recv`], which has room for any message.
//! * Requeueing copies the message if the dropped receive had a buffer of its own; a pooled buffer
//!   is moved. The budget for unexpected messages does not limit it.
//!
//! # Cancel instead of drop
//!
//! [`Operation::cancel`] (`fi_cancel`) cancels the operation if it has not begun, and otherwise
//! waits for its end. [`CancelOutcome`] says which of the two happened:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{CancelOutcome, Endpoint};
//! let ep = Endpoint::bind("shm://").await?;
//! let receive = ep.recv_into(Vec::with_capacity(1 << 16)).start()?;
//! match receive.cancel().await {
//!     CancelOutcome::Canceled(buf) => assert_eq!(buf.capacity(), 1 << 16), // no message was taken
//!     CancelOutcome::Completed(result) => drop(result?),                  // a message had matched
//! }
//! # Ok(()) }
//! ```
//!
//! [`Request::cancel_on_drop`] does the same when the future is dropped, without waiting and
//! without returning the buffer. `cancel_on_drop` bounds the memory of sends that time out: without
//! it a send that holds a credit keeps its buffer until the peer takes the message, or the
//! connection ends.
//!
//! When an operation has begun depends on the provider:
//!
//! | operation | has begun |
//! |---|---|
//! | a receive | when a message has matched it |
//! | a send, over `shm` | when its first record is in the peer's ring: a piece of the message, or the offer of a message that the peer copies. Several sends to one peer can have begun: offered ones, and one that is sent in pieces |
//! | a send, over `tcp` | when the connection has begun to write it to the socket; one send at a time for each connection |
//! | a send, over `udp` | when the kernel has the datagram: then it is also complete |
//! | a read, a write or an atomic operation | when its first access was made, or its first request was sent |
//!
//! A send that is queued behind a full ring can be canceled. Dropping such a send without
//! `cancel_on_drop` does not cancel it. Dropping the future of `cancel` drops the operation.
//!
//! An operation that was posted to a queue has no future. [`Endpoint::cancel`] cancels it by its
//! context; the queue gets an entry with [`Error::Canceled`] and the buffer.
//!
//! # Timeouts and tags
//!
//! A receive for one reply has the tag of its request. If a timeout drops the receive and the reply
//! arrives later, no receive has its tag, and it waits among the [unexpected
//! messages](super::memory#unexpected-messages) for as long as the endpoint is open. Late replies
//! can use up the budget. Then all later messages of the peer wait in the ring, including replies
//! that a receive waits for. There are two remedies:
//!
//! * **Receive any tag and dispatch.** One receive with `tag_ignoring(0, !0)` takes every tagged
//!   message; the program hands the message to the task that waits for it, or drops it. That
//!   receive must be the only tagged receive, because the earliest posted receive gets the message.
//! * **Discard after a timeout.** [Claim](Request::claim) the message with that tag and discard it.
//!   A claim takes only a message that no receive has taken, and posts nothing.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! use std::time::Duration;
//! let (client, server) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_server = client.add_peer(server.name()).await?;
//!
//! client.send(to_server, "a request").tag(1).await?;
//! let reply = tokio::time::timeout(Duration::from_millis(1), client.recv().tag(1)).await;
//! assert!(reply.is_err());                                   // timed out; the receive is canceled
//!
//! let request = server.recv().tag_ignoring(0, !0).await?;         // any tag
//! server.send(request.source()?, "late").tag(1).await?;
//! server.send(request.source()?, "done").await?;
//! client.recv().await?;                                       // untagged, and sent after it
//!
//! let late = client.probe().tag(1).claim().try_claim()?.expect("the late reply waits");
//! late.discard();
//! assert!(client.probe().tag(1).claim().try_claim()?.is_none());
//! # Ok(()) }
//! ```
//!
//! Do not reuse a tag while its reply may still arrive: use a counter.
//!
//! # What a dropped send needs
//!
//! A dropped send needs its endpoint and, under manual progress, the [runtime of the
//! domain](super::progress). An operation does not keep its [endpoint open](super::errors#handles):
//! when the endpoint closes first, bytes that are not yet in the peer's ring or the kernel are not
//! sent, and no failure is reported. [Flush](super::batching#flush) before closing.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
