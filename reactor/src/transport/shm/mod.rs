//! The `shm` transport: shared memory between processes of one machine, and within one process.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: its name, its connections, its receive queue |
//! | `rx_table` | incoming connections, active, idle and held |
//! | `connection_table` | outgoing connections by address handle, each under a lock of its own |
//! | `tx_connection`, `rx_connection` | the sending and the receiving end of a connection |
//! | `tx_settings` | how endpoints send long messages |
//! | `passive`, `conn_req` | a passive endpoint: its name; the connection requests of clients |
//! | `cm` | connection management messages of connected endpoints |
//! | `connect_retry` | when a client connects again |
//! | `control` | handshake and control messages |
//! | `doorbell` | waking a peer that sleeps |
//! | `socket`, `token` | the Unix sockets that carry control messages; their epoll tokens |
//! | `pending_acks` | sends that complete when the peer acknowledges them |
//! | `record` | the layout of the records in a ring |
//! | `ring` | the ring buffer of cache lines |
//! | `segment` | the shared memory that holds a ring |
//! | `shared_memory` | registered memory that peers map |
//! | `memfd_region` | memory of the program that peers map |
//! | `held_slots` | the loans and offers of a peer that this side holds |
//! | `loans` | memory passed to the receiver instead of being copied |
//! | `rma_bounce` | accesses that the owner of an unmapped region executes |
//! | `cma` | messages copied directly from the sender's memory, and when this is done |
//! | `mapped_regions` | the regions of a peer that are mapped here |

mod cm;
mod cma;
mod conn_req;
mod connect_retry;
mod connection_table;
mod control;
mod doorbell;
mod endpoint;
#[cfg(all(any(test, feature = "fuzz"), not(loom)))]
pub mod fuzz;
mod held_slots;
mod loans;
mod mapped_regions;
mod memfd_region;
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
mod token;
mod tx_connection;
mod tx_settings;

use std::sync::Arc;

use fabric_core::flags::{Access, Caps, MsgOrder, OpFlags};
use fabric_core::info::{Hints, Info, Protocol};
use fabric_core::mr::RegionMemory;
use fabric_core::transport::{
    ConnectParams, ConnectionManagement, DomainConfig, DomainResources, EndpointContext,
    EngineContext, EpId, LoanAllocator, ModelSettings, OpenDomain, Transport, TransportDomain,
    TransportEndpoint, WaitSet,
};
use fabric_core::{Address, Result, SocketOptions};

use crate::sys::thread_lock::ConnectionLockMode;
use crate::transport::info_templates;

use endpoint::{ShmConfig, ShmEndpoint, UNEXPECTED_BYTES};
use loans::LoanPool;
pub use memfd_region::{Memfd, memfd_region};
#[cfg(all(feature = "microbench", not(loom)))]
pub(crate) use microbench::benchmarks;
use passive::ShmPassiveEndpoint;
use shared_memory::SharedMemory;
use socket::with_free_name;
use tx_settings::TxSettings;

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

    fn offers(&self, _: &Hints) -> Result<Vec<Info>> {
        let mut info = info_templates::reliable_info("shm", Caps::LOCAL_COMM);
        info.ep.protocol = Some(Protocol::Shm);
        info.ep.protocol_version = u32::from(control::VERSION);
        info.ep.max_msg_size = record::MAX_MSG_SIZE;
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
        Ok([connectionless, connected].concat())
    }

    fn alloc(&self, len: usize, access: Access) -> Result<Arc<dyn RegionMemory>> {
        Ok(Arc::new(SharedMemory::create(len, access)?))
    }
}

impl<E: EngineContext> OpenDomain<E, ConnectionLockMode> for ShmTransport {
    fn open_domain(
        &self,
        _info: &Info,
        resources: DomainResources<ConnectionLockMode>,
        config: &DomainConfig,
    ) -> Result<Box<dyn TransportDomain<E>>> {
        config.socket_options.check()?;
        Ok(Box::new(ShmDomain {
            lock_mode: resources.lock_mode,
            loan_pool: LoanPool::new(&resources.wait_set),
            wait_set: resources.wait_set,
            single_copy: config
                .single_copy_threshold
                .map(cma::SingleCopyPolicy::from_len),
            socket_options: config.socket_options.clone(),
            always_active: ModelSettings::of(config.message_model).polled_idle_connections(),
        }))
    }
}

/// A domain of the transport: what its endpoints share.
struct ShmDomain {
    /// Which threads lock the connections.
    lock_mode: ConnectionLockMode,
    wait_set: Arc<dyn WaitSet>,
    loan_pool: LoanPool,
    /// Which messages use single copy. The application sets it; otherwise it becomes `auto` when
    /// the first endpoint is opened.
    single_copy: Option<cma::SingleCopyPolicy>,
    /// Of these, the limits of incoming connections apply.
    socket_options: SocketOptions,
    /// How many connections of an endpoint, and endpoints, every pass polls even if they are idle.
    always_active: usize,
}

impl ShmDomain {
    /// Returns the configuration of a new endpoint. Sets the single-copy policy if it is not set.
    fn endpoint_config<'a>(&mut self, info: &'a Info) -> ShmConfig<'a> {
        let single_copy = *self
            .single_copy
            .get_or_insert_with(cma::SingleCopyPolicy::auto);
        let loan_pool = self.loan_pool.clone();
        ShmConfig {
            lock_mode: self.lock_mode.clone(),
            info,
            tx_settings: TxSettings {
                loan_pool,
                single_copy,
            },
            wait_set: self.wait_set.clone(),
            socket_options: self.socket_options.clone(),
            always_active: self.always_active,
        }
    }
}

impl<E: EngineContext> TransportDomain<E> for ShmDomain {
    fn open_endpoint(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<(Box<dyn TransportEndpoint<E>>, Address)> {
        let config = self.endpoint_config(info);
        let opened = with_free_name(at, |name| {
            ShmEndpoint::open(ctx, name.clone(), config.clone())
        })?;
        let name = opened.name().clone();
        Ok((Box::new(opened), name))
    }

    fn unexpected_budget(&self) -> usize {
        UNEXPECTED_BYTES
    }

    fn always_active(&self) -> usize {
        self.always_active
    }

    /// Idle endpoints are polled in turn: a thread that spins polls their sockets only now and
    /// then.
    fn polls_inactive_endpoints(&self) -> bool {
        true
    }

    fn connection_management(&mut self) -> Option<&mut dyn ConnectionManagement<E>> {
        Some(self)
    }

    fn loan_allocator(&self) -> Option<Arc<dyn LoanAllocator>> {
        Some(Arc::new(self.loan_pool.clone()))
    }

    fn describe(&self) -> String {
        "shm".into()
    }
}

impl<E: EngineContext> ConnectionManagement<E> for ShmDomain {
    fn listen(
        &mut self,
        ep: EpId,
        _info: &Info,
        at: Option<&Address>,
    ) -> Result<(Box<dyn TransportEndpoint<E>>, Address)> {
        let opened = with_free_name(at, |name| {
            ShmPassiveEndpoint::open(ep, name.clone(), self.wait_set.clone())
        })?;
        let name = opened.name().clone();
        Ok((Box::new(opened), name))
    }

    fn open_connected(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        info: &Info,
        params: ConnectParams<'_>,
    ) -> Result<Box<dyn TransportEndpoint<E>>> {
        let config = self.endpoint_config(info);
        let opened = ShmEndpoint::open_connected(ctx, config, params)?;
        // An accepted endpoint can receive now.
        ctx.request_rearm();
        Ok(Box::new(opened))
    }
}
