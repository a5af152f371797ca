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
use fabric_core::provider::{EpId, OpKey, Split};
use fabric_core::{Error, Scarce};

use crate::domain::Domain;
use crate::engine::Locked;
use crate::hub::{CqId, FollowUp, Hub};
use crate::ops::{Ended, Phase, Route};

/// Who hears of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiSink {
    /// A stream, which takes them with [`Domain::poll_part`].
    Stream,
    /// The receive queue of the endpoint, with this context.
    Queue(u64),
}

/// What a receive of several messages has next.
#[derive(Debug)]
pub enum Part {
    /// A message, or the failure of one. Its buffer is a `BytesMut`.
    Message(Ended),
    /// There is no more; here is what is left of the buffer, and why it ended, if it was not used
    /// up or taken back.
    End(Option<Error>, BytesMut),
}

/// One of those receives.
#[derive(Debug)]
pub(crate) struct Multi {
    /// The operation that is posted for it.
    op: OpKey,
    ep: EpId,
    sink: Sink,
    /// What is not used yet, and whether that is all of it.
    rest: BytesMut,
    whole: bool,
    /// With less than this left it takes no more messages.
    min_free: usize,
    /// The parts that are not complete, and those that a stream has not taken; in order of arrival.
    parts: VecDeque<Piece>,
    /// How many are not complete.
    arriving: usize,
    /// Whose those are, as far as one has looked.
    late: Vec<PeerKey>,
    /// It takes no more messages.
    over: bool,
    error: Option<Error>,
}

/// One message of a receive.
#[derive(Debug)]
struct Piece {
    op: OpKey,
    peer: PeerKey,
    complete: bool,
}

#[derive(Debug)]
enum Sink {
    Stream {
        /// Parts there may be at a time.
        limit: usize,
        /// That many are there, and messages are held back.
        full: bool,
    },
    Queue {
        context: u64,
        /// An entry is reserved for the next message, besides the one for the release.
        reserved: bool,
    },
}

impl Locked<'_> {
    #[allow(clippy::result_large_err)] // as of every post
    fn recv_multi(
        &mut self,
        ep: EpId,
        spec: RecvSpec,
        buf: BytesMut,
        min_free: usize,
        sink: MultiSink,
    ) -> Result<OpKey, Failed<BytesMut>> {
        let state = &mut **self;
        let sink = match state.hub.admit_multi(ep, spec, sink) {
            Ok(sink) => sink,
            Err(error) => return Err(Failed::new(error, buf)),
        };
        let entry = state.hub.multis.vacant_entry();
        let number = entry.key() as u32;
        let key = state
            .hub
            .ops
            .insert_recv(ep, Route::Multi(number), AnyBuf::None);
        entry.insert(Multi {
            op: key,
            ep,
            sink,
            rest: buf,
            whole: true,
            min_free,
            parts: VecDeque::new(),
            arriving: 0,
            late: Vec::new(),
            over: false,
            error: None,
        });
        state.post_multi_recv(ep, key, spec);
        Ok(key)
    }

    /// Takes no more messages. Those that have come are still reported.
    fn end_multi(&mut self, key: OpKey) {
        let state = &mut **self;
        let Some(number) = state.hub.multi_of(key) else {
            return;
        };
        let multi = &mut state.hub.multis[number as usize];
        let (ep, is_news) = (multi.ep, !std::mem::replace(&mut multi.over, true));
        if is_news && state.cancel(ep, key) {
            let multi = &mut state.hub.multis[number as usize];
            if let Sink::Queue { .. } = multi.sink {
                multi.error = Some(Error::Canceled);
            }
            state.hub.leave_queue(key);
            state.hub.release_multi(number);
        }
    }

    /// Nobody waits for the messages any more: what has come and was not taken goes to other
    /// receives, in order.
    pub(crate) fn abandon_multi(&mut self, key: OpKey) -> BytesMut {
        let Some(number) = self.hub.multi_of(key) else {
            return BytesMut::new();
        };
        let multi = &mut self.hub.multis[number as usize];
        multi.over = true;
        let (ep, parts) = (multi.ep, std::mem::take(&mut multi.parts));
        // They came before those that still wait for it, which go to others with the cancel.
        for part in parts {
            self.abandon(part.op);
        }
        let state = &mut **self;
        state.cancel(ep, key);
        let multi = state.hub.multis.try_remove(number as usize);
        state.hub.discard(key);
        multi.map_or_else(BytesMut::new, |multi| multi.rest)
    }

    /// Ends the receives that report to this queue.
    pub(crate) fn abandon_multis_of(&mut self, cq: CqId) {
        let hub = &self.hub;
        let queued = |multi: &Multi| matches!(multi.sink, Sink::Queue { .. });
        let of = |multi: &Multi| queued(multi) && hub.queue_of(multi.ep, OpKind::Recv) == Some(cq);
        let keys: Vec<_> = hub
            .multis
            .iter()
            .filter(|(_, multi)| of(multi))
            .map(|(_, multi)| multi.op)
            .collect();
        // All of them first: what one leaves must not go to another that reports to the same queue.
        for (_, multi) in self
            .hub
            .multis
            .iter_mut()
            .filter(|(_, multi)| keys.contains(&multi.op))
        {
            multi.over = true;
        }
        for key in keys {
            self.abandon_multi(key);
        }
    }
}

impl Hub {
    /// Checks such a receive before it is posted, and reserves what it needs.
    fn admit_multi(&mut self, ep: EpId, spec: RecvSpec, sink: MultiSink) -> Result<Sink, Error> {
        let bound = &self.ep(ep)?;
        let limit = bound.bound.rx_size;
        if bound.posted_recvs >= limit {
            return Err(Error::Again(Scarce::ReceiveEntry));
        }
        if let Some(from) = spec.from {
            self.check_address(ep, from)?;
        }
        let sink = match sink {
            MultiSink::Stream => Sink::Stream { limit, full: false },
            MultiSink::Queue(context) => {
                let ring = self.queue_of(ep, OpKind::Recv).and_then(|id| self.cq(id));
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
                Sink::Queue {
                    context,
                    reserved: true,
                }
            }
        };
        self.ep(ep)?.posted_recvs += 1;
        Ok(sink)
    }

    /// Whether a stream takes the messages of this receive.
    pub(crate) fn is_stream(&self, number: u32) -> bool {
        let multi = self.multis.get(number as usize);
        multi.is_some_and(|multi| matches!(multi.sink, Sink::Stream { .. }))
    }

    /// The number of the receive that was posted as this operation.
    fn multi_of(&self, key: OpKey) -> Option<u32> {
        match self.ops.get(key)?.route {
            Route::Multi(number) => Some(number),
            _ => None,
        }
    }

    /// Whether a further message can be reported. If not, the provider is called again when it can.
    pub(crate) fn has_place_for_part(&mut self, key: OpKey) -> bool {
        let Some(number) = self.multi_of(key) else {
            return false;
        };
        let multi = &mut self.multis[number as usize];
        let reserved = match &mut multi.sink {
            Sink::Stream { limit, full } => {
                *full |= multi.parts.len() >= *limit;
                return !*full;
            }
            Sink::Queue { reserved, .. } => reserved,
        };
        if *reserved {
            return true;
        }
        let ring = self
            .eps
            .get(multi.ep.0)
            .and_then(|ep| ep.bound.rx_cq)
            .and_then(|id| self.cqs.get_mut(id.0));
        *reserved = ring.is_some_and(|ring| ring.reserve());
        self.held_notice |= !*reserved;
        *reserved
    }

    /// Reserves entries of this queue, which has some, for the next messages of those that have
    /// none yet.
    pub(crate) fn reserve_for_parts(&mut self, cq: CqId) {
        let Some(ring) = self.cqs.get_mut(cq.0) else {
            return;
        };
        for (_, multi) in self.multis.iter_mut().filter(|(_, multi)| !multi.over) {
            if let Sink::Queue { reserved, .. } = &mut multi.sink
                && self
                    .eps
                    .get(multi.ep.0)
                    .is_some_and(|ep| ep.bound.rx_cq == Some(cq))
            {
                *reserved = *reserved || ring.reserve();
            }
        }
    }

    /// Makes a receive of part of the buffer for this message.
    pub(crate) fn split_off(&mut self, key: OpKey, envelope: &Envelope) -> Split {
        let Some(number) = self
            .multi_of(key)
            .filter(|number| !self.multis[*number as usize].over)
        else {
            return Split::Used;
        };
        if !self.has_place_for_part(key) {
            return Split::Full;
        }
        let multi = &mut self.multis[number as usize];
        let limit = self
            .eps
            .get(multi.ep.0)
            .map_or(0, |ep| ep.bound.max_msg_size);
        let len = envelope.len.min(limit);
        if len > multi.rest.capacity() && !multi.whole {
            multi.over = true;
            self.leave_queue(key);
            self.release_multi(number);
            return Split::Used;
        }
        // A message that is too long for the whole buffer is truncated there, as by any other
        // receive.
        let rest = multi.rest.split_off(len.min(multi.rest.capacity()));
        let part = std::mem::replace(&mut multi.rest, rest);
        multi.whole = false;
        multi.over = multi.rest.capacity() < multi.min_free || len > part.capacity();
        let (ep, over) = (multi.ep, multi.over);
        let part = self
            .ops
            .insert_recv(ep, Route::Multi(number), AnyBuf::BytesMut(part));
        if let Some(op) = self.ops.get_mut(part) {
            op.credit = false;
        }
        multi.parts.push_back(Piece {
            op: part,
            peer: envelope.peer,
            complete: false,
        });
        multi.arriving += 1;
        if let Sink::Queue { reserved, .. } = &mut multi.sink {
            *reserved = false;
        }
        if over {
            self.leave_queue(key);
            return Split::Last(part);
        }
        if let Sink::Queue { reserved, .. } = &mut multi.sink {
            let ring = self
                .eps
                .get(ep.0)
                .and_then(|ep| ep.bound.rx_cq)
                .and_then(|id| self.cqs.get_mut(id.0));
            *reserved = ring.is_some_and(|ring| ring.reserve());
        }
        Split::Part(part)
    }

    /// A part is complete; or the receive itself has ended, with everything of its endpoint or
    /// directed at a peer.
    pub(crate) fn part_ended(&mut self, number: u32, key: OpKey, outcome: Outcome) {
        let Some(multi) = self.multis.get_mut(number as usize) else {
            return;
        };
        if multi.op == key {
            multi.over = true;
            multi.error = outcome.error.map(|error| *error);
            return self.release_multi(number);
        }
        multi.arriving -= 1;
        match multi.sink {
            Sink::Stream { .. } => {
                let waits = multi.op;
                // One of the last, mostly.
                if let Some(part) = multi.parts.iter_mut().rfind(|part| part.op == key) {
                    part.complete = true;
                }
                if let Some(op) = self.ops.get_mut(key) {
                    op.outcome = outcome;
                    op.phase = Phase::Done;
                }
                self.wake(waits);
            }
            Sink::Queue { context, .. } => {
                multi.parts.retain(|part| part.op != key);
                let ep = multi.ep;
                let buf = self
                    .ops
                    .remove(key)
                    .map_or(AnyBuf::None, |op| frozen(op.buf));
                self.report(ep, OpKind::Recv, context, outcome, buf);
            }
        }
        self.release_multi(number);
    }

    /// A part will never be complete, and nobody hears of it. Its place in the buffer stays used.
    pub(crate) fn part_lost(&mut self, key: OpKey) {
        let Some(number) = self.multi_of(key) else {
            return;
        };
        let multi = &mut self.multis[number as usize];
        multi.arriving -= 1;
        multi.parts.retain(|part| part.op != key);
        let (ep, waits, resumes) = (multi.ep, multi.op, multi.resumes());
        if let Sink::Queue { .. } = multi.sink {
            self.unreserve_entry(ep, OpKind::Recv);
        } else {
            // What came behind it from the same sender may be taken now.
            self.wake(waits);
        }
        if resumes {
            self.follow_ups.push(FollowUp::Resume);
        }
        self.discard(key);
        self.release_multi(number);
    }

    /// The operation is no longer posted: its place among the posted receives is free.
    fn leave_queue(&mut self, key: OpKey) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let ep = op.ep;
        if std::mem::take(&mut op.credit) {
            self.release(ep, OpKind::Recv, None);
        }
    }

    /// Reports the end, if nothing more is to come.
    fn release_multi(&mut self, number: u32) {
        let multi = &self.multis[number as usize];
        if !multi.over || multi.arriving > 0 {
            return;
        }
        let Sink::Queue { context, reserved } = multi.sink else {
            return self.wake(multi.op);
        };
        let multi = self.multis.remove(number as usize);
        if reserved {
            self.unreserve_entry(multi.ep, OpKind::Recv);
        }
        let outcome = multi
            .error
            .map_or_else(|| Outcome::ok(Transfer::default()), Outcome::failed);
        self.report(
            multi.ep,
            OpKind::Release,
            context,
            outcome,
            AnyBuf::BytesMut(multi.rest),
        );
        self.discard(multi.op);
    }

    /// Wakes whoever waits for an operation that goes on.
    fn wake(&mut self, key: OpKey) {
        let waiter = self.ops.get_mut(key).and_then(|op| op.waker.take());
        self.wake_waiter(waiter);
    }

    fn take_part(&mut self, key: OpKey) -> Option<Part> {
        let Some(number) = self.multi_of(key) else {
            return Some(Part::End(None, BytesMut::new()));
        };
        let multi = &mut self.multis[number as usize];
        if let Some(at) = multi.next_complete() {
            let part = multi.parts.remove(at)?.op;
            if multi.resumes() {
                self.follow_ups.push(FollowUp::Resume);
            }
            return self.take_done(part).map(Part::Message);
        }
        if !multi.over || multi.arriving > 0 {
            return None;
        }
        let multi = self.multis.remove(number as usize);
        self.discard(key);
        Some(Part::End(multi.error, multi.rest))
    }
}

impl Multi {
    /// A part is gone: whether messages that were held back for want of room can come now.
    fn resumes(&mut self) -> bool {
        let Sink::Stream { limit, full } = &mut self.sink else {
            return false;
        };
        // Not for each message that is taken: to resume is a pass.
        let resumes = *full && self.parts.len() <= *limit / 2;
        *full &= !resumes;
        resumes
    }

    /// Whether it was posted as this operation.
    pub(crate) fn is(&self, key: OpKey) -> bool {
        self.op == key
    }

    /// The first part that is complete, unless one from the same sender that came before is not.
    fn next_complete(&mut self) -> Option<usize> {
        if self.arriving == 0 {
            return (!self.parts.is_empty()).then_some(0);
        }
        self.late.clear();
        for (at, part) in self.parts.iter().enumerate() {
            if !part.complete {
                self.late.push(part.peer);
            } else if !self.late.contains(&part.peer) {
                return Some(at);
            }
        }
        None
    }
}

/// The bytes of a message as the receiver has them.
fn frozen(buf: AnyBuf) -> AnyBuf {
    match buf {
        AnyBuf::BytesMut(buf) => AnyBuf::Bytes(buf.freeze()),
        other => other,
    }
}

impl Domain {
    /// Posts a receive that takes several messages into the spare capacity of this empty buffer,
    /// until fewer than `min_free` bytes are left or a message does not fit.
    ///
    /// # Errors
    /// With the buffer: as [`Domain::recv`]; [`Error::Invalid`] of a queue with one entry.
    #[allow(clippy::result_large_err)] // as of every post
    pub fn recv_multi(
        &self,
        ep: EpId,
        spec: RecvSpec,
        buf: BytesMut,
        min_free: usize,
        sink: MultiSink,
    ) -> Result<OpKey, Failed<BytesMut>> {
        self.with(|locked| locked.recv_multi(ep, spec, buf, min_free, sink))
    }

    /// Drives until such a receive has a message for its stream, or has ended: it must not be
    /// polled again then.
    pub fn poll_part(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Part> {
        self.engine().poll(
            cx.waker(),
            |hub| hub.take_part(key),
            |hub, waker| hub.register(key, waker),
        )
    }

    /// Takes no more messages into this buffer; those that have come are still reported, and then
    /// its end.
    pub fn cancel_multi(&self, key: OpKey) {
        self.with(|locked| locked.end_multi(key));
    }

    /// Nobody takes the messages of this receive any more: those that were not taken go to other
    /// receives. Returns what is left of the buffer.
    pub fn abandon_multi(&self, key: OpKey) -> BytesMut {
        self.with(|locked| locked.abandon_multi(key))
    }
}
