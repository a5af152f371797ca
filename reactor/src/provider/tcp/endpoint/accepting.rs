//! Connections that peers ask for.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fabric_core::Error;
use fabric_core::event::EventKind;
use fabric_core::provider::Host;
use fabric_core::tcp::{ControlKind, Order, Rivals, Verdict, arbitrate};

use super::super::farewell;
use super::super::greeting::{Asking, Caller};
use super::{Endpoint, PATIENCE, Role, Stage, Token};

/// Connections an endpoint accepts in one go.
const ACCEPTS_PER_LOOK: usize = 64;
/// Connections that may wait to say who they are. The one that has waited longest makes room for
/// another.
const STRANGERS: usize = 64;
/// Likewise at an endpoint that takes requests: all its peers may call at the same time.
const PASSIVE_STRANGERS: usize = 256;
/// When to look again after there was no descriptor left.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);

impl Endpoint {
    pub(super) fn accept(&mut self, host: &mut dyn Host) {
        for _ in 0..ACCEPTS_PER_LOOK {
            let Some(listener) = &self.listener else {
                return;
            };
            if self.role.is_full() {
                listener.unwatch(&*self.wait);
                return self.role.rest(true);
            }
            match listener.accept(self.at, &self.tuning) {
                Ok(Some((socket, from))) => {
                    self.called(host, Caller::new(socket, from, Instant::now() + PATIENCE))
                }
                Ok(None) => return,
                Err(errno) => {
                    // Who waits there keeps the listener ready.
                    listener.unwatch(&*self.wait);
                    self.accept_again = Some(Instant::now() + NO_DESCRIPTOR);
                    self.set_clock();
                    let error = Error::os("accept4", errno.raw_os_error());
                    return host.event(self.id, EventKind::Rejected { error });
                }
            }
        }
    }

    /// There may be descriptors again.
    pub(super) fn accept_on(&mut self, host: &mut dyn Host) {
        let Some(listener) = &self.listener else {
            return;
        };
        self.accept_again = match listener.watch(&*self.wait, Token::Listener.pack(self.id)) {
            Ok(()) => None,
            Err(_) => Some(Instant::now() + NO_DESCRIPTOR),
        };
        if self.accept_again.is_none() {
            self.accept(host);
        }
    }

    /// Somebody has connected.
    fn called(&mut self, host: &mut dyn Host, mut caller: Caller) {
        let token = Token::Socket(self.stages.vacant_key() as u32).pack(self.id);
        if caller.watch(&self.wait, token).is_err() {
            return;
        }
        let at = self.stages.insert(Stage::Caller(caller));
        self.callers.push_back(at);
        self.caller_ready(host, at);
        let most = if matches!(self.role, Role::Passive(_)) {
            PASSIVE_STRANGERS
        } else {
            STRANGERS
        };
        if self.callers.len() > most {
            self.caller_over(host, self.callers[0], None);
        }
        if self.callers.len() == 1 {
            self.set_clock();
        }
    }

    /// Somebody goes who has not become a peer.
    pub(super) fn caller_over(&mut self, host: &mut dyn Host, at: usize, error: Option<Error>) {
        self.callers.retain(|caller| *caller != at);
        self.stages.try_remove(at);
        if let Some(error) = error {
            host.event(self.id, EventKind::Rejected { error });
        }
    }

    pub(super) fn caller_ready(&mut self, host: &mut dyn Host, at: usize) {
        if matches!(self.role, Role::Passive(_)) {
            return self.caller_asks(host, at);
        }
        let Some(Stage::Caller(caller)) = self.stages.get_mut(at) else {
            return;
        };
        let Asking {
            order,
            question,
            mark,
            rest,
        } = match caller.go_on() {
            Ok(None) => return,
            Ok(Some(asked)) => asked,
            Err(error) => return self.caller_over(host, at, error),
        };
        self.callers.retain(|caller| *caller != at);
        let Stage::Caller(caller) = self.stages.remove(at) else {
            return;
        };
        let theirs = SocketAddr::new(caller.from.ip(), question.port());
        let Ok(peer) = self.peer_at(theirs) else {
            return;
        };
        let rivals = match self.peers[peer].link.and_then(|link| self.stages.get(link)) {
            None | Some(Stage::Caller(_)) => Rivals::None,
            Some(Stage::Asked(asked)) => Rivals::Asking(asked.dialect()),
            Some(Stage::Up(link)) => Rivals::Connected(link.instance),
        };
        let verdict = arbitrate(self.at, theirs, &question, rivals);
        if verdict == Verdict::Refuse {
            caller.say(ControlKind::Refuse, None, &question.refuse());
            return farewell::close(caller.into_socket(), &[]);
        }
        if verdict == Verdict::Replace
            && let Some(old) = self.peers[peer].link
        {
            if let Some(Stage::Up(link)) = self.stages.get_mut(old) {
                // Its peer has been told that this was sent, and its end may be behind it, unread.
                self.rx
                    .with(|rx| link.take_rest(&mut self.scratch, rx, host));
                // With all that was for it: half of a message may have left.
                self.link_down(host, old);
            } else {
                self.peers[peer].link = None;
                self.stages.try_remove(old);
            }
        }
        self.next_connection = self.next_connection.wrapping_add(1);
        let (accepted, agreed) = question.accept(self.instance, self.next_connection, mark);
        // A libfabric peer is answered as by its own kind.
        let own = question.mark(self.mark).filter(|_| mark.is_some());
        if !caller.say(ControlKind::Accept, own, &accepted) {
            return self.called_in_vain(host, theirs);
        }
        let spoken = (agreed, Order::NATIVE.with(order));
        // `link_down` may have forgotten the peer.
        let Ok(peer) = self.peer_at(theirs) else {
            return;
        };
        let who = (peer, Some(question.instance()));
        let link = self.link_up(host, who, caller.into_socket(), spoken, rest);
        if verdict != Verdict::Both {
            // Who comes back does so in the dialect it speaks.
            self.peers[peer].dialect = question.dialect();
            self.peers[peer].link = Some(link);
            self.drive(host, peer);
        }
        self.progress(host);
    }

    /// Somebody was to be accepted, and has gone: what waited for a connection that it would have
    /// replaced asks for one.
    fn called_in_vain(&mut self, host: &mut dyn Host, theirs: SocketAddr) {
        let Some(&at) = self.by_address.get(&theirs) else {
            return;
        };
        let peer = &self.peers[at];
        if !peer.sends.is_empty()
            && peer.link.is_none()
            && peer.again.is_none()
            && let Err(error) = self.dial(at)
        {
            self.fail_sends(host, at, &error);
        }
        self.forget(at);
    }
}
