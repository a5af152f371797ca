//! Sending: many at once, and who hears of what?
//!
//! # Batches
//!
//! A single post takes the lock of the domain, looks whether the peer sleeps (which needs a full
//! fence), and follows up what it made possible. [`Endpoint::inject_all`] and
//! [`Endpoint::post_all`] pay that once for up to 32 messages:
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
//! libfabric has the flag `FI_MORE` for this: "do not start yet, more is coming". It makes somebody
//! responsible for the call that comes without the flag. Here the batch is one call, and that
//! responsibility has nowhere to get lost: nothing is held back when the call returns, whatever
//! ended it. A message of a batch is visible to a peer that polls as soon as it is in the ring;
//! only the doorbell of one that sleeps is rung once, at the end.
//!
//! A batch stops at the first request that is refused, for want of credit or of an entry of the
//! queue, for instance. What is left comes back in [`BatchStopped`](crate::BatchStopped): after
//! [`Error::Again`](crate::Error::Again) to be tried again, when completions have been taken; after
//! any other error the first of them is to be dropped, or sent elsewhere, and the others may go on.
//! Lend the iterator (`&mut requests`) to have what it still holds.
//!
//! # Who hears of success
//!
//! An operation that is awaited or started reports to its future, one that is posted to the queue
//! of its direction. Who posts thousands and wants to hear only of the last of each hundred binds
//! the queue with [`CqBind::SELECTIVE_COMPLETION`](crate::CqBind::SELECTIVE_COMPLETION): then
//! success is reported where the request says [`completion`](crate::SendRequest::completion), and
//! failure always. [`OpFlags::COMPLETION`](crate::OpFlags::COMPLETION) in the hints makes all of
//! them ask.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{CqBind, Fabric, Hints, discover};
//! let info = discover(&Hints::new().provider("shm")).await?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let (mut cq, av) = (domain.completion_queue(256)?, domain.address_vector()?);
//! let ep = domain.endpoint(&info)?.bind_cq(&cq, CqBind::TRANSMIT | CqBind::SELECTIVE_COMPLETION)?.bind_av(&av)?;
//! let ep = ep.enable().await?;
//! let me = ep.lookup(ep.name()).await?;
//! for row in 0..100 {
//!     let send = ep.send(me, vec![row as u8; 8]).context(row);
//!     if row % 50 == 49 { send.completion().post()? } else { send.post()? }
//! }
//! let mut out = Vec::new();
//! while out.len() < 2 {
//!     cq.next_batch(&mut out, 10).await;
//! }
//! assert!(out.iter().map(|entry| entry.context).eq([49, 99]));
//! # Ok(()) }
//! ```
//!
//! Completions to one peer come in the order of the posts, so the 99th says that those before it
//! are done; but not where sends wait for [their receivers' word](crate::guide::ordering), or are
//! copied once: a [fenced](crate::SendRequest::fence) one says it of all before it. An operation
//! that may fail needs an entry for that, so it reserves one as any other does, and gives it back
//! when it ends well: the queue cannot overrun, and its size bounds what is under way. The buffer
//! of what is not reported is dropped with the end of the operation; a receive that is not reported
//! makes sense with a counter, and a [`CustomBuf`](crate::CustomBuf) whose memory is also
//! elsewhere.
//!
//! [`Endpoint::inject_all`]: crate::Endpoint::inject_all
//! [`Endpoint::post_all`]: crate::Endpoint::post_all
