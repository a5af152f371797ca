//! Memory that peers reach: its keys, who counts what is done to it, and what peers have done.

use std::sync::Arc;

use fabric_core::buf::AnyBuf;
use fabric_core::completion::{Completion, OpKind, Outcome, Transfer};
use fabric_core::flags::Access;
use fabric_core::mr::RegionMemory;
use fabric_core::transport::{EpId, RemoteAccess};
use fabric_core::{Error, Result};

use crate::domain::DomainHandle;
use crate::domain_state::{CounterId, Counters, DomainState};
use crate::engine::EngineState;

impl EngineState {
    /// Memory that peers reach by a key.
    pub(crate) fn open_region(
        &mut self,
        memory: Arc<dyn RegionMemory>,
        access: Access,
        key: Option<u64>,
        by_address: bool,
    ) -> Result<u64> {
        let key = self
            .domain
            .regions
            .insert(memory, access, key, by_address)?;
        if let Some(region) = self.domain.regions.get(key) {
            self.transport.region_opened(key, region);
        }
        Ok(key)
    }

    /// Counts what peers do to a region from now on, with the remote ones of these counters; those
    /// of it that are not given stay as they are.
    pub(crate) fn bind_region_counters(&mut self, key: u64, counters: Counters) -> Result<()> {
        let bound = self
            .domain
            .region_counters
            .get(&key)
            .copied()
            .unwrap_or_default();
        let taken = |old: Option<CounterId>, new: Option<CounterId>| old.is_some() && new.is_some();
        if taken(bound.remote_read, counters.remote_read)
            || taken(bound.remote_write, counters.remote_write)
        {
            return Err(Error::Invalid {
                what: "counter of a region",
                why: "one is bound already".into(),
            });
        }
        let region = self
            .domain
            .regions
            .enable_rma_events(key)
            .ok_or(Error::Key {
                key,
                why: "is unknown",
            })?;
        self.transport.region_opened(key, region);
        let bound = Counters {
            remote_read: bound.remote_read.or(counters.remote_read),
            remote_write: bound.remote_write.or(counters.remote_write),
            ..bound
        };
        self.domain.region_counters.insert(key, bound);
        Ok(())
    }

    pub(crate) fn close_region(&mut self, key: u64) {
        self.domain.region_counters.remove(&key);
        if self.domain.regions.remove(key).is_some() {
            self.transport.region_closed(key);
        }
    }
}

impl DomainState {
    /// A peer has done something to memory here: counts it, and reports what came with data. False
    /// when the queue is full.
    pub(crate) fn report_remote_access(
        &mut self,
        ep: EpId,
        key: u64,
        deed: RemoteAccess,
        transfer: Transfer,
    ) -> bool {
        let Some(bound) = self.endpoints.get(ep.0).map(|ep| &ep.bindings) else {
            return true;
        };
        let counter = bound.counters.for_remote_access(deed);
        if transfer.data.is_some()
            && let Some(ring) = bound.rx_cq.and_then(|id| self.cqs.get_mut(id.0))
        {
            if !ring.reserve() {
                self.blocked_on_cq = true;
                return false;
            }
            let completion =
                Completion::new(0, OpKind::RemoteWrite, Outcome::ok(transfer), AnyBuf::None);
            let waiter = ring.push(completion);
            self.wake_waiter(waiter);
            self.on_message_consumed(transfer.source);
        }
        if let Some(ep) = self.endpoints.get_mut(ep.0) {
            ep.stats.record(OpKind::RemoteWrite, transfer.len);
        }
        let of_region = self
            .region_counters
            .get(&key)
            .and_then(|counters| counters.for_remote_access(deed));
        for counter in [counter, of_region].into_iter().flatten() {
            self.add_to_counter(counter, true);
        }
        true
    }
}

impl DomainHandle {
    /// Lets peers reach memory of the provider's by a key: the requested one, or a fresh one.
    /// `by_address`: they name places in it by their addresses here.
    ///
    /// # Errors
    /// [`Error::Key`] when the key is taken; [`Error::BadFlags`] without a right.
    pub fn open_region(
        &self,
        memory: Arc<dyn RegionMemory>,
        access: Access,
        key: Option<u64>,
        by_address: bool,
    ) -> Result<u64> {
        self.engine()
            .lock()
            .open_region(memory, access, key, by_address)
    }

    /// Counts what peers do to a region from now on, with the remote ones of these counters.
    ///
    /// # Errors
    /// [`Error::Invalid`] when one of them is bound already; [`Error::Key`].
    pub fn bind_region_counters(&self, key: u64, counters: Counters) -> Result<()> {
        self.engine().lock().bind_region_counters(key, counters)
    }

    /// Takes the key of a region back: peers reach it no longer.
    pub fn close_region(&self, key: u64) {
        self.engine().lock().close_region(key);
    }

    /// The owner of a region has given it back to its peers: what waits for it moves on.
    pub fn region_released(&self, key: u64) {
        self.engine().lock().transport.region_released(key);
        self.engine().progress();
    }
}
