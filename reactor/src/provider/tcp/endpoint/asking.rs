//! Connections that this side asks for.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use fabric_core::provider::{Host, Interest};
use fabric_core::tcp::{Dialect, Order, Question, Reply};
use fabric_core::{Address, Error, Refusal, Result};

use super::super::greeting::{Asks, Callee, Greeting};
use super::super::socket::Socket;
use super::{Endpoint, PATIENCE, Stage, Token};

/// The first pause after a refusal; it grows.
const PAUSE: Duration = Duration::from_millis(2);
/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

impl Endpoint {
    /// Asks a peer for a connection.
    pub(super) fn dial(&mut self, at: usize) -> Result<()> {
        let peer = &mut self.peers[at];
        peer.again = None;
        self.next_connection = self.next_connection.wrapping_add(1);
        let question = Question::new(peer.dialect, self.at.port(), self.instance, self.next_connection);
        self.call(at, Asks::Question(question), PATIENCE)
    }

    /// Begins to connect with a peer, and asks it with this.
    pub(super) fn call(&mut self, at: usize, asks: Asks, patience: Duration) -> Result<()> {
        let peer = &mut self.peers[at];
        let mut socket =
            Socket::dial(self.at, peer.at, &self.tuning).map_err(|errno| unreachable(&peer.name, errno))?;
        let token = Token::Socket(self.stages.vacant_key() as u32).pack(self.id);
        socket.watch(&self.wait, token, Interest::Write)?;
        let now = Instant::now();
        let until = now.checked_add(patience).unwrap_or(now + FOR_EVER);
        let asked = Callee::new(at, socket, asks, until);
        peer.link = Some(self.stages.insert(Stage::Asked(asked)));
        self.set_clock();
        Ok(())
    }

    pub(super) fn asked_ready(&mut self, host: &mut dyn Host, at: usize) {
        let Some(Stage::Asked(asked)) = self.stages.get_mut(at) else { return };
        let peer = asked.peer;
        let token = Token::Socket(at as u32).pack(self.id);
        match asked.go_on(&self.wait, token) {
            Greeting::Later => {}
            Greeting::Failed(errno) => {
                let error = unreachable(&self.peers[peer].name, errno);
                self.asked_over(host, at, &error);
            }
            Greeting::Broken(what) => {
                let error = Error::Protocol { peer: self.peers[peer].name.clone(), what: what.into() };
                self.asked_over(host, at, &error);
            }
            Greeting::Gone => {
                let error = Error::PeerGone(self.peers[peer].name.clone());
                self.asked_over(host, at, &error);
            }
            Greeting::Reply(Reply::Rival, ..) => {
                // It asks as well, or has a connection of which this side does not know any more.
                self.stages.remove(at);
                self.peers[peer].link = None;
                self.pause(host, peer);
            }
            Greeting::Reply(Reply::Ask(dialect), ..) => {
                self.stages.remove(at);
                self.peers[peer].link = None;
                self.turn(host, peer, dialect);
            }
            Greeting::Reply(Reply::Refused, ..) | Greeting::Answer(_) => {
                let error =
                    Error::Refused { peer: self.peers[peer].name.clone(), reason: Refusal::Resources };
                self.asked_over(host, at, &error);
            }
            Greeting::Reply(Reply::Accepted(agreed, instance), order, rest) => {
                let Stage::Asked(asked) = self.stages.remove(at) else { return };
                let order = Order::NATIVE.with(order);
                let spoken = (agreed, order);
                let again = self.link_up(host, (peer, instance), asked.into_socket(), spoken, rest);
                self.peers[peer].link = Some(again);
                self.drive(host, peer);
            }
        }
    }

    /// An attempt has failed, and with it what waited for it.
    pub(super) fn asked_over(&mut self, host: &mut dyn Host, at: usize, error: &Error) {
        let Some(Stage::Asked(asked)) = self.stages.try_remove(at) else { return };
        if self.peers[asked.peer].link == Some(at) {
            self.peers[asked.peer].link = None;
            self.fail_sends(host, asked.peer, error);
        }
        self.forget(asked.peer);
    }

    /// A peer speaks the other dialect, and is asked again in that; after a while if it has said so of the first one before.
    fn turn(&mut self, host: &mut dyn Host, at: usize, dialect: Dialect) {
        let peer = &mut self.peers[at];
        peer.dialect = dialect;
        if std::mem::replace(&mut peer.has_turned, true) {
            return self.pause(host, at);
        }
        if !peer.sends.is_empty()
            && let Err(error) = self.dial(at)
        {
            self.fail_sends(host, at, &error);
        }
        self.forget(at);
    }

    /// Asks again after a while, unless that has gone on for too long.
    fn pause(&mut self, host: &mut dyn Host, at: usize) {
        let now = Instant::now();
        let peer = &mut self.peers[at];
        if peer.sends.is_empty() {
            // Who sends next asks at once.
            peer.again = None;
            return self.forget(at);
        }
        if peer.until.is_some_and(|until| until < now) {
            let error = Error::Refused { peer: peer.name.clone(), reason: Refusal::Resources };
            return self.fail_sends(host, at, &error);
        }
        let pause = peer.again.map_or(PAUSE, |(_, pause)| (pause * 2).min(PAUSE * 64));
        // Two that ask each other must not keep in step.
        let jitter = RandomState::new().hash_one(at) % 1000;
        peer.again = Some((now + pause + Duration::from_micros(jitter), pause));
        self.set_clock();
    }
}

/// Why there is no connection.
pub(super) fn unreachable(peer: &Address, errno: rustix::io::Errno) -> Error {
    match errno {
        // It was there, or its name was, and nobody took the call any more.
        rustix::io::Errno::CONNREFUSED | rustix::io::Errno::CONNRESET => Error::NoSuchPeer(peer.clone()),
        errno => Error::os("connect", errno.raw_os_error()),
    }
}
