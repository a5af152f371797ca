//! The endpoints of one domain as the engine sees them, and when the domain may sleep.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload, PooledBuf};
use crate::completion::Outcome;
use crate::error::{Error, Result};
use crate::flags::Caps;
use crate::info::Info;
use crate::matching::{Envelope, RecvSpec};
use crate::mr::{Reached, Region};
use crate::provider::{EpId, Host, OpKey, ProviderDomain, SendNow, SendSpec, WaitSet};
use crate::rx::{Receiving, RxContext};
use crate::stats::ProviderStats;
use crate::tree::Class;

use super::inbound::Inbound;
use super::net::{self, Node, Regions};
use super::outbound::Outbound;

/// A domain of the simulated network.
pub(super) struct SimDomain {
    wait: Arc<dyn WaitSet>,
    endpoints: BTreeMap<EpId, Endpoint>,
    regions: Regions,
    armed: bool,
}

#[derive(Debug)]
struct Endpoint {
    node: Node,
    inbound: Inbound,
    outbound: Outbound,
}

impl SimDomain {
    pub(super) fn new(wait: Arc<dyn WaitSet>) -> Self {
        Self {
            wait,
            endpoints: BTreeMap::new(),
            regions: Regions::default(),
            armed: false,
        }
    }

    fn endpoint(&mut self, ep: EpId) -> Result<&mut Endpoint> {
        self.endpoints
            .get_mut(&ep)
            .ok_or(Error::Closed(Class::Endpoint))
    }

    fn nodes(&self) -> impl Iterator<Item = Node> {
        self.endpoints.values().map(|endpoint| endpoint.node)
    }

    /// After a call that may have given a message to a receive: its sender may wait to hear of
    /// that. And after one that may have made a declined message welcome: no peer will ring for it.
    fn look_at_held(&mut self, ep: EpId) {
        if let Some(endpoint) = self.endpoints.get_mut(&ep) {
            endpoint.inbound.confirm();
        }
        if self.armed
            && self
                .endpoints
                .get(&ep)
                .is_some_and(|endpoint| endpoint.inbound.wants_held())
        {
            self.wait.kick();
        }
    }
}

impl ProviderDomain for SimDomain {
    fn open_endpoint(
        &mut self,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
        receiving: Receiving<'_>,
    ) -> Result<Address> {
        if self.endpoints.contains_key(&ep) {
            return Err(Error::Invalid {
                what: "endpoint id",
                why: format!("{} is open", ep.0),
            });
        }
        let heeds = info.caps.contains(Caps::RMA_EVENT);
        let reached = if info.caps.is_rma_target() {
            self.regions.clone()
        } else {
            Regions::default()
        };
        let (node, address) = net::open(at, (self.wait.clone(), self.armed), (reached, heeds))?;
        let (inbound, outbound) = (Inbound::new(ep, node, receiving), Outbound::new(ep, node));
        self.endpoints.insert(
            ep,
            Endpoint {
                node,
                inbound,
                outbound,
            },
        );
        Ok(address)
    }

    fn close_endpoint(&mut self, host: &mut dyn Host, ep: EpId) {
        let Some(endpoint) = self.endpoints.remove(&ep) else {
            return;
        };
        net::close(endpoint.node);
        endpoint.outbound.close(host);
        endpoint.inbound.close(host);
    }

    fn send_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow> {
        self.endpoint(ep)?.outbound.send_now(host, spec, payload)
    }

    fn read_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        into: &mut AnyBuf,
    ) -> Result<SendNow> {
        self.endpoint(ep)?.outbound.read_now(host, spec, into)
    }

    fn atomic_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<SendNow> {
        self.endpoint(ep)?
            .outbound
            .atomic_now(host, spec, operands, result)
    }

    fn reach(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<Reached>> {
        self.endpoint(ep)?.outbound.reach(host, peer, key)
    }

    fn region_opened(&mut self, key: u64, region: &Region) {
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

    fn region_free(&mut self, _key: u64) {
        net::wake_all();
    }

    fn queue_send(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        op: OpKey,
        spec: &SendSpec,
    ) -> Result<()> {
        self.endpoint(ep)?.outbound.queue(host, op, spec)
    }

    fn post_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.endpoint(ep) {
            Ok(endpoint) => endpoint.inbound.rx.own.post(host, op, spec),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
        self.look_at_held(ep);
    }

    fn post_multi_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.endpoint(ep) {
            Ok(endpoint) => endpoint.inbound.rx.own.post_multi(host, op, spec),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
        // Messages may be left to be given to it.
        host.unsettled();
        self.look_at_held(ep);
    }

    fn receive_side(&mut self, ep: EpId) -> Option<&mut RxContext> {
        self.endpoint(ep)
            .ok()
            .map(|endpoint| &mut endpoint.inbound.rx.own)
    }

    fn receive_side_changed(&mut self, host: &mut dyn Host, ep: EpId) {
        host.unsettled();
        self.look_at_held(ep);
    }

    fn cancel(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) -> bool {
        let Ok(endpoint) = self.endpoint(ep) else {
            return false;
        };
        if endpoint.outbound.cancel(op) {
            // What waited behind it may go now.
            endpoint.outbound.flush(host);
            host.unsettled();
            return true;
        }
        let canceled = endpoint.inbound.rx.own.cancel(host, op);
        endpoint.inbound.confirm();
        canceled
    }

    fn abandon_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.inbound.rx.own.abandon(host, op);
            endpoint.inbound.confirm();
        }
    }

    fn put_back(&mut self, host: &mut dyn Host, ep: EpId, envelope: Envelope, bytes: PooledBuf) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.inbound.put_back(host, envelope, bytes);
        }
    }

    fn address_inserted(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr, address: &Address) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.inbound.inserted(host, addr, address);
        }
        self.look_at_held(ep);
    }

    fn address_removed(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.inbound.removed(host, addr);
        }
        self.look_at_held(ep);
    }

    fn holds(&self, ep: EpId, source: FiAddr) -> bool {
        self.endpoints
            .get(&ep)
            .is_some_and(|endpoint| endpoint.inbound.rx.own.holds(source))
    }

    fn progress(&mut self, host: &mut dyn Host) -> bool {
        let (mut moved, mut delayed) = (false, false);
        for endpoint in self.endpoints.values_mut() {
            moved |= endpoint.outbound.flush(host);
            let pass = endpoint.inbound.pass(host);
            moved |= pass.moved;
            delayed |= pass.delayed;
        }
        // Nobody rings when a delay has run down. Whoever was woken by the arrival of a packet must
        // not go back to sleep before it is due, so to an armed domain a delay is news.
        moved || (self.armed && delayed)
    }

    fn ready(&mut self, _host: &mut dyn Host, _token: u64) {}

    fn arm(&mut self) -> bool {
        net::arm(self.nodes(), true);
        let news = self.endpoints.values().any(|endpoint| {
            net::has_news(endpoint.node)
                || endpoint.inbound.rx.own.has_chores()
                || endpoint.inbound.wants_held()
                || endpoint.outbound.could_flush()
        });
        self.armed = !news;
        if news {
            net::arm(self.nodes(), false);
        }
        self.armed
    }

    fn disarm(&mut self) {
        self.armed = false;
        net::arm(self.nodes(), false);
    }

    fn stats(&self, ep: EpId) -> ProviderStats {
        let Some(endpoint) = self.endpoints.get(&ep) else {
            return ProviderStats::default();
        };
        let (peers, unexpected) = (
            endpoint.inbound.peers(),
            endpoint.inbound.rx.own.unexpected(),
        );
        ProviderStats {
            peers,
            unexpected,
            ..ProviderStats::default()
        }
    }

    fn describe(&self) -> String {
        let (peers, sends) = self
            .endpoints
            .values()
            .fold((0, 0), |(peers, sends), endpoint| {
                (
                    peers + endpoint.inbound.peers(),
                    sends + endpoint.outbound.waiting(),
                )
            });
        format!(
            "sim: {} endpoints, {peers} peers, {sends} sends waiting",
            self.endpoints.len()
        )
    }
}

impl Drop for SimDomain {
    fn drop(&mut self) {
        self.nodes().for_each(net::close);
    }
}
