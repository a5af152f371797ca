//! Event loops: waiting with epoll, and driving a domain without Tokio.
//!
//! After this chapter you can wait for a queue in an event loop of your own, drive a domain from
//! that loop, and wait for several objects at once.
//!
//! # Descriptors
//!
//! [`CompletionQueue`], [`EventQueue`], [`Counter`] and a [`Domain`] without a driver have a
//! descriptor, [`WaitFd`] (`FI_GETWAIT`), for `poll`, epoll, mio or Tokio's `AsyncFd`. The
//! descriptor is level-triggered and can be watched edge-triggered. Each call of `wait_fd` returns
//! the same descriptor.
//!
//! A thread blocks on it only after `prepare_wait` of the same object returned [`TryWait::Block`]
//! (`fi_trywait(3)`):
//!
//! | `prepare_wait` returns | meaning | then |
//! |---|---|---|
//! | [`TryWait::Block`] | the object has nothing to read; its next entry, event or change makes the descriptor readable | block |
//! | [`TryWait::Poll`] | the object may have something to read, or progress is due | read the object and call `prepare_wait` again |
//!
//! A thread that watches several objects calls `prepare_wait` of each, and blocks if all return
//! `Block`. After a wake-up the thread calls `prepare_wait` again: a descriptor stays readable
//! until then. Spurious wake-ups happen. With [`WaitPolicy::Spin`] the result is always `Poll`.
//!
//! # With a driver
//!
//! Unless an event loop drives it, a domain has a driver, a thread or a task: see
//! [`progress`](super::progress). The driver makes progress while the program blocks, so the
//! descriptor of a queue or counter becomes readable when the queue gets an entry or the counter
//! changes. A driver *task* must be able to run: do not block the only thread of its runtime. Such
//! a domain has no descriptor of its own.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Progress, TryWait};
//! use rustix::event::{PollFd, PollFlags, poll};
//! let a = Endpoint::options().progress(Progress::Auto).bind("shm://").await?;
//! let b = Endpoint::options().progress(Progress::Auto).bind("shm://").await?;
//! let to_b = a.add_peer(b.name()).await?;
//! let mut received = b.take_completions().expect("the first call gets the queue");
//! b.recv_into(vec![0; 16]).context(7).post()?;
//!
//! let thread = std::thread::spawn(move || -> fabric_async::Result<_> {
//!     let (fd, mut batch) = (received.wait_fd()?, Vec::new());
//!     while received.try_read_batch(&mut batch, 8) == 0 {
//!         if received.prepare_wait()? == TryWait::Block {
//!             let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);   // without a timeout
//!         }
//!     }
//!     Ok(batch)
//! });
//! a.send(to_b, "wake up").await?;
//! let batch = thread.join().expect("the thread does not panic")?;
//! assert_eq!((batch[0].context, batch[0].bytes()), (7, &b"wake up"[..]));
//! # Ok(()) }
//! ```
//!
//! # Without Tokio
//!
//! [`DomainBuilder::driven_by_event_loop`] opens a domain with manual progress and no driver. No
//! runtime is needed. Only `prepare_wait`, reads of queues and counters, [`Domain::progress`] and
//! polls of futures make progress: between two such calls no message is received, no queued send is
//! written, and no connection is accepted. The descriptor of a queue or counter then also becomes
//! readable when progress is due, so a loop that watches the descriptors of the queues it reads
//! needs no other descriptor. After a wake-up read every object: a descriptor does not tell which
//! object is ready. One thread may wait for the domain's descriptor alone, if it calls
//! `prepare_wait` of every queue first.
//!
//! Several threads may each wait for objects of their own in one such domain. The thread that is
//! woken makes progress for all objects, and wakes the threads whose objects became ready.
//!
//! Futures work without a driver too: poll them, and when all are pending, block on the domain's
//! descriptor.
//!
//! ```
//! use fabric_async::{CqBind, Domain, Fabric, Hints, TryWait, discover};
//! use rustix::event::{PollFd, PollFlags, poll};
//! use std::future::{Future, IntoFuture};
//! use std::task::{Context, Poll, Waker};
//!
//! /// The smallest executor: one future, driven by one domain.
//! fn block_on<T>(domain: &Domain, future: impl Future<Output = T>) -> fabric_async::Result<T> {
//!     let (mut future, fd) = (std::pin::pin!(future), domain.wait_fd()?);
//!     loop {
//!         let mut cx = Context::from_waker(Waker::noop());
//!         if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
//!             return Ok(output);
//!         }
//!         if domain.prepare_wait()? == TryWait::Block {
//!             let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);
//!         }
//!     }
//! }
//!
//! fn main() -> fabric_async::Result<()> {                           // no runtime
//!     let found = discover(&Hints::new().provider("shm"))?;
//!     let info = &found[0];
//!     let domain = Fabric::open(info)?.domain_builder(info).driven_by_event_loop().open()?;
//!     let (cq, av) = (domain.completion_queue(8)?, domain.address_vector()?);
//!     let ep = domain.endpoint(info)?;
//!     let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?.bind_av(&av)?.enable()?;
//!     let me = av.insert(ep.name())?;
//!     block_on(&domain, ep.send(me, "to myself").into_future())??;
//!     let message = block_on(&domain, ep.recv().into_future())??;
//!     assert_eq!(&message[..], b"to myself");
//!     Ok(())
//! }
//! ```
//!
//! The example program `event_loop` does the same with queues and epoll. Not available without
//! Tokio: host names, [`Endpoint::bind`] with manual progress, and passive endpoints with manual
//! progress. Listen with [`Progress::Auto`], and accept into the domain of the event loop by
//! [`EndpointBuilder::accept`].
//!
//! # Several objects at once
//!
//! libfabric's wait sets and poll sets (`fi_wait_open`, `fi_poll_open`) have no type here:
//!
//! | C | here, in tasks | here, in an event loop |
//! |---|---|---|
//! | `fi_poll(3)`: which objects have something to read | `tokio::select!` over `read`; `SelectAll` or `select` of `futures-util`, or `StreamExt::merge` of `tokio-stream`, over the queues as streams | `try_read_batch` of each |
//! | `fi_poll_add`, `fi_poll_del` | push to a `SelectAll` or `StreamMap`, drop the stream | |
//! | `fi_wait(3)`: block until one object has something to read | the same, awaited | `prepare_wait` of each, then one epoll |
//! | `fi_trywait` | nothing: a waker cannot be missed | `prepare_wait` |
//! | progress of all objects | each domain makes progress as a whole: waiting for one object drives the others of its domain | the same; [`Domain::progress`] |
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! use futures_util::StreamExt;
//! use futures_util::stream::SelectAll;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let (to_a, to_b) = (a.add_peer(a.name()).await?, a.add_peer(b.name()).await?);
//! let mut set = SelectAll::new();                                   // a poll set
//! for (index, ep) in [&a, &b].into_iter().enumerate() {
//!     ep.recv_into(vec![0; 8]).post()?;
//!     let queue = ep.take_completions().expect("the first call gets the queue");
//!     set.push(queue.map(move |done| (index, done)));
//! }
//! a.send(to_b, "b").await?;
//! let (index, done) = set.next().await.expect("queues do not end");
//! assert_eq!((index, done.bytes()), (1, &b"b"[..]));
//! # let _ = to_a;
//! # Ok(()) }
//! ```

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
