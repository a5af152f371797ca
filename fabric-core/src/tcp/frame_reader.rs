//! A stream of bytes becomes messages.

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

/// The longest message that is taken: more than any memory, and far from where sums of lengths
/// would end.
pub const MAX_MESSAGE: usize = 1 << 40;
/// Bytes of the operands and comparands of one atomic operation.
const MAX_OPERAND_BYTES: u64 = 2 * MAX_ATOMIC_BYTES as u64;

/// The receiving half of a connection. Takes bytes as they come, split anywhere.
#[derive(Debug)]
pub struct FrameReader {
    byte_order: ByteOrder,
    /// Messages may have tags.
    has_tags: bool,
    /// The frame whose bytes come next.
    body: Option<FrameBody>,
    /// Why what comes next is held, unless it is a message.
    stall: Option<Stall>,
    /// What this side has asked of the peer.
    pub pending: PendingRequests,
    /// What this side owes the peer.
    pub responses: ResponseQueue,
    /// Messages are packets of the other dialect.
    rxm: Option<Box<RxmReceiver>>,
    /// Messages of that dialect that wait, and hold up nothing else.
    deferred: DeferredFrames,
    unexpected_policy: UnexpectedPolicy,
}

/// Whether a message that comes while no receive is posted stays where it is for another look: the
/// program is often about to post some, and a message that nobody has asked for costs a buffer and
/// a copy more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnexpectedPolicy {
    /// It is buffered.
    #[default]
    Buffer,
    /// It stays if a receive has taken a message before it in this look: it has stayed once.
    DeferredOnce,
    /// It stays.
    Defer,
}

#[derive(Debug)]
enum FrameBody {
    Message {
        id: PartialId,
        remaining: usize,
        ack_due: Option<AckDue>,
    },
    /// Memory of this side is written.
    Write(IncomingWrite),
    /// What was asked for, and so much of it has come.
    ReadResponse {
        received: usize,
        len: usize,
        is_checked: bool,
    },
}

/// Who sends, and its number.
type SenderId = (PeerKey, Option<FiAddr>);

/// A frame among the bytes that have come.
#[derive(Clone, Copy)]
struct ReceivedFrame<'a> {
    frame: &'a Frame,
    /// Bytes before those of the message.
    header_len: usize,
    /// All that have come, from its beginning.
    bytes: &'a [u8],
}

/// What was made of some bytes.
#[derive(Debug, Default)]
pub struct ReadOutcome {
    /// How many were used. The rest is to be shown again, with more behind it.
    pub consumed: usize,
    /// What comes next cannot be taken now: a message that is nobody's, and for which there is no
    /// room; a write to memory that its owner has in hand, or of which it cannot be told. It stays
    /// where it is.
    pub blocked: bool,
    /// So many answers are owed that no more is listened to: to be shown again when some have left.
    pub responses_full: bool,
    /// A message was left for another look, which is to follow without news.
    pub is_deferred: bool,
    /// Acknowledgements the peer is to get.
    pub acks_due: Vec<AckDue>,
    /// Messages that were offered and are here, by their numbers, which the peer is to be told.
    pub rendezvous_done: Vec<u64>,
}

impl FrameReader {
    /// Of a connection whose peer writes integers like this.
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

    /// The same, of a connection on which RXM is spoken.
    #[must_use]
    pub fn with_rxm(order: ByteOrder, rxm: RxmReceiver) -> Self {
        Self {
            rxm: Some(Box::new(rxm)),
            ..Self::new(order)
        }
    }

    /// Whether bytes of a message that was offered are to be asked for.
    #[must_use]
    pub fn wants_rendezvous_read(&self) -> bool {
        self.rxm.as_ref().is_some_and(|rxm| rxm.wants_read())
    }

    /// Asks for the next bytes of a message that was offered: the place, which the peer is to be
    /// asked for at once.
    pub fn next_rendezvous_read(&mut self) -> Option<WireRmaIov> {
        let row = self.rxm.as_mut()?.next_read()?;
        self.pending.expect_rendezvous_read(row.len as usize);
        Some(row)
    }

    /// Takes tagged messages for a breach of the rules from now on: nobody could receive one.
    pub fn reject_tagged(&mut self) {
        self.has_tags = false;
    }

    /// What it needs to know to serve the memory of this side: the endpoint, whether peers may
    /// reach memory through it, and whether it wants to hear of everything that is done to it.
    pub fn enable_rma_target(&mut self, ep: EpId, is_target: bool, heeds: bool) {
        (
            self.responses.ep,
            self.responses.is_target,
            self.responses.rma_events,
        ) = (ep, is_target, heeds);
    }

    /// The peer is one of this library, and understands what no other does.
    pub fn set_same_implementation(&mut self) {
        self.responses.is_same_implementation = true;
    }

    /// For how much longer messages stay where they are while no receive is posted.
    pub fn set_unexpected_policy(&mut self, patience: UnexpectedPolicy) {
        self.unexpected_policy = patience;
    }

    /// Takes in what can be.
    ///
    /// # Errors
    /// What the peer did wrong; what came before it has been taken in.
    pub fn read(
        &mut self,
        bytes: &[u8],
        who: SenderId,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
    ) -> Result<ReadOutcome, ProtocolViolation> {
        let source = who.1;
        let mut taken = ReadOutcome::default();
        self.stall = None;
        let is_rxm = self.rxm.is_some();
        if is_rxm {
            self.read_deferred(who, rx, host, &mut taken)?;
        }
        loop {
            let rest = &bytes[taken.consumed..];
            if let Some(landing) = &mut self.body {
                let FrameBody::Message {
                    id,
                    remaining: left,
                    ack_due: owes,
                } = landing
                else {
                    if self.read_body(rest, source, &mut taken, (rx, host))? {
                        continue;
                    }
                    return Ok(taken);
                };
                let count = (*left).min(rest.len());
                if count == 0 {
                    return Ok(taken);
                }
                rx.append(host, *id, &&rest[..count]);
                *left -= count;
                taken.consumed += count;
                if *left == 0 {
                    let owed = owes.take();
                    self.body = None;
                    taken.acks_due.extend(self.responses.queue_ack(owed));
                }
                continue;
            }
            let Some((frame, header)) = Frame::decode_for(rest, self.byte_order, is_rxm)? else {
                return Ok(taken);
            };
            let found = ReceivedFrame {
                frame: &frame,
                header_len: header,
                bytes: rest,
            };
            let goes_on = match frame.kind {
                FrameKind::Tagged(_) if !self.has_tags => {
                    return Err(ProtocolViolation(
                        "a tagged message, which this endpoint does not take",
                    ));
                }
                FrameKind::Message | FrameKind::Tagged(_) if is_rxm => {
                    self.read_or_defer(&found, who, rx, host, &mut taken)?
                }
                FrameKind::Message | FrameKind::Tagged(_) => {
                    self.read_message(&found, frame_envelope(&frame, who)?, rx, host, &mut taken)
                }
                _ => self.read_one_sided(&frame, (rest, header), source, &mut taken, host)?,
            };
            if !goes_on {
                return Ok(taken);
            }
        }
    }

    /// A message, or its beginning. False when it has to wait.
    #[inline(always)] // on the way of a small message
    fn read_message(
        &mut self,
        found: &ReceivedFrame<'_>,
        envelope: Envelope,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
        taken: &mut ReadOutcome,
    ) -> bool {
        let len = envelope.len;
        if let Some(message) = found
            .bytes
            .get(found.header_len..)
            .and_then(|rest| rest.get(..len))
        {
            match self.unexpected_policy {
                UnexpectedPolicy::Buffer => {}
                _ if rx.has_posted() => self.unexpected_policy = UnexpectedPolicy::Defer,
                UnexpectedPolicy::DeferredOnce => {}
                UnexpectedPolicy::Defer => {
                    taken.is_deferred = true;
                    return false;
                }
            }
            if !rx.deliver(host, envelope, &message) {
                taken.blocked = true;
                return false;
            }
            taken.consumed += found.header_len + len;
            if let Some(owed) = found.frame.ack_due() {
                taken.acks_due.extend(self.responses.queue_ack(Some(owed)));
            }
        } else {
            let Some(id) = rx.begin_partial(host, envelope) else {
                taken.blocked = true;
                return false;
            };
            taken.consumed += found.header_len;
            self.body = Some(FrameBody::Message {
                id,
                remaining: len,
                ack_due: found.frame.ack_due(),
            });
        }
        true
    }

    /// A frame begins that is no message. False when more of it has to come first, or it has to
    /// wait.
    #[cold]
    fn read_one_sided(
        &mut self,
        frame: &Frame,
        (bytes, header): (&[u8], usize),
        source: Option<FiAddr>,
        taken: &mut ReadOutcome,
        host: &mut dyn EngineContext,
    ) -> Result<bool, ProtocolViolation> {
        let rows =
            |count| RmaIovList::decode(&bytes[..header], usize::from(count), self.byte_order);
        match frame.kind {
            FrameKind::Message | FrameKind::Tagged(_) => {}
            FrameKind::Ack => self.pending.on_ack(host)?,
            FrameKind::Read(_) | FrameKind::Atomic(_) if self.responses.is_full() => {
                taken.responses_full = true;
                return Ok(false);
            }
            FrameKind::Read(count) => self.responses.on_read(&rows(count), host)?,
            FrameKind::Write(count) => {
                match IncomingWrite::begin(frame, &rows(count), &self.responses, host)? {
                    Ok(write) => self.body = Some(FrameBody::Write(write)),
                    Err(stuck) => {
                        (self.stall, taken.blocked) = (Some(stuck), true);
                        return Ok(false);
                    }
                }
            }
            FrameKind::Atomic(spec) => {
                if frame.payload > MAX_OPERAND_BYTES {
                    return Err(ProtocolViolation(
                        "an atomic operation with more operands than there may be",
                    ));
                }
                let Some(operands) = bytes.get(header..header + frame.payload as usize) else {
                    return Ok(false);
                };
                match atomics::execute_frame(
                    (frame, spec),
                    &rows(1),
                    operands,
                    source,
                    &mut self.responses,
                    host,
                )? {
                    WriteProgress::Done(used, owed) => {
                        taken.consumed += used;
                        taken.acks_due.extend(self.responses.queue_ack(owed));
                    }
                    WriteProgress::More(_) => return Ok(false),
                    WriteProgress::Stalled(.., stuck) => {
                        (self.stall, taken.blocked) = (Some(stuck), true);
                        return Ok(false);
                    }
                }
            }
            FrameKind::ReadResponse | FrameKind::CheckedReadResponse => {
                let is_checked = frame.kind == FrameKind::CheckedReadResponse;
                let more = if is_checked { STATUS_LEN as u64 } else { 0 };
                let len = frame
                    .payload
                    .checked_sub(more)
                    .ok_or(ProtocolViolation("an answer without a verdict"))?;
                let len = self.pending.begin_read_response(len)?;
                self.body = Some(FrameBody::ReadResponse {
                    received: 0,
                    len,
                    is_checked,
                });
            }
            FrameKind::Nack(ref denial) => self.pending.on_nack(**denial, host)?,
        }
        taken.consumed += header;
        Ok(true)
    }

    /// Bytes of a frame that is no message. False when more of them have to come first, or they
    /// have to wait.
    #[cold]
    fn read_body(
        &mut self,
        bytes: &[u8],
        source: Option<FiAddr>,
        taken: &mut ReadOutcome,
        (rx, host): (&mut RxQueue, &mut dyn EngineContext),
    ) -> Result<bool, ProtocolViolation> {
        match &mut self.body {
            Some(FrameBody::Write(write)) => {
                match write.write(bytes, source, &self.responses, host)? {
                    WriteProgress::More(used) => {
                        taken.consumed += used;
                        return Ok(false);
                    }
                    WriteProgress::Done(used, owed) => {
                        taken.consumed += used;
                        taken.acks_due.extend(self.responses.queue_ack(owed));
                    }
                    WriteProgress::Stalled(used, owed, stuck) => {
                        taken.consumed += used;
                        taken.acks_due.extend(self.responses.queue_ack(owed));
                        (self.stall, taken.blocked) = (Some(stuck), true);
                        return Ok(false);
                    }
                }
            }
            Some(FrameBody::ReadResponse {
                received: have,
                len,
                is_checked,
            }) => {
                let count = bytes.len().min(*len - *have);
                if count > 0 {
                    let is_placed = self
                        .pending
                        .write_read_response(*have, &bytes[..count], host);
                    if !is_placed
                        && let Some(id) = self.rxm.as_ref().and_then(|rxm| rxm.oldest_read())
                    {
                        rx.append(host, id, &&bytes[..count]);
                    }
                    *have += count;
                    taken.consumed += count;
                }
                if *have < *len {
                    return Ok(false);
                }
                let mut denied = None;
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
                    denied = decode_status([next(), next()]);
                    taken.consumed += STATUS_LEN;
                }
                if !self.pending.end_read_response(denied, host)
                    && let Some(rxm) = &mut self.rxm
                {
                    taken
                        .rendezvous_done
                        .extend(rxm.on_read_response(*len as u64));
                }
            }
            _ => {}
        }
        self.body = None;
        Ok(true)
    }

    /// Whether a message has begun to arrive and has not ended.
    #[must_use]
    pub fn has_partial(&self) -> bool {
        self.body.is_some() || self.rxm.as_ref().is_some_and(|rxm| rxm.has_partial())
    }

    /// The messages that have begun to arrive and will not end. What else has begun is forgotten.
    #[must_use]
    pub fn abort(&mut self) -> Vec<PartialId> {
        let mut begun = self.rxm.as_mut().map_or_else(Vec::new, |rxm| rxm.abort());
        if let Some(FrameBody::Message { id, .. }) = self.body.take()
            && !begun.contains(&id)
        {
            begun.push(id);
        }
        begun
    }

    /// Whether what waits at the start of these bytes, of which `take` has said that it was held,
    /// can be taken now.
    #[must_use]
    pub fn can_resume(
        &mut self,
        bytes: &[u8],
        who: SenderId,
        rx: &RxQueue,
        host: &mut dyn EngineContext,
    ) -> bool {
        match (&self.stall, &mut self.body) {
            (Some(Stall::RegionBusy(memory)), _) => {
                let is_there = memory.begin_access();
                if is_there {
                    memory.end_access();
                }
                return is_there || !memory.is_open();
            }
            (Some(Stall::CqFull), Some(FrameBody::Write(write))) => {
                return write.notify(who.1, &self.responses, host);
            }
            _ => {}
        }
        if self.has_deferred() {
            return self.can_resume_deferred(who, rx);
        }
        self.next_envelope(bytes, who)
            .is_some_and(|envelope| rx.would_accept(&envelope))
    }
}

/// What the receive context is shown. It counts arrivals.
fn frame_envelope(frame: &Frame, (peer, source): SenderId) -> Result<Envelope, ProtocolViolation> {
    let Some(len) = usize::try_from(frame.payload)
        .ok()
        .filter(|len| *len <= MAX_MESSAGE)
    else {
        return Err(ProtocolViolation("a message longer than memory"));
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
