//! Requests and responses.

use std::time::Duration;

use bytes::Bytes;
use fabric_async::FiAddr;
use tokio::time::Instant;

use super::Body;

/// Key-value pairs of a request, response or status: a small list, in order. Keys may repeat.
///
/// Encoded, the list has at most 16 KiB, and with a lent body at most 1 KiB; a longer one fails
/// with [`Code::TooLarge`](super::Code::TooLarge). A body that is not lent is copied once if it has
/// metadata.
///
/// ```
/// use fabric_rpc::native::Metadata;
/// let mut metadata = Metadata::new();
/// metadata.push("trace", "4bf92f35");
/// assert_eq!(metadata.get("trace").unwrap(), "4bf92f35");
/// assert!(metadata.get("user").is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(Vec<(Bytes, Bytes)>);

impl Metadata {
    /// Creates an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a pair.
    pub fn push(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.0.push((key.into(), value.into()));
    }

    /// Returns the value of the first pair with this key.
    #[must_use]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<&Bytes> {
        let key = key.as_ref();
        let (_, value) = self.0.iter().find(|(other, _)| other == key)?;
        Some(value)
    }

    /// Returns the pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns the number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A request: a method, metadata and a body.
///
/// ```
/// use std::time::Duration;
/// use fabric_rpc::native::Request;
/// let request = Request::new(1, "body").metadata("user", "ada").timeout(Duration::from_secs(1));
/// assert_eq!((request.method, request.body.len(), request.metadata.len()), (1, 4, 1));
/// ```
#[derive(Debug, Default)]
pub struct Request {
    /// The id of the method.
    pub method: u32,
    /// What belongs to the call and not to its argument.
    pub metadata: Metadata,
    /// The argument.
    pub body: Body,
    pub(super) time: TimeLimit,
    pub(super) source: Option<FiAddr>,
}

/// How long a call may take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum TimeLimit {
    /// As long as the client's default allows.
    #[default]
    Default,
    /// This long from the call on.
    Timeout(Duration),
    /// Until then: of a request at the server, or whose call has begun.
    Deadline(Instant),
}

impl Request {
    /// Creates a request without metadata.
    pub fn new(method: u32, body: impl Into<Body>) -> Self {
        Self {
            method,
            body: body.into(),
            ..Self::default()
        }
    }

    /// Appends a pair to the metadata.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.metadata.push(key, value);
        self
    }

    /// Sets how long the call may take, instead of the client's default. When the time is over, the
    /// call ends with [`Code::DeadlineExceeded`](super::Code::DeadlineExceeded). The time includes
    /// waits for a server and, in [`Client::call`](super::Client::call), for a credit.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.time = TimeLimit::Timeout(timeout);
        self
    }

    /// Copies the request for a retry, without copying the bytes of its body. `None` if the body is
    /// lent memory, or was received. The copy of a request that was not called yet has the same
    /// [timeout](Self::timeout), which begins anew with its call.
    #[must_use]
    pub fn try_clone(&self) -> Option<Self> {
        Some(Self {
            method: self.method,
            metadata: self.metadata.clone(),
            body: self.body.try_clone()?,
            time: self.time,
            source: self.source,
        })
    }

    /// Returns when the time of the call is over, at the server; `None` if the time is not limited.
    /// The server drops the handler then.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.time {
            TimeLimit::Deadline(deadline) => Some(deadline),
            TimeLimit::Default | TimeLimit::Timeout(_) => None,
        }
    }

    /// Returns the client's handle in the address vector of the server; `None` at the client.
    #[must_use]
    pub fn source(&self) -> Option<FiAddr> {
        self.source
    }

    /// Replaces a timeout, or the default, by the deadline of a call that begins now. Returns the
    /// deadline.
    pub(super) fn begin(&mut self, default: Option<Duration>) -> Option<Instant> {
        let timeout = match self.time {
            TimeLimit::Deadline(deadline) => return Some(deadline),
            TimeLimit::Timeout(timeout) => timeout,
            TimeLimit::Default => default?,
        };
        // A time beyond the range of the clock is no limit.
        let deadline = Instant::now().checked_add(timeout)?;
        self.time = TimeLimit::Deadline(deadline);
        Some(deadline)
    }
}

/// The answer of a call that succeeded: metadata and a body.
///
/// ```
/// use fabric_rpc::native::Response;
/// let mut response = Response::new("body");
/// response.metadata.push("cached", "yes");
/// assert_eq!(response.body.into_bytes(), "body");
/// ```
#[derive(Debug, Default)]
pub struct Response {
    /// What belongs to the call and not to its result.
    pub metadata: Metadata,
    /// The result.
    pub body: Body,
}

impl Response {
    /// Creates a response without metadata.
    pub fn new(body: impl Into<Body>) -> Self {
        Self {
            metadata: Metadata::new(),
            body: body.into(),
        }
    }
}
