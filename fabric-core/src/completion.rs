//! What an operation reports when it ends: to its future as [`Done`] or [`Failed`], to a queue as
//! [`Completion`].

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use crate::address::FiAddr;
use crate::atomic::{AtomicType, bits_at};
use crate::buf::{AnyBuf, FlatBuf, IoBuf, PooledBuf};
use crate::error::{Error, Result};
use crate::flags::OpFlags;
use crate::matching::{Envelope, PeerKey};

/// What kind of operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// A message was sent (`FI_SEND`).
    Send,
    /// A message was received (`FI_RECV`).
    Recv,
    /// A connection was made ahead of the first message.
    Connect,
    /// A peer's memory was written (`FI_RMA | FI_WRITE`).
    Write,
    /// A peer's memory was read (`FI_RMA | FI_READ`).
    Read,
    /// A peer's memory was changed atomically (`FI_ATOMIC | FI_WRITE`).
    Atomic,
    /// Likewise, and the value that was there came back (`FI_ATOMIC | FI_READ`).
    FetchAtomic,
    /// A buffer that took several messages comes back: it takes no more of them (an entry of its
    /// own with `FI_MULTI_RECV`).
    MultiRecvRelease,
    /// A peer wrote memory here, and data for a completion with it (`FI_RMA | FI_REMOTE_WRITE |
    /// FI_REMOTE_CQ_DATA`).
    RemoteWrite,
}

impl OpKind {
    /// Whether it reports to the receive queue of an endpoint.
    #[must_use]
    pub fn is_rx(self) -> bool {
        matches!(
            self,
            Self::Recv | Self::MultiRecvRelease | Self::RemoteWrite
        )
    }

    /// Whether its buffer is filled.
    #[doc(hidden)]
    #[must_use]
    pub fn fills_buffer(self) -> bool {
        matches!(self, Self::Recv | Self::Read | Self::FetchAtomic)
    }
}

/// What has come true when an operation ends well (the completion levels of `fi_cq(3)`). Each
/// includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CompletionLevel {
    /// The provider calls it sent: at best the peer's endpoint has it, and nothing on this side is
    /// needed any more (`FI_TRANSMIT_COMPLETE`).
    #[default]
    #[doc(alias = "FI_TRANSMIT_COMPLETE")]
    Transmitted,
    /// A receive has taken the message, or the peer has discarded it (`FI_MATCH_COMPLETE`).
    #[doc(alias = "FI_MATCH_COMPLETE")]
    Matched,
    /// All of the message that the receive has room for is in its buffer, and the receive has
    /// ended; or the peer has discarded the message (`FI_DELIVERY_COMPLETE`). The wire of `tcp`
    /// says less: all of it is at the peer's endpoint.
    #[doc(alias = "FI_DELIVERY_COMPLETE")]
    Delivered,
}

impl CompletionLevel {
    /// The highest level among these flags.
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

    /// Whether it takes a word of the peer's to know.
    #[must_use]
    #[inline]
    pub fn needs_ack(self) -> bool {
        self != Self::Transmitted
    }
}

/// What is known of a finished transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfer {
    /// Bytes moved: sent, or placed in the receive buffer.
    pub len: usize,
    /// The tag, of tagged messages.
    pub tag: Option<u64>,
    /// The sender of a received message, if it is in the address vector (`FI_SOURCE`).
    pub source: Option<FiAddr>,
    /// The remote completion data that came with the message (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
    peer: PeerKey,
    arrival: u64,
}

impl Transfer {
    /// A finished send of `len` bytes.
    #[doc(hidden)]
    #[must_use]
    pub fn sent(len: usize, tag: Option<u64>) -> Self {
        Self {
            len,
            tag,
            ..Self::default()
        }
    }

    /// What a peer did to memory of this side.
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

    /// A received message, of which `placed` bytes are in the buffer.
    #[doc(hidden)]
    #[must_use]
    pub fn received(envelope: &Envelope, placed: usize) -> Self {
        Self {
            len: placed,
            tag: envelope.tag,
            source: envelope.source,
            data: envelope.data,
            peer: envelope.peer,
            arrival: envelope.arrival,
        }
    }

    /// The sender of a received message, as the provider numbers it.
    #[doc(hidden)]
    #[must_use]
    pub fn peer(&self) -> PeerKey {
        self.peer
    }

    /// The message this was, `lost` bytes of it missing, so that a matching engine can take it
    /// back.
    #[doc(hidden)]
    #[must_use]
    pub fn envelope(&self, lost: usize) -> Envelope {
        Envelope {
            peer: self.peer,
            source: self.source,
            tag: self.tag,
            len: self.len + lost,
            data: self.data,
            arrival: self.arrival,
            // The sender was told when it was received.
            ack: None,
        }
    }
}

/// A transfer and how it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was moved.
    pub transfer: Transfer,
    /// Why it failed, if it did. Boxed, because an outcome is moved about often and fails seldom.
    pub error: Option<Box<Error>>,
}

impl Outcome {
    /// Success.
    #[must_use]
    pub fn ok(transfer: Transfer) -> Self {
        Self {
            transfer,
            error: None,
        }
    }

    /// Failure before anything was moved.
    #[must_use]
    pub fn failed(error: Error) -> Self {
        Self {
            transfer: Transfer::default(),
            error: Some(Box::new(error)),
        }
    }

    /// Failure after part of it was moved.
    #[must_use]
    pub fn partial(transfer: Transfer, error: Error) -> Self {
        Self {
            transfer,
            error: Some(Box::new(error)),
        }
    }

    /// A received message; truncated when fewer bytes were placed than it had.
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

/// A successful operation, with its buffer.
///
/// Dereferences to the valid bytes, those sent or the message received, unless the buffer is a
/// vector of buffers.
#[derive(Debug)]
pub struct Done<B> {
    /// The buffer, back from the operation.
    pub buf: B,
    /// What was transferred.
    pub transfer: Transfer,
}

impl<B> Done<B> {
    /// Bytes transferred.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // `is_empty` comes with the slice
    pub fn len(&self) -> usize {
        self.transfer.len
    }

    /// The tag, of tagged messages.
    #[must_use]
    pub fn tag(&self) -> Option<u64> {
        self.transfer.tag
    }

    /// The remote completion data, if some came with the message.
    #[must_use]
    pub fn data(&self) -> Option<u64> {
        self.transfer.data
    }

    /// The sender, as a handle to answer to.
    ///
    /// # Errors
    /// [`Error::UnknownSource`] when the sender is in no address vector of the endpoint.
    #[doc(alias = "fi_cq_readfrom")]
    pub fn source(&self) -> Result<FiAddr> {
        self.transfer.source.ok_or(Error::UnknownSource)
    }

    /// The buffer alone.
    #[must_use]
    pub fn into_buf(self) -> B {
        self.buf
    }
}

impl Done<PooledBuf> {
    /// The message as `Bytes`, without copying.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.buf.into_bytes()
    }
}

impl<B: FlatBuf> Deref for Done<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf.bytes()[..self.transfer.len]
    }
}

/// A failed operation, with its buffer, so that it can be tried again.
///
/// `?` turns it into its [`Error`] and drops the buffer.
pub struct Failed<B> {
    /// Why.
    pub error: Error,
    /// The buffer, back from the operation.
    pub buf: B,
    /// What was transferred nevertheless: a truncated message has its first bytes in the buffer.
    pub transfer: Transfer,
}

impl<B> Failed<B> {
    /// A failure before anything was moved.
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
/// [`UringCompletion::error`] is set).
#[derive(Debug)]
#[non_exhaustive]
#[doc(alias = "fi_cq_tagged_entry")]
#[doc(alias = "fi_cq_readerr")]
pub struct Completion {
    /// The number given with `.context(…)` at the post.
    pub context: u64,
    /// What kind of operation it was.
    pub kind: OpKind,
    /// What was transferred.
    pub transfer: Transfer,
    /// Why it failed, if it did. A failed operation is an entry like any other and does not end the
    /// stream. Boxed, because an entry is moved about often and fails seldom.
    pub error: Option<Box<Error>>,
    buf: AnyBuf,
}

impl Completion {
    /// An entry; for the progress engine.
    #[doc(hidden)]
    #[inline(always)] // it is large
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

    /// The valid bytes of the operation's buffer; nothing of a vector of buffers, which is to be
    /// [taken out](Self::take_buf).
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.buf.bytes();
        &bytes[..self.transfer.len.min(bytes.len())]
    }

    /// The values that a fetching atomic operation brought back; as many as its bytes hold.
    pub fn values<T: AtomicType>(&self) -> impl Iterator<Item = T> {
        let size = T::DATATYPE.size();
        self.bytes()
            .chunks_exact(size)
            .map(move |bytes| T::from_bits(bits_at(bytes, 0, size)))
    }

    /// The operation as its future would have returned it, buffer included.
    ///
    /// # Errors
    /// The failure of the operation.
    ///
    /// # Panics
    /// When the buffer that was posted is not of type `B`.
    pub fn into_result<B: IoBuf>(self) -> Result<Done<B>, Failed<B>> {
        let (transfer, error) = (self.transfer, self.error);
        let buf =
            B::from_any(self.buf).unwrap_or_else(|other| panic!("the posted buffer is {other:?}"));
        match error {
            None => Ok(Done { buf, transfer }),
            Some(error) => Err(Failed {
                error: *error,
                buf,
                transfer,
            }),
        }
    }

    /// Takes the buffer of the operation out, if it is there and of type `B`.
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
