//! Batches and selective completion.
//!
//! After this chapter you can post many messages at the cost of one lock, and have only some of
//! them reported.
//!
//! # Batches
//!
//! A single post takes the lock of the domain and checks, with a full memory fence, whether the
//! peer sleeps. [`Endpoint::inject_all`] and [`Endpoint::post_all`] do both once for up to 32
//! messages:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.add_peer(ep.name()).await?;
//! let ticks = [1u64, 2, 3].map(u64::to_le_bytes);
//! let (accepted, ended) = ep.inject_all(me, ticks.iter().map(|tick| &tick[..]));
//! ended?;
//! let (first, second) = (ep.send(me, vec![0; 100]).tag(1), ep.send(me, vec![0; 200]).tag(2));
//! assert_eq!((accepted, ep.post_all([first, second])?), (3, 2));
//! # Ok(()) }
//! ```
//!
//! Batch calls replace `FI_MORE`: when a batch call returns, no message waits for a later call
//! without the flag. A peer that polls sees each message as soon as it is in the ring; the doorbell
//! of a sleeping peer is rung once, at the end. Over `tcp` and `udp` the messages of a batch are
//! written with one system call where they fit, and complete when the kernel has their bytes.
//!
//! A batch stops at the first request that is refused. The refused requests come back in
//! [`BatchError`]. After [`Error::WouldBlock`], post them again when completions have been taken.
//! After any other error, drop the first refused request or send its buffer elsewhere; the others
//! may be posted. Pass `&mut requests` to keep the iterator with the requests that were not yet
//! taken from it.
//!
//! # Selective completion
//!
//! Bind a queue with [`CqBind::SELECTIVE_COMPLETION`] to have success reported only for requests
//! with [`completion`](Request::completion); failure is always reported. [`OpFlags::COMPLETION`] in
//! the hints makes it the default of all requests.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{CqBind, Fabric, Hints, discover};
//! let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let (mut cq, av) = (domain.completion_queue(256)?, domain.address_vector()?);
//! let selective = CqBind::TRANSMIT | CqBind::SELECTIVE_COMPLETION;
//! let ep = domain.endpoint(&info)?.bind_cq(&cq, selective)?.bind_av(&av)?;
//! let ep = ep.enable()?;
//! let me = ep.add_peer(ep.name()).await?;
//! for context in 0..100 {
//!     let send = ep.send(me, vec![context as u8; 8]).context(context);
//!     if context % 50 == 49 { send.completion().post()? } else { send.post()? }
//! }
//! let mut out = Vec::new();
//! while out.len() < 2 {
//!     cq.read_batch(&mut out, 10).await;
//! }
//! assert!(out.iter().map(|entry| entry.context).eq([49, 99]));
//! # Ok(()) }
//! ```
//!
//! Short sends to one peer complete in posting order, so the completion of the 100th send implies
//! that the earlier 99 have completed. Sends that wait for the receiver ([completion
//! levels](super::ordering#completion-levels), [single copy](super::memory#single-copy)) may
//! complete in another order; the completion of a [fenced](Request::fence) request implies that all
//! earlier operations to its peer have ended.
//!
//! A request without `completion` may still fail, so it reserves a queue entry and frees the entry
//! when it succeeds. The buffer of an unreported operation is dropped at its end; an unreported
//! receive makes sense with a counter and a [`CustomBuf`] whose memory is also reachable elsewhere.
//!
//! # Flush
//!
//! [`Endpoint::flush`] and [`Domain::flush`] wait until every send, write and non-fetching atomic
//! operation that was posted before has left the process: its bytes are in the peer's ring or in
//! the kernel, or it has ended. These bytes are delivered also if the process ends, with one
//! exception:
//!
//! * Over `tcp` the kernel discards bytes that it has not sent yet if the process ends while bytes
//!   of that peer are unread in the socket. Receive what the peer sent before, or wait for its
//!   reply.
//!
//! Flush after operations that no task awaits: injected, posted, or started and dropped. An awaited
//! send has left already. A flush does not tell whether operations failed, and does not wait for
//! reads and fetching atomic operations. Where the peer fetches a message from this process (single
//! copy over `shm`, more than 16 KiB over RXM) or the kernel reads it from the buffer (zero copy
//! over `tcp`), the flush waits for the peer. It fails with [`Error::Closed`] when the endpoint or
//! domain is closed. It is cancel safe: dropping the future only ends the wait.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! # use fabric_async::Endpoint;
//! # let (server, client) = (Endpoint::bind("tcp://").await?, Endpoint::bind("tcp://").await?);
//! # let peer = client.add_peer(server.name()).await?;
//! for line in ["one", "two", "three"] {
//!     client.send(peer, line.as_bytes()).inject()?;
//! }
//! client.flush().await?;                                  // the kernel has all bytes
//! # assert_eq!(&server.recv().await?[..], b"one");
//! # Ok(()) }
//! ```

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
