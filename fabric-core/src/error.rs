//! Errors of the fabric, and the `fi_errno(3)` value of each.

mod errno;
mod io;
mod refusal;
#[cfg(test)]
mod tests;
mod text;
mod would_block;

use crate::address::{Address, FiAddr};
use crate::info::NoMatch;
use crate::tree::{Children, Class};
pub(crate) use errno::fi_errno;
pub use refusal::RefusalReason;
pub use would_block::Resource;

/// The result of a call into the fabric.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call or an operation failed.
///
/// The text of each variant names the object or value that failed and, where one exists, the limit
/// or the remedy.
/// [`Error::errno`] returns the number that libfabric uses for the same condition (`fi_errno(3)`).
/// An `Error` converts into [`std::io::Error`] with the nearest kind.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No transmit credit, receive entry, completion entry or loan memory is free. Nothing was
    /// queued: the text says what to await before the next attempt. `FI_EAGAIN`.
    #[doc(alias = "FI_EAGAIN")]
    #[error("{0}")]
    WouldBlock(Resource),
    /// No provider can satisfy the hints. `FI_ENODATA`.
    ///
    /// The text has, for each offer, the first attribute that does not satisfy the hints: omit that
    /// hint, or set it to an offered value. After a mismatch of `ep_type` the text also names the
    /// providers that offer the requested type.
    #[error("{}{}", .0, text::providers_of_ep_type(.0))]
    NoMatch(Box<NoMatch>),
    /// The object still has open children or users. `FI_EBUSY`.
    #[error("cannot close (FI_EBUSY): still open: {0}")]
    Busy(Children),
    /// Another thread is inside a call on a domain that one thread at a time may use (thread model
    /// `Serial`). The call has had no effect. `FI_EBUSY`.
    ///
    /// The program broke its promise: it has to order the calls of its threads, for example by a
    /// lock around all uses of the domain, or open the domain with thread model `Shared`.
    #[error(
        "the domain is in another call (FI_EBUSY, model Serial); use it from one thread at a time, \
         or open it with model Shared"
    )]
    ConcurrentUse,
    /// The object was closed, or its domain was closed. `FI_EOPBADSTATE`.
    ///
    /// A completion queue is closed also by dropping its handle: keep the handle while `.post()`
    /// is used. Awaited operations do not use the queue.
    #[error("the {} is closed{}", .0, text::closed_remedy(*.0))]
    Closed(Class),
    /// This side has shut down the connection of the endpoint
    /// (`ConnectedEndpoint::shutdown`). `FI_ESHUTDOWN`.
    #[doc(alias = "FI_ESHUTDOWN")]
    #[error("the connection was shut down at this side")]
    ShutDown,
    /// The operation did not complete: it was canceled, its connection was shut down, or its
    /// endpoint was closed, by `close` or by dropping its last handle. The buffer is returned with
    /// the error. `FI_ECANCELED`.
    #[doc(alias = "FI_ECANCELED")]
    #[error(
        "canceled (FI_ECANCELED): the operation was canceled, its connection was shut down, or its \
         endpoint was closed, also by dropping its last handle"
    )]
    Canceled,
    /// The message was longer than the receive buffer: `len` bytes were placed, `lost` were
    /// dropped. `FI_ETRUNC`.
    ///
    /// Receive with a buffer of at least `len + lost` bytes. The capacity of a `Vec` counts, not
    /// its length: an empty `Vec` is made with `Vec::with_capacity`. `Endpoint::recv` needs no
    /// buffer.
    #[error(
        "message truncated: {len} bytes placed, {lost} lost; receive with a larger buffer (a Vec \
         with a larger capacity)"
    )]
    Truncated {
        /// Bytes that are in the buffer.
        len: usize,
        /// Bytes that did not fit.
        lost: usize,
    },
    /// A counter's error value increased while a task waited for the counter: an operation failed,
    /// or the program called `Counter::add_errors`. The error of a failed operation itself goes to
    /// its future, completion queue or event queue. `FI_EAVAIL`.
    #[error(
        "counter is at {value}, waited for {threshold}: its error value rose to {errors}; the \
         operation's future, queue or event has its error"
    )]
    CounterError {
        /// The counter's value: successful operations and what `Counter::add` added, since the
        /// counter was opened.
        value: u64,
        /// The value that the task waited for.
        threshold: u64,
        /// The counter's error value: failed operations and what `Counter::add_errors` added, since
        /// the counter was opened.
        errors: u64,
    },
    /// A length exceeds a limit of the provider or endpoint. `FI_EMSGSIZE`.
    ///
    /// If `what` is "injected message", the limit is `info.tx.inject_size`: send the message with
    /// `.await`, `.start()` or `.post()` instead of `inject`. If `what` is "message", the limit is
    /// `info.ep.max_msg_size`: send the message in parts.
    #[error(
        "{what} of {len} bytes exceeds the limit of {limit} bytes{}",
        text::too_long_remedy(what)
    )]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// The requested length in bytes.
        len: usize,
        /// The largest allowed length in bytes.
        limit: usize,
    },
    /// An access begins or ends outside its memory region. `FI_EMSGSIZE`.
    #[error(
        "access of {len} bytes at offset {offset} leaves the region of {limit} bytes; use a range \
         within it"
    )]
    OutOfBounds {
        /// The offset of the access: in bytes from the start of the region, or a virtual address in
        /// a region that is addressed virtually (`FI_MR_VIRT_ADDR`).
        offset: u64,
        /// The length of the access in bytes.
        len: usize,
        /// The length of the region in bytes.
        limit: usize,
    },
    /// The buffer has not enough room for the result of a read. `FI_ETOOSMALL`.
    #[doc(alias = "FI_ETOOSMALL")]
    #[error(
        "buffer of {capacity} bytes is too small for a read of {len} bytes; read into a larger \
         buffer or read a shorter range"
    )]
    BufferTooSmall {
        /// The number of bytes to be read.
        len: usize,
        /// The capacity of the buffer in bytes.
        capacity: usize,
    },
    /// More elements than allowed: buffers of a message, connections of peers, or objects of a
    /// domain. `FI_EMSGSIZE`.
    #[error("{}", text::describe_count(what, *count, *limit))]
    TooMany {
        /// What is too many, in the plural.
        what: &'static str,
        /// The requested number.
        count: usize,
        /// The largest allowed number.
        limit: usize,
    },
    /// The allocator has no memory or address space for a buffer (`RLIMIT_AS`, overcommit). The
    /// message of a receive that fails with this error is lost. `FI_ENOMEM`.
    #[doc(alias = "FI_ENOMEM")]
    #[error("out of memory: cannot allocate a {what} of {len} bytes")]
    OutOfMemory {
        /// What was to be allocated.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
    },
    /// No endpoint listens at the address. `FI_ECONNREFUSED`.
    ///
    /// The operation was not executed. A peer that restarts can be reached when it has bound its
    /// address again: retry after a pause.
    #[error("no endpoint listens at {0}; start the peer, or retry later")]
    NoSuchPeer(Address),
    /// The connection to the peer has ended: the peer closed its endpoint, died or became
    /// unreachable, or one side disconnected the other or ended a stalled connection.
    /// `FI_ECONNRESET`.
    ///
    /// A request that was sent may have been executed: repeat it only if executing it twice does no
    /// harm.
    #[error(
        "connection to {0} lost: the peer closed its endpoint, died or became unreachable; a \
         request may have been executed"
    )]
    PeerGone(Address),
    /// The peer's endpoint refused the connection before the peer's application saw the request.
    /// `FI_ECONNREFUSED`.
    #[error("{peer} refused the connection: {reason}")]
    ConnectionRefused {
        /// The peer that refused.
        peer: Address,
        /// The peer's reason.
        reason: RefusalReason,
    },
    /// The peer's application rejected the connection request of this endpoint, with this private
    /// data (`fi_reject`). `FI_ECONNREFUSED`.
    ///
    /// Over `tcp` also: the address is that of a connectionless endpoint, which
    /// `Endpoint::add_peer` reaches; the wire format does not tell.
    #[error(
        "{peer} rejected the connection request (fi_reject), {}{}",
        text::describe_private_data(data),
        text::rejection_note(peer, data)
    )]
    RejectedByPeer {
        /// The peer that rejected.
        peer: Address,
        /// The private data of the rejection, up to 256 bytes.
        data: Vec<u8>,
    },
    /// The peer did not answer before the timeout. `FI_ETIMEDOUT`.
    #[error(
        "timed out: no answer from {0}; check that its process runs and makes progress, or retry \
         later"
    )]
    TimedOut(Address),
    /// No route leads to the peer from the address that this endpoint is bound to.
    /// `FI_EHOSTUNREACH`.
    #[error("{peer} cannot be reached {why}")]
    Unreachable {
        /// The peer's address.
        peer: Address,
        /// The local address, and the reason that the kernel gave.
        why: Box<str>,
    },
    /// The peer's process belongs to another user. `FI_EACCES`.
    ///
    /// Both ids are equal if they are the overflow user id, which the kernel reports for all users
    /// that the user namespace of this process does not map (`user_namespaces(7)`).
    #[error(
        "{peer} belongs to user {theirs}, but this process to user {ours}{}",
        text::overflow_note(*theirs, *ours)
    )]
    OtherUser {
        /// The peer's address.
        peer: Address,
        /// The peer's user id.
        theirs: u32,
        /// The user id of this process.
        ours: u32,
    },
    /// The peer violated the protocol, and this side ended the connection. `FI_EPROTO`.
    ///
    /// The peer is not an endpoint of this provider, has another version, or has a defect. The next
    /// operation connects again.
    #[error("protocol error by {peer}: {what}; check the program and version at that address")]
    Protocol {
        /// The peer's address.
        peer: Address,
        /// The violation.
        what: String,
    },
    /// The address handle names no peer: the peer was removed from the address vector, the handle
    /// was auto-inserted and its peer has disconnected, or another address vector issued the
    /// handle. `FI_EADDRNOTAVAIL`.
    ///
    /// Add a peer that was removed again with `Endpoint::add_peer` or `AddressVector::insert`, and
    /// use the handle that the call returns. Drop the handle of a client that was auto-inserted and
    /// has left: the client gets a new handle when it connects again.
    #[error(
        "address handle {0} is stale (peer removed or gone) or of another vector; add an inserted \
         peer again, drop the handle of a client that left"
    )]
    StaleAddress(FiAddr),
    /// The sender of the message is in no address vector, so the message has no handle to reply
    /// to. The case for every message of a connected endpoint. `FI_EADDRNOTAVAIL`.
    #[error("the sender has no address handle: its address is not in the address vector")]
    UnknownSource,
    /// The message was received, and its sender is not in the address vector of an endpoint with
    /// [`Caps::SOURCE_ERR`](crate::flags::Caps::SOURCE_ERR). The buffer that comes with the error
    /// has the whole message. `FI_EADDRNOTAVAIL`.
    ///
    /// To reply, insert the address with `AddressVector::insert`.
    #[doc(alias = "FI_SOURCE_ERR")]
    #[error(
        "message received from {}, which is not in the address vector (FI_SOURCE_ERR); insert the \
         address to reply",
        text::describe_sender(address.as_ref())
    )]
    SourceNotInserted {
        /// The address of the sender (`err_data`). `None` if more than 256 peers of the endpoint
        /// have disconnected since this one.
        address: Option<Address>,
    },
    /// Another endpoint, or a socket of another program, is bound to the address. With a port range
    /// ([`SocketOptions::port_range`](crate::SocketOptions::port_range)), no port of the range is
    /// free, and the address holds the last port tried. `FI_EADDRINUSE`.
    #[error("address {0} is already in use; use another name or port")]
    AddressInUse(Address),
    /// No network interface of this machine has the address. `FI_EADDRNOTAVAIL`.
    #[error("address {0} is not an address of this machine; `ip address` lists its addresses")]
    AddressNotLocal(Address),
    /// The text is not an address, or the address cannot be used here. `FI_EINVAL`.
    ///
    /// Addresses have the forms `shm://name`, `tcp://host:port`, `udp://host:port` and
    /// `sim://name`. The name may be empty and the port 0 where an endpoint is bound. For the
    /// address of a peer, take what the peer's `Endpoint::name` returns.
    #[error("invalid address {text:?}: {why}")]
    BadAddress {
        /// The address text.
        text: String,
        /// What is wrong with the address.
        why: &'static str,
    },
    /// The host name cannot be resolved, or resolves to no usable address. `FI_EADDRNOTAVAIL`.
    #[error("cannot resolve host {host:?}: {why}")]
    NoSuchHost {
        /// The host name.
        host: String,
        /// The reason that the resolver gave.
        why: String,
    },
    /// The scheme of the address belongs to another provider. `FI_EINVAL`.
    ///
    /// An endpoint has addresses and peers of its own provider only: use an endpoint of the
    /// provider that the scheme names, or an address with the scheme of this provider.
    #[error(
        "address {address} is not an address of provider {provider}: use an endpoint of provider \
         {}",
        address.scheme().provider()
    )]
    WrongScheme {
        /// The provider of the object.
        provider: &'static str,
        /// The address.
        address: Address,
    },
    /// No provider has this name. `FI_ENODEV`.
    #[error("unknown provider {requested:?}; known: {}", known.join(", "))]
    UnknownProvider {
        /// The requested name.
        requested: String,
        /// The names of the providers.
        known: Vec<&'static str>,
    },
    /// An argument or object is not valid for this call. `FI_EINVAL`.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// Why the argument was refused.
        why: String,
    },
    /// Flags that the call or object does not accept. `FI_EBADFLAGS`.
    #[error("bad flags for {what}: {flags}")]
    BadFlags {
        /// The call or object.
        what: &'static str,
        /// The refused bits by name, or what is wrong with them.
        flags: String,
    },
    /// An object that an endpoint or receive context needs was not bound to it before it was
    /// enabled or an operation was posted. `FI_ENOCQ` for a completion queue, `FI_ENOAV` for an
    /// address vector, `FI_ENOEQ` for an event queue, `FI_EDOMAIN` for a domain, and
    /// `FI_EOPBADSTATE` for a shared receive context.
    #[error("{}", text::describe_unbound(*.0))]
    Unbound(Class),
    /// A memory key that is in use, unknown or revoked, whose region does not grant the access, or
    /// that was requested from a provider that selects the keys (`FI_MR_PROV_KEY`). `FI_ENOKEY`.
    ///
    /// A key is unknown before its region is enabled (`FI_MR_ENDPOINT`, `FI_MR_RMA_EVENT`), and
    /// after its owner has closed the region or was restarted: request a new `RemoteRegion` from
    /// the owner. A key is unknown too at an owner whose endpoint has neither
    /// `FI_RMA` nor `FI_ATOMIC`.
    #[error("memory key {key:#x} {why}{}", text::key_remedy(why))]
    Key {
        /// The key.
        key: u64,
        /// What is wrong with the key.
        why: &'static str,
    },
    /// The object has another parent than the object that it is to be used with: another domain,
    /// resource domain or fabric. `FI_EDOMAIN`.
    #[doc(alias = "FI_EDOMAIN")]
    #[error(
        "the {object} was not opened in the {parent} of the object that uses it (FI_EDOMAIN); open \
         it there"
    )]
    WrongParent {
        /// The class of the object.
        object: Class,
        /// The class of the parent that differs.
        parent: Class,
    },
    /// The provider does not offer the feature. `FI_EOPNOTSUPP`.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The provider does not have this extension (`fi_open_ops`). `FI_ENOSYS`.
    #[error("provider {provider} has no extension {extension} (FI_ENOSYS)")]
    NoExtension {
        /// The provider of the domain.
        provider: &'static str,
        /// The name of the extension.
        extension: &'static str,
    },
    /// The cores or kernel resources for
    /// [`MessageModel::ForceLowLatency`](crate::transport::MessageModel::ForceLowLatency) cannot be
    /// reserved. `FI_ENOSPC`.
    #[error("cannot reserve what ForceLowLatency needs (FI_ENOSPC): {0}")]
    NotReserved(String),
    /// The async runtime lacks a driver that the fabric needs. `FI_ENOSYS`.
    #[error("unsuitable async runtime: {0}")]
    Runtime(&'static str),
    /// A system call failed. [`errno`](Self::errno) is the kernel's number.
    #[error(
        "{call}: {}{}",
        std::io::Error::from_raw_os_error(*errno),
        text::describe_limit(call, *errno)
    )]
    Os {
        /// The system call.
        call: &'static str,
        /// The kernel's error number.
        errno: i32,
    },
}

impl Error {
    /// Returns whether the peer is unavailable: the operation may succeed when the peer runs again,
    /// or was inserted into the address vector again.
    ///
    /// True for exactly these errors:
    ///
    /// * [`Error::PeerGone`]: the connection to the peer was lost;
    /// * [`Error::NoSuchPeer`]: no endpoint listens at the peer's address;
    /// * [`Error::TimedOut`]: the peer did not answer in time;
    /// * [`Error::StaleAddress`]: the handle of the peer is no longer valid, or belongs to another
    ///   address vector.
    ///
    /// False for all others. Of the errors about peers these are [`Error::ConnectionRefused`],
    /// [`Error::RejectedByPeer`], [`Error::OtherUser`] and [`Error::Protocol`], where the peer has
    /// answered; [`Error::Unreachable`], [`Error::NoSuchHost`], [`Error::UnknownSource`] and
    /// [`Error::SourceNotInserted`], where no peer was asked; and [`Error::Canceled`], because this
    /// side ended the operation.
    #[must_use]
    pub fn is_peer_unavailable(&self) -> bool {
        matches!(
            self,
            Self::PeerGone(_) | Self::NoSuchPeer(_) | Self::TimedOut(_) | Self::StaleAddress(_)
        )
    }

    /// Creates the error of a system call.
    #[must_use]
    pub fn os(call: &'static str, errno: i32) -> Self {
        Self::Os { call, errno }
    }
}

impl From<NoMatch> for Error {
    fn from(no_match: NoMatch) -> Self {
        Self::NoMatch(Box::new(no_match))
    }
}
