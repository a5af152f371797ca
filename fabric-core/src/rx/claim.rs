//! Probes and claims.
//!
//! A *probe* waits for a message that a receive like it would take now, and leaves it in the queue.
//! A *claim* takes such a message out of matching; it may still be arriving. A claimed message is
//! received, discarded, or requeued at its old place.
//!
//! A message that a probe waits for is buffered even over the budget: a program that wants to know
//! a message's length before it allocates a buffer must be told of the longest message too.

use crate::address::FiAddr;
use crate::completion::{Outcome, Transfer};
use crate::error::Error;
use crate::matching::{Envelope, PeerKey, RecvSpec};
use crate::transport::{EngineContext, OpKey};

use super::lost::OnLoss;
use super::partial::PartialTarget;
use super::{RxQueue, UnexpectedMessage};

/// The id of a claimed message, which is never reused at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimId(u64);

#[derive(Debug)]
pub(super) struct ClaimedMessage {
    id: ClaimId,
    envelope: Envelope,
    message: UnexpectedMessage,
    /// Why the rest of the message never arrived.
    error: Option<Error>,
}

/// The probes and claims of one endpoint.
#[derive(Debug, Default)]
pub(super) struct ClaimTable {
    probes: Vec<(OpKey, RecvSpec)>,
    claims: Vec<ClaimedMessage>,
    next_id: u64,
}

impl RxQueue {
    /// Returns the message that a receive with this spec would take, if it were posted now.
    #[must_use]
    pub fn peek(&self, spec: &RecvSpec) -> Option<&Envelope> {
        self.matcher.unclaimed(spec).map(|(_, envelope)| envelope)
    }

    /// Posts a probe: it completes with the description of a message as soon as one matches.
    pub fn probe(&mut self, engine: &mut impl EngineContext, op: OpKey, spec: RecvSpec) {
        if let Some(envelope) = self.peek(&spec) {
            let found = Transfer::received(envelope, envelope.len);
            return engine.complete(op, Outcome::ok(found));
        }
        match spec.from.and_then(|from| engine.departing_address(from)) {
            Some(peer) => engine.complete(op, Outcome::failed(Error::PeerGone(peer))),
            None => self.claims.probes.push((op, spec)),
        }
    }

    /// Returns whether a probe waits for a message.
    #[must_use]
    pub fn has_probes(&self) -> bool {
        !self.claims.probes.is_empty()
    }

    /// Cancels a probe that has found no message.
    pub(super) fn cancel_probe(&mut self, op: OpKey) -> bool {
        let at = self
            .claims
            .probes
            .iter()
            .position(|(probe, _)| *probe == op);
        at.map(|at| self.claims.probes.remove(at)).is_some()
    }

    /// Completes probes after a message was queued.
    #[inline]
    pub(super) fn check_probes(&mut self, engine: &mut impl EngineContext) {
        if !self.claims.probes.is_empty() {
            self.complete_probes(engine);
        }
    }

    #[cold]
    fn complete_probes(&mut self, engine: &mut impl EngineContext) {
        for (op, spec) in std::mem::take(&mut self.claims.probes) {
            self.probe(engine, op, spec);
        }
    }

    /// Fails the probes for which `fails` returns an error.
    pub(super) fn fail_probes(
        &mut self,
        engine: &mut impl EngineContext,
        fails: impl Fn(&RecvSpec) -> Option<Error>,
    ) {
        for (op, spec) in std::mem::take(&mut self.claims.probes) {
            match fails(&spec) {
                Some(error) => engine.complete(op, Outcome::failed(error)),
                None => self.claims.probes.push((op, spec)),
            }
        }
    }

    /// Returns whether a probe waits for this message.
    pub(super) fn is_probed(&self, envelope: &Envelope) -> bool {
        self.claims
            .probes
            .iter()
            .any(|(_, spec)| spec.accepts(envelope))
    }

    /// Claims the message that a receive with this spec would take now.
    pub fn claim(&mut self, spec: &RecvSpec) -> Option<(ClaimId, Transfer)> {
        let (key, _) = self.matcher.unclaimed(spec)?;
        let (envelope, message) = self.matcher.take_message(key)?;
        let id = ClaimId(self.claims.next_id);
        self.claims.next_id += 1;
        if let Some(partial) = message
            .partial
            .and_then(|partial| self.partials.get_mut(partial))
        {
            partial.target = PartialTarget::Claim(id);
        }
        if message.is_unmapped() {
            self.remove_unmapped(envelope.arrival);
        }
        let found = Transfer::received(&envelope, envelope.len);
        self.claims.claims.push(ClaimedMessage {
            id,
            envelope,
            message,
            error: None,
        });
        Some((id, found))
    }

    /// Delivers a claimed message to this receive.
    pub fn receive_claimed(&mut self, engine: &mut impl EngineContext, op: OpKey, id: ClaimId) {
        let Some(ClaimedMessage {
            envelope,
            message,
            error,
            ..
        }) = self.take_claim(id)
        else {
            return engine.complete(op, Outcome::failed(Error::Canceled));
        };
        let Some(error) = error else {
            return self.deliver_buffered(engine, (op, OnLoss::Fail), envelope, message);
        };
        self.budget_used = self
            .budget_used
            .saturating_sub(message.budget_cost(&envelope));
        let placed = engine.give_buffered(op, message.bytes);
        engine.complete(
            op,
            Outcome::partial(Transfer::received(&envelope, placed), error),
        );
    }

    /// Requeues a claimed message at its old place, or delivers it to a posted receive that accepts
    /// it. A message that can no longer be complete is discarded.
    pub fn release_claim(&mut self, engine: &mut impl EngineContext, id: ClaimId) {
        let Some(ClaimedMessage {
            envelope,
            message,
            error,
            ..
        }) = self.take_claim(id)
        else {
            return;
        };
        self.budget_used = self
            .budget_used
            .saturating_sub(message.budget_cost(&envelope));
        if error.is_none() {
            self.match_or_buffer(engine, envelope, message);
        }
    }

    /// Discards a claimed message, and the rest of it as it arrives. Returns its source.
    pub fn discard_claimed(&mut self, id: ClaimId) -> Option<FiAddr> {
        let ClaimedMessage {
            envelope, message, ..
        } = self.take_claim(id)?;
        self.budget_used = self
            .budget_used
            .saturating_sub(message.budget_cost(&envelope));
        if let Some(partial) = message
            .partial
            .and_then(|partial| self.partials.get_mut(partial))
        {
            partial.target = PartialTarget::Discard;
        }
        self.discarded_unmapped |= message.is_unmapped();
        self.queue_ack(&envelope);
        envelope.source
    }

    fn take_claim(&mut self, id: ClaimId) -> Option<ClaimedMessage> {
        let at = self.claims.claims.iter().position(|claim| claim.id == id)?;
        Some(self.claims.claims.swap_remove(at))
    }

    /// Fails a claimed message whose rest will never arrive. A receive of the claim gets the bytes
    /// that arrived, and this error.
    pub(super) fn fail_claim(&mut self, id: ClaimId, error: Error) {
        if let Some(claim) = self.claims.claim(id) {
            claim.message.partial = None;
            claim.error = Some(error);
        }
    }

    /// Fails claimed messages of this peer in memory that is not mapped here.
    pub(super) fn fail_unmapped_claims(&mut self, peer: PeerKey, error: &Error) {
        for claim in &mut self.claims.claims {
            if claim.envelope.peer == peer && claim.message.is_unmapped() {
                claim.error = Some(error.clone());
            }
        }
    }

    /// Iterates over the envelopes of claimed messages, which must be up to date when a message is
    /// requeued.
    pub(super) fn claimed_envelopes(&mut self) -> impl Iterator<Item = &mut Envelope> {
        self.claims
            .claims
            .iter_mut()
            .map(|claim| &mut claim.envelope)
    }

    /// Returns whether a claimed message has this source.
    pub(super) fn has_claim_from(&self, source: FiAddr) -> bool {
        self.claims
            .claims
            .iter()
            .any(|claim| claim.envelope.source == Some(source))
    }

    /// Discards all claimed messages; receives of these claims are canceled.
    pub(super) fn drop_claims(&mut self) {
        self.claims.claims.clear();
    }
}

impl ClaimTable {
    /// Returns the message of a claim for modification while the message arrives.
    pub(super) fn message(&mut self, id: ClaimId) -> Option<&mut UnexpectedMessage> {
        self.claim(id).map(|claim| &mut claim.message)
    }

    fn claim(&mut self, id: ClaimId) -> Option<&mut ClaimedMessage> {
        self.claims.iter_mut().find(|claim| claim.id == id)
    }
}
