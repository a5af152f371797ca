//! Memory regions: keys, counters of remote accesses, and reports of remote accesses.

use std::sync::Arc;

use fabric_core::Result;
use fabric_core::buf::AnyBuf;
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::flags::Access;
use fabric_core::mr::RegionMemory;
use fabric_core::transport::{EpId, RemoteAccess, WaitSet};

use super::domain::DomainHandle;
use super::state::bindings::CounterBindings;
use super::state::domain_state::DomainState;

impl DomainState {
    /// Counts a remote access by a peer, and reports an access with immediate data
    /// (`FI_REMOTE_CQ_DATA`) to the completion queue. Returns false when the queue is full.
    pub(crate) fn report_remote_access(
        &mut self,
        ep: EpId,
        key: u64,
        access: RemoteAccess,
        transfer: Transfer,
    ) -> bool {
        let Some(bindings) = self.endpoints.get(ep.0).map(|ep| &ep.bindings) else {
            return true;
        };
        let counter = bindings.counters.for_remote_access(access);
        if transfer.data.is_some()
            && let Some(queue) = bindings.rx_cq.and_then(|id| self.cqs.get_mut(id.0))
        {
            if !queue.reserve() {
                self.pending_work.block_on_cq();
                return false;
            }
            let (kind, outcome) = (OpKind::RemoteWrite, Outcome::ok(transfer));
            let waiter = queue.push(0, kind, outcome, AnyBuf::None);
            self.deferred.wake_waiter(waiter);
            self.on_message_consumed(transfer.source);
        }
        if let Some(ep) = self.endpoints.get_mut(ep.0) {
            // This kind stands for all remote accesses: `EndpointStats::remote_ops` counts them.
            ep.stats.record(OpKind::RemoteWrite, transfer.len);
        }
        let region_counter = self.regions.counter(key, access);
        for counter in [counter, region_counter].into_iter().flatten() {
            self.add_to_counter(counter, true);
        }
        true
    }
}

impl DomainHandle {
    /// Registers memory with the transport, under the requested key or a generated one
    /// (`fi_mr_reg`). With `by_address`, peers address it by its virtual addresses instead of
    /// offsets.
    ///
    /// # Errors
    /// [`Error::Key`](fabric_core::Error::Key) when the key is in use;
    /// [`Error::BadFlags`](fabric_core::Error::BadFlags) without an access right.
    pub fn open_region(
        &self,
        memory: Arc<dyn RegionMemory>,
        access: Access,
        key: Option<u64>,
        by_address: bool,
    ) -> Result<u64> {
        let locked = &mut *self.engine().lock();
        let regions = &mut locked.domain.regions;
        regions.insert(memory, access, key, by_address)
    }

    /// Binds counters of remote accesses to a region (`fi_mr_bind`): accesses are counted from now
    /// on.
    ///
    /// # Errors
    /// [`Error::Invalid`](fabric_core::Error::Invalid) when a counter for the same access is bound
    /// already; [`Error::Key`](fabric_core::Error::Key).
    pub fn bind_region_counters(&self, key: u64, counters: CounterBindings) -> Result<()> {
        let locked = &mut *self.engine().lock();
        locked.domain.regions.bind_counters(key, counters)
    }

    /// Closes a region (`fi_close`): its key is no longer valid for peers.
    pub fn close_region(&self, key: u64) {
        let mut locked = self.engine().lock();
        if locked.domain.regions.remove(key) {
            // A response to a peer may wait for the region.
            self.engine().wait_set.wake();
        }
    }

    /// Resumes remote operations that waited because the region was locked by its owner.
    pub fn region_unlocked(&self) {
        self.engine().progress();
    }
}
