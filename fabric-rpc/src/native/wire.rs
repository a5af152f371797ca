//! The messages of calls.
//!
//! Each message is a tagged message of the fabric with completion data. The tag has the kind of the
//! message, flags, and the id of the call, which the client chose. The completion data of a request
//! are its method and the time that the call has left; those of a response are its code. The
//! payload is the body, unless a flag tells that metadata precede or follow it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use fabric_async::{Done, Endpoint, Error, Failed, FiAddr, Loan, LoanedBuf, Operation, Permit};
use tokio::task::unconstrained;
use tokio::time::Instant;

use super::body::{BodyRepr, TRAILER_LEN};
use super::{Body, Code, Metadata, Status};

/// The most bytes of encoded metadata and status message.
pub(super) const MAX_PREFIX_LEN: usize = 16 << 10;

/// Ids of calls have this many bits.
pub(super) const ID_BITS: u32 = 56;

/// The payload begins with the length of the metadata and the metadata.
const HAS_PREFIX: u8 = 1;
/// The payload ends with a trailer of [`TRAILER_LEN`] bytes.
const HAS_TRAILER: u8 = 2;
/// The trailer has metadata.
const TRAILER_IS_USED: u8 = 4;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Request = 1,
    Response = 2,
    /// The client has given up the call with this id. The payload is empty.
    Cancel = 3,
}

/// The parts of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallTag {
    pub(super) kind: MessageKind,
    pub(super) flags: u8,
    pub(super) id: u64,
}

impl CallTag {
    pub(super) fn to_bits(self) -> u64 {
        ((self.kind as u64) << 60) | (u64::from(self.flags) << ID_BITS) | self.id
    }

    /// Parses a tag; `None` if it is not one of this protocol.
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        let kind = match bits >> 60 {
            1 => MessageKind::Request,
            2 => MessageKind::Response,
            3 => MessageKind::Cancel,
            _ => return None,
        };
        let flags = (bits >> ID_BITS) as u8 & 0xf;
        let has = |flag| flags & flag != 0;
        let is_known = flags <= 7 && (!has(TRAILER_IS_USED) || has(HAS_TRAILER));
        let id = bits & ((1 << ID_BITS) - 1);
        (is_known && !(has(HAS_PREFIX) && has(HAS_TRAILER))).then_some(Self { kind, flags, id })
    }
}

/// Returns the completion data of a request. Times above 49 days are no limit.
pub(super) fn request_data(method: u32, deadline: Option<Instant>) -> u64 {
    let timeout = deadline.map_or(0, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        let millis = left.as_nanos().div_ceil(1_000_000).max(1);
        u32::try_from(millis).unwrap_or(0)
    });
    (u64::from(method) << 32) | u64::from(timeout)
}

/// A message ready to be sent.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    pub(super) flags: u8,
    pub(super) payload: OutgoingPayload,
}

#[derive(Debug)]
pub(super) enum OutgoingPayload {
    Bytes(Bytes),
    Loan(Loan),
    Received(LoanedBuf),
}

/// Starts a send of a payload of any type. A failure has the payload.
macro_rules! start_payload {
    ($payload:expr, |$buf:ident| $request:expr) => {
        match $payload {
            OutgoingPayload::Bytes($buf) => match $request.start() {
                Ok(operation) => Ok(StartedSend::Bytes(operation)),
                Err(failed) => Err((failed.error, OutgoingPayload::Bytes(failed.buf))),
            },
            OutgoingPayload::Loan($buf) => match $request.start() {
                Ok(operation) => Ok(StartedSend::Loan(operation)),
                Err(failed) => Err((failed.error, OutgoingPayload::Loan(failed.buf))),
            },
            OutgoingPayload::Received($buf) => match $request.start() {
                Ok(operation) => Ok(StartedSend::Received(operation)),
                Err(failed) => Err((failed.error, OutgoingPayload::Received(failed.buf))),
            },
        }
    };
}

impl OutgoingMessage {
    /// Encodes a body with metadata and, for a status, its message.
    ///
    /// # Errors
    /// [`Code::TooLarge`] for metadata beyond the limit.
    pub(super) fn new(message: &str, metadata: &Metadata, mut body: Body) -> Result<Self, Status> {
        if let BodyRepr::Lent(lent) = &mut body.0 {
            // The peer can read all of the memory, which may have the metadata of an earlier loan.
            lent.trailer_mut().fill(0);
        }
        let prefix_len = encoded_len(message, metadata);
        if prefix_len == 0 {
            let (flags, payload) = match body.0 {
                BodyRepr::Bytes(bytes) => (0, OutgoingPayload::Bytes(bytes)),
                BodyRepr::Received(buf) => (0, OutgoingPayload::Received(buf)),
                BodyRepr::Lent(lent) => (HAS_TRAILER, OutgoingPayload::Loan(lent.loan)),
            };
            return Ok(Self { flags, payload });
        }
        let limit = match &body.0 {
            BodyRepr::Lent(_) => TRAILER_LEN,
            _ => MAX_PREFIX_LEN,
        };
        if prefix_len > limit {
            return Err(Status::too_large("encoded metadata", prefix_len, limit));
        }
        if let BodyRepr::Lent(mut lent) = body.0 {
            encode(message, metadata, &mut lent.trailer_mut());
            return Ok(Self {
                flags: HAS_TRAILER | TRAILER_IS_USED,
                payload: OutgoingPayload::Loan(lent.loan),
            });
        }
        let body = body.into_bytes();
        let mut payload = BytesMut::with_capacity(4 + prefix_len + body.len());
        payload.put_u32_le(prefix_len as u32);
        encode(message, metadata, &mut payload);
        payload.extend_from_slice(&body);
        Ok(Self {
            flags: HAS_PREFIX,
            payload: OutgoingPayload::Bytes(payload.freeze()),
        })
    }

    /// Creates a message without a payload.
    pub(super) fn empty() -> Self {
        Self {
            flags: 0,
            payload: OutgoingPayload::Bytes(Bytes::new()),
        }
    }

    /// Encodes a status. Its metadata, and then its message, are left out if they are too long.
    pub(super) fn status(status: &Status) -> Self {
        Self::new(status.message(), &status.metadata, Body::empty())
            .or_else(|_| Self::new(status.message(), &Metadata::new(), Body::empty()))
            .unwrap_or(Self::empty())
    }

    /// Returns the length of the payload.
    pub(super) fn len(&self) -> usize {
        match &self.payload {
            OutgoingPayload::Bytes(bytes) => bytes.len(),
            OutgoingPayload::Loan(loan) => loan.len(),
            OutgoingPayload::Received(buf) => buf.len(),
        }
    }

    /// Returns how many bytes of the payload are in memory of this process that was not lent.
    pub(super) fn bytes_in_memory(&self) -> usize {
        match &self.payload {
            OutgoingPayload::Bytes(bytes) => bytes.len(),
            OutgoingPayload::Loan(_) => 0,
            OutgoingPayload::Received(buf) if buf.is_in_place() => 0,
            OutgoingPayload::Received(buf) => buf.len(),
        }
    }

    /// Starts the send, with this transmit credit if one was reserved for the peer. The send goes
    /// on if the returned value is dropped. On failure the message is returned, so that it can be
    /// sent again.
    pub(super) fn start(
        self,
        ep: &Endpoint,
        (peer, permit): (FiAddr, Option<Permit>),
        (kind, id): (MessageKind, u64),
        data: u64,
    ) -> Result<StartedSend, (Error, Self)> {
        let flags = self.flags;
        let tag = CallTag { kind, flags, id }.to_bits();
        let started = match permit {
            None => start_payload!(self.payload, |buf| ep.send(peer, buf).tag(tag).data(data)),
            Some(permit) => {
                start_payload!(self.payload, |buf| permit.send(ep, buf).tag(tag).data(data))
            }
        };
        started.map_err(|(error, payload)| (error, Self { flags, payload }))
    }
}

/// A send that was started.
pub(super) enum StartedSend {
    Bytes(Operation<Bytes>),
    Loan(Operation<Loan>),
    Received(Operation<LoanedBuf>),
}

/// A send that waits for room in the ring or the socket, and has a transmit credit. Resolves when
/// the send has ended.
pub(super) type PostedSend = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

impl StartedSend {
    /// Returns the send if it has not ended.
    pub(super) fn into_posted(self) -> Option<PostedSend> {
        fn posted<B>(mut operation: Operation<B>) -> Option<PostedSend>
        where
            Operation<B>: Future<Output = Result<Done<B>, Failed<B>>> + Unpin + Send + 'static,
        {
            let mut cx = Context::from_waker(Waker::noop());
            // Without cooperative budget a send that has ended would be pending.
            let polled = pin!(unconstrained(&mut operation)).poll(&mut cx);
            polled.is_pending().then(|| {
                let sending =
                    async move { operation.await.map(drop).map_err(|failed| failed.error) };
                Box::pin(sending) as PostedSend
            })
        }
        match self {
            Self::Bytes(operation) => posted(operation),
            Self::Loan(operation) => posted(operation),
            Self::Received(operation) => posted(operation),
        }
    }
}

/// A received message without its envelope.
#[derive(Debug)]
pub(super) struct IncomingMessage {
    /// The message of a status; empty in requests and successful responses.
    pub(super) message: String,
    pub(super) metadata: Metadata,
    pub(super) body: Body,
}

impl IncomingMessage {
    /// Decodes a payload.
    ///
    /// # Errors
    /// [`Code::Malformed`] if metadata are not as encoded.
    pub(super) fn decode(flags: u8, mut buf: LoanedBuf) -> Result<Self, Status> {
        if flags == 0 {
            return Ok(Self {
                message: String::new(),
                metadata: Metadata::new(),
                body: Body::from(buf),
            });
        }
        let malformed = || Status::new(Code::Malformed, "malformed metadata");
        if flags & HAS_TRAILER != 0 {
            let body_len = buf.len().checked_sub(TRAILER_LEN).ok_or_else(malformed)?;
            let (mut message, mut metadata) = (String::new(), Metadata::new());
            if flags & TRAILER_IS_USED != 0 {
                let mut trailer = vec![0; TRAILER_LEN];
                buf.read_at(body_len, &mut trailer);
                (message, metadata) = decode(&mut Bytes::from(trailer)).ok_or_else(malformed)?;
            }
            buf.truncate(body_len);
            return Ok(Self {
                message,
                metadata,
                body: Body::from(buf),
            });
        }
        let mut bytes = buf.into_bytes();
        let prefix_len = bytes.try_get_u32_le().map_err(|_| malformed())? as usize;
        if prefix_len > MAX_PREFIX_LEN || prefix_len > bytes.len() {
            return Err(malformed());
        }
        let mut prefix = bytes.split_to(prefix_len);
        let (message, metadata) = decode(&mut prefix).ok_or_else(malformed)?;
        if !prefix.is_empty() {
            return Err(malformed());
        }
        Ok(Self {
            message,
            metadata,
            body: Body::from(bytes),
        })
    }
}

/// Returns the length of encoded metadata; 0 if there are none.
fn encoded_len(message: &str, metadata: &Metadata) -> usize {
    if message.is_empty() && metadata.is_empty() {
        return 0;
    }
    let pairs = metadata.iter();
    let pairs = pairs.fold(0, |len: usize, (key, value)| {
        len.saturating_add(8)
            .saturating_add(key.len())
            .saturating_add(value.len())
    });
    pairs.saturating_add(6 + message.len())
}

/// Encodes: the length of the message, the message, the number of pairs; for each pair the length
/// of the key, the length of the value, the key, the value.
fn encode(message: &str, metadata: &Metadata, out: &mut impl BufMut) {
    out.put_u32_le(message.len() as u32);
    out.put_slice(message.as_bytes());
    out.put_u16_le(metadata.len() as u16); // each pair has 8 bytes of at most MAX_PREFIX_LEN
    for (key, value) in metadata.iter() {
        out.put_u32_le(key.len() as u32);
        out.put_u32_le(value.len() as u32);
        out.put_slice(key);
        out.put_slice(value);
    }
}

/// Decodes a message and metadata; `None` if they are malformed.
fn decode(bytes: &mut Bytes) -> Option<(String, Metadata)> {
    fn take(bytes: &mut Bytes, len: u32) -> Option<Bytes> {
        let len = len as usize;
        (len <= bytes.len()).then(|| bytes.split_to(len))
    }
    let len = bytes.try_get_u32_le().ok()?;
    let message = String::from_utf8(take(bytes, len)?.into()).ok()?;
    let mut metadata = Metadata::new();
    for _ in 0..bytes.try_get_u16_le().ok()? {
        let key = bytes.try_get_u32_le().ok()?;
        let value = bytes.try_get_u32_le().ok()?;
        metadata.push(take(bytes, key)?, take(bytes, value)?);
    }
    Some((message, metadata))
}

#[cfg(test)]
mod tests {
    use super::super::LentBuf;
    use super::*;

    #[test]
    fn tags_keep_their_parts() {
        for kind in [
            MessageKind::Request,
            MessageKind::Response,
            MessageKind::Cancel,
        ] {
            for flags in [0, HAS_PREFIX, HAS_TRAILER, HAS_TRAILER | TRAILER_IS_USED] {
                for id in [0, 1, (1 << ID_BITS) - 1] {
                    let tag = CallTag { kind, flags, id };
                    assert_eq!(CallTag::from_bits(tag.to_bits()), Some(tag));
                }
            }
        }
    }

    #[test]
    fn tags_with_unknown_kinds_or_flags_are_refused() {
        let bits = |kind: u64, flags: u8| (kind << 60) | (u64::from(flags) << ID_BITS);
        for kind in (0..16).filter(|kind| !(1..=3).contains(kind)) {
            assert_eq!(CallTag::from_bits(bits(kind, 0)), None);
        }
        let bad = [HAS_PREFIX | HAS_TRAILER, TRAILER_IS_USED, 5, 7, 8, 15];
        for flags in bad {
            assert_eq!(CallTag::from_bits(bits(1, flags)), None);
        }
    }

    /// Lent memory has no metadata of an earlier loan, which may have been for another peer.
    #[tokio::test]
    async fn lent_memory_has_no_metadata_of_an_earlier_loan() {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut metadata = Metadata::new();
        metadata.push("key", "value");
        for metadata in [Metadata::new(), metadata] {
            let mut lent = LentBuf::allocate(ep.domain(), 8).await.unwrap();
            lent.trailer_mut().fill(7);
            let message = OutgoingMessage::new("", &metadata, Body::from(lent)).unwrap();
            let OutgoingPayload::Loan(loan) = message.payload else {
                panic!("lent memory is sent in place")
            };
            let unused = &loan[8 + encoded_len("", &metadata)..];
            assert!(!unused.is_empty() && unused.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn metadata_are_decoded_as_encoded() {
        let mut metadata = Metadata::new();
        metadata.push("key", "value");
        metadata.push("", vec![7; 300]);
        for message in ["", "the message"] {
            let mut encoded = BytesMut::new();
            encode(message, &metadata, &mut encoded);
            assert_eq!(encoded.len(), encoded_len(message, &metadata));
            let whole = encoded.freeze();
            let decoded = decode(&mut whole.clone());
            assert_eq!(decoded, Some((message.to_owned(), metadata.clone())));
            for len in 0..whole.len() {
                assert_eq!(decode(&mut whole.slice(..len)), None, "cut at {len}");
            }
        }
    }
}
