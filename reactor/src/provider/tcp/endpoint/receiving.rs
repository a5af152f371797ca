//! What an endpoint receives.

use fabric_core::buf::PooledBuf;
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::provider::{Host, OpKey};
use fabric_core::rx::RxContext;
use fabric_core::{Address, Error, FiAddr};

use super::{Endpoint, Stage};

impl Endpoint {
    pub(crate) fn post_recv(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        self.rx.post(host, op, spec);
        self.received(host);
    }

    pub(crate) fn post_multi_recv(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        self.rx.post_multi(host, op, spec);
        self.received(host);
    }

    pub(crate) fn receive_side(&mut self) -> &mut RxContext {
        &mut self.rx
    }

    /// After a receive was posted, or a message was discarded: one that was held back may be wanted now.
    pub(crate) fn received(&mut self, host: &mut dyn Host) {
        if self.rx.is_copying() {
            host.unsettled();
        }
        for at in 0..self.hot.len() {
            if let Some(Stage::Up(link)) = self.hot.get(at).and_then(|at| self.stages.get_mut(*at))
                && link.is_held()
                && link.pump(&mut self.scratch, &mut self.rx, host)
            {
                host.unsettled();
            }
        }
    }

    pub(crate) fn abandon_recv(&mut self, host: &mut dyn Host, op: OpKey) {
        self.rx.abandon(host, op);
        if self.rx.is_copying() {
            host.unsettled();
        }
    }

    pub(crate) fn put_back(&mut self, host: &mut dyn Host, envelope: Envelope, bytes: PooledBuf) {
        // The sender may have got a number since, or lost it.
        let source = self.links().find(|link| link.key == envelope.peer).and_then(|link| link.source);
        self.rx.put_back(host, envelope, source, bytes);
    }

    pub(crate) fn holds(&self, source: FiAddr) -> bool {
        self.rx.holds(source)
    }

    pub(crate) fn address_inserted(&mut self, host: &mut dyn Host, addr: FiAddr, address: &Address) {
        for (_, stage) in &mut self.stages {
            if let Stage::Up(link) = stage
                && self.peers[link.peer].name == *address
            {
                link.source = Some(addr);
                self.rx.resolve(host, link.key, addr);
            }
        }
        self.rx.inserted(host, addr, address);
        self.received(host);
    }

    pub(crate) fn address_removed(&mut self, host: &mut dyn Host, addr: FiAddr) {
        self.rx.forget(host, addr);
        for (_, stage) in &mut self.stages {
            if let Stage::Up(link) = stage {
                link.source = link.source.filter(|source| *source != addr);
            }
        }
        if let Some(at) = self.route(addr) {
            self.routes[addr.index()] = None;
            self.peers[at].addr = None;
            self.fail_sends(host, at, &Error::StaleAddress(addr));
        }
    }
}
