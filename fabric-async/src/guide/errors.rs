//! Errors: where do failures go, and what are their numbers in libfabric?
//!
//! # Failures are values
//!
//! A failed operation ends nothing but itself. Its future resolves to [`Failed`], with the buffer.
//! On a [`CompletionQueue`] it is an entry like any other, with [`Completion::error`] set: the
//! stream goes on. The stream of a queue never ends while you hold the queue. Short sends mostly
//! end well where they are posted: to have an entry fail for what a peer has not got before it
//! died, ask for [`delivery_complete`](crate::SendRequest::delivery_complete).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Error};
//! use futures_util::StreamExt;
//! let ep = Endpoint::bind("shm://").await?;
//! let me = ep.lookup(ep.name()).await?;
//! let mut queue = ep.completions().expect("the first to ask gets it");
//!
//! for context in 0..2 {
//!     ep.recv_into(Vec::with_capacity(8)).context(context).post()?;
//! }
//! ep.send(me, vec![1; 20]).await?;
//! ep.send(me, vec![2; 5]).await?;
//!
//! let cut = queue.next().await.expect("open");
//! assert_eq!((cut.context, cut.error.as_deref()), (0, Some(&Error::Truncated { len: 8, lost: 12 })));
//! let whole = queue.next().await.expect("and still open").into_result::<Vec<u8>>()?;
//! assert_eq!(whole.into_buf(), [2; 5]);
//! # Ok(()) }
//! ```
//!
//! `?` turns a [`Failed`] or a [`CloseError`] into its [`Error`] and drops the buffer or the
//! handle. Match on it instead to keep them.
//!
//! # Failures nobody waits for
//!
//! An inject that had to queue, and a send whose future was dropped, have nobody to tell. A failure
//! is then an [`EventKind::OperationFailed`] on the event queue of the endpoint, or of its domain.
//! Without an event queue it is not reported. Being cancelled by a close is not a failure in this
//! sense.
//!
//! # Close, and Busy
//!
//! Objects form a tree: a fabric has domains and event queues, a domain has the rest. Dropping
//! handles closes objects in the right order by itself: a child keeps its parent alive. `close` is
//! for those who want to know. It refuses with [`Error::Busy`] while children are open, or while
//! endpoints or domains are bound to the object; names them by class; changes nothing; and gives
//! the handle back in [`CloseError`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Class, Error, Fabric, Hints, discover};
//! let info = discover(&Hints::new().provider("shm")).await?.swap_remove(0);
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
//! [`Endpoint::close`] closes the endpoint for all its clones. Operations that are under way end
//! with [`Error::Canceled`] and their buffers. A counter and an address vector are closed for all
//! their clones too. A call on a closed object is [`Error::Closed`], and whoever waits for it is
//! woken with that.
//!
//! # When resources run out
//!
//! A connection takes a descriptor and memory on both sides, a region or a loan a descriptor on
//! every side that maps it. Whoever cannot have them is told so, and nobody else notices. Here, the
//! operation fails with [`Os`] and the system call that was refused, and can be posted again when
//! there is something again. There, the caller gets [`Refused`] with [`Refusal::Resources`], and
//! the endpoint that had no room an event, [`EventKind::Rejected`].
//!
//! # Children of the process
//!
//! Every descriptor is closed by `exec`, so programs that are started neither notice endpoints nor
//! keep them alive. A child that was forked and executes nothing has a copy of everything, of which
//! it must use nothing: locks may be held by threads that it does not have. What it drops or closes
//! is no news to anybody: the parent's connections, loans and regions go on. While it lives, the
//! name of an endpoint that its parent closed stays taken.
//!
//! # Numbers
//!
//! [`Error::errno`] gives the positive number that libfabric has for the condition.
//!
//! | error | `fi_errno` | number | when |
//! |---|---|---|---|
//! | [`Again`] | `FI_EAGAIN` | 11 | no credit, receive entry or queue entry; nothing was posted |
//! | [`OtherUser`] | `FI_EACCES` | 13 | the peer belongs to another user |
//! | [`Busy`] | `FI_EBUSY` | 16 | close, with children open |
//! | [`UnknownProvider`] | `FI_ENODEV` | 19 | a provider of that name does not exist |
//! | [`Invalid`], [`BadAddress`], [`WrongScheme`] | `FI_EINVAL` | 22 | an argument is out of bounds or malformed |
//! | [`Runtime`] | `FI_ENOSYS` | 38 | manual progress without a Tokio runtime with I/O |
//! | [`NoMatch`] | `FI_ENODATA` | 61 | no provider can do what the hints ask; says why, offer by offer |
//! | [`Protocol`] | `FI_EPROTO` | 71 | the peer broke the protocol, and its connection was ended |
//! | [`TooLong`] | `FI_EMSGSIZE` | 90 | a message, inject or region access beyond its limit |
//! | [`NotSupported`] | `FI_EOPNOTSUPP` | 95 | a capability that the hints did not ask for, or that the provider has not |
//! | [`AddressInUse`] | `FI_EADDRINUSE` | 98 | the name is taken by a living endpoint |
//! | [`StaleAddress`], [`UnknownSource`], [`NoSuchHost`] | `FI_EADDRNOTAVAIL` | 99 | a number that was removed; a sender without one; the name of a host without an address |
//! | [`PeerGone`] | `FI_ECONNRESET` | 104 | the peer was connected, and died or closed |
//! | [`TimedOut`] | `FI_ETIMEDOUT` | 110 | whoever was called has not answered in time |
//! | [`Unreachable`] | `FI_EHOSTUNREACH` | 113 | no way leads to the peer from where the endpoint is bound |
//! | [`NoSuchPeer`], [`Refused`], [`Rejected`] | `FI_ECONNREFUSED` | 111 | nobody has that name; the peer declined, with its reason; its program did, with private data |
//! | [`Canceled`] | `FI_ECANCELED` | 125 | the endpoint closed first |
//! | [`Closed`] | `FI_EOPBADSTATE` | 258 | the object was closed |
//! | [`CountedError`] | `FI_EAVAIL` | 259 | an operation failed while its counter was waited for |
//! | [`BadFlags`] | `FI_EBADFLAGS` | 260 | flags that mean nothing here |
//! | [`Foreign`] | `FI_EDOMAIN` | 262 | objects of different domains or fabrics |
//! | [`Truncated`] | `FI_ETRUNC` | 265 | the message was longer than the room |
//! | [`Key`] | `FI_ENOKEY` | 266 | a memory key that is taken, unknown or closed, or does not grant the access |
//! | [`Unbound`] | `FI_ENOCQ`, `FI_ENOAV` | 263, 267 | a post to a queue that is not bound; an endpoint without address vector |
//! | [`Os`] | the system's own | | a system call failed; it is named |
//!
//! [`Failed`]: crate::Failed
//! [`CloseError`]: crate::CloseError
//! [`Completion::error`]: crate::Completion::error
//! [`CompletionQueue`]: crate::CompletionQueue
//! [`EventKind::OperationFailed`]: crate::EventKind::OperationFailed
//! [`EventKind::Rejected`]: crate::EventKind::Rejected
//! [`Refusal::Resources`]: crate::Refusal::Resources
//! [`Endpoint::close`]: crate::Endpoint::close
//! [`Error`]: crate::Error
//! [`Error::errno`]: crate::Error::errno
//! [`Error::Busy`]: crate::Error::Busy
//! [`Error::Canceled`]: crate::Error::Canceled
//! [`Error::Closed`]: crate::Error::Closed
//! [`Again`]: crate::Error::Again
//! [`OtherUser`]: crate::Error::OtherUser
//! [`Busy`]: crate::Error::Busy
//! [`UnknownProvider`]: crate::Error::UnknownProvider
//! [`CountedError`]: crate::Error::CountedError
//! [`Invalid`]: crate::Error::Invalid
//! [`BadAddress`]: crate::Error::BadAddress
//! [`WrongScheme`]: crate::Error::WrongScheme
//! [`Runtime`]: crate::Error::Runtime
//! [`NoMatch`]: crate::Error::NoMatch
//! [`Protocol`]: crate::Error::Protocol
//! [`TooLong`]: crate::Error::TooLong
//! [`NotSupported`]: crate::Error::NotSupported
//! [`AddressInUse`]: crate::Error::AddressInUse
//! [`StaleAddress`]: crate::Error::StaleAddress
//! [`UnknownSource`]: crate::Error::UnknownSource
//! [`PeerGone`]: crate::Error::PeerGone
//! [`NoSuchPeer`]: crate::Error::NoSuchPeer
//! [`Refused`]: crate::Error::Refused
//! [`Rejected`]: crate::Error::Rejected
//! [`TimedOut`]: crate::Error::TimedOut
//! [`Unreachable`]: crate::Error::Unreachable
//! [`NoSuchHost`]: crate::Error::NoSuchHost
//! [`Canceled`]: crate::Error::Canceled
//! [`Closed`]: crate::Error::Closed
//! [`BadFlags`]: crate::Error::BadFlags
//! [`Foreign`]: crate::Error::Foreign
//! [`Truncated`]: crate::Error::Truncated
//! [`Key`]: crate::Error::Key
//! [`Unbound`]: crate::Error::Unbound
//! [`Os`]: crate::Error::Os
