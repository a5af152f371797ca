//! How connections come and go.

use fabric_core::Error;
use fabric_core::event::{DownReason, EventKind};
use fabric_core::matching::PeerKey;
use fabric_core::provider::Host;
use fabric_core::tcp::{Agreed, Order};

use super::super::farewell;
use super::super::link::Link;
use super::super::socket::Socket;
use super::{Endpoint, Role, Stage, Token};

impl Endpoint {
    pub(super) fn link_up(
        &mut self,
        host: &mut dyn Host,
        (peer, instance): (usize, Option<u32>),
        socket: Socket,
        spoken: (Agreed, Order),
        rest: Vec<u8>,
    ) -> usize {
        self.next_key += 1;
        let token = Token::Socket(self.stages.vacant_key() as u32).pack(self.id);
        let key = self
            .rx
            .joined(host, PeerKey(self.next_key), &self.peers[peer].name);
        let watch = (self.wait.clone(), token);
        let mut link = Link::new((peer, key), socket, watch, spoken, rest, self.ring.clone());
        link.instance = instance;
        link.serve(self.id, self.is_target, self.heeds);
        let options = &self.tuning.options;
        link.zero_copy_from(options.zero_copy_from, options.insists_on_zero_copy);
        link.rewatch();
        let name = self.peers[peer].name.clone();
        if matches!(self.role, Role::Single(_)) {
            link.source = self.peers[peer].addr;
            if self.refuses_tags() {
                link.refuse_tags();
            }
        } else {
            link.number = host.peer_connected(self.id, &name, link.incarnation());
            link.source = link.number;
            self.fail_sends_to_others(host, &link);
            host.event(
                self.id,
                EventKind::PeerConnected {
                    peer: name,
                    source: link.source,
                },
            );
        }
        (self.peers[peer].again, self.peers[peer].has_turned) = (None, false);
        let at = self.stages.insert(Stage::Up(Box::new(link)));
        self.heat(at);
        self.set_clock();
        at
    }

    /// A connection has ended, and all that came over it has been taken.
    pub(super) fn link_down(&mut self, host: &mut dyn Host, at: usize) {
        let Some(Stage::Up(mut link)) = self.stages.try_remove(at) else {
            return;
        };
        self.hot.retain(|hot| *hot != at);
        let (peer, name) = (link.peer, self.peers[link.peer].name.clone());
        if self.peers[peer].link == Some(at) {
            link.take_back(&mut self.peers[peer].sends, host);
        }
        let reason = link.ended().unwrap_or(DownReason::Closed);
        let gone = self.gone(&link);
        link.fail_unwritten(host, &gone);
        self.rx.with(|rx| {
            link.look_again(rx, host);
            link.give_up(rx, host, &gone);
        });
        self.rx.departed(link.key, name.clone());
        let source = link.source.or_else(|| host.number_of(self.id, &name));
        let is_single = matches!(self.role, Role::Single(_));
        host.event(
            self.id,
            match name.clone() {
                peer if is_single => EventKind::Shutdown { peer, reason },
                peer => EventKind::PeerDown {
                    peer,
                    source,
                    reason,
                },
            },
        );
        if self.peers[peer].link == Some(at) {
            self.peers[peer].link = None;
            self.fail_sends(host, peer, &gone);
        }
        if let Some(source) = source
            && !self
                .links()
                .any(|other| other.peer == peer && other.source == Some(source))
        {
            self.rx.fail_directed(host, source, &name, &gone);
        }
        host.peer_disconnected(self.id, link.number);
        let (socket, rest) = link.into_socket();
        farewell::close(socket, &rest);
        self.forget(peer);
        self.is_over(host, gone);
    }

    /// The peer hears nothing any more, but something may have come from it that nobody has asked
    /// for yet.
    pub(super) fn link_half_down(&mut self, host: &mut dyn Host, at: usize) {
        let Some(Stage::Up(link)) = self.stages.get(at) else {
            return;
        };
        let (peer, gone) = (link.peer, self.gone(link));
        self.fail_sends(host, peer, &gone);
        self.peers[peer].link = None;
        // Answers may still come, unless that was the end.
        if let Some(Stage::Up(link)) = self.stages.get_mut(at)
            && link.ended().is_some()
        {
            link.fail_asked(host, &gone);
        }
    }

    /// A connection has ended, and some of what came over it has not been taken. What its peer has
    /// only offered never comes.
    pub(super) fn end_fetches(&mut self, host: &mut dyn Host, at: usize) {
        let Some(Stage::Up(link)) = self.stages.get(at) else {
            return;
        };
        let gone = self.gone(link);
        if let Some(Stage::Up(link)) = self.stages.get_mut(at) {
            self.rx.with(|rx| link.end_fetches(rx, host, &gone));
        }
    }

    /// What operations hear that were for the peer of a connection that has ended.
    fn gone(&self, link: &Link) -> Error {
        let peer = self.peers[link.peer].name.clone();
        match link.ended() {
            Some(DownReason::Protocol(what)) => Error::Protocol {
                peer,
                what: what.into(),
            },
            _ => Error::PeerGone(peer),
        }
    }

    /// A peer that nobody needs.
    pub(super) fn forget(&mut self, at: usize) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        if peer.addr.is_none()
            && peer.link.is_none()
            && peer.sends.is_empty()
            && !self.links().any(|l| l.peer == at)
        {
            let peer = self.peers.remove(at);
            self.by_address.remove(&peer.at);
        }
    }
}
