//! The `shm` transport: shared memory between processes of one machine, and within one process.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: its name, its connections, its receive queue |
//! | `rx_table` | incoming connections, active and idle |
//! | `connection_table` | outgoing connections by address handle, each under a lock of its own |
//! | `tx_connection`, `rx_connection` | the sending and the receiving end of a connection |
//! | `passive` | a passive endpoint: its name, and the connection requests of clients |
//! | `cm` | connection management messages of connected endpoints |
//! | `control` | handshake and control messages |
//! | `socket` | the Unix sockets that carry control messages |
//! | `closer` | threads that close descriptors received from peers |
//! | `pending_acks` | sends that complete when the peer acknowledges them |
//! | `record` | the layout of the records in a ring |
//! | `ring` | the ring buffer of cache lines |
//! | `segment` | the shared memory that holds a ring |
//! | `shared_memory` | registered memory that peers map |
//! | `loans` | memory passed to the receiver instead of being copied |
//! | `rma_bounce` | accesses that the owner of an unmapped region executes |
//! | `cma` | messages copied directly from the sender's memory, and when this is done |
//! | `mapped_regions` | the regions of a peer that are mapped here |

mod closer;
mod cm;
mod cma;
mod connection_table;
mod control;
mod endpoint;
#[cfg(all(any(test, feature = "fuzz"), not(loom)))]
pub mod fuzz;
mod loans;
mod mapped_regions;
#[cfg(all(feature = "microbench", not(loom)))]
mod microbench;
mod passive;
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

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::flags::{Access, Caps, MsgOrder, OpFlags};
use fabric_core::info::{Info, Protocol};
use fabric_core::matching::PeerKey;
use fabric_core::mr::{DirectRegion, RegionMemory};
use fabric_core::stats::TransportStats;
use fabric_core::transport::{
    ConnReq, ConnectParams, EngineContext, EpId, FastPath, LoanAllocator, OpKey, OpenDomain,
    Transport, TransportDomain, TrySend, TxOp, WaitSet,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use crate::sys::fork_guard::ForkGuard;
use crate::transport::info_templates;

use endpoint::{ShmConfig, ShmEndpoint, ShmToken, UNEXPECTED_BYTES};
use loans::LoanPool;
#[cfg(all(feature = "microbench", not(loom)))]
pub(crate) use microbench::benchmarks;
use passive::ShmPassiveEndpoint;
use rx_table::ALWAYS_ACTIVE;
use shared_memory::SharedMemory;

/// The `shm` transport.
#[derive(Clone, Copy, Debug)]
pub struct ShmTransport;

/// Ordering guarantees: messages stay in order among each other and after one-sided operations, and
/// one-sided operations stay in order among each other. A one-sided operation does not wait until
/// an earlier message has been received.
const MSG_ORDER: MsgOrder = MsgOrder::SAS
    .union(MsgOrder::SAW)
    .union(MsgOrder::SAR)
    .union(MsgOrder::RAR)
    .union(MsgOrder::RAW)
    .union(MsgOrder::WAR)
    .union(MsgOrder::WAW);

/// Remote ranges that one operation may have (`rma_iov_limit`).
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
        let connectionless = info.for_both_progress_models();
        let connected = connectionless
            .clone()
            .map(info_templates::with_msg_endpoints);
        [connectionless, connected].concat()
    }

    fn alloc(&self, len: usize, access: Access) -> Result<Arc<dyn RegionMemory>> {
        Ok(Arc::new(SharedMemory::create(len, access)?))
    }
}

impl<E: EngineContext> OpenDomain<E> for ShmTransport {
    fn open_domain(
        &self,
        _info: &Info,
        wait: Arc<dyn WaitSet>,
    ) -> Result<Box<dyn TransportDomain<E>>> {
        Ok(Box::new(ShmDomain {
            loan_pool: LoanPool::new(&wait),
            wait_set: wait,
            endpoints: Vec::new(),
            passive: Vec::new(),
            positions: Vec::new(),
            active: Vec::new(),
            idle_cursor: 0,
            fork_guard: ForkGuard::current_process(),
            single_copy: None,
        }))
    }
}

/// A domain of the transport: its endpoints and passive endpoints. The engine calls it under the
/// domain's lock. The *position* of an endpoint is its index in `endpoints`.
struct ShmDomain {
    wait_set: Arc<dyn WaitSet>,
    endpoints: Vec<ShmEndpoint>,
    /// Passive endpoints, which passes do not poll.
    passive: Vec<ShmPassiveEndpoint>,
    /// Position of each endpoint by [`EpId::index`]; `None` for a passive or closed endpoint.
    positions: Vec<Option<u32>>,
    /// Positions of the endpoints that every pass polls: those with `active` set. `rx_table`
    /// explains why passes need not poll idle endpoints.
    active: Vec<usize>,
    /// Position that [`poll_idle`](Self::poll_idle) looked at last.
    idle_cursor: usize,
    /// In a forked child the domain makes no progress: the connections belong to the parent.
    fork_guard: ForkGuard,
    loan_pool: LoanPool,
    /// Which messages use single copy. The application sets it; otherwise it becomes `auto` when
    /// the first endpoint is opened.
    single_copy: Option<cma::SingleCopyPolicy>,
}

/// The loan pool and the single-copy policy of a domain, which its endpoints send long messages
/// with.
#[derive(Clone, Debug)]
struct TxSettings {
    /// The domain's chunks, which carry messages that are sent as loans.
    loan_pool: LoanPool,
    /// Which messages the receiver copies directly, where the kernel permits it.
    single_copy: cma::SingleCopyPolicy,
}

impl ShmDomain {
    /// Returns an endpoint and marks it active.
    ///
    /// # Errors
    /// [`Error::Closed`] if the domain has no such endpoint.
    #[inline(always)] // fast path of small messages
    fn activate_endpoint(&mut self, ep: EpId) -> Result<&mut ShmEndpoint> {
        let position = self.position(ep).ok_or(Error::Closed(Class::Endpoint))?;
        self.mark_active(position);
        Ok(&mut self.endpoints[position])
    }

    /// Marks the endpoint at this position active.
    #[inline]
    fn mark_active(&mut self, position: usize) {
        if !std::mem::replace(&mut self.endpoints[position].active, true) {
            self.active.push(position);
        }
    }

    /// Returns the position of an endpoint.
    #[inline]
    fn position(&self, ep: EpId) -> Option<usize> {
        let position = self.positions.get(ep.index()).copied().flatten()? as usize;
        (self.endpoints[position].id() == ep).then_some(position)
    }

    /// Polls the next endpoint, round-robin, if the endpoint is idle. Returns whether anything
    /// progressed.
    fn poll_idle(&mut self, engine: &mut impl EngineContext) -> bool {
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
        let progressed = endpoint.progress(engine, self.active.len());
        if !endpoint.is_quiescent(engine) {
            self.mark_active(self.idle_cursor);
        }
        progressed
    }

    /// Adds an endpoint.
    fn insert(&mut self, ep: EpId, endpoint: ShmEndpoint) {
        let index = ep.index();
        if index >= self.positions.len() {
            self.positions.resize(index + 1, None);
        }
        self.positions[index] = Some(self.endpoints.len() as u32);
        self.endpoints.push(endpoint);
    }

    /// Returns the configuration of a new endpoint. Sets the single-copy policy if it is not set.
    fn endpoint_config<'a>(&mut self, info: &'a Info, shares_rx: bool) -> ShmConfig<'a> {
        let single_copy = *self
            .single_copy
            .get_or_insert_with(cma::SingleCopyPolicy::auto);
        let loan_pool = self.loan_pool.clone();
        ShmConfig {
            info,
            tx_settings: TxSettings {
                loan_pool,
                single_copy,
            },
            wait_set: self.wait_set.clone(),
            shares_rx,
        }
    }

    /// Removes an endpoint. The last endpoint takes its position.
    fn remove(&mut self, ep: EpId) -> Option<ShmEndpoint> {
        let position = self.position(ep)?;
        self.positions[ep.index()] = None;
        let endpoint = self.endpoints.swap_remove(position);
        if let Some(swapped) = self.endpoints.get(position) {
            self.positions[swapped.id().index()] = Some(position as u32);
        }
        let active = self
            .endpoints
            .iter()
            .enumerate()
            .filter(|(_, endpoint)| endpoint.active);
        self.active = active.map(|(position, _)| position).collect();
        Some(endpoint)
    }
}

/// Calls `open` with the name `at`. If `at` is `None` or has an empty name, calls `open` with
/// generated names until one is free.
fn with_free_name<T>(
    at: Option<&Address>,
    mut open: impl FnMut(&Address) -> Result<T>,
) -> Result<T> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if let Some(at) = at {
        at.check_scheme(Scheme::Shm)?;
        if !at.name().is_empty() {
            return open(at);
        }
    }
    // A process in another PID namespace may have an endpoint of the generated name: abstract names
    // are per network namespace.
    loop {
        let index = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{index}", std::process::id());
        match open(&Address::new(Scheme::Shm, &name)?) {
            Err(Error::AddressInUse(_)) => continue,
            opened => return opened,
        }
    }
}

impl<E: EngineContext> TransportDomain<E> for ShmDomain {
    fn open_endpoint(
        &mut self,
        engine: &mut E,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<Address> {
        let shares_rx = engine.with_rx(ep, |rx, _| rx.is_shared());
        let config = self.endpoint_config(info, shares_rx);
        let opened = with_free_name(at, |name| {
            ShmEndpoint::open(ep, name.clone(), config.clone())
        })?;
        let name = opened.name().clone();
        self.insert(ep, opened);
        Ok(name)
    }

    fn listen(&mut self, ep: EpId, _info: &Info, at: Option<&Address>) -> Result<Address> {
        let opened = with_free_name(at, |name| {
            ShmPassiveEndpoint::open(ep, name.clone(), self.wait_set.clone())
        })?;
        let name = opened.name().clone();
        self.passive.push(opened);
        Ok(name)
    }

    fn take_connreq(&mut self, engine: &mut E, ep: EpId) -> Option<ConnReq> {
        if !self.fork_guard.in_original_process() {
            return None;
        }
        let passive = self.passive.iter_mut().find(|passive| passive.id() == ep);
        passive?.take_connreq(engine)
    }

    fn open_connected(
        &mut self,
        engine: &mut E,
        ep: EpId,
        info: &Info,
        params: ConnectParams<'_>,
    ) -> Result<()> {
        if !self.fork_guard.in_original_process() {
            return Err(Error::Closed(Class::Domain));
        }
        let shares_rx = engine.with_rx(ep, |rx, _| rx.is_shared());
        let config = self.endpoint_config(info, shares_rx);
        let opened = ShmEndpoint::open_connected(engine, ep, config, params)?;
        self.insert(ep, opened);
        // An accepted endpoint can receive now.
        self.mark_active(self.endpoints.len() - 1);
        engine.request_rearm();
        Ok(())
    }

    fn shutdown(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        if !self.fork_guard.in_original_process() {
            return Err(Error::Closed(Class::Endpoint));
        }
        self.activate_endpoint(ep)?.shutdown(engine)
    }

    fn close_endpoint(&mut self, engine: &mut E, ep: EpId) {
        if let Some(endpoint) = self.remove(ep) {
            endpoint.close(engine);
        }
        self.passive.retain(|passive| passive.id() != ep);
    }

    fn try_send(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        self.activate_endpoint(ep)?.try_send(engine, tx_op, payload)
    }

    fn try_send_plain(&mut self, ep: EpId, peer: FiAddr, messages: &[&[u8]]) -> usize {
        self.activate_endpoint(ep)
            .map_or(0, |endpoint| endpoint.try_send_plain(peer, messages))
    }

    fn try_recv(
        &mut self,
        ep: EpId,
        from: Option<FiAddr>,
        room: usize,
        into: &mut AnyBuf,
    ) -> Option<(usize, Option<FiAddr>)> {
        if !self.fork_guard.in_original_process() {
            return None;
        }
        let position = self.position(ep)?;
        self.endpoints[position].try_recv(from, room, into)
    }

    fn flush(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        self.activate_endpoint(ep)?.flush(engine)
    }

    fn try_read(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        into: &mut AnyBuf,
    ) -> Result<TrySend> {
        self.activate_endpoint(ep)?
            .try_inline(engine, tx_op, |tx| tx.try_read(tx_op, into))
    }

    fn try_atomic(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        self.activate_endpoint(ep)?
            .try_inline(engine, tx_op, |tx| tx.try_atomic(tx_op, operands, result))
    }

    fn direct_region(
        &mut self,
        _: &mut E,
        ep: EpId,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        self.activate_endpoint(ep)?.region_handle(peer, key)
    }

    fn fast_path(&self, ep: EpId) -> Option<Arc<dyn FastPath>> {
        self.position(ep)
            .map(|position| self.endpoints[position].fast_path())
    }

    fn loan_allocator(&self) -> Option<Arc<dyn LoanAllocator>> {
        Some(Arc::new(self.loan_pool.clone()))
    }

    fn collect_loans(&mut self) {
        self.endpoints
            .iter_mut()
            .for_each(ShmEndpoint::collect_returned_loans);
    }

    fn watch_loans(&mut self, engine: &mut E) {
        for position in 0..self.endpoints.len() {
            self.endpoints[position].watch_loans();
            if !self.endpoints[position].is_quiescent(engine) {
                self.mark_active(position);
            }
        }
    }

    fn set_single_copy_threshold(&mut self, len: usize) {
        self.single_copy = Some(cma::SingleCopyPolicy::from_len(len));
    }

    fn queue_send(&mut self, engine: &mut E, ep: EpId, op: OpKey, tx_op: &TxOp) -> Result<()> {
        self.activate_endpoint(ep)?.queue_send(engine, op, tx_op)
    }

    fn unexpected_budget(&self) -> usize {
        UNEXPECTED_BYTES
    }

    fn on_rx_queue_changed(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        self.activate_endpoint(ep)?.on_rx_queue_changed(engine);
        Ok(())
    }

    fn cancel(&mut self, engine: &mut E, ep: EpId, op: OpKey) -> bool {
        self.activate_endpoint(ep)
            .is_ok_and(|endpoint| endpoint.cancel(engine, op))
    }

    fn source_of(&self, ep: EpId, peer: PeerKey) -> Option<FiAddr> {
        self.endpoints[self.position(ep)?].source_of(peer)
    }

    fn address_inserted(&mut self, engine: &mut E, ep: EpId, addr: FiAddr, address: &Address) {
        // Only an endpoint that has something to do now becomes active.
        let Some(position) = self.position(ep) else {
            return;
        };
        self.endpoints[position].address_inserted(engine, addr, address);
        if !self.endpoints[position].is_quiescent(engine) {
            self.mark_active(position);
        }
    }

    fn address_removed(&mut self, engine: &mut E, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.address_removed(engine, addr);
        }
    }

    fn progress(&mut self, engine: &mut E) -> bool {
        if !self.fork_guard.in_original_process() {
            return false;
        }
        let active_count = self.active.len();
        let (mut progressed, mut index) = (false, 0);
        while let Some(&position) = self.active.get(index) {
            let endpoint = &mut self.endpoints[position];
            progressed |= endpoint.progress(engine, active_count);
            if self.active.len() > ALWAYS_ACTIVE && endpoint.is_quiescent(engine) {
                endpoint.deactivate(engine);
                self.active.swap_remove(index);
            } else {
                index += 1;
            }
        }
        if self.active.len() < self.endpoints.len() {
            progressed |= self.poll_idle(engine);
        }
        progressed
    }

    fn ready(&mut self, engine: &mut E, token: u64) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        let (ep, token) = ShmToken::unpack(token);
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.ready(engine, token);
        } else if let Some(passive) = self.passive.iter_mut().find(|passive| passive.id() == ep) {
            passive.ready(engine, token);
        }
    }

    fn arm(&mut self, engine: &mut E) -> bool {
        if !self.fork_guard.in_original_process() {
            return true;
        }
        let mut quiet = true;
        for &position in &self.active {
            quiet &= self.endpoints[position].arm(engine);
        }
        if !quiet {
            TransportDomain::<E>::disarm(self);
        }
        quiet
    }

    fn disarm(&mut self) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        for &position in &self.active {
            self.endpoints[position].disarm();
        }
    }

    fn stats(&self, ep: EpId) -> TransportStats {
        self.position(ep)
            .map_or_else(TransportStats::default, |position| {
                self.endpoints[position].stats()
            })
    }

    fn describe(&self) -> String {
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .map(ShmEndpoint::describe)
            .chain(self.passive.iter().map(ShmPassiveEndpoint::describe))
            .collect();
        format!(
            "shm [{}], {} active endpoints",
            endpoints.join(", "),
            self.active.len()
        )
    }
}
