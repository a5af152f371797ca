//! Messages that are asked for before they are received: probes, and claims.
//!
//! A *probe* waits until a message is there that a receive like it would take now, and leaves it
//! there. A *claim* takes such a message out of matching; it may still be arriving. It is received,
//! discarded, or goes back to its old place.
//!
//! A message that a probe waits for is taken in even over the budget: who wants to know how long a
//! message is before finding room for it must be told of the longest, too.

use crate::address::FiAddr;
use crate::completion::{Outcome, Transfer};
use crate::error::Error;
use crate::matching::{Envelope, PeerKey, RecvSpec};
use crate::transport::{EngineContext, OpKey};

use super::lost::OnLoss;
use super::partial::PartialTarget;
use super::{RxQueue, UnexpectedMessage};

/// A claimed message. The number is never used again at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimId(u64);

#[derive(Debug)]
pub(super) struct ClaimedMessage {
    id: ClaimId,
    envelope: Envelope,
    message: UnexpectedMessage,
    /// Why the rest of it never came.
    error: Option<Error>,
}

/// Probes and claims of one endpoint.
#[derive(Debug, Default)]
pub(super) struct ClaimTable {
    probes: Vec<(OpKey, RecvSpec)>,
    claims: Vec<ClaimedMessage>,
    next_id: u64,
}

impl RxQueue {
    /// What a receive like this would take, if it were posted now.
    #[must_use]
    pub fn peek(&self, spec: &RecvSpec) -> Option<&Envelope> {
        self.matcher.unclaimed(spec).map(|(_, envelope)| envelope)
    }

    /// Posts a probe: it ends when a message is there, with what is known of that.
    pub fn probe(&mut self, host: &mut dyn EngineContext, op: OpKey, spec: RecvSpec) {
        if let Some(envelope) = self.peek(&spec) {
            let found = Transfer::received(envelope, envelope.len);
            return host.complete(op, Outcome::ok(found));
        }
        match spec.from.and_then(|from| host.departing_address(from)) {
            Some(peer) => host.complete(op, Outcome::failed(Error::PeerGone(peer))),
            None => self.claims.probes.push((op, spec)),
        }
    }

    /// Takes a probe back that has found nothing.
    pub(super) fn cancel_probe(&mut self, op: OpKey) -> bool {
        let at = self
            .claims
            .probes
            .iter()
            .position(|(probe, _)| *probe == op);
        at.map(|at| self.claims.probes.remove(at)).is_some()
    }

    /// Something waits that did not: probes may have found it.
    #[inline]
    pub(super) fn check_probes(&mut self, host: &mut dyn EngineContext) {
        if !self.claims.probes.is_empty() {
            self.complete_probes(host);
        }
    }

    #[cold]
    fn complete_probes(&mut self, host: &mut dyn EngineContext) {
        for (op, spec) in std::mem::take(&mut self.claims.probes) {
            self.probe(host, op, spec);
        }
    }

    /// Ends the probes for which `fails` has a reason.
    pub(super) fn fail_probes(
        &mut self,
        host: &mut dyn EngineContext,
        fails: impl Fn(&RecvSpec) -> Option<Error>,
    ) {
        for (op, spec) in std::mem::take(&mut self.claims.probes) {
            match fails(&spec) {
                Some(error) => host.complete(op, Outcome::failed(error)),
                None => self.claims.probes.push((op, spec)),
            }
        }
    }

    /// Whether a probe waits for this message.
    pub(super) fn is_probed(&self, envelope: &Envelope) -> bool {
        self.claims
            .probes
            .iter()
            .any(|(_, spec)| spec.accepts(envelope))
    }

    /// Takes the message out of matching that a receive like this would take now.
    pub fn claim(&mut self, spec: &RecvSpec) -> Option<(ClaimId, Transfer)> {
        let (key, _) = self.matcher.unclaimed(spec)?;
        let (envelope, message) = self.matcher.take_message(key)?;
        let id = ClaimId(self.claims.next_id);
        self.claims.next_id += 1;
        if let Some(landing) = message
            .partial
            .and_then(|landing| self.partials.get_mut(landing))
        {
            landing.target = PartialTarget::Claim(id);
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

    /// Gives a claimed message to this receive.
    pub fn receive_claimed(&mut self, host: &mut dyn EngineContext, op: OpKey, id: ClaimId) {
        let Some(ClaimedMessage {
            envelope,
            message,
            error,
            ..
        }) = self.take_claim(id)
        else {
            return host.complete(op, Outcome::failed(Error::Canceled));
        };
        let Some(error) = error else {
            return self.deliver_buffered(host, (op, OnLoss::Fail), envelope, message);
        };
        self.budget_used = self
            .budget_used
            .saturating_sub(message.budget_cost(&envelope));
        let placed = host.give_buffered(op, message.bytes);
        host.complete(
            op,
            Outcome::partial(Transfer::received(&envelope, placed), error),
        );
    }

    /// Puts a claimed message back to its old place: if a posted receive accepts it, that gets it.
    /// One that can no longer be complete is discarded.
    pub fn release_claim(&mut self, host: &mut dyn EngineContext, id: ClaimId) {
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
            self.match_or_buffer(host, envelope, message);
        }
    }

    /// Discards a claimed message, and what still arrives of it. Returns its source.
    pub fn discard_claimed(&mut self, id: ClaimId) -> Option<FiAddr> {
        let ClaimedMessage {
            envelope, message, ..
        } = self.take_claim(id)?;
        self.budget_used = self
            .budget_used
            .saturating_sub(message.budget_cost(&envelope));
        if let Some(landing) = message
            .partial
            .and_then(|landing| self.partials.get_mut(landing))
        {
            landing.target = PartialTarget::Discard;
        }
        self.discarded_unmapped |= message.is_unmapped();
        self.queue_ack(&envelope);
        envelope.source
    }

    fn take_claim(&mut self, id: ClaimId) -> Option<ClaimedMessage> {
        let at = self.claims.claims.iter().position(|claim| claim.id == id)?;
        Some(self.claims.claims.swap_remove(at))
    }

    /// The rest of a claimed message will never come. Who receives it gets the part, and this
    /// error.
    pub(super) fn fail_claim(&mut self, id: ClaimId, error: Error) {
        if let Some(claim) = self.claims.claim(id) {
            claim.message.partial = None;
            claim.error = Some(error);
        }
    }

    /// Claimed messages that lie with this peer, and not here, are lost.
    pub(super) fn fail_unmapped_claims(&mut self, peer: PeerKey, error: &Error) {
        for claim in &mut self.claims.claims {
            if claim.envelope.peer == peer && claim.message.is_unmapped() {
                claim.error = Some(error.clone());
            }
        }
    }

    /// What matching is to know of the claimed messages, should they come back.
    pub(super) fn claimed_envelopes(&mut self) -> impl Iterator<Item = &mut Envelope> {
        self.claims
            .claims
            .iter_mut()
            .map(|claim| &mut claim.envelope)
    }

    /// Whether a claimed message has this source.
    pub(super) fn has_claim_from(&self, source: FiAddr) -> bool {
        self.claims
            .claims
            .iter()
            .any(|claim| claim.envelope.source == Some(source))
    }

    /// Discards all claimed messages; their claims come to nothing.
    pub(super) fn drop_claims(&mut self) {
        self.claims.claims.clear();
    }
}

impl ClaimTable {
    /// The message of a claim, to add to it while it arrives.
    pub(super) fn message(&mut self, id: ClaimId) -> Option<&mut UnexpectedMessage> {
        self.claim(id).map(|claim| &mut claim.message)
    }

    fn claim(&mut self, id: ClaimId) -> Option<&mut ClaimedMessage> {
        self.claims.iter_mut().find(|claim| claim.id == id)
    }
}
