//! Why a call has no answer, and the number of each reason on the wire.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;

use fabric_async::Error;

use super::Metadata;

/// The reason of a failed call.
///
/// | code | reported by | was the handler started? |
/// |---|---|---|
/// | [`Unavailable`](Self::Unavailable) | the client, when the request was not sent; the server, while it shuts down: a retry succeeds when another server has the name | no |
/// | | the client, when the server died or closed its endpoint after the request was sent | unknown |
/// | [`DeadlineExceeded`](Self::DeadlineExceeded) | the client, also of a call that waits for a server; the server, which drops the handler | unknown |
/// | [`Cancelled`](Self::Cancelled) | the server, of a call that the client has dropped | unknown |
/// | [`ResourceExhausted`](Self::ResourceExhausted) | the server, beyond a limit of requests in flight; the client, for a `call` without a credit | no |
/// | [`TooLarge`](Self::TooLarge) | the side that has the limit | only if the response is too large |
/// | [`Malformed`](Self::Malformed) | the side that received the message | only if the response is malformed |
/// | [`Internal`](Self::Internal) | the server, when a handler panicked or its error is no [`Status`]; either side, when the operating system lacks a resource; the client, when its address or options make every attempt to connect fail | unknown |
/// | [`Unimplemented`](Self::Unimplemented), [`Application`](Self::Application) | the handler | yes |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// There is no server, or it ended before it has answered.
    Unavailable,
    /// The time of the call is over.
    DeadlineExceeded,
    /// The client has dropped the call.
    Cancelled,
    /// The server has no such method. For services: this crate does not look at methods.
    Unimplemented,
    /// A limit of requests in flight is reached.
    ResourceExhausted,
    /// The request or the response is longer than its receiver allows.
    TooLarge,
    /// The request or the response does not follow the protocol.
    Malformed,
    /// The server or the client has failed.
    Internal,
    /// A reason of the program.
    Application(u32),
}

/// A failed call: a [`Code`], a message for people, metadata, and whether a retry is safe.
///
/// A handler may fail with any code. Only the client and the server itself create a status that is
/// safe to retry.
///
/// ```
/// use fabric_rpc::native::{Code, Status};
/// let status = Status::new(Code::Application(7), "no such account");
/// assert_eq!(status.to_string(), "application error 7: no such account");
/// assert!(!status.is_retry_safe());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: Cow<'static, str>,
    is_retry_safe: bool,
    /// What the handler adds.
    pub metadata: Metadata,
}

impl Status {
    /// Creates a status without metadata.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            is_retry_safe: false,
            metadata: Metadata::new(),
        }
    }

    /// Creates the status of a request whose handler was certainly not started.
    pub(super) fn not_started(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            is_retry_safe: true,
            ..Self::new(code, message)
        }
    }

    /// Marks the status as that of a handler, which may have passed on the status of another call.
    pub(super) fn of_handler(self) -> Self {
        Self {
            is_retry_safe: false,
            ..self
        }
    }

    /// Returns the code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether the server has certainly not started the handler, and a later attempt may
    /// succeed: a retry executes the request at most once. True only for [`Code::Unavailable`] and
    /// [`Code::ResourceExhausted`]. False tells nothing: the time of a call may be over before its
    /// request was sent.
    #[must_use]
    pub fn is_retry_safe(&self) -> bool {
        self.is_retry_safe
    }

    pub(super) fn deadline() -> Self {
        Self::new(Code::DeadlineExceeded, "the time of the call is over")
    }

    pub(super) fn too_large(what: &str, len: usize, limit: usize) -> Self {
        let message = format!("the {what} has {len} bytes, the limit is {limit}");
        Self::new(Code::TooLarge, message)
    }

    /// Returns the status of a request that the fabric refused to send.
    pub(super) fn from_refused_send(what: &str, error: &Error) -> Self {
        match error {
            Error::TooLong { len, limit, .. } => Self::too_large(what, *len, *limit),
            error if error.is_peer_unavailable() => Self {
                is_retry_safe: !matches!(error, Error::PeerGone(_)),
                ..Self::new(
                    Code::Unavailable,
                    format!("the {what} was not sent: {error}"),
                )
            },
            error => Self::new(Code::Internal, format!("the {what} was not sent: {error}")),
        }
    }
}

/// The bit of the completion data of a status that is safe to retry.
const RETRY_SAFE: u64 = 1;

impl Status {
    /// Returns the completion data of an answer with this status, which are not 0.
    pub(super) fn to_wire(&self) -> u64 {
        let retry_safe = if self.is_retry_safe { RETRY_SAFE } else { 0 };
        self.code.to_wire() | retry_safe
    }

    /// Returns the status of an answer with these completion data, which are not 0.
    pub(super) fn from_wire(number: u64, message: String, metadata: Metadata) -> Self {
        let with_flag = Code::from_wire(number).map(|code| (code, false));
        let (code, is_retry_safe) = with_flag
            .or_else(|| Some((Code::from_wire(number ^ RETRY_SAFE)?, true)))
            .unwrap_or((Code::Malformed, false));
        Self {
            code,
            message: message.into(),
            is_retry_safe,
            metadata,
        }
    }
}

impl Code {
    /// Returns the code as a number of the wire: the kind in the upper 32 bits, the value of the
    /// program in the lower 32. 0 is the success.
    fn to_wire(self) -> u64 {
        let kind = match self {
            Self::Unavailable => 1,
            Self::DeadlineExceeded => 2,
            Self::Cancelled => 3,
            Self::Unimplemented => 4,
            Self::ResourceExhausted => 5,
            Self::TooLarge => 6,
            Self::Malformed => 7,
            Self::Internal => 8,
            Self::Application(value) => return (9 << 32) | u64::from(value),
        };
        kind << 32
    }

    /// Returns the code of a number that is not 0; `None` for an unknown number.
    fn from_wire(number: u64) -> Option<Self> {
        Some(match (number >> 32, number as u32) {
            (1, 0) => Self::Unavailable,
            (2, 0) => Self::DeadlineExceeded,
            (3, 0) => Self::Cancelled,
            (4, 0) => Self::Unimplemented,
            (5, 0) => Self::ResourceExhausted,
            (6, 0) => Self::TooLarge,
            (7, 0) => Self::Malformed,
            (8, 0) => Self::Internal,
            (9, value) => Self::Application(value),
            _ => return None,
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "unavailable",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::Cancelled => "cancelled",
            Self::Unimplemented => "unimplemented",
            Self::ResourceExhausted => "resource exhausted",
            Self::TooLarge => "too large",
            Self::Malformed => "malformed",
            Self::Internal => "internal error",
            Self::Application(value) => return write!(f, "application error {value}"),
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if self.is_retry_safe {
            f.write_str(", safe to retry")?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Status {}

impl From<Infallible> for Status {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Returns [`Code::Internal`] with the text of the error: for handlers that use the fabric, such as
/// [`Lender::lend`](super::Lender::lend).
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(Code::Internal, error.to_string())
    }
}

/// Returns the status in the box, or else [`Code::Internal`] with the text of the error: for
/// services in layers of tower.
impl From<Box<dyn std::error::Error + Send + Sync>> for Status {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        match error.downcast::<Self>() {
            Ok(status) => *status,
            Err(error) => Self::new(Code::Internal, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_their_numbers() {
        let codes = [
            Code::Unavailable,
            Code::DeadlineExceeded,
            Code::Cancelled,
            Code::Unimplemented,
            Code::ResourceExhausted,
            Code::TooLarge,
            Code::Malformed,
            Code::Internal,
            Code::Application(0),
        ];
        for (code, kind) in codes.into_iter().zip(1..) {
            assert_eq!(code.to_wire(), kind << 32);
            assert_eq!(Code::from_wire(kind << 32), Some(code));
        }
        let largest = Code::Application(u32::MAX);
        assert_eq!(Code::from_wire(largest.to_wire()), Some(largest));
        for unknown in [1, (1 << 32) | 2, 10 << 32, u64::MAX] {
            assert_eq!(Code::from_wire(unknown), None);
        }
    }

    #[test]
    fn statuses_keep_whether_a_retry_is_safe() {
        let decode = |number| Status::from_wire(number, String::new(), Metadata::new());
        let refused = Status::not_started(Code::ResourceExhausted, "");
        assert_eq!(decode(refused.to_wire()), refused);
        for code in [
            Code::Unavailable,
            Code::Application(1),
            Code::Application(2),
        ] {
            let status = Status::new(code, "");
            assert_eq!(decode(status.to_wire()), status);
        }
        assert!(!refused.of_handler().is_retry_safe());
        for unknown in [1, (1 << 32) | 2, 10 << 32, u64::MAX] {
            assert_eq!(decode(unknown).code(), Code::Malformed);
        }
    }
}
