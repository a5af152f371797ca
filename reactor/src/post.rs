//! Posting operations.

use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_core::buf::{AnyBuf, BufferPool, IoBuf, IoBufMut, Payload};
use fabric_core::completion::{Failed, OpKind, Outcome, Transfer};
use fabric_core::matching::RecvSpec;
use fabric_core::transport::{EpId, OpKey, TransportDomain, TrySend, TxOp};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Resource, Result};

use crate::completions::reserve_cq_entry;
use crate::domain::DomainHandle;
use crate::domain_state::{Bindings, DomainState, check_addr};
use crate::engine::{EngineGuard, EngineState};
use crate::ops::{CompletionTarget, CreditMode, OpPhase, OpState, PostResult};
use crate::tx_credits::FencedOp;

impl EngineGuard<'_> {
    /// After a call that may have let others go on.
    #[inline]
    pub(crate) fn finish(&mut self) {
        self.finish_posts(1);
    }

    /// Likewise, after so many posts.
    #[inline]
    pub(crate) fn finish_posts(&mut self, posts: u32) {
        self.count_posts(posts);
        self.run_follow_ups();
        if std::mem::take(&mut self.domain.rearm_requested) {
            self.rearm_or_wake();
        }
        self.ensure_driven();
    }

    pub(crate) fn send<B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: &TxOp,
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let len = buf.payload().len();
        let now = |locked: &mut Self, buf: &mut B| locked.try_send(ep, spec, buf.payload());
        self.post_or_queue(ep, spec, len, (buf, |buf| buf), route, credit, now)
    }

    /// Posts an operation of this length: `now` tries it at once, and what has to wait is queued.
    /// What is refused has no entry of a queue. `held` is what `now` wants of the buffer, and how
    /// the buffer is made of it again.
    #[inline(always)] // on the way of a small message
    #[allow(clippy::too_many_arguments)] // those of every post
    pub(crate) fn post_or_queue<H, B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: &TxOp,
        len: usize,
        (mut held, back): (H, impl FnOnce(H) -> B),
        route: CompletionTarget,
        credit: CreditMode,
        now: impl FnOnce(&mut Self, &mut H) -> Result<TrySend>,
    ) -> Result<PostResult<B>, Failed<B>> {
        if route.reserves_cq_entry()
            && let Err(error) = self.domain.reserve_entry(ep, spec.kind)
        {
            return Err(Failed::new(error, back(held)));
        }
        let failed = match now(self, &mut held) {
            Ok(TrySend::Done) => {
                return Ok(self.complete_inline(ep, spec, len, back(held), route, credit));
            }
            Ok(TrySend::Collected) => {
                let key = self.collected(ep, spec, len, back(held).into_any(), route, credit);
                return Ok(PostResult::Pending(key));
            }
            Ok(TrySend::WouldBlock) => {
                match self.queue_send(ep, *spec, back(held), route, credit) {
                    Ok(key) => return Ok(PostResult::Pending(key)),
                    Err(failed) => failed,
                }
            }
            Err(error) => Failed::new(error, back(held)),
        };
        if route.reserves_cq_entry() {
            self.domain.unreserve_entry(ep, spec.kind);
        }
        Err(failed)
    }

    /// Has the provider do something at a peer at once, unless the endpoint does not let it or
    /// others come first, and counts it.
    #[inline(always)] // likewise
    pub(crate) fn try_inline(
        &mut self,
        ep: EpId,
        spec: &TxOp,
        len: usize,
        check: impl FnOnce(&Bindings) -> Result<()>,
        act: impl FnOnce(&mut dyn TransportDomain, &mut DomainState) -> Result<TrySend>,
    ) -> Result<TrySend> {
        let EngineState {
            domain: hub,
            transport: provider,
            ..
        } = &mut **self;
        let row = hub.endpoint(ep)?;
        check(&row.bindings)?;
        if row.tx_credits.has_waiter_for(spec.peer) || hub.is_blocked_by_fence(ep, spec) {
            return Ok(TrySend::WouldBlock);
        }
        let done = act(&mut **provider, hub);
        if matches!(done, Ok(TrySend::Done)) {
            hub.count_inline(ep, spec.kind, len);
        }
        done
    }

    /// An operation has ended where it was posted.
    #[inline(always)] // likewise
    fn complete_inline<B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: &TxOp,
        len: usize,
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> PostResult<B> {
        let hub = &mut self.domain;
        if credit == CreditMode::FromPermit {
            hub.release_credit(ep, spec.kind, Some(spec.peer));
        }
        let transfer = Transfer::sent(len, spec.tag);
        match route {
            CompletionTarget::Future => PostResult::Done(transfer, buf),
            CompletionTarget::Cq(context) => {
                let buf = hub.completion_buffer(spec, buf.into_any());
                let queue = hub.cq_of(ep, spec.kind);
                hub.report_to_cq(queue, spec.kind, context, Outcome::ok(transfer), buf);
                PostResult::Reported
            }
            CompletionTarget::CqOnError(_)
            | CompletionTarget::Discard
            | CompletionTarget::MultiRecv(_) => {
                hub.complete_inline_unreported(ep, spec.kind, route, buf.into_any());
                PostResult::Reported
            }
        }
    }

    /// Gives a slot to a message that the provider has collected: it ends when the kernel has it.
    /// It takes no credit; what a provider collects is bounded.
    fn collected(
        &mut self,
        ep: EpId,
        spec: &TxOp,
        len: usize,
        buf: AnyBuf,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> OpKey {
        let state = &mut **self;
        let has_credit = credit == CreditMode::FromPermit;
        state.domain.pending_sends += usize::from(has_credit);
        let key = state
            .domain
            .ops
            .insert_send(ep, spec, route, buf, has_credit);
        state
            .transport
            .collected(&mut state.domain, ep, key, spec, len);
        if !state.domain.collected.contains(&ep) {
            state.domain.collected.push(ep);
        }
        key
    }

    /// Sends, or writes, at once if nothing stands in the way.
    #[inline(always)] // on the way of a small message
    pub(crate) fn try_send(
        &mut self,
        ep: EpId,
        spec: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let len = payload.len();
        let check = |bound: &Bindings| bound.check_len(len);
        self.try_inline(ep, spec, len, check, |provider, hub| {
            provider.try_send(hub, ep, spec, payload)
        })
    }

    pub(crate) fn queue_send<B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: TxOp,
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<OpKey, Failed<B>> {
        let state = &mut **self;
        let fenced_off = state.domain.is_blocked_by_fence(ep, &spec);
        let transmit = match state.domain.endpoint(ep) {
            Ok(ep) => &mut ep.tx_credits,
            Err(error) => return Err(Failed::new(error, buf)),
        };
        let mut has_credit = credit == CreditMode::FromPermit;
        if has_credit && transmit.has_queued_message_for(spec.peer) {
            // Sends that were posted before this one wait for credit: it does not overtake them,
            // but gives them its own.
            has_credit = false;
            state.domain.release_credit(ep, spec.kind, Some(spec.peer));
        } else if !has_credit {
            has_credit = transmit.try_acquire(spec.peer);
        }
        if !has_credit {
            state
                .domain
                .endpoint(ep)
                .into_iter()
                .for_each(|ep| ep.stats.out_of_credit += 1);
        }
        if !has_credit && credit == CreditMode::NoWait {
            return Err(Failed::new(
                Error::WouldBlock(Resource::TransmitCredit),
                buf,
            ));
        }
        let mut op = OpState::new(ep, spec.kind, route, buf.into_any());
        op.spec = Some(spec);
        op.holds_credit = has_credit;
        let key = if fenced_off || !has_credit {
            op.phase = OpPhase::Queued;
            let key = state.domain.ops.insert(op);
            state.domain.pending_sends += usize::from(has_credit);
            if let Ok(ep) = state.domain.endpoint(ep) {
                if spec.fence {
                    ep.tx_credits
                        .enqueue_fenced(key, spec.peer, FencedOp { has_credit });
                } else {
                    ep.tx_credits.enqueue(key, spec.peer, true);
                }
                ep.update_fast_path();
            }
            key
        } else {
            let key = state.domain.ops.insert(op);
            state.domain.pending_sends += 1;
            if let Err(error) = state
                .transport
                .queue_send(&mut state.domain, ep, key, &spec)
            {
                let buf = state.domain.remove_refused(key);
                if credit == CreditMode::FromPermit {
                    // The permit still has its credit.
                    self.domain.reacquire_credit(ep, spec.peer);
                }
                return Err(Failed::new(error, buf));
            }
            key
        };
        Ok(key)
    }

    pub(crate) fn inject(
        &mut self,
        ep: EpId,
        spec: &TxOp,
        bytes: &[u8],
        pool: &Arc<BufferPool>,
    ) -> Result<()> {
        let state = &mut **self;
        let limit = state.domain.endpoint(ep)?.bindings.inject_size;
        if bytes.len() > limit {
            return Err(Error::TooLong {
                what: "injected message",
                len: bytes.len(),
                limit,
            });
        }
        match self.try_send(ep, spec, Payload::Contiguous(bytes))? {
            TrySend::Done => return Ok(()),
            TrySend::Collected => {
                let (len, none) = (bytes.len(), AnyBuf::None);
                self.collected(
                    ep,
                    spec,
                    len,
                    none,
                    CompletionTarget::Discard,
                    CreditMode::NoWait,
                );
                return Ok(());
            }
            TrySend::WouldBlock => {}
        }
        let mut copy = pool.take(bytes.len());
        copy.extend_from_slice(bytes);
        self.queue_send(
            ep,
            *spec,
            copy,
            CompletionTarget::Discard,
            CreditMode::NoWait,
        )?;
        Ok(())
    }

    pub(crate) fn recv<B: IoBufMut>(
        &mut self,
        ep: EpId,
        spec: RecvSpec,
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<OpKey, Failed<B>> {
        let state = &mut **self;
        if let Some(error) = state.domain.admit_recv(ep, spec.from, route, credit) {
            return Err(Failed::new(error, buf));
        }
        let key = state.domain.ops.insert_recv(ep, route, buf.into_any());
        state.post_recv(ep, key, spec);
        Ok(key)
    }
}

impl DomainState {
    /// Checks a receive before it is posted, counts it, and reserves what it needs. Returns why it
    /// is refused.
    #[inline(always)] // on the way of a small message
    pub(crate) fn admit_recv(
        &mut self,
        ep: EpId,
        from: Option<FiAddr>,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Option<Error> {
        let Self {
            endpoints: eps,
            cqs,
            avs: vectors,
            ..
        } = self;
        let Some(state) = eps.get_mut(ep.0) else {
            return Some(Error::Closed(Class::Endpoint));
        };
        if credit == CreditMode::NoWait && state.posted_recvs >= state.bindings.rx_size {
            return Some(Error::WouldBlock(Resource::ReceiveEntry));
        }
        if let Some(Err(error)) = from.map(|from| check_addr(vectors, state.bindings.av, from)) {
            return Some(error);
        }
        if route.reserves_cq_entry()
            && let Err(error) = reserve_cq_entry(cqs, state.bindings.rx_cq)
        {
            return Some(error);
        }
        state.posted_recvs += 1;
        None
    }

    /// Whether it is fenced, and something that was posted before it for its peer has not ended.
    #[inline]
    fn is_blocked_by_fence(&self, ep: EpId, spec: &TxOp) -> bool {
        spec.fence && self.ops.has_posted_ops_to(ep, spec.peer)
    }

    /// Counts an operation that has ended where it was posted.
    #[inline]
    fn count_inline(&mut self, ep: EpId, kind: OpKind, len: usize) {
        let Some(ep) = self.endpoints.get_mut(ep.0) else {
            return;
        };
        ep.stats.record(kind, len);
        ep.stats.inline += 1;
        if let Some(counter) = ep.bindings.counters.for_op(kind) {
            self.add_to_counter(counter, true);
        }
    }

    /// An operation has ended of which nobody wants to hear.
    fn complete_inline_unreported(
        &mut self,
        ep: EpId,
        kind: OpKind,
        route: CompletionTarget,
        buf: AnyBuf,
    ) {
        self.deferred.drop_buffer(buf);
        if route.reserves_cq_entry() {
            self.unreserve_entry(ep, kind);
        }
    }

    /// What a completed operation has for its queue: what was lent is the peer's now.
    #[inline(always)] // on the way of a small message
    pub(crate) fn completion_buffer(&mut self, spec: &TxOp, buf: AnyBuf) -> AnyBuf {
        if spec.loan.is_none() {
            buf
        } else {
            self.discard_loan(buf)
        }
    }

    /// What was lent is not the sender's any more.
    #[cold]
    pub(crate) fn discard_loan(&mut self, loan: AnyBuf) -> AnyBuf {
        self.deferred.drop_buffer(loan);
        AnyBuf::None
    }

    /// Undoes the giving back of a credit.
    fn reacquire_credit(&mut self, ep: EpId, peer: FiAddr) {
        if let Ok(ep) = self.endpoint(ep) {
            ep.tx_credits.reacquire(peer);
        }
    }

    /// Removes an operation that was refused and returns its buffer.
    fn remove_refused<B: IoBuf>(&mut self, key: OpKey) -> B {
        let mut op = self.ops.remove(key).expect("the slot was just filled");
        self.release_op_resources(&mut op);
        B::from_any(op.buf).unwrap_or_else(|_| unreachable!("the slot was filled with this type"))
    }
}

impl DomainHandle {
    /// Posts a send.
    ///
    /// # Errors
    /// With the buffer: [`Error::WouldBlock`] without credit, [`Error::TooLong`],
    /// [`Error::StaleAddress`], [`Error::Closed`], or what the provider knows to be impossible.
    pub fn send<B: IoBuf>(
        &self,
        ep: EpId,
        spec: TxOp,
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        // Not by `with`: what comes back is large, and a closure's result is moved once more.
        let mut locked = self.engine().lock();
        let posted = locked.send(ep, &spec, buf, route, credit);
        locked.finish();
        posted
    }

    /// Sends a copy of borrowed bytes: at once, or from a copy of its own.
    ///
    /// # Errors
    /// As [`DomainHandle::send`]; [`Error::TooLong`] above the inject size.
    pub fn inject(&self, ep: EpId, spec: TxOp, bytes: &[u8]) -> Result<()> {
        self.with_engine(|locked| locked.inject(ep, &spec, bytes, self.pool()))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// With the buffer: [`Error::WouldBlock`] when the endpoint's receive entries or the queue's are
    /// taken, [`Error::Closed`].
    pub fn recv<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: RecvSpec,
        buf: B,
        route: CompletionTarget,
        credit: CreditMode,
    ) -> Result<OpKey, Failed<B>> {
        // Not by `with`: what comes back is large, and a closure's result is moved once more.
        let mut locked = self.engine().lock();
        let posted = locked.recv(ep, spec, buf, route, credit);
        locked.finish();
        posted
    }

    /// Asks for a transmit credit.
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::Closed`].
    pub fn reserve_credit(&self, ep: EpId, peer: FiAddr) -> Result<OpKey> {
        let mut locked = self.engine().lock();
        locked.domain.check_address(ep, peer)?;
        let mut op = OpState::new(ep, OpKind::Send, CompletionTarget::Future, AnyBuf::None);
        op.no_transfer = true;
        op.spec = Some(TxOp::new(OpKind::Send, peer));
        op.phase = OpPhase::Queued;
        let free = locked.domain.endpoint(ep)?.tx_credits.try_acquire(peer);
        if free {
            op.holds_credit = true;
            op.phase = OpPhase::Done;
        }
        let key = locked.domain.ops.insert(op);
        if !free {
            let bound = locked.domain.endpoint(ep)?;
            bound.tx_credits.enqueue(key, peer, false);
            bound.update_fast_path();
        }
        Ok(key)
    }

    /// Drives until a permit is granted.
    pub fn poll_permit(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.engine().poll(
            cx.waker(),
            |hub| {
                let op = hub.ops.get(key).filter(|op| op.phase == OpPhase::Done)?;
                Some(op.outcome.error.as_deref().cloned().map_or(Ok(()), Err))
            },
            |hub, waker| hub.register_op_waker(key, waker),
        )
    }
}
