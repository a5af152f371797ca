//! Progress: who moves the bytes, and when does nobody?
//!
//! Shared memory has no card that works on its own. A message moves because some thread of the
//! sending process copies it into the ring, and some thread of the receiving process copies it out.
//! *Progress* is the question which thread that is. It is chosen when a domain is opened, and holds
//! for everything in it.
//!
//! | | [`Progress::Manual`] (the default) | [`Progress::Auto`] |
//! |---|---|---|
//! | who drives | whoever polls, and a task on your runtime | whoever polls, and a thread of the domain |
//! | needs a running runtime | yes: the one where the domain was opened | no |
//! | nobody waits for anything | sends go on, nothing is received | sends go on, messages are received |
//! | costs | nothing beyond your own threads | one thread per domain, asleep when idle |
//!
//! [`Progress::ControlUnified`] is accepted in hints and served as manual progress.
//!
//! # Whoever polls drives
//!
//! In both modes, polling an [`Operation`], a [`CompletionQueue`], an [`EventQueue`], a
//! [`Counter::wait`] or a [`Reserve`] whose result is not there yet makes a *pass* over the whole
//! domain: every endpoint of it moves a bounded number of bytes, in both directions. So a task that
//! waits for a credit to send also receives, and two peers that flood each other do not get stuck.
//! One lock per domain keeps the passes apart. No waker runs and no buffer is dropped while it is
//! held.
//!
//! [`Counter::value`], [`Counter::errors`] and [`EventQueue::try_next`] only look.
//!
//! # Manual
//!
//! [`Domain`] opens with a *driver task*, spawned on the runtime that is current at that moment. It
//! is there for the time between polls. While any task waits for something of the domain, or a send
//! is under way, the driver looks for news, then asks the peers to ring, and sleeps until one does.
//! It belongs to no operation. It does not matter which task polled last, nor whether that task was
//! dropped or is busy. A send that was started, posted to a queue, or dropped therefore goes on by
//! itself, under every wait policy, for as long as the runtime runs.
//!
//! With no send under way and nobody waiting, the driver sleeps, and peers are not asked to ring.
//! Connections are still accepted and dead peers still noticed, because those wake the driver
//! through the kernel. But a *passive target* receives nothing: if you posted receives with
//! `.post()` and nobody reads the queue, messages stay in the ring until somebody polls; the sender
//! can fill the ring, and then waits. This is what manual means in libfabric too. (Over `tcp` and
//! `udp` the kernel wakes the driver for what comes, and so it may be received; do not count on
//! it.)
//!
//! Whoever wants to drive by hand calls [`Domain::progress`]: one pass and one look at new
//! connections, without waiting. It returns whether anything moved.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::Endpoint;
//! let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let to_b = a.lookup(b.name()).await?;
//!
//! let mut received = b.completions().expect("the first to ask gets it");
//! b.recv_into(vec![0; 16]).context(7).post()?;
//! a.send(to_b, "ping").await?;                  // in the ring of b; nobody waits at b
//!
//! let mut out = Vec::new();
//! while received.try_batch(&mut out, 8) == 0 {  // polls without waiting, like fi_cq_read
//!     tokio::task::yield_now().await;
//! }
//! assert_eq!((out[0].context, out[0].bytes()), (7, &b"ping"[..]));
//!
//! while b.domain().progress() {}                // by hand, until nothing moves
//! # Ok(()) }
//! ```
//!
//! # The runtime of the driver
//!
//! The driver lives on the runtime where the domain was opened, so that runtime needs I/O
//! (`enable_io` or `enable_all`) and has to run.
//!
//! * **The runtime is dropped** while the domain lives on: the driver goes with it. Every task that
//!   waits for an operation, a queue, a counter or an event is woken, and from then on a waiting
//!   task keeps itself runnable: a core is busy for as long as somebody waits. A send that nobody
//!   waits for moves only while something is polled. Open a new domain on the new runtime instead.
//! * **The runtime exists but does not run**, such as a current-thread runtime outside of
//!   `block_on`: the driver is never polled. A task on another runtime then makes progress while it
//!   is polled, and may wait for ever in between. Open the domain on the runtime that will use it,
//!   or use automatic progress.
//! * **The runtime is blocked**, by a long computation or `std::thread::sleep` in a task: on a
//!   current-thread runtime nothing of the domain moves meanwhile. On a multi-threaded one another
//!   worker runs the driver and the waiting tasks, as long as one is free.
//!
//! # Auto
//!
//! The domain has a thread, named `fab-` and the provider's name. It receives whether or not
//! anybody waits, and whatever the runtime does. It has three states:
//!
//! * **Driving.** It makes passes until there was no news for a while, see
//!   [`waiting`](super::wait_policy).
//! * **Parked.** It asked the peers to ring and sleeps in the kernel. It takes no CPU time.
//! * **Watching.** Your tasks poll, so they drive in place, without a hand-off between threads. The
//!   thread stays out of their way and looks once a millisecond whether they still do. If they do
//!   not, it takes over.
//!
//! Completions find you through the waker of the waiting task. A task that waits therefore costs
//! one wake-up more than a task that polls: the thread is woken by the peer, and wakes the task.
//!
//! Opening the domain of an automatic endpoint needs no Tokio runtime, and a blocked one does not
//! stop it:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Progress};
//! use std::time::Duration;
//! let a = Endpoint::bind("shm://").await?;
//! let b = Endpoint::options().progress(Progress::Auto).bind("shm://").await?;
//! let to_b = a.lookup(b.name()).await?;      // answered by the thread of b
//!
//! let receive = b.recv().start()?;
//! a.send(to_b, "while you block").await?;
//! std::thread::sleep(Duration::from_millis(5));   // the only thread of this runtime is busy
//! assert_eq!(&receive.await?[..], b"while you block");
//! # Ok(()) }
//! ```
//!
//! # Which one
//!
//! Manual progress suits a service whose tasks are always waiting for the next message: there is
//! always a poller, and no thread to hand over to. Choose automatic progress when receives are
//! posted ahead and looked at late, when tasks compute for long, or when several runtimes share a
//! domain. The promise of automatic progress is progress, not speed.
//!
//! [`Progress::Manual`]: crate::Progress::Manual
//! [`Progress::Auto`]: crate::Progress::Auto
//! [`Progress::ControlUnified`]: crate::Progress::ControlUnified
//! [`Operation`]: crate::Operation
//! [`CompletionQueue`]: crate::CompletionQueue
//! [`EventQueue`]: crate::EventQueue
//! [`EventQueue::try_next`]: crate::EventQueue::try_next
//! [`Counter::wait`]: crate::Counter::wait
//! [`Counter::value`]: crate::Counter::value
//! [`Counter::errors`]: crate::Counter::errors
//! [`Reserve`]: crate::Reserve
//! [`Domain`]: crate::Domain
//! [`Domain::progress`]: crate::Domain::progress
