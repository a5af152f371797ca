//! Posting of operations: checks, credits, inline completion, queueing.
//!
//! An operation completes *inline* if the transport executes it within the call that posts it. It
//! then takes neither a slot nor a transmit credit.

use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_core::buf::{AnyBuf, BufferPool, IoBuf, IoBufMut, Loan, Payload};
use fabric_core::completion::{Failed, OpKind, Outcome, Transfer};
use fabric_core::matching::RecvSpec;
use fabric_core::transport::{EndpointContext, EpId, OpKey, RxEngine, TrySend, TxOp};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Resource, Result};

use super::completions::reserve_cq_entry;
use super::domain::DomainHandle;
use super::endpoint_table::EngineTransportEndpoint;
use super::progress::EngineGuard;
use super::state::bindings::{Bindings, CqId};
use super::state::domain_state::DomainState;
use super::state::ops::{CompletionTarget, CreditMode, OpPhase, OpState, PostResult};
use super::state::tx_credits::FencedOp;

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

    pub(crate) fn send<B: IoBuf>(
        &mut self,
        ep: EpId,
        tx_op: &TxOp,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let len = buf.payload().len();
        let inline = |locked: &mut Self, buf: &mut B| locked.try_send(ep, tx_op, buf.payload());
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
            self.domain.unreserve_entry(ep, tx_op.kind);
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
        let state = &mut **self;
        let endpoint = state.domain.endpoint(ep)?;
        check(&endpoint.bindings)?;
        if endpoint.tx_credits.has_waiter_for(tx_op.peer)
            || state.domain.is_blocked_by_fence(ep, tx_op)
        {
            return Ok(TrySend::WouldBlock);
        }
        let outcome = state.with_transport(ep, act)?;
        let domain = &mut state.domain;
        if matches!(outcome, Ok(TrySend::Done)) {
            domain.count_inline(ep, tx_op.kind, len);
        }
        outcome
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
                domain.complete_inline_unreported(ep, tx_op.kind, target, buf.into_any());
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
        let state = &mut **self;
        let has_credit = credit == CreditMode::FromPermit;
        state.domain.pending_sends += usize::from(has_credit);
        let key = state
            .domain
            .ops
            .insert_tx(ep, tx_op, target, buf, has_credit);
        let set = state.with_transport(ep, |transport, ctx| {
            transport.set_batched_op(ctx, key, tx_op, len);
        });
        if let Err(error) = set {
            state.domain.complete(key, Outcome::failed(error));
        }
        if !state.domain.batched_eps.contains(&ep) {
            state.domain.batched_eps.push(ep);
        }
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
        let state = &mut **self;
        let blocked_by_fence = state.domain.is_blocked_by_fence(ep, &tx_op);
        let tx_credits = match state.domain.endpoint(ep) {
            Ok(ep) => &mut ep.tx_credits,
            Err(error) => return Err(Failed::new(error, buf)),
        };
        let mut has_credit = credit == CreditMode::FromPermit;
        if has_credit && tx_credits.has_queued_message_for(tx_op.peer) {
            // Sends that were posted before this one wait for a credit: this one does not overtake
            // them, but gives them its own credit.
            has_credit = false;
            state
                .domain
                .release_credit(ep, tx_op.kind, Some(tx_op.peer));
        } else if !has_credit {
            has_credit = tx_credits.try_acquire(tx_op.peer);
        }
        if !has_credit {
            state
                .domain
                .endpoint(ep)
                .into_iter()
                .for_each(|ep| ep.stats.out_of_credit += 1);
        }
        if !has_credit && credit == CreditMode::NoWait {
            return Err(Failed::new(state.domain.out_of_credit(ep, tx_op.peer), buf));
        }
        let mut op = OpState::new(ep, tx_op.kind, target, buf.into_any());
        op.tx_op = Some(tx_op);
        op.holds_credit = has_credit;
        let key = if blocked_by_fence || !has_credit {
            op.phase = OpPhase::Waiting;
            let key = state.domain.ops.insert(op);
            state.domain.pending_sends += usize::from(has_credit);
            if let Ok(ep) = state.domain.endpoint(ep) {
                if tx_op.fence {
                    ep.tx_credits
                        .enqueue_fenced(key, tx_op.peer, FencedOp { has_credit });
                } else {
                    ep.tx_credits.enqueue(key, tx_op.peer, true);
                }
                ep.update_fast_path();
            }
            key
        } else {
            let key = state.domain.ops.insert(op);
            state.domain.pending_sends += 1;
            let queued =
                state.with_transport(ep, |transport, ctx| transport.queue_send(ctx, key, &tx_op));
            if let Err(error) = queued.flatten() {
                let buf = state.domain.remove_refused(key);
                if credit == CreditMode::FromPermit {
                    // The permit keeps its credit.
                    self.domain.reacquire_credit(ep, tx_op.peer);
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
        tx_op: &TxOp,
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
        match self.try_send(ep, tx_op, Payload::Contiguous(bytes))? {
            TrySend::Done => return Ok(()),
            TrySend::Batched => {
                let (len, no_buf) = (bytes.len(), AnyBuf::None);
                self.insert_batched(
                    ep,
                    tx_op,
                    len,
                    no_buf,
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
            *tx_op,
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
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<OpKey, Failed<B>> {
        let state = &mut **self;
        if let Some(error) = state.domain.admit_recv(ep, spec.from, target, credit) {
            return Err(Failed::new(error, buf));
        }
        let key = state.domain.ops.insert_recv(ep, target, buf.into_any());
        state.post_recv(ep, key, spec);
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
        let Some(state) = endpoints.get_mut(ep.0) else {
            return Some(Error::Closed(Class::Endpoint));
        };
        if credit == CreditMode::NoWait && state.posted_recvs >= state.bindings.rx_size {
            let limit = state.bindings.rx_size;
            return Some(Error::WouldBlock(Resource::ReceiveEntry { limit }));
        }
        if let Some(Err(error)) = from.map(|from| avs.check(state.bindings.av, from)) {
            return Some(error);
        }
        if target.reserves_cq_entry()
            && let Err(error) = reserve_cq_entry(cqs, state.bindings.rx_cq)
        {
            return Some(error);
        }
        state.posted_recvs += 1;
        None
    }

    /// Returns the error of a post to `peer` that got no credit.
    #[cold]
    fn out_of_credit(&self, ep: EpId, peer: FiAddr) -> Error {
        match self.endpoints.get(ep.0) {
            Some(ep) => Error::WouldBlock(ep.tx_credits.shortage(peer)),
            None => Error::Closed(Class::Endpoint),
        }
    }

    /// Returns whether the operation is fenced and an earlier operation to its peer has not ended.
    #[inline]
    fn is_blocked_by_fence(&self, ep: EpId, tx_op: &TxOp) -> bool {
        tx_op.fence && self.ops.has_ops_in_transport_to(ep, tx_op.peer)
    }

    /// Counts an operation that was completed by its post.
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

    /// Drops the buffer and the queue entry of an operation that was completed by its post and is
    /// not reported.
    fn complete_inline_unreported(
        &mut self,
        ep: EpId,
        kind: OpKind,
        target: CompletionTarget,
        buf: AnyBuf,
    ) {
        self.deferred.drop_buffer(buf);
        if target.reserves_cq_entry() {
            self.unreserve_entry(ep, kind);
        }
    }

    /// Returns the buffer for the completion of a successful operation: an empty loan for a loan
    /// that was sent, since its memory belongs to the peer now.
    #[inline(always)] // on the small-message path
    pub(crate) fn completion_buffer(&mut self, kind: OpKind, buf: AnyBuf) -> AnyBuf {
        if kind == OpKind::Send && matches!(buf, AnyBuf::Loan(_)) {
            self.discard_loan(buf)
        } else {
            buf
        }
    }

    #[cold]
    fn discard_loan(&mut self, loan: AnyBuf) -> AnyBuf {
        self.deferred.drop_buffer(loan);
        AnyBuf::Loan(Loan::empty())
    }

    /// Takes a credit again that was just released.
    fn reacquire_credit(&mut self, ep: EpId, peer: FiAddr) {
        if let Ok(ep) = self.endpoint(ep) {
            ep.tx_credits.reacquire(peer);
        }
    }

    /// Removes an operation that was refused, and returns its buffer.
    fn remove_refused<B: IoBuf>(&mut self, key: OpKey) -> B {
        let mut op = self
            .ops
            .remove(key)
            .expect("operation was inserted under the same lock");
        self.release_op_resources(&mut op);
        B::from_any(op.buf)
            .unwrap_or_else(|_| unreachable!("the operation was inserted with this buffer type"))
    }
}

impl DomainHandle {
    /// Posts a send (`fi_send`).
    ///
    /// # Errors
    /// [`Error::WouldBlock`] without a free credit, [`Error::TooLong`], [`Error::StaleAddress`],
    /// [`Error::Closed`], or what the transport knows to be impossible; all with the buffer.
    pub fn send<B: IoBuf>(
        &self,
        ep: EpId,
        tx_op: TxOp,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let buf = self.own_payload(buf)?;
        // Not through `with_engine`: the result is large, and a closure's result is moved once
        // more.
        let mut locked = self.engine().lock();
        let posted = locked.send(ep, &tx_op, buf, target, credit);
        locked.finish();
        posted
    }

    /// Sends a copy of borrowed bytes (`fi_inject`), at once or later from the copy.
    ///
    /// # Errors
    /// As [`DomainHandle::send`]; [`Error::TooLong`] above the inject size.
    pub fn inject(&self, ep: EpId, tx_op: TxOp, bytes: &[u8]) -> Result<()> {
        self.with_engine(|locked| locked.inject(ep, &tx_op, bytes, self.pool()))
    }

    /// Posts a receive (`fi_recv`).
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when the receive entries of the endpoint or the entries of the queue
    /// are used up, [`Error::Closed`]; all with the buffer.
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
        let mut locked = self.engine().lock();
        let posted = locked.recv(ep, spec, buf, target, credit);
        locked.finish();
        posted
    }

    /// Requests a transmit credit, for a permit.
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::Closed`].
    pub fn reserve_credit(&self, ep: EpId, peer: FiAddr) -> Result<OpKey> {
        let mut locked = self.engine().lock();
        locked.domain.check_address(ep, peer)?;
        let mut op = OpState::condition(Some(ep), OpPhase::Waiting);
        op.tx_op = Some(TxOp::new(OpKind::Send, peer));
        let free = locked.domain.endpoint(ep)?.tx_credits.try_acquire(peer);
        if free {
            op.holds_credit = true;
            op.phase = OpPhase::Done;
        }
        let key = locked.domain.ops.insert(op);
        if !free {
            let ep_state = locked.domain.endpoint(ep)?;
            ep_state.tx_credits.enqueue(key, peer, false);
            ep_state.update_fast_path();
        }
        Ok(key)
    }

    /// Drives the domain until a permit is granted.
    pub fn poll_permit(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.engine().poll(
            cx.waker(),
            |domain| {
                let op = domain.ops.get(key).filter(|op| op.phase == OpPhase::Done)?;
                Some(op.outcome.error.as_deref().cloned().map_or(Ok(()), Err))
            },
            |domain, waker| domain.register_op_waker(key, waker),
        )
    }
}
