//! What is received, and who is known to have sent it.

use fabric_core::buf::PooledBuf;
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::provider::{Host, OpKey};
use fabric_core::rx::RxContext;
use fabric_core::{Address, Error, FiAddr};

use super::super::handshake::Word;
use super::Endpoint;
use super::ends::end;

impl Endpoint {
    #[inline(always)] // on the way of a small message
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

    /// After a receive was posted, or a message was discarded; or copied, where the receive side is
    /// shared.
    pub(crate) fn receive_side_changed(&mut self, host: &mut dyn Host) {
        if self.rx.is_shared() {
            self.tell_of_shared(host);
        }
        self.confirm();
        if self.rx.own.has_chores() {
            // Its sender waits, whoever waits here.
            host.goes_on();
            host.unsettled();
        }
        if self.held {
            self.pump_held(host);
        }
    }

    pub(crate) fn cancel(&mut self, host: &mut dyn Host, op: OpKey) -> bool {
        if self.rx.own.cancel(host, op) {
            return true;
        }
        let cancels = |at: &usize| {
            self.lanes
                .lock(*at)
                .is_some_and(|mut outgoing| outgoing.cancel(op))
        };
        let Some(at) = self.busy.iter().copied().find(cancels) else {
            return false;
        };
        // What waited behind it may go now.
        self.pump_one(host, at);
        host.unsettled();
        true
    }

    pub(crate) fn abandon_recv(&mut self, host: &mut dyn Host, op: OpKey) {
        self.rx.own.abandon(host, op);
    }

    pub(crate) fn put_back(&mut self, host: &mut dyn Host, envelope: Envelope, bytes: PooledBuf) {
        // The sender may have got a number since, or lost it.
        let mut peers = self.callers.peers();
        let peer = peers.find(|peer| peer.key == envelope.peer);
        let source = peer.and_then(|peer| peer.source);
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
        for peer in self.callers.peers_mut().filter(|peer| {
            peer.peer == *address
                && peer.source.is_none()
                && bound.is_none_or(|bound| bound == peer.identity.into())
        }) {
            peer.source = Some(addr);
            self.rx.own.resolve(host, peer.key, addr);
        }
        if let Some(mut outgoing) = self.connection(addr) {
            // The program may have made the handle its own.
            outgoing.expected = bound;
        }
        self.rx.own.inserted(host, addr, address);
    }

    pub(crate) fn address_removed(&mut self, host: &mut dyn Host, addr: FiAddr) {
        self.rx.own.forget(host, addr);
        for peer in self.callers.peers_mut() {
            peer.source = peer.source.filter(|source| *source != addr);
        }
        let at = addr.index();
        if self.connection(addr).is_some()
            && let Some(mut outgoing) = self.lanes.remove(at)
        {
            self.dialled.retain(|dialled| *dialled != at);
            self.busy.retain(|busy| *busy != at);
            outgoing.farewell(Word::Leave);
            end(&mut outgoing, self.id, host, &Error::StaleAddress(addr));
            self.done += outgoing.done();
        }
        // A receive that fails lets others have what was held back for it.
        self.receive_side_changed(host);
    }
}
