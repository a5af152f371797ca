//! Asking for messages before they are received: probes, and claims (`FI_PEEK`, `FI_CLAIM`).
//!
//! A probe is an operation without a buffer that only asks. A claim is a number that the receive
//! side of the endpoint knows; receiving it is an operation like any other receive, with its
//! message at hand.

use std::task::{Context, Poll};

use fabric_core::Error;
use fabric_core::Result;
use fabric_core::buf::{AnyBuf, IoBufMut};
use fabric_core::completion::{Failed, OpKind, Outcome, Transfer};
use fabric_core::matching::RecvSpec;
use fabric_core::rx::ClaimId;
use fabric_core::transport::{EngineContext, EpId, OpKey};
use fabric_core::tree::Class;

use crate::domain::DomainHandle;
use crate::engine::EngineGuard;
use crate::ops::{CompletionTarget, CreditMode, OpState};

impl EngineGuard<'_> {
    fn probe(&mut self, ep: EpId, spec: RecvSpec) -> Result<OpKey> {
        let state = &mut **self;
        state.domain.endpoint(ep)?;
        if let Some(from) = spec.from {
            state.domain.check_address(ep, from)?;
        }
        // Of what kind it is does not matter: it moves nothing, and is not counted.
        let mut op = OpState::new(ep, OpKind::Connect, CompletionTarget::Future, AnyBuf::None);
        op.no_transfer = true;
        let key = state.domain.ops.insert(op);
        state.with_rx_queue(ep, |rx, hub| rx.probe(hub, key, spec));
        Ok(key)
    }

    /// What is there, after a look at what has come.
    fn peek(&mut self, ep: EpId, spec: RecvSpec) -> Result<Option<Transfer>> {
        let key = self.probe(ep, spec)?;
        let mut ended = self.domain.take_op_result(key);
        if ended.is_none() {
            self.poll_once();
            ended = self.domain.take_op_result(key);
        }
        let Some(ended) = ended else {
            self.try_cancel(key);
            self.domain.discard_op(key);
            return Ok(None);
        };
        ended
            .error
            .map_or(Ok(Some(ended.transfer)), |error| Err(*error))
    }

    fn claim(&mut self, ep: EpId, spec: RecvSpec) -> Result<Option<(ClaimId, Transfer)>> {
        if self.peek(ep, spec)?.is_none() {
            return Ok(None);
        }
        let claimed = self.with_rx_queue(ep, |rx, _| rx.claim(&spec));
        claimed.ok_or_else(|| Error::Closed(Class::Endpoint))
    }
}

impl DomainHandle {
    /// The message that a receive like this would take now.
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::Closed`]; [`Error::PeerGone`] when nothing can come.
    pub fn peek(&self, ep: EpId, spec: RecvSpec) -> Result<Option<Transfer>> {
        self.with_engine(|locked| locked.peek(ep, spec))
    }

    /// Asks to be told when there is such a message: polled with [`DomainHandle::poll_op`], taken back
    /// with [`DomainHandle::release_permit`].
    ///
    /// # Errors
    /// As [`DomainHandle::peek`].
    pub fn probe(&self, ep: EpId, spec: RecvSpec) -> Result<OpKey> {
        self.with_engine(|locked| locked.probe(ep, spec))
    }

    /// Drives until the probe has found a message, or has failed.
    pub fn poll_probe(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Result<Transfer>> {
        let ended = std::task::ready!(self.poll_op_result(key, cx));
        Poll::Ready(ended.error.map_or(Ok(ended.transfer), |error| Err(*error)))
    }

    /// Takes the message out of matching that a receive like this would take now.
    ///
    /// # Errors
    /// As [`DomainHandle::peek`].
    pub fn claim(&self, ep: EpId, spec: RecvSpec) -> Result<Option<(ClaimId, Transfer)>> {
        self.with_engine(|locked| locked.claim(ep, spec))
    }

    /// Receives a claimed message; the claim has ended then.
    ///
    /// # Errors
    /// With the buffer, and the claim goes on: as [`DomainHandle::recv`].
    pub fn recv_claimed<B: IoBufMut>(
        &self,
        ep: EpId,
        claim: ClaimId,
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<OpKey, Failed<B>> {
        self.with_engine(|locked| {
            if let Some(error) = locked.domain.admit_recv(ep, None, route, credit) {
                return Err(Failed::new(error, buf));
            }
            let key = locked.domain.ops.insert_recv(ep, route, buf.into_any());
            if locked
                .with_rx_queue(ep, |rx, hub| rx.receive_claimed(hub, key, claim))
                .is_none()
            {
                locked
                    .domain
                    .complete(key, Outcome::failed(Error::Closed(Class::Endpoint)));
            }
            Ok(key)
        })
    }

    /// Puts a claimed message back to its old place.
    pub fn release_claim(&self, ep: EpId, claim: ClaimId) {
        self.with_engine(|locked| locked.with_rx_queue(ep, |rx, hub| rx.release_claim(hub, claim)));
    }

    /// Discards a claimed message.
    pub fn discard_claimed(&self, ep: EpId, claim: ClaimId) {
        self.with_engine(|locked| {
            locked.with_rx_queue(ep, |rx, hub| {
                let source = rx.discard_claimed(claim);
                hub.on_message_consumed(source);
            })
        });
    }
}
