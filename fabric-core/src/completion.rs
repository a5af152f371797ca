//! Results of operations: [`Done`] or [`Failed`] for a future, [`Completion`] for a completion
//! queue.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use crate::address::FiAddr;
use crate::atomic::{AtomicType, bits_at};
use crate::buf::{AnyBuf, FlatBuf, IoBuf, LoanedBuf, PooledBuf};
use crate::error::{Error, Result};
use crate::flags::OpFlags;
use crate::matching::{Envelope, PeerKey};

/// The kind of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// A message was sent (`FI_SEND`).
    Send,
    /// A message was received (`FI_RECV`).
    Recv,
    /// An endpoint was connected to a peer ahead of the first message.
    Connect,
    /// A peer's memory was written (`FI_RMA | FI_WRITE`).
    Write,
    /// A peer's memory was read (`FI_RMA | FI_READ`).
    Read,
    /// A peer's memory was changed atomically (`FI_ATOMIC | FI_WRITE`).
    Atomic,
    /// As [`Atomic`](Self::Atomic), and the old value was returned (`FI_ATOMIC | FI_READ`).
    FetchAtomic,
    /// A multi-receive buffer was released: it takes no more messages (an entry of its own with
    /// `FI_MULTI_RECV`).
    MultiRecvRelease,
    /// A peer wrote local memory with remote completion data (`FI_RMA | FI_REMOTE_WRITE |
    /// FI_REMOTE_CQ_DATA`).
    RemoteWrite,
}

impl OpKind {
    /// Returns whether the operation reports to the endpoint's receive completion queue.
    #[must_use]
    pub fn is_rx(self) -> bool {
        matches!(
            self,
            Self::Recv | Self::MultiRecvRelease | Self::RemoteWrite
        )
    }

    /// Returns whether the operation fills its buffer.
    #[doc(hidden)]
    #[must_use]
    pub fn fills_buffer(self) -> bool {
        matches!(self, Self::Recv | Self::Read | Self::FetchAtomic)
    }
}

/// The progress at which an operation completes (the completion levels of `fi_cq(3)`). Each level
/// includes the levels before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CompletionLevel {
    /// The provider has sent the message and needs nothing of this side any more. The peer's
    /// endpoint may not have the message yet (`FI_TRANSMIT_COMPLETE`).
    #[default]
    #[doc(alias = "FI_TRANSMIT_COMPLETE")]
    Transmitted,
    /// A receive has matched the message, or the peer has discarded it (`FI_MATCH_COMPLETE`).
    #[doc(alias = "FI_MATCH_COMPLETE")]
    Matched,
    /// The receive has completed with all bytes of the message that it has room for, or the peer
    /// has discarded the message (`FI_DELIVERY_COMPLETE`). The protocols of `tcp` guarantee less:
    /// all bytes are in the peer's endpoint.
    #[doc(alias = "FI_DELIVERY_COMPLETE")]
    Delivered,
}

impl CompletionLevel {
    /// Returns the highest level among the flags.
    #[must_use]
    pub fn from_flags(flags: OpFlags) -> Self {
        if flags.contains(OpFlags::DELIVERY_COMPLETE) {
            Self::Delivered
        } else if flags.contains(OpFlags::MATCH_COMPLETE) {
            Self::Matched
        } else {
            Self::Transmitted
        }
    }

    /// Returns whether the level needs an ack from the peer.
    #[must_use]
    #[inline]
    pub fn needs_ack(self) -> bool {
        self != Self::Transmitted
    }
}

/// The result of a finished transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfer {
    /// Bytes sent, or placed in the receive buffer.
    pub len: usize,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// The sender of a received message, if it is in the address vector (`FI_SOURCE`); `None` for
    /// messages of connected endpoints (`FI_EP_MSG`).
    pub source: Option<FiAddr>,
    /// The remote completion data that came with the message (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
    /// The [`PeerKey`] of the sender of a received message. A word, because a type with padding is
    /// moved in more steps.
    peer: u64,
    /// The arrival number of a received message: [`Envelope::arrival`].
    arrival: u64,
}

impl Transfer {
    /// Returns the result of a send of `len` bytes.
    #[doc(hidden)]
    #[must_use]
    pub fn sent(len: usize, tag: Option<u64>) -> Self {
        Self {
            len,
            tag,
            ..Self::default()
        }
    }

    /// Returns the result of a peer's write to local memory.
    #[doc(hidden)]
    #[must_use]
    pub fn written(len: usize, data: Option<u64>, source: Option<FiAddr>) -> Self {
        Self {
            len,
            data,
            source,
            ..Self::default()
        }
    }

    /// Returns the result of a receive that placed `placed` bytes of a message in its buffer.
    #[doc(hidden)]
    #[must_use]
    pub fn received(envelope: &Envelope, placed: usize) -> Self {
        Self {
            len: placed,
            tag: envelope.tag,
            source: envelope.source,
            data: envelope.data,
            peer: envelope.peer.0.into(),
            arrival: envelope.arrival,
        }
    }

    /// Returns the result of the receive of an untagged message without completion data.
    #[doc(hidden)]
    #[must_use]
    #[inline(always)] // on the small-message path
    pub fn received_plain(
        (peer, source): (PeerKey, Option<FiAddr>),
        arrival: u64,
        len: usize,
    ) -> Self {
        Self {
            len,
            source,
            peer: peer.0.into(),
            arrival,
            ..Self::default()
        }
    }

    /// Returns the sender of a received message, as the transport identifies peers.
    #[doc(hidden)]
    #[must_use]
    pub fn peer(&self) -> PeerKey {
        PeerKey(self.peer as u32)
    }

    /// Returns the envelope of the received message, of which `lost` bytes were truncated, so that
    /// a matcher can requeue the message.
    #[doc(hidden)]
    #[must_use]
    pub fn envelope(&self, lost: usize) -> Envelope {
        Envelope {
            peer: self.peer(),
            source: self.source,
            tag: self.tag,
            len: self.len + lost,
            data: self.data,
            arrival: self.arrival,
            // The ack was sent when the message was received.
            ack: None,
        }
    }
}

/// A transfer and its error, if it failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was transferred.
    pub transfer: Transfer,
    /// The error, if the operation failed. Boxed, because outcomes are moved often and fail seldom.
    pub error: Option<Box<Error>>,
}

impl Outcome {
    /// Creates a success.
    #[must_use]
    pub fn ok(transfer: Transfer) -> Self {
        Self {
            transfer,
            error: None,
        }
    }

    /// Creates a failure before any byte was moved.
    #[must_use]
    pub fn failed(error: Error) -> Self {
        Self::partial(Transfer::default(), error)
    }

    /// Creates a failure after some bytes were moved.
    #[must_use]
    pub fn partial(transfer: Transfer, error: Error) -> Self {
        Self {
            transfer,
            error: Some(Box::new(error)),
        }
    }

    /// Creates the outcome of a receive; truncated when fewer bytes were placed than the message
    /// has.
    #[inline]
    #[must_use]
    pub fn received(envelope: &Envelope, placed: usize) -> Self {
        let lost = envelope.len - placed;
        let error = (lost > 0).then(|| Box::new(Error::Truncated { len: placed, lost }));
        Self {
            transfer: Transfer::received(envelope, placed),
            error,
        }
    }
}

#[cold]
fn panic_of_other_type(expected: &str, buf: &AnyBuf) -> ! {
    panic!("into_result::<{expected}>: the posted buffer is of another type, {buf:?}")
}

/// A successful operation, with its buffer.
///
/// Dereferences to the valid bytes: the bytes sent, or the message received; none for a sent
/// [`Loan`](crate::buf::Loan), which the peer has. A vector of buffers has no contiguous bytes and
/// does not dereference.
#[derive(Debug)]
pub struct Done<B> {
    /// The buffer, returned by the operation.
    pub buf: B,
    /// What was transferred.
    pub transfer: Transfer,
}

impl<B> Done<B> {
    /// Returns the number of bytes transferred.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // `is_empty` comes with the slice
    pub fn len(&self) -> usize {
        self.transfer.len
    }

    /// Returns the tag of a tagged message.
    #[must_use]
    pub fn tag(&self) -> Option<u64> {
        self.transfer.tag
    }

    /// Returns the remote completion data of the message, if it has any (`FI_REMOTE_CQ_DATA`).
    #[must_use]
    pub fn data(&self) -> Option<u64> {
        self.transfer.data
    }

    /// Returns the sender's address handle, to answer to (`FI_SOURCE`).
    ///
    /// # Errors
    /// [`Error::UnknownSource`] when the sender is in no address vector of the endpoint, and for
    /// messages of connected endpoints (`FI_EP_MSG`), which have no source.
    #[doc(alias = "fi_cq_readfrom")]
    pub fn source(&self) -> Result<FiAddr> {
        self.transfer.source.ok_or(Error::UnknownSource)
    }

    /// Returns the buffer alone.
    #[must_use]
    pub fn into_buf(self) -> B {
        self.buf
    }
}

impl Done<PooledBuf> {
    /// Returns the message as `Bytes`, without copying.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.buf.into_bytes()
    }
}

impl<B: FlatBuf> Deref for Done<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.buf.bytes();
        &bytes[..self.transfer.len.min(bytes.len())]
    }
}

/// Dereferences to the received message, whose bytes are [copied out](LoanedBuf::read_at).
impl Deref for Done<LoanedBuf> {
    type Target = LoanedBuf;

    fn deref(&self) -> &LoanedBuf {
        &self.buf
    }
}

/// A failed operation, with its buffer, so that the operation can be retried.
///
/// `?` converts a `Failed` into its [`Error`] or a [`std::io::Error`], and drops the buffer.
pub struct Failed<B> {
    /// The error.
    pub error: Error,
    /// The buffer, returned by the operation.
    pub buf: B,
    /// The bytes transferred nevertheless: the buffer of a truncated receive holds the first bytes
    /// of the message.
    pub transfer: Transfer,
}

impl<B> Failed<B> {
    /// Creates a failure before any byte was moved.
    #[must_use]
    pub fn new(error: Error, buf: B) -> Self {
        Self {
            error,
            buf,
            transfer: Transfer::default(),
        }
    }
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Failed").field(&self.error).finish()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for Failed<B> {}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

/// An entry of a completion queue (`fi_cq_tagged_entry`, and `fi_cq_err_entry` when
/// [`Completion::error`] is set).
#[derive(Debug)]
#[non_exhaustive]
#[doc(alias = "fi_cq_tagged_entry")]
#[doc(alias = "fi_cq_readerr")]
pub struct Completion {
    /// The context given with `.context(…)` at the post (`op_context`).
    pub context: u64,
    /// The kind of the operation.
    pub kind: OpKind,
    /// The result of the transfer.
    pub transfer: Transfer,
    /// The error, if the operation failed. A failed operation is an entry like any other and does
    /// not end the stream. Boxed, because entries are moved often and fail seldom.
    pub error: Option<Box<Error>>,
    /// The buffer of the operation, until [`take_buf`](Self::take_buf) takes it.
    buf: AnyBuf,
}

impl Completion {
    /// Creates an entry; for the progress engine.
    #[doc(hidden)]
    #[inline(always)] // on the small-message path
    #[must_use]
    pub fn new(context: u64, kind: OpKind, outcome: Outcome, buf: AnyBuf) -> Self {
        Self {
            context,
            kind,
            transfer: outcome.transfer,
            error: outcome.error,
            buf,
        }
    }

    /// Returns the valid bytes of the operation's buffer; none for a vector of buffers, which
    /// [`take_buf`](Self::take_buf) returns.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.buf.bytes();
        &bytes[..self.transfer.len.min(bytes.len())]
    }

    /// Iterates over the values that a fetching atomic operation returned; as many as the buffer
    /// holds.
    pub fn values<T: AtomicType>(&self) -> impl Iterator<Item = T> {
        let size = T::DATATYPE.size();
        self.bytes()
            .chunks_exact(size)
            .map(move |bytes| T::from_bits(bits_at(bytes, 0, size)))
    }

    /// Copies received bytes to the device if the buffer is memory of a device; without a lock. If
    /// the copy fails, so has the operation.
    #[doc(hidden)]
    pub fn unstage(&mut self) {
        if let AnyBuf::Device(buf) = &mut self.buf
            && let Err(error) = buf.unstage(self.transfer.len)
        {
            self.error.get_or_insert_with(|| Box::new(error));
        }
    }

    /// Converts the entry into the result that the operation's future would have returned, with the
    /// buffer.
    ///
    /// # Errors
    /// The failure of the operation.
    ///
    /// # Panics
    /// When the posted buffer is not of type `B`.
    #[inline]
    pub fn into_result<B: IoBuf>(self) -> Result<Done<B>, Failed<B>> {
        let (transfer, error) = (self.transfer, self.error);
        let buf = match B::from_any(self.buf) {
            Ok(buf) => buf,
            Err(other) => panic_of_other_type(std::any::type_name::<B>(), &other),
        };
        match error {
            None => Ok(Done { buf, transfer }),
            Some(error) => Err(Failed {
                error: *error,
                buf,
                transfer,
            }),
        }
    }

    /// Takes the buffer out of the entry, if it is there and of type `B`.
    pub fn take_buf<B: IoBuf>(&mut self) -> Option<B> {
        match B::from_any(std::mem::take(&mut self.buf)) {
            Ok(buf) => Some(buf),
            Err(other) => {
                self.buf = other;
                None
            }
        }
    }
}
