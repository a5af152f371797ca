//! What an endpoint receives.

use fabric_core::buf::PooledBuf;
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::provider::{Host, OpKey};
use fabric_core::rx::RxContext;
use fabric_core::{Address, Error, FiAddr};

use super::{Endpoint, Stage};

impl Endpoint {
    pub(crate) fn post_recv(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        self.rx.own.post(host, op, spec);
        self.receive_side_changed(host);
    }

    pub(crate) fn post_multi_recv(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        self.rx.own.post_multi(host, op, spec);
        self.receive_side_changed(host);
    }

    pub(crate) fn receive_side(&mut self) -> &mut RxContext {
        &mut self.rx.own
    }

    /// After a receive was posted, or a message was discarded: one that was held back may be wanted
    /// now.
    pub(crate) fn receive_side_changed(&mut self, host: &mut dyn Host) {
        if self.rx.own.has_chores() {
            host.unsettled();
        }
        self.end_receives(host);
        for at in 0..self.hot.len() {
            if let Some(Stage::Up(link)) = self.hot.get(at).and_then(|at| self.stages.get_mut(*at))
                && link.is_held()
                && self.rx.with(|rx| link.pump(&mut self.scratch, rx, host))
            {
                host.unsettled();
            }
        }
    }

    pub(crate) fn abandon_recv(&mut self, host: &mut dyn Host, op: OpKey) {
        self.rx.own.abandon(host, op);
    }

    pub(crate) fn put_back(&mut self, host: &mut dyn Host, envelope: Envelope, bytes: PooledBuf) {
        // The sender may have got a number since, or lost it.
        let source = self
            .links()
            .find(|link| link.key == envelope.peer)
            .and_then(|link| link.source);
        self.rx.own.put_back(host, envelope, source, bytes);
    }

    pub(crate) fn holds(&self, source: FiAddr) -> bool {
        self.rx.own.holds(source)
    }

    pub(crate) fn address_inserted(
        &mut self,
        host: &mut dyn Host,
        addr: FiAddr,
        address: &Address,
    ) {
        let bound = host.incarnation_of(self.id, addr);
        for (_, stage) in &mut self.stages {
            if let Stage::Up(link) = stage
                && self.peers[link.peer].name == *address
                && link.source.is_none()
                && (bound.is_none() || bound == link.incarnation())
            {
                link.source = Some(addr);
                self.rx.own.resolve(host, link.key, addr);
            }
        }
        self.rx.own.inserted(host, addr, address);
        self.receive_side_changed(host);
    }

    pub(crate) fn address_removed(&mut self, host: &mut dyn Host, addr: FiAddr) {
        self.rx.own.forget(host, addr);
        for (_, stage) in &mut self.stages {
            if let Stage::Up(link) = stage {
                link.source = link.source.filter(|source| *source != addr);
            }
        }
        if let Some(at) = self.route(addr) {
            self.routes[addr.index()] = None;
            self.peers[at].addr = None;
            let stale = Error::StaleAddress(addr);
            self.fail_sends(host, at, &stale);
            self.hang_up(at);
            for (_, stage) in &mut self.stages {
                if let Stage::Up(link) = stage
                    && link.peer == at
                {
                    link.disown_asked(host, &stale);
                }
            }
            self.forget(at);
        }
    }
}
