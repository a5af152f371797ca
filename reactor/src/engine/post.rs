//! Posting of operations: checks, credits, inline completion, queueing.
//!
//! An operation completes *inline* if the transport executes it within the call that posts it. It
//! then takes neither a slot nor a transmit credit.

use std::task::{Context, Poll};

use fabric_core::buf::{AnyBuf, IoBuf, IoBufMut, Payload, PooledBuf, restore_buffer};
use fabric_core::completion::{Failed, OpKind, Outcome, Transfer};
use fabric_core::matching::RecvSpec;
use fabric_core::stats::OpStats;
use fabric_core::transport::{EndpointContext, EpId, OpKey, RxEngine, TrySend, TxOp};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Resource, Result};

use super::domain::DomainHandle;
use super::endpoint_table::EngineTransportEndpoint;
use super::progress::{EngineGuard, EngineState};
use super::state::bindings::{Bindings, CqId};
use super::state::domain_state::DomainState;
use super::state::ops::{CompletionTarget, CreditMode, OpPhase, OpState, PostResult};
use super::state::tx_credits::AwaitedGrant;

impl EngineGuard<'_> {
    /// Does the follow-up work of a call that may let other operations continue.
    #[inline]
    pub(crate) fn finish(&mut self) {
        self.finish_posts(1);
    }

    /// Does the follow-up work of this many posts.
    #[inline]
    pub(crate) fn finish_posts(&mut self, posts: u32) {
        self.count_posts(posts);
        self.run_follow_ups();
        if self.domain.pending_work.take_rearm() {
            self.rearm_or_wake();
        }
        self.ensure_driven();
    }
}

impl EngineState {
    pub(crate) fn send<B: IoBuf>(
        &mut self,
        ep: EpId,
        tx_op: &TxOp,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let len = buf.payload().len();
        let inline = |state: &mut Self, buf: &mut B| state.try_send(ep, tx_op, buf.payload());
        self.post_or_queue(ep, tx_op, len, (buf, |buf| buf), target, credit, inline)
    }

    /// Posts an operation of `len` bytes: `inline` tries to complete it; an operation that
    /// has to wait is queued. A failed post releases its queue entry. `held` is the form of the
    /// buffer that `inline` takes, and the function that converts it back.
    #[inline(always)] // on the small-message path
    #[allow(clippy::too_many_arguments)] // the same as of every post
    pub(crate) fn post_or_queue<H, B: IoBuf>(
        &mut self,
        ep: EpId,
        tx_op: &TxOp,
        len: usize,
        (mut held, into_buf): (H, impl FnOnce(H) -> B),
        target: CompletionTarget,
        credit: CreditMode,
        inline: impl FnOnce(&mut Self, &mut H) -> Result<TrySend>,
    ) -> Result<PostResult<B>, Failed<B>> {
        let mut queue = None;
        if target.reserves_cq_entry() {
            match self.domain.reserve_entry(ep, tx_op.kind) {
                Ok(reserved) => queue = reserved,
                Err(error) => return Err(Failed::new(error, into_buf(held))),
            }
        }
        let failed = match inline(self, &mut held) {
            Ok(TrySend::Done) => {
                let buf = into_buf(held);
                return Ok(self.complete_inline(ep, tx_op, (len, buf), (target, queue), credit));
            }
            Ok(TrySend::Batched) => {
                let key =
                    self.insert_batched(ep, tx_op, len, into_buf(held).into_any(), target, credit);
                return Ok(PostResult::Pending(key));
            }
            Ok(TrySend::WouldBlock) => {
                match self.queue_send(ep, *tx_op, into_buf(held), target, credit) {
                    Ok(key) => return Ok(PostResult::Pending(key)),
                    Err(failed) => failed,
                }
            }
            Err(error) => Failed::new(error, into_buf(held)),
        };
        if target.reserves_cq_entry() {
            self.domain.unreserve_entry(queue);
        }
        Err(failed)
    }

    /// Has the transport execute a transmit operation inline and counts it, unless `check` fails,
    /// operations wait for a credit, or a fence blocks it.
    #[inline(always)] // on the small-message path
    pub(crate) fn try_inline(
        &mut self,
        ep: EpId,
        tx_op: &TxOp,
        len: usize,
        check: impl FnOnce(&Bindings) -> Result<()>,
        act: impl FnOnce(
            &mut EngineTransportEndpoint,
            &mut EndpointContext<'_, DomainState>,
        ) -> Result<TrySend>,
    ) -> Result<TrySend> {
        let endpoint = self.domain.endpoints.get_open(ep)?;
        check(endpoint.bindings())?;
        if endpoint.tx_credits.has_waiter_for(tx_op.peer)
            || self.domain.ops.is_blocked_by_fence(ep, tx_op)
        {
            return Ok(TrySend::WouldBlock);
        }
        match self.with_transport(ep, act)? {
            Ok(TrySend::Done) => {
                self.domain.count_inline(ep, tx_op.kind, len);
                Ok(TrySend::Done)
            }
            other => other,
        }
    }

    /// Reports an operation that was completed by its post. `queue` has the entry that it reserved.
    #[inline(always)] // on the small-message path
    fn complete_inline<B: IoBuf>(
        &mut self,
        ep: EpId,
        tx_op: &TxOp,
        (len, buf): (usize, B),
        (target, queue): (CompletionTarget, Option<CqId>),
        credit: CreditMode,
    ) -> PostResult<B> {
        let domain = &mut self.domain;
        if credit == CreditMode::FromPermit {
            domain.release_credit(ep, tx_op.kind, Some(tx_op.peer));
        }
        let transfer = Transfer::sent(len, tx_op.tag);
        match target {
            CompletionTarget::Future => PostResult::Done(transfer, buf),
            CompletionTarget::Cq(context) => {
                let buf = domain.completion_buffer(tx_op.kind, buf.into_any());
                domain.report_to_cq(queue, tx_op.kind, context, Outcome::ok(transfer), buf);
                PostResult::Reported
            }
            CompletionTarget::CqOnError(_)
            | CompletionTarget::Discard
            | CompletionTarget::MultiRecv(_) => {
                domain.complete_inline_unreported(queue, buf.into_any());
                PostResult::Reported
            }
        }
    }

    /// Gives a slot to a message that the transport has batched: it completes when the kernel has
    /// taken it. It takes no credit, since a transport bounds what it batches.
    fn insert_batched(
        &mut self,
        ep: EpId,
        tx_op: &TxOp,
        len: usize,
        buf: AnyBuf,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> OpKey {
        let has_credit = credit == CreditMode::FromPermit;
        let ops = &mut self.domain.ops;
        let key = ops.insert_tx(ep, tx_op, target, buf, has_credit);
        let set = self.with_transport(ep, |transport, ctx| {
            transport.set_batched_op(ctx, key, tx_op, len);
        });
        if let Err(error) = set {
            self.domain.complete(key, Outcome::failed(error));
        }
        self.domain.pending_work.add_batched(ep);
        key
    }

    /// Sends or writes inline, if no operation has to go first and the transport can.
    #[inline(always)] // on the small-message path
    pub(crate) fn try_send(
        &mut self,
        ep: EpId,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let len = payload.len();
        let check = |bindings: &Bindings| bindings.check_len(len);
        self.try_inline(ep, tx_op, len, check, |transport, ctx| {
            transport.try_send(ctx, tx_op, payload)
        })
    }

    pub(crate) fn queue_send<B: IoBuf>(
        &mut self,
        ep: EpId,
        tx_op: TxOp,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<OpKey, Failed<B>> {
        let blocked_by_fence = self.domain.ops.is_blocked_by_fence(ep, &tx_op);
        let peer = tx_op.peer;
        let endpoint = match self.domain.endpoints.get_open(ep) {
            Ok(endpoint) => endpoint,
            Err(error) => return Err(Failed::new(error, buf)),
        };
        let mut has_credit = credit == CreditMode::FromPermit;
        if has_credit && endpoint.tx_credits.has_queued_message_for(peer) {
            // Sends that were posted before this one wait for a credit: this one does not overtake
            // them, but gives them its own credit.
            has_credit = false;
            endpoint.record_out_of_credit();
            self.domain.release_credit(ep, tx_op.kind, Some(peer));
        } else if !has_credit {
            has_credit = endpoint.tx_credits.try_acquire(peer);
            if !has_credit {
                endpoint.record_out_of_credit();
                if credit == CreditMode::NoWait {
                    let shortage = endpoint.tx_credits.shortage(peer);
                    return Err(Failed::new(Error::WouldBlock(shortage), buf));
                }
            }
        }
        let awaits = match (has_credit, tx_op.fence) {
            (true, _) => blocked_by_fence.then_some(AwaitedGrant::Fence),
            (false, true) => Some(AwaitedGrant::CreditAndFence),
            (false, false) => Some(AwaitedGrant::Credit),
        };
        let phase = match awaits {
            Some(_) => OpPhase::Waiting,
            None => OpPhase::Executing,
        };
        let op = OpState::queued(ep, tx_op, target, buf.into_any(), phase, has_credit);
        let key = self.domain.ops.insert(op);
        if let Some(awaits) = awaits {
            let endpoints = &mut self.domain.endpoints;
            endpoints.enqueue_for_credit(ep, key, peer, awaits);
            return Ok(key);
        }
        let queued =
            self.with_transport(ep, |transport, ctx| transport.queue_send(ctx, key, &tx_op));
        if let Err(error) = queued.flatten() {
            let op = self.domain.remove_op(key);
            let buf = op.expect("operation was inserted under the same lock").buf;
            if credit == CreditMode::FromPermit
                && let Some(endpoint) = self.domain.endpoints.get_mut(ep)
            {
                // The permit keeps its credit.
                endpoint.tx_credits.reacquire(peer);
            }
            return Err(Failed::new(error, restore_buffer(buf)));
        }
        Ok(key)
    }

    pub(crate) fn inject(&mut self, ep: EpId, tx_op: &TxOp, bytes: &[u8]) -> Result<()> {
        let endpoint = self.domain.endpoints.get_open(ep)?;
        let limit = endpoint.bindings().inject_size;
        if bytes.len() > limit {
            return Err(Error::TooLong {
                what: "injected message",
                len: bytes.len(),
                limit,
            });
        }
        let (target, credit) = (CompletionTarget::Discard, CreditMode::NoWait);
        match self.try_send(ep, tx_op, Payload::Contiguous(bytes))? {
            TrySend::Done => {}
            TrySend::Batched => {
                self.insert_batched(ep, tx_op, bytes.len(), AnyBuf::None, target, credit);
            }
            TrySend::WouldBlock => {
                let mut copy = PooledBuf::with_capacity(bytes.len());
                copy.extend_from_slice(bytes);
                self.queue_send(ep, *tx_op, copy, target, credit)?;
            }
        }
        Ok(())
    }

    pub(crate) fn recv<B: IoBufMut>(
        &mut self,
        ep: EpId,
        spec: RecvSpec,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<OpKey, Failed<B>> {
        if let Some(error) = self.domain.admit_recv(ep, spec.from, target, credit) {
            return Err(Failed::new(error, buf));
        }
        let key = self.domain.ops.insert_recv(ep, target, buf.into_any());
        self.post_recv(ep, key, spec);
        Ok(key)
    }
}

impl DomainState {
    /// Checks a receive before it is posted, counts it, and reserves its queue entry. Returns the
    /// error if it is refused.
    #[inline(always)] // on the small-message path
    pub(crate) fn admit_recv(
        &mut self,
        ep: EpId,
        from: Option<FiAddr>,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Option<Error> {
        let Self {
            endpoints,
            cqs,
            avs,
            ..
        } = self;
        let Some(state) = endpoints.get_mut(ep) else {
            return Some(Error::Closed(Class::Endpoint));
        };
        if credit == CreditMode::NoWait && state.free_recvs() == 0 {
            let limit = state.bindings().rx_size;
            return Some(Error::WouldBlock(Resource::ReceiveEntry { limit }));
        }
        if let Some(Err(error)) = from.map(|from| avs.check(state.bindings().av, from)) {
            return Some(error);
        }
        if target.reserves_cq_entry()
            && let Err(error) = cqs.reserve(state.bindings().rx_cq)
        {
            return Some(error);
        }
        state.add_posted_recvs(1);
        None
    }

    /// Counts an operation that was completed by its post.
    #[inline]
    fn count_inline(&mut self, ep: EpId, kind: OpKind, len: usize) {
        let Some(ep) = self.endpoints.get_mut(ep) else {
            return;
        };
        ep.record_inline(kind, OpStats::one(len));
        let counter = ep.bindings().counters.for_op(kind);
        self.counters.count(counter, true, &mut self.deferred);
    }

    /// Drops the buffer of an operation that was completed by its post and is not reported, and the
    /// entry that it reserved in `queue`.
    fn complete_inline_unreported(&mut self, queue: Option<CqId>, buf: AnyBuf) {
        self.deferred.drop_buffer(buf);
        self.unreserve_entry(queue);
    }
}

/// Returns the failure of a post in a domain that another thread uses.
#[cold]
pub(crate) fn refused<B>(buf: B) -> Failed<B> {
    Failed::new(Error::ConcurrentUse, buf)
}

impl DomainHandle {
    /// Posts a send (`fi_send`).
    ///
    /// # Errors
    /// [`Error::WouldBlock`] without a free credit, [`Error::TooLong`], [`Error::StaleAddress`],
    /// [`Error::ConcurrentUse`], [`Error::Closed`], or what the transport knows to be impossible;
    /// all with the buffer.
    pub fn send<B: IoBuf>(
        &self,
        ep: EpId,
        tx_op: TxOp,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let buf = self.copy_unlendable_loan(buf)?;
        // Not through `with_engine`: the result is large, and a closure's result is moved once
        // more.
        let Some(mut locked) = self.engine().lock_or_refuse() else {
            return Err(refused(buf));
        };
        let posted = locked.send(ep, &tx_op, buf, target, credit);
        locked.finish();
        posted
    }

    /// Sends a copy of borrowed bytes (`fi_inject`), at once or later from the copy.
    ///
    /// # Errors
    /// As [`DomainHandle::send`]; [`Error::TooLong`] above the inject size.
    pub fn inject(&self, ep: EpId, tx_op: TxOp, bytes: &[u8]) -> Result<()> {
        self.with_engine_or_refuse(|locked| locked.inject(ep, &tx_op, bytes))
    }

    /// Posts a receive (`fi_recv`).
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when the receive entries of the endpoint or the entries of the queue
    /// are used up, [`Error::ConcurrentUse`], [`Error::Closed`]; all with the buffer.
    pub fn recv<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: RecvSpec,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<OpKey, Failed<B>> {
        // Not through `with_engine`: the result is large, and a closure's result is moved once
        // more.
        let Some(mut locked) = self.engine().lock_or_refuse() else {
            return Err(refused(buf));
        };
        let posted = locked.recv(ep, spec, buf, target, credit);
        locked.finish();
        posted
    }

    /// Requests a transmit credit, for a permit.
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::ConcurrentUse`], [`Error::Closed`].
    pub fn reserve_credit(&self, ep: EpId, peer: FiAddr) -> Result<OpKey> {
        let mut locked = self.lock_or_refuse()?;
        locked.domain.check_address(ep, peer)?;
        let endpoint = locked.domain.endpoints.get_open(ep)?;
        let free = endpoint.tx_credits.try_acquire(peer);
        let permit = OpState::permit(ep, peer, free);
        let key = locked.domain.ops.insert(permit);
        if !free {
            let endpoints = &mut locked.domain.endpoints;
            endpoints.enqueue_for_credit(ep, key, peer, AwaitedGrant::Permit);
        }
        Ok(key)
    }

    /// Drives the domain until a permit is granted, a flush has ended, or it is the turn of a wait
    /// for memory of loans. The operation still has to be [detached](DomainHandle::drop_future).
    pub fn poll_wait(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.engine().poll(
            cx.waker(),
            |domain| {
                let outcome = domain.ops.get(key)?.outcome()?;
                Some(outcome.error.as_deref().cloned().map_or(Ok(()), Err))
            },
            |domain, waker| domain.register_op_waker(key, waker),
        )
    }
}
