//! Posting operations.

use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_core::buf::{AnyBuf, IoBuf, IoBufMut, Payload, Pool};
use fabric_core::completion::{Failed, OpKind, Outcome, Transfer};
use fabric_core::matching::RecvSpec;
use fabric_core::provider::{EpId, OpKey, ProviderDomain, SendNow, SendSpec};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result, Scarce};

use crate::domain::Domain;
use crate::engine::{Locked, State};
use crate::hub::{Bindings, Hub, known};
use crate::ops::{Credit, Op, Phase, Posted, Route};
use crate::reports::reserve_in;
use crate::transmit::Fence;

impl Locked<'_> {
    /// After a call that may have let others go on.
    #[inline]
    pub(crate) fn finish(&mut self) {
        self.finish_all(1);
    }

    /// Likewise, after so many posts.
    #[inline]
    pub(crate) fn finish_all(&mut self, posts: u32) {
        self.posted(posts);
        self.follow_up();
        if std::mem::take(&mut self.hub.unsettled) {
            self.see_to_it();
        }
        self.settle();
    }

    pub(crate) fn send<B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: &SendSpec,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        let len = buf.payload().len();
        let now = |locked: &mut Self, buf: &mut B| locked.send_now(ep, spec, buf.payload());
        self.attempt(ep, spec, len, (buf, |buf| buf), route, credit, now)
    }

    /// Posts an operation of this length: `now` tries it at once, and what has to wait is queued.
    /// What is refused has no entry of a queue. `held` is what `now` wants of the buffer, and how
    /// the buffer is made of it again.
    #[inline(always)] // on the way of a small message
    #[allow(clippy::too_many_arguments)] // those of every post
    pub(crate) fn attempt<H, B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: &SendSpec,
        len: usize,
        (mut held, back): (H, impl FnOnce(H) -> B),
        route: Route,
        credit: Credit,
        now: impl FnOnce(&mut Self, &mut H) -> Result<SendNow>,
    ) -> Result<Posted<B>, Failed<B>> {
        if route.reserves()
            && let Err(error) = self.hub.reserve_entry(ep, spec.kind)
        {
            return Err(Failed::new(error, back(held)));
        }
        let failed = match now(self, &mut held) {
            Ok(SendNow::Done) => return Ok(self.ended(ep, spec, len, back(held), route, credit)),
            Ok(SendNow::Collected) => {
                let key = self.collected(ep, spec, len, back(held).into_any(), route, credit);
                return Ok(Posted::Pending(key));
            }
            Ok(SendNow::Queue) => match self.queue_send(ep, *spec, back(held), route, credit) {
                Ok(key) => return Ok(Posted::Pending(key)),
                Err(failed) => failed,
            },
            Err(error) => Failed::new(error, back(held)),
        };
        if route.reserves() {
            self.hub.unreserve_entry(ep, spec.kind);
        }
        Err(failed)
    }

    /// Has the provider do something at a peer at once, unless the endpoint does not let it or
    /// others come first, and counts it.
    #[inline(always)] // likewise
    pub(crate) fn at_once(
        &mut self,
        ep: EpId,
        spec: &SendSpec,
        len: usize,
        check: impl FnOnce(&Bindings) -> Result<()>,
        act: impl FnOnce(&mut dyn ProviderDomain, &mut Hub) -> Result<SendNow>,
    ) -> Result<SendNow> {
        let State { hub, provider, .. } = &mut **self;
        let row = hub.ep(ep)?;
        check(&row.bound)?;
        if row.transmit.is_behind(spec.peer) || hub.is_fenced_off(ep, spec) {
            return Ok(SendNow::Queue);
        }
        let done = act(&mut **provider, hub);
        if matches!(done, Ok(SendNow::Done)) {
            hub.count_at_once(ep, spec.kind, len);
        }
        done
    }

    /// An operation has ended where it was posted.
    #[inline(always)] // likewise
    fn ended<B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: &SendSpec,
        len: usize,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Posted<B> {
        let hub = &mut self.hub;
        if credit == Credit::Held {
            hub.release(ep, spec.kind, Some(spec.peer));
        }
        let transfer = Transfer::sent(len, spec.tag);
        match route {
            Route::Future => Posted::Done(transfer, buf),
            Route::Queue(context) => {
                let buf = hub.kept(spec, buf.into_any());
                let queue = hub.queue_of(ep, spec.kind);
                hub.report_to(queue, spec.kind, context, Outcome::ok(transfer), buf);
                Posted::Reported
            }
            Route::Failure(_) | Route::Nobody | Route::Multi(_) => {
                hub.ended_quietly(ep, spec.kind, route, buf.into_any());
                Posted::Reported
            }
        }
    }

    /// Gives a slot to a message that the provider has collected: it ends when the kernel has it.
    /// It takes no credit; what a provider collects is bounded.
    fn collected(
        &mut self,
        ep: EpId,
        spec: &SendSpec,
        len: usize,
        buf: AnyBuf,
        route: Route,
        credit: Credit,
    ) -> OpKey {
        let state = &mut **self;
        let has_credit = credit == Credit::Held;
        state.hub.sends += usize::from(has_credit);
        let key = state.hub.ops.insert_send(ep, spec, route, buf, has_credit);
        state.provider.collected(&mut state.hub, ep, key, spec, len);
        if !state.hub.collected.contains(&ep) {
            state.hub.collected.push(ep);
        }
        key
    }

    /// Sends, or writes, at once if nothing stands in the way.
    #[inline(always)] // on the way of a small message
    pub(crate) fn send_now(
        &mut self,
        ep: EpId,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow> {
        let len = payload.len();
        let check = |bound: &Bindings| bound.check_len(len);
        self.at_once(ep, spec, len, check, |provider, hub| {
            provider.send_now(hub, ep, spec, payload)
        })
    }

    pub(crate) fn queue_send<B: IoBuf>(
        &mut self,
        ep: EpId,
        spec: SendSpec,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<OpKey, Failed<B>> {
        let state = &mut **self;
        let fenced_off = state.hub.is_fenced_off(ep, &spec);
        let transmit = match state.hub.ep(ep) {
            Ok(ep) => &mut ep.transmit,
            Err(error) => return Err(Failed::new(error, buf)),
        };
        let mut has_credit = credit == Credit::Held;
        if has_credit && transmit.is_behind_message(spec.peer) {
            // Sends that were posted before this one wait for credit: it does not overtake them,
            // but gives them its own.
            has_credit = false;
            state.hub.release(ep, spec.kind, Some(spec.peer));
        } else if !has_credit {
            has_credit = transmit.take(spec.peer);
        }
        if !has_credit {
            state
                .hub
                .ep(ep)
                .into_iter()
                .for_each(|ep| ep.stats.out_of_credit += 1);
        }
        if !has_credit && credit == Credit::Now {
            return Err(Failed::new(Error::Again(Scarce::TransmitCredit), buf));
        }
        let mut op = Op::new(ep, spec.kind, route, buf.into_any());
        op.spec = Some(spec);
        op.credit = has_credit;
        let key = if fenced_off || !has_credit {
            op.phase = Phase::Waiting;
            let key = state.hub.ops.insert(op);
            state.hub.sends += usize::from(has_credit);
            if let Ok(ep) = state.hub.ep(ep) {
                if spec.fence {
                    ep.transmit
                        .wait_fenced(key, spec.peer, Fence { credit: has_credit });
                } else {
                    ep.transmit.wait(key, spec.peer, true);
                }
                ep.hold();
            }
            key
        } else {
            let key = state.hub.ops.insert(op);
            state.hub.sends += 1;
            if let Err(error) = state.provider.queue_send(&mut state.hub, ep, key, &spec) {
                let buf = state.hub.take_back(key);
                if credit == Credit::Held {
                    // The permit still has its credit.
                    self.hub.take_credit_back(ep, spec.peer);
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
        spec: &SendSpec,
        bytes: &[u8],
        pool: &Arc<Pool>,
    ) -> Result<()> {
        let state = &mut **self;
        let limit = state.hub.ep(ep)?.bound.inject_size;
        if bytes.len() > limit {
            return Err(Error::TooLong {
                what: "injected message",
                len: bytes.len(),
                limit,
            });
        }
        match self.send_now(ep, spec, Payload::Whole(bytes))? {
            SendNow::Done => return Ok(()),
            SendNow::Collected => {
                let (len, none) = (bytes.len(), AnyBuf::None);
                self.collected(ep, spec, len, none, Route::Nobody, Credit::Now);
                return Ok(());
            }
            SendNow::Queue => {}
        }
        let mut copy = pool.take(bytes.len());
        copy.extend_from_slice(bytes);
        self.queue_send(ep, *spec, copy, Route::Nobody, Credit::Now)?;
        Ok(())
    }

    pub(crate) fn recv<B: IoBufMut>(
        &mut self,
        ep: EpId,
        spec: RecvSpec,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<OpKey, Failed<B>> {
        let state = &mut **self;
        if let Some(error) = state.hub.admit_recv(ep, spec.from, route, credit) {
            return Err(Failed::new(error, buf));
        }
        let key = state.hub.ops.insert_recv(ep, route, buf.into_any());
        state.post_recv(ep, key, spec);
        Ok(key)
    }
}

impl Hub {
    /// Checks a receive before it is posted, counts it, and reserves what it needs. Returns why it
    /// is refused.
    #[inline(always)] // on the way of a small message
    pub(crate) fn admit_recv(
        &mut self,
        ep: EpId,
        from: Option<FiAddr>,
        route: Route,
        credit: Credit,
    ) -> Option<Error> {
        let Self {
            eps, cqs, vectors, ..
        } = self;
        let Some(state) = eps.get_mut(ep.0) else {
            return Some(Error::Closed(Class::Endpoint));
        };
        if credit == Credit::Now && state.posted_recvs >= state.bound.rx_size {
            return Some(Error::Again(Scarce::ReceiveEntry));
        }
        if let Some(Err(error)) = from.map(|from| known(vectors, state.bound.av, from)) {
            return Some(error);
        }
        if route.reserves()
            && let Err(error) = reserve_in(cqs, state.bound.rx_cq)
        {
            return Some(error);
        }
        state.posted_recvs += 1;
        None
    }

    /// Whether it is fenced, and something that was posted before it for its peer has not ended.
    #[inline]
    fn is_fenced_off(&self, ep: EpId, spec: &SendSpec) -> bool {
        spec.fence && self.ops.is_under_way(ep, spec.peer)
    }

    /// Counts an operation that has ended where it was posted.
    #[inline]
    fn count_at_once(&mut self, ep: EpId, kind: OpKind, len: usize) {
        let Some(ep) = self.eps.get_mut(ep.0) else {
            return;
        };
        ep.stats.moved(kind, len);
        ep.stats.at_once += 1;
        if let Some(counter) = ep.bound.counters.of(kind) {
            self.count_at(counter, true);
        }
    }

    /// An operation has ended of which nobody wants to hear.
    fn ended_quietly(&mut self, ep: EpId, kind: OpKind, route: Route, buf: AnyBuf) {
        self.later.discard(buf);
        if route.reserves() {
            self.unreserve_entry(ep, kind);
        }
    }

    /// What a completed operation has for its queue: what was lent is the peer's now.
    #[inline(always)] // on the way of a small message
    pub(crate) fn kept(&mut self, spec: &SendSpec, buf: AnyBuf) -> AnyBuf {
        if spec.loan.is_none() {
            buf
        } else {
            self.passed_on(buf)
        }
    }

    /// What was lent is not the sender's any more.
    #[cold]
    pub(crate) fn passed_on(&mut self, loan: AnyBuf) -> AnyBuf {
        self.later.discard(loan);
        AnyBuf::None
    }

    /// Undoes the giving back of a credit.
    fn take_credit_back(&mut self, ep: EpId, peer: FiAddr) {
        if let Ok(ep) = self.ep(ep) {
            ep.transmit.retake(peer);
        }
    }

    /// Removes an operation that was refused and returns its buffer.
    fn take_back<B: IoBuf>(&mut self, key: OpKey) -> B {
        let mut op = self.ops.remove(key).expect("the slot was just filled");
        self.give_back(&mut op);
        B::from_any(op.buf).unwrap_or_else(|_| unreachable!("the slot was filled with this type"))
    }
}

impl Domain {
    /// Posts a send.
    ///
    /// # Errors
    /// With the buffer: [`Error::Again`] without credit, [`Error::TooLong`],
    /// [`Error::StaleAddress`], [`Error::Closed`], or what the provider knows to be impossible.
    pub fn send<B: IoBuf>(
        &self,
        ep: EpId,
        spec: SendSpec,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        // Not by `with`: what comes back is large, and a closure's result is moved once more.
        let mut locked = self.engine().lock();
        let posted = locked.send(ep, &spec, buf, route, credit);
        locked.finish();
        posted
    }

    /// Sends a copy of borrowed bytes: at once, or from a copy of its own.
    ///
    /// # Errors
    /// As [`Domain::send`]; [`Error::TooLong`] above the inject size.
    pub fn inject(&self, ep: EpId, spec: SendSpec, bytes: &[u8]) -> Result<()> {
        self.with(|locked| locked.inject(ep, &spec, bytes, self.pool()))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// With the buffer: [`Error::Again`] when the endpoint's receive entries or the queue's are
    /// taken, [`Error::Closed`].
    pub fn recv<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: RecvSpec,
        buf: B,
        route: Route,
        credit: Credit,
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
    pub fn reserve(&self, ep: EpId, peer: FiAddr) -> Result<OpKey> {
        let mut locked = self.engine().lock();
        locked.hub.check_address(ep, peer)?;
        let mut op = Op::new(ep, OpKind::Send, Route::Future, AnyBuf::None);
        op.permit = true;
        op.spec = Some(SendSpec::new(OpKind::Send, peer));
        op.phase = Phase::Waiting;
        let free = locked.hub.ep(ep)?.transmit.take(peer);
        if free {
            op.credit = true;
            op.phase = Phase::Done;
        }
        let key = locked.hub.ops.insert(op);
        if !free {
            let bound = locked.hub.ep(ep)?;
            bound.transmit.wait(key, peer, false);
            bound.hold();
        }
        Ok(key)
    }

    /// Drives until a permit is granted.
    pub fn poll_permit(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.engine().poll(
            cx.waker(),
            |hub| {
                let op = hub.ops.get(key).filter(|op| op.phase == Phase::Done)?;
                Some(op.outcome.error.as_deref().cloned().map_or(Ok(()), Err))
            },
            |hub, waker| hub.register(key, waker),
        )
    }
}
