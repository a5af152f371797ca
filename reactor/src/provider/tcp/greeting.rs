//! A connection before it is one: who asks says who it is, and is answered.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fabric_core::provider::{Interest, WaitSet};
use fabric_core::tcp::{
    Broken, Control, ControlKind, Dialect, Mark, Order, PRIVATE_BYTES, Question, Reply,
};
use fabric_core::{Address, Error, Scheme};
use rustix::io::Errno;

use super::dialing::{Dialing, Heard, unreachable};
use super::socket::{Received, Sent, Socket};
use crate::uring::{Ended, Ticket};

/// Bytes of the longest control message.
const LONGEST: usize = 32 + PRIVATE_BYTES;

/// Somebody who has connected.
pub(crate) struct Caller {
    pub(crate) from: SocketAddr,
    /// When it has waited for too long.
    pub(crate) until: Instant,
    socket: Socket,
    bytes: Vec<u8>,
}

/// A peer that this side asks.
pub(crate) struct Callee {
    pub(crate) peer: usize,
    /// When it has waited for too long.
    until: Instant,
    socket: Socket,
    /// Until it has been asked.
    dialing: Option<Dialing>,
    asks: Asks,
    bytes: Vec<u8>,
}

/// What somebody asks an endpoint that connects on demand.
pub(crate) struct Asking {
    /// In which order it writes.
    pub(crate) order: Order,
    pub(crate) question: Question,
    /// What it says of itself beside that.
    pub(crate) mark: Option<Mark>,
    /// What came behind it.
    pub(crate) rest: Vec<u8>,
}

/// What a peer is asked with.
pub(crate) enum Asks {
    /// By an endpoint that connects on demand, and what that says of itself beside it.
    Question(Question, Mark),
    /// By one that has no other peer: what it says of itself, and what the program says.
    Data(Mark, Vec<u8>),
}

/// How far it has come.
#[derive(Debug)]
pub(crate) enum Greeting {
    Later,
    /// It has had its time.
    Late,
    /// What the peer says to a question, in which order it writes, and what came behind it.
    Reply(Reply, Order, Vec<u8>),
    /// What it says to a program.
    Answer(Answer),
    /// It comes to nothing.
    Failed(Failure),
}

/// Why a greeting comes to nothing.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nobody was reached.
    Unreachable(Errno),
    /// The peer hung up, or cannot be listened to.
    Gone,
    /// What it says makes no sense.
    Broken(&'static str),
}

/// What a peer that was asked has said.
#[derive(Debug)]
pub(crate) enum Answer {
    Accepted {
        order: Order,
        /// What the endpoint says of itself.
        mark: Option<Mark>,
        private: Vec<u8>,
        /// What came behind the answer.
        rest: Vec<u8>,
    },
    Refused {
        private: Vec<u8>,
    },
}

impl Failure {
    /// What whoever wanted to talk with this peer hears.
    pub(crate) fn error(self, from: SocketAddr, (peer, to): (&Address, SocketAddr)) -> Error {
        match self {
            Self::Unreachable(errno) => unreachable(from, (peer, to), errno),
            Self::Gone => Error::PeerGone(peer.clone()),
            Self::Broken(what) => Error::Protocol {
                peer: peer.clone(),
                what: what.into(),
            },
        }
    }
}

impl Caller {
    pub(crate) fn new(socket: Socket, from: SocketAddr, until: Instant) -> Self {
        Self {
            from,
            until,
            socket,
            bytes: Vec::new(),
        }
    }

    pub(crate) fn watch(&mut self, wait: &Arc<dyn WaitSet>, token: u64) -> Result<(), Error> {
        self.socket.watch(wait, token, Interest::Read)
    }

    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// What it asks an endpoint with that connects on demand, once that is there. An error when it
    /// is to go, with what is worth telling.
    pub(crate) fn go_on(&mut self) -> Result<Option<Asking>, Option<Error>> {
        let Some((control, rest)) = self.request()? else {
            return Ok(None);
        };
        match Question::read(control.private()) {
            Ok(question) => Ok(Some(Asking {
                order: control.order,
                question,
                mark: control.mark,
                rest,
            })),
            Err(Broken(what)) => {
                self.say(
                    ControlKind::Refuse,
                    None,
                    &Question::refuse_unread(control.private()),
                );
                Err(self.strange(what))
            }
        }
    }

    /// Its request, and what came behind it, once that is there.
    pub(crate) fn request(&mut self) -> Result<Option<(Control, Vec<u8>)>, Option<Error>> {
        let is_over = match read(&self.socket, &mut self.bytes) {
            Received::Nothing => return Ok(None),
            Received::Bytes(_) => false,
            Received::End | Received::Broken => true,
        };
        match Control::decode(&self.bytes) {
            Ok(Some((control, len))) if control.kind == ControlKind::Request => {
                Ok(Some((control, self.bytes.split_off(len))))
            }
            Ok(Some(_)) => Err(self.strange("an answer to no question")),
            Err(broken) => Err(self.strange(broken.0)),
            Ok(None) if is_over => Err(None),
            Ok(None) => Ok(None),
        }
    }

    /// What is told of one that is to go.
    pub(crate) fn strange(&self, what: &str) -> Option<Error> {
        let peer = Address::of_socket(Scheme::Tcp, self.from).ok()?;
        Some(Error::Protocol {
            peer,
            what: what.into(),
        })
    }

    /// Answers; false when the peer does not hear it.
    pub(crate) fn say(&self, kind: ControlKind, mark: Option<Mark>, private: &[u8]) -> bool {
        say(&self.socket, kind, mark, private)
    }
}

impl Callee {
    pub(crate) fn new(
        (peer, asks): (usize, Asks),
        socket: Socket,
        until: Instant,
        dialing: Dialing,
    ) -> Self {
        Self {
            peer,
            until,
            socket,
            dialing: Some(dialing),
            asks,
            bytes: Vec::new(),
        }
    }

    /// Whether there is no connection yet, as far as this side knows: nobody there has heard of it.
    pub(crate) fn is_dialing(&self) -> bool {
        self.dialing.is_some()
    }

    /// When this side is to end it: while the ring has it, it is the kernel that does.
    pub(crate) fn ends(&self) -> Option<Instant> {
        let is_in_ring = self.dialing.as_ref().is_some_and(Dialing::is_in_ring);
        (!is_in_ring).then_some(self.until)
    }

    /// The dialect it is asked in.
    pub(crate) fn dialect(&self) -> Dialect {
        match &self.asks {
            Asks::Question(question, _) => question.dialect(),
            Asks::Data(..) => Dialect::Native,
        }
    }

    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// Goes on after the socket was ready.
    pub(crate) fn go_on(&mut self, wait: &Arc<dyn WaitSet>, token: u64) -> Greeting {
        match &self.dialing {
            // What woke this side was meant for a socket that had its place before.
            Some(dialing) if dialing.is_in_ring() => Greeting::Later,
            Some(_) => self.ask(wait, token),
            None => self.hear(),
        }
    }

    /// Goes on after the ring has said something of the attempt to connect; nothing if that was
    /// another one.
    pub(crate) fn dialed(
        &mut self,
        what: (Ticket, Ended),
        wait: &Arc<dyn WaitSet>,
        token: u64,
    ) -> Option<Greeting> {
        let dialing = self.dialing.as_mut()?;
        Some(
            match dialing.heard(&mut self.socket, what, (wait, token))? {
                Heard::Done => self.ask(wait, token),
                Heard::Failed(errno) => Greeting::Failed(Failure::Unreachable(errno)),
                Heard::Late => Greeting::Late,
                Heard::GoesOn => Greeting::Later,
                Heard::Lost => Greeting::Failed(Failure::Gone),
            },
        )
    }

    /// Asks, if there is a connection.
    fn ask(&mut self, wait: &Arc<dyn WaitSet>, token: u64) -> Greeting {
        match self.socket.dialed() {
            Ok(true) => {}
            Ok(false) => {
                let is_watched = self.socket.watch(wait, token, Interest::Write).is_ok();
                return if is_watched {
                    Greeting::Later
                } else {
                    Greeting::Failed(Failure::Gone)
                };
            }
            Err(errno) => return Greeting::Failed(Failure::Unreachable(errno)),
        }
        self.dialing = None;
        let said = match &self.asks {
            Asks::Question(question, mark) => say(
                &self.socket,
                ControlKind::Request,
                question.mark(*mark),
                &question.private(),
            ),
            Asks::Data(mark, private) => {
                say(&self.socket, ControlKind::Request, Some(*mark), private)
            }
        };
        if !said || self.socket.watch(wait, token, Interest::Read).is_err() {
            return Greeting::Failed(Failure::Gone);
        }
        Greeting::Later
    }

    /// What the peer says, once all of that is there.
    fn hear(&mut self) -> Greeting {
        let is_over = match read(&self.socket, &mut self.bytes) {
            Received::Nothing => return Greeting::Later,
            Received::Bytes(_) => false,
            Received::End | Received::Broken => true,
        };
        let (control, len) = match Control::decode(&self.bytes) {
            Ok(Some(whole)) => whole,
            Ok(None) if is_over => return Greeting::Failed(Failure::Gone),
            Ok(None) => return Greeting::Later,
            Err(broken) => return Greeting::Failed(Failure::Broken(broken.0)),
        };
        let question = match &self.asks {
            Asks::Question(question, _) => question,
            Asks::Data(..) => return self.answer(&control, len),
        };
        match question.answered(&control) {
            Ok(reply) => Greeting::Reply(reply, control.order, self.bytes.split_off(len)),
            Err(broken) => Greeting::Failed(Failure::Broken(broken.0)),
        }
    }

    /// What a peer says to a program.
    fn answer(&mut self, control: &Control, len: usize) -> Greeting {
        match control.kind {
            ControlKind::Request => {
                Greeting::Failed(Failure::Broken("a question instead of an answer"))
            }
            ControlKind::Refuse => Greeting::Answer(Answer::Refused {
                private: control.private().to_vec(),
            }),
            ControlKind::Accept => {
                let rest = self.bytes.split_off(len);
                let (order, mark, private) =
                    (control.order, control.mark, control.private().to_vec());
                Greeting::Answer(Answer::Accepted {
                    order,
                    mark,
                    private,
                    rest,
                })
            }
        }
    }
}

/// Reads on, but not much further than a control message.
fn read(socket: &Socket, bytes: &mut Vec<u8>) -> Received {
    let mut room = [0; LONGEST];
    let room = &mut room[..LONGEST - bytes.len().min(LONGEST - 1)];
    let received = socket.recv(room);
    if let Received::Bytes(count) = received {
        bytes.extend_from_slice(&room[..count]);
    }
    received
}

/// Says something in one piece: a few hundred bytes always find room on a connection that has said
/// nothing yet.
pub(crate) fn say(socket: &Socket, kind: ControlKind, mark: Option<Mark>, private: &[u8]) -> bool {
    let Some(control) = Control::new(kind, private) else {
        return false;
    };
    let bytes = control.marked(mark).encode();
    socket.send(&[IoSlice::new(&bytes)]) == Sent::Bytes(bytes.len())
}
