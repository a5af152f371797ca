//! The transport's part of a domain: its endpoints, and when the domain may sleep.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload};
use crate::error::{Error, Result};
use crate::flags::Caps;
use crate::info::Info;
use crate::matching::PeerKey;
use crate::mr::{DirectRegion, Region};
use crate::stats::TransportStats;
use crate::transport::{EngineContext, EpId, OpKey, TransportDomain, TrySend, TxOp, WaitSet};
use crate::tree::Class;

use super::inbound::{Inbound, UNEXPECTED_BUDGET};
use super::net::{self, NodeId, RegionMap};
use super::outbound::Outbound;

/// A domain of the simulated network.
pub(super) struct SimDomain {
    wait: Arc<dyn WaitSet>,
    endpoints: BTreeMap<EpId, SimEndpoint>,
    regions: RegionMap,
    /// The engine sleeps or is about to: peers wake the wait set.
    armed: bool,
}

/// An endpoint of a domain.
#[derive(Debug)]
struct SimEndpoint {
    node: NodeId,
    inbound: Inbound,
    outbound: Outbound,
}

impl SimDomain {
    pub(super) fn new(wait: Arc<dyn WaitSet>) -> Self {
        Self {
            wait,
            endpoints: BTreeMap::new(),
            regions: RegionMap::default(),
            armed: false,
        }
    }

    fn endpoint(&mut self, ep: EpId) -> Result<&mut SimEndpoint> {
        self.endpoints
            .get_mut(&ep)
            .ok_or(Error::Closed(Class::Endpoint))
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.endpoints.values().map(|endpoint| endpoint.node)
    }

    /// Sends the acks that a change of the receive queue has queued, and wakes the engine if the
    /// change has made a declined message acceptable, for which no peer rings the doorbell.
    fn after_rx_change(&self, engine: &mut impl EngineContext, ep: EpId) {
        let Some(endpoint) = self.endpoints.get(&ep) else {
            return;
        };
        endpoint.inbound.send_acks(engine);
        if self.armed && endpoint.inbound.would_accept_declined(engine) {
            self.wait.wake();
        }
    }
}

impl<E: EngineContext> TransportDomain<E> for SimDomain {
    fn open_endpoint(
        &mut self,
        _engine: &mut E,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<Address> {
        if self.endpoints.contains_key(&ep) {
            return Err(Error::Invalid {
                what: "endpoint id",
                why: format!("{} is open", ep.0),
            });
        }
        let rma_events = info.caps.contains(Caps::RMA_EVENT);
        let regions = if info.caps.is_rma_target() {
            self.regions.clone()
        } else {
            RegionMap::default()
        };
        let (node, address) =
            net::open(at, (self.wait.clone(), self.armed), (regions, rma_events))?;
        let (inbound, outbound) = (Inbound::new(ep, node), Outbound::new(ep, node));
        self.endpoints.insert(
            ep,
            SimEndpoint {
                node,
                inbound,
                outbound,
            },
        );
        Ok(address)
    }

    fn close_endpoint(&mut self, engine: &mut E, ep: EpId) {
        let Some(endpoint) = self.endpoints.remove(&ep) else {
            return;
        };
        net::close(endpoint.node);
        endpoint.outbound.close(engine);
        endpoint.inbound.close(engine);
    }

    fn try_send(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        self.endpoint(ep)?.outbound.try_send(engine, tx_op, payload)
    }

    fn try_read(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        into: &mut AnyBuf,
    ) -> Result<TrySend> {
        self.endpoint(ep)?.outbound.try_read(engine, tx_op, into)
    }

    fn try_atomic(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        self.endpoint(ep)?
            .outbound
            .try_atomic(engine, tx_op, operands, result)
    }

    fn direct_region(
        &mut self,
        engine: &mut E,
        ep: EpId,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        self.endpoint(ep)?.outbound.direct_region(engine, peer, key)
    }

    fn region_changed(&mut self, key: u64, region: &Region) {
        self.regions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, region.clone());
    }

    fn region_closed(&mut self, key: u64) {
        self.regions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key);
    }

    fn region_unlocked(&mut self, _key: u64) {
        net::wake_all();
    }

    fn queue_send(&mut self, engine: &mut E, ep: EpId, op: OpKey, tx_op: &TxOp) -> Result<()> {
        self.endpoint(ep)?.outbound.queue(engine, op, tx_op)
    }

    fn unexpected_budget(&self) -> usize {
        UNEXPECTED_BUDGET
    }

    fn on_rx_queue_changed(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        self.endpoint(ep)?;
        // Unexpected messages may be left for further passes.
        engine.request_rearm();
        self.after_rx_change(engine, ep);
        Ok(())
    }

    fn cancel(&mut self, engine: &mut E, ep: EpId, op: OpKey) -> bool {
        let Ok(endpoint) = self.endpoint(ep) else {
            return false;
        };
        if endpoint.outbound.cancel(op) {
            // Operations queued behind the canceled one may be sent now.
            endpoint.outbound.flush(engine);
            engine.request_rearm();
            return true;
        }
        false
    }

    fn source_of(&self, ep: EpId, peer: PeerKey) -> Option<FiAddr> {
        self.endpoints.get(&ep)?.inbound.source_of(peer)
    }

    fn address_inserted(&mut self, engine: &mut E, ep: EpId, addr: FiAddr, address: &Address) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.inbound.address_inserted(engine, addr, address);
        }
        self.after_rx_change(engine, ep);
    }

    fn address_removed(&mut self, engine: &mut E, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.inbound.address_removed(addr);
        }
        self.after_rx_change(engine, ep);
    }

    fn progress(&mut self, engine: &mut E) -> bool {
        let (mut moved, mut delayed) = (false, false);
        for endpoint in self.endpoints.values_mut() {
            moved |= endpoint.outbound.flush(engine);
            let pass = endpoint.inbound.pass(engine);
            moved |= pass.moved;
            delayed |= pass.delayed;
        }
        // No doorbell rings when a packet becomes due. A thread that was woken by the arrival of a
        // packet must not sleep before the packet is due, so in an armed domain a delayed packet
        // counts as progress.
        moved || (self.armed && delayed)
    }

    fn ready(&mut self, _engine: &mut E, _token: u64) {}

    fn arm(&mut self, engine: &mut E) -> bool {
        net::arm(self.nodes(), true);
        let has_work = self.endpoints.values().any(|endpoint| {
            net::has_pending(endpoint.node)
                || engine.with_rx(endpoint.inbound.ep(), |rx, _| rx.has_work())
                || endpoint.inbound.would_accept_declined(engine)
                || endpoint.outbound.can_flush()
        });
        self.armed = !has_work;
        if has_work {
            net::arm(self.nodes(), false);
        }
        self.armed
    }

    fn disarm(&mut self) {
        self.armed = false;
        net::arm(self.nodes(), false);
    }

    fn stats(&self, ep: EpId) -> TransportStats {
        let Some(endpoint) = self.endpoints.get(&ep) else {
            return TransportStats::default();
        };
        TransportStats {
            peers: endpoint.inbound.peer_count(),
            ..TransportStats::default()
        }
    }

    fn describe(&self) -> String {
        let (peers, sends) = self
            .endpoints
            .values()
            .fold((0, 0), |(peers, sends), endpoint| {
                (
                    peers + endpoint.inbound.peer_count(),
                    sends + endpoint.outbound.queued_sends(),
                )
            });
        format!(
            "sim: {} endpoints, {peers} peers, {sends} queued sends",
            self.endpoints.len()
        )
    }
}

impl Drop for SimDomain {
    fn drop(&mut self) {
        self.nodes().for_each(net::close);
    }
}
