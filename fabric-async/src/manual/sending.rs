//! Sending: many at once, and who hears of what?
//!
//! # Batches
//!
//! A single post takes the lock of the domain, looks whether the peer sleeps (which needs a full fence), and follows up
//! what it made possible. [`Endpoint::inject_all`] and [`Endpoint::post_all`] pay that once for up to 32 messages:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.lookup(ep.name()).await?;
//! let ticks = [1u64, 2, 3].map(u64::to_le_bytes);
//! let (accepted, ended) = ep.inject_all(me, ticks.iter().map(|tick| &tick[..]));
//! ended?;
//! let (first, second) = (ep.send(me, vec![0; 100]).tag(1), ep.send(me, vec![0; 200]).tag(2));
//! assert_eq!((accepted, ep.post_all([first, second])?), (3, 2));
//! # Ok(()) }
//! ```
//!
//! libfabric has the flag `FI_MORE` for this: "do not start yet, more is coming". It makes somebody responsible for the
//! call that comes without the flag. Here the batch is one call, and that responsibility has nowhere to get lost: nothing
//! is held back when the call returns, whatever ended it. A message of a batch is visible to a peer that polls as soon as it is
//! in the ring; only the doorbell of one that sleeps is rung once, at the end.
//!
//! A batch stops at the first request that is refused, for want of credit or of an entry of the queue, for instance.
//! What is left comes back in [`BatchStopped`](crate::BatchStopped), to be tried again.
//!
//! [`Endpoint::inject_all`]: crate::Endpoint::inject_all
//! [`Endpoint::post_all`]: crate::Endpoint::post_all
