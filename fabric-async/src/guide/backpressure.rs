//! Backpressure: what happens when the receiver is slower than the sender?
//!
//! Nothing is dropped, and nothing grows without bound unless you let it. A message that cannot go
//! into the peer's ring at once needs a *transmit credit*; a completion that is to go into a queue
//! needs a *queue entry*. Both are taken when the operation is posted, or the post does not happen.
//!
//! # Three faces
//!
//! | | without credit |
//! |---|---|
//! | [`try_send`], `.start()`, `.post()`, [`inject`] | refused with [`Error::Again`], and the buffer is in [`Failed`] |
//! | `.await` | waits, behind those to the same peer that came before |
//! | [`reserve`] | waits likewise, then holds a credit as a [`Permit`] |
//!
//! All three stand in one queue per endpoint. Nobody overtakes those who wait for the same peer,
//! not even with a message that would have fitted.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error, Scarce};
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.lookup(b.name()).await?;
//!
//! let mut under_way = Vec::new();
//! let refused = loop {                            // nobody receives
//!     match a.try_send(to_b, vec![0; 8192]) {
//!         Ok(operation) => under_way.push(operation),
//!         Err(failed) => break failed,
//!     }
//! };
//! assert_eq!(refused.error, Error::Again(Scarce::TransmitCredit));
//! let count = under_way.len();
//!
//! let last = a.send(to_b, refused.buf);           // awaiting it waits for its turn
//! let receive = async {
//!     for _ in 0..count + 1 {
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
//! send holds one from the moment it has to queue until all of it is in the peer's ring, or with
//! the socket; until the peer has fetched it, where it is copied once; until the word has come that
//! it waits for. A message that goes into the ring at once holds none. So a sender can be ahead of
//! its receiver by the ring, and by its credits.
//!
//! One peer can have a quarter of the credits, at least one. A peer that does not receive therefore
//! stops the sends to it, not those to others. Sends to other peers go past those that wait for the
//! slow one.
//!
//! A task that waits for credit makes progress in both directions. Two endpoints that flood each
//! other and receive in another task go on.
//!
//! The number of *awaiting* sends is not limited: each is a future that you hold. Bound it as you
//! would bound any other kind of task, for instance by reserving first.
//!
//! # Permits
//!
//! A [`Permit`] is a credit in hand, for one peer. It separates waiting from building the message,
//! and it is what to put into `select!`, see [`cancellation`](super::cancellation). Dropping it
//! gives the credit back. It stands for the transmit credit alone: a `.post()` with it can still be
//! refused for want of a queue entry. And it is a credit, not a place in the order: a send with it
//! goes behind the sends to the same peer that waited when it was posted.
//!
//! With `.post()` there is no future that could wait for a credit. Reserve first:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! # use fabric_async::Endpoint;
//! # use futures_util::StreamExt;
//! # let ep = Endpoint::bind("shm://").await?;
//! # let peer = ep.lookup(ep.name()).await?;
//! # let mut queue = ep.completions().expect("the first to ask gets it");
//! let permit = ep.reserve(peer).await?;                        // waits its turn
//! permit.send(&ep, vec![7; 100]).context(1).post()?;           // not refused for want of credit
//! assert_eq!(queue.next().await.expect("open").context, 1);
//! # Ok(()) }
//! ```
//!
//! # Queue entries
//!
//! A [`CompletionQueue`] of `n` entries never overruns. Every `.post()` reserves an entry, which is
//! free again when the completion is taken out of the queue. Without one the post is refused with
//! [`Scarce::CompletionEntry`](crate::Scarce::CompletionEntry). Sends and receives that report to
//! one queue share its entries: a program that posts receives for all of them cannot post a send.
//! Operations that are awaited or started do not use the queue.
//!
//! An [`EventQueue`](crate::EventQueue) cannot refuse what happens. Events beyond its capacity are
//! counted, and reported as one [`Overrun`](crate::EventKind::Overrun), after those that were kept.
//! Whoever follows peers by [`PeerConnected`](crate::EventKind::PeerConnected) and
//! [`PeerDown`](crate::EventKind::PeerDown) then looks at what is, instead of what happened:
//! [`AddressVector::peers`](crate::AddressVector::peers) lists everybody with a number. Forget the
//! guests that are not in it, and take in those that are new. A guest whose number is still there
//! may have left and come back. A number that was looked up or inserted is listed in any case;
//! [`Endpoint::lookup`](crate::Endpoint::lookup) of its name tells whether the peer is there. Do
//! not look guests up for this: it makes their numbers permanent.
//!
//! # Receives
//!
//! `info.rx.size` receives can be posted with `.start()` or `.post()`, 1024 unless the hints asked
//! for fewer. Beyond it the answer is [`Scarce::ReceiveEntry`](crate::Scarce::ReceiveEntry).
//! Awaited receives are not refused, but count.
//!
//! A receive of several messages is one of them, however many messages it takes. Its stream may
//! have as many messages that were not taken as the endpoint may have receives. Posted to a queue
//! it keeps one entry for the next message and one for the release of the buffer. When the stream
//! is full, or the queue, further messages for it wait at their senders, as unexpected ones beyond
//! the budget do, until somebody takes what is there.
//!
//! On the other side of the ring, messages that nobody asked for are kept within a budget, and
//! beyond it hold their sender back: see [`memory`](super::memory). That is where the backpressure
//! begins.
//!
//! [`try_send`]: crate::Endpoint::try_send
//! [`inject`]: crate::Endpoint::inject
//! [`reserve`]: crate::Endpoint::reserve
//! [`Error::Again`]: crate::Error::Again
//! [`Failed`]: crate::Failed
//! [`Permit`]: crate::Permit
//! [`Hints::tx_size`]: crate::Hints::tx_size
//! [`CompletionQueue`]: crate::CompletionQueue
