//! Thread models: which threads use a domain, and which locks it has.
//!
//! After this chapter you can choose a thread model and a message model, write a program with one
//! domain for each core, and use a domain from several threads at the same time.
//!
//! | | [`Shared`], the default | [`Serial`] | [`Pinned`] |
//! |---|---|---|---|
//! | handles, requests, operations | `Send` and `Sync` | `Send` and `Sync`: one thread at a time may use the domain | neither: one thread may use them |
//! | exclusion | a mutex for the domain, a spin lock for each connection over `shm` | a flag for the domain | each call compares the thread id and tests a re-entry flag, without atomic read-modify-writes |
//! | a second thread at the same time | waits | posts fail with [`Error::ConcurrentUse`], other calls wait | does not compile |
//! | atomic read-modify-writes per message over `shm`: awaited; in a batch | 4.3; 0.3 | 3.3; 0.1 | 1.3; 0.0 |
//! | half round trip of 8 bytes over `shm`, [`Shared`] = 1 (less is better) | 1 | 1.0 | 1.03 |
//! | messages per second, [`Shared`] = 1 (more is better): awaited; in batches | 1 | 1.0; 1.0 | 1.04; 1.0 |
//! | required [`Threading`] of the info (`Endpoint::options` sets it; resource domains need none) | any | [`Threading::Domain`] | [`Threading::Domain`] |
//! | progress | manual or automatic | manual or automatic | manual |
//! | driver | a task, a thread, or an event loop | a task, a thread, or an event loop | a task on the same thread, or an event loop |
//! | asynchronous registration | yes | no | no, because it opens regions on other threads |
//!
//! Hints for `FI_THREAD_FID`, `FI_THREAD_ENDPOINT`, `FI_THREAD_COMPLETION` and `FI_THREAD_DOMAIN`
//! are granted. A [`Shared`] domain locks as for `FI_THREAD_SAFE` under each.
//!
//! # When to take which
//!
//! Take [`Shared`] for services on a multi-thread runtime: their tasks, and so their handles, move
//! between threads. Take [`Pinned`] where each thread has its own domain and its own current-thread
//! runtime, such as a server that shards its clients by core. The compiler then keeps the objects
//! of a core on its thread, and no thread makes another one wait for a lock. Messages do not get
//! faster: an uncontended lock costs little compared with moving cache lines. [`Serial`] is for a
//! domain that one task uses, or tasks that hold a lock for the whole `.await`: each poll is a use,
//! so a lock around the posts is not enough. It reports overlapping calls. The model is a type
//! parameter of all handles; streams and the calls of `fabric-rpc` are always [`Shared`]. Moving a
//! [`Pinned`] handle to another thread does not compile:
//!
//! ```compile_fail,E0277
//! use fabric_async::Endpoint;
//! use fabric_async::thread_model::Pinned;
//!
//! fn from_another_thread(ep: Endpoint<Pinned>) {
//!     std::thread::spawn(move || ep.stats());
//! }
//! ```
//!
//! # One domain for each core
//!
//! ```
//! use std::time::Duration;
//!
//! use fabric_async::thread_model::Pinned;
//! use fabric_async::{Address, Endpoint, Error, Result};
//!
//! /// What one core does: it opens its own endpoint, and exchanges messages with other cores.
//! async fn serve(name: Address) -> Result<usize> {
//!     let options = Endpoint::options().thread_model::<Pinned>();
//!     let ep = options.bind(name).await?;
//!     Ok(ep.recv().await?.len())
//! }
//!
//! fn on_its_own_runtime<T>(work: impl Future<Output = T>) -> T {
//!     let mut runtime = tokio::runtime::Builder::new_current_thread();
//!     runtime.enable_all().build().expect("a runtime").block_on(work)
//! }
//!
//! # fn main() -> Result<()> {
//! # let at: Address = format!("shm://threads-of-the-guide-{}", std::process::id()).parse()?; /*
//! let at: Address = "shm://core-1".parse()?;
//! # */
//! let core = std::thread::spawn({
//!     let at = at.clone();
//!     move || on_its_own_runtime(serve(at))
//! });
//! let sent = on_its_own_runtime(async {
//!     let ep = Endpoint::options().thread_model::<Pinned>().bind("shm://").await?;
//!     let peer = loop {
//!         match ep.add_peer(&at).await {
//!             // The other thread has not bound its address yet.
//!             Err(Error::NoSuchPeer(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
//!             added => break added?,
//!         }
//!     };
//!     Ok::<_, Error>(ep.send(peer, "hello, core").await?.len())
//! })?;
//! assert_eq!(sent, core.join().expect("no panic")?);
//! # Ok(()) }
//! ```
//!
//! The example `thread_per_core` passes messages around all cores of the machine. The library binds
//! no thread to a core: bind the threads yourself, for example by `taskset` or `sched_setaffinity`.
//!
//! # Resource domains
//!
//! A [resource domain](crate::resource_domain) is a part of a domain with a lock, a driver, a
//! thread model and, over `tcp`, an io_uring instance of its own. Threads can share the address
//! vectors, memory regions, limits and event queue of a domain, and have endpoints and queues of
//! their own (`FI_THREAD_COMPLETION`). Then give each thread a resource domain.
//!
//! ```
//! use fabric_async::thread_model::Pinned;
//! use fabric_async::{AddressVector, CqBind, Domain, Fabric, Hints, Info, RemoteRegion, Result};
//! use fabric_async::{Access, discover};
//!
//! /// What one thread does. The queue and the endpoint belong to a resource domain, the address
//! /// vector and the region to the parent domain.
//! async fn write_own_part(
//!     (domain, av, info): (Domain, AddressVector, Info),
//!     region: RemoteRegion,
//!     number: u8,
//! ) -> Result<()> {
//!     let resource_domain = domain.resource_domain().thread_model::<Pinned>().open()?;
//!     let cq = resource_domain.completion_queue(16)?;
//!     let ep = resource_domain.endpoint(&info)?.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?;
//!     let ep = ep.bind_av(&av)?.enable()?;
//!     let me = av.insert(ep.name())?;
//!     let begin = u64::from(number) * 8;
//!     ep.write(me, region.slice(begin..begin + 8), [number; 8]).await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
//! let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let (av, region) = (domain.address_vector()?, domain.alloc(16, Access::REMOTE_WRITE)?);
//! let start = |number| {
//!     let shared = (domain.clone(), av.clone(), info.clone());
//!     let remote = region.remote();
//!     std::thread::spawn(move || {
//!         let mut runtime = tokio::runtime::Builder::new_current_thread();
//!         let runtime = runtime.enable_all().build().expect("a runtime");
//!         runtime.block_on(write_own_part(shared, remote, number))
//!     })
//! };
//! for thread in [start(0), start(1)] {
//!     thread.join().expect("no panic")?;
//! }
//! let mut written = [9; 16];
//! region.read(0, &mut written)?;
//! assert_eq!(written, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
//! # Ok(()) }
//! ```
//!
//! The main thread may block in `join`: the driver of a resource domain runs on the thread that
//! opened the resource domain.
//!
//! The example `resource_domains` has two threads that send batches of 8-byte messages, each on its
//! own endpoint. With a resource domain for each thread they move 1.4 to 1.8 times as many messages
//! over `shm` as in one domain. Over `tcp` they move 10 times as many: in one domain each thread
//! also handles the sockets of the other.
//!
//! Resource domains also help within one thread: a poll makes
//! [passes](super::progress#polls-make-progress) only in its own resource domain, so a pass handles
//! one endpoint and not eight. The table has rates in millions of messages of 8 bytes in a second,
//! and half round trips: medians of three runs of two processes on two cores, policy adaptive, with
//! eight endpoints in eight tasks, each with a peer of its own.
//!
//! | eight endpoints, awaited | one domain | a resource domain each | a domain each |
//! |---|---|---|---|
//! | `shm`, current thread: rate; half round trip | 1.6; 0.28 us | 2.6; 0.21 us | 3.0; 0.18 us |
//! | `shm`, multi thread | 1.2; 0.22 us | 3.1; 0.18 us | 3.2; 0.19 us |
//! | `tcp`, current thread | 1.4; 6.7 us | 1.8; 4.4 us | 1.8; 4.6 us |
//! | `tcp`, multi thread | 1.2; 6.6 us | 1.9; 4.6 us | 1.7; 4.5 us |
//!
//! ```text
//! fabric-bench rate --size 8 --endpoints 8 --wait adaptive --domains one|resource|own
//! fabric-bench lat  --size 8 --endpoints 8 --wait adaptive --domains one|resource|own
//!   multi thread: with --runtime multi --pin none
//! ```
//!
//! # Message models
//!
//! A domain or resource domain has a [`MessageModel`](crate::resource_domain::MessageModel), which
//! decides when messages leave, how long threads spin, and which connections each
//! [pass](super::progress#polls-make-progress) polls. The
//! table of the type has the differences. `Default` suits most programs. Take `LowLatency` where
//! single messages matter and cores are free, and `ForceLowLatency` for a few domains that may each
//! occupy a core: opening fails if this process has reserved all its cores. `Default` was as fast
//! as `HighBandwidth` or faster in the measurements below. Try `HighBandwidth` if a program posts
//! messages one by one over `tcp` or `udp`, and system calls dominate.
//!
//! | messages of 8 bytes per second, `LowLatency` = 1 | `Default` | `HighBandwidth` |
//! |---|---|---|
//! | `shm`, posted in batches | 1.4 | 1.2 |
//! | `shm`, posted one by one | 1.0 | 1.0 |
//! | `tcp`, posted in batches | 3.6 | 2.7 |
//! | `tcp`, posted one by one | 1.6 | 1.5 |
//!
//! (Medians of three runs of `fabric-bench rate --size 8 --api batch|cq --msg-model MODEL`, policy
//! adaptive, two processes on two cores.) An awaited message leaves at once in each model, with
//! what was posted before it. So round trips hardly differ. While another endpoint of the domain
//! streams, the time with `LowLatency` divided by the time with `HighBandwidth` was 1.0 over `shm`
//! and 0.97 over `tcp` (`fabric-bench lat --size 8 --streams 1 --msg-model MODEL`).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::resource_domain::MessageModel;
//! use fabric_async::{CqBind, Endpoint, Fabric, Hints, discover};
//! let info = discover(&Hints::new().provider("tcp"))?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let builder = domain.resource_domain().message_model(MessageModel::HighBandwidth);
//! let bulk = builder.open()?;
//! let (mut cq, av) = (bulk.completion_queue(64)?, domain.address_vector()?);
//! let ep = bulk.endpoint(&info)?.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?;
//! let ep = ep.bind_av(&av)?.enable()?;
//! let receiver = Endpoint::bind("tcp://").await?;
//! let to_receiver = av.insert(receiver.name())?;
//! for number in 0..10u64 {
//!     ep.send(to_receiver, number.to_le_bytes()).post()?;      // leaves with the next pass
//! }
//! let mut completions = Vec::new();
//! while completions.len() < 10 {
//!     cq.read_batch(&mut completions, 64).await;               // makes passes
//! }
//! assert!(completions.iter().all(|completion| completion.error.is_none()));
//! # Ok(()) }
//! ```
//!
//! # The users of a `Serial` domain
//!
//! A program that opens a `Serial` domain promises that no two threads are inside calls on it at
//! once. A task that uses the domain may move between threads, and threads may take turns under a
//! lock of the program. If a call finds another thread inside a call on the domain:
//!
//! * Posts (`start`, `post`, `inject`, `reserve`, `flush`), `add_peer`, `insert`, and calls that
//!   open, bind or enable an object fail with [`Error::ConcurrentUse`] (`FI_EBUSY`). They have had
//!   no effect, and return the buffer.
//! * Any other call waits until the other thread has left: polls of posted operations, reads of
//!   queues, counters, address vectors and statistics, cancels, removals, closes, drops of objects,
//!   and bindings of event queues. So no completion and no cancellation is lost.
//! * The drop of an operation or permit returns at once. It takes effect when the other thread has
//!   left.
//!
//! The other thread's current call is not disturbed. The refused call may be that of the owner:
//! `ConcurrentUse` does not say which thread broke the promise. [`DomainStats::concurrent_uses`]
//! counts the calls that were refused or had to wait, and [`EventKind::ConcurrentUse`] reports the
//! first at the domain's next pass.
//!
//! ```
//! use fabric_async::thread_model::Serial;
//! use fabric_async::{Endpoint, Result};
//!
//! /// Runs as a task of a multi-thread runtime. All uses of the domain are in this task.
//! async fn echo(ep: Endpoint<Serial>) -> Result<u64> {
//!     let got = ep.recv().await?;
//!     ep.send(got.source()?, got.buf).await?;
//!     ep.flush().await?;
//!     Ok(ep.domain().stats().concurrent_uses)
//! }
//!
//! # #[tokio::main(worker_threads = 2)]
//! # async fn main() -> Result<()> {
//! let ep = Endpoint::options().thread_model::<Serial>().bind("shm://").await?;
//! let client = Endpoint::bind("shm://").await?;
//! let peer = client.add_peer(ep.name()).await?;
//! let task = tokio::spawn(echo(ep));
//! client.send(peer, "hello").await?;
//! assert_eq!(&client.recv().await?[..], b"hello");
//! assert_eq!(task.await.expect("no panic")?, 0);
//! # Ok(()) }
//! ```
//!
//! The driver, `prepare_wait` and readers of an [`EventQueue`] never cause
//! [`Error::ConcurrentUse`]: a call that meets one of their passes waits until it ends. A passive
//! endpoint has a domain of its own, of model [`Shared`].
//!
//! # The thread of a `Pinned` domain
//!
//! The thread that opens the domain owns it. Opening a domain or resource domain needs a
//! current-thread runtime; in a [`LocalSet`] of a multi-thread runtime, use [`open_local`] of the
//! domain's builder, or [`local_driver`] of [`Endpoint::options`](crate::Endpoint::options).
//! Without a runtime, open the domain for an [event loop](super::event_loops) of the same thread
//! ([`driven_by_event_loop`](crate::DomainBuilder::driven_by_event_loop)).
//!
//! * Buffers, loans, descriptors ([`WaitFd`]) and events are values: they move freely.
//! * An [`EventQueue`] may be read by another thread. Its reads then wake the domain's driver
//!   instead of making progress themselves.
//! * Wakers are called from any thread. Use a channel to hand results to a task of another thread.
//! * A passive endpoint has a domain of its own, of model [`Shared`]. A `Pinned` domain accepts the
//!   connection requests of the passive endpoint with [`EndpointBuilder::accept`].
//! * Do not move the runtime to another thread. The driver ends when it is polled or dropped there.
//!   Tasks that wait then sleep until another task begins to wait; afterwards each waiting task
//!   spins.
//! * Do not call the domain from a waker or a method of a [`CustomBuf`](crate::buf::CustomBuf):
//!   with `Pinned` the call panics, with [`Shared`] it blocks for ever; with [`Serial`] posts fail
//!   with [`Error::ConcurrentUse`], the drop of an operation takes effect after the call, and other
//!   calls panic.
//!
//! [`Shared`]: crate::thread_model::Shared
//! [`Serial`]: crate::thread_model::Serial
//! [`Error::ConcurrentUse`]: crate::Error::ConcurrentUse
//! [`EventKind::ConcurrentUse`]: crate::EventKind::ConcurrentUse
//! [`DomainStats::concurrent_uses`]: crate::stats::DomainStats::concurrent_uses
//! [`Pinned`]: crate::thread_model::Pinned
//! [`Threading`]: crate::info::Threading
//! [`Threading::Domain`]: crate::info::Threading::Domain
//! [`LocalSet`]: tokio::task::LocalSet
//! [`open_local`]: crate::DomainBuilder::open_local
//! [`local_driver`]: crate::BindOptions::local_driver
//! [`WaitFd`]: crate::WaitFd
//! [`EventQueue`]: crate::EventQueue
//! [`EndpointBuilder::accept`]: crate::EndpointBuilder::accept
