//! Errors of the fabric, and the `fi_errno(3)` value of each.

mod io;

use std::fmt;

use crate::address::{Address, FiAddr};
use crate::info::NoMatch;
use crate::tree::{Children, Class};

/// The result of a call into the fabric.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call or an operation failed.
///
/// The text of each variant names the object or value that failed and, where one exists, the limit.
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
    #[error("{0}")]
    NoMatch(Box<NoMatch>),
    /// The object still has open children or users. `FI_EBUSY`.
    #[error("cannot close (FI_EBUSY): still open: {0}")]
    Busy(Children),
    /// The object was closed, or its domain was closed. `FI_EOPBADSTATE`.
    #[error("the {0} is closed")]
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
    #[error("message truncated to the receive buffer: {len} bytes placed, {lost} lost")]
    Truncated {
        /// Bytes that are in the buffer.
        len: usize,
        /// Bytes that did not fit.
        lost: usize,
    },
    /// A counter's error value increased while a task waited for the counter: an operation failed,
    /// or the program called `Counter::add_errors`. The error of a failed operation itself goes to
    /// its future, completion queue or event queue. `FI_EAVAIL`.
    #[error("counter is at {value}, waited for {threshold}: its error value rose to {errors}")]
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
    #[error("{what} of {len} bytes exceeds the limit of {limit} bytes")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// The requested length in bytes.
        len: usize,
        /// The largest allowed length in bytes.
        limit: usize,
    },
    /// An access begins or ends outside its memory region. `FI_EMSGSIZE`.
    #[error("access of {len} bytes at offset {offset} leaves the region of {limit} bytes")]
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
    #[error("buffer of {capacity} bytes is too small for a read of {len} bytes")]
    BufferTooSmall {
        /// The number of bytes to be read.
        len: usize,
        /// The capacity of the buffer in bytes.
        capacity: usize,
    },
    /// More elements than the provider or endpoint allows, such as buffers of a message.
    /// `FI_EMSGSIZE`.
    #[error("{count} {what} exceed the limit of {limit}")]
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
    #[error("no endpoint listens at {0}")]
    NoSuchPeer(Address),
    /// The peer was connected, and closed its endpoint, died or lost the connection.
    /// `FI_ECONNRESET`.
    #[error("connection to {0} lost: the peer closed its endpoint, died or became unreachable")]
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
    #[error(
        "{peer} rejected the connection request (fi_reject), {}",
        describe_private_data(data)
    )]
    RejectedByPeer {
        /// The peer that rejected.
        peer: Address,
        /// The private data of the rejection, up to 256 bytes.
        data: Vec<u8>,
    },
    /// The peer did not answer before the timeout. `FI_ETIMEDOUT`.
    #[error("timed out: no answer from {0}")]
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
    #[error("{peer} belongs to user {theirs}, but this process to user {ours}{}", overflow_note(*theirs, *ours))]
    OtherUser {
        /// The peer's address.
        peer: Address,
        /// The peer's user id.
        theirs: u32,
        /// The user id of this process.
        ours: u32,
    },
    /// The peer violated the protocol, and this side ended the connection. `FI_EPROTO`.
    #[error("protocol error by {peer}: {what}")]
    Protocol {
        /// The peer's address.
        peer: Address,
        /// The violation.
        what: String,
    },
    /// The address handle names no peer: the peer was removed from the address vector, the handle
    /// was auto-inserted and its peer has disconnected, or another address vector issued the
    /// handle. `FI_EADDRNOTAVAIL`.
    #[error(
        "address handle {0} names no peer: the peer was removed, or was auto-inserted and \
         disconnected, or the handle is of another address vector"
    )]
    StaleAddress(FiAddr),
    /// The sender of the message is in no address vector, so the message has no handle to reply
    /// to. The case for every message of a connected endpoint. `FI_EADDRNOTAVAIL`.
    #[error("the sender has no address handle: its address is not in the address vector")]
    UnknownSource,
    /// Another endpoint, or a socket of another program, is bound to the address. With a port range
    /// ([`SocketOptions::port_range`](crate::SocketOptions::port_range)), no port of the range is
    /// free, and the address holds the last port tried. `FI_EADDRINUSE`.
    #[error("address {0} is already in use")]
    AddressInUse(Address),
    /// No network interface of this machine has the address. `FI_EADDRNOTAVAIL`.
    #[error("address {0} is not an address of this machine")]
    AddressNotLocal(Address),
    /// The text is not an address, or the address cannot be used here. `FI_EINVAL`.
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
    #[error(
        "address {address} is not served by provider {provider}, but by {}",
        address.scheme().provider()
    )]
    WrongScheme {
        /// The provider of the object.
        provider: &'static str,
        /// The address.
        address: Address,
    },
    /// No provider has this name. `FI_ENODEV`.
    #[error("unknown provider {asked:?}; known: {}", known.join(", "))]
    UnknownProvider {
        /// The requested name.
        asked: String,
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
    #[error("{}", describe_unbound(*.0))]
    Unbound(Class),
    /// A memory key that is in use, unknown or revoked, or whose region does not grant the access.
    /// `FI_ENOKEY`.
    #[error("memory key {key:#x} {why}")]
    Key {
        /// The key.
        key: u64,
        /// What is wrong with the key.
        why: &'static str,
    },
    /// The object has another parent than the object that it is to be used with: another domain, or
    /// another fabric. `FI_EDOMAIN`.
    #[doc(alias = "FI_EDOMAIN")]
    #[error("the {object} belongs to another {parent} (FI_EDOMAIN)")]
    WrongParent {
        /// The class of the object.
        object: Class,
        /// The class of the parent that differs.
        parent: Class,
    },
    /// The provider does not offer the feature. `FI_EOPNOTSUPP`.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The async runtime lacks a driver that the fabric needs. `FI_ENOSYS`.
    #[error("unsuitable async runtime: {0}")]
    Runtime(&'static str),
    /// A system call failed. [`errno`](Self::errno) is the kernel's number.
    #[error("{call}: {}{}", std::io::Error::from_raw_os_error(*errno), describe_limit(*errno))]
    Os {
        /// The system call.
        call: &'static str,
        /// The kernel's error number.
        errno: i32,
    },
}

/// The resource that was missing when a post failed with [`Error::WouldBlock`], and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// A transmit credit. One peer can hold a quarter of the endpoint's credits, and a send waits
    /// behind earlier ones to its peer, also where credits are free. Await the send, or
    /// `Endpoint::reserve`.
    TransmitCredit {
        /// The peer of the send.
        peer: FiAddr,
        /// Credits that operations to this peer hold.
        in_use: usize,
        /// Credits that operations to one peer can hold.
        peer_limit: usize,
        /// Credits of the endpoint that are free.
        free: usize,
    },
    /// An entry in the queue of posted receives of an endpoint or shared receive context. Await the
    /// receive, or take completions of earlier ones.
    ReceiveEntry {
        /// The number of entries, all in use.
        limit: usize,
    },
    /// An entry in the completion queue. Take completions out of the queue.
    CompletionEntry {
        /// The number of entries: each holds a completion or is reserved by a pending operation.
        capacity: usize,
    },
    /// Memory for a loan. Peers return it when they drop the messages.
    LoanMemory {
        /// Bytes that are lent or to be written. Memory is taken in powers of two from 4 KiB.
        in_use: usize,
        /// The most bytes that a domain lends.
        limit: usize,
    },
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TransmitCredit {
                peer,
                in_use,
                peer_limit,
                free,
            } if in_use < peer_limit && *free > 0 => write!(
                f,
                "earlier operations to peer #{peer} come first (FI_EAGAIN): use .await instead of \
                 .start() or .post(), or await Endpoint::reserve"
            ),
            Self::TransmitCredit {
                peer,
                in_use,
                peer_limit,
                free,
            } => write!(
                f,
                "no transmit credit for peer #{peer} ({in_use} of {peer_limit} in use, {free} free at \
                 the endpoint; FI_EAGAIN): use .await instead of .start() or .post(), or await \
                 Endpoint::reserve"
            ),
            Self::ReceiveEntry { limit } => write!(
                f,
                "no free entry in the receive queue ({limit} in use; FI_EAGAIN): use .await, or take \
                 completions and try again"
            ),
            Self::CompletionEntry { capacity } => write!(
                f,
                "no free entry in the completion queue ({capacity} reserved or filled; FI_EAGAIN): \
                 take completions, then try again"
            ),
            Self::LoanMemory { in_use, limit } => write!(
                f,
                "no loan memory ({in_use} of {limit} bytes in use; FI_EAGAIN): wait until peers drop \
                 loaned messages, then try again"
            ),
        }
    }
}

/// Why the endpoint of a peer refused a connection ([`Error::ConnectionRefused`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The two sides speak different versions of the protocol.
    Version {
        /// The version the peer speaks.
        theirs: u16,
        /// The version this side speaks.
        ours: u16,
    },
    /// The peer accepts only processes of its own user.
    User,
    /// The peer could not parse the handshake.
    Malformed,
    /// The peer is out of memory or descriptors, or at its limit of connections. Over `tcp` also:
    /// the address is that of a passive endpoint, whose program rejected the connection; the wire
    /// format does not tell.
    Resources,
    /// The peer's endpoint is of another type: a connectionless endpoint (`FI_EP_RDM`) cannot be
    /// connected with, and a passive endpoint (`FI_EP_MSG`) cannot be sent to.
    EpType,
    /// A reason code that this version does not know.
    Other(u16),
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { theirs, ours } => {
                write!(
                    f,
                    "the peer speaks protocol version {theirs}, this side {ours}"
                )
            }
            Self::User => f.write_str("the peer accepts only processes of its own user"),
            Self::Malformed => f.write_str("the peer could not parse the handshake"),
            Self::Resources => f.write_str(
                "the peer lacks memory or descriptors, is at its connection limit, or (tcp) its \
                 program rejected the request",
            ),
            Self::EpType => f.write_str(
                "the peer's endpoint is of another type (FI_EP_RDM or FI_EP_MSG) than this side's",
            ),
            Self::Other(code) => write!(f, "unknown reason code {code}"),
        }
    }
}

/// Returns advice on the resource limit that caused this error number, if any.
fn describe_limit(errno: i32) -> &'static str {
    const EMFILE: i32 = 24;
    match errno {
        EMFILE => {
            "; raise RLIMIT_NOFILE: an endpoint takes up to 6 descriptors, a connection 1 or more"
        }
        _ => "",
    }
}

/// Returns the text of [`Error::Unbound`].
fn describe_unbound(class: Class) -> String {
    match class {
        Class::Domain => "the passive endpoint has no domain to accept in; accept with an \
                          EndpointBuilder"
            .into(),
        class => format!("no {class} is bound; bind one first"),
    }
}

/// Returns the part of the text of [`Error::RejectedByPeer`] about the private data.
fn describe_private_data(data: &[u8]) -> String {
    match data.len() {
        0 => "without private data".into(),
        len => format!("with {len} bytes of private data"),
    }
}

/// Error numbers of libfabric (`fi_errno(3)`); those below 256 are Linux error numbers.
pub(crate) mod fi_errno {
    pub(crate) const EAGAIN: i32 = 11;
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EACCES: i32 = 13;
    pub(crate) const EBUSY: i32 = 16;
    pub(crate) const ENODEV: i32 = 19;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENOSYS: i32 = 38;
    pub(crate) const ENODATA: i32 = 61;
    pub(crate) const EPROTO: i32 = 71;
    pub(crate) const EMSGSIZE: i32 = 90;
    pub(crate) const EOPNOTSUPP: i32 = 95;
    pub(crate) const EADDRINUSE: i32 = 98;
    pub(crate) const EADDRNOTAVAIL: i32 = 99;
    pub(crate) const ECONNRESET: i32 = 104;
    pub(crate) const ESHUTDOWN: i32 = 108;
    pub(crate) const ETIMEDOUT: i32 = 110;
    pub(crate) const ECONNREFUSED: i32 = 111;
    pub(crate) const EHOSTUNREACH: i32 = 113;
    pub(crate) const ECANCELED: i32 = 125;
    pub(crate) const ETOOSMALL: i32 = 257;
    pub(crate) const EOPBADSTATE: i32 = 258;
    pub(crate) const EAVAIL: i32 = 259;
    pub(crate) const EBADFLAGS: i32 = 260;
    pub(crate) const ENOEQ: i32 = 261;
    pub(crate) const EDOMAIN: i32 = 262;
    pub(crate) const ENOCQ: i32 = 263;
    pub(crate) const ETRUNC: i32 = 265;
    pub(crate) const ENOKEY: i32 = 266;
    pub(crate) const ENOAV: i32 = 267;
}

/// Returns the end of the text of [`Error::OtherUser`].
fn overflow_note(theirs: u32, ours: u32) -> &'static str {
    if theirs == ours {
        " (users not mapped by the user namespace have the same id)"
    } else {
        ""
    }
}

impl Error {
    /// Returns the number of this condition in `fi_errno(3)`: a positive Linux errno below 256, or
    /// one of libfabric's own numbers from 256 on.
    #[doc(alias = "fi_strerror")]
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::WouldBlock(_) => fi_errno::EAGAIN,
            Self::NoMatch(_) => fi_errno::ENODATA,
            Self::Busy(_) => fi_errno::EBUSY,
            Self::Closed(_) => fi_errno::EOPBADSTATE,
            Self::ShutDown => fi_errno::ESHUTDOWN,
            Self::Canceled => fi_errno::ECANCELED,
            Self::Truncated { .. } => fi_errno::ETRUNC,
            Self::CounterError { .. } => fi_errno::EAVAIL,
            Self::TooLong { .. } | Self::OutOfBounds { .. } | Self::TooMany { .. } => {
                fi_errno::EMSGSIZE
            }
            Self::BufferTooSmall { .. } => fi_errno::ETOOSMALL,
            Self::OutOfMemory { .. } => fi_errno::ENOMEM,
            Self::NoSuchPeer(_) | Self::ConnectionRefused { .. } | Self::RejectedByPeer { .. } => {
                fi_errno::ECONNREFUSED
            }
            Self::TimedOut(_) => fi_errno::ETIMEDOUT,
            Self::Unreachable { .. } => fi_errno::EHOSTUNREACH,
            Self::PeerGone(_) => fi_errno::ECONNRESET,
            Self::OtherUser { .. } => fi_errno::EACCES,
            Self::Protocol { .. } => fi_errno::EPROTO,
            Self::AddressNotLocal(_)
            | Self::StaleAddress(_)
            | Self::UnknownSource
            | Self::NoSuchHost { .. } => fi_errno::EADDRNOTAVAIL,
            Self::AddressInUse(_) => fi_errno::EADDRINUSE,
            Self::BadAddress { .. } | Self::WrongScheme { .. } | Self::Invalid { .. } => {
                fi_errno::EINVAL
            }
            Self::UnknownProvider { .. } => fi_errno::ENODEV,
            Self::BadFlags { .. } => fi_errno::EBADFLAGS,
            Self::Unbound(Class::CompletionQueue) => fi_errno::ENOCQ,
            Self::Unbound(Class::AddressVector) => fi_errno::ENOAV,
            Self::Unbound(Class::EventQueue) => fi_errno::ENOEQ,
            Self::Unbound(Class::Domain) => fi_errno::EDOMAIN,
            Self::Unbound(_) => fi_errno::EOPBADSTATE,
            Self::Key { .. } => fi_errno::ENOKEY,
            Self::WrongParent { .. } => fi_errno::EDOMAIN,
            Self::NotSupported(_) => fi_errno::EOPNOTSUPP,
            Self::Runtime(_) => fi_errno::ENOSYS,
            Self::Os { errno, .. } => *errno,
        }
    }

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
    /// answered; [`Error::Unreachable`], [`Error::NoSuchHost`] and [`Error::UnknownSource`], where
    /// no peer was asked; and [`Error::Canceled`], because this side ended the operation.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_values_match_fi_errno() {
        let full = Resource::ReceiveEntry { limit: 1 };
        assert_eq!(Error::WouldBlock(full).errno(), 11);
        assert_eq!(Error::Truncated { len: 1, lost: 2 }.errno(), 265);
        assert_eq!(Error::os("mmap", 12).errno(), 12);
        for (class, errno) in [
            (Class::CompletionQueue, 263),
            (Class::AddressVector, 267),
            (Class::EventQueue, 261),
            (Class::Domain, 262),
            (Class::SharedReceive, 258),
        ] {
            assert_eq!(Error::Unbound(class).errno(), errno, "{class}");
        }
    }

    #[test]
    fn peer_is_unavailable_for_exactly_four_errors() {
        let mut unavailable = Vec::new();
        for (error, _) in examples() {
            if error.is_peer_unavailable() {
                let text = format!("{error:?}");
                unavailable.push(text.split('(').next().unwrap().to_string());
            }
        }
        assert_eq!(
            unavailable,
            ["NoSuchPeer", "PeerGone", "TimedOut", "StaleAddress"]
        );
    }

    #[test]
    fn canceled_text_names_the_closed_endpoint() {
        let text = Error::Canceled.to_string();
        assert!(text.contains("its endpoint was closed"), "{text}");
        assert_eq!(Error::Canceled.errno(), 125);
    }

    #[test]
    fn too_long_text_names_subject_and_limit() {
        let error = Error::TooLong {
            what: "message",
            len: 10,
            limit: 4,
        };
        assert_eq!(
            error.to_string(),
            "message of 10 bytes exceeds the limit of 4 bytes"
        );
    }

    #[test]
    fn errors_stay_small_enough_to_return_by_value() {
        assert!(size_of::<Error>() <= 64, "{}", size_of::<Error>());
    }

    /// Position of a variant in `examples`. The match is exhaustive: a new variant does not compile
    /// without an example.
    fn position(error: &Error) -> usize {
        match error {
            Error::WouldBlock(_) => 0,
            Error::NoMatch(_) => 1,
            Error::Busy(_) => 2,
            Error::Closed(_) => 3,
            Error::Canceled => 4,
            Error::Truncated { .. } => 5,
            Error::CounterError { .. } => 6,
            Error::TooLong { .. } => 7,
            Error::OutOfMemory { .. } => 8,
            Error::NoSuchPeer(_) => 9,
            Error::PeerGone(_) => 10,
            Error::ConnectionRefused { .. } => 11,
            Error::RejectedByPeer { .. } => 12,
            Error::TimedOut(_) => 13,
            Error::Unreachable { .. } => 14,
            Error::OtherUser { .. } => 15,
            Error::Protocol { .. } => 16,
            Error::StaleAddress(_) => 17,
            Error::UnknownSource => 18,
            Error::AddressInUse(_) => 19,
            Error::BadAddress { .. } => 20,
            Error::NoSuchHost { .. } => 21,
            Error::WrongScheme { .. } => 22,
            Error::UnknownProvider { .. } => 23,
            Error::Invalid { .. } => 24,
            Error::BadFlags { .. } => 25,
            Error::Unbound(_) => 26,
            Error::Key { .. } => 27,
            Error::WrongParent { .. } => 28,
            Error::NotSupported(_) => 29,
            Error::Runtime(_) => 30,
            Error::Os { .. } => 31,
            Error::TooMany { .. } => 32,
            Error::OutOfBounds { .. } => 33,
            Error::BufferTooSmall { .. } => 34,
            Error::ShutDown => 35,
            Error::AddressNotLocal(_) => 36,
        }
    }

    /// An error of each variant, with the values that its text must name.
    pub(super) fn examples() -> Vec<(Error, Vec<&'static str>)> {
        let peer = || "tcp://10.0.0.5:7000".parse::<Address>().unwrap();
        let no_match = Error::from(crate::info::NoMatch {
            mismatches: vec![crate::info::Mismatch {
                provider: "tcp".into(),
                domain: "lo".into(),
                ep_type: crate::info::EpType::Rdm,
                protocol: Some(crate::info::Protocol::Rxm),
                attribute: "max_msg_size",
                asked: "5368709120".into(),
                offered: "4294967296".into(),
            }],
        });
        let fabric = crate::tree::ObjectNode::new(Class::Fabric, None);
        let domain = crate::tree::ObjectNode::new(Class::Domain, Some(fabric.clone()));
        domain.attach_to_parent().unwrap();
        let handle = FiAddr {
            index: 17,
            generation: 0,
            vector: 0,
        };
        let refused = |reason| Error::ConnectionRefused {
            peer: peer(),
            reason,
        };
        vec![
            (
                Error::WouldBlock(Resource::TransmitCredit {
                    peer: handle,
                    in_use: 256,
                    peer_limit: 256,
                    free: 768,
                }),
                vec!["peer #17", "256 of 256", "768", "Endpoint::reserve"],
            ),
            (
                Error::WouldBlock(Resource::TransmitCredit {
                    peer: handle,
                    in_use: 3,
                    peer_limit: 256,
                    free: 768,
                }),
                vec!["earlier operations", "peer #17", "Endpoint::reserve"],
            ),
            (
                Error::WouldBlock(Resource::ReceiveEntry { limit: 1024 }),
                vec!["receive queue", "1024", "take completions"],
            ),
            (
                Error::WouldBlock(Resource::CompletionEntry { capacity: 64 }),
                vec!["completion queue", "64", "take completions"],
            ),
            (
                Error::WouldBlock(Resource::LoanMemory {
                    in_use: 4000,
                    limit: 4096,
                }),
                vec!["loan", "4000 of 4096 bytes", "peers"],
            ),
            (no_match, vec!["tcp", "max_msg_size", "5368709120"]),
            (fabric.close().unwrap_err(), vec!["1 domain"]),
            (Error::Closed(Class::Endpoint), vec!["endpoint"]),
            (Error::ShutDown, vec!["connection", "shut down"]),
            (Error::Canceled, vec!["endpoint", "closed"]),
            (
                Error::Truncated {
                    len: 4096,
                    lost: 904,
                },
                vec!["4096", "904"],
            ),
            (
                Error::CounterError {
                    value: 9,
                    threshold: 12,
                    errors: 3,
                },
                vec!["at 9", "waited for 12", "rose to 3"],
            ),
            (
                Error::TooLong {
                    what: "injected message",
                    len: 5000,
                    limit: 4096,
                },
                vec!["injected message", "5000", "4096"],
            ),
            (
                Error::OutOfBounds {
                    offset: 90,
                    len: 11,
                    limit: 100,
                },
                vec!["11 bytes", "offset 90", "region of 100 bytes"],
            ),
            (
                Error::BufferTooSmall {
                    len: 100,
                    capacity: 99,
                },
                vec!["buffer of 99 bytes", "read of 100 bytes"],
            ),
            (
                Error::TooMany {
                    what: "buffers",
                    count: 20,
                    limit: 15,
                },
                vec!["20 buffers exceed the limit of 15"],
            ),
            (
                Error::OutOfMemory {
                    what: "buffer",
                    len: 5000,
                },
                vec!["buffer", "5000"],
            ),
            (Error::NoSuchPeer(peer()), vec!["10.0.0.5:7000"]),
            (Error::PeerGone(peer()), vec!["10.0.0.5:7000"]),
            (
                refused(RefusalReason::Version { theirs: 3, ours: 4 }),
                vec!["10.0.0.5:7000", "version 3", "side 4"],
            ),
            (refused(RefusalReason::User), vec!["user"]),
            (refused(RefusalReason::Malformed), vec!["handshake"]),
            (refused(RefusalReason::Resources), vec!["descriptors"]),
            (
                refused(RefusalReason::EpType),
                vec!["FI_EP_RDM", "FI_EP_MSG"],
            ),
            (refused(RefusalReason::Other(77)), vec!["77"]),
            (
                Error::RejectedByPeer {
                    peer: peer(),
                    data: Vec::new(),
                },
                vec!["10.0.0.5:7000", "without private data"],
            ),
            (
                Error::RejectedByPeer {
                    peer: peer(),
                    data: vec![0; 9],
                },
                vec!["10.0.0.5:7000", "9 bytes"],
            ),
            (Error::TimedOut(peer()), vec!["10.0.0.5:7000"]),
            (
                Error::Unreachable {
                    peer: peer(),
                    why: "from 127.0.0.1: Network is unreachable (os error 101)".into(),
                },
                vec!["10.0.0.5:7000", "127.0.0.1"],
            ),
            (
                Error::OtherUser {
                    peer: peer(),
                    theirs: 1001,
                    ours: 1000,
                },
                vec!["10.0.0.5:7000", "1001", "1000"],
            ),
            (
                Error::Protocol {
                    peer: peer(),
                    what: "unknown frame type 9".into(),
                },
                vec!["10.0.0.5:7000", "frame type 9"],
            ),
            (Error::StaleAddress(handle), vec!["17"]),
            (Error::UnknownSource, vec!["address vector"]),
            (Error::AddressInUse(peer()), vec!["10.0.0.5:7000"]),
            (
                Error::AddressNotLocal(peer()),
                vec!["10.0.0.5:7000", "machine"],
            ),
            (
                "tcp://localhost:99999".parse::<Address>().unwrap_err(),
                vec!["tcp://localhost:99999", "port", "65535"],
            ),
            (
                Error::NoSuchHost {
                    host: "storage-7".into(),
                    why: "Name or service not known".into(),
                },
                vec!["storage-7", "not known"],
            ),
            (
                Error::WrongScheme {
                    provider: "shm",
                    address: peer(),
                },
                vec!["provider shm", "10.0.0.5:7000", "by tcp"],
            ),
            (
                Error::UnknownProvider {
                    asked: "verbs".into(),
                    known: vec!["shm", "tcp", "udp", "sim"],
                },
                vec!["verbs", "shm, tcp, udp, sim"],
            ),
            (
                Error::Invalid {
                    what: "port range",
                    why: "9 to 7 is empty: the first port must not be above the last".into(),
                },
                vec!["port range", "9 to 7"],
            ),
            (
                Error::BadFlags {
                    what: "send",
                    flags: "MULTI_RECV".into(),
                },
                vec!["send", "MULTI_RECV"],
            ),
            (
                Error::Unbound(Class::CompletionQueue),
                vec!["completion queue", "bind one"],
            ),
            (
                Error::Unbound(Class::AddressVector),
                vec!["address vector", "bind one"],
            ),
            (
                Error::Unbound(Class::Domain),
                vec!["passive endpoint", "no domain", "EndpointBuilder"],
            ),
            (
                Error::Key {
                    key: 0x1f,
                    why: "is unknown",
                },
                vec!["0x1f", "unknown"],
            ),
            (
                Error::WrongParent {
                    object: Class::CompletionQueue,
                    parent: Class::Domain,
                },
                vec!["completion queue", "another domain"],
            ),
            (
                Error::NotSupported("windows of a registered buffer"),
                vec!["windows"],
            ),
            (
                Error::Runtime("no Tokio runtime is running on this thread"),
                vec!["Tokio"],
            ),
            (
                Error::os("eventfd2", 24),
                vec!["eventfd2", "RLIMIT_NOFILE", "6 descriptors"],
            ),
            (Error::os("mmap", 12), vec!["mmap", "os error 12"]),
        ]
    }

    #[test]
    fn every_error_text_is_one_short_line_with_its_values() {
        let mut seen = [false; 37];
        for (error, values) in examples() {
            seen[position(&error)] = true;
            let text = error.to_string();
            println!("{:3} {text}", error.errno());
            assert!(!text.trim().is_empty(), "{error:?} has no text");
            assert!(!text.contains('\n'), "{text:?} has several lines");
            let len = text.chars().count();
            assert!(len <= 160, "{len} characters: {text}");
            for value in values {
                assert!(text.contains(value), "{value:?} is missing in {text:?}");
            }
        }
        assert_eq!(seen, [true; 37], "a variant has no example");
    }
}
