//! Progress: which thread moves the bytes, and when none does.
//!
//! After this chapter you can choose between manual and automatic progress, and know what stops
//! while your threads are busy.
//!
//! A thread of the sender copies a message into the ring, and a thread of the receiver copies it
//! out. The progress model says which threads do that. The model is chosen when a domain is opened,
//! and holds for all objects of the domain.
//!
//! | | [`Progress::Manual`], the default | [`Progress::Auto`] |
//! |---|---|---|
//! | driven by | every poll, and a task on your runtime | every poll, and a thread of the domain |
//! | needs a running Tokio runtime | yes, the one where the domain was opened, unless an [event loop](super::event_loops) drives it | no |
//! | while no task waits | pending sends go on; if there are none, over `shm` nothing is received | sends go on, messages are received |
//! | cost | none beyond your threads | one thread per domain, asleep when idle |
//!
//! [`Progress::ControlUnified`] is accepted in hints and served as manual progress.
//!
//! libfabric distinguishes *control* progress (connections, address vectors, memory registration)
//! from *data* progress. Here the same passes make both, so automatic control progress is granted
//! with automatic data progress only:
//!
//! | control asked | data asked | granted control, data | what makes progress on both |
//! |---|---|---|---|
//! | `Auto` | any | `Auto`, `Auto` | the thread of the domain, and every poll |
//! | `Manual` or `ControlUnified` | `Auto` | as asked | the same |
//! | `Manual` or `ControlUnified` | `Manual` or `ControlUnified` | as asked | every poll, and the task on your runtime |
//!
//! An [`Info`] that was changed to automatic control progress without automatic data progress opens
//! no domain ([`Error::Invalid`]).
//!
//! # Polls make progress
//!
//! In both models, polling an [`Operation`], a [`CompletionQueue`], an [`EventQueue`], a
//! [`Counter::wait`] or a [`Reserving`] that is not ready makes a *pass* over the domain: every
//! endpoint moves a bounded number of bytes in both directions. A task that waits for a transmit
//! credit therefore also receives, and two peers that flood each other do not deadlock. No waker
//! runs and no buffer is dropped under the domain's lock.
//!
//! With manual data progress, [`Counter::value`] and [`Counter::errors`] make progress too, and the
//! second of two calls of [`EventQueue::try_read`] that find no event: a program that loops on a
//! counter needs no other call. With automatic progress these calls only read.
//!
//! # Manual progress
//!
//! Opening a [`Domain`] spawns a *driver task* on the current Tokio runtime, unless the program's
//! [event loop](super::event_loops) drives the domain. While a task waits for an object of the
//! domain, or a send is pending, the driver makes passes until its spin budget is used up (see
//! [`wait_policy`](super::wait_policy)). Then the driver *arms the doorbells*: it sets a flag in
//! each ring, and the next sender that sees the flag sends a message on the Unix socket of the
//! connection, its *doorbell*. The driver sleeps until a doorbell rings. A send that was started,
//! posted or dropped goes on under every wait policy for as long as the runtime runs.
//!
//! While a send is pending, the driver also receives. With no pending send and no waiting task, the
//! driver sleeps and doorbells are not armed. Connections are still accepted and dead peers still
//! noticed, because the kernel wakes the driver for sockets. A message over `shm` does not wake the
//! driver: if receives were posted with `.post()` and no task reads the queue, messages stay in the
//! ring until the program polls or reads an object of the domain, or a socket wakes the driver.
//! Over `tcp` and `udp` the kernel wakes the driver for incoming bytes, so they may be received; do
//! not rely on it.
//!
//! [`Domain::progress`] makes one pass and checks once for new connections, without waiting. The
//! call returns whether the pass made progress.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.add_peer(b.name()).await?;
//!
//! let mut received = b.take_completions().expect("the first call gets the queue");
//! b.recv_into(vec![0; 16]).context(7).post()?;
//! a.send(to_b, "ping").await?;                  // in the ring of b; no task waits at b
//!
//! let mut out = Vec::new();
//! while received.try_read_batch(&mut out, 8) == 0 {  // polls without waiting, like fi_cq_read
//!     tokio::task::yield_now().await;
//! }
//! assert_eq!((out[0].context, out[0].bytes()), (7, &b"ping"[..]));
//!
//! while b.domain().progress() {}                // until a pass makes no progress
//! # Ok(()) }
//! ```
//!
//! A domain can also be opened [without a driver](DomainBuilder::driven_by_event_loop), for an
//! event loop of the program that drives it: see [`event_loops`](super::event_loops).
//!
//! # The runtime of the driver task
//!
//! The runtime where the domain is opened needs I/O (`enable_io` or `enable_all`); otherwise
//! opening fails with [`Error::Runtime`].
//!
//! * **The runtime is dropped** while the domain is open: the driver ends. Waiting tasks are woken
//!   and from then on wake themselves in a loop, which keeps a core busy. A send without a waiting
//!   task makes progress only while an object of the domain is polled. Open a new domain on the new
//!   runtime.
//! * **The runtime does not run**, for instance a current-thread runtime outside `block_on`: the
//!   driver is not polled. A task on another runtime may wait for ever. Open the domain on the
//!   runtime that uses it, or use automatic progress.
//! * **The runtime is blocked** by a long computation or `std::thread::sleep`: on a current-thread
//!   runtime the domain makes no progress. On a multi-threaded one, another worker runs the driver
//!   and the waiting tasks, as long as one is free.
//!
//! # Automatic progress
//!
//! The domain has a thread, named `fab-`, the provider and the domain's id. The thread receives
//! whether or not a task waits, and does not depend on the runtime. The thread is in one of three
//! states:
//!
//! * **Driving.** The thread makes passes until its spin budget is used up: see
//!   [`wait_policy`](super::wait_policy).
//! * **Parked.** The thread has armed the doorbells and sleeps in the kernel.
//! * **Watching.** Tasks of the program poll and make progress themselves, so no message is handed
//!   from thread to thread. The domain's thread checks once a millisecond whether tasks still poll,
//!   and drives if none does.
//!
//! The thread wakes a waiting task, so a message to a waiting task costs one wake-up more than a
//! message to a task that polls. A blocked runtime does not stop the thread:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Progress};
//! use std::time::Duration;
//! let a = Endpoint::bind("shm://").await?;
//! let b = Endpoint::options().progress(Progress::Auto).bind("shm://").await?;
//! let to_b = a.add_peer(b.name()).await?;      // answered by the thread of b
//!
//! let receive = b.recv().start()?;
//! a.send(to_b, "while you block").await?;
//! std::thread::sleep(Duration::from_millis(5));   // the only thread of this runtime is busy
//! assert_eq!(&receive.await?[..], b"while you block");
//! # Ok(()) }
//! ```
//!
//! # Several endpoints in a domain
//!
//! The endpoints of a domain share its lock, its passes and its driver: a task that waits for a
//! message of one endpoint also moves the messages of the others. Tasks on several threads take
//! turns at the lock. Open a domain for each endpoint if the endpoints are used independently,
//! above all for streams; keep them in one domain if they share memory regions or completion
//! queues.
//!
//! Messages of 8 bytes between two processes with policy `Park`; each endpoint is used by a task of
//! its own and has its own peer, and in the last row 256 endpoints of one process send to one
//! endpoint. Medians of five interleaved runs on a virtual machine with two cores that other
//! programs kept busy: compare rows with each other, and processor times (of both processes) rather
//! than times. A round trip of several endpoints includes the turns of the other endpoints.
//!
//! | endpoints | runtime | round trip, median and 99 % | round trips/s | CPU of one | stream, messages/s | CPU of one |
//! |---|---|---|---|---|---|---|
//! | 1 | current thread | 45 us, 4.1 ms | 5,300 | 95 us | 0.63 million | 0.37 us |
//! | 8 of one domain | current thread | 48 us, 5.1 ms | 26,000 | 14 us | 0.38 million | 0.64 us |
//! | 8, a domain each | current thread | 70 us, 9.1 ms | 19,000 | 21 us | 0.93 million | 0.27 us |
//! | 1 | multi thread | 29 us, 64 us | 23,000 | 45 us | 1.8 million | 0.34 us |
//! | 8 of one domain | multi thread | 97 us, 2.4 ms | 48,000 | 25 us | 1.5 million | 0.41 us |
//! | 8, a domain each | multi thread | 122 us, 3.4 ms | 41,000 | 25 us | 3.0 million | 0.25 us |
//! | 256 to one endpoint | current thread | 16 ms, 51 ms | 13,000 | 56 us | 0.54 million | 0.92 us |
//!
//! ```text
//! fabric-bench lat  --size 8 --wait park --seconds 0.4       (prints halves of round trips)
//! fabric-bench rate --size 8 --wait park --seconds 0.4
//!   with --endpoints 8
//!   with --endpoints 8 --domains own
//!   with --endpoints 256 --domains own --fan-in
//!   multi thread: with --runtime multi --pin none
//! ```
//!
//! # Which one
//!
//! Manual progress suits a service whose tasks always wait for the next message. Choose automatic
//! progress when receives are posted ahead and their completions read late, when tasks compute for
//! long, when memory is served to peers, or when several runtimes share a domain.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
