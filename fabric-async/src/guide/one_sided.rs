//! One-sided operations: how do processes share memory, and who helps whom?
//!
//! # Memory with a key
//!
//! A region is memory that peers reach by a key and an offset. Its owner makes it with
//! [`Domain::alloc`], says what peers may do, and tells them of it: a [`RemoteRegion`] is 25 bytes.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Access, Endpoint, RemoteRegion};
//! let (owner, user) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
//! let region = owner.domain().alloc(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! let (name, at) = (user.name().clone(), owner.name().clone());
//!
//! let task = tokio::spawn(async move {
//!     let peer = owner.lookup(&name).await?;
//!     owner.send(peer, region.remote().to_bytes().to_vec()).await?;
//!     owner.recv().await?;                                 // the peer has written
//!     region.load::<u64>(8)
//! });
//! let peer = user.lookup(&at).await?;
//! let remote = RemoteRegion::from_bytes(&user.recv().await?)?;
//! user.write(peer, remote.at(8), 42u64.to_le_bytes().to_vec()).await?;
//! user.send(peer, "done").await?;
//! assert_eq!(task.await.unwrap()?, 42);
//! # Ok(()) }
//! ```
//!
//! [`Domain::register`] does the same with a buffer of yours. Its bytes are copied to where peers
//! reach them and come back when the region is [closed](crate::MemoryRegion::close): the buffer is
//! lent, like that of an operation. In between, [`MemoryRegion::read`],
//! [`write`](crate::MemoryRegion::write), [`load`](crate::MemoryRegion::load) and
//! [`atomic`](crate::MemoryRegion::atomic) are the owner's way to the bytes. There is no reference
//! to them, since they can change at any time.
//!
//! Places in a region are counted from its start. A domain whose hints agree to
//! [`MrMode::BASIC`](crate::MrMode::BASIC) has [`MrMode::VIRT_ADDR`](crate::MrMode::VIRT_ADDR)
//! (`FI_MR_VIRT_ADDR`): there a place is called by its address in the owner's process, as programs
//! of that age expect. [`RemoteRegion::at`](crate::RemoteRegion::at) and
//! [`slice`](crate::RemoteRegion::slice) do that by themselves; who puts a
//! [`RemoteAddr`](crate::RemoteAddr) together from an address and a key can as well. Windows, and
//! the owner's calls, count from the start everywhere.
//!
//! # Who helps
//!
//! In `shm` the processor of whoever starts an operation executes it, on the memory itself, which
//! it has mapped. The owner does nothing, may be busy, blocked, or waiting for something else.
//! There are two moments in which it is needed:
//!
//! * With the **first use of a key** the owner is asked for the memory. It answers when it makes
//!   progress: under manual progress its runtime must not be blocked, under automatic progress
//!   nothing is needed. Until then the operation waits, and what is posted to that peer later waits
//!   behind it.
//! * When an operation is to be **heard of**: a write with data, or anything at all if the endpoint
//!   counts what peers do (a counter for `REMOTE_READ` or `REMOTE_WRITE`, which needs
//!   [`Caps::RMA_EVENT`]), or the region has [counters of its
//!   own](crate::MemoryRegion::bind_counter). A notice goes through the ring like a message, and is
//!   taken in like one; when the ring is full, the operation waits.
//!
//! All atomic operations on a region, those of peers and those of [`MemoryRegion::atomic`], are
//! instructions of the processor on the same memory, so they exclude each other. Plain reads and
//! writes do not take part: of a write of more than eight bytes, or across a multiple of eight,
//! others can see a part.
//!
//! In `sim` regions are memory of the one process, behind a lock. Over `tcp` the owner [does what
//! it is asked](super::tcp#memory-of-other-machines), with every operation.
//!
//! # Several places at once
//!
//! [`Endpoint::write_to`](crate::Endpoint::write_to) and [`read_from`](crate::Endpoint::read_from)
//! reach several places of one peer's in one operation (`fi_writemsg` and `fi_readmsg` with several
//! `fi_rma_iov`): parts of one region or of several, mapped by the initiator or served by the
//! owner. There is one buffer here, or a [`Gather`](crate::Gather) or [`Scatter`](crate::Scatter),
//! which need not be cut as the places are, and one completion. How many places there may be is
//! negotiated ([`Hints::rma_iov_limit`](crate::Hints::rma_iov_limit)).
//!
//! All places are checked before the first byte moves, each by whoever executes it, so a place out
//! of reach changes nothing. A region that is closed later, in the middle, leaves what was written
//! before. What is to be heard of is told place by place: a counter counts each, and data for the
//! peer's queue comes once, with the last. Such an operation is never over where it is posted: it
//! waits for a credit and goes through the queue of the connection, as a long one does. Atomic
//! operations have one place.
//!
//! # Buffers that stay where they are
//!
//! [`Domain::register_buffer`](crate::Domain::register_buffer) registers ordinary memory: nothing
//! is copied, and the buffer comes back as it is. Peers use its key like any other. But no other
//! process maps it, so the owner does what they ask for, whenever it makes progress; a request goes
//! through the ring, and takes a way there and back for each 64 KiB. Under manual progress a task
//! of the owner must be waiting for something of that domain, or the operation waits, and what the
//! initiator sends there behind it: use automatic progress for an owner that is busy elsewhere.
//!
//! | | [`MemoryRegion`](crate::MemoryRegion) | [`RegisteredBuffer`](crate::RegisteredBuffer) |
//! |---|---|---|
//! | its bytes | memory of the fabric's; a buffer is copied there and back | your buffer |
//! | who executes an operation | its initiator | its owner, who must make progress |
//! | the owner's way to the bytes | copies, and atomic operations | a slice, by [`look`](crate::RegisteredBuffer::look) |
//! | what excludes what | atomic operations each other | all operations each other, and the owner's look |
//! | windows | yes | no |
//!
//! While the owner looks, its peers wait, and what they have sent behind waits with them: keep it
//! short, and do not await anything meanwhile. Rights, range and key are checked by the owner, with
//! the same errors. In `sim` the initiator executes, and waits for the owner's look as well.
//!
//! # Windows
//!
//! What is small and frequent need not be an operation:
//! [`Endpoint::window`](crate::Endpoint::window) maps a region once, and
//! [`RemoteWindow`](crate::RemoteWindow) has calls that read, write and change it, with the same
//! checks and without a post, a lock or a completion. A write of eight bytes then takes a few
//! nanoseconds where an awaited one takes a tenth of a microsecond. The same memory can be reached
//! both ways.
//!
//! # Order between processes
//!
//! Atomic operations are sequentially consistent, and one that changes a value orders what its
//! process wrote before for whoever sees the change: a lock taken with
//! [`compare_swap`](crate::Endpoint::compare_swap) and released with another guards plain reads and
//! writes in between. The lock of a process that has died stays taken. Put something into it by
//! which its owner is known, and free it when [`EventKind::PeerDown`](crate::EventKind::PeerDown)
//! tells of the end.
//!
//! # Through which endpoint
//!
//! Memory belongs to a domain, and is reached through endpoints of it that are there for that:
//! those whose info has [`Caps::RMA`](crate::Caps::RMA) or [`Caps::ATOMIC`](crate::Caps::ATOMIC),
//! and not only the directions in which they begin operations themselves
//! ([`Caps::READ`](crate::Caps::READ), [`Caps::WRITE`](crate::Caps::WRITE)). To a peer of an
//! endpoint for messages every key is unknown: [`Error::Key`](crate::Error::Key).
//!
//! # What the target hears
//!
//! | | completion queue | counter |
//! |---|---|---|
//! | write, atomic | nothing | `REMOTE_WRITE` |
//! | write with [data](crate::WriteRequest::data) | an entry of kind [`OpKind::RemoteWrite`] in the receive queue, with length, data and source | `REMOTE_WRITE` |
//! | read, fetching atomic | nothing | `REMOTE_READ` |
//!
//! An entry is not reserved beforehand. When the queue is full, the notice waits in the ring, and
//! with it everything that its sender sends later. Mind this with
//! [`Endpoint::bind`](crate::Endpoint::bind), whose endpoints have a queue of 1024 entries: read it
//! ([`Endpoint::completions`](crate::Endpoint::completions)), or take it out and drop it. An
//! endpoint without a receive queue only counts.
//!
//! # What can go wrong
//!
//! A key that is unknown or closed, a right that was not granted, a range that leaves the region:
//! the operation fails with [`Error::Key`] or [`Error::TooLong`], at its initiator. Nothing else
//! ends, and the target does not hear of it. An atomic operation needs `REMOTE_WRITE`, one that
//! only loads `REMOTE_READ`, and one that fetches and changes both. What is known to be wrong when
//! an operation is posted is refused there, with the buffer.
//!
//! Fresh keys begin anywhere in their 64 bits, so a description that outlived its owner is unknown
//! to whoever has its name next. A key of your own choice
//! ([`Domain::alloc_with_key`](crate::Domain::alloc_with_key)) means whatever is registered under
//! it at the time.
//!
//! The death of the owner ends its connections, and operations fail with [`Error::PeerGone`] from
//! then on. Until this is noticed, writes still succeed: the memory lives as long as somebody has
//! it mapped. A program that only posts, and never waits for anything, notices after 64 posts at
//! the latest. A peer that dies in the middle of a write leaves the part it has written.
//!
//! # Trust
//!
//! The right to write is enforced by the kernel: a region without [`Access::REMOTE_WRITE`] can be
//! mapped for reading only. A key is no secret: who has seen a fresh one can work out the next, and
//! every process of the same user that can connect can ask for it. Who may write a region may spoil
//! all of it, at any time, and can withdraw it from others.
//!
//! # What it costs
//!
//! Each region is a descriptor in its owner, and a mapping of one page more than its length there
//! and in every peer that uses it. All of its memory is taken when it is allocated; what the
//! machine has not got is refused. An operation of up to 256 KiB is done where it is posted; a
//! longer one in steps of that size, so that others get their turn.
//!
//! [`Domain::alloc`]: crate::Domain::alloc
//! [`Domain::register`]: crate::Domain::register
//! [`RemoteRegion`]: crate::RemoteRegion
//! [`MemoryRegion::read`]: crate::MemoryRegion::read
//! [`MemoryRegion::atomic`]: crate::MemoryRegion::atomic
//! [`Caps::RMA_EVENT`]: crate::Caps::RMA_EVENT
//! [`Access::REMOTE_WRITE`]: crate::Access::REMOTE_WRITE
//! [`OpKind::RemoteWrite`]: crate::OpKind::RemoteWrite
//! [`Error::Key`]: crate::Error::Key
//! [`Error::TooLong`]: crate::Error::TooLong
//! [`Error::PeerGone`]: crate::Error::PeerGone
