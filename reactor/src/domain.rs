//! A domain as the async face sees it: objects by name, posts, polls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use fabric_core::buf::{AnyBuf, IoBuf, IoBufMut, Loan, Payload, Pool};
use fabric_core::completion::{Completion, Done, Failed, OpKind, Outcome};
use fabric_core::flags::{Access, Caps};
use fabric_core::info::{Info, Progress};
use fabric_core::matching::RecvSpec;
use fabric_core::mr::Memory;
use fabric_core::provider::{EpId, Express, Host, Lender, OpKey, Provider, SendNow, SendSpec, SocketIo};
use fabric_core::stats::{DomainStats, EndpointStats};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, SocketOptions};

use crate::driver::{self, TaskDriver};
use crate::engine::{Engine, Locked, State};
use crate::hub::{AvId, Bindings, CounterId, Counters, CqId, FollowUp, Hub};
use crate::notes::Note;
use crate::ops::{Credit, Ended, Op, Phase, Posted, Route};
use crate::queue::{CompletionRing, CounterCell, EventRing};
use crate::shared::receiving;
use crate::vectors::Vector;
use crate::wait::{PollSet, WaitPolicy};

/// An operation that has ended; nobody else gets at its domain until its result is taken.
#[must_use = "the result is still in its slot"]
pub struct Finished<'a> {
    locked: Locked<'a>,
    key: OpKey,
}

impl Finished<'_> {
    /// The result.
    ///
    /// # Errors
    /// The failure of the operation.
    ///
    /// # Panics
    /// When the buffer that was posted is not of type `B`.
    #[inline(always)] // on the way of a small message, and its result is large
    pub fn take<B: IoBuf>(mut self) -> Result<Done<B>, Failed<B>> {
        let (buf, transfer, error) = self.locked.hub.take_result(self.key);
        self.locked.leave();
        match error {
            None => Ok(Done { buf, transfer }),
            Some(error) => Err(Failed { error: *error, buf, transfer }),
        }
    }
}

/// An open domain: a provider's data path, the objects on it, and what makes them move.
///
/// Cheap to clone; the last clone closes it.
#[derive(Clone)]
pub struct Domain {
    pub(crate) engine: Arc<Engine>,
    pool: Arc<Pool>,
    lender: Option<Arc<dyn Lender>>,
}

impl Domain {
    /// Opens a domain on a provider, and its driver thread if progress is automatic.
    ///
    /// # Errors
    /// What the provider or the operating system refuses.
    pub fn open(provider: &dyn Provider, info: &Info, policy: WaitPolicy, name: &str) -> Result<Self> {
        let set = Arc::new(PollSet::new()?);
        let domain = provider.open_domain(info, set.clone())?;
        let progress = info.domain.data_progress;
        let engine = Arc::new(Engine::new(domain, set, policy, progress));
        let (pool, lender) = {
            let locked = engine.lock();
            (locked.hub.pool.clone(), locked.provider.lender())
        };
        if progress == Progress::Auto {
            driver::spawn(&engine, format!("fab-{name}"))?;
        }
        Ok(Self { engine, pool, lender })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Messages of at least this many bytes are copied once, where the provider can. To be said before endpoints are
    /// opened.
    pub fn single_copy_from(&self, len: usize) {
        self.engine.lock().provider.single_copy_from(len);
    }

    /// How sockets are waited for. To be said before endpoints are opened.
    ///
    /// # Errors
    /// The kernel refuses what was asked for by name.
    pub fn socket_io(&self, io: SocketIo) -> Result<()> {
        self.engine.lock().provider.socket_io(io)
    }

    /// What is set on sockets. To be said before endpoints are opened.
    ///
    /// # Errors
    /// What cannot be set, or the kernel does not have.
    pub fn socket_options(&self, options: &SocketOptions) -> Result<()> {
        self.engine.lock().provider.socket_options(options)
    }

    /// The pool that received messages without a buffer of their own come from.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How this domain waits.
    #[must_use]
    pub fn policy(&self) -> WaitPolicy {
        self.engine.policy
    }

    /// Makes one pass without waiting; true when something moved. For whoever is a passive target under manual
    /// progress, or wants to drive by hand.
    pub fn progress(&self) -> bool {
        self.engine.pass()
    }

    /// A few words on the provider's state.
    #[must_use]
    pub fn describe(&self) -> String {
        let locked = self.engine.lock();
        format!(
            "{}, {} operations, {} waiting, {}{:?}",
            locked.provider.describe(),
            locked.hub.ops.len(),
            locked.hub.waiters,
            if locked.armed { "armed, driver " } else { "driver " },
            locked.driver,
        )
    }

    /// What the domain has done, and has under way.
    #[must_use]
    pub fn stats(&self) -> DomainStats {
        let locked = self.engine.lock();
        let mut stats = DomainStats::default();
        stats.polls = self.engine.polls.load(Ordering::Relaxed);
        stats.passes = locked.passes();
        (stats.spins_paid, stats.spins_lost) = locked.spinner.paid_and_lost();
        stats.parks = locked.parks;
        stats.operations = locked.hub.ops.len();
        stats.waiting = locked.hub.waiters;
        stats.regions = locked.hub.regions.len();
        stats
    }

    /// What an endpoint has done; nothing when it is closed.
    #[must_use]
    pub fn endpoint_stats(&self, ep: EpId) -> EndpointStats {
        let locked = self.engine.lock();
        let stats = locked.hub.eps.get(ep.0).map(|ep| ep.stats);
        stats.map_or_else(EndpointStats::default, |stats| stats.with(locked.provider_stats(ep)))
    }

    // ---- objects

    /// Opens an endpoint.
    ///
    /// # Errors
    /// What the provider refuses; nothing is left behind.
    pub fn open_endpoint(
        &self,
        info: &Info,
        at: Option<&Address>,
        bound: Bindings,
    ) -> Result<(EpId, Address)> {
        let mut locked = self.engine.lock();
        let state = &mut *locked;
        let av = bound.av;
        let mut info = info.clone();
        if !bound.counters.heed_peers() {
            // Peers need not tell of what nobody counts.
            info.caps -= Caps::RMA_EVENT;
        }
        let shared = state.context_of(&bound)?;
        let id = EpId(state.hub.eps.insert(Hub::new_ep(bound)));
        let address = match state.provider.open_endpoint(id, &info, at, receiving(shared.as_ref(), self)) {
            Ok(address) => address,
            Err(error) => {
                state.hub.eps.remove(id.0);
                return Err(error);
            }
        };
        let known: Vec<_> = state
            .hub
            .vectors
            .get(av.0)
            .map(|vector| vector.table.iter().map(|(addr, address)| (addr, address.clone())).collect())
            .unwrap_or_default();
        for (addr, address) in known {
            state.provider.address_inserted(&mut state.hub, id, addr, &address);
        }
        let State { hub, provider, .. } = &mut *locked;
        if let Some(ep) = hub.eps.get_mut(id.0) {
            // What is counted goes through the hub.
            ep.express = (!ep.bound.counters.heed_own()).then(|| provider.express(id)).flatten();
            hub.later.note(Note::Opened(ep.bound.object, address.clone()));
        }
        // Under auto progress the thread has to learn of the new descriptors' owner.
        locked.finish();
        Ok((id, address))
    }

    /// Closes an endpoint, or a shared context. Operations on it end as cancelled; their buffers come back with that.
    pub fn close_endpoint(&self, id: EpId) {
        let mut locked = self.engine.lock();
        locked.hub.leave_door(id);
        let state = &mut *locked;
        let Ok(ep) = state.hub.ep(id) else { return };
        let (av, object) = (ep.bound.av, ep.bound.object);
        for key in ep.transmit.drain() {
            state.hub.complete(key, Outcome::failed(Error::Canceled));
        }
        if !state.close_shared(id) {
            state.provider.close_endpoint(&mut state.hub, id);
            state.hub.later.note(Note::Closed(object));
        }
        state.hub.eps.remove(id.0);
        state.hub.seen_all(av);
        locked.finish();
    }

    /// Opens a completion queue of this many entries.
    #[must_use]
    pub fn open_cq(&self, capacity: usize) -> CqId {
        CqId(self.engine.lock().hub.cqs.insert(CompletionRing::new(capacity)))
    }

    /// Closes a completion queue; completions in it are lost. Receives that were to report to it take no more messages,
    /// sends go on.
    pub fn close_cq(&self, id: CqId) {
        let mut locked = self.engine.lock();
        locked.abandon_multis_of(id);
        for key in locked.hub.ops.posted_to_queues() {
            let op = locked.hub.ops.get(key);
            if op.is_some_and(|op| locked.hub.queue_of(op.ep, op.kind) == Some(id)) {
                locked.abandon(key);
            }
        }
        let hub = &mut locked.hub;
        let Some(mut ring) = hub.cqs.remove(id.0) else { return };
        if let Some(waker) = ring.waker.take() {
            hub.waiters -= 1;
            hub.later.wake(waker);
        }
        if std::mem::take(&mut hub.held_notice) {
            // Nobody holds it up any more.
            hub.follow_ups.push(FollowUp::Resume);
        }
        locked.finish();
        // Its entries own buffers of the user's types: they are dropped without the lock.
        drop(locked);
        drop(ring);
    }

    /// Opens a counter.
    #[must_use]
    pub fn open_counter(&self) -> CounterId {
        CounterId(self.engine.lock().hub.counters.insert(CounterCell::default()))
    }

    /// Closes a counter.
    pub fn close_counter(&self, id: CounterId) {
        let mut locked = self.engine.lock();
        let hub = &mut locked.hub;
        if let Some(mut cell) = hub.counters.remove(id.0) {
            hub.waiters -= cell.waiting();
            cell.wake_all(&mut hub.later);
        }
        locked.finish();
    }

    /// Opens an address vector; a welcoming one takes in peers that connect, and forgets them when they go.
    #[must_use]
    pub fn open_av(&self, welcoming: bool) -> AvId {
        AvId(self.engine.lock().hub.vectors.insert(Vector::new(welcoming)))
    }

    /// Closes an address vector.
    pub fn close_av(&self, id: AvId) {
        let mut locked = self.engine.lock();
        locked.hub.vectors.remove(id.0);
        locked.hub.leaving.retain(|_, of| *of != id);
    }

    /// Lets peers reach memory of the provider's by a key: the requested one, or a fresh one. `by_address`: they name
    /// places in it by their addresses here.
    ///
    /// # Errors
    /// [`Error::Key`] when the key is taken; [`Error::BadFlags`] without a right.
    pub fn open_region(
        &self,
        memory: Arc<dyn Memory>,
        access: Access,
        key: Option<u64>,
        by_address: bool,
    ) -> Result<u64> {
        self.engine.lock().open_region(memory, access, key, by_address)
    }

    /// Counts what peers do to a region from now on, with the remote ones of these counters.
    ///
    /// # Errors
    /// [`Error::Invalid`] when one of them is bound already; [`Error::Key`].
    pub fn count_region(&self, key: u64, counters: Counters) -> Result<()> {
        self.engine.lock().count_region(key, counters)
    }

    /// Memory to be written and lent.
    ///
    /// # Errors
    /// [`Error::Again`] when peers have too much; what the operating system refuses.
    pub fn loan(&self, len: usize) -> Result<Loan> {
        let Some(lender) = &self.lender else { return Loan::copied(len) };
        if let Some(loan) = lender.reuse(len) {
            return Ok(loan);
        }
        self.engine.lock().provider.collect_loans();
        lender.reuse(len).map_or_else(|| lender.grow(len), Ok)
    }

    /// Takes the key of a region back: peers reach it no longer.
    pub fn close_region(&self, key: u64) {
        self.engine.lock().close_region(key);
    }

    /// The owner of a region has given it back to its peers: what waits for it moves on.
    pub fn region_free(&self, key: u64) {
        self.engine.lock().provider.region_free(key);
        self.engine.pass();
    }

    /// The queue that gets the events of endpoints which have none of their own.
    pub fn set_eq(&self, eq: Option<Arc<EventRing>>) {
        self.engine.lock().hub.eq = eq;
    }

    // ---- addresses

    /// Gives an address a number.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn insert_address(&self, av: AvId, address: &Address) -> Result<FiAddr> {
        let mut locked = self.engine.lock();
        let addr = locked.hub.vector(av)?.table.insert(address.clone());
        locked.hub.forget_guest(av, addr);
        locked.announce(av, addr);
        locked.finish();
        Ok(addr)
    }

    /// Takes a number out of use.
    ///
    /// # Errors
    /// [`Error::StaleAddress`].
    pub fn remove_address(&self, av: AvId, addr: FiAddr) -> Result<Address> {
        let mut locked = self.engine.lock();
        let address = locked.remove_address(av, addr)?;
        locked.finish();
        Ok(address)
    }

    /// The address behind a number.
    ///
    /// # Errors
    /// [`Error::StaleAddress`].
    pub fn address_of(&self, av: AvId, addr: FiAddr) -> Result<Address> {
        let locked = self.engine.lock();
        let vector = locked.hub.vectors.get(av.0).ok_or_else(|| Error::Closed(Class::AddressVector))?;
        vector.table.get(addr).cloned()
    }

    /// Every address of a vector with its number.
    #[must_use]
    pub fn addresses(&self, av: AvId) -> Vec<(FiAddr, Address)> {
        let locked = self.engine.lock();
        let vector = locked.hub.vectors.get(av.0);
        vector.map_or_else(Vec::new, |v| v.table.iter().map(|(n, a)| (n, a.clone())).collect())
    }

    // ---- posts

    /// Posts a send.
    ///
    /// # Errors
    /// With the buffer: [`Error::Again`] without credit, [`Error::TooLong`], [`Error::StaleAddress`],
    /// [`Error::Closed`], or what the provider knows to be impossible.
    pub fn send<B: IoBuf>(
        &self,
        ep: EpId,
        spec: SendSpec,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<Posted<B>, Failed<B>> {
        let mut locked = self.engine.lock();
        let sent = locked.send(ep, spec, buf, route, credit);
        locked.finish();
        sent
    }

    /// Sends at once if nothing stands in the way: the first thing to try, because the buffer need not be given away.
    ///
    /// # Errors
    /// As [`Domain::send`]; nothing was sent.
    pub fn send_now(&self, ep: EpId, spec: &SendSpec, payload: Payload<'_>) -> Result<SendNow> {
        let mut locked = self.engine.lock();
        let sent = locked.send_now(ep, spec, payload);
        locked.finish();
        sent
    }

    /// A way to the endpoint's peers that is quicker where it can be gone, and is to be tried before.
    #[must_use]
    pub fn express(&self, ep: EpId) -> Option<Arc<dyn Express>> {
        self.engine.lock().hub.eps.get(ep.0)?.express.clone()
    }

    /// Looks at the descriptors, as [`AtOnce::Due`](fabric_core::provider::AtOnce::Due) says.
    #[cold]
    pub fn look(&self) {
        let mut locked = self.engine.lock();
        locked.look_up();
        locked.finish();
    }

    /// Sends a copy of borrowed bytes: at once, or from a copy of its own.
    ///
    /// # Errors
    /// As [`Domain::send`]; [`Error::TooLong`] above the inject size.
    pub fn inject(&self, ep: EpId, spec: SendSpec, bytes: &[u8]) -> Result<()> {
        let mut locked = self.engine.lock();
        let sent = locked.inject(ep, &spec, bytes, &self.pool);
        locked.finish();
        sent
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// With the buffer: [`Error::Again`] when the endpoint's receive entries or the queue's are taken,
    /// [`Error::Closed`].
    pub fn recv<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: RecvSpec,
        buf: B,
        route: Route,
        credit: Credit,
    ) -> Result<OpKey, Failed<B>> {
        let mut locked = self.engine.lock();
        let posted = locked.recv(ep, spec, buf, route, credit);
        locked.finish();
        posted
    }

    /// Asks for a transmit credit.
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::Closed`].
    pub fn reserve(&self, ep: EpId, peer: FiAddr) -> Result<OpKey> {
        let mut locked = self.engine.lock();
        locked.hub.address_of(ep, peer)?;
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

    /// Gives a permit back, with its credit; or only forgets the permit when its credit has been used.
    pub fn release_permit(&self, key: OpKey, used: bool) {
        let mut locked = self.engine.lock();
        if used && let Some(op) = locked.hub.ops.get_mut(key) {
            op.credit = false;
        }
        locked.withdraw(key);
        locked.hub.discard(key);
        locked.finish();
    }

    // ---- completions

    /// Drives until the operation has ended.
    #[inline]
    pub fn poll_op(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Finished<'_>> {
        let is_done = |hub: &mut Hub| hub.ops.is_done(key);
        let driven = self.engine.drive(cx.waker(), is_done, |hub, waker| hub.register(key, waker));
        driven.map(|locked| Finished { locked, key })
    }

    /// Likewise, and takes what it has come to.
    pub(crate) fn poll_ended(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Ended> {
        self.engine.poll(cx.waker(), |hub| hub.take_done(key), |hub, waker| hub.register(key, waker))
    }

    /// Drives until a permit is granted.
    pub fn poll_permit(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.engine.poll(
            cx.waker(),
            |hub| {
                let op = hub.ops.get(key).filter(|op| op.phase == Phase::Done)?;
                Some(op.outcome.error.as_deref().cloned().map_or(Ok(()), Err))
            },
            |hub, waker| hub.register(key, waker),
        )
    }

    /// Takes an operation back if it has not begun. `Ok`: here is its buffer; it will not complete. `Err`: it has
    /// begun, or has ended, and will complete.
    ///
    /// # Errors
    /// The unit, when it is too late.
    #[allow(clippy::result_unit_err)] // "too late" has nothing more to say
    pub fn cancel(&self, key: OpKey) -> Result<AnyBuf, ()> {
        let mut locked = self.engine.lock();
        let withdrawn = locked.withdraw(key);
        let buf = match withdrawn.then(|| locked.hub.ops.remove(key)).flatten() {
            Some(mut op) => {
                locked.hub.forget_waker(&mut op);
                locked.hub.give_back(&mut op);
                Ok(op.buf)
            }
            None => Err(()),
        };
        locked.finish();
        buf
    }

    /// Nobody waits for this operation any more. A receive loses no message; a send goes on.
    pub fn abandon(&self, key: OpKey) {
        let mut locked = self.engine.lock();
        locked.abandon(key);
        locked.finish();
    }

    /// Drives until the queue has completions, and moves up to `max` of them out.
    pub fn poll_cq(
        &self,
        cq: CqId,
        out: &mut Vec<Completion>,
        max: usize,
        cx: &mut Context<'_>,
    ) -> Poll<usize> {
        let take = |hub: &mut Hub| match hub.take_completions(cq, out, max) {
            Some(count) => (count > 0).then_some(count),
            None => Some(0),
        };
        self.engine.poll(cx.waker(), take, |hub, waker| hub.register_cq(cq, waker))
    }

    /// Makes a pass and moves what is in the queue out, without waiting.
    pub fn try_cq(&self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> usize {
        let mut locked = self.engine.lock();
        locked.glance();
        let count = locked.hub.take_completions(cq, out, max).unwrap_or(0);
        locked.finish();
        count
    }

    /// The value and the error count of a counter.
    #[must_use]
    pub fn read_counter(&self, id: CounterId) -> (u64, u64) {
        let locked = self.engine.lock();
        locked.hub.counters.get(id.0).map_or((0, 0), |cell| (cell.value, cell.errors))
    }

    /// Adds to a counter.
    pub fn add_counter(&self, id: CounterId, success: u64, errors: u64) {
        let mut locked = self.engine.lock();
        let hub = &mut locked.hub;
        if let Some(cell) = hub.counters.get_mut(id.0) {
            hub.waiters -= cell.add(success, errors, &mut hub.later);
        }
        locked.finish();
    }

    /// Drives until the counter reaches the threshold, or its error count is no longer `errors_seen`.
    pub fn poll_counter(
        &self,
        id: CounterId,
        waiter: &mut Option<u64>,
        threshold: u64,
        errors_seen: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(u64, u64)>> {
        let ready = |hub: &mut Hub| match hub.counters.get(id.0) {
            Some(cell) if cell.value >= threshold || cell.errors != errors_seen => {
                Some(Some((cell.value, cell.errors)))
            }
            Some(_) => None,
            None => Some(None),
        };
        self.engine.poll(cx.waker(), ready, |hub, waker| {
            if let Some(cell) = hub.counters.get_mut(id.0) {
                hub.waiters += usize::from(cell.wait(waiter, threshold, errors_seen, waker, &mut hub.later));
            }
        })
    }

    /// A waiter of a counter gave up.
    pub fn forget_counter_waiter(&self, id: CounterId, waiter: u64) {
        let mut locked = self.engine.lock();
        let hub = &mut locked.hub;
        if let Some(cell) = hub.counters.get_mut(id.0) {
            hub.waiters -= usize::from(cell.forget(waiter, &mut hub.later));
        }
    }

    /// Lets the reader of an event queue wait for this domain as well.
    pub fn add_eq(&self, eq: &Arc<EventRing>) {
        let mut locked = self.engine.lock();
        locked.hub.eqs.retain(|known| Arc::strong_count(known) > 1);
        if !locked.hub.eqs.iter().any(|known| Arc::ptr_eq(known, eq)) {
            locked.hub.eqs.push(eq.clone());
        }
    }

    /// The reader of an event queue is about to wait: makes a pass, and sees to it that the domain goes on. True when
    /// the reader must keep itself runnable.
    #[must_use]
    pub fn attend(&self) -> bool {
        let mut locked = self.engine.lock();
        locked.glance();
        locked.settle_waiting()
    }

    // ---- the driver task of manual progress

    /// A handle by which a task can drive this domain without keeping it open.
    #[must_use]
    pub fn driver(&self) -> TaskDriver {
        TaskDriver::new(&self.engine)
    }
}
