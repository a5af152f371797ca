//! The bytes of requests and responses.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use fabric_async::{Domain, Error, Loan, LoanedBuf, Result};

/// The bytes at the end of a lent body, behind those of the program: room for metadata.
pub(super) const TRAILER_LEN: usize = 1024;

/// The bytes of a request or response.
///
/// A body that is sent is `Bytes` (or what converts to it), or a [`LentBuf`], whose memory the peer
/// reads in place. A body that was received is a buffer of this process, or memory of the peer; it
/// can be sent again as it is, and then stays in place.
///
/// Another process may write to memory that it has lent, so safe code borrows only bytes of this
/// process.
///
/// | a received body | [`as_slice`](Self::as_slice) | [`as_loaned`](Self::as_loaned) |
/// |---|---|---|
/// | lent by the peer over `shm` | `None` | `Some` |
/// | not lent, or over `tcp` | `Some` | `Some`, but `None` beside metadata |
///
/// [`for_each_chunk`](Self::for_each_chunk) and [`into_bytes`](Self::into_bytes) read any body; the
/// latter copies memory of the peer.
///
/// ```
/// use fabric_rpc::native::Body;
/// let body = Body::from("hello");
/// assert_eq!((body.len(), body.as_slice()), (5, Some(&b"hello"[..])));
/// assert_eq!(body.into_bytes(), "hello");
/// ```
#[derive(Default)]
pub struct Body(pub(super) BodyRepr);

pub(super) enum BodyRepr {
    Bytes(Bytes),
    Lent(LentBuf),
    Received(LoanedBuf),
}

impl Default for BodyRepr {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl Body {
    /// Creates a body without bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            BodyRepr::Bytes(bytes) => bytes.len(),
            BodyRepr::Lent(lent) => lent.len(),
            BodyRepr::Received(buf) => buf.len(),
        }
    }

    /// Returns whether the body has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the body is in memory of the peer, which has lent it.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.as_loaned().is_some_and(LoanedBuf::is_in_place)
    }

    /// Borrows the bytes; `None` if they are in memory of the peer.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.0 {
            BodyRepr::Bytes(bytes) => Some(bytes),
            BodyRepr::Lent(lent) => Some(lent),
            BodyRepr::Received(buf) => buf.as_copied(),
        }
    }

    /// Returns the message of a received body, to read memory of the peer: with
    /// [`for_each_chunk`](LoanedBuf::for_each_chunk), [`read_at`](LoanedBuf::read_at),
    /// [`write_to`](LoanedBuf::write_to), or [`as_slice`](LoanedBuf::as_slice). `None` for a body
    /// that was not received, or that came with metadata and was not lent: the message had the
    /// metadata in front of it.
    #[must_use]
    pub fn as_loaned(&self) -> Option<&LoanedBuf> {
        match &self.0 {
            BodyRepr::Received(buf) => Some(buf),
            BodyRepr::Bytes(_) | BodyRepr::Lent(_) => None,
        }
    }

    /// Calls `act` with the bytes of the body in order, in chunks: for a checksum, a hash, a
    /// parser. Chunks of memory of the peer have at most 4 KiB and were copied to the stack.
    ///
    /// ```
    /// use fabric_rpc::native::Body;
    /// let mut sum = 0;
    /// Body::from(vec![1; 5000]).for_each_chunk(|chunk| sum += chunk.len());
    /// assert_eq!(sum, 5000);
    /// ```
    pub fn for_each_chunk(&self, mut act: impl FnMut(&[u8])) {
        match &self.0 {
            BodyRepr::Bytes(bytes) => act(bytes),
            BodyRepr::Lent(lent) => act(lent),
            BodyRepr::Received(buf) => buf.for_each_chunk(act),
        }
    }

    /// Shares the bytes of a body that is `Bytes`; `None` for any other body.
    #[must_use]
    pub fn try_clone(&self) -> Option<Self> {
        match &self.0 {
            BodyRepr::Bytes(bytes) => Some(Self::from(bytes.clone())),
            BodyRepr::Lent(_) | BodyRepr::Received(_) => None,
        }
    }

    /// Converts the body to `Bytes`. Copies the bytes if they are in lent memory, of the peer or of
    /// this process.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            BodyRepr::Bytes(bytes) => bytes,
            BodyRepr::Lent(lent) => Bytes::copy_from_slice(&lent),
            BodyRepr::Received(buf) => buf.into_bytes(),
        }
    }
}

impl From<LentBuf> for Body {
    fn from(lent: LentBuf) -> Self {
        Self(BodyRepr::Lent(lent))
    }
}

impl From<LoanedBuf> for Body {
    fn from(buf: LoanedBuf) -> Self {
        Self(BodyRepr::Received(buf))
    }
}

macro_rules! impl_from_bytes {
    ($($type:ty),*) => {$(
        impl From<$type> for Body {
            fn from(bytes: $type) -> Self {
                Self(BodyRepr::Bytes(bytes.into()))
            }
        }
    )*};
}
impl_from_bytes!(
    Bytes,
    Vec<u8>,
    Box<[u8]>,
    String,
    &'static [u8],
    &'static str
);

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_in_place() {
            ", in the sender's memory"
        } else {
            ""
        };
        write!(f, "Body({} bytes{place})", self.len())
    }
}

/// Memory that is written in place and lent to the peer as the body of a request or response:
/// [`Client::lend`](super::Client::lend), [`Lender::lend`].
///
/// Over `shm` the peer reads the memory in place; over `tcp` the bytes are copied. Dropped without
/// being sent, the memory is reused.
pub struct LentBuf {
    pub(super) loan: Loan,
    /// The length of the body: without the trailer.
    len: usize,
}

impl LentBuf {
    /// Allocates memory of a domain.
    pub(super) async fn allocate(domain: &Domain, len: usize) -> Result<Self> {
        let Some(whole) = len.checked_add(TRAILER_LEN) else {
            return Err(Error::TooLong {
                what: "lent body",
                len,
                limit: usize::MAX - TRAILER_LEN,
            });
        };
        let loan = domain.loan(whole).await?;
        Ok(Self { loan, len })
    }

    /// Borrows the room for metadata.
    pub(super) fn trailer_mut(&mut self) -> &mut [u8] {
        &mut self.loan[self.len..]
    }
}

impl Deref for LentBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.loan[..self.len]
    }
}

impl DerefMut for LentBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.loan[..self.len]
    }
}

impl fmt::Debug for LentBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentBuf({} bytes)", self.len)
    }
}

/// Allocates memory to be lent to clients, for the responses of a server:
/// [`Server::lender`](super::Server::lender). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lender(pub(super) Domain);

impl Lender {
    /// Allocates memory of `len` bytes, zeroed or as an earlier loan left it. Waits while the
    /// domain has lent as much as its limit allows; see [`Domain::loan`].
    ///
    /// # Errors
    /// Those of [`Domain::loan`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue.
    pub async fn lend(&self, len: usize) -> Result<LentBuf> {
        LentBuf::allocate(&self.0, len).await
    }
}
