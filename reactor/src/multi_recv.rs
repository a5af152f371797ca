//! Receives that take several messages into one buffer (`FI_MULTI_RECV`).
//!
//! Such a receive is an operation that stays posted. For each message the provider has it *split*:
//! part of its buffer goes into an operation of its own, which is filled, put back and abandoned as
//! any other receive. The parts share memory by a reference count, so nothing has to wait for the
//! rest of the buffer.
//!
//! A message is split off only when there is a place to report it: an entry of the queue, reserved
//! here, or room among the messages that a stream has not taken. A receive that reports to a queue
//! holds two entries as long as it is posted: one for the next message, so that other posts cannot
//! keep it from ever getting one, and one for its release.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::BytesMut;
use fabric_core::buf::AnyBuf;
use fabric_core::completion::{Failed, OpKind, Outcome, Transfer};
use fabric_core::matching::{Envelope, PeerKey, RecvSpec};
use fabric_core::transport::{EpId, MultiRecvSplit, OpKey};
use fabric_core::{Error, Resource};

use crate::domain::DomainHandle;
use crate::domain_state::{CqId, DomainState, FollowUp};
use crate::engine::EngineGuard;
use crate::ops::{CompletionTarget, OpPhase, OpResult};

/// Who hears of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiRecvTarget {
    /// A stream, which takes them with [`DomainHandle::poll_multi_recv`].
    Stream,
    /// The receive queue of the endpoint, with this context.
    Cq(u64),
}

/// What a receive of several messages has next.
#[derive(Debug)]
pub enum MultiRecvItem {
    /// A message, or the failure of one. Its buffer is a `BytesMut`.
    Message(OpResult),
    /// There is no more; here is what is left of the buffer, and why it ended, if it was not used
    /// up or taken back.
    End(Option<Error>, BytesMut),
}

/// One of those receives.
#[derive(Debug)]
pub(crate) struct MultiRecvOp {
    /// The operation that is posted for it.
    op: OpKey,
    ep: EpId,
    sink: MultiRecvSink,
    /// What is not used yet, and whether that is all of it.
    remaining: BytesMut,
    untouched: bool,
    /// With less than this left it takes no more messages.
    min_free: usize,
    /// The parts that are not complete, and those that a stream has not taken; in order of arrival.
    messages: VecDeque<MultiRecvMessage>,
    /// How many are not complete.
    incomplete: usize,
    /// Whose those are, as far as one has looked.
    blocked_peers: Vec<PeerKey>,
    /// It takes no more messages.
    closed: bool,
    error: Option<Error>,
}

/// One message of a receive.
#[derive(Debug)]
struct MultiRecvMessage {
    op: OpKey,
    peer: PeerKey,
    complete: bool,
}

#[derive(Debug)]
enum MultiRecvSink {
    Stream {
        /// Parts there may be at a time.
        limit: usize,
        /// That many are there, and messages are held back.
        full: bool,
    },
    Cq {
        context: u64,
        /// An entry is reserved for the next message, besides the one for the release.
        reserved: bool,
    },
}

impl EngineGuard<'_> {
    #[allow(clippy::result_large_err)] // as of every post
    fn multi_recv(
        &mut self,
        ep: EpId,
        spec: RecvSpec,
        buf: BytesMut,
        min_free: usize,
        sink: MultiRecvTarget,
    ) -> Result<OpKey, Failed<BytesMut>> {
        let state = &mut **self;
        let sink = match state.domain.admit_multi_recv(ep, spec, sink) {
            Ok(sink) => sink,
            Err(error) => return Err(Failed::new(error, buf)),
        };
        let entry = state.domain.multi_recvs.vacant_entry();
        let number = entry.key() as u32;
        let key =
            state
                .domain
                .ops
                .insert_recv(ep, CompletionTarget::MultiRecv(number), AnyBuf::None);
        entry.insert(MultiRecvOp {
            op: key,
            ep,
            sink,
            remaining: buf,
            untouched: true,
            min_free,
            messages: VecDeque::new(),
            incomplete: 0,
            blocked_peers: Vec::new(),
            closed: false,
            error: None,
        });
        state.post_multi_recv(ep, key, spec);
        Ok(key)
    }

    /// Takes no more messages. Those that have come are still reported.
    fn cancel_multi_recv(&mut self, key: OpKey) {
        let state = &mut **self;
        let Some(number) = state.domain.multi_recv_id(key) else {
            return;
        };
        let multi = &mut state.domain.multi_recvs[number as usize];
        let (ep, is_news) = (multi.ep, !std::mem::replace(&mut multi.closed, true));
        if is_news && state.cancel(ep, key) {
            let multi = &mut state.domain.multi_recvs[number as usize];
            if let MultiRecvSink::Cq { .. } = multi.sink {
                multi.error = Some(Error::Canceled);
            }
            state.domain.release_recv_entry(key);
            state.domain.finish_multi_recv(number);
        }
    }

    /// Nobody waits for the messages any more: what has come and was not taken goes to other
    /// receives, in order.
    pub(crate) fn detach_multi_recv(&mut self, key: OpKey) -> BytesMut {
        let Some(number) = self.domain.multi_recv_id(key) else {
            return BytesMut::new();
        };
        let multi = &mut self.domain.multi_recvs[number as usize];
        multi.closed = true;
        let (ep, parts) = (multi.ep, std::mem::take(&mut multi.messages));
        // They came before those that still wait for it, which go to others with the cancel.
        for part in parts {
            self.detach(part.op);
        }
        let state = &mut **self;
        state.cancel(ep, key);
        let multi = state.domain.multi_recvs.try_remove(number as usize);
        state.domain.discard_op(key);
        multi.map_or_else(BytesMut::new, |multi| multi.remaining)
    }

    /// Ends the receives that report to this queue.
    pub(crate) fn detach_multi_recvs_of_cq(&mut self, cq: CqId) {
        let hub = &self.domain;
        let queued = |multi: &MultiRecvOp| matches!(multi.sink, MultiRecvSink::Cq { .. });
        let of =
            |multi: &MultiRecvOp| queued(multi) && hub.cq_of(multi.ep, OpKind::Recv) == Some(cq);
        let keys: Vec<_> = hub
            .multi_recvs
            .iter()
            .filter(|(_, multi)| of(multi))
            .map(|(_, multi)| multi.op)
            .collect();
        // All of them first: what one leaves must not go to another that reports to the same queue.
        for (_, multi) in self
            .domain
            .multi_recvs
            .iter_mut()
            .filter(|(_, multi)| keys.contains(&multi.op))
        {
            multi.closed = true;
        }
        for key in keys {
            self.detach_multi_recv(key);
        }
    }
}

impl DomainState {
    /// Checks such a receive before it is posted, and reserves what it needs.
    fn admit_multi_recv(
        &mut self,
        ep: EpId,
        spec: RecvSpec,
        sink: MultiRecvTarget,
    ) -> Result<MultiRecvSink, Error> {
        let bound = &self.endpoint(ep)?;
        let limit = bound.bindings.rx_size;
        if bound.posted_recvs >= limit {
            return Err(Error::WouldBlock(Resource::ReceiveEntry));
        }
        if let Some(from) = spec.from {
            self.check_address(ep, from)?;
        }
        let sink = match sink {
            MultiRecvTarget::Stream => MultiRecvSink::Stream { limit, full: false },
            MultiRecvTarget::Cq(context) => {
                let ring = self.cq_of(ep, OpKind::Recv).and_then(|id| self.cq(id));
                if ring.is_some_and(|ring| ring.capacity() < 2) {
                    let why =
                        "of one entry, and a message and the release of the buffer need two".into();
                    return Err(Error::Invalid {
                        what: "completion queue",
                        why,
                    });
                }
                self.reserve_entry(ep, OpKind::Recv)?;
                self.reserve_entry(ep, OpKind::Recv)
                    .inspect_err(|_| self.unreserve_entry(ep, OpKind::Recv))?;
                MultiRecvSink::Cq {
                    context,
                    reserved: true,
                }
            }
        };
        self.endpoint(ep)?.posted_recvs += 1;
        Ok(sink)
    }

    /// Whether a stream takes the messages of this receive.
    pub(crate) fn is_stream(&self, number: u32) -> bool {
        let multi = self.multi_recvs.get(number as usize);
        multi.is_some_and(|multi| matches!(multi.sink, MultiRecvSink::Stream { .. }))
    }

    /// The number of the receive that was posted as this operation.
    fn multi_recv_id(&self, key: OpKey) -> Option<u32> {
        match self.ops.get(key)?.target {
            CompletionTarget::MultiRecv(number) => Some(number),
            _ => None,
        }
    }

    /// Whether a further message can be reported. If not, the provider is called again when it can.
    pub(crate) fn has_room_for_message(&mut self, key: OpKey) -> bool {
        let Some(number) = self.multi_recv_id(key) else {
            return false;
        };
        let multi = &mut self.multi_recvs[number as usize];
        let reserved = match &mut multi.sink {
            MultiRecvSink::Stream { limit, full } => {
                *full |= multi.messages.len() >= *limit;
                return !*full;
            }
            MultiRecvSink::Cq { reserved, .. } => reserved,
        };
        if *reserved {
            return true;
        }
        let ring = self
            .endpoints
            .get(multi.ep.0)
            .and_then(|ep| ep.bindings.rx_cq)
            .and_then(|id| self.cqs.get_mut(id.0));
        *reserved = ring.is_some_and(|ring| ring.reserve());
        self.blocked_on_cq |= !*reserved;
        *reserved
    }

    /// Reserves entries of this queue, which has some, for the next messages of those that have
    /// none yet.
    pub(crate) fn reserve_multi_recv_entries(&mut self, cq: CqId) {
        let Some(ring) = self.cqs.get_mut(cq.0) else {
            return;
        };
        for (_, multi) in self
            .multi_recvs
            .iter_mut()
            .filter(|(_, multi)| !multi.closed)
        {
            if let MultiRecvSink::Cq { reserved, .. } = &mut multi.sink
                && self
                    .endpoints
                    .get(multi.ep.0)
                    .is_some_and(|ep| ep.bindings.rx_cq == Some(cq))
            {
                *reserved = *reserved || ring.reserve();
            }
        }
    }

    /// Makes a receive of part of the buffer for this message.
    pub(crate) fn split_for_message(&mut self, key: OpKey, envelope: &Envelope) -> MultiRecvSplit {
        let Some(number) = self
            .multi_recv_id(key)
            .filter(|number| !self.multi_recvs[*number as usize].closed)
        else {
            return MultiRecvSplit::Exhausted;
        };
        if !self.has_room_for_message(key) {
            return MultiRecvSplit::CqFull;
        }
        let multi = &mut self.multi_recvs[number as usize];
        let limit = self
            .endpoints
            .get(multi.ep.0)
            .map_or(0, |ep| ep.bindings.max_msg_size);
        let len = envelope.len.min(limit);
        if len > multi.remaining.capacity() && !multi.untouched {
            multi.closed = true;
            self.release_recv_entry(key);
            self.finish_multi_recv(number);
            return MultiRecvSplit::Exhausted;
        }
        // A message that is too long for the whole buffer is truncated there, as by any other
        // receive.
        let rest = multi
            .remaining
            .split_off(len.min(multi.remaining.capacity()));
        let part = std::mem::replace(&mut multi.remaining, rest);
        multi.untouched = false;
        multi.closed = multi.remaining.capacity() < multi.min_free || len > part.capacity();
        let (ep, over) = (multi.ep, multi.closed);
        let part = self.ops.insert_recv(
            ep,
            CompletionTarget::MultiRecv(number),
            AnyBuf::BytesMut(part),
        );
        if let Some(op) = self.ops.get_mut(part) {
            op.holds_credit = false;
        }
        multi.messages.push_back(MultiRecvMessage {
            op: part,
            peer: envelope.peer,
            complete: false,
        });
        multi.incomplete += 1;
        if let MultiRecvSink::Cq { reserved, .. } = &mut multi.sink {
            *reserved = false;
        }
        if over {
            self.release_recv_entry(key);
            return MultiRecvSplit::Last(part);
        }
        if let MultiRecvSink::Cq { reserved, .. } = &mut multi.sink {
            let ring = self
                .endpoints
                .get(ep.0)
                .and_then(|ep| ep.bindings.rx_cq)
                .and_then(|id| self.cqs.get_mut(id.0));
            *reserved = ring.is_some_and(|ring| ring.reserve());
        }
        MultiRecvSplit::Part(part)
    }

    /// A part is complete; or the receive itself has ended, with everything of its endpoint or
    /// directed at a peer.
    pub(crate) fn on_multi_recv_message(&mut self, number: u32, key: OpKey, outcome: Outcome) {
        let Some(multi) = self.multi_recvs.get_mut(number as usize) else {
            return;
        };
        if multi.op == key {
            multi.closed = true;
            multi.error = outcome.error.map(|error| *error);
            return self.finish_multi_recv(number);
        }
        multi.incomplete -= 1;
        match multi.sink {
            MultiRecvSink::Stream { .. } => {
                let waits = multi.op;
                // One of the last, mostly.
                if let Some(part) = multi.messages.iter_mut().rfind(|part| part.op == key) {
                    part.complete = true;
                }
                if let Some(op) = self.ops.get_mut(key) {
                    op.outcome = outcome;
                    op.phase = OpPhase::Done;
                }
                self.wake_op(waits);
            }
            MultiRecvSink::Cq { context, .. } => {
                multi.messages.retain(|part| part.op != key);
                let ep = multi.ep;
                let buf = self
                    .ops
                    .remove(key)
                    .map_or(AnyBuf::None, |op| freeze_buffer(op.buf));
                self.report_completion(ep, OpKind::Recv, context, outcome, buf);
            }
        }
        self.finish_multi_recv(number);
    }

    /// A part will never be complete, and nobody hears of it. Its place in the buffer stays used.
    pub(crate) fn part_lost(&mut self, key: OpKey) {
        let Some(number) = self.multi_recv_id(key) else {
            return;
        };
        let multi = &mut self.multi_recvs[number as usize];
        multi.incomplete -= 1;
        multi.messages.retain(|part| part.op != key);
        let (ep, waits, resumes) = (multi.ep, multi.op, multi.resumes());
        if let MultiRecvSink::Cq { .. } = multi.sink {
            self.unreserve_entry(ep, OpKind::Recv);
        } else {
            // What came behind it from the same sender may be taken now.
            self.wake_op(waits);
        }
        if resumes {
            self.follow_ups.push(FollowUp::ResumeProgress);
        }
        self.discard_op(key);
        self.finish_multi_recv(number);
    }

    /// The operation is no longer posted: its place among the posted receives is free.
    fn release_recv_entry(&mut self, key: OpKey) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let ep = op.ep;
        if std::mem::take(&mut op.holds_credit) {
            self.release_credit(ep, OpKind::Recv, None);
        }
    }

    /// Reports the end, if nothing more is to come.
    fn finish_multi_recv(&mut self, number: u32) {
        let multi = &self.multi_recvs[number as usize];
        if !multi.closed || multi.incomplete > 0 {
            return;
        }
        let MultiRecvSink::Cq { context, reserved } = multi.sink else {
            return self.wake_op(multi.op);
        };
        let multi = self.multi_recvs.remove(number as usize);
        if reserved {
            self.unreserve_entry(multi.ep, OpKind::Recv);
        }
        let outcome = multi
            .error
            .map_or_else(|| Outcome::ok(Transfer::default()), Outcome::failed);
        self.report_completion(
            multi.ep,
            OpKind::MultiRecvRelease,
            context,
            outcome,
            AnyBuf::BytesMut(multi.remaining),
        );
        self.discard_op(multi.op);
    }

    /// Wakes whoever waits for an operation that goes on.
    fn wake_op(&mut self, key: OpKey) {
        let waiter = self.ops.get_mut(key).and_then(|op| op.waker.take());
        self.wake_waiter(waiter);
    }

    fn take_multi_recv_item(&mut self, key: OpKey) -> Option<MultiRecvItem> {
        let Some(number) = self.multi_recv_id(key) else {
            return Some(MultiRecvItem::End(None, BytesMut::new()));
        };
        let multi = &mut self.multi_recvs[number as usize];
        if let Some(at) = multi.next_complete() {
            let part = multi.messages.remove(at)?.op;
            if multi.resumes() {
                self.follow_ups.push(FollowUp::ResumeProgress);
            }
            return self.take_op_result(part).map(MultiRecvItem::Message);
        }
        if !multi.closed || multi.incomplete > 0 {
            return None;
        }
        let multi = self.multi_recvs.remove(number as usize);
        self.discard_op(key);
        Some(MultiRecvItem::End(multi.error, multi.remaining))
    }
}

impl MultiRecvOp {
    /// A part is gone: whether messages that were held back for want of room can come now.
    fn resumes(&mut self) -> bool {
        let MultiRecvSink::Stream { limit, full } = &mut self.sink else {
            return false;
        };
        // Not for each message that is taken: to resume is a pass.
        let resumes = *full && self.messages.len() <= *limit / 2;
        *full &= !resumes;
        resumes
    }

    /// Whether it was posted as this operation.
    pub(crate) fn is(&self, key: OpKey) -> bool {
        self.op == key
    }

    /// The first part that is complete, unless one from the same sender that came before is not.
    fn next_complete(&mut self) -> Option<usize> {
        if self.incomplete == 0 {
            return (!self.messages.is_empty()).then_some(0);
        }
        self.blocked_peers.clear();
        for (at, part) in self.messages.iter().enumerate() {
            if !part.complete {
                self.blocked_peers.push(part.peer);
            } else if !self.blocked_peers.contains(&part.peer) {
                return Some(at);
            }
        }
        None
    }
}

/// The bytes of a message as the receiver has them.
fn freeze_buffer(buf: AnyBuf) -> AnyBuf {
    match buf {
        AnyBuf::BytesMut(buf) => AnyBuf::Bytes(buf.freeze()),
        other => other,
    }
}

impl DomainHandle {
    /// Posts a receive that takes several messages into the spare capacity of this empty buffer,
    /// until fewer than `min_free` bytes are left or a message does not fit.
    ///
    /// # Errors
    /// With the buffer: as [`DomainHandle::recv`]; [`Error::Invalid`] of a queue with one entry.
    #[allow(clippy::result_large_err)] // as of every post
    pub fn multi_recv(
        &self,
        ep: EpId,
        spec: RecvSpec,
        buf: BytesMut,
        min_free: usize,
        sink: MultiRecvTarget,
    ) -> Result<OpKey, Failed<BytesMut>> {
        self.with_engine(|locked| locked.multi_recv(ep, spec, buf, min_free, sink))
    }

    /// Drives until such a receive has a message for its stream, or has ended: it must not be
    /// polled again then.
    pub fn poll_multi_recv(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<MultiRecvItem> {
        self.engine().poll(
            cx.waker(),
            |hub| hub.take_multi_recv_item(key),
            |hub, waker| hub.register_op_waker(key, waker),
        )
    }

    /// Takes no more messages into this buffer; those that have come are still reported, and then
    /// its end.
    pub fn cancel_multi_recv(&self, key: OpKey) {
        self.with_engine(|locked| locked.cancel_multi_recv(key));
    }

    /// Nobody takes the messages of this receive any more: those that were not taken go to other
    /// receives. Returns what is left of the buffer.
    pub fn detach_multi_recv(&self, key: OpKey) -> BytesMut {
        self.with_engine(|locked| locked.detach_multi_recv(key))
    }
}
