//! Connections that this side asks for.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use fabric_core::provider::Host;
use fabric_core::tcp::{Dialect, Order, Question, Reply};
use fabric_core::{Error, Refusal, Result};

use super::super::dialing::{Dialing, Ways, unreachable};
use super::super::greeting::{Asks, Callee, Greeting};
use super::super::socket::Socket;
use super::{Endpoint, PATIENCE, Role, Stage, Token};
use crate::uring::{Ended, Ticket};

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
        let question = Question::new(
            peer.dialect,
            self.at.port(),
            self.instance,
            self.next_connection,
        );
        self.ask(at, Asks::Question(question, self.mark), PATIENCE)
    }

    /// Begins to connect with a peer, and asks it with this.
    pub(super) fn ask(&mut self, at: usize, asks: Asks, patience: Duration) -> Result<()> {
        let peer = &mut self.peers[at];
        let mut socket = Socket::open(self.at, peer.at, &self.tuning)
            .map_err(|errno| unreachable(self.at, (&peer.name, peer.at), errno))?;
        let token = Token::Socket(self.stages.vacant_key() as u32).pack(self.id);
        let now = Instant::now();
        let until = now.checked_add(patience).unwrap_or(now + FOR_EVER);
        let ways = Ways {
            from: self.at,
            wait: &self.wait,
            token,
            ring: self.ring.as_ref(),
        };
        let dialing = Dialing::begin(&mut socket, (&peer.name, peer.at), until, &ways)?;
        let asked = Callee::new((at, asks), socket, until, dialing);
        let is_ended_here = asked.ends().is_some();
        peer.link = Some(self.stages.insert(Stage::Asked(asked)));
        if is_ended_here {
            self.set_clock();
        }
        Ok(())
    }

    /// A socket that is connecting, or has asked, was ready.
    pub(super) fn asked_ready(&mut self, host: &mut dyn Host, at: usize) {
        let Some(Stage::Asked(asked)) = self.stages.get_mut(at) else {
            return;
        };
        let greeting = asked.go_on(&self.wait, Token::Socket(at as u32).pack(self.id));
        self.greeted(host, at, greeting);
    }

    /// The ring says what has become of an attempt to connect.
    pub(super) fn dialed(&mut self, host: &mut dyn Host, at: usize, what: (Ticket, Ended)) {
        let Some(Stage::Asked(asked)) = self.stages.get_mut(at) else {
            return;
        };
        let token = Token::Socket(at as u32).pack(self.id);
        let Some(greeting) = asked.dialed(what, &self.wait, token) else {
            return;
        };
        if matches!(greeting, Greeting::Later) {
            // What is left of the time is for the answer.
            self.set_clock();
        }
        self.greeted(host, at, greeting);
    }

    /// Something has come of asking a peer.
    pub(super) fn greeted(&mut self, host: &mut dyn Host, at: usize, greeting: Greeting) {
        if matches!(self.role, Role::Single(_)) {
            self.answered(host, at, greeting);
        } else {
            self.replied(host, at, greeting);
        }
    }

    fn replied(&mut self, host: &mut dyn Host, at: usize, greeting: Greeting) {
        let Some(Stage::Asked(asked)) = self.stages.get(at) else {
            return;
        };
        let peer = asked.peer;
        match greeting {
            Greeting::Later => {}
            Greeting::Late => {
                let error = Error::TimedOut(self.peers[peer].name.clone());
                self.asked_over(host, at, &error);
            }
            Greeting::Failed(failure) => {
                let error = failure.error(self.at, (&self.peers[peer].name, self.peers[peer].at));
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
                let error = Error::Refused {
                    peer: self.peers[peer].name.clone(),
                    reason: Refusal::Resources,
                };
                self.asked_over(host, at, &error);
            }
            Greeting::Reply(Reply::Accepted(agreed, instance), order, rest) => {
                let Stage::Asked(asked) = self.stages.remove(at) else {
                    return;
                };
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
        let Some(Stage::Asked(asked)) = self.stages.try_remove(at) else {
            return;
        };
        if self.peers[asked.peer].link == Some(at) {
            self.peers[asked.peer].link = None;
            self.fail_sends(host, asked.peer, error);
        }
        self.forget(asked.peer);
    }

    /// Nobody needs a connection any more that a peer has not heard of.
    pub(super) fn hang_up(&mut self, peer: usize) {
        if let Some(at) = self.peers[peer].link
            && let Some(Stage::Asked(asked)) = self.stages.get(at)
            && asked.is_dialing()
        {
            self.stages.remove(at);
            self.peers[peer].link = None;
        }
    }

    /// A peer speaks the other dialect, and is asked again in that; after a while if it has said so
    /// of the first one before.
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
            let error = Error::Refused {
                peer: peer.name.clone(),
                reason: Refusal::Resources,
            };
            return self.fail_sends(host, at, &error);
        }
        let pause = peer
            .again
            .map_or(PAUSE, |(_, pause)| (pause * 2).min(PAUSE * 64));
        // Two that ask each other must not keep in step.
        let jitter = RandomState::new().hash_one(at) % 1000;
        peer.again = Some((now + pause + Duration::from_micros(jitter), pause));
        self.set_clock();
    }
}
