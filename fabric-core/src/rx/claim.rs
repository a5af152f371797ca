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
use crate::provider::{Host, OpKey};

use super::landing::Target;
use super::lost::OnLoss;
use super::{RxContext, Unexpected};

/// A claimed message. The number is never used again at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimId(u64);

#[derive(Debug)]
pub(super) struct Claim {
    id: ClaimId,
    envelope: Envelope,
    message: Unexpected,
    /// Why the rest of it never came.
    error: Option<Error>,
}

/// Probes and claims of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Claims {
    probes: Vec<(OpKey, RecvSpec)>,
    claims: Vec<Claim>,
    next: u64,
}

impl RxContext {
    /// What a receive like this would take, if it were posted now.
    #[must_use]
    pub fn peek(&self, spec: &RecvSpec) -> Option<&Envelope> {
        self.matcher.unclaimed(spec).map(|(_, envelope)| envelope)
    }

    /// Posts a probe: it ends when a message is there, with what is known of that.
    pub fn probe(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        if let Some(envelope) = self.peek(&spec) {
            let found = Transfer::received(envelope, envelope.len);
            return host.complete(op, Outcome::ok(found));
        }
        match spec.from.and_then(|from| host.leaving(from)) {
            Some(peer) => host.complete(op, Outcome::failed(Error::PeerGone(peer))),
            None => self.asked.probes.push((op, spec)),
        }
    }

    /// Takes a probe back that has found nothing.
    pub(super) fn unprobe(&mut self, op: OpKey) -> bool {
        let at = self.asked.probes.iter().position(|(probe, _)| *probe == op);
        at.map(|at| self.asked.probes.remove(at)).is_some()
    }

    /// Something waits that did not: probes may have found it.
    #[inline]
    pub(super) fn noticed(&mut self, host: &mut dyn Host) {
        if !self.asked.probes.is_empty() {
            self.answer_probes(host);
        }
    }

    #[cold]
    fn answer_probes(&mut self, host: &mut dyn Host) {
        for (op, spec) in std::mem::take(&mut self.asked.probes) {
            self.probe(host, op, spec);
        }
    }

    /// Ends the probes for which `fails` has a reason.
    pub(super) fn fail_probes(
        &mut self,
        host: &mut dyn Host,
        fails: impl Fn(&RecvSpec) -> Option<Error>,
    ) {
        for (op, spec) in std::mem::take(&mut self.asked.probes) {
            match fails(&spec) {
                Some(error) => host.complete(op, Outcome::failed(error)),
                None => self.asked.probes.push((op, spec)),
            }
        }
    }

    /// Whether a probe waits for this message.
    pub(super) fn is_sought(&self, envelope: &Envelope) -> bool {
        self.asked
            .probes
            .iter()
            .any(|(_, spec)| spec.accepts(envelope))
    }

    /// Takes the message out of matching that a receive like this would take now.
    pub fn claim(&mut self, spec: &RecvSpec) -> Option<(ClaimId, Transfer)> {
        let (key, _) = self.matcher.unclaimed(spec)?;
        let (envelope, message) = self.matcher.take_message(key)?;
        let id = ClaimId(self.asked.next);
        self.asked.next += 1;
        if let Some(landing) = message
            .landing
            .and_then(|landing| self.landings.get_mut(landing))
        {
            landing.target = Target::Claim(id);
        }
        if message.is_fleeting() {
            self.unnote(envelope.arrival);
        }
        let found = Transfer::received(&envelope, envelope.len);
        self.asked.claims.push(Claim {
            id,
            envelope,
            message,
            error: None,
        });
        Some((id, found))
    }

    /// Gives a claimed message to this receive.
    pub fn receive_claimed(&mut self, host: &mut dyn Host, op: OpKey, id: ClaimId) {
        let Some(Claim {
            envelope,
            message,
            error,
            ..
        }) = self.take_claim(id)
        else {
            return host.complete(op, Outcome::failed(Error::Canceled));
        };
        let Some(error) = error else {
            return self.give(host, (op, OnLoss::Fail), envelope, message);
        };
        self.used = self.used.saturating_sub(message.cost(&envelope));
        let placed = host.adopt(op, message.bytes);
        host.complete(
            op,
            Outcome::cut(Transfer::received(&envelope, placed), error),
        );
    }

    /// Puts a claimed message back to its old place: if a posted receive accepts it, that gets it.
    /// One that can no longer be complete is discarded.
    pub fn unclaim(&mut self, host: &mut dyn Host, id: ClaimId) {
        let Some(Claim {
            envelope,
            message,
            error,
            ..
        }) = self.take_claim(id)
        else {
            return;
        };
        self.used = self.used.saturating_sub(message.cost(&envelope));
        if error.is_none() {
            self.settle(host, envelope, message);
        }
    }

    /// Discards a claimed message, and what still arrives of it. Returns its source.
    pub fn discard_claimed(&mut self, id: ClaimId) -> Option<FiAddr> {
        let Claim {
            envelope, message, ..
        } = self.take_claim(id)?;
        self.used = self.used.saturating_sub(message.cost(&envelope));
        if let Some(landing) = message
            .landing
            .and_then(|landing| self.landings.get_mut(landing))
        {
            landing.target = Target::Nobody;
        }
        self.let_go |= message.is_fleeting();
        self.owe_receipt(&envelope);
        envelope.source
    }

    fn take_claim(&mut self, id: ClaimId) -> Option<Claim> {
        let at = self.asked.claims.iter().position(|claim| claim.id == id)?;
        Some(self.asked.claims.swap_remove(at))
    }

    /// The rest of a claimed message will never come. Who receives it gets the part, and this
    /// error.
    pub(super) fn cut_claim(&mut self, id: ClaimId, error: Error) {
        if let Some(claim) = self.asked.claim(id) {
            claim.message.landing = None;
            claim.error = Some(error);
        }
    }

    /// Claimed messages that lie with this peer, and not here, are lost.
    pub(super) fn lose_claims(&mut self, peer: PeerKey, error: &Error) {
        for claim in &mut self.asked.claims {
            if claim.envelope.peer == peer && claim.message.is_fleeting() {
                claim.error = Some(error.clone());
            }
        }
    }

    /// What matching is to know of the claimed messages, should they come back.
    pub(super) fn claimed_envelopes(&mut self) -> impl Iterator<Item = &mut Envelope> {
        self.asked
            .claims
            .iter_mut()
            .map(|claim| &mut claim.envelope)
    }

    /// Whether a claimed message has this source.
    pub(super) fn holds_claim_of(&self, source: FiAddr) -> bool {
        self.asked
            .claims
            .iter()
            .any(|claim| claim.envelope.source == Some(source))
    }

    /// Discards all claimed messages; their claims come to nothing.
    pub(super) fn drop_claims(&mut self) {
        self.asked.claims.clear();
    }
}

impl Claims {
    /// The message of a claim, to add to it while it arrives.
    pub(super) fn message(&mut self, id: ClaimId) -> Option<&mut Unexpected> {
        self.claim(id).map(|claim| &mut claim.message)
    }

    fn claim(&mut self, id: ClaimId) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|claim| claim.id == id)
    }
}
