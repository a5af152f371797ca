//! Backpressure: credits, queue entries, limits of receives.
//!
//! After this chapter you can handle [`Error::WouldBlock`], bound the memory of a sender, and keep
//! one slow receiver from stopping the others.
//!
//! Backpressure drops no message over `shm` and `tcp`; [`udp`](super::udp#delivery) drops messages.
//! A message that does not fit into the peer's ring at once takes a *transmit credit*. An operation
//! whose completion goes to a queue takes a *queue entry*. `.start()`, `.post()` and `inject` take
//! both, or fail. `.await` waits for the credit, so the number of awaited sends has no limit.
//!
//! | call | without a credit |
//! |---|---|
//! | `.start()`, `.post()`, [`inject`](Request::inject) | refused with [`Error::WouldBlock`], and the buffer is in [`Failed`] |
//! | `.await` | waits behind earlier operations to the same peer |
//! | [`reserve`](Endpoint::reserve) | waits in the same queue, then holds the credit as a [`Permit`] |
//!
//! A send never overtakes an earlier send to the same peer that waits, even if the later one would
//! fit. [`Error::WouldBlock`] has the [`Resource`] with its limit and the peer, and its text says
//! what to await.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error, Resource};
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.add_peer(b.name()).await?;
//!
//! let mut pending = Vec::new();
//! let refused = loop {                            // b does not receive
//!     match a.send(to_b, vec![0; 8192]).start() {
//!         Ok(operation) => pending.push(operation),
//!         Err(failed) => break failed,
//!     }
//! };
//! let Error::WouldBlock(Resource::TransmitCredit { peer, in_use, .. }) = refused.error else {
//!     panic!("{}", refused.error)
//! };
//! assert_eq!((peer, in_use), (to_b, 256));        // a quarter of the endpoint's credits
//!
//! let last = a.send(to_b, refused.buf);           // waits for a credit
//! let receive = async {
//!     for _ in 0..pending.len() + 1 {
//!         b.recv().await?;
//!     }
//!     Ok::<_, Error>(())
//! };
//! let (sent, received) = tokio::join!(last, receive);
//! assert_eq!(sent?.len(), 8192);
//! received?;
//! # Ok(()) }
//! ```
//!
//! # Transmit credits
//!
//! An endpoint has `info.tx.size` credits: 1024, or fewer if [`Hints::tx_size`] asked for fewer. A
//! send holds one from the moment it queues until all of it is in the peer's ring or the socket,
//! until the peer has copied it ([single copy](super::memory#single-copy)), or until the peer's
//! notification if its [completion level](super::ordering#completion-levels) needs one. A message
//! that goes into the ring at once takes none.
//!
//! One peer can hold a quarter of the credits, at least one. A peer that does not receive stops the
//! sends to that peer, and no sends to other peers. A task that waits for a credit makes progress
//! in both directions.
//!
//! The number of sends that *await* a credit is not limited: each is a future that you hold.
//!
//! # Permits
//!
//! A [`Permit`] is a transmit credit for one peer. A permit separates the wait for the credit from
//! the post, as [`select!`](super::cancellation#posts-inside-select) and `.post()` need. Dropping
//! the permit returns the credit. A post with a permit can still lack a queue entry, and its
//! message goes behind sends to the same peer that already wait.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! # use fabric_async::Endpoint;
//! # use futures_util::StreamExt;
//! # let ep = Endpoint::bind("shm://").await?;
//! # let peer = ep.add_peer(ep.name()).await?;
//! # let mut queue = ep.take_completions().expect("the first call gets the queue");
//! let permit = ep.reserve(peer).await?;                        // waits its turn
//! permit.send(&ep, vec![7; 100]).context(1).post()?;           // not refused for want of credit
//! assert_eq!(queue.next().await.expect("open").context, 1);
//! # Ok(()) }
//! ```
//!
//! # Queue entries
//!
//! A [`CompletionQueue`] never overruns. Every `.post()` reserves an entry, which is free again
//! when its completion is taken. Without a free entry the post fails with
//! [`Resource::CompletionEntry`]. Sends and receives of one queue share its entries: receives that
//! have reserved all entries leave none for a send. Awaited and started operations use no entry.
//! A peer's write with [data](Request::data) takes an entry that no post reserved: while the queue
//! is full, the write and [all that follows it](super::one_sided#what-the-target-is-told) wait.
//!
//! An [`EventQueue`] reserves an entry for each [posted
//! registration](crate::async_mr::RegionRequest::post), and refuses events of the
//! [program](EventQueue::writer) while it is full of them. It cannot refuse other events. Those
//! beyond its capacity are discarded, counted and reported as one [`Overrun`](EventKind::Overrun)
//! behind the queued events. A program that tracks peers by
//! [`PeerConnected`](EventKind::PeerConnected) and [`PeerDown`](EventKind::PeerDown) then compares
//! its list with [`AddressVector::peers`]: it removes auto-inserted handles that are not in
//! `peers`, and adds new ones. The handle of a peer that you inserted is always listed;
//! [`Endpoint::add_peer`] of its name tells whether the peer can be reached. Do not call `add_peer`
//! for auto-inserted peers: the call makes their handles permanent. An endpoint whose handle is
//! still listed may have left and connected again.
//!
//! # Receives
//!
//! At most `info.rx.size` receives can be started or posted at a time: 1024, unless the hints asked
//! for fewer. Further ones fail with [`Resource::ReceiveEntry`]. A receive frees its place when it
//! completes, even if its completion is still in the queue. Awaited receives count towards the
//! limit, but are not refused.
//!
//! A multi-receive counts once. Its stream holds at most `info.rx.size` messages that were not
//! taken; a multi-receive that is posted to a queue reserves one entry for the next message and one
//! for the release of its buffer. When the stream or the queue is full, further messages wait at
//! their senders, as do [unexpected messages](super::memory#unexpected-messages) beyond the budget.
//!
//! # A receiver that is behind
//!
//! An endpoint buffers messages that no receive accepts within a budget, of which each peer has a
//! share: see [unexpected messages](super::memory#unexpected-messages). When the share is used up,
//! the endpoint does not read on from that peer's connection. The event
//! [`EventKind::PeerOverBudget`] names the peer, and [`EndpointStats::held_connections`] counts
//! such connections. The program can post receives, or end the connection with
//! [`Endpoint::disconnect`]. If the peer ends, operations that wait for it fail, and the messages
//! that have arrived are still received.
//!
//! So a peer can be about 12,000 short messages ahead of a receiver, and what the ring or the
//! sockets hold. Two sides that first send all and then receive all wait for each other beyond
//! that: receive while you send, with a task for each, or post the receives first.
//!
//! # A peer that takes nothing
//!
//! A send has no time limit of its own. Await it with `tokio::time::timeout`; a send that has not
//! begun is withdrawn if it was made with [`cancel_on_drop`](Request::cancel_on_drop). To end one
//! that has begun, disconnect the peer:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use std::time::Duration;
//! use fabric_async::{Endpoint, Error};
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.add_peer(b.name()).await?;
//! let mut send = a.send(to_b, vec![0; 32 << 20]).start()?;          // b does not receive
//! if tokio::time::timeout(Duration::from_millis(10), &mut send).await.is_err() {
//!     a.disconnect(&a.address_vector().lookup(to_b)?)?;
//!     let failed = send.await.unwrap_err();
//!     assert!(matches!(failed.error, Error::PeerGone(_)));
//!     assert_eq!(failed.buf.len(), 32 << 20);
//! }
//! # Ok(()) }
//! ```

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
