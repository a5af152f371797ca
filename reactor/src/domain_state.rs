//! Everything a domain knows apart from its provider: operations, endpoints, queues, counters,
//! address vectors.
//!
//! The [`DomainState`] is what a provider sees as its [`Host`]. It lives under the domain's lock.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::Waker;

use fabric_core::buf::{BufferPool, IoBuf};
use fabric_core::completion::{OpKind, Transfer};
use fabric_core::mr::RegionTable;
use fabric_core::stats::EndpointStats;
use fabric_core::transport::{EpId, FastPath, OpKey, RemoteAccess, RmaIov};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result};
use slab::Slab;

use crate::av::Av;
use crate::cm::CmState;
use crate::deferred::Deferred;
use crate::flush::Flush;
use crate::id_map::IdMap;
use crate::in_flight::InFlightBuffer;
use crate::multi_recv::MultiRecvOp;
use crate::ops::{OpPhase, OpResult, OpState, OpTable};
use crate::queues::{CounterState, CqState, EqState};
use crate::tx_credits::TxCredits;
use crate::wait::WaitPolicy;

/// The name of a completion queue within its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqId(pub(crate) u32);

/// The name of a counter within its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterId(pub(crate) u32);

/// The name of an address vector within its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvId(pub(crate) u32);

/// What an endpoint is bound to and limited by.
#[derive(Debug)]
pub struct Bindings {
    /// The endpoint's number in the object tree, and its context; they come with its events.
    pub object_id: u64,
    /// The context it was opened with.
    pub context: u64,
    /// Its address vector.
    pub av: AvId,
    /// Where sends report that were posted to a queue.
    pub tx_cq: Option<CqId>,
    /// Where receives report that were posted to a queue.
    pub rx_cq: Option<CqId>,
    /// What counts which operations.
    pub counters: Counters,
    /// The receive context that it shares with others.
    pub shared_rx: Option<EpId>,
    /// Its event queue.
    pub eq: Option<Arc<EqState>>,
    /// Sends that may be under way.
    pub tx_size: usize,
    /// Receives that may be posted to a queue or started.
    pub rx_size: usize,
    /// The longest message.
    pub max_msg_size: usize,
    /// The longest message that can be injected.
    pub inject_size: usize,
}

impl Bindings {
    /// Whether a message may be so long.
    #[inline]
    pub(crate) fn check_len(&self, len: usize) -> Result<()> {
        let limit = self.max_msg_size;
        if len > limit {
            Err(Error::TooLong {
                what: "message",
                len,
                limit,
            })
        } else {
            Ok(())
        }
    }
}

/// The counters of an endpoint, by what they count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Sends.
    pub send: Option<CounterId>,
    /// Receives.
    pub recv: Option<CounterId>,
    /// Reads, and atomics that fetch.
    pub read: Option<CounterId>,
    /// Writes, and atomics that do not fetch.
    pub write: Option<CounterId>,
    /// Reads by peers.
    pub remote_read: Option<CounterId>,
    /// Writes by peers.
    pub remote_write: Option<CounterId>,
}

impl Counters {
    /// Whether what peers do is counted.
    pub(crate) fn wants_rma_events(&self) -> bool {
        self.remote_read.is_some() || self.remote_write.is_some()
    }

    /// The counter of what peers do.
    pub(crate) fn for_remote_access(&self, deed: RemoteAccess) -> Option<CounterId> {
        match deed {
            RemoteAccess::Write => self.remote_write,
            RemoteAccess::Read => self.remote_read,
        }
    }

    /// Whether anything is counted that the endpoint does at peers.
    pub(crate) fn counts_local_ops(&self) -> bool {
        self.send.is_some() || self.read.is_some() || self.write.is_some()
    }

    pub(crate) fn for_op(&self, kind: OpKind) -> Option<CounterId> {
        match kind {
            OpKind::Send => self.send,
            OpKind::Recv => self.recv,
            OpKind::Read | OpKind::FetchAtomic => self.read,
            OpKind::Write | OpKind::Atomic => self.write,
            _ => None,
        }
    }
}

pub(crate) struct EndpointState {
    pub(crate) bindings: Bindings,
    pub(crate) tx_credits: TxCredits,
    pub(crate) posted_recvs: usize,
    pub(crate) stats: EndpointStats,
    /// By which operations get past all this.
    pub(crate) fast_path: Option<Arc<dyn FastPath>>,
    /// How far it has come with its peer, or who waits at its door.
    pub(crate) cm: Option<Box<CmState>>,
}

impl EndpointState {
    /// Nothing may overtake those who wait for credit, if there are some.
    pub(crate) fn update_fast_path(&self) {
        if let Some(express) = &self.fast_path {
            express.set_blocked(!self.tx_credits.has_no_waiters());
        }
    }
}

impl std::fmt::Debug for EndpointState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            bindings: bound,
            tx_credits: transmit,
            posted_recvs,
            stats,
            fast_path: _,
            cm: door,
        } = self;
        write!(
            f,
            "Ep({bound:?}, {transmit:?}, {posted_recvs} receives, {stats:?}, {door:?})"
        )
    }
}

/// The state of a domain apart from its provider.
#[derive(Debug)]
pub(crate) struct DomainState {
    pub(crate) ops: OpTable,
    pub(crate) endpoints: IdMap<EndpointState>,
    pub(crate) cqs: IdMap<CqState>,
    pub(crate) counters: IdMap<CounterState>,
    pub(crate) avs: IdMap<Av>,
    /// The memory of this domain that peers reach.
    pub(crate) regions: RegionTable,
    /// Those that count what peers do to a region, by its key.
    pub(crate) region_counters: HashMap<u64, Counters>,
    pub(crate) domain_eq: Option<Arc<EqState>>,
    pub(crate) pool: Arc<BufferPool>,
    pub(crate) deferred: Deferred,
    /// Tasks that wait for something in this domain.
    pub(crate) waiters: usize,
    /// Sends the provider has not finished.
    pub(crate) pending_sends: usize,
    /// The last pass left something behind that the next one moves.
    pub(crate) progress_requested: bool,
    /// Something could not be taken in because a queue was full: what peers did to memory here, or
    /// a message for a receive that takes several.
    pub(crate) blocked_on_cq: bool,
    /// Receives that take several messages.
    pub(crate) multi_recvs: Slab<MultiRecvOp>,
    /// The places of operations that have several.
    pub(crate) rma_iovs: Slab<Box<[RmaIov]>>,
    /// Operations whose buffers the kernel has.
    pub(crate) in_flight_buffers: HashMap<OpKey, InFlightBuffer>,
    /// Where the peers of endpoints that share their receives have connected, by their keys.
    pub(crate) shared_rx_peers: Vec<EpId>,
    /// Event queues of this domain and its endpoints: their readers wait for it too.
    pub(crate) event_queues: Vec<Arc<EqState>>,
    /// A call left something behind that waits for a peer.
    pub(crate) rearm_requested: bool,
    /// What calls of the provider made necessary, and needs the provider again.
    pub(crate) follow_ups: Vec<FollowUp>,
    /// Endpoints that may have collected messages which no pass has sent yet.
    pub(crate) collected: Vec<EpId>,
    /// Those who wait until what was posted has left.
    pub(crate) flushes: Vec<Flush>,
    /// Guests without a connection whose messages are still to be looked at, with their vectors.
    pub(crate) departing_addrs: HashMap<FiAddr, AvId>,
}

/// What a call of the provider made necessary.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowUp {
    /// The endpoint got a credit back while others wait for it.
    GrantCredits(EpId),
    /// A welcoming vector gave a number out: its other endpoints have to hear of it.
    PublishAddr(AvId, FiAddr),
    /// A guest has left, or a message of it was looked at: its number may be taken back.
    ReleaseAddr(AvId, FiAddr),
    /// There is room where there was none: what was held back for it can be taken in.
    ResumeProgress,
}

/// Whether a number is one of this vector.
pub(crate) fn check_addr(vectors: &IdMap<Av>, av: AvId, addr: FiAddr) -> Result<()> {
    let vector = vectors
        .get(av.0)
        .ok_or_else(|| Error::Closed(Class::AddressVector))?;
    vector.table.get(addr).map(drop)
}

impl DomainState {
    pub(crate) fn new() -> Self {
        Self {
            ops: OpTable::default(),
            endpoints: IdMap::new(),
            cqs: IdMap::new(),
            counters: IdMap::new(),
            avs: IdMap::new(),
            region_counters: HashMap::new(),
            regions: RegionTable::new(RandomState::new().hash_one(0)),
            domain_eq: None,
            pool: BufferPool::new(),
            deferred: Deferred::default(),
            waiters: 0,
            pending_sends: 0,
            progress_requested: false,
            blocked_on_cq: false,
            multi_recvs: Slab::new(),
            rma_iovs: Slab::new(),
            in_flight_buffers: HashMap::new(),
            shared_rx_peers: Vec::new(),
            event_queues: Vec::new(),
            rearm_requested: false,
            follow_ups: Vec::new(),
            collected: Vec::new(),
            flushes: Vec::new(),
            departing_addrs: HashMap::new(),
        }
    }

    pub(crate) fn endpoint(&mut self, ep: EpId) -> Result<&mut EndpointState> {
        self.endpoints
            .get_mut(ep.0)
            .ok_or_else(|| Error::Closed(Class::Endpoint))
    }

    pub(crate) fn new_endpoint(bound: Bindings) -> EndpointState {
        let (transmit, stats) = (TxCredits::new(bound.tx_size), EndpointStats::default());
        EndpointState {
            tx_credits: transmit,
            posted_recvs: 0,
            stats,
            fast_path: None,
            cm: None,
            bindings: bound,
        }
    }

    /// Whether an operation of this endpoint has not ended, apart from those whose buffers the kernel
    /// has, and from receives of several messages, which end when their last message is taken.
    pub(crate) fn has_unended(&self, ep: EpId) -> bool {
        let mut unended = self.ops.unended(ep);
        unended.any(|key| {
            let is_multi = self.multi_recvs.iter().any(|(_, multi)| multi.is(key));
            !is_multi && !self.in_flight_buffers.contains_key(&key)
        })
    }

    /// Whether a number is one of the endpoint's vector.
    pub(crate) fn check_address(&self, ep: EpId, addr: FiAddr) -> Result<()> {
        let ep = self
            .endpoints
            .get(ep.0)
            .ok_or_else(|| Error::Closed(Class::Endpoint))?;
        check_addr(&self.avs, ep.bindings.av, addr)
    }

    /// Somebody who waited for this, if anybody did, is to look.
    #[inline]
    pub(crate) fn wake_waiter(&mut self, waiter: Option<Waker>) {
        if let Some(waker) = waiter {
            self.waiters -= 1;
            self.deferred.wake(waker);
        }
    }

    /// Nobody waits for this any more.
    #[inline]
    pub(crate) fn drop_waiter(&mut self, waiter: Option<Waker>) {
        if let Some(waker) = waiter {
            self.waiters -= 1;
            self.deferred.drop_waker(waker);
        }
    }

    /// Somebody waits for this now, where this one has waited before.
    pub(crate) fn add_waiter(&mut self, before: Option<Waker>) {
        match before {
            Some(old) => self.deferred.drop_waker(old),
            None => self.waiters += 1,
        }
    }

    /// Removes an operation and everything that waits on it; its buffer is dropped later.
    pub(crate) fn discard_op(&mut self, key: OpKey) -> Option<OpState> {
        let mut op = self.ops.remove(key)?;
        self.drop_op_waker(&mut op);
        self.release_op_resources(&mut op);
        self.deferred.drop_buffer(std::mem::take(&mut op.buf));
        Some(op)
    }

    pub(crate) fn drop_op_waker(&mut self, op: &mut OpState) {
        let waiter = op.waker.take();
        self.drop_waiter(waiter);
    }

    /// Gives back what an operation holds: its credit, or its place among the posted receives.
    pub(crate) fn release_op_resources(&mut self, op: &mut OpState) {
        if std::mem::take(&mut op.holds_credit) {
            if op.kind != OpKind::Recv && !op.no_transfer {
                self.pending_sends -= 1;
            }
            self.release_credit(op.ep, op.kind, op.spec.map(|spec| spec.peer));
        }
        if let Some(spread) = op.spec.as_mut().and_then(|spec| spec.rma_iov_id.take()) {
            self.rma_iovs.try_remove(spread.0 as usize);
        }
    }

    /// Whether something of this domain has to be kept going. Under policy spin those who wait keep
    /// themselves runnable; sends, and messages that peers wait to see fetched, go on by themselves
    /// all the same.
    pub(crate) fn needs_driver(&self, policy: WaitPolicy) -> bool {
        let waits =
            || self.waiters > 0 || self.event_queues.iter().any(|eq| eq.has_waiting_reader());
        self.pending_sends > 0 || self.progress_requested || (policy != WaitPolicy::Spin && waits())
    }

    /// Gives back a credit, or a place among the posted receives.
    pub(crate) fn release_credit(&mut self, ep: EpId, kind: OpKind, peer: Option<FiAddr>) {
        let Some(state) = self.endpoints.get_mut(ep.0) else {
            return;
        };
        if kind == OpKind::Recv {
            state.posted_recvs -= 1;
        } else if let Some(peer) = peer {
            state.tx_credits.release(peer);
            if !state.tx_credits.has_no_waiters() {
                self.follow_ups.push(FollowUp::GrantCredits(ep));
            }
        }
    }

    /// Registers the waker of an operation's future.
    pub(crate) fn register_op_waker(&mut self, key: OpKey, waker: &Waker) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let before = match &op.waker {
            Some(registered) if registered.will_wake(waker) => return,
            _ => op.waker.replace(waker.clone()),
        };
        self.add_waiter(before);
    }

    /// An operation has ended whose future will look.
    pub(crate) fn complete_future(&mut self, key: OpKey) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.phase = OpPhase::Done;
        let waiter = op.waker.take();
        self.wake_waiter(waiter);
    }

    /// How an operation has ended, if it has and nobody has looked.
    pub(crate) fn take_op_result(&mut self, key: OpKey) -> Option<OpResult> {
        let op = self
            .ops
            .get_mut(key)
            .filter(|op| op.phase == OpPhase::Done)?;
        let ended = OpResult {
            transfer: op.outcome.transfer,
            error: op.outcome.error.take(),
            buf: std::mem::take(&mut op.buf),
        };
        let (ep, kind) = (op.ep, op.kind);
        if kind == OpKind::Recv && ended.error.is_none() {
            self.count_received(ep, &ended.transfer);
        }
        self.free_done_op(key);
        Some(ended)
    }

    /// Likewise of one that has ended, with the buffer as its future has it.
    #[inline(always)] // on the way of a small message, and its result is large
    pub(crate) fn take_typed_result<B: IoBuf>(
        &mut self,
        key: OpKey,
    ) -> (B, Transfer, Option<Box<Error>>) {
        let op = self.ops.free_done(key);
        let buf = B::from_any(std::mem::take(&mut op.buf));
        let buf =
            buf.unwrap_or_else(|_| unreachable!("an operation returns the buffer it was given"));
        let (transfer, error) = (op.outcome.transfer, op.outcome.error.take());
        let (ep, kind, waiter) = (op.ep, op.kind, op.waker.take());
        self.drop_waiter(waiter);
        if kind == OpKind::Recv && error.is_none() {
            self.count_received(ep, &transfer);
        }
        self.on_message_consumed(transfer.source);
        (buf, transfer, error)
    }

    /// The result of an operation was taken out: its slot is free.
    #[inline]
    fn free_done_op(&mut self, key: OpKey) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let source = op.outcome.transfer.source;
        let waiter = op.waker.take();
        self.drop_waiter(waiter);
        self.ops.free(key);
        self.on_message_consumed(source);
    }

    pub(crate) fn wake_all(&mut self) {
        for waker in self.ops.take_wakers() {
            self.deferred.wake(waker);
        }
        for ring in self.cqs.iter_mut() {
            ring.waker
                .take()
                .into_iter()
                .for_each(|waker| self.deferred.wake(waker));
        }
        for cell in self.counters.iter_mut() {
            cell.wake_all(&mut self.deferred);
        }
        for door in self.endpoints.iter_mut().filter_map(|ep| ep.cm.as_mut()) {
            door.take_waker()
                .into_iter()
                .for_each(|waker| self.deferred.wake(waker));
        }
        for waker in self.event_queues.iter().filter_map(|eq| eq.take_waker()) {
            self.deferred.wake(waker);
        }
        self.waiters = 0;
    }
}
