//! What can go wrong, by name, with the value and the limit; and the libfabric number of each.

use std::fmt;

use crate::address::{Address, FiAddr};
use crate::info::NoMatch;
use crate::tree::{Children, Class};

/// The result of a call into the fabric.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call or an operation failed.
///
/// Every variant names the thing and, where one exists, the limit. [`Error::errno`] gives the
/// number that libfabric uses for the same condition (`fi_errno(3)`).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No room now: a queue, a credit or a completion entry is missing. Nothing was queued; try
    /// again after progress, or use the awaiting form. `FI_EAGAIN`.
    #[doc(alias = "FI_EAGAIN")]
    #[error("try again: no free {0}")]
    WouldBlock(Resource),
    /// No provider can satisfy the hints. `FI_ENODATA`.
    #[error("{0}")]
    NoMatch(Box<NoMatch>),
    /// The object still has open children. `FI_EBUSY`.
    #[error("busy: still open: {0}")]
    Busy(Children),
    /// The object was closed, or its domain ended. `FI_EBADF`-like; libfabric calls it
    /// `FI_EOPBADSTATE`.
    #[error("the {0} is closed")]
    Closed(Class),
    /// The operation did not complete, because its endpoint was closed (by a call, or with its last
    /// handle), its connection was shut down, or it was withdrawn. Its buffer comes back with it.
    /// `FI_ECANCELED`.
    #[doc(alias = "FI_ECANCELED")]
    #[error(
        "canceled: the endpoint or the connection was closed before the operation completed, or the operation was withdrawn"
    )]
    Canceled,
    /// The message was longer than the receive buffer: `len` bytes were placed, `lost` were
    /// dropped. `FI_ETRUNC`.
    #[error("message truncated: {len} bytes placed, {lost} lost")]
    Truncated {
        /// Bytes that are in the buffer.
        len: usize,
        /// Bytes that did not fit.
        lost: usize,
    },
    /// An operation failed while a counter was waited for: `value` of `threshold` ended well,
    /// `errors` badly, since the counter was opened. The failed one's own error is with its future,
    /// queue or event. `FI_EAVAIL`.
    #[error("an operation failed: {value} of {threshold} ended well, {errors} badly")]
    CounterError {
        /// What the counter counted.
        value: u64,
        /// What was waited for.
        threshold: u64,
        /// How many failed.
        errors: u64,
    },
    /// A length is over a limit of the provider. `FI_EMSGSIZE`.
    #[error("{what} of {len} bytes exceeds the limit of {limit} bytes")]
    TooLong {
        /// What was too long.
        what: &'static str,
        /// The length asked for.
        len: usize,
        /// The largest length that is allowed.
        limit: usize,
    },
    /// The allocator has no room for a buffer: address space or memory is limited (`RLIMIT_AS`,
    /// overcommit). A receive that ends so has lost its message. `FI_ENOMEM`.
    #[doc(alias = "FI_ENOMEM")]
    #[error("out of memory: no room for a {what} of {len} bytes")]
    OutOfMemory {
        /// What was to be allocated.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
    },
    /// No endpoint of that name exists (or nobody listens there). `FI_ECONNREFUSED`.
    #[error("no endpoint at {0}")]
    NoSuchPeer(Address),
    /// The peer was reachable and is gone. `FI_ECONNRESET`.
    #[error("the peer {0} is gone")]
    PeerGone(Address),
    /// The peer refused the connection, with its reason. `FI_ECONNREFUSED`.
    #[error("{peer} refused the connection: {reason}")]
    ConnectionRefused {
        /// Who refused.
        peer: Address,
        /// Its reason.
        reason: RejectReason,
    },
    /// The program at the other end does not want to be connected, and says so with these bytes.
    /// `FI_ECONNREFUSED`.
    #[error("{peer} rejected the connection, {}", describe_private_data(data))]
    Rejected {
        /// Who.
        peer: Address,
        /// Its private data, up to 256 bytes.
        data: Vec<u8>,
    },
    /// Nobody has answered in time. `FI_ETIMEDOUT`.
    #[error("no answer from {0} in time")]
    TimedOut(Address),
    /// No way leads to the peer from where this endpoint is bound. `FI_EHOSTUNREACH`.
    #[error("{peer} cannot be reached {why}")]
    Unreachable {
        /// Who.
        peer: Address,
        /// From where, and what stands in the way.
        why: Box<str>,
    },
    /// The peer belongs to another user. `FI_EACCES`.
    #[error("{peer} belongs to user {theirs}, this process to user {ours}")]
    OtherUser {
        /// The address in question.
        peer: Address,
        /// The peer's user id.
        theirs: u32,
        /// Our user id.
        ours: u32,
    },
    /// The peer broke the protocol; its connection was ended. `FI_EPROTO`.
    #[error("{peer} broke the protocol: {what}")]
    Protocol {
        /// Who.
        peer: Address,
        /// What was wrong.
        what: String,
    },
    /// An address handle that names nobody (any more), or belongs to another address vector.
    /// `FI_EADDRNOTAVAIL`.
    #[error(
        "address handle {0} names nobody: its peer has gone or was removed, or it is of another address vector"
    )]
    StaleAddress(FiAddr),
    /// The sender of a message is in no address vector, so it cannot be answered by handle.
    /// `FI_EADDRNOTAVAIL`.
    #[error("the sender is not in the address vector")]
    UnknownSource,
    /// The name is taken by a living endpoint. `FI_EADDRINUSE`.
    #[error("the address {0} is in use")]
    AddressInUse(Address),
    /// An address that does not parse. `FI_EINVAL`.
    #[error("malformed address {text:?}: {why}")]
    BadAddress {
        /// The text as given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The name of a host could not be looked up, or has no address that is of use here.
    /// `FI_EADDRNOTAVAIL`.
    #[error("no address for the host {host:?}: {why}")]
    NoSuchHost {
        /// The name.
        host: String,
        /// What was said to it.
        why: String,
    },
    /// The address is of a kind this object does not handle. `FI_EINVAL`.
    #[error("the provider {provider:?} does not handle the address {address}")]
    WrongScheme {
        /// The provider that was asked.
        provider: &'static str,
        /// The address it was given.
        address: Address,
    },
    /// No provider of that name. `FI_ENODEV`.
    #[error("unknown provider {asked:?}; known: {}", known.join(", "))]
    UnknownProvider {
        /// The name asked for.
        asked: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// An argument is outside of what the call accepts. `FI_EINVAL`.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// Why it was refused.
        why: String,
    },
    /// Flag bits that mean nothing here. `FI_EBADFLAGS`.
    #[error("bad flags for {what}: {flags}")]
    BadFlags {
        /// The call or object.
        what: &'static str,
        /// The offending bits by name.
        flags: String,
    },
    /// An endpoint was enabled without an object it needs. `FI_ENOCQ`, `FI_ENOAV`.
    #[error("no {0} is bound")]
    Unbound(Class),
    /// A remote or local memory key that is taken, unknown or closed, or does not grant the access.
    /// `FI_ENOKEY`.
    #[error("memory key {key:#x} {why}")]
    Key {
        /// The key.
        key: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two objects belong to different domains, or to different fabrics. `FI_EDOMAIN`.
    #[error("the {0} belongs to another {1}")]
    WrongDomain(Class, Class),
    /// The provider does not offer this. `FI_EOPNOTSUPP`.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The async runtime lacks something. `FI_ENOSYS`.
    #[error("the async runtime cannot serve a fabric: {0}")]
    Runtime(&'static str),
    /// The operating system refused a call.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*errno))]
    Os {
        /// The call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// What there was not enough of when a post was refused with [`Error::WouldBlock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// Transmit credit of the endpoint or of one peer.
    TransmitCredit,
    /// Posted-receive entry of the endpoint.
    ReceiveEntry,
    /// Entry in the completion queue.
    CompletionEntry,
    /// Memory to lend: peers have not returned what was lent before.
    LoanMemory,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TransmitCredit => "transmit credit",
            Self::ReceiveEntry => "receive entry",
            Self::CompletionEntry => "completion queue entry",
            Self::LoanMemory => "memory to lend",
        })
    }
}

/// Why a peer refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectReason {
    /// The two sides speak different versions of the protocol.
    Version {
        /// The version the peer speaks.
        theirs: u16,
        /// The version this side speaks.
        ours: u16,
    },
    /// The peer does not serve other users.
    User,
    /// The peer found the hello malformed.
    Malformed,
    /// The peer is out of memory or descriptors, or at its limit of connections.
    Resources,
    /// A reason this version does not know.
    Other(u16),
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { theirs, ours } => {
                write!(f, "it speaks version {theirs}, this side {ours}")
            }
            Self::User => f.write_str("it does not serve other users"),
            Self::Malformed => f.write_str("it found the hello malformed"),
            Self::Resources => f.write_str("it is out of resources"),
            Self::Other(code) => write!(f, "unknown reason {code}"),
        }
    }
}

fn describe_private_data(data: &[u8]) -> String {
    match data.len() {
        0 => "without saying why".into(),
        len => format!("with {len} bytes of private data"),
    }
}

impl Error {
    /// The number of this condition in `fi_errno(3)`: a positive Linux errno below 256, or one of
    /// the fabric's own from 256 on.
    #[doc(alias = "fi_strerror")]
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::WouldBlock(_) => 11,
            Self::NoMatch(_) => 61,
            Self::Busy(_) => 16,
            Self::Closed(_) => 258,
            Self::Canceled => 125,
            Self::Truncated { .. } => 265,
            Self::CounterError { .. } => 259,
            Self::TooLong { .. } => 90,
            Self::OutOfMemory { .. } => 12,
            Self::NoSuchPeer(_) | Self::ConnectionRefused { .. } | Self::Rejected { .. } => 111,
            Self::TimedOut(_) => 110,
            Self::Unreachable { .. } => 113,
            Self::PeerGone(_) => 104,
            Self::OtherUser { .. } => 13,
            Self::Protocol { .. } => 71,
            Self::StaleAddress(_) | Self::UnknownSource | Self::NoSuchHost { .. } => 99,
            Self::AddressInUse(_) => 98,
            Self::BadAddress { .. } | Self::WrongScheme { .. } | Self::Invalid { .. } => 22,
            Self::UnknownProvider { .. } => 19,
            Self::BadFlags { .. } => 260,
            Self::Unbound(Class::CompletionQueue) => 263,
            Self::Unbound(_) => 267,
            Self::Key { .. } => 266,
            Self::WrongDomain(..) => 262,
            Self::NotSupported(_) => 95,
            Self::Runtime(_) => 38,
            Self::Os { errno, .. } => *errno,
        }
    }

    /// Whether this says that the peer is not there, or not any more: [`Error::PeerGone`] while
    /// something was under way, [`Error::NoSuchPeer`] when nobody is there, [`Error::TimedOut`]
    /// when nobody has answered, [`Error::StaleAddress`] of a number that was taken back, or is of
    /// another address vector.
    #[must_use]
    pub fn is_peer_gone(&self) -> bool {
        matches!(
            self,
            Self::PeerGone(_) | Self::NoSuchPeer(_) | Self::TimedOut(_) | Self::StaleAddress(_)
        )
    }

    /// The error of an operating-system call.
    #[must_use]
    pub fn os(call: &'static str, errno: i32) -> Self {
        Self::Os { call, errno }
    }
}

impl From<NoMatch> for Error {
    fn from(reasons: NoMatch) -> Self {
        Self::NoMatch(Box::new(reasons))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_values_match_fi_errno() {
        assert_eq!(Error::WouldBlock(Resource::TransmitCredit).errno(), 11);
        assert_eq!(Error::Truncated { len: 1, lost: 2 }.errno(), 265);
        assert_eq!(Error::os("mmap", 12).errno(), 12);
    }

    #[test]
    fn a_canceled_operation_says_that_its_endpoint_was_closed() {
        let text = Error::Canceled.to_string();
        assert!(
            text.contains("endpoint") && text.contains("closed before"),
            "{text}"
        );
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
}
