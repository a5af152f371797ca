//! The receiving half of a connection: a byte stream becomes messages, requests and responses.

use crate::address::FiAddr;
use crate::atomic::MAX_ATOMIC_BYTES;
use crate::matching::{Envelope, PeerKey};
use crate::mr::PeerAccess;
use crate::transport::{EndpointContext, EngineContext, PartialId};

use super::frame::STATUS_LEN;
use super::responder::decode_status;
use super::rxm::RxmReceiver;
use super::writes::{BlockedOn, IncomingWrite, WriteProgress};
use super::{
    AckDue, ByteOrder, Frame, FrameKind, PendingRequests, ProtocolViolation, ResponseQueue,
    RmaIovList, WireRmaIov, atomics,
};

mod packets;
mod set_aside;

use set_aside::SetAsideFrames;

/// Maximum length of a message, in bytes: small enough that sums of lengths do not overflow.
pub const MAX_MESSAGE: usize = 1 << 40;
/// The number of bytes of a longer message that must have arrived before a receive or a buffer
/// takes the message. A header alone takes nothing.
const MIN_BEGINNING: usize = 4 << 10;
/// Maximum length of the operands and comparands of one atomic operation, in bytes.
const MAX_OPERAND_BYTES: u64 = 2 * MAX_ATOMIC_BYTES as u64;

/// The receiving half of a connection: accepts bytes as they arrive, split anywhere.
#[derive(Debug)]
pub struct FrameReader {
    byte_order: ByteOrder,
    /// Tagged messages are accepted; otherwise they are protocol violations.
    accepts_tagged: bool,
    /// The frame whose payload is arriving.
    body: Option<FrameBody>,
    /// What the current frame's access to memory of this side waits for.
    blocked_on: Option<BlockedOn>,
    /// RXM: messages are packets within frames.
    rxm: Option<Box<RxmReceiver>>,
    /// RXM messages that wait without blocking the frames behind them.
    set_aside: SetAsideFrames,
    unexpected_policy: UnexpectedPolicy,
}

/// Whether a message that has arrived whole stays unread until the next pass if no receive is
/// posted. The program is often about to post a receive, and a buffered message costs one copy
/// more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnexpectedPolicy {
    /// The message does not stay unread: it is matched or buffered.
    #[default]
    Buffer,
    /// As [`Buffer`](Self::Buffer), because the first message has stayed unread for one pass. Once
    /// a receive is posted when a message is read, as [`Defer`](Self::Defer) for later messages.
    DeferredOnce,
    /// The message stays unread.
    Defer,
}

/// A frame whose payload is arriving.
#[derive(Debug)]
enum FrameBody {
    /// A message, or a segment of one.
    Message {
        id: PartialId,
        /// Payload bytes that have not arrived.
        remaining: usize,
        ack_due: Option<AckDue>,
    },
    /// A write to memory of this side.
    Write(IncomingWrite),
    /// The response to a read request of this side.
    ReadResponse {
        /// Bytes that have arrived.
        received: usize,
        /// Length of the response without the status, in bytes.
        len: usize,
        /// A status follows the bytes.
        is_checked: bool,
    },
}

/// Key and address handle of the sender.
type SenderId = (PeerKey, Option<FiAddr>);

/// What a call of [`FrameReader::read`] uses, and its outcome so far.
struct ReadCall<'a, 'e, E> {
    sender: SenderId,
    pending: &'a mut PendingRequests,
    responses: &'a mut ResponseQueue,
    ctx: &'a mut EndpointContext<'e, E>,
    outcome: ReadOutcome,
}

impl<E> ReadCall<'_, '_, E> {
    /// Stops before a frame that cannot be accepted now. Returns false, as its callers do.
    fn hold(&mut self) -> bool {
        self.outcome.stop_reason = StopReason::Held;
        false
    }

    /// Sends an ack to the peer, after the responses that are due.
    fn send_ack(&mut self, due: Option<AckDue>) {
        self.outcome.acks_due.extend(self.responses.queue_ack(due));
    }
}

/// A frame at the start of the received bytes.
#[derive(Clone, Copy)]
struct ReceivedFrame<'a> {
    frame: &'a Frame,
    /// Length of the headers in front of the message.
    header_len: usize,
    /// The received bytes, from the frame on.
    bytes: &'a [u8],
}

/// Why a [`FrameReader`] has stopped reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopReason {
    /// All complete frames were read. More bytes are needed.
    #[default]
    NeedsBytes,
    /// The next frame cannot be accepted now and stays unread: an unexpected message without room,
    /// or an access to a region that its owner has locked or of which the owner cannot be notified.
    Held,
    /// The response queue is full: the caller passes the rest again when responses have been sent.
    ResponsesFull,
    /// A message stays unread until the next pass ([`UnexpectedPolicy`]). The pass must follow even
    /// if no new bytes arrive.
    Deferred,
}

/// Outcome of reading some bytes.
#[derive(Debug, Default)]
pub struct ReadOutcome {
    /// Number of bytes consumed. The caller passes the rest again, followed by the next bytes.
    pub consumed: usize,
    /// Why no more bytes were consumed.
    pub stop_reason: StopReason,
    /// Acknowledgements to be sent to the peer.
    pub acks_due: Vec<AckDue>,
    /// Ids of the rendezvous messages that have been read, to be reported to the peer.
    pub rendezvous_done: Vec<u64>,
}

impl FrameReader {
    /// Returns the reader of a connection that speaks the native protocol in this byte order.
    #[must_use]
    pub fn new(byte_order: ByteOrder) -> Self {
        Self {
            byte_order,
            accepts_tagged: true,
            body: None,
            blocked_on: None,
            rxm: None,
            set_aside: SetAsideFrames::default(),
            unexpected_policy: UnexpectedPolicy::Buffer,
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

    /// Returns whether [`next_rendezvous_read`](Self::next_rendezvous_read) has a remote range to
    /// read.
    #[must_use]
    pub fn wants_rendezvous_read(&self) -> bool {
        self.rxm.as_ref().is_some_and(|rxm| rxm.wants_read())
    }

    /// Returns whether read requests for rendezvous messages have no response yet.
    #[must_use]
    pub fn awaits_rendezvous_response(&self) -> bool {
        let rxm = self.rxm.as_ref();
        rxm.is_some_and(|rxm| rxm.has_reads_in_flight())
    }

    /// Returns the next remote range of a rendezvous message to read; `None` if there is none, or
    /// too many reads are in flight. The caller must send a read request for the range, which is
    /// among the pending requests from now on.
    pub fn next_rendezvous_read(&mut self, pending: &mut PendingRequests) -> Option<WireRmaIov> {
        let iov = self.rxm.as_mut()?.next_read()?;
        pending.expect_rendezvous_read(iov.len as usize);
        Some(iov)
    }

    /// Treats tagged messages as protocol violations from now on, because the endpoint has no
    /// `FI_TAGGED`.
    pub fn reject_tagged(&mut self) {
        self.accepts_tagged = false;
    }

    /// Sets whether unexpected messages stay unread until the next pass.
    pub fn set_unexpected_policy(&mut self, policy: UnexpectedPolicy) {
        self.unexpected_policy = policy;
    }

    /// Reads as many frames as can be accepted: first those that were set aside, then those in
    /// `bytes`. Responses complete the pending requests, and requests of the peer are queued for
    /// responses.
    ///
    /// # Errors
    /// [`ProtocolViolation`]; everything before the violation has been accepted.
    pub fn read<E: EngineContext>(
        &mut self,
        bytes: &[u8],
        sender: SenderId,
        (pending, responses): (&mut PendingRequests, &mut ResponseQueue),
        ctx: &mut EndpointContext<'_, E>,
    ) -> Result<ReadOutcome, ProtocolViolation> {
        let mut call = ReadCall {
            sender,
            pending,
            responses,
            ctx,
            outcome: ReadOutcome::default(),
        };
        self.blocked_on = None;
        let is_rxm = self.rxm.is_some();
        if is_rxm {
            self.read_set_aside(&mut call)?;
        }
        loop {
            let rest = &bytes[call.outcome.consumed..];
            // The rest of a frame whose header was read before.
            if let Some(body) = &mut self.body {
                let FrameBody::Message {
                    id,
                    remaining,
                    ack_due,
                } = body
                else {
                    if self.read_body(rest, &mut call)? {
                        continue;
                    }
                    return Ok(call.outcome);
                };
                let count = (*remaining).min(rest.len());
                if count == 0 {
                    return Ok(call.outcome);
                }
                call.ctx.append(*id, &&rest[..count]);
                *remaining -= count;
                call.outcome.consumed += count;
                if *remaining == 0 {
                    call.send_ack(ack_due.take());
                    self.body = None;
                }
                continue;
            }
            // The header of the next frame.
            let Some((frame, header_len)) = Frame::decode_for(rest, self.byte_order, is_rxm)?
            else {
                return Ok(call.outcome);
            };
            let received = ReceivedFrame {
                frame: &frame,
                header_len,
                bytes: rest,
            };
            let proceed = match frame.kind {
                FrameKind::Tagged(_) if !self.accepts_tagged => {
                    return Err(ProtocolViolation(
                        "tagged message to an endpoint without FI_TAGGED",
                    ));
                }
                FrameKind::Message | FrameKind::Tagged(_) if is_rxm => {
                    self.read_or_set_aside(&received, &mut call)?
                }
                FrameKind::Message | FrameKind::Tagged(_) => {
                    let envelope = frame_envelope(&frame, sender)?;
                    self.read_message(&received, envelope, &mut call)
                }
                _ => self.read_one_sided(&frame, (rest, header_len), &mut call)?,
            };
            if !proceed {
                return Ok(call.outcome);
            }
        }
    }

    /// Reads a message or its beginning. Returns false when the message has to wait, or when less
    /// of it than [`MIN_BEGINNING`] has arrived.
    #[inline(always)] // hot path of short messages
    fn read_message<E: EngineContext>(
        &mut self,
        received: &ReceivedFrame<'_>,
        envelope: Envelope,
        call: &mut ReadCall<'_, '_, E>,
    ) -> bool {
        let len = envelope.len;
        if let Some(message) = received
            .bytes
            .get(received.header_len..)
            .and_then(|rest| rest.get(..len))
        {
            match self.unexpected_policy {
                UnexpectedPolicy::Buffer => {}
                _ if call.ctx.has_posted() => self.unexpected_policy = UnexpectedPolicy::Defer,
                UnexpectedPolicy::DeferredOnce => {}
                UnexpectedPolicy::Defer => {
                    call.outcome.stop_reason = StopReason::Deferred;
                    return false;
                }
            }
            if !call.ctx.deliver(envelope, &message) {
                return call.hold();
            }
            call.outcome.consumed += received.header_len + len;
            if let Some(due) = received.frame.ack_due() {
                call.send_ack(Some(due));
            }
        } else {
            if received.bytes.len() - received.header_len < MIN_BEGINNING {
                return false;
            }
            let Some(id) = call.ctx.begin_partial(envelope) else {
                return call.hold();
            };
            call.outcome.consumed += received.header_len;
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
        call: &mut ReadCall<'_, '_, impl EngineContext>,
    ) -> Result<bool, ProtocolViolation> {
        let iovs =
            |count| RmaIovList::decode(&bytes[..header_len], usize::from(count), self.byte_order);
        match frame.kind {
            FrameKind::Message | FrameKind::Tagged(_) => {}
            FrameKind::Ack => call.pending.on_ack(call.ctx)?,
            FrameKind::Read(_) | FrameKind::Atomic(_) if call.responses.is_full() => {
                call.outcome.stop_reason = StopReason::ResponsesFull;
                return Ok(false);
            }
            FrameKind::Read(count) => call.responses.on_read(&iovs(count), call.ctx)?,
            FrameKind::Write(count) => {
                match IncomingWrite::begin(frame, &iovs(count), call.responses, call.ctx)? {
                    Ok(write) => self.body = Some(FrameBody::Write(write)),
                    Err(blocked_on) => {
                        self.blocked_on = Some(blocked_on);
                        return Ok(call.hold());
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
                    call.sender.1,
                    call.responses,
                    call.ctx,
                )? {
                    WriteProgress::Done(used, due) => {
                        call.outcome.consumed += used;
                        call.send_ack(due);
                    }
                    WriteProgress::More(_) => return Ok(false),
                    WriteProgress::Blocked(.., blocked_on) => {
                        self.blocked_on = Some(blocked_on);
                        return Ok(call.hold());
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
                let len = call.pending.begin_read_response(len, is_checked)?;
                self.body = Some(FrameBody::ReadResponse {
                    received: 0,
                    len,
                    is_checked,
                });
            }
            FrameKind::Nack(ref nack) => call.pending.on_nack(**nack, call.ctx)?,
        }
        call.outcome.consumed += header_len;
        Ok(true)
    }

    /// Reads the payload of a frame that is not a message. Returns false when the payload is
    /// incomplete or has to wait.
    #[cold]
    fn read_body(
        &mut self,
        bytes: &[u8],
        call: &mut ReadCall<'_, '_, impl EngineContext>,
    ) -> Result<bool, ProtocolViolation> {
        match &mut self.body {
            Some(FrameBody::Write(write)) => {
                match write.write(bytes, call.sender.1, call.responses, call.ctx)? {
                    WriteProgress::More(used) => {
                        call.outcome.consumed += used;
                        return Ok(false);
                    }
                    WriteProgress::Done(used, due) => {
                        call.outcome.consumed += used;
                        call.send_ack(due);
                    }
                    WriteProgress::Blocked(used, due, blocked_on) => {
                        call.outcome.consumed += used;
                        call.send_ack(due);
                        self.blocked_on = Some(blocked_on);
                        return Ok(call.hold());
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
                        call.pending
                            .write_read_response(*received, &bytes[..count], call.ctx);
                    if !is_written
                        && let Some(id) = self.rxm.as_ref().and_then(|rxm| rxm.oldest_read())
                    {
                        call.ctx.append(id, &&bytes[..count]);
                    }
                    *received += count;
                    call.outcome.consumed += count;
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
                    call.outcome.consumed += STATUS_LEN;
                }
                if !call.pending.end_read_response(status, call.ctx)
                    && let Some(rxm) = &mut self.rxm
                {
                    call.outcome
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

    /// Returns whether a response to a request of this side may be among `bytes`, which were not
    /// consumed, and the `unread` bytes that follow them.
    #[must_use]
    pub fn may_contain_response(&self, mut bytes: &[u8], unread: usize) -> bool {
        let mut frame_len = match &self.body {
            None => 0,
            Some(FrameBody::Message { remaining, .. }) => *remaining,
            Some(FrameBody::Write(write)) => write.remaining(),
            Some(FrameBody::ReadResponse { .. }) => return true,
        };
        loop {
            let Some(rest) = bytes.get(frame_len..) else {
                return unread > frame_len - bytes.len();
            };
            bytes = rest;
            let Ok(Some((frame, header_len))) =
                Frame::decode_for(bytes, self.byte_order, self.rxm.is_some())
            else {
                return unread > 0;
            };
            let payload_len = match frame.kind {
                FrameKind::Message if self.rxm.is_some() => {
                    if packets::may_be_response(&frame, header_len, bytes) {
                        return true;
                    }
                    frame.payload_len
                }
                FrameKind::Read(_) => 0,
                FrameKind::Message
                | FrameKind::Tagged(_)
                | FrameKind::Write(_)
                | FrameKind::Atomic(_) => frame.payload_len,
                FrameKind::Ack
                | FrameKind::ReadResponse
                | FrameKind::CheckedReadResponse
                | FrameKind::Nack(_) => return true,
            };
            frame_len = usize::try_from(payload_len)
                .unwrap_or(usize::MAX)
                .saturating_add(header_len);
        }
    }

    /// Drops all partial frames; returns the messages among them, which the caller must fail.
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

    /// Returns whether a frame that [`read`](Self::read) reported as held can be accepted now.
    /// Notifies the owner of the memory if a write waits for that, and declines a message again
    /// that cannot be accepted. `bytes` are the bytes that were not consumed.
    #[must_use]
    pub fn try_resume<E: EngineContext>(
        &mut self,
        bytes: &[u8],
        sender: SenderId,
        responses: &ResponseQueue,
        ctx: &mut EndpointContext<'_, E>,
    ) -> bool {
        match (&self.blocked_on, &mut self.body) {
            (Some(BlockedOn::RegionLocked(memory)), _) => {
                return PeerAccess::is_possible(&**memory);
            }
            (Some(BlockedOn::CqFull), Some(FrameBody::Write(write))) => {
                return write.notify(sender.1, responses, ctx);
            }
            _ => {}
        }
        if self.has_set_aside() {
            return self.try_resume_set_aside(sender, ctx);
        }
        self.next_envelope(bytes, sender)
            .is_some_and(|envelope| !ctx.decline_again(&envelope))
    }
}

/// Returns the envelope of a message. The receive queue assigns the arrival number.
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
