//! Probes and claims.
//!
//! A *probe* (`FI_PEEK`) completes with the description of the message that a receive with the same
//! spec would take, and leaves the message where it is: buffered, or held by its transport. A
//! *claim* (`FI_CLAIM`) removes such a message, which may still be arriving, from matching. A
//! claimed message is later received, discarded, or requeued at its old place.
//!
//! A held message that is claimed is buffered, even beyond the budget: a program that asks for a
//! message's length before it allocates a buffer must get the longest message too. But what is
//! buffered beyond the budget has a limit of its own, as large as the budget and with the same
//! shares of peers; one message may be longer. A claim beyond the limit takes a buffered message
//! instead, or fails at once. It could otherwise wait for messages that only the program can
//! receive or discard: those of other claims, and those of dropped claims and receives, which stay
//! buffered. No claim waits for room.

use crate::address::FiAddr;
use crate::completion::{Outcome, Transfer};
use crate::error::{Error, Resource, Result};
use crate::matching::{Envelope, PeerKey, RecvSpec};
use crate::op::OpKey;

use super::budget::message_cost;
use super::engine::RxEngine;
use super::held_messages::NextFor;
use super::lost::OnLoss;
use super::partial::PartialTarget;
use super::peers::SourceCounts;
use super::{RxQueue, UnexpectedMessage};

/// The id of a claimed message, which is never reused at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimId(u64);

/// A claimed message.
#[derive(Debug)]
struct ClaimedMessage {
    id: ClaimId,
    envelope: Envelope,
    message: UnexpectedMessage,
    /// Why the rest of the message will never arrive.
    error: Option<Error>,
}

/// The claimed messages of one receive queue.
#[derive(Debug, Default)]
pub(super) struct ClaimTable {
    messages: Vec<ClaimedMessage>,
    sources: SourceCounts,
    next_id: u64,
}

/// Posted probes that have found no message.
#[derive(Debug, Default)]
pub(super) struct Probes(Vec<(OpKey, RecvSpec)>);

impl Probes {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl RxQueue {
    /// Posts a probe, which completes with the description of a message as soon as one matches.
    pub fn probe(&mut self, engine: &mut impl RxEngine, op: OpKey, spec: RecvSpec) {
        let buffered = self.matcher.unexpected_for_new(&spec).map(|(key, _)| key);
        let found = match self.find_next_held(engine, (&spec, None), buffered) {
            Some(next) => self.held.set_probed(next),
            None => {
                let buffered = buffered.and_then(|key| self.matcher.unexpected.get_mut(key));
                buffered.map(|(envelope, message)| {
                    message.is_probed = true;
                    Transfer::received(envelope, envelope.len)
                })
            }
        };
        if let Some(found) = found {
            return engine.complete(op, Outcome::ok(found));
        }
        match spec.from.and_then(|from| engine.departing_address(from)) {
            Some(peer) => engine.complete(op, Outcome::failed(Error::PeerGone(peer))),
            None => self.probes.0.push((op, spec)),
        }
    }

    /// Returns whether a probe waits for a message.
    #[must_use]
    pub fn has_probes(&self) -> bool {
        !self.probes.0.is_empty()
    }

    /// Cancels a probe that has found no message. Returns false when it is not posted.
    pub(super) fn cancel_probe(&mut self, op: OpKey) -> bool {
        let at = self.probes.0.iter().position(|(probe, _)| *probe == op);
        at.map(|at| self.probes.0.remove(at)).is_some()
    }

    /// Completes the probes for which a message is buffered or held now.
    #[inline]
    pub(super) fn check_probes(&mut self, engine: &mut impl RxEngine) {
        if !self.probes.0.is_empty() {
            self.complete_probes(engine);
        }
    }

    #[cold]
    fn complete_probes(&mut self, engine: &mut impl RxEngine) {
        for (op, spec) in std::mem::take(&mut self.probes.0) {
            self.probe(engine, op, spec);
        }
    }

    /// Fails the probes for whose spec `error_for` returns an error.
    pub(super) fn fail_probes(
        &mut self,
        engine: &mut impl RxEngine,
        error_for: impl Fn(&RecvSpec) -> Option<Error>,
    ) {
        for (op, spec) in std::mem::take(&mut self.probes.0) {
            match error_for(&spec) {
                Some(error) => engine.complete(op, Outcome::failed(error)),
                None => self.probes.0.push((op, spec)),
            }
        }
    }

    /// Prepares a [`claim`](Self::claim) of the message that a probe has found. If that is a held
    /// one, the engine has [`next_held`](Self::next_held) delivered, which is buffered, and calls
    /// [`end_next_held`](Self::end_next_held). A held message for which there is no room gives way
    /// to a buffered one.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room for the held message, and no buffered one.
    pub fn prepare_claim(&mut self, engine: &mut impl RxEngine, spec: &RecvSpec) -> Result<()> {
        let buffered = self.matcher.unexpected_for_new(spec).map(|(key, _)| key);
        let Some(next) = self.find_next_held(engine, (spec, None), buffered) else {
            return Ok(());
        };
        let len = self.held.len_of(next);
        if !self.has_room_for_claim(next.peer(), len) {
            let disconnected = self.beyond_budget.take_disconnected();
            self.discard_messages_of(engine, &disconnected.into_iter().collect());
        }
        if self.has_room_for_claim(next.peer(), len) {
            self.held.set_next(next, NextFor::Claim);
            return Ok(());
        }
        if self.matcher.unexpected_for_new(spec).is_some() {
            return Ok(());
        }
        Err(Error::WouldBlock(Resource::BufferBeyondBudget {
            len,
            in_use: self.beyond_budget.used(),
            limit: self.beyond_budget.limit(),
        }))
    }

    /// Returns whether a held message of this length has room, which one of any length has if it is
    /// the only message beyond the budget.
    fn has_room_for_claim(&self, peer: PeerKey, len: usize) -> bool {
        let cost = message_cost(len);
        self.beyond_budget.used() == 0
            || self.beyond_budget.fits(peer, cost)
            || self.budget.fits(peer, cost)
    }

    /// Claims the first buffered message that a receive with this spec would take now, after
    /// [`prepare_claim`](Self::prepare_claim). Returns the id of the claim and the description of
    /// the message.
    pub fn claim(&mut self, spec: &RecvSpec) -> Option<(ClaimId, Transfer)> {
        let (key, _) = self.matcher.unexpected_for_new(spec)?;
        let (envelope, message) = self.matcher.unexpected.take(key)?;
        if message.is_unmapped() {
            self.remove_unmapped(envelope.arrival);
        }
        let found = Transfer::received(&envelope, envelope.len);
        let partial = message.partial;
        let id = self.claims.insert(envelope, message);
        if let Some(partial) = partial {
            // A later message of the peer may take the receive of a stalled one.
            self.other_changes += 1;
            self.partials.set_target(partial, PartialTarget::Claim(id));
        }
        Some((id, found))
    }

    /// Delivers a claimed message to this receive. If the rest of the message will never arrive,
    /// the receive fails with the bytes that have arrived.
    pub fn receive_claimed(&mut self, engine: &mut impl RxEngine, op: OpKey, id: ClaimId) {
        let Some(ClaimedMessage {
            envelope,
            message,
            error,
            ..
        }) = self.claims.take(id)
        else {
            return engine.complete(op, Outcome::failed(Error::Canceled));
        };
        let Some(error) = error else {
            return self.deliver_buffered(engine, (op, OnLoss::Fail), envelope, message);
        };
        self.release(&envelope, &message);
        let placed = engine.give_buffered(op, message.bytes);
        engine.complete(
            op,
            Outcome::partial(Transfer::received(&envelope, placed), error),
        );
    }

    /// Requeues a claimed message at its old place, or delivers it to a posted receive that accepts
    /// it. A message that can no longer be complete is discarded.
    pub fn release_claim(&mut self, engine: &mut impl RxEngine, id: ClaimId) {
        let Some(ClaimedMessage {
            envelope,
            message,
            error,
            ..
        }) = self.claims.take(id)
        else {
            return;
        };
        self.release(&envelope, &message);
        if error.is_none() {
            self.match_or_buffer(engine, envelope, message);
        }
    }

    /// Discards a claimed message, and the rest of it as it arrives. Returns its source.
    pub fn discard_claimed(&mut self, id: ClaimId) -> Option<FiAddr> {
        let ClaimedMessage {
            envelope, message, ..
        } = self.claims.take(id)?;
        self.release(&envelope, &message);
        if let Some(partial) = message.partial {
            self.partials.set_target(partial, PartialTarget::Discard);
        }
        self.peer_copies.note_discarded(message.is_unmapped());
        self.queue_ack(&envelope);
        envelope.source
    }
}

impl ClaimTable {
    fn insert(&mut self, envelope: Envelope, message: UnexpectedMessage) -> ClaimId {
        let id = ClaimId(self.next_id);
        self.next_id += 1;
        self.sources.add(envelope.source);
        self.messages.push(ClaimedMessage {
            id,
            envelope,
            message,
            error: None,
        });
        id
    }

    fn take(&mut self, id: ClaimId) -> Option<ClaimedMessage> {
        let at = self.messages.iter().position(|claimed| claimed.id == id)?;
        self.sources.remove(self.messages[at].envelope.source);
        Some(self.messages.swap_remove(at))
    }

    fn get_mut(&mut self, id: ClaimId) -> Option<&mut ClaimedMessage> {
        self.messages.iter_mut().find(|claimed| claimed.id == id)
    }

    /// Returns a claimed message for modification while it arrives.
    pub(super) fn message(&mut self, id: ClaimId) -> Option<&mut UnexpectedMessage> {
        self.get_mut(id).map(|claim| &mut claim.message)
    }

    /// Fails a claimed message whose rest will never arrive. A receive of the claim gets the bytes
    /// that arrived, and this error.
    pub(super) fn fail(&mut self, id: ClaimId, error: Error) {
        if let Some(claim) = self.get_mut(id) {
            claim.message.partial = None;
            claim.error = Some(error);
        }
    }

    /// Fails claimed messages of this peer in memory that is not mapped here.
    pub(super) fn fail_unmapped(&mut self, peer: PeerKey, error: &Error) {
        for claimed in &mut self.messages {
            if claimed.envelope.peer == peer && claimed.message.is_unmapped() {
                claimed.error = Some(error.clone());
            }
        }
    }

    /// Returns whether a claimed message has this source.
    pub(super) fn has_source(&self, source: FiAddr) -> bool {
        self.sources.contains(source)
    }

    /// Sets the source of the claimed messages of these peers that have none: a claimed message may
    /// be requeued.
    pub(super) fn assign_source(&mut self, peers: &[PeerKey], source: FiAddr) {
        let messages = self.messages.iter_mut();
        self.sources
            .assign(messages.map(|claimed| &mut claimed.envelope), peers, source);
    }

    /// Clears the source of the claimed messages that have this one.
    pub(super) fn clear_source(&mut self, source: FiAddr) {
        let messages = self.messages.iter_mut();
        self.sources
            .clear(messages.map(|claimed| &mut claimed.envelope), source);
    }

    /// Discards all claimed messages; receives of these claims are canceled.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.sources = SourceCounts::default();
    }
}
