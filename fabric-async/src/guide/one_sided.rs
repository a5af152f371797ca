//! One-sided operations: memory regions, reads, writes, atomic operations.
//!
//! After this chapter you can give peers access to memory, access memory of peers, and know whose
//! processor executes an operation and when its target is notified.
//!
//! # Regions
//!
//! A region is memory that peers reach by a key and an offset. [`Domain::alloc`] allocates a region
//! with the access rights of peers. The owner sends its [`RemoteRegion`], 25 bytes, to the peers.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Access, Endpoint, RemoteRegion};
//! let (owner, user) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let region = owner.domain().alloc(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! let (name, at) = (user.name().clone(), owner.name().clone());
//!
//! let task = tokio::spawn(async move {
//!     let peer = owner.add_peer(&name).await?;
//!     owner.send(peer, region.remote().to_bytes().to_vec()).await?;
//!     owner.recv().await?;                                 // the peer has written
//!     region.load::<u64>(8)
//! });
//! let peer = user.add_peer(&at).await?;
//! let remote = RemoteRegion::from_bytes(&user.recv().await?)?;
//! user.write(peer, remote.at(8), 42u64.to_le_bytes().to_vec()).await?;
//! user.send(peer, "done").await?;
//! assert_eq!(task.await.unwrap()?, 42);
//! # Ok(()) }
//! ```
//!
//! | | [`MemoryRegion`] | [`RegisteredBuffer`] |
//! |---|---|---|
//! | opened by | [`Domain::alloc`]; [`Domain::alloc_from`] copies a buffer in, and back on [`into_buf`](MemoryRegion::into_buf); [`Domain::register_memfd`]: memory of `memfd_create(2)`, in place | [`Domain::register`]: your buffer, in place |
//! | who executes an operation over `shm` | its initiator, on the mapped memory; its owner if peers may not read, and for memory that [they cannot map](Domain::register_memfd) | its owner, who must make progress |
//! | the owner's access | [`read`](MemoryRegion::read), [`write`](MemoryRegion::write), [`load`](MemoryRegion::load), [`atomic`](MemoryRegion::atomic): copies | a slice, by [`lock`](RegisteredBuffer::lock) |
//! | mutual exclusion | among atomic operations | among all operations and the owner's slice |
//! | windows | yes, if peers may read | no |
//!
//! Allocating and filling memory takes time in proportion to its length. [`Domain::alloc_async`],
//! [`Domain::alloc_from_async`], [`Domain::register_async`] and [`Domain::register_memfd_async`] do
//! that on another thread, and are awaited, or [posted](crate::async_mr::RegionRequest::post) in a
//! domain that is [bound with `FI_REG_MR`](Domain::bind_eq_reg_mr).
//!
//! A [`Memfd`] is memory that the program has created, or inherited, with a descriptor. Peers over
//! `shm` map the pages that the program has, except in [a few cases](Domain::register_memfd), so a
//! program that fills such memory, or maps it in other processes, shares it without a copy. It may
//! have huge pages: peers map those if they only read them.
//!
//! A region may have several segments (`fi_mr_regv`): a [`Scatter`] of up to `mr_iov_limit` buffers
//! (4) that [`Domain::register`] leaves in place, or [`Domain::alloc_from`] copies one after the
//! other. Offsets run through the segments, and [`into_buf`](RegisteredBuffer::into_buf) returns
//! them.
//!
//! The owner cannot borrow the bytes of a [`MemoryRegion`], because peers can change them at any
//! time. Offsets count from the start of the region. In a domain whose hints agree to
//! [`MrMode::BASIC`], and so to [`MrMode::VIRT_ADDR`] (`FI_MR_VIRT_ADDR`), remote addresses are the
//! owner's virtual addresses instead; [`RemoteRegion::at`] and [`slice`](RemoteRegion::slice)
//! account for that, and a [`RemoteAddr`] can be built from an address and a key. Offsets of
//! windows and of the owner's calls always count from the start of the region.
//!
//! # Registration modes
//!
//! The field `mr_mode` of the info's domain attributes has the bits of [`MrMode`] that the provider
//! requires. `shm` and `tcp` require none, unless the hints ask for [`MrMode::BASIC`]. A domain of
//! `sim` can require each bit, so that a program can be tested for other providers: see
//! [`discover`](crate::discover()).
//!
//! | bit | what the program does |
//! |---|---|
//! | [`LOCAL`](MrMode::LOCAL) | passes buffers of [`Domain::register_local`] to operations |
//! | [`VIRT_ADDR`](MrMode::VIRT_ADDR) | adds [`RemoteRegion::base`] to offsets, as [`RemoteRegion::at`] does |
//! | [`ALLOCATED`](MrMode::ALLOCATED) | registers memory whose pages are allocated |
//! | [`PROV_KEY`](MrMode::PROV_KEY) | requests no key |
//! | [`RAW`](MrMode::RAW) | sends [`MemoryRegion::raw_key`] with the description, and maps both with [`Domain::map_raw`] |
//! | [`ENDPOINT`](MrMode::ENDPOINT) | binds a region to an endpoint, and enables it: [`MemoryRegion::bind_endpoint`], [`MemoryRegion::enable`] |
//! | [`RMA_EVENT`](MrMode::RMA_EVENT) | enables a region after binding a counter |
//! | [`MMU_NOTIFY`](MrMode::MMU_NOTIFY) | refreshes the pages of a region before peers access them: [`MemoryRegion::refresh`] |
//!
//! # Who executes an operation
//!
//! Over `shm` the initiator executes an operation on the mapped memory of an allocated region with
//! [`Access::REMOTE_READ`], even if the owner is busy or blocked, unless an earlier operation to
//! that peer still waits. The owner takes part in two cases:
//!
//! * **First use of a key.** The initiator requests the descriptor of the memory, and the owner
//!   replies when it makes [progress](super::progress). The operation waits, and later operations
//!   to that peer wait behind it.
//! * **Notification.** A write with data, and every operation if the endpoint counts remote
//!   operations (a counter for `REMOTE_READ` or `REMOTE_WRITE`, which needs [`Caps::RMA_EVENT`]) or
//!   the region has [counters](MemoryRegion::bind_counter), sends a notification through the ring.
//!   The operation waits while the ring is full.
//!
//! Atomic operations of peers and of [`MemoryRegion::atomic`] are processor instructions on the
//! same memory, so they exclude each other. Reads and writes are not atomic: another process can
//! see a part of a write of more than eight bytes, or of a write that crosses a multiple of eight.
//!
//! For a [`RegisteredBuffer`], for a region without [`Access::REMOTE_READ`], and for memory that
//! peers [cannot map](Domain::register_memfd), the owner executes, one round trip per 64 KiB: under
//! manual progress a task of the owner must be waiting for an object of the domain. While the owner
//! holds the slice of a buffer, operations of its peers wait, and so do their later messages: hold
//! the slice briefly, and do not await while holding it. Over `tcp` and `sim` the owner executes
//! [everything](super::tcp#remote-memory).
//!
//! # Several remote ranges
//!
//! [`Endpoint::write`] and [`Endpoint::read`] take a list of ranges of one peer, and access them in
//! one operation (`fi_writemsg`, `fi_readmsg` with several `fi_rma_iov`), in one region or several.
//! The local side is one buffer, a [`Gather`] or a [`Scatter`]. The limit is negotiated
//! ([`Hints::rma_iov_limit`]).
//!
//! All ranges are checked before the first byte moves. A counter of remote operations counts each
//! range; completion data reaches the peer's queue once, with the last range. An operation with
//! several ranges always takes a credit. Atomic operations have one range.
//!
//! # Windows
//!
//! [`Endpoint::window`] maps a region once. [`RemoteWindow`] reads, writes and atomically changes
//! the region with the same checks, without post, lock or completion: an eight-byte write takes a
//! few nanoseconds. Windows exist over `shm`, for regions that peers may read and whose remote
//! operations are not counted; otherwise the call fails with [`Error::NotSupported`]. A window
//! keeps no endpoint open. It fails with [`Error::Key`] when the owner closed the region, with
//! [`Error::PeerGone`] when the owner's endpoint closed or its process died (noticed when this side
//! makes progress), and with [`Error::Closed`] when the endpoint that opened it is closed.
//!
//! # Memory order
//!
//! Atomic operations are sequentially consistent. A process that sees a changed value also sees
//! what the other process wrote before the change: a lock taken and released with
//! [`compare_swap`](Endpoint::compare_swap) guards reads and writes. A lock that a process held
//! when it died stays taken: store the owner in the lock word, and free the lock on
//! [`EventKind::PeerDown`].
//!
//! Atomic types ([`AtomicType`]) are the integers of 8 to 128 bits, `f32`, `f64`,
//! [`f16`](struct@f16) and [`bf16`], and [`Complex`] numbers of `f32` and `f64`. `long double` is
//! refused by name, and libfabric's floats of 8 bits are missing. [`AtomicOp::is_valid`] says which
//! operation takes which type: complex values are compared for equality only. [`query_atomic`] says
//! whether an endpoint can post it, with how many values. The offset of a value is a multiple of
//! its size: 16 for `Complex<f64>`, although C aligns that type to 8. Values of 16 bytes need a
//! processor that exchanges 16 bytes atomically, and over `shm` a region with
//! [`Access::REMOTE_WRITE`] also for an atomic read.
//!
//! # What the target is told
//!
//! | operation | completion queue | counter |
//! |---|---|---|
//! | write, atomic | nothing | `REMOTE_WRITE` |
//! | write with [data](Request::data) | an entry of kind [`OpKind::RemoteWrite`] in the receive queue, with length, data and source | `REMOTE_WRITE` |
//! | read, fetching atomic | nothing | `REMOTE_READ` |
//!
//! The entry is not reserved. When the queue is full, the notification waits in the ring, or over
//! `tcp` in the socket, with everything its sender sends later, ordinary messages too. No error or
//! event reports this, and [`EndpointStats::held_connections`] counts the connection: writes with
//! data complete at the sender until the ring is full, and then wait. An endpoint of
//! [`Endpoint::bind`] has a queue of 1024 entries: read it ([`Endpoint::take_completions`]), or
//! take and drop it. An endpoint without a receive queue only counts.
//!
//! # Large transfers
//!
//! One write may have any length up to that of the region. Several writes of a part let the sender
//! produce a part while others are under way, and bound its memory:
//!
//! * **Chunks.** Over `shm` a post moves up to 256 KiB and later passes the rest; over `tcp` a
//!   chunk waits for one acknowledgement. Chunks of 1 MiB make both small.
//! * **Pipelining.** Start a few writes, eight here, and await the oldest before the next. Each
//!   holds a [transmit credit](super::backpressure#transmit-credits) until it completes. `.await`
//!   of one write at a time waits for a round trip over `tcp`.
//! * **End.** Give only the last write [data](Request::data), after the others have succeeded. The
//!   `len` of its entry is the length of that last write, not of all: pass the whole length as the
//!   data.
//! * **Failure.** Send a tagged message when the transfer fails. The receiver waits for it with a
//!   directed receive, which also fails when the sender leaves: see [the last messages of a
//!   peer](super::client_server#the-last-messages-of-a-peer). If the sender fails halfway, the
//!   region holds a part of the content.
//!
//! The tests run this program with senders that exit after the last write, fail, and are killed:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
#![doc = include_str!("samples/transfer.rs")]
//! use fabric_async::Access;
//! let (owner, sender) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let mut queue = owner.take_completions().expect("the first call gets the queue");
//! let region = owner.domain().alloc(5 << 20, Access::REMOTE_WRITE)?;
//! let (from_sender, to_owner) =
//!     (owner.add_peer(sender.name()).await?, sender.add_peer(owner.name()).await?);
//! let content = Bytes::from(vec![7; 4_500_000]);
//! let remote = region.remote();
//! tokio::spawn(async move { push(&sender, to_owner, remote, content).await });
//! assert_eq!(pushed(&owner, &mut queue, from_sender).await?, 4_500_000);
//! assert_eq!(region.load::<u8>(4_499_999)?, 7);
//! # Ok(()) }
//! ```
//!
//! # Errors
//!
//! | condition | result at the initiator |
//! |---|---|
//! | unknown or closed key, missing right | [`Error::Key`] |
//! | range outside the region | [`Error::OutOfBounds`] |
//! | atomic value that is not aligned to its size | [`Error::Invalid`] |
//! | buffer of a read with too little room | [`Error::BufferTooSmall`] |
//! | endpoint of the owner without [`Caps::RMA`] or [`Caps::ATOMIC`] | [`Error::Key`]: every key is unknown there |
//! | death of the owner, once noticed | [`Error::PeerGone`] |
//!
//! Only the operation fails, and the target is not notified. An atomic operation needs
//! `REMOTE_WRITE`, one that only loads `REMOTE_READ`, one that fetches and changes both.
//! [`Caps::READ`] and [`Caps::WRITE`] alone only allow to initiate.
//!
//! Until the death of the owner is noticed, writes still succeed: the memory lives as long as it is
//! mapped. A program that only posts notices the death after at most 64 posts. A peer that dies
//! during a write leaves a part of the bytes written.
//!
//! Generated keys are random 64-bit values, so a key of a dead owner is unknown to a process that
//! binds its name later. A key of your choice comes from [`Domain::alloc_with_key`].
//!
//! # Trust and cost
//!
//! The kernel enforces the rights: a region without [`Access::REMOTE_WRITE`] is mapped read-only,
//! and one without [`Access::REMOTE_READ`] is not mapped. Every process of the same user that can
//! connect and knows a key can use it; one generated key does not tell another. A peer that has
//! mapped a region with the right to write can overwrite the whole region at any time, and can
//! revoke it for other peers.
//!
//! A region is a file descriptor in its owner, and a mapping of its length and one page in the
//! owner and in every peer that uses it. Its pages are allocated when it is opened; otherwise the
//! call fails. The post moves up to 256 KiB; later passes move the rest in steps of that size.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
