//! What is sent, to whom, and the connections for that.

use std::sync::Arc;

use fabric_core::buf::Payload;
use fabric_core::event::DownReason;
use fabric_core::mr::Reached;
use fabric_core::provider::{Express, Host, OpKey, SendNow, SendSpec};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result, Scheme};

use super::super::lanes::Connection;
use super::super::outgoing::{self, Outgoing, Parting, Push};
use super::{Endpoint, Token};

impl Endpoint {
    pub(crate) fn send_now(
        &mut self,
        host: &mut dyn Host,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow> {
        self.at_once(host, spec, |outgoing| outgoing.send_now(spec, payload))
    }

    /// Does something at a peer, at once or not at all.
    #[inline]
    pub(crate) fn at_once(
        &mut self,
        host: &mut dyn Host,
        spec: &SendSpec,
        act: impl FnOnce(&mut Outgoing) -> Result<Push>,
    ) -> Result<SendNow> {
        let at = spec.peer.index();
        let Some(mut outgoing) = self.connection(spec.peer) else {
            return host.address_of(self.id, spec.peer).map(|_| SendNow::Queue);
        };
        let pushed = act(&mut outgoing)?;
        drop(outgoing);
        match pushed {
            Push::Done => {
                if spec.more && !self.silent.contains(&at) {
                    self.silent.push(at);
                }
                Ok(SendNow::Done)
            }
            Push::NoRoom => Ok(SendNow::Queue),
            Push::Closed => Err(self.outgoing_closed(host, at)),
        }
    }

    /// A region of a peer's that has been accessed.
    pub(crate) fn reach(&mut self, peer: FiAddr, key: u64) -> Result<Option<Reached>> {
        self.connection(peer)
            .map_or(Ok(None), |mut outgoing| outgoing.reach(key))
    }

    pub(crate) fn queue_send(
        &mut self,
        host: &mut dyn Host,
        op: OpKey,
        spec: &SendSpec,
    ) -> Result<()> {
        let at = spec.peer.index();
        if self.connection(spec.peer).is_none() {
            let peer = host.address_of(self.id, spec.peer)?;
            if peer.scheme() != Scheme::Shm {
                return Err(Error::WrongScheme {
                    provider: "shm",
                    address: peer,
                });
            }
            self.lanes
                .insert(at, Outgoing::new(peer, spec.peer, self.means.clone()));
            self.dialled.push(at);
        }
        self.dial(host, at)?;
        if let Some(mut outgoing) = self.lanes.lock(at) {
            outgoing.queue(op, outgoing::at_first(spec, host));
        }
        if !self.busy.contains(&at) {
            self.busy.push(at);
        }
        self.pump_one(host, at);
        if !self.is_idle(at) {
            host.unsettled();
        }
        Ok(())
    }

    /// Wakes the peers that were sent something with `more`.
    pub(crate) fn flush(&mut self, host: &mut dyn Host) -> Result<()> {
        let mut flushed = Ok(());
        while let Some(at) = self.silent.pop() {
            let pushed = self.lanes.lock(at).map(|mut outgoing| outgoing.flush());
            if pushed == Some(Push::Closed) {
                flushed = Err(self.outgoing_closed(host, at));
            }
        }
        flushed
    }

    /// Takes back what peers have given back of what was lent to them.
    pub(crate) fn collect(&mut self) {
        self.each(Outgoing::collect);
    }

    fn dial(&mut self, host: &dyn Host, at: usize) -> Result<()> {
        let token = Token::Outgoing(at as u32).pack(self.id);
        let Some(mut outgoing) = self.lanes.lock(at) else {
            return Ok(());
        };
        if outgoing.is_gone() {
            host.address_of(self.id, outgoing.addr)?;
            outgoing.expected = host.incarnation_of(self.id, outgoing.addr);
        }
        outgoing.dial(&self.name, self.here.incarnation, token, &self.wait)
    }

    /// The endpoint at the other end has closed, as its ring says; the sockets will say so too.
    #[cold]
    pub(super) fn outgoing_closed(&mut self, host: &mut dyn Host, at: usize) -> Error {
        let Some(outgoing) = self.lanes.lock(at) else {
            return Error::Closed(Class::Endpoint);
        };
        let error = Error::PeerGone(outgoing.peer.clone());
        let identity = outgoing.identity();
        drop(outgoing);
        self.outgoing_ended(
            host,
            at,
            Parting {
                error: error.clone(),
                reason: DownReason::Closed,
                identity,
            },
        );
        error
    }

    /// The connection to this peer, if one was begun.
    #[inline]
    pub(super) fn connection(&self, addr: FiAddr) -> Option<Connection<'_>> {
        self.lanes
            .lock(addr.index())
            .filter(|outgoing| outgoing.addr == addr)
    }

    /// Shows every connection to a peer.
    pub(super) fn each(&self, mut act: impl FnMut(&mut Outgoing)) {
        self.dialled
            .iter()
            .filter_map(|&at| self.lanes.lock(at))
            .for_each(|mut outgoing| act(&mut outgoing));
    }

    pub(super) fn is_idle(&self, at: usize) -> bool {
        self.lanes
            .lock(at)
            .is_none_or(|outgoing| outgoing.is_idle())
    }

    /// The way that does not need the domain.
    pub(crate) fn express(&self) -> Arc<dyn Express> {
        self.lanes.clone()
    }
}
