//! Shared memory between processes of one machine, and within one.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: its name, its connections, its receive context |
//! | `callers` | the connections that came in, and which of them are looked at |
//! | `outgoing`, `incoming` | a connection, seen from the sender and from the receiver |
//! | `lanes` | where the connections to peers are, each under a lock of its own |
//! | `handshake` | how two endpoints meet, and what they say outside of the rings |
//! | `socket` | the sockets they say it on |
//! | `receipts` | messages that the peer is to confirm |
//! | `record` | what the records in a ring say |
//! | `ring` | the ring of lines |
//! | `segment` | the memory below the ring |
//! | `memfd` | where memory that is passed on comes from |
//! | `area` | memory that peers reach by themselves |
//! | `loans` | memory that changes hands instead of being copied |
//! | `desk` | what peers ask for is done here: accesses to regions that are not mapped |
//! | `fetch` | messages that are copied straight out of their sender's memory; which those are |
//! | `windows` | the areas of a peer, as they are mapped here |

mod closer;
mod cma;
mod connection_table;
mod control;
mod endpoint;
#[cfg(all(any(test, feature = "fuzz"), not(loom)))]
pub mod fuzz;
mod loans;
mod mapped_regions;
mod memfd;
#[cfg(all(feature = "microbench", not(loom)))]
mod microbench;
mod pending_acks;
mod record;
pub(crate) mod ring;
#[cfg(all(any(test, feature = "fuzz"), not(loom)))]
mod ring_heap;
#[cfg(all(test, not(loom)))]
mod ring_stress;
#[cfg(all(test, not(loom)))]
mod ring_tests;
mod rma_bounce;
mod rx_connection;
mod rx_table;
mod segment;
mod shared_memory;
mod socket;
mod tx_connection;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric_core::buf::{AnyBuf, Payload, PooledBuf};
use fabric_core::flags::{Access, Caps, MsgOrder, OpFlags};
use fabric_core::info::{Info, Protocol};
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::mr::{DirectRegion, RegionMemory};
use fabric_core::rx::{RxQueue, RxSource};
use fabric_core::stats::TransportStats;
use fabric_core::transport::{
    EngineContext, EpId, FastPath, LoanAllocator, OpKey, Transport, TransportDomain, TrySend, TxOp,
    WaitSet,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use crate::transport::fork_guard::ForkGuard;
use crate::transport::info_templates;

use endpoint::{ShmEndpoint, ShmToken};
use loans::LoanPool;
#[cfg(all(feature = "microbench", not(loom)))]
pub(crate) use microbench::benchmarks;
use rx_table::ALWAYS_ACTIVE;
use shared_memory::SharedMemory;

/// The provider `shm`.
#[derive(Clone, Copy, Debug)]
pub struct ShmTransport;

/// Messages keep their order among each other and behind one-sided operations, and those among each
/// other. A one-sided operation does not wait until a message before it was received.
const MSG_ORDER: MsgOrder = MsgOrder::SAS
    .union(MsgOrder::SAW)
    .union(MsgOrder::SAR)
    .union(MsgOrder::RAR)
    .union(MsgOrder::RAW)
    .union(MsgOrder::WAR)
    .union(MsgOrder::WAW);

/// Places of a one-sided operation: far below where walking them would be felt.
const RMA_IOV_LIMIT: usize = 64;

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn offers(&self) -> Vec<Info> {
        let mut info = info_templates::reliable_info("shm", Caps::LOCAL_COMM);
        info.ep.protocol = Some(Protocol::Shm);
        info.ep.protocol_version = u32::from(control::VERSION);
        info.ep.max_msg_size = rx_connection::MAX_MSG_SIZE;
        info.ep.max_order_war_size = usize::MAX;
        info.tx.op_flags |=
            OpFlags::TRANSMIT_COMPLETE | OpFlags::MATCH_COMPLETE | OpFlags::DELIVERY_COMPLETE;
        info.tx.msg_order = MSG_ORDER;
        info.tx.rma_iov_limit = RMA_IOV_LIMIT;
        info.rx.msg_order = MSG_ORDER;
        info.for_both_progress_models().into()
    }

    fn alloc(&self, len: usize, access: Access) -> Result<Arc<dyn RegionMemory>> {
        Ok(Arc::new(SharedMemory::create(len, access)?))
    }

    fn open_domain(
        &self,
        _info: &Info,
        wait: Arc<dyn WaitSet>,
    ) -> Result<Box<dyn TransportDomain>> {
        Ok(Box::new(ShmDomain {
            wait_set: wait,
            endpoints: Vec::new(),
            positions: Vec::new(),
            active: Vec::new(),
            idle_cursor: 0,
            fork_guard: ForkGuard::current_process(),
            loan_pool: LoanPool::default(),
            single_copy: None,
        }))
    }
}

/// The data path of a domain: its endpoints.
struct ShmDomain {
    wait_set: Arc<dyn WaitSet>,
    endpoints: Vec<ShmEndpoint>,
    /// Where each endpoint is in `endpoints`, by its place in the domain.
    positions: Vec<Option<u32>>,
    /// Where the endpoints are that passes are made over; `callers` says why a pass may leave out
    /// others.
    active: Vec<usize>,
    /// Which endpoint is looked at out of turn.
    idle_cursor: usize,
    /// In a forked child nothing moves: what its parent shares with peers is the parent's.
    fork_guard: ForkGuard,
    loan_pool: LoanPool,
    /// Which messages are fetched, once that was said, or an endpoint was opened.
    single_copy: Option<cma::SingleCopyPolicy>,
}

/// By what means the endpoints of a domain send what is long.
#[derive(Clone, Debug)]
struct TxResources {
    loan_pool: LoanPool,
    /// Which messages are fetched by their receiver, where it can.
    single_copy: cma::SingleCopyPolicy,
}

impl ShmDomain {
    /// An endpoint that something is to be done with: it is attended from now on.
    #[inline(always)] // on the way of a small message
    fn activate_endpoint(&mut self, ep: EpId) -> Result<&mut ShmEndpoint> {
        let place = self.position(ep).unwrap_or(usize::MAX);
        let Some(endpoint) = self.endpoints.get_mut(place) else {
            return Err(Error::Closed(Class::Endpoint));
        };
        if !std::mem::replace(&mut endpoint.active, true) {
            self.active.push(place);
        }
        Ok(endpoint)
    }

    fn mark_active(&mut self, place: usize) {
        if !std::mem::replace(&mut self.endpoints[place].active, true) {
            self.active.push(place);
        }
    }

    #[inline]
    fn position(&self, ep: EpId) -> Option<usize> {
        let place = self.positions.get(ep.index()).copied().flatten()? as usize;
        (self.endpoints[place].id() == ep).then_some(place)
    }

    /// Looks at an endpoint that is not attended, each in turn.
    fn poll_idle(&mut self, host: &mut dyn EngineContext) -> bool {
        self.idle_cursor = if self.idle_cursor + 1 < self.endpoints.len() {
            self.idle_cursor + 1
        } else {
            0
        };
        let Some(endpoint) = self
            .endpoints
            .get_mut(self.idle_cursor)
            .filter(|endpoint| !endpoint.active)
        else {
            return false;
        };
        let moved = endpoint.progress(host, self.active.len());
        if !endpoint.is_quiescent() {
            self.mark_active(self.idle_cursor);
        }
        moved
    }

    fn insert(&mut self, ep: EpId, endpoint: ShmEndpoint) {
        let number = ep.index();
        if number >= self.positions.len() {
            self.positions.resize(number + 1, None);
        }
        self.positions[number] = Some(self.endpoints.len() as u32);
        self.endpoints.push(endpoint);
    }

    fn remove(&mut self, ep: EpId) -> Option<ShmEndpoint> {
        let place = self.position(ep)?;
        self.positions[ep.index()] = None;
        let endpoint = self.endpoints.swap_remove(place);
        if let Some(moved) = self.endpoints.get(place) {
            self.positions[moved.id().index()] = Some(place as u32);
        }
        let attended = self
            .endpoints
            .iter()
            .enumerate()
            .filter(|(_, endpoint)| endpoint.active);
        self.active = attended.map(|(place, _)| place).collect();
        Some(endpoint)
    }
}

impl TransportDomain for ShmDomain {
    fn open_endpoint(
        &mut self,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
        receiving: RxSource<'_>,
    ) -> Result<Address> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let fetched = *self
            .single_copy
            .get_or_insert_with(cma::SingleCopyPolicy::auto);
        let means = TxResources {
            loan_pool: self.loan_pool.clone(),
            single_copy: fetched,
        };
        let open = |at, wait| ShmEndpoint::open(ep, at, (info, means.clone()), wait, receiving);
        let opened = match at {
            Some(at) if at.scheme() != Scheme::Shm => {
                return Err(Error::WrongScheme {
                    provider: "shm",
                    address: at.clone(),
                });
            }
            Some(at) if !at.name().is_empty() => open(at.clone(), self.wait_set.clone())?,
            // Another process namespace on the same network may have an endpoint of the same
            // number.
            _ => loop {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let name = format!("{}.{number}", std::process::id());
                match open(Address::new(Scheme::Shm, &name)?, self.wait_set.clone()) {
                    Err(Error::AddressInUse(_)) => continue,
                    opened => break opened?,
                }
            },
        };
        let name = opened.name().clone();
        self.insert(ep, opened);
        Ok(name)
    }

    fn close_endpoint(&mut self, host: &mut dyn EngineContext, ep: EpId) {
        if let Some(endpoint) = self.remove(ep) {
            endpoint.close(host);
        }
    }

    fn try_send(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        spec: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        self.activate_endpoint(ep)?.try_send(host, spec, payload)
    }

    fn flush(&mut self, host: &mut dyn EngineContext, ep: EpId) -> Result<()> {
        self.activate_endpoint(ep)?.flush(host)
    }

    fn try_read(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        spec: &TxOp,
        into: &mut AnyBuf,
    ) -> Result<TrySend> {
        self.activate_endpoint(ep)?
            .try_now(host, spec, |outgoing| outgoing.try_read(spec, into))
    }

    fn try_atomic(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        spec: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        self.activate_endpoint(ep)?.try_now(host, spec, |outgoing| {
            outgoing.try_atomic(spec, operands, result)
        })
    }

    fn direct_region(
        &mut self,
        _: &mut dyn EngineContext,
        ep: EpId,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        self.activate_endpoint(ep)?.region_handle(peer, key)
    }

    fn fast_path(&self, ep: EpId) -> Option<Arc<dyn FastPath>> {
        self.position(ep)
            .map(|place| self.endpoints[place].fast_path())
    }

    fn loan_allocator(&self) -> Option<Arc<dyn LoanAllocator>> {
        Some(Arc::new(self.loan_pool.clone()))
    }

    fn collect_loans(&mut self) {
        self.endpoints
            .iter_mut()
            .for_each(ShmEndpoint::collect_returned_loans);
    }

    fn set_single_copy_threshold(&mut self, len: usize) {
        self.single_copy = Some(cma::SingleCopyPolicy::from_len(len));
    }

    fn queue_send(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        op: OpKey,
        spec: &TxOp,
    ) -> Result<()> {
        self.activate_endpoint(ep)?.queue_send(host, op, spec)
    }

    fn post_recv(&mut self, host: &mut dyn EngineContext, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.activate_endpoint(ep) {
            Ok(endpoint) => endpoint.post_recv(host, op, spec),
            Err(_) => endpoint::complete_closed(host, op),
        }
    }

    fn post_multi_recv(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        op: OpKey,
        spec: RecvSpec,
    ) {
        match self.activate_endpoint(ep) {
            Ok(endpoint) => endpoint.post_multi_recv(host, op, spec),
            Err(_) => endpoint::complete_closed(host, op),
        }
    }

    fn rx_queue(&mut self, ep: EpId) -> Option<&mut RxQueue> {
        self.activate_endpoint(ep).ok().map(ShmEndpoint::rx_queue)
    }

    fn on_rx_queue_changed(&mut self, host: &mut dyn EngineContext, ep: EpId) {
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.on_rx_queue_changed(host);
        }
    }

    fn cancel(&mut self, host: &mut dyn EngineContext, ep: EpId, op: OpKey) -> bool {
        self.activate_endpoint(ep)
            .is_ok_and(|endpoint| endpoint.cancel(host, op))
    }

    fn detach_recv(&mut self, host: &mut dyn EngineContext, ep: EpId, op: OpKey) {
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.detach_recv(host, op);
        }
    }

    fn requeue_message(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        envelope: Envelope,
        bytes: PooledBuf,
    ) {
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.requeue_message(host, envelope, bytes);
        }
    }

    fn address_inserted(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        addr: FiAddr,
        address: &Address,
    ) {
        // Most have no message from there, and go on resting.
        let Some(place) = self.position(ep) else {
            return;
        };
        self.endpoints[place].address_inserted(host, addr, address);
        if !self.endpoints[place].is_quiescent() {
            self.mark_active(place);
        }
    }

    fn address_removed(&mut self, host: &mut dyn EngineContext, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.address_removed(host, addr);
        }
    }

    fn holds_messages_from(&self, ep: EpId, source: FiAddr) -> bool {
        self.position(ep)
            .is_some_and(|place| self.endpoints[place].holds_messages_from(source))
    }

    fn progress(&mut self, host: &mut dyn EngineContext) -> bool {
        if !self.fork_guard.in_original_process() {
            return false;
        }
        let crowd = self.active.len();
        let (mut moved, mut index) = (false, 0);
        while let Some(&place) = self.active.get(index) {
            let endpoint = &mut self.endpoints[place];
            moved |= endpoint.progress(host, crowd);
            if self.active.len() > ALWAYS_ACTIVE && endpoint.is_quiescent() {
                endpoint.active = false;
                self.active.swap_remove(index);
            } else {
                index += 1;
            }
        }
        if self.active.len() < self.endpoints.len() {
            moved |= self.poll_idle(host);
        }
        moved
    }

    fn ready(&mut self, host: &mut dyn EngineContext, token: u64) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        let (ep, token) = ShmToken::unpack(token);
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.ready(host, token);
        }
    }

    fn arm(&mut self) -> bool {
        if !self.fork_guard.in_original_process() {
            return true;
        }
        let mut quiet = true;
        for &place in &self.active {
            quiet &= self.endpoints[place].arm();
        }
        if !quiet {
            self.disarm();
        }
        quiet
    }

    fn disarm(&mut self) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        for &place in &self.active {
            self.endpoints[place].disarm();
        }
    }

    fn stats(&self, ep: EpId) -> TransportStats {
        self.position(ep)
            .map_or_else(TransportStats::default, |place| {
                self.endpoints[place].stats()
            })
    }

    fn describe(&self) -> String {
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .map(|endpoint| endpoint.describe())
            .collect();
        format!(
            "shm [{}], {} endpoints attended",
            endpoints.join(", "),
            self.active.len()
        )
    }
}
