//! Cancellation: what happens when a future is dropped?
//!
//! In Rust a future is cancelled by dropping it: a branch of `select!` that lost, a timeout that
//! fired, a task that was aborted. An operation on a fabric is more than its future. Its buffer may
//! be half filled, and its message may be on its way. So the buffer belongs to the operation, not
//! to the future, until the operation has ended; and this is what a drop does:
//!
//! | dropped while pending | what happens |
//! |---|---|
//! | a request ([`SendRequest`], [`RecvRequest`], [`Reserve`]) never awaited | nothing was posted |
//! | a receive in a branch of `select!` that `if` switches off | it was posted like the others: put it into an `async` block, which posts when it is polled |
//! | a receive no message was matched to | it is withdrawn, and its buffer dropped; nothing was taken |
//! | a receive a message is arriving in, or has arrived in | the message is put back: the next receive that accepts it gets it |
//! | a send that waits for credit | it is withdrawn; nothing is sent |
//! | a [stream](crate::MultiRecv) of messages that share a buffer | messages that have come and were not taken, or are arriving, are put back; the rest of the buffer is dropped |
//! | a [probe](crate::Probe), a [claim](crate::Claim) that waits | nothing was taken |
//! | a [claimed](crate::Claimed) message | it is put back, at its old place |
//! | a read, a write or a lend that waits | it is withdrawn if it waits for credit; else it goes on, as a send does |
//! | an atomic operation | once posted it takes effect, whoever looks: a lock taken in the losing branch of a `select!` stays taken |
//! | a send that was posted | it goes on; the result is not reported, a later failure becomes an [event] |
//! | a [`Reserve`] that waits | it gives up its place in the queue |
//! | a [`Permit`] | the credit goes back |
//! | [`Endpoint::lookup`] | the number stays in the address vector, and the connection is made |
//! | [`next`](crate::EventQueue::next), [`next_batch`], [`Counter::wait`] | nothing is lost: the state is in the queue or counter |
//!
//! An operation that was `.post()`ed has no future, so it cannot be dropped: its completion comes
//! to the queue.
//!
//! # A loop over `select!`
//!
//! What follows from the table: a receive may lose a race any number of times. No message gets
//! lost, none comes twice, and with one receive at a time they stay in order.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! use std::time::Duration;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.lookup(b.name()).await?;
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
//! # Sends and `select!`
//!
//! A send is posted when it is *awaited*, not when it is first polled. `select!` awaits all its
//! branches on entry.
//!
//! * A send in a branch that loses is still delivered, unless it was waiting for credit. Doing it
//!   again sends it twice.
//! * A send in a branch with a false precondition (`, if false`) is posted too, although it is
//!   never polled.
//!
//! So reserve in the `select!`, and send outside of it. Dropping a reservation has no effect on
//! anybody:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! # use fabric_async::Endpoint;
//! # use std::time::Duration;
//! # let ep = Endpoint::bind("shm://").await?;
//! # let peer = ep.lookup(ep.name()).await?;
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
//! # Put back
//!
//! A message that is put back is offered to the receives that are posted at that moment, the
//! earliest first. If none accepts it, it waits among the unexpected messages, at the place it had
//! by its arrival: in front of everything that came later. It keeps its tag, its sender and its
//! data. A message that is still arriving keeps arriving there.
//!
//! **The one caveat.** With several receives outstanding, a later message may have been matched to
//! a later receive already. If you drop the earlier receive, its message comes after that one.
//! Order holds for matching; it does not reach across a drop. A loop with one receive at a time
//! never sees this.
//!
//! **A truncated message stays truncated.** If the dropped receive had too little room, the bytes
//! beyond it are gone. The next receive gets the first part and [`Error::Truncated`] with the
//! number of bytes lost, also if it has room for all. Use [`Endpoint::recv`], which has room for
//! any message, where receives may be dropped.
//!
//! Put-back costs a copy if the dropped receive had a buffer of its own; a message in a pooled
//! buffer is moved. It is kept even if the budget for unexpected messages is used up.
//!
//! # Cancel instead of drop
//!
//! [`Operation::cancel`] takes the operation back if it has not begun, and waits for its end
//! otherwise. Which of the two it was is the result, exactly once, with the buffer:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Canceled, Endpoint};
//! let ep = Endpoint::bind("shm://").await?;
//! let receive = ep.recv_into(Vec::with_capacity(1 << 16)).start()?;
//! match receive.cancel().await {
//!     Canceled::Withdrawn(buf) => assert_eq!(buf.capacity(), 1 << 16),       // it never happened
//!     Canceled::Completed(result) => drop(result?),                          // it was too late
//! }
//! # Ok(()) }
//! ```
//!
//! A receive has begun when a message was matched to it. A send has begun when its first byte is in
//! the peer's ring: a send that is queued behind a full ring can still be cancelled, but is
//! delivered when it is merely dropped. Dropping the future that `cancel` returns is dropping the
//! operation.
//!
//! # Timeouts and tags
//!
//! A receive for the answer to one request has that request's tag. When a timeout drops it, the
//! answer may still come, and then no receive has its tag any more. Nothing is lost, so the late
//! answer waits, among the unexpected messages, for as long as the endpoint lives. There is room
//! for 16 MiB of these, see [`memory`](super::memory). When late answers have used it up, the next
//! message that no posted receive accepts stays in the ring, and holds its sender back with
//! everything behind it: also with answers that somebody waits for, since a receive sees only the
//! front of the ring.
//!
//! Two remedies, one for each kind of client:
//!
//! * **Receive whatever comes, and look at its tag.** One receive for any tag, `tag_mask(0, !0)`,
//!   hands the message to whoever waits for it, and drops it if nobody does. It should be the only
//!   receive for tagged messages: the earliest posted one gets the message, not the one that asks
//!   most exactly.
//! * **Discard after a timeout.** [Claim](crate::Probe::claim) what waits under that tag, and
//!   discard it. A claim takes only what no receive has taken, and posts nothing that could take
//!   what is meant for another. (A receive for any tag that is started and cancelled is no remedy:
//!   while it is posted it is in front of those that are posted later.)
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! use std::time::Duration;
//! let (client, server) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_server = client.lookup(server.name()).await?;
//!
//! client.send(to_server, "a question").tag(1).await?;
//! let answer = tokio::time::timeout(Duration::from_millis(1), client.recv().tag(1)).await;
//! assert!(answer.is_err());                                   // too late; the receive is gone
//!
//! let question = server.recv().tag_mask(0, !0).await?;        // any tag
//! server.send(question.source()?, "late").tag(1).await?;
//! server.send(question.source()?, "done").await?;
//! client.recv().await?;                                       // untagged, and sent after it
//!
//! let late = client.probe().tag(1).claim().now()?.expect("the late answer waits");
//! late.discard();
//! assert!(client.probe().tag(1).claim().now()?.is_none());
//! # Ok(()) }
//! ```
//!
//! Never use a tag again while its answer may still come: a number that counts up does.
//!
//! # What a dropped send needs
//!
//! It needs its endpoint, and under manual progress the runtime of the domain, see
//! [`progress`](super::progress). When the endpoint closes first, with its last clone or by
//! [`Endpoint::close`](crate::Endpoint::close), what is not yet in the peer's ring is not sent, and
//! not reported. A send that had failed already when its future was dropped is reported as any
//! other that failed: as an [event].
//!
//! [event]: crate::EventKind::OperationFailed
//! [`SendRequest`]: crate::SendRequest
//! [`RecvRequest`]: crate::RecvRequest
//! [`Reserve`]: crate::Reserve
//! [`Permit`]: crate::Permit
//! [`Endpoint::lookup`]: crate::Endpoint::lookup
//! [`Endpoint::recv`]: crate::Endpoint::recv
//! [`next_batch`]: crate::CompletionQueue::next_batch
//! [`Counter::wait`]: crate::Counter::wait
//! [`Operation::cancel`]: crate::Operation::cancel
//! [`Error::Truncated`]: crate::Error::Truncated
