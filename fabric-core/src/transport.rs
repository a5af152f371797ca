//! The traits between the progress engine and a provider.
//!
//! A [`Transport`] says what it offers and opens domains. A [`TransportDomain`] moves messages; every
//! call comes with a [`Host`], through which it reaches operations, address vectors and event
//! queues. All calls on a domain happen under one lock of the engine, so a provider needs none of
//! its own, and no user code runs inside a call: completions are only noted by the host and
//! reported after the lock is gone.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::flags::Access;
use crate::info::Info;
use crate::mr::RegionMemory;

mod connect;
mod context;
mod domain;
mod fast_path;
mod op;
mod wait;

pub use connect::{
    ConnReq, ConnReqHandle, ConnectMode, ConnectParams, Connected, MAX_PRIVATE_DATA,
};
pub use context::{EngineContext, Incarnation, MultiRecvSplit};
pub use domain::{TransportDomain, TrySend};
pub use fast_path::{FastPath, FastPathResult, LoanAllocator};
pub use op::{EpId, OpKey, RemoteAccess, RmaIov, RmaIovId, TxOp};
pub use wait::{Interest, SocketIo, WaitSet};

/// A kind of fabric.
pub trait Transport: Send + Sync + 'static {
    /// The short name, as in `shm`.
    fn name(&self) -> &'static str;

    /// What it offers, best first. Hints are held against these, and so is every info that a domain
    /// or an endpoint is opened from: a provider is not asked for more than one of its offers has.
    fn offers(&self) -> Vec<Info>;

    /// Memory of this many bytes, zeroed, that peers of a domain can reach with these rights once
    /// it has a key there.
    ///
    /// # Errors
    /// What the operating system refuses.
    fn alloc(&self, len: usize, access: Access) -> Result<Arc<dyn RegionMemory>> {
        let _ = (len, access);
        Err(Error::NotSupported("memory that peers reach"))
    }

    /// Opens a domain: allocates. The attributes were held against [`Transport::offers`] before;
    /// what no offer can express is checked here.
    ///
    /// # Errors
    /// Whatever prevents it; nothing is left behind.
    fn open_domain(&self, info: &Info, wait: Arc<dyn WaitSet>) -> Result<Box<dyn TransportDomain>>;
}
