//! Receives that take several messages into one buffer (`FI_MULTI_RECV`).
//!
//! A multi-receive is an operation that stays posted. For each message the receive queue has the
//! engine split it: part of the buffer, as long as the message, goes into an operation of its own,
//! which is filled, requeued and detached like any other receive. The parts share the memory by a
//! reference count, so none waits for the rest of the buffer. The multi-receive leaves the queue
//! when it takes no more messages.
//!
//! A message is split off only if it can be reported: there is a completion queue entry, reserved
//! here, or room among the messages that a stream has not taken. Otherwise the message stays in the
//! ring or socket, like one over the budget. A multi-receive that reports to a queue holds two
//! entries while it is posted: one for the next message, so that other posts cannot starve it, and
//! one for its release.

use std::collections::VecDeque;

use bytes::BytesMut;
use fabric_core::buf::AnyBuf;
use fabric_core::completion::{Failed, OpKind, Outcome, Transfer};
use fabric_core::matching::{Envelope, PeerKey, RecvSpec};
use fabric_core::transport::{EpId, MultiRecvSplit, OpKey};
use fabric_core::{Error, Resource};
use slab::Slab;

use super::bindings::CqId;
use super::domain_state::DomainState;
use super::ops::{CompletionTarget, OpResult};
use super::pending_work::FollowUp;

/// Where the messages of a multi-receive are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiRecvTarget {
    /// To a stream, which takes them with
    /// [`poll_multi_recv`](crate::DomainHandle::poll_multi_recv).
    Stream,
    /// To the receive queue of the endpoint, with this context.
    Cq(u64),
}

/// The next item of a multi-receive.
#[derive(Debug)]
pub enum MultiRecvItem {
    /// A message, or the failure of one. Its buffer is a `BytesMut`.
    Message(OpResult),
    /// The end, with the rest of the buffer. There is an error unless the buffer is used up or the
    /// multi-receive was canceled.
    End(Option<Error>, BytesMut),
}

/// The multi-receives of a domain.
#[derive(Debug, Default)]
pub(crate) struct MultiRecvs(Slab<MultiRecvEntry>);

impl MultiRecvs {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a future or a stream takes the messages of this target, and may be dropped
    /// before it has taken them.
    pub(crate) fn may_abandon_message(&self, target: CompletionTarget) -> bool {
        match target {
            CompletionTarget::Future => true,
            CompletionTarget::MultiRecv(id) => {
                let multi = self.0.get(id as usize);
                multi.is_some_and(|multi| matches!(multi.sink, MultiRecvSink::Stream { .. }))
            }
            CompletionTarget::Cq(_)
            | CompletionTarget::CqOnError(_)
            | CompletionTarget::Discard => false,
        }
    }

    /// Takes the operations of the messages that have arrived for a stream and were not taken.
    pub(crate) fn take_messages(&mut self, id: u32) -> Vec<OpKey> {
        let messages = std::mem::take(&mut self.0[id as usize].messages);
        messages.into_iter().map(|message| message.op).collect()
    }

    /// Returns the multi-receives of an endpoint that report to a queue with this context.
    pub(crate) fn with_context(&self, ep: EpId, context: u64) -> impl Iterator<Item = OpKey> {
        let matches = move |multi: &&MultiRecvEntry| match multi.sink {
            MultiRecvSink::Cq { context: other, .. } => multi.ep == ep && other == context,
            MultiRecvSink::Stream { .. } => false,
        };
        let multi_recvs = self.0.iter().map(|(_, multi)| multi);
        multi_recvs.filter(matches).map(|multi| multi.op)
    }
}

/// A multi-receive.
#[derive(Debug)]
struct MultiRecvEntry {
    /// The operation as which the multi-receive is posted.
    op: OpKey,
    ep: EpId,
    sink: MultiRecvSink,
    /// The unused rest of the buffer.
    remaining: BytesMut,
    /// Whether `remaining` is the whole buffer.
    untouched: bool,
    /// The multi-receive closes when fewer bytes than this are left (`FI_OPT_MIN_MULTI_RECV`).
    min_free: usize,
    /// The parts that are incomplete, and those that a stream has not taken, in order of arrival.
    messages: VecDeque<MultiRecvMessage>,
    /// The number of incomplete parts.
    incomplete: usize,
    /// Scratch memory: the senders of the incomplete parts that a search has passed.
    blocked_peers: Vec<PeerKey>,
    /// Whether the multi-receive takes no more messages.
    closed: bool,
    error: Option<Error>,
}

/// One message of a multi-receive.
#[derive(Debug)]
struct MultiRecvMessage {
    op: OpKey,
    peer: PeerKey,
    complete: bool,
}

#[derive(Debug)]
enum MultiRecvSink {
    Stream {
        /// The maximum number of parts at a time.
        limit: usize,
        /// Whether the limit is reached and messages are held.
        full: bool,
    },
    Cq {
        context: u64,
        /// Whether an entry is reserved for the next message, besides the one for the release.
        reserved: bool,
    },
}

impl DomainState {
    /// Adds a multi-receive, which the caller posts to the receive queue.
    #[allow(clippy::result_large_err)] // as of every post
    pub(crate) fn insert_multi_recv(
        &mut self,
        ep: EpId,
        spec: RecvSpec,
        buf: BytesMut,
        min_free: usize,
        sink: MultiRecvTarget,
    ) -> Result<OpKey, Failed<BytesMut>> {
        let sink = match self.admit_multi_recv(ep, spec, sink) {
            Ok(sink) => sink,
            Err(error) => return Err(Failed::new(error, buf)),
        };
        let entry = self.multi_recvs.0.vacant_entry();
        let id = entry.key() as u32;
        let target = CompletionTarget::MultiRecv(id);
        let key = self.ops.insert_recv(ep, target, AnyBuf::None);
        entry.insert(MultiRecvEntry {
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
        Ok(key)
    }

    /// Closes a multi-receive to further messages. Returns its id, its endpoint, and whether it
    /// took messages before.
    pub(crate) fn close_multi_recv(&mut self, key: OpKey) -> Option<(u32, EpId, bool)> {
        let id = self.multi_recv_id(key)?;
        let multi = &mut self.multi_recvs.0[id as usize];
        Some((id, multi.ep, !std::mem::replace(&mut multi.closed, true)))
    }

    /// Ends a multi-receive that was closed and has left the receive queue.
    pub(crate) fn end_canceled_multi_recv(&mut self, id: u32) {
        let multi = &mut self.multi_recvs.0[id as usize];
        if let MultiRecvSink::Cq { .. } = multi.sink {
            multi.error = Some(Error::Canceled);
        }
        let key = multi.op;
        self.release_op_resources(key);
        self.finish_multi_recv(id);
    }

    /// Removes a multi-receive that has left the receive queue, and returns the rest of its buffer.
    pub(crate) fn remove_multi_recv(&mut self, id: u32, key: OpKey) -> BytesMut {
        let multi = self.multi_recvs.0.try_remove(id as usize);
        self.discard_op(key);
        multi.map_or_else(BytesMut::new, |multi| multi.remaining)
    }

    /// Closes the multi-receives that report to this queue, and returns their operations.
    pub(crate) fn close_multi_recvs_of_cq(&mut self, cq: CqId) -> Vec<OpKey> {
        let uses_queue = |multi: &MultiRecvEntry| matches!(multi.sink, MultiRecvSink::Cq { .. });
        let reports_to = |multi: &MultiRecvEntry| {
            uses_queue(multi) && self.endpoints.cq_of(multi.ep, OpKind::Recv) == Some(cq)
        };
        let reporting = self
            .multi_recvs
            .0
            .iter()
            .filter(|(_, multi)| reports_to(multi));
        let keys: Vec<_> = reporting.map(|(_, multi)| multi.op).collect();
        for key in &keys {
            self.close_multi_recv(*key);
        }
        keys
    }

    /// Checks a multi-receive before it is posted, and reserves its entries.
    fn admit_multi_recv(
        &mut self,
        ep: EpId,
        spec: RecvSpec,
        sink: MultiRecvTarget,
    ) -> Result<MultiRecvSink, Error> {
        let ep_state = self.endpoints.get_open(ep)?;
        let limit = ep_state.bindings().rx_size;
        if ep_state.free_recvs() == 0 {
            return Err(Error::WouldBlock(Resource::ReceiveEntry { limit }));
        }
        if let Some(from) = spec.from {
            self.check_address(ep, from)?;
        }
        let sink = match sink {
            MultiRecvTarget::Stream => MultiRecvSink::Stream { limit, full: false },
            MultiRecvTarget::Cq(context) => {
                let queue = self.cqs.get_mut(self.endpoints.cq_of(ep, OpKind::Recv));
                if queue.is_some_and(|queue| queue.capacity() < 2) {
                    let reason = "its capacity is 1; a multi-receive needs 2 entries".into();
                    return Err(Error::Invalid {
                        what: "completion queue",
                        why: reason,
                    });
                }
                let queue = self.reserve_entry(ep, OpKind::Recv)?;
                self.reserve_entry(ep, OpKind::Recv)
                    .inspect_err(|_| self.unreserve_entry(queue))?;
                MultiRecvSink::Cq {
                    context,
                    reserved: true,
                }
            }
        };
        self.endpoints.get_open(ep)?.add_posted_recvs(1);
        Ok(sink)
    }

    /// Returns whether this operation is a multi-receive.
    pub(crate) fn is_multi_recv(&self, key: OpKey) -> bool {
        let id = self.multi_recv_id(key);
        let multi = id.and_then(|id| self.multi_recvs.0.get(id as usize));
        multi.is_some_and(|multi| multi.op == key)
    }

    /// Returns the id of the multi-receive that was posted as this operation.
    fn multi_recv_id(&self, key: OpKey) -> Option<u32> {
        match self.ops.get(key)?.target() {
            CompletionTarget::MultiRecv(id) => Some(id),
            _ => None,
        }
    }

    /// Returns whether another message can be reported. If not, the transport is called again when
    /// there is room.
    pub(crate) fn has_room_for_message(&mut self, key: OpKey) -> bool {
        let Some(id) = self.multi_recv_id(key) else {
            return false;
        };
        let multi = &mut self.multi_recvs.0[id as usize];
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
        let queue = self.endpoints.cq_of(multi.ep, OpKind::Recv);
        *reserved = self.cqs.reserve(queue).is_ok();
        if !*reserved {
            self.access_changes.block_on_cq();
        }
        *reserved
    }

    /// Reserves entries of a queue that has room, for the next messages of multi-receives that have
    /// none reserved.
    pub(crate) fn reserve_multi_recv_entries(&mut self, cq: CqId) {
        let Some(queue) = self.cqs.get_mut(cq) else {
            return;
        };
        for (_, multi) in self
            .multi_recvs
            .0
            .iter_mut()
            .filter(|(_, multi)| !multi.closed)
        {
            if let MultiRecvSink::Cq { reserved, .. } = &mut multi.sink
                && self.endpoints.cq_of(multi.ep, OpKind::Recv) == Some(cq)
            {
                *reserved = *reserved || queue.reserve();
            }
        }
    }

    /// Splits a receive for this message off the buffer.
    pub(crate) fn split_for_message(&mut self, key: OpKey, envelope: &Envelope) -> MultiRecvSplit {
        let Some(id) = self
            .multi_recv_id(key)
            .filter(|id| !self.multi_recvs.0[*id as usize].closed)
        else {
            return MultiRecvSplit::Exhausted;
        };
        if !self.has_room_for_message(key) {
            return MultiRecvSplit::CqFull;
        }
        let multi = &mut self.multi_recvs.0[id as usize];
        let limit = self.endpoints.max_msg_size(multi.ep);
        let len = envelope.len.min(limit);
        if len > multi.remaining.capacity() && !multi.untouched {
            multi.closed = true;
            self.release_op_resources(key);
            self.finish_multi_recv(id);
            return MultiRecvSplit::Exhausted;
        }
        // A message that is too long for the whole buffer is truncated, as by any other receive.
        let remaining = multi
            .remaining
            .split_off(len.min(multi.remaining.capacity()));
        let part = std::mem::replace(&mut multi.remaining, remaining);
        multi.untouched = false;
        multi.closed = multi.remaining.capacity() < multi.min_free || len > part.capacity();
        let (ep, exhausted) = (multi.ep, multi.closed);
        let part =
            self.ops
                .insert_recv(ep, CompletionTarget::MultiRecv(id), AnyBuf::BytesMut(part));
        // The place among the posted receives is that of the multi-receive.
        self.ops.take_credit(part);
        multi.messages.push_back(MultiRecvMessage {
            op: part,
            peer: envelope.peer,
            complete: false,
        });
        multi.incomplete += 1;
        if let MultiRecvSink::Cq { reserved, .. } = &mut multi.sink {
            let queue = self.endpoints.cq_of(ep, OpKind::Recv);
            *reserved = !exhausted && self.cqs.reserve(queue).is_ok();
        }
        if exhausted {
            self.release_op_resources(key);
            return MultiRecvSplit::Last(part);
        }
        MultiRecvSplit::Part(part)
    }

    /// Records that a part is complete, or that the multi-receive itself has ended with its
    /// endpoint or with the peer it was directed at.
    pub(crate) fn on_multi_recv_message(&mut self, id: u32, key: OpKey, outcome: Outcome) {
        let Some(multi) = self.multi_recvs.0.get_mut(id as usize) else {
            return;
        };
        if multi.op == key {
            multi.closed = true;
            multi.error = outcome.error.map(|error| *error);
            return self.finish_multi_recv(id);
        }
        multi.incomplete -= 1;
        match multi.sink {
            MultiRecvSink::Stream { .. } => {
                let op = multi.op;
                // Completed parts are mostly near the end.
                if let Some(part) = multi.messages.iter_mut().rfind(|part| part.op == key) {
                    part.complete = true;
                }
                if let Some(op) = self.ops.get_mut(key) {
                    op.finish(outcome, &mut self.deferred);
                }
                self.wake_op(op);
            }
            MultiRecvSink::Cq { context, .. } => {
                multi.messages.retain(|part| part.op != key);
                let ep = multi.ep;
                let buf = self
                    .ops
                    .remove(key)
                    .map_or(AnyBuf::None, |op| freeze_buffer(op.buf));
                let queue = self.endpoints.cq_of(ep, OpKind::Recv);
                self.report_to_cq(queue, OpKind::Recv, context, outcome, buf);
            }
        }
        self.finish_multi_recv(id);
    }

    /// Drops a part that will never be complete, without a report. Its place in the buffer stays
    /// used.
    pub(crate) fn part_lost(&mut self, key: OpKey) {
        let Some(id) = self.multi_recv_id(key) else {
            return;
        };
        let multi = &mut self.multi_recvs.0[id as usize];
        multi.incomplete -= 1;
        multi.messages.retain(|part| part.op != key);
        let (ep, op, resumes) = (multi.ep, multi.op, multi.resumes());
        if let MultiRecvSink::Cq { .. } = multi.sink {
            self.unreserve_entry(self.endpoints.cq_of(ep, OpKind::Recv));
        } else {
            // A later message of the same sender may be taken now.
            self.wake_op(op);
        }
        if resumes {
            self.pending_work.push(FollowUp::MakePass);
        }
        self.discard_op(key);
        self.finish_multi_recv(id);
    }

    /// Reports the end of a multi-receive if it is closed and all its parts are complete.
    fn finish_multi_recv(&mut self, id: u32) {
        let multi = &self.multi_recvs.0[id as usize];
        if !multi.closed || multi.incomplete > 0 {
            return;
        }
        let MultiRecvSink::Cq { context, reserved } = multi.sink else {
            return self.wake_op(multi.op);
        };
        let multi = self.multi_recvs.0.remove(id as usize);
        let (kind, queue) = (
            OpKind::MultiRecvRelease,
            self.endpoints.cq_of(multi.ep, OpKind::Recv),
        );
        if reserved {
            self.unreserve_entry(queue);
        }
        let outcome = multi
            .error
            .map_or_else(|| Outcome::ok(Transfer::default()), Outcome::failed);
        let rest = AnyBuf::BytesMut(multi.remaining);
        self.report_to_cq(queue, kind, context, outcome, rest);
        self.discard_op(multi.op);
    }

    /// Wakes the task that waits for an operation that goes on.
    fn wake_op(&mut self, key: OpKey) {
        if let Some(op) = self.ops.get_mut(key) {
            op.waiter.wake(&mut self.deferred);
        }
    }

    pub(crate) fn take_multi_recv_item(&mut self, key: OpKey) -> Option<MultiRecvItem> {
        let Some(id) = self.multi_recv_id(key) else {
            return Some(MultiRecvItem::End(None, BytesMut::new()));
        };
        let multi = &mut self.multi_recvs.0[id as usize];
        if let Some(index) = multi.next_complete() {
            let part = multi.messages.remove(index)?.op;
            if multi.resumes() {
                self.pending_work.push(FollowUp::MakePass);
            }
            return self.take_op_result(part).map(MultiRecvItem::Message);
        }
        if !multi.closed || multi.incomplete > 0 {
            return None;
        }
        let multi = self.multi_recvs.0.remove(id as usize);
        self.discard_op(key);
        Some(MultiRecvItem::End(multi.error, multi.remaining))
    }
}

impl MultiRecvEntry {
    /// Returns whether messages that were held can resume, after a part was removed.
    fn resumes(&mut self) -> bool {
        let MultiRecvSink::Stream { limit, full } = &mut self.sink else {
            return false;
        };
        // Not for each message that is taken, because resuming costs a pass.
        let resumes = *full && self.messages.len() <= *limit / 2;
        *full &= !resumes;
        resumes
    }

    /// Returns the index of the first complete part that has no incomplete part of the same sender
    /// before it.
    fn next_complete(&mut self) -> Option<usize> {
        if self.incomplete == 0 {
            return (!self.messages.is_empty()).then_some(0);
        }
        self.blocked_peers.clear();
        for (index, part) in self.messages.iter().enumerate() {
            if !part.complete {
                self.blocked_peers.push(part.peer);
            } else if !self.blocked_peers.contains(&part.peer) {
                return Some(index);
            }
        }
        None
    }
}

/// Converts the buffer of a message to the type that completions carry.
fn freeze_buffer(buf: AnyBuf) -> AnyBuf {
    match buf {
        AnyBuf::BytesMut(buf) => AnyBuf::Bytes(buf.freeze()),
        other => other,
    }
}
