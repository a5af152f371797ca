//! Conversion to `std::io::Error`, for functions that return `io::Result`.

use std::io::{self, ErrorKind};

use super::Error;
use crate::completion::Failed;

/// Converts the error for a function that returns [`io::Result`].
///
/// The kind is the nearest one, and [`get_ref`](io::Error::get_ref) downcasts to the [`Error`].
/// That holds for [`Error::Os`] too, so [`raw_os_error`](io::Error::raw_os_error) returns `None`:
/// use [`Error::errno`].
///
/// ```
/// # use fabric_core as fabric_async;
/// use fabric_async::Error;
/// use std::io;
///
/// fn parse(text: &str) -> io::Result<fabric_async::Address> {
///     Ok(text.parse::<fabric_async::Address>()?)
/// }
///
/// let error = parse("tcp://localhost:99999").unwrap_err();
/// assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
/// let source = error.get_ref().and_then(|source| source.downcast_ref::<Error>());
/// assert!(matches!(source, Some(Error::BadAddress { .. })));
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.io_kind(), error)
    }
}

/// Converts the error of a failed operation, and drops the buffer.
impl<B> From<Failed<B>> for io::Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error.into()
    }
}

impl Error {
    /// Returns the nearest kind.
    fn io_kind(&self) -> ErrorKind {
        match self {
            Self::WouldBlock(_) => ErrorKind::WouldBlock,
            Self::Busy(_) | Self::ConcurrentUse => ErrorKind::ResourceBusy,
            Self::Closed(_) | Self::ShutDown => ErrorKind::BrokenPipe,
            Self::Canceled => ErrorKind::ConnectionAborted,
            Self::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            Self::NoSuchPeer(_) | Self::ConnectionRefused { .. } | Self::RejectedByPeer { .. } => {
                ErrorKind::ConnectionRefused
            }
            Self::PeerGone(_) => ErrorKind::ConnectionReset,
            Self::TimedOut(_) => ErrorKind::TimedOut,
            Self::Unreachable { .. } => ErrorKind::HostUnreachable,
            Self::OtherUser { .. } => ErrorKind::PermissionDenied,
            Self::Truncated { .. } | Self::Protocol { .. } => ErrorKind::InvalidData,
            Self::AddressNotLocal(_)
            | Self::StaleAddress(_)
            | Self::UnknownSource
            | Self::SourceNotInserted { .. }
            | Self::NoSuchHost { .. } => ErrorKind::AddrNotAvailable,
            Self::AddressInUse(_) => ErrorKind::AddrInUse,
            Self::UnknownProvider { .. } => ErrorKind::NotFound,
            Self::TooLong { .. }
            | Self::OutOfBounds { .. }
            | Self::BufferTooSmall { .. }
            | Self::TooMany { .. }
            | Self::BadAddress { .. }
            | Self::WrongScheme { .. }
            | Self::Invalid { .. }
            | Self::BadFlags { .. }
            | Self::Unbound(_)
            | Self::Key { .. }
            | Self::WrongParent { .. } => ErrorKind::InvalidInput,
            Self::NoMatch(_)
            | Self::NotSupported(_)
            | Self::NoExtension { .. }
            | Self::Runtime(_) => ErrorKind::Unsupported,
            Self::NotReserved(_) => ErrorKind::StorageFull,
            Self::CounterError { .. } => ErrorKind::Other,
            Self::Os { errno, .. } => io::Error::from_raw_os_error(*errno).kind(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::examples;
    use super::*;

    #[test]
    fn io_error_of_every_variant_keeps_its_source() {
        for (error, _) in examples() {
            let converted = io::Error::from(error.clone());
            assert_eq!(converted.kind(), error.io_kind());
            assert_eq!(converted.to_string(), error.to_string());
            let source = converted.get_ref().and_then(|source| source.downcast_ref());
            assert_eq!(source, Some(&error));
        }
    }

    #[test]
    fn io_error_kind_equals_std_kind_of_the_errno() {
        for (error, _) in examples() {
            let errno = error.errno();
            let of_errno = io::Error::from_raw_os_error(errno).kind();
            // Kinds that std has not stabilized cannot be named, so compare with one of them.
            let uncategorized = io::Error::from_raw_os_error(i32::MAX).kind();
            if errno < 256 && of_errno != uncategorized {
                assert_eq!(error.io_kind(), of_errno, "{error}");
            }
        }
    }

    #[test]
    fn system_call_errors_have_the_kinds_of_std() {
        for (errno, kind) in [
            (1, ErrorKind::PermissionDenied),
            (11, ErrorKind::WouldBlock),
            (12, ErrorKind::OutOfMemory),
            (22, ErrorKind::InvalidInput),
            (32, ErrorKind::BrokenPipe),
            (95, ErrorKind::Unsupported),
            (98, ErrorKind::AddrInUse),
            (99, ErrorKind::AddrNotAvailable),
            (101, ErrorKind::NetworkUnreachable),
            (103, ErrorKind::ConnectionAborted),
            (104, ErrorKind::ConnectionReset),
            (107, ErrorKind::NotConnected),
            (110, ErrorKind::TimedOut),
            (111, ErrorKind::ConnectionRefused),
            (113, ErrorKind::HostUnreachable),
        ] {
            assert_eq!(io::Error::from(Error::os("connect", errno)).kind(), kind);
        }
    }

    #[test]
    fn question_mark_converts_a_failed_operation() {
        fn fails() -> io::Result<()> {
            Err(Failed::new(Error::Canceled, vec![1_u8]))?
        }
        let error = fails().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        let source = error.get_ref().and_then(|source| source.downcast_ref());
        assert_eq!(source, Some(&Error::Canceled));
    }
}
