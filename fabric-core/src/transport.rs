//! The traits between the progress engine and a transport.
//!
//! A [`Transport`] describes its offers, and opens domains by [`OpenDomain`]. A [`TransportDomain`]
//! opens endpoints. A [`TransportEndpoint`] moves messages. A call that may deliver, complete or
//! report comes with an [`EndpointContext`]: the endpoint's receive queue, and the engine's
//! [`EngineContext`] with operations, address vectors and event queues. The traits have the type of
//! the engine as a parameter: the engine calls an endpoint dynamically, once per pass or operation,
//! and the endpoint calls the engine statically. What only some transports offer is in traits of
//! its own: [`ConnectionManagement`], [`ConnectionRequests`] and [`EndpointConnection`],
//! [`MulticastGroups`], [`SentLoans`].
//!
//! The engine owns the endpoints and makes all calls under the domain's lock. [`FastPath`] and
//! [`LoanAllocator`] run without that lock, so a transport that offers them has locks of its own.
//! The context records completions and counts under the lock; the engine wakes tasks, drops buffers
//! and emits trace events after it has released the lock.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::flags::Access;
use crate::info::{Hints, Info};
use crate::mr::RegionMemory;

mod config;
mod connect;
mod context;
mod domain;
mod endpoint;
mod endpoint_context;
mod fast_path;
mod message_model;
mod wait;

pub use crate::mr::RmaIov;
pub use crate::op::{EpId, OpKey, RemoteAccess, RmaIovId, TxOp};
pub use crate::rx::{Incarnation, MultiRecvSplit, PartialId, PlainRun, PlainSink, RxEngine};
pub use config::{DomainConfig, ThreadMode, WaitPolicy};
pub use connect::{
    ConnReq, ConnReqHandle, ConnectMode, ConnectParams, Connected, MAX_PRIVATE_DATA,
    ProcessCredentials,
};
pub use context::EngineContext;
pub use domain::{ConnectionManagement, TransportDomain};
pub use endpoint::{
    ConnectionRequests, Disconnect, EndpointConnection, MulticastGroups, SentLoans,
    TransportEndpoint, TrySend,
};
pub use endpoint_context::EndpointContext;
pub use fast_path::{BlockableFastPath, FastPath, FastPathResult, LoanAllocator};
pub use message_model::{Batching, MessageModel, ModelSettings};
pub use wait::{Interest, SocketIo, WaitSet, WaitToken};

/// The implementation of a provider: states its offers and opens its domains.
pub trait Transport: Send + Sync + 'static {
    /// Returns the short name, such as `shm`.
    fn name(&self) -> &'static str;

    /// Returns whether discovery offers the transport only to hints that name it, as with a
    /// transport for tests.
    fn is_offered_by_name_only(&self) -> bool {
        false
    }

    /// Returns the offers of the transport, best first. The engine checks against the offers all
    /// hints, and every info that a domain or an endpoint is opened from: no call requests more
    /// than one of the offers has. A name in `hints` may have options of the offer.
    ///
    /// # Errors
    /// Options that the transport refuses.
    fn offers(&self, hints: &Hints) -> Result<Vec<Info>>;

    /// Checks that domains of the transport have memory regions.
    ///
    /// # Errors
    /// [`NotSupported`](crate::Error::NotSupported) without remote memory access.
    fn check_has_regions(&self) -> Result<()> {
        Ok(())
    }

    /// Allocates `len` zeroed bytes that peers of a domain can access with these rights once the
    /// memory is registered in that domain.
    ///
    /// # Errors
    /// The error of the operating system; that of [`check_has_regions`](Self::check_has_regions).
    fn alloc(&self, len: usize, access: Access) -> Result<Arc<dyn RegionMemory>>;

    /// Checks that pages are behind `len` bytes at an address (`FI_MR_ALLOCATED`).
    ///
    /// # Errors
    /// [`Invalid`](crate::Error::Invalid) when a byte has no page.
    fn check_allocated(&self, address: u64, len: usize) -> Result<()> {
        let _ = (address, len);
        Ok(())
    }
}

/// What an engine gives to a domain of a transport. `L` says how locks exclude threads.
#[derive(Clone)]
pub struct DomainResources<L> {
    /// Watches the descriptors of the domain.
    pub wait_set: Arc<dyn WaitSet>,
    /// The mode of the locks of connections. The engine has derived it from the mode of the lock of
    /// the domain, under which these locks are taken too.
    pub lock_mode: L,
}

impl<L: fmt::Debug> fmt::Debug for DomainResources<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DomainResources")
            .field("lock_mode", &self.lock_mode)
            .finish_non_exhaustive()
    }
}

/// A transport whose domains run under engines of type `E`, with locks of mode `L`.
pub trait OpenDomain<E: EngineContext, L>: Transport {
    /// Opens a domain and allocates its resources. The engine has checked the socket options; a
    /// transport without sockets ignores them. The engine has checked the attributes against
    /// [`Transport::offers`]; the transport checks what no offer can express.
    ///
    /// # Errors
    /// The reason of the failure; all resources are released.
    fn open_domain(
        &self,
        info: &Info,
        resources: DomainResources<L>,
        config: &DomainConfig,
    ) -> Result<Box<dyn TransportDomain<E>>>;
}
