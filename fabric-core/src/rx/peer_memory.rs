//! Messages that lie in memory of their sender's: given on as they are, or copied by and by.
//!
//! Memory that is mapped here stays, whatever becomes of the sender: a message in it waits where it
//! lies. Memory that is not mapped is *fleeting*. Its message is copied as well if nobody has asked
//! for it, as far as the budget goes: two peers that each send before they receive must not wait
//! for each other. Beyond the budget it waits with its sender, and holds up nothing else.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::acks::ack_match;
use super::lost::{Filling, OnLoss};
use super::multi::MatchResult;
use super::partial::{PartialId, PartialMessage, PartialTarget};
use super::{RxQueue, UNEXPECTED_OVERHEAD, UnexpectedMessage};
use crate::buf::{CopySource, PeerMemory};
use crate::error::Error;
use crate::matching::{Envelope, PeerKey, UnexpectedKey};
use crate::transport::{EngineContext, OpKey};

/// Bytes of a lent message that are copied in one go. A longer one is copied by and by.
pub(super) const COPY_CHUNK: usize = 256 << 10;

/// A message that waits in memory which is not mapped here.
#[derive(Clone, Copy)]
pub(super) struct UnmappedUnexpected {
    pub(super) arrival: u64,
    pub(super) key: UnexpectedKey,
    pub(super) len: usize,
}

/// Part of lent memory.
struct PeerMemorySlice<'a> {
    memory: &'a dyn PeerMemory,
    from: usize,
    len: usize,
}

impl CopySource for PeerMemorySlice<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.memory.copy_to(self.from + from, dst)
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        self.memory.copy_to_init(self.from + from, dst);
    }
}

/// A lent message, as bytes to be copied or held.
struct PeerMemorySource<'a>(&'a Arc<dyn PeerMemory>);

impl CopySource for PeerMemorySource<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.0.copy_to(from, dst)
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        self.0.copy_to_init(from, dst);
    }

    fn peer_memory(&self) -> Option<Arc<dyn PeerMemory>> {
        Some(self.0.clone())
    }
}

impl UnexpectedMessage {
    /// Whether it goes with its sender.
    pub(super) fn is_unmapped(&self) -> bool {
        self.peer_memory
            .as_ref()
            .is_some_and(|memory| !memory.is_mapped())
    }
}

impl RxQueue {
    /// A whole message arrives in memory that can be held instead of copied. False: it must stay
    /// where it is.
    pub fn deliver_peer_memory(
        &mut self,
        host: &mut dyn EngineContext,
        mut envelope: Envelope,
        memory: &Arc<dyn PeerMemory>,
    ) -> bool {
        if envelope.len <= COPY_CHUNK && memory.is_mapped() {
            return self.deliver(host, envelope, &PeerMemorySource(memory));
        }
        match self.take_match_multi(host, &envelope) {
            MatchResult::Receive(receive) => {
                envelope.arrival = self.matcher.next_arrival();
                self.receive_peer_memory(host, receive, envelope, memory.clone());
                true
            }
            MatchResult::Blocked => self.decline(),
            MatchResult::NoReceive => self.deliver(host, envelope, &PeerMemorySource(memory)),
        }
    }

    /// Gives lent memory to a receive: as it is, or copied by and by.
    pub(super) fn receive_peer_memory(
        &mut self,
        host: &mut dyn EngineContext,
        (op, on_loss): (OpKey, OnLoss),
        mut envelope: Envelope,
        memory: Arc<dyn PeerMemory>,
    ) {
        if memory.is_mapped() && (envelope.len <= COPY_CHUNK || host.accepts_loan(op, envelope.len))
        {
            host.deliver(op, &envelope, &PeerMemorySource(&memory));
            return self.queue_ack(&envelope);
        }
        ack_match(&mut self.pending_acks, &mut envelope);
        let room = match host.begin_fill(op, envelope.len) {
            Ok(room) => room,
            Err(error) => return self.refuse(host, op, &envelope, error),
        };
        let target = PartialTarget::Receive {
            op,
            capacity: room,
            written: 0,
        };
        let id = self.partials.insert(PartialMessage::new(envelope, target));
        self.partial_receives.push(Filling {
            op,
            landing: id,
            on_loss,
        });
        self.peer_copies.push_back((id, memory));
    }

    /// Copies a piece of a lent message that is being copied. Returns whether there was one.
    pub fn copy_next_chunk(&mut self, host: &mut dyn EngineContext) -> bool {
        self.discarded_unmapped = false;
        self.start_unmapped_copies();
        let Some((id, memory)) = self.peer_copies.pop_front() else {
            return false;
        };
        if !self.copy_chunk(host, PartialId(id), &*memory) {
            // Everybody gets a turn.
            self.peer_copies.push_back((id, memory));
        }
        true
    }

    /// Whether [`RxQueue::drain_unexpected`] or [`RxQueue::copy_next_chunk`] have something to do, or senders
    /// something to hear.
    #[must_use]
    #[inline]
    pub fn has_work(&self) -> bool {
        let copies = !self.peer_copies.is_empty() || self.discarded_unmapped || self.is_draining();
        copies || self.has_pending_acks() || self.next_bufferable().is_some()
    }

    /// What this peer has not mapped here is lost, and discarded; its sender knows that it has not
    /// arrived. The receives that it was being copied to fail if they are directed, and wait for the
    /// next message otherwise.
    pub fn fail_unmapped_from(
        &mut self,
        host: &mut dyn EngineContext,
        peer: PeerKey,
        error: &Error,
    ) {
        let mut lost = Vec::new();
        self.peer_copies.retain(|(id, memory)| {
            let from_there = self
                .partials
                .get(*id)
                .is_some_and(|landing| landing.envelope.peer == peer);
            let is_lost = from_there && !memory.is_mapped();
            lost.extend(is_lost.then_some(*id));
            !is_lost
        });
        self.fail_unmapped_claims(peer, error);
        let of_peer = |envelope: &Envelope, message: &UnexpectedMessage| {
            envelope.peer == peer && message.is_unmapped()
        };
        for (envelope, message) in self.matcher.take_where(of_peer) {
            self.budget_used = self
                .budget_used
                .saturating_sub(message.budget_cost(&envelope));
            self.remove_unmapped(envelope.arrival);
        }
        // Last: a receive that waits again must not find another message of this peer.
        for id in lost {
            self.fail_partial(host, PartialId(id), error.clone());
        }
    }

    /// Copies the next piece of this message; true when it is over with, for good or ill.
    fn copy_chunk(
        &mut self,
        host: &mut dyn EngineContext,
        id: PartialId,
        memory: &dyn PeerMemory,
    ) -> bool {
        let Some(landing) = self.partials.get(id.0) else {
            return true;
        };
        let (from, rest) = (landing.received, memory.len() - landing.received);
        let is_full = match landing.target {
            PartialTarget::Receive {
                capacity: room,
                written: placed,
                ..
            } => room == placed,
            PartialTarget::Discard => true,
            PartialTarget::Buffer(_) | PartialTarget::Claim(_) => false,
        };
        // What nobody has room for is not copied.
        let len = if is_full { rest } else { rest.min(COPY_CHUNK) };
        self.write_piece(host, id, &PeerMemorySlice { memory, from, len }, len);
        match memory.check() {
            Ok(()) => self.advance(host, id, len),
            Err(error) => {
                if let Some(PartialTarget::Claim(claim)) =
                    self.partials.get(id.0).map(|landing| landing.target)
                    && let Some(message) = self.claims.message(claim)
                {
                    // Whoever claimed it gets what was good.
                    message.bytes.vec_mut().truncate(from);
                }
                self.fail_partial(host, id, error);
                true
            }
        }
    }

    /// Begins to copy what waits in memory that is not mapped, as far as the budget goes.
    fn start_unmapped_copies(&mut self) {
        while let Some(at) = self.next_bufferable() {
            let UnmappedUnexpected { key, len, .. } = self.unmapped_unexpected.remove(at);
            let Some((envelope, message)) = self.matcher.message_mut(key) else {
                continue;
            };
            let Some(memory) = message.peer_memory.take() else {
                continue;
            };
            let target = PartialTarget::Buffer(key);
            let id = self
                .partials
                .insert(PartialMessage::new(envelope.clone(), target));
            message.partial = Some(id);
            self.budget_used += len;
            self.peer_copies.push_back((id, memory));
        }
    }

    /// The first of them that the budget has room for.
    fn next_bufferable(&self) -> Option<usize> {
        self.unmapped_unexpected
            .iter()
            .position(|fleeting| self.fits_budget(fleeting.len))
    }

    /// Such a message waits.
    pub(super) fn add_unmapped(&mut self, fleeting: UnmappedUnexpected) {
        if fleeting.len + UNEXPECTED_OVERHEAD <= self.budget {
            self.unmapped_unexpected.push(fleeting);
        }
    }

    /// It does not wait any more.
    pub(super) fn remove_unmapped(&mut self, arrival: u64) {
        self.unmapped_unexpected
            .retain(|fleeting| fleeting.arrival != arrival);
    }
}
