//! A byte stream becomes messages.

use crate::address::FiAddr;
use crate::atomic::MAX_ATOMIC_BYTES;
use crate::matching::{Envelope, PeerKey};
use crate::rx::{PartialId, RxQueue};
use crate::transport::{EngineContext, EpId};

use super::frame::STATUS_LEN;
use super::responder::decode_status;
use super::rxm::RxmReceiver;
use super::writes::{IncomingWrite, Stall, WriteProgress};
use super::{
    AckDue, ByteOrder, Frame, FrameKind, PendingRequests, ProtocolViolation, ResponseQueue,
    RmaIovList, WireRmaIov, atomics,
};

mod deferred;
mod packets;

use deferred::DeferredFrames;

/// Maximum length of a message, in bytes: more than any memory, and small enough that sums of
/// lengths do not overflow.
pub const MAX_MESSAGE: usize = 1 << 40;
/// Maximum length of the operands and comparands of one atomic operation, in bytes.
const MAX_OPERAND_BYTES: u64 = 2 * MAX_ATOMIC_BYTES as u64;

/// The receiving half of a connection. It accepts bytes as they arrive, split anywhere.
#[derive(Debug)]
pub struct FrameReader {
    byte_order: ByteOrder,
    /// Tagged messages are accepted.
    has_tags: bool,
    /// The frame whose payload comes next.
    body: Option<FrameBody>,
    /// Why the next frame has to wait, unless it is a message.
    stall: Option<Stall>,
    /// Requests of this side without a response.
    pub pending: PendingRequests,
    /// Responses that are due to the peer.
    pub responses: ResponseQueue,
    /// RXM: messages are packets within frames.
    rxm: Option<Box<RxmReceiver>>,
    /// RXM messages that wait without blocking the frames behind them.
    deferred: DeferredFrames,
    unexpected_policy: UnexpectedPolicy,
}

/// Whether an unexpected message stays unread until the next pass. The program is often about to
/// post a receive, and an unexpected message costs a buffer and a copy more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnexpectedPolicy {
    /// The message is buffered.
    #[default]
    Buffer,
    /// The message stays unread if a receive has taken a message before it in this pass: it has
    /// been deferred once.
    DeferredOnce,
    /// The message stays unread.
    Defer,
}

#[derive(Debug)]
enum FrameBody {
    Message {
        id: PartialId,
        remaining: usize,
        ack_due: Option<AckDue>,
    },
    /// A write to memory of this side.
    Write(IncomingWrite),
    /// The response to a read request of this side, `received` of whose bytes have arrived.
    ReadResponse {
        received: usize,
        len: usize,
        is_checked: bool,
    },
}

/// Key and address handle of the sender.
type SenderId = (PeerKey, Option<FiAddr>);

/// A frame at the start of the received bytes.
#[derive(Clone, Copy)]
struct ReceivedFrame<'a> {
    frame: &'a Frame,
    /// Length of the headers in front of the message.
    header_len: usize,
    /// The received bytes, from the frame on.
    bytes: &'a [u8],
}

/// Outcome of reading some bytes.
#[derive(Debug, Default)]
pub struct ReadOutcome {
    /// Number of bytes consumed. The rest is to be passed again, with more bytes behind it.
    pub consumed: usize,
    /// The next frame cannot be accepted now and stays unread: an unexpected message without room,
    /// or an access to a region that its owner has locked or of which the owner cannot be notified.
    pub blocked: bool,
    /// The response queue is full: the rest is to be passed again when responses have been sent.
    pub responses_full: bool,
    /// A message was deferred to the next pass, which has to follow without new bytes.
    pub is_deferred: bool,
    /// Acknowledgements to be sent to the peer.
    pub acks_due: Vec<AckDue>,
    /// Ids of the rendezvous messages that have been read, to be reported to the peer.
    pub rendezvous_done: Vec<u64>,
}

impl FrameReader {
    /// Returns the reader of a connection with this byte order.
    #[must_use]
    pub fn new(byte_order: ByteOrder) -> Self {
        let (pending, responses) = (PendingRequests::default(), ResponseQueue::new());
        let deferred = DeferredFrames::default();
        let unexpected_policy = UnexpectedPolicy::Buffer;
        Self {
            byte_order,
            has_tags: true,
            body: None,
            stall: None,
            pending,
            responses,
            rxm: None,
            deferred,
            unexpected_policy,
        }
    }

    /// Returns the reader of an RXM connection.
    #[must_use]
    pub fn with_rxm(order: ByteOrder, rxm: RxmReceiver) -> Self {
        Self {
            rxm: Some(Box::new(rxm)),
            ..Self::new(order)
        }
    }

    /// Returns whether bytes of a rendezvous message are to be requested.
    #[must_use]
    pub fn wants_rendezvous_read(&self) -> bool {
        self.rxm.as_ref().is_some_and(|rxm| rxm.wants_read())
    }

    /// Returns the next remote range of a rendezvous message. The caller must send its read
    /// request.
    pub fn next_rendezvous_read(&mut self) -> Option<WireRmaIov> {
        let iov = self.rxm.as_mut()?.next_read()?;
        self.pending.expect_rendezvous_read(iov.len as usize);
        Some(iov)
    }

    /// Treats tagged messages as protocol violations from now on: the endpoint could not receive
    /// them.
    pub fn reject_tagged(&mut self) {
        self.has_tags = false;
    }

    /// Sets what serving the memory of this side needs: the endpoint, whether peers may access
    /// memory through it, and whether it wants an event for every access.
    pub fn enable_rma_target(&mut self, ep: EpId, is_target: bool, rma_events: bool) {
        (
            self.responses.ep,
            self.responses.is_target,
            self.responses.rma_events,
        ) = (ep, is_target, rma_events);
    }

    /// Notes that the peer is of this library and understands its vendor-specific frames.
    pub fn set_same_implementation(&mut self) {
        self.responses.is_same_implementation = true;
    }

    /// Sets whether unexpected messages stay unread until the next pass.
    pub fn set_unexpected_policy(&mut self, policy: UnexpectedPolicy) {
        self.unexpected_policy = policy;
    }

    /// Reads as many frames as can be accepted.
    ///
    /// # Errors
    /// [`ProtocolViolation`]; everything before the violation has been accepted.
    pub fn read(
        &mut self,
        bytes: &[u8],
        sender: SenderId,
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) -> Result<ReadOutcome, ProtocolViolation> {
        let source = sender.1;
        let mut outcome = ReadOutcome::default();
        self.stall = None;
        let is_rxm = self.rxm.is_some();
        if is_rxm {
            self.read_deferred(sender, rx, engine, &mut outcome)?;
        }
        loop {
            let rest = &bytes[outcome.consumed..];
            if let Some(body) = &mut self.body {
                let FrameBody::Message {
                    id,
                    remaining,
                    ack_due,
                } = body
                else {
                    if self.read_body(rest, source, &mut outcome, (rx, engine))? {
                        continue;
                    }
                    return Ok(outcome);
                };
                let count = (*remaining).min(rest.len());
                if count == 0 {
                    return Ok(outcome);
                }
                rx.append(engine, *id, &&rest[..count]);
                *remaining -= count;
                outcome.consumed += count;
                if *remaining == 0 {
                    let due = ack_due.take();
                    self.body = None;
                    outcome.acks_due.extend(self.responses.queue_ack(due));
                }
                continue;
            }
            let Some((frame, header_len)) = Frame::decode_for(rest, self.byte_order, is_rxm)?
            else {
                return Ok(outcome);
            };
            let received = ReceivedFrame {
                frame: &frame,
                header_len,
                bytes: rest,
            };
            let proceed = match frame.kind {
                FrameKind::Tagged(_) if !self.has_tags => {
                    return Err(ProtocolViolation(
                        "tagged message to an endpoint without FI_TAGGED",
                    ));
                }
                FrameKind::Message | FrameKind::Tagged(_) if is_rxm => {
                    self.read_or_defer(&received, sender, rx, engine, &mut outcome)?
                }
                FrameKind::Message | FrameKind::Tagged(_) => self.read_message(
                    &received,
                    frame_envelope(&frame, sender)?,
                    rx,
                    engine,
                    &mut outcome,
                ),
                _ => {
                    self.read_one_sided(&frame, (rest, header_len), source, &mut outcome, engine)?
                }
            };
            if !proceed {
                return Ok(outcome);
            }
        }
    }

    /// Reads a message or its beginning. Returns false when the message has to wait.
    #[inline(always)] // hot path of short messages
    fn read_message(
        &mut self,
        received: &ReceivedFrame<'_>,
        envelope: Envelope,
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
        outcome: &mut ReadOutcome,
    ) -> bool {
        let len = envelope.len;
        if let Some(message) = received
            .bytes
            .get(received.header_len..)
            .and_then(|rest| rest.get(..len))
        {
            match self.unexpected_policy {
                UnexpectedPolicy::Buffer => {}
                _ if rx.has_posted() => self.unexpected_policy = UnexpectedPolicy::Defer,
                UnexpectedPolicy::DeferredOnce => {}
                UnexpectedPolicy::Defer => {
                    outcome.is_deferred = true;
                    return false;
                }
            }
            if !rx.deliver(engine, envelope, &message) {
                outcome.blocked = true;
                return false;
            }
            outcome.consumed += received.header_len + len;
            if let Some(due) = received.frame.ack_due() {
                outcome.acks_due.extend(self.responses.queue_ack(Some(due)));
            }
        } else {
            let Some(id) = rx.begin_partial(engine, envelope) else {
                outcome.blocked = true;
                return false;
            };
            outcome.consumed += received.header_len;
            self.body = Some(FrameBody::Message {
                id,
                remaining: len,
                ack_due: received.frame.ack_due(),
            });
        }
        true
    }

    /// Reads the header of a frame that is not a message. Returns false when the frame is
    /// incomplete or has to wait.
    #[cold]
    fn read_one_sided(
        &mut self,
        frame: &Frame,
        (bytes, header_len): (&[u8], usize),
        source: Option<FiAddr>,
        outcome: &mut ReadOutcome,
        engine: &mut impl EngineContext,
    ) -> Result<bool, ProtocolViolation> {
        let iovs =
            |count| RmaIovList::decode(&bytes[..header_len], usize::from(count), self.byte_order);
        match frame.kind {
            FrameKind::Message | FrameKind::Tagged(_) => {}
            FrameKind::Ack => self.pending.on_ack(engine)?,
            FrameKind::Read(_) | FrameKind::Atomic(_) if self.responses.is_full() => {
                outcome.responses_full = true;
                return Ok(false);
            }
            FrameKind::Read(count) => self.responses.on_read(&iovs(count), engine)?,
            FrameKind::Write(count) => {
                match IncomingWrite::begin(frame, &iovs(count), &self.responses, engine)? {
                    Ok(write) => self.body = Some(FrameBody::Write(write)),
                    Err(stall) => {
                        (self.stall, outcome.blocked) = (Some(stall), true);
                        return Ok(false);
                    }
                }
            }
            FrameKind::Atomic(spec) => {
                if frame.payload_len > MAX_OPERAND_BYTES {
                    return Err(ProtocolViolation("atomic operation with too many operands"));
                }
                let Some(operands) = bytes.get(header_len..header_len + frame.payload_len as usize)
                else {
                    return Ok(false);
                };
                match atomics::execute_native(
                    (frame, spec),
                    &iovs(1),
                    operands,
                    source,
                    &mut self.responses,
                    engine,
                )? {
                    WriteProgress::Done(used, due) => {
                        outcome.consumed += used;
                        outcome.acks_due.extend(self.responses.queue_ack(due));
                    }
                    WriteProgress::More(_) => return Ok(false),
                    WriteProgress::Stalled(.., stall) => {
                        (self.stall, outcome.blocked) = (Some(stall), true);
                        return Ok(false);
                    }
                }
            }
            FrameKind::ReadResponse | FrameKind::CheckedReadResponse => {
                let is_checked = frame.kind == FrameKind::CheckedReadResponse;
                let status_len = if is_checked { STATUS_LEN as u64 } else { 0 };
                let len = frame
                    .payload_len
                    .checked_sub(status_len)
                    .ok_or(ProtocolViolation(
                        "read response shorter than its status field",
                    ))?;
                let len = self.pending.begin_read_response(len)?;
                self.body = Some(FrameBody::ReadResponse {
                    received: 0,
                    len,
                    is_checked,
                });
            }
            FrameKind::Nack(ref nack) => self.pending.on_nack(**nack, engine)?,
        }
        outcome.consumed += header_len;
        Ok(true)
    }

    /// Reads the payload of a frame that is not a message. Returns false when the payload is
    /// incomplete or has to wait.
    #[cold]
    fn read_body(
        &mut self,
        bytes: &[u8],
        source: Option<FiAddr>,
        outcome: &mut ReadOutcome,
        (rx, engine): (&mut RxQueue, &mut impl EngineContext),
    ) -> Result<bool, ProtocolViolation> {
        match &mut self.body {
            Some(FrameBody::Write(write)) => {
                match write.write(bytes, source, &self.responses, engine)? {
                    WriteProgress::More(used) => {
                        outcome.consumed += used;
                        return Ok(false);
                    }
                    WriteProgress::Done(used, due) => {
                        outcome.consumed += used;
                        outcome.acks_due.extend(self.responses.queue_ack(due));
                    }
                    WriteProgress::Stalled(used, due, stall) => {
                        outcome.consumed += used;
                        outcome.acks_due.extend(self.responses.queue_ack(due));
                        (self.stall, outcome.blocked) = (Some(stall), true);
                        return Ok(false);
                    }
                }
            }
            Some(FrameBody::ReadResponse {
                received,
                len,
                is_checked,
            }) => {
                let count = bytes.len().min(*len - *received);
                if count > 0 {
                    let is_written =
                        self.pending
                            .write_read_response(*received, &bytes[..count], engine);
                    if !is_written
                        && let Some(id) = self.rxm.as_ref().and_then(|rxm| rxm.oldest_read())
                    {
                        rx.append(engine, id, &&bytes[..count]);
                    }
                    *received += count;
                    outcome.consumed += count;
                }
                if *received < *len {
                    return Ok(false);
                }
                let mut status = None;
                if *is_checked {
                    let Some(words) = bytes.get(count..count + STATUS_LEN) else {
                        return Ok(false);
                    };
                    let mut words = words
                        .as_chunks::<8>()
                        .0
                        .iter()
                        .map(|word| self.byte_order.decode_u64(*word));
                    let mut next = || words.next().unwrap_or_default();
                    status = decode_status([next(), next()]);
                    outcome.consumed += STATUS_LEN;
                }
                if !self.pending.end_read_response(status, engine)
                    && let Some(rxm) = &mut self.rxm
                {
                    outcome
                        .rendezvous_done
                        .extend(rxm.on_read_response(*len as u64));
                }
            }
            _ => {}
        }
        self.body = None;
        Ok(true)
    }

    /// Returns whether a message has begun to arrive and is incomplete.
    #[must_use]
    pub fn has_partial(&self) -> bool {
        self.body.is_some() || self.rxm.as_ref().is_some_and(|rxm| rxm.has_partial())
    }

    /// Drops all partial frames; returns the messages among them, which will not be completed.
    #[must_use]
    pub fn abort(&mut self) -> Vec<PartialId> {
        let mut partial = self.rxm.as_mut().map_or_else(Vec::new, |rxm| rxm.abort());
        if let Some(FrameBody::Message { id, .. }) = self.body.take()
            && !partial.contains(&id)
        {
            partial.push(id);
        }
        partial
    }

    /// Returns whether the frame at the start of `bytes`, which [`read`](Self::read) reported as
    /// blocked, can be accepted now.
    #[must_use]
    pub fn can_resume(
        &mut self,
        bytes: &[u8],
        sender: SenderId,
        rx: &RxQueue,
        engine: &mut impl EngineContext,
    ) -> bool {
        match (&self.stall, &mut self.body) {
            (Some(Stall::RegionLocked(memory)), _) => {
                let is_accessible = memory.begin_access();
                if is_accessible {
                    memory.end_access();
                }
                return is_accessible || !memory.is_open();
            }
            (Some(Stall::CqFull), Some(FrameBody::Write(write))) => {
                return write.notify(sender.1, &self.responses, engine);
            }
            _ => {}
        }
        if self.has_deferred() {
            return self.can_resume_deferred(sender, rx);
        }
        self.next_envelope(bytes, sender)
            .is_some_and(|envelope| rx.would_accept(&envelope))
    }
}

/// Returns the envelope of a message for the receive queue, which assigns the arrival number.
fn frame_envelope(frame: &Frame, (peer, source): SenderId) -> Result<Envelope, ProtocolViolation> {
    let Some(len) = usize::try_from(frame.payload_len)
        .ok()
        .filter(|len| *len <= MAX_MESSAGE)
    else {
        return Err(ProtocolViolation("message longer than 1 TiB"));
    };
    let tag = if let FrameKind::Tagged(tag) = frame.kind {
        Some(tag)
    } else {
        None
    };
    Ok(Envelope {
        peer,
        source,
        tag,
        len,
        data: frame.data,
        arrival: 0,
        ack: None,
    })
}
