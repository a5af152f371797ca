//! Callers: who is let in, and what the others are told.

use std::sync::Arc;

use fabric_core::matching::PeerKey;
use fabric_core::{Address, Error, Refusal, Scheme};
use rustix::io::Errno;

use super::super::fetch::Reach;
use super::super::handshake::{self, Read, VERSION, Word};
use super::super::segment::{Segment, Unfit};
use super::super::socket::Socket;
use super::{Here, Identity, Incoming};

/// A connection that has not said hello yet.
#[derive(Debug)]
pub(crate) struct Stranger {
    socket: Socket,
    /// Its user was checked, and it was told that the receiver is ready.
    admitted: bool,
}

/// What became of a hello.
pub(crate) enum Met {
    /// Nothing was said yet.
    Later(Stranger),
    /// A peer.
    Peer(Box<Incoming>),
    /// Nobody to talk to.
    Refused(Error),
    /// It left without a word.
    Left,
}

impl Stranger {
    /// A connection that was just accepted.
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            admitted: false,
        }
    }

    /// Reads the hello and answers it, as this endpoint.
    pub(crate) fn meet(mut self, key: PeerKey, here: Here) -> Met {
        let refuse = |socket: &Socket, reason: Refusal, error: Error| {
            handshake::say(socket, Word::Refused(reason));
            Met::Refused(error)
        };
        let ours = rustix::process::geteuid().as_raw();
        let peer = match self.socket.credentials() {
            Ok(peer) if peer.user == ours => peer,
            Ok(peer) => {
                let error = Error::OtherUser {
                    peer: nameless(peer.process),
                    theirs: peer.user,
                    ours,
                };
                return refuse(&self.socket, Refusal::User, error);
            }
            Err(error) => return refuse(&self.socket, Refusal::Malformed, error),
        };
        if !self.admitted {
            self.admitted = true;
            self.socket.admit_rights();
            handshake::say(&self.socket, Word::Ready);
        }
        let broke = |what: &'static str| Error::Protocol {
            peer: nameless(peer.process),
            what: what.into(),
        };
        let hello = match handshake::read_hello(&self.socket) {
            Read::Nothing => return Met::Later(self),
            Read::HungUp => return Met::Left,
            Read::NoRoom => {
                let error = Error::os("recvmsg", Errno::MFILE.raw_os_error());
                return refuse(&self.socket, Refusal::Resources, error);
            }
            Read::Message(hello) => hello,
            Read::Malformed(what) => return refuse(&self.socket, Refusal::Malformed, broke(what)),
            Read::OtherVersion(theirs) => {
                let reason = Refusal::Version {
                    theirs,
                    ours: VERSION,
                };
                let error = Error::Refused {
                    peer: nameless(peer.process),
                    reason,
                };
                return refuse(&self.socket, reason, error);
            }
        };
        match Segment::adopt(&hello.segment, hello.lines) {
            Ok(segment) => {
                let process = peer.process.filter(|_| here.fetches);
                let reach =
                    process.and_then(|id| Reach::new(&hello.from, id, &self.socket, &segment));
                if reach.is_some() {
                    segment.set_reached();
                }
                handshake::say(&self.socket, Word::Welcome(here.incarnation));
                let identity = Identity {
                    process: peer.process,
                    incarnation: hello.incarnation,
                };
                let mut peer = Incoming::new(hello.from, identity, here, segment, self.socket, key);
                peer.reach = reach.map(Arc::new);
                Met::Peer(Box::new(peer))
            }
            Err(Unfit::Malformed(what)) => {
                let error = Error::Protocol {
                    peer: hello.from,
                    what: what.into(),
                };
                refuse(&self.socket, Refusal::Malformed, error)
            }
            Err(Unfit::NoRoom(error)) => refuse(&self.socket, Refusal::Resources, error),
        }
    }
}

/// Something to call a process by that has not told its name.
fn nameless(process: Option<i32>) -> Address {
    let process = process.map_or("unknown".into(), |process| process.to_string());
    Address::new(Scheme::Shm, &format!("process-{process}"))
        .unwrap_or_else(|_| unreachable!("a short plain name"))
}
