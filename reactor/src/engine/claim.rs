//! Probes and claims (`FI_PEEK`, `FI_CLAIM`).
//!
//! A probe is an operation without a buffer. It completes when a message waits that no posted
//! receive takes. If the transport holds the message, a claim first lets the transport deliver it.
//! A claim moves the message out of matching, where it continues to arrive; receiving a claimed
//! message is an operation like any other receive, already matched.

use std::task::{Context, Poll};

use fabric_core::Error;
use fabric_core::Result;
use fabric_core::buf::IoBufMut;
use fabric_core::completion::{Failed, Outcome, Transfer};
use fabric_core::matching::RecvSpec;
use fabric_core::rx::ClaimId;
use fabric_core::transport::{EpId, OpKey, RxEngine};
use fabric_core::tree::Class;

use super::domain::DomainHandle;
use super::post::refused;
use super::progress::EngineGuard;
use super::state::ops::{CompletionTarget, CreditMode, OpPhase, OpResult, OpState};

impl EngineGuard<'_> {
    fn probe(&mut self, ep: EpId, spec: RecvSpec) -> Result<OpKey> {
        self.domain.endpoints.get_open(ep)?;
        if let Some(from) = spec.from {
            self.domain.check_address(ep, from)?;
        }
        let probe = OpState::wait(Some(ep), OpPhase::Executing);
        let key = self.domain.ops.insert(probe);
        self.post_to_rx(ep, key, |rx, domain| rx.probe(domain, key, spec));
        Ok(key)
    }

    /// Returns the message that a receive like this would take, after at most one progress pass.
    fn peek(&mut self, ep: EpId, spec: RecvSpec) -> Result<Option<Transfer>> {
        let key = self.probe(ep, spec)?;
        let mut result = self.domain.take_op_result(key);
        if result.is_none() {
            self.poll_once();
            result = self.domain.take_op_result(key);
        }
        if result.is_none() {
            self.detach(key);
        }
        result.map(probe_result).transpose()
    }
}

/// Returns what a probe has found.
fn probe_result(found: OpResult) -> Result<Transfer> {
    match found.error {
        None => Ok(found.transfer),
        Some(error) => Err(*error),
    }
}

impl DomainHandle {
    /// Returns the message that a receive like this would take now (`FI_PEEK`).
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::ConcurrentUse`], [`Error::Closed`]; [`Error::PeerGone`]
    /// when no message can arrive any more.
    pub fn peek(&self, ep: EpId, spec: RecvSpec) -> Result<Option<Transfer>> {
        self.with_engine_or_refuse(|locked| locked.peek(ep, spec))
    }

    /// Posts a probe that completes when such a message waits. It is polled with
    /// [`DomainHandle::poll_probe`], and canceled with [`DomainHandle::drop_future`].
    ///
    /// # Errors
    /// As [`DomainHandle::peek`].
    pub fn probe(&self, ep: EpId, spec: RecvSpec) -> Result<OpKey> {
        self.with_engine_or_refuse(|locked| locked.probe(ep, spec))
    }

    /// Drives the domain until the probe has found a message or failed.
    pub fn poll_probe(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Result<Transfer>> {
        let found = self.engine().poll(
            cx.waker(),
            |domain| domain.take_op_result(key),
            |domain, waker| domain.register_op_waker(key, waker),
        );
        found.map(probe_result)
    }

    /// Claims the message that a receive like this would take now (`FI_CLAIM`): it leaves matching.
    ///
    /// # Errors
    /// As [`DomainHandle::peek`]; [`Error::WouldBlock`] when there is no room to buffer a message
    /// that the transport holds, and [`Error::OutOfMemory`] when there is no memory for it.
    pub fn claim(&self, ep: EpId, spec: RecvSpec) -> Result<Option<(ClaimId, Transfer)>> {
        self.with_engine_or_refuse(|locked| {
            let Some(found) = locked.peek(ep, spec)? else {
                return Ok(None);
            };
            let prepared = locked.with_rx(ep, |rx, domain| rx.prepare_claim(domain, &spec));
            prepared.transpose()?;
            if locked.receive_next_held(ep) {
                let (what, len) = ("buffer", found.len);
                return Err(Error::OutOfMemory { what, len });
            }
            let claimed = locked.change_rx(ep, |rx, _| rx.claim(&spec));
            claimed.ok_or_else(|| Error::Closed(Class::Endpoint))
        })
    }

    /// Receives a claimed message, which ends the claim.
    ///
    /// # Errors
    /// As [`DomainHandle::recv`], with the buffer; the claim stays.
    pub fn recv_claimed<B: IoBufMut>(
        &self,
        ep: EpId,
        claim: ClaimId,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<OpKey, Failed<B>> {
        let Some(mut locked) = self.engine().lock_or_refuse() else {
            return Err(refused(buf));
        };
        if let Some(error) = locked.domain.admit_recv(ep, None, target, credit) {
            locked.finish();
            return Err(Failed::new(error, buf));
        }
        let key = locked.domain.ops.insert_recv(ep, target, buf.into_any());
        if locked
            .change_rx(ep, |rx, domain| rx.receive_claimed(domain, key, claim))
            .is_none()
        {
            locked
                .domain
                .complete(key, Outcome::failed(Error::Closed(Class::Endpoint)));
        }
        locked.finish();
        Ok(key)
    }

    /// Puts a claimed message back into its place in matching.
    pub fn release_claim(&self, ep: EpId, claim: ClaimId) {
        self.with_engine(|locked| {
            locked.change_rx(ep, |rx, domain| rx.release_claim(domain, claim))
        });
    }

    /// Discards a claimed message (`FI_DISCARD`).
    pub fn discard_claimed(&self, ep: EpId, claim: ClaimId) {
        self.with_engine(|locked| {
            locked.change_rx(ep, |rx, domain| {
                let source = rx.discard_claimed(claim);
                domain.on_message_consumed(source);
            })
        });
    }
}
