//! The `fi_errno(3)` value of each error.

use super::Error;
use crate::tree::Class;

/// Error numbers of libfabric (`fi_errno(3)`); those below 256 are Linux error numbers.
pub(crate) mod fi_errno {
    pub(crate) const EAGAIN: i32 = 11;
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EACCES: i32 = 13;
    pub(crate) const EBUSY: i32 = 16;
    pub(crate) const ENODEV: i32 = 19;
    pub(crate) const ENOSPC: i32 = 28;
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

impl Error {
    /// Returns the number of this condition in `fi_errno(3)`: a positive Linux errno below 256, or
    /// one of libfabric's own numbers from 256 on.
    #[doc(alias = "fi_strerror")]
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::WouldBlock(_) => fi_errno::EAGAIN,
            Self::NoMatch(_) => fi_errno::ENODATA,
            Self::Busy(_) | Self::ConcurrentUse => fi_errno::EBUSY,
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
            | Self::SourceNotInserted { .. }
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
            Self::NotReserved(_) => fi_errno::ENOSPC,
            Self::Runtime(_) | Self::NoExtension { .. } => fi_errno::ENOSYS,
            Self::Os { errno, .. } => *errno,
        }
    }
}
