//! What the peer says on the socket, and how the connection ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric_core::event::DownReason;
use fabric_core::flags::Access;
use fabric_core::provider::Incarnation;
use fabric_core::{Error, Refusal};

use super::super::area::Area;
use super::super::handshake::{self, Grant, READS_PER_LOOK, Read, Said, Word};
use super::super::incoming::Identity;
use super::super::socket;
use super::super::windows::Window;
use super::{Outgoing, Standing};

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) error: Error,
    pub(crate) reason: DownReason,
    /// Which endpoint was at the other end, if it had welcomed this one.
    pub(crate) identity: Option<Identity>,
}

/// Why it ends.
enum Why {
    Gone(DownReason),
    /// Another endpoint has the name of the one that this connection is for.
    Replaced,
    Refused(Refusal),
    Broke(&'static str),
}

/// An answer is one to what was asked, or a breach.
fn asked(was_asked: bool, breach: &'static str) -> Result<(), Why> {
    if was_asked {
        Ok(())
    } else {
        Err(Why::Broke(breach))
    }
}

impl Outgoing {
    /// The socket is readable: an answer, a ring, or the end.
    pub(crate) fn readable(&mut self) -> Option<Parting> {
        for _ in 0..READS_PER_LOOK {
            let (Standing::Waiting(wires) | Standing::Live(wires)) = &self.standing else {
                return None;
            };
            let heard = match handshake::read_said(&wires.socket) {
                Read::Nothing => return None,
                Read::Message(said) => self.heard(said),
                Read::Malformed(what) => Err(Why::Broke(what)),
                Read::OtherVersion(_) => Err(Why::Broke("another version")),
                Read::NoRoom => Err(Why::Broke("descriptors with what is no grant")),
                Read::HungUp => Err(Why::Gone(DownReason::Died)),
            };
            if let Err(why) = heard {
                return Some(self.parting(why));
            }
        }
        None
    }

    fn parting(&self, why: Why) -> Parting {
        let (peer, identity) = (self.peer.clone(), self.identity());
        // Of an endpoint that nothing was sent to there is no end to be told.
        let identity = identity.filter(|_| !matches!(why, Why::Replaced));
        let (error, reason) = match why {
            Why::Replaced => (Error::PeerGone(peer), DownReason::Closed),
            Why::Gone(reason) => (Error::PeerGone(peer), reason),
            Why::Refused(reason) => (Error::Refused { peer, reason }, DownReason::Closed),
            Why::Broke(what) => (
                Error::Protocol {
                    peer,
                    what: what.into(),
                },
                DownReason::Protocol(what),
            ),
        };
        Parting {
            error,
            reason,
            identity,
        }
    }

    fn heard(&mut self, said: Said) -> Result<(), Why> {
        let word = match said {
            Said::Grant(grant) => return asked(self.granted(grant), "memory nobody has asked for"),
            Said::Lost(key) => {
                let why = Err("came without memory: out of descriptors");
                return asked(self.answered(key, why), "memory nobody has asked for");
            }
            Said::Word(word) => word,
        };
        match word {
            Word::Ring if matches!(self.standing, Standing::Live(_)) => Ok(()),
            Word::Ring => Err(Why::Broke("a ring before the welcome")),
            Word::Ready => self.greet(),
            Word::Welcome(incarnation) => self.welcomed(incarnation),
            Word::Denied(key) => asked(
                self.answered(key, Err("is unknown")),
                "an answer to what nobody has asked",
            ),
            Word::Served(key, heeds) => asked(
                self.served(key, heeds),
                "an answer to what nobody has asked",
            ),
            Word::Refused(reason) => Err(Why::Refused(reason)),
            Word::Goodbye => Err(Why::Gone(DownReason::Closed)),
            Word::Leave | Word::Map(_) | Word::Forget(_) => {
                Err(Why::Broke("a word only the sender may say"))
            }
        }
    }

    /// The peer waits for the hello.
    fn greet(&mut self) -> Result<(), Why> {
        let Standing::Waiting(wires) = &mut self.standing else {
            return Err(Why::Broke("ready after the welcome"));
        };
        match wires.greet(&self.peer) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Why::Broke("ready a second time")),
            Err(Error::Refused { reason, .. }) => Err(Why::Refused(reason)),
            Err(Error::PeerGone(_)) => Err(Why::Gone(DownReason::Died)),
            Err(_) => Err(Why::Broke("a hello that could not be sent")),
        }
    }

    /// The peer has taken the segment.
    fn welcomed(&mut self, incarnation: u64) -> Result<(), Why> {
        self.standing = match std::mem::replace(&mut self.standing, Standing::Gone) {
            Standing::Waiting(mut wires) if wires.has_greeted() => {
                wires.welcomed(incarnation, self.means.fetched);
                let identity = Incarnation::from(wires.identity);
                if self.expected.is_some_and(|expected| expected != identity) {
                    handshake::say(&wires.socket, Word::Leave);
                    // Not live: nothing may be sent there, not even now.
                    self.standing = Standing::Waiting(wires);
                    return Err(Why::Replaced);
                }
                Standing::Live(wires)
            }
            other => {
                self.standing = other;
                return Err(Why::Broke("a second welcome, or one before the hello"));
            }
        };
        Ok(())
    }

    /// The peer has sent memory; false when it was not asked for it.
    fn granted(&mut self, grant: Grant<OwnedFd>) -> bool {
        let Grant {
            key,
            len,
            access,
            base,
            heeds,
            memory,
        } = grant;
        let window = Area::adopt(&memory, len, access.contains(Access::REMOTE_WRITE));
        socket::discard(vec![memory]);
        self.answered(
            key,
            window.map(|area| Window {
                key,
                area: Arc::new(area),
                access,
                base,
                heeds,
            }),
        )
    }

    fn served(&mut self, key: u64, heeds: bool) -> bool {
        let Standing::Live(wires) = &mut self.standing else {
            return false;
        };
        let asked = wires.windows.awaits(key);
        if asked {
            wires.windows.served(key, heeds);
        }
        asked
    }

    fn answered(&mut self, key: u64, window: Result<Window, &'static str>) -> bool {
        let Standing::Live(wires) = &mut self.standing else {
            return false;
        };
        let asked = wires.windows.awaits(key);
        if asked {
            wires.windows.answered(
                key,
                window,
                self.queue.iter().any(|queued| queued.wants(key)),
            );
        }
        asked
    }
}
