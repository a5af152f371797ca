//! What an endpoint sends, and to whom.

use std::net::SocketAddr;
use std::time::Instant;

use fabric_core::buf::Payload;
use fabric_core::completion::{CompletionLevel, OpKind, Outcome, Transfer};
use fabric_core::provider::{Host, OpKey, SendNow, SendSpec};
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use super::super::link::{Link, SendResult, Sending};
use super::{Endpoint, PATIENCE, Peer, Role, Stage};

impl Endpoint {
    pub(crate) fn send_now(
        &mut self,
        host: &mut dyn Host,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow> {
        let Some(at) = self.route(spec.peer) else {
            return host.address_of(self.id, spec.peer).map(|_| SendNow::Queue);
        };
        let peer = &self.peers[at];
        let is_plain = spec.kind == OpKind::Send && !spec.level.is_confirmed();
        let Some(at) = peer.link.filter(|_| is_plain && peer.sends.is_empty()) else {
            return Ok(SendNow::Queue);
        };
        let Some(Stage::Up(link)) = self.stages.get_mut(at) else {
            return Ok(SendNow::Queue);
        };
        link.check(spec)?;
        let sent = link.send_now(host, spec, payload);
        // The next pass sends what was collected, and has what follows sent at once again.
        if link.is_bursting() || !link.is_flushed() || link.is_deaf() {
            self.heat(at);
        }
        Ok(match sent {
            SendResult::Written => SendNow::Done,
            SendResult::Collected => SendNow::Collected,
            SendResult::No => SendNow::Queue,
        })
    }

    /// A connection is looked at from now on, until there is no more news.
    pub(super) fn heat(&mut self, at: usize) {
        if let Some(Stage::Up(link)) = self.stages.get_mut(at)
            && !std::mem::replace(&mut link.is_looked_at, true)
        {
            self.hot.push(at);
        }
    }

    /// This is the operation of the message that was collected last for its peer.
    pub(crate) fn collected(
        &mut self,
        host: &mut dyn Host,
        op: OpKey,
        spec: &SendSpec,
        len: usize,
    ) {
        let link = self.route(spec.peer).and_then(|at| self.peers[at].link);
        match link.and_then(|at| self.stages.get_mut(at)) {
            Some(Stage::Up(link)) => link.collected(op, len, spec.tag),
            _ => host.complete(op, Outcome::failed(Error::StaleAddress(spec.peer))),
        }
    }

    /// Sends what was collected.
    pub(crate) fn flush(&mut self, host: &mut dyn Host) {
        // Whatever has something pending is looked at anyway.
        for at in &self.hot {
            if let Some(Stage::Up(link)) = self.stages.get_mut(*at)
                && !link.is_flushed()
            {
                link.write(host);
            }
        }
    }

    /// Messages that were collected for a connection leave now, or end with this error.
    pub(super) fn end_unwritten(&mut self, host: &mut dyn Host, at: usize, error: &Error) {
        if let Some(Stage::Up(link)) = self.stages.get_mut(at) {
            if !link.is_flushed() {
                link.write(host);
            }
            link.fail_unwritten(host, error);
        }
    }

    pub(crate) fn queue_send(
        &mut self,
        host: &mut dyn Host,
        op: OpKey,
        spec: &SendSpec,
    ) -> Result<()> {
        if spec.kind == OpKind::Send && spec.level == CompletionLevel::Matched {
            return Err(Error::NotSupported(
                "FI_MATCH_COMPLETE over tcp, whose peers do not say that",
            ));
        }
        let at = match self.route(spec.peer) {
            Some(at) => at,
            None => {
                let name = host.address_of(self.id, spec.peer)?;
                let Some(to) = name.socket() else {
                    return Err(Error::WrongScheme {
                        provider: "tcp",
                        address: name,
                    });
                };
                let at = self.peer_at(to)?;
                if let Some(Stage::Up(link)) =
                    self.peers[at].link.and_then(|link| self.stages.get(link))
                    && !link.is_for(spec.peer, self.id, host)
                {
                    return Err(Error::PeerGone(name));
                }
                self.peers[at].addr = Some(spec.peer);
                let index = spec.peer.index();
                if index >= self.routes.len() {
                    self.routes.resize(index + 1, None);
                }
                self.routes[index] = Some(at);
                at
            }
        };
        if self.peers[at].link.is_none() {
            if matches!(self.role, Role::Single(_)) {
                return Err(self.over());
            }
            // The peer may be gone, and another one at its address.
            host.address_of(self.id, spec.peer)?;
        }
        if let Some(Stage::Up(link)) = self.peers[at].link.and_then(|link| self.stages.get(link)) {
            link.check(spec)?;
        }
        self.peers[at].sends.push_back(Sending {
            op,
            spec: *spec,
            sent: None,
        });
        if self.peers[at].link.is_none() && self.peers[at].again.is_none() {
            self.peers[at].until = Some(Instant::now() + PATIENCE);
            if let Err(error) = self.dial(at) {
                self.peers[at].sends.pop_back();
                return Err(error);
            }
        }
        self.drive(host, at);
        host.unsettled();
        Ok(())
    }

    /// The peer that listens there.
    pub(super) fn peer_at(&mut self, at: SocketAddr) -> Result<usize> {
        if let Some(known) = self.by_address.get(&at) {
            return Ok(*known);
        }
        let name = Address::of_socket(Scheme::Tcp, at)?;
        let known = self.peers.insert(Peer::new(name, at, self.dialect));
        self.by_address.insert(at, known);
        Ok(known)
    }

    pub(super) fn route(&self, addr: FiAddr) -> Option<usize> {
        let at = (*self.routes.get(addr.index())?)?;
        (self.peers[at].addr == Some(addr)).then_some(at)
    }

    /// Moves what waits for a peer.
    pub(super) fn drive(&mut self, host: &mut dyn Host, at: usize) {
        let peer = &mut self.peers[at];
        let Some(at) = peer.link else { return };
        if let Some(Stage::Up(link)) = self.stages.get_mut(at) {
            link.drive(&mut peer.sends, host);
            self.heat(at);
        }
    }

    pub(crate) fn cancel(&mut self, host: &mut dyn Host, op: OpKey) -> bool {
        if self.rx.own.cancel(host, op) {
            return true;
        }
        for (_, peer) in &mut self.peers {
            if let Some(at) = peer.sends.iter().position(|send| send.op == op) {
                if peer.sends[at].sent.is_some() {
                    return false;
                }
                peer.sends.remove(at);
                host.unsettled();
                return true;
            }
        }
        false
    }

    /// There is a new connection with a peer: what waits for an earlier incarnation of it fails, and
    /// the handle of that leads there no more.
    pub(super) fn fail_sends_to_others(&mut self, host: &mut dyn Host, link: &Link) {
        let peer = &mut self.peers[link.peer];
        let sends = peer.sends.iter();
        let others: Vec<_> = sends
            .filter(|send| !link.is_for(send.spec.peer, self.id, host))
            .map(|send| send.op)
            .collect();
        peer.sends.retain(|send| !others.contains(&send.op));
        for op in others {
            // Nothing of it has left: it was queued after the last connection had ended.
            host.complete(op, Outcome::failed(Error::PeerGone(peer.name.clone())));
        }
        if let Some(addr) = peer.addr.filter(|addr| !link.is_for(*addr, self.id, host)) {
            peer.addr = None;
            self.routes[addr.index()] = None;
        }
    }

    /// What waits for a peer, or is on its way, ends. A connection in the middle of a message sends
    /// nothing any more.
    pub(super) fn fail_sends(&mut self, host: &mut dyn Host, at: usize, error: &Error) {
        self.peers[at].again = None;
        let peer = &mut self.peers[at];
        if let Some(Stage::Up(link)) = peer.link.and_then(|link| self.stages.get_mut(link)) {
            link.take_back(&mut peer.sends, host);
            let is_cut = link.cut();
            if link.is_deaf() {
                link.fail_unwritten(host, error);
            }
            link.complete_written(host);
            link.fail_offers(host, error);
            if is_cut && let Some(at) = peer.link.take() {
                self.heat(at);
            }
        }
        for send in std::mem::take(&mut self.peers[at].sends) {
            let transfer = Transfer::sent(send.sent.unwrap_or(0), send.spec.tag);
            host.complete(send.op, Outcome::cut(transfer, error.clone()));
        }
    }
}
