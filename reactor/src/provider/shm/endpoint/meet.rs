//! Connections from peers: accepted, greeted, and read.

use std::os::fd::AsFd;

use fabric_core::event::EventKind;
use fabric_core::matching::PeerKey;
use fabric_core::provider::Host;
use fabric_core::{Error, Refusal};

use super::super::handshake::{self, Word};
use super::super::incoming::{Met, Stranger};
use super::super::{closer, socket};
use super::{Endpoint, Token};

/// Connections an endpoint accepts in one go.
const ACCEPTS_PER_LOOK: usize = 64;
/// Connections that may wait to say hello. The one that has waited longest makes room for another.
const STRANGERS: usize = 64;

impl Endpoint {
    pub(super) fn accept(&mut self, host: &mut dyn Host) {
        self.spare = self.spare.take().or_else(|| socket::spare().ok());
        for _ in 0..ACCEPTS_PER_LOOK {
            if closer::kick_when_free(&self.wait) {
                return self.stop_accepting();
            }
            match self.listener.accept() {
                Ok(Some(mut socket)) => {
                    let at = self.callers.vacant();
                    let token = Token::Incoming(at as u32).pack(self.id);
                    if socket.watch(&self.wait, token).is_ok() {
                        self.callers.add_stranger(Stranger::new(socket));
                        self.caller_ready(host, at);
                        self.callers.limit_strangers(STRANGERS);
                    }
                }
                Ok(None) => return,
                Err(errno) => {
                    // Out of descriptors, most likely. The caller must not stay in the queue: it
                    // would keep the listener ready, and everybody awake.
                    self.spare = None;
                    if let Ok(Some(socket)) = self.listener.accept() {
                        let error = Error::os("accept4", errno.raw_os_error());
                        host.event(self.id, EventKind::Rejected { error });
                        handshake::say(&socket, Word::Refused(Refusal::Resources));
                    }
                    self.spare = socket::spare().ok();
                    return;
                }
            }
        }
    }

    /// Connections wait in the kernel's queue until their ends can be closed.
    #[cold]
    fn stop_accepting(&mut self) {
        self.wait.unwatch(self.listener.as_fd());
        self.stopped = true;
    }

    /// Accepts again, if the closing threads have room.
    #[cold]
    pub(super) fn accept_again(&mut self, host: &mut dyn Host) {
        let token = Token::Listener.pack(self.id);
        if closer::is_full() || self.wait.watch(self.listener.as_fd(), token).is_err() {
            return;
        }
        self.stopped = false;
        self.accept(host);
    }

    pub(super) fn caller_ready(&mut self, host: &mut dyn Host, at: usize) {
        if let Some(stranger) = self.callers.take_stranger(at) {
            return self.meet(host, stranger);
        }
        self.callers.attend(at);
        if let Some(reason) = self.callers.get(at).and_then(|peer| peer.readable(host)) {
            self.caller_ended(host, at, reason);
            self.pump_callers(host);
        }
    }

    fn meet(&mut self, host: &mut dyn Host, stranger: Stranger) {
        self.next_key += 1;
        match stranger.meet(PeerKey(self.next_key), self.here.clone()) {
            Met::Later(stranger) => self.callers.add_stranger(stranger),
            Met::Peer(mut peer) => {
                let incarnation = Some(peer.identity.into());
                peer.number = host.peer_connected(self.id, &peer.peer, incarnation);
                peer.source = peer.number;
                let (name, source) = (peer.peer.clone(), peer.source);
                peer.key = self.rx.joined(host, peer.key, &name);
                self.callers.add(peer);
                host.event(self.id, EventKind::PeerConnected { peer: name, source });
                self.pump_callers(host);
            }
            Met::Refused(error) => host.event(self.id, EventKind::Rejected { error }),
            Met::Left => {}
        }
    }
}
