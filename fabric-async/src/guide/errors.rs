//! Errors: where failures are reported, `fi_errno` numbers, close, fork.
//!
//! After this chapter you know where each failure is reported and with which `fi_errno`, what keeps
//! an object open, and what a forked child may do.
//!
//! # Failed operations
//!
//! A failed operation affects no other operation. Its future resolves to [`Failed`], with the
//! buffer. A [`CompletionQueue`] gets an entry with [`Completion::error`] set, and the stream of
//! the queue does not end. `?` turns a [`Failed`] or [`CloseError`] into its [`Error`] and drops
//! the buffer or handle.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error};
//! use futures_util::StreamExt;
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.add_peer(ep.name()).await?;
//! let mut queue = ep.take_completions().expect("the first call gets the queue");
//!
//! for context in 0..2 {
//!     ep.recv_into(Vec::with_capacity(8)).context(context).post()?;
//! }
//! ep.send(me, vec![1; 20]).await?;
//! ep.send(me, vec![2; 5]).await?;
//!
//! let cut = queue.next().await.expect("open");
//! assert_eq!(cut.context, 0);
//! assert_eq!(cut.error.as_deref(), Some(&Error::Truncated { len: 8, lost: 12 }));
//! let whole = queue.next().await.expect("open").into_result::<Vec<u8>>()?;
//! assert_eq!(whole.into_buf(), [2; 5]);
//! # Ok(()) }
//! ```
//!
//! The failure of an inject that had to queue, or of a dropped send, is an
//! [`EventKind::OperationFailed`] on the event queue of the endpoint or its domain. Without an
//! event queue it is not reported. Short sends usually complete by the post: use
//! [`delivery_complete`](Request::delivery_complete) to have a send fail when the peer dies
//! before it has the message.
//!
//! # `io::Error`
//!
//! In functions that return [`std::io::Result`], `?` converts [`Error`], [`Failed`], [`CloseError`]
//! and [`BatchError`]. The kind is the nearest one, as in the table below;
//! [`get_ref`](std::io::Error::get_ref) downcasts to the [`Error`].
//! [`raw_os_error`](std::io::Error::raw_os_error) is `None` also for [`Error::Os`]: an
//! `io::Error` holds a number or a source. Use [`Error::errno`].
//!
//! | kind | errors |
//! |---|---|
//! | `WouldBlock` | `WouldBlock` |
//! | `OutOfMemory` | `OutOfMemory` |
//! | `TimedOut` | `TimedOut` |
//! | `ConnectionRefused` | `ConnectionRefused`, `NoSuchPeer`, `RejectedByPeer` |
//! | `ConnectionReset` | `PeerGone` |
//! | `ConnectionAborted` | `Canceled` |
//! | `BrokenPipe` | `Closed`, `ShutDown` |
//! | `HostUnreachable` | `Unreachable` |
//! | `PermissionDenied` | `OtherUser` |
//! | `ResourceBusy` | `Busy`, `ConcurrentUse` |
//! | `AddrInUse` | `AddressInUse` |
//! | `AddrNotAvailable` | `AddressNotLocal`, `StaleAddress`, `UnknownSource`, `SourceNotInserted`, `NoSuchHost` |
//! | `InvalidData` | `Truncated`, `Protocol` |
//! | `InvalidInput` | `Invalid`, `TooLong`, `TooMany`, `BadAddress`, `WrongScheme`, `BadFlags`, `Unbound`, `Key`, `OutOfBounds`, `BufferTooSmall`, `WrongParent` |
//! | `Unsupported` | `NotSupported`, `NoExtension`, `NoMatch`, `Runtime` |
//! | `NotFound` | `UnknownProvider` |
//! | `StorageFull` | `NotReserved` |
//! | `Other` | `CounterError` |
//! | that of the error number | `Os` |
//!
//! # Handles
//!
//! Objects form a tree: a fabric has domains and event queues, a domain has the rest. A child keeps
//! its parent open, so handles can be dropped in any order: the objects close children first. An
//! endpoint also keeps its address vector and shared receive context open; an event queue keeps the
//! fabric open, and no domain. The [overview](super::overview#what-dropping-does) lists the effect
//! of dropping each handle. A *dependent* does not keep its object open. When the object closes, by
//! `close` or with its last handle, the dependent ends or its use is refused:
//!
//! | dependent | when its object closes |
//! |---|---|
//! | [`Operation`] of any kind | [`Error::Canceled`], with the buffer; a completed one keeps its result |
//! | an operation that was posted to a queue | an entry with [`Error::Canceled`] and the buffer |
//! | [`MultiRecv`] | the messages that had arrived, then [`Error::Canceled`] |
//! | a [`RequestFuture`] that was polled, [`Probing`], [`Claiming`], [`Reserving`] | [`Error::Canceled`], with the buffer |
//! | [`Permit`], [`Claimed`], [`MulticastGroup`], [`RemoteWindow`] | use is refused with [`Error::Closed`] |
//! | a received message, a [`Loan`], a [`LoanedBuf`] | stays valid |
//!
//! `tokio::spawn(ep.recv().start()?)` therefore receives only while a handle of `ep` lives
//! elsewhere: move a clone into the task.
//!
//! # Closing
//!
//! Every object has `close`, which closes it for all its clones. A call on a closed object, a wait
//! for it, and a second `close` fail with [`Error::Closed`]. Memory also has `into_buf`
//! ([`MemoryRegion::into_buf`], [`RegisteredBuffer::into_buf`]), which closes it and returns the
//! buffer.
//!
//! | object | `close` fails with [`Error::Busy`] while |
//! |---|---|
//! | [`Fabric`], [`Domain`] | it has open children |
//! | [`CompletionQueue`], [`EventQueue`], [`AddressVector`], [`Counter`] | an open object is bound to it |
//! | [`SharedRxContext`] | an open endpoint uses it |
//! | [`Endpoint`] | a [memory region](MemoryRegion::bind_endpoint) is bound to it |
//! | [`ConnectedEndpoint`], [`PassiveEndpoint`], [`MemoryRegion`], [`RegisteredBuffer`] | never |
//!
//! The error counts the open objects by class. A refused `close` changes nothing, and
//! [`CloseError`] returns the handle:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Class, Error, Fabric, Hints, discover};
//! let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let counter = domain.counter()?;
//!
//! let refused = domain.close().unwrap_err();
//! assert!(matches!(refused.error, Error::Busy(children) if children.of(Class::Counter) == 1));
//! counter.close()?;
//! refused.handle.close()?;
//! # Ok(()) }
//! ```
//!
//! # Exhausted resources
//!
//! A connection takes a file descriptor and memory on both sides; a region or loan takes a
//! descriptor on every side that maps it. If this process lacks a descriptor or memory, the
//! operation fails with [`Error::Os`], which names the system call, and can be posted again later.
//! If the peer lacks them, the connecting side gets [`Error::ConnectionRefused`] with
//! [`RefusalReason::Resources`], and the peer's event queue an [`EventKind::InboundRefused`].
//!
//! # Fork
//!
//! Every descriptor is closed by `exec`. A child that was forked and does not exec must not use its
//! copies of the objects: threads that the child does not have may hold their locks. Dropping or
//! closing a copy notifies no peer, and does not affect the parent's connections, loans and
//! regions. While the child lives, the name of an endpoint that its parent closed stays in use.
//!
//! # Numbers
//!
//! [`Error::errno`] is the positive number that libfabric has for the condition.
//! [`Error::is_peer_unavailable`] is true for the four errors of a peer that is not there, or whose
//! handle is no longer valid.
//!
//! | error | `fi_errno` | number | when |
//! |---|---|---|---|
//! | [`WouldBlock`](Error::WouldBlock) | `FI_EAGAIN` | 11 | no transmit credit, receive entry, queue entry or memory for a loan; nothing was posted; the [`Resource`] has the limit and the peer |
//! | [`OutOfMemory`](Error::OutOfMemory) | `FI_ENOMEM` | 12 | the allocator refused a buffer; the message is lost |
//! | [`OtherUser`](Error::OtherUser) | `FI_EACCES` | 13 | the peer belongs to another user |
//! | [`Busy`](Error::Busy) | `FI_EBUSY` | 16 | close with open children |
//! | [`ConcurrentUse`](Error::ConcurrentUse) | `FI_EBUSY` | 16 | another thread is inside a call on a domain of model [`Serial`](crate::thread_model::Serial); nothing was done |
//! | [`UnknownProvider`](Error::UnknownProvider) | `FI_ENODEV` | 19 | no provider of that name |
//! | [`Invalid`](Error::Invalid), [`BadAddress`](Error::BadAddress), [`WrongScheme`](Error::WrongScheme) | `FI_EINVAL` | 22 | an argument is out of range or malformed |
//! | [`NotReserved`](Error::NotReserved) | `FI_ENOSPC` | 28 | cores or io_uring for `ForceLowLatency` |
//! | [`Runtime`](Error::Runtime) | `FI_ENOSYS` | 38 | manual progress without a Tokio runtime with I/O |
//! | [`NoExtension`](Error::NoExtension) | `FI_ENOSYS` | 38 | the provider of the domain has no such extension |
//! | [`NoMatch`](Error::NoMatch) | `FI_ENODATA` | 61 | no offer satisfies the hints; the error has the mismatches of each provider |
//! | [`Protocol`](Error::Protocol) | `FI_EPROTO` | 71 | the peer violated the protocol; the connection was ended |
//! | [`TooLong`](Error::TooLong) | `FI_EMSGSIZE` | 90 | a message, an injected message, a loan or private data beyond its limit |
//! | [`OutOfBounds`](Error::OutOfBounds) | `FI_EMSGSIZE` | 90 | an access that leaves its memory region |
//! | [`TooMany`](Error::TooMany) | `FI_EMSGSIZE` | 90 | more buffers or remote ranges than `iov_limit` or `rma_iov_limit`; more objects than the counts of the domain's info; more connections than a limit |
//! | [`NotSupported`](Error::NotSupported) | `FI_EOPNOTSUPP` | 95 | a capability that the hints did not ask for, or the provider lacks |
//! | [`AddressInUse`](Error::AddressInUse) | `FI_EADDRINUSE` | 98 | an open endpoint or another program's socket has the address |
//! | [`AddressNotLocal`](Error::AddressNotLocal), [`StaleAddress`](Error::StaleAddress), [`UnknownSource`](Error::UnknownSource), [`SourceNotInserted`](Error::SourceNotInserted), [`NoSuchHost`](Error::NoSuchHost) | `FI_EADDRNOTAVAIL` | 99 | an address of another machine to bind to; a handle whose peer was removed or disconnected, or of another address vector; a sender without a handle; a message received from such a sender, with `FI_SOURCE_ERR`; a host name without an address |
//! | [`PeerGone`](Error::PeerGone) | `FI_ECONNRESET` | 104 | the connection to the peer was lost: the peer died or closed its endpoint; never for a receive from any source, except on a connected endpoint |
//! | [`ShutDown`](Error::ShutDown) | `FI_ESHUTDOWN` | 108 | this side has shut down the connection |
//! | [`TimedOut`](Error::TimedOut) | `FI_ETIMEDOUT` | 110 | the peer has not answered in time |
//! | [`NoSuchPeer`](Error::NoSuchPeer), [`ConnectionRefused`](Error::ConnectionRefused), [`RejectedByPeer`](Error::RejectedByPeer) | `FI_ECONNREFUSED` | 111 | no endpoint has the name; the peer's endpoint refused, with a reason; the peer's program rejected, with private data |
//! | [`Unreachable`](Error::Unreachable) | `FI_EHOSTUNREACH` | 113 | no route from the address the endpoint is bound to |
//! | [`Canceled`](Error::Canceled) | `FI_ECANCELED` | 125 | the operation was canceled, or its endpoint or connection ended before it completed |
//! | [`BufferTooSmall`](Error::BufferTooSmall) | `FI_ETOOSMALL` | 257 | a buffer has no room for all that is to be read |
//! | [`Closed`](Error::Closed) | `FI_EOPBADSTATE` | 258 | the object is closed |
//! | [`CounterError`](Error::CounterError) | `FI_EAVAIL` | 259 | an operation failed while a task waited for its counter |
//! | [`BadFlags`](Error::BadFlags) | `FI_EBADFLAGS` | 260 | flags that the call does not take |
//! | [`WrongParent`](Error::WrongParent) | `FI_EDOMAIN` | 262 | objects of different domains or fabrics |
//! | [`Truncated`](Error::Truncated) | `FI_ETRUNC` | 265 | the message was longer than the buffer |
//! | [`Key`](Error::Key) | `FI_ENOKEY` | 266 | a memory key that is in use, unknown or closed, or lacks the right |
//! | [`Unbound`](Error::Unbound) | `FI_ENOCQ`, `FI_ENOAV`, `FI_ENOEQ`, `FI_EDOMAIN`, `FI_EOPBADSTATE` | 263, 267, 261, 262, 258 | not bound: a completion queue; an address vector; an event queue; a domain; a shared receive context, or the endpoint of a region |
//! | [`Os`](Error::Os) | that of the kernel | | a system call failed; the error names the call |

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
