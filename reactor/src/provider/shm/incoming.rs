//! A connection from a peer: what it sends to this endpoint.

use std::os::fd::{AsFd, OwnedFd};

use fabric_core::buf::Source;
use fabric_core::event::DownReason;
use fabric_core::matching::{Envelope, PeerKey};
use fabric_core::provider::{Host, WaitSet};
use fabric_core::rx::{LandingId, RxContext};
use fabric_core::{Address, Error, FiAddr, Refusal, Scheme};

use super::handshake::{self, Answer, Read, VERSION};
use super::outgoing::READS_PER_LOOK;
use super::record::{BEGIN, Layout, PIECE, WHOLE};
use super::ring::{Broken, Consumer, Record};
use super::segment::Segment;

/// Records and bytes taken from one peer in one pass.
const RECORDS_PER_PASS: usize = 64;
const BYTES_PER_PASS: usize = 64 * 1024;
/// The longest message a peer may announce.
pub(crate) const MAX_MESSAGE: usize = 1 << 40;

/// A connection that has not said hello yet.
#[derive(Debug)]
pub(crate) struct Stranger {
    pub(crate) socket: OwnedFd,
}

/// A connection from a peer.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) peer: Address,
    pub(crate) key: PeerKey,
    pub(crate) source: Option<FiAddr>,
    /// Its number when it connected.
    pub(crate) number: Option<FiAddr>,
    /// The process at the other end.
    pub(crate) process: i32,
    socket: OwnedFd,
    ring: Consumer<Segment>,
    /// The message that is arriving in pieces.
    landing: Option<LandingId>,
    /// The oldest record waits for a receive, or for room.
    held: bool,
    /// The peer has said goodbye, or that it gives up this connection only.
    goodbye: bool,
    left: bool,
    /// The peer has ended; what it left in the ring is still delivered.
    down: Option<DownReason>,
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
    /// Reads the hello and answers it.
    pub(crate) fn meet(self, key: PeerKey) -> Met {
        let ours = rustix::process::geteuid().as_raw();
        let refuse = |socket: &OwnedFd, reason: Refusal, error: Error| {
            handshake::send_answer(socket, Answer::Refused(reason));
            Met::Refused(error)
        };
        let peer = match handshake::credentials_of(&self.socket) {
            Ok(peer) if peer.user == ours => peer,
            Ok(peer) => {
                let error = Error::OtherUser { peer: nameless(peer.process), theirs: peer.user, ours };
                return refuse(&self.socket, Refusal::User, error);
            }
            Err(error) => return refuse(&self.socket, Refusal::Malformed, error),
        };
        let hello = match handshake::read_hello(&self.socket) {
            Read::Nothing => return Met::Later(self),
            Read::HungUp => return Met::Left,
            Read::Message(hello) => hello,
            Read::Malformed(what) => {
                let reason = match what {
                    "version" => Refusal::Version { theirs: VERSION, ours: VERSION },
                    _ => Refusal::Malformed,
                };
                return refuse(
                    &self.socket,
                    reason,
                    Error::Protocol { peer: nameless(peer.process), what: what.into() },
                );
            }
        };
        match Segment::adopt(&hello.segment, hello.lines) {
            Ok(segment) => {
                handshake::send_answer(&self.socket, Answer::Welcome);
                Met::Peer(Box::new(Incoming::new(hello.from, peer.process, segment, self.socket, key)))
            }
            Err(what) => {
                let error = Error::Protocol { peer: hello.from, what: what.into() };
                refuse(&self.socket, Refusal::Malformed, error)
            }
        }
    }
}

/// Something to call a process by that has not told its name.
fn nameless(process: i32) -> Address {
    Address::new(Scheme::Shm, &format!("process-{process}"))
        .unwrap_or_else(|_| unreachable!("a short plain name"))
}

impl Incoming {
    fn new(peer: Address, process: i32, segment: Segment, socket: OwnedFd, key: PeerKey) -> Self {
        Self {
            peer,
            key,
            source: None,
            number: None,
            process,
            socket,
            ring: Consumer::new(segment),
            landing: None,
            held: false,
            goodbye: false,
            left: false,
            down: None,
        }
    }

    /// Takes what has arrived, as far as it is wanted. Returns whether anything moved.
    pub(crate) fn pump(&mut self, rx: &mut RxContext, host: &mut dyn Host) -> Result<bool, Broken> {
        let mut bytes = 0;
        let mut moved = false;
        self.held = false;
        for _ in 0..RECORDS_PER_PASS {
            let Some(record) = self.ring.peek()? else { break };
            if !self.take(record, rx, host)? {
                self.held = true;
                break;
            }
            moved = true;
            if self.ring.consume(record) {
                handshake::send_answer(&self.socket, Answer::Ring);
            }
            bytes += record.header.len as usize;
            if bytes > BYTES_PER_PASS {
                break;
            }
        }
        Ok(moved)
    }

    /// Takes one record; false when it has to stay.
    fn take(&mut self, record: Record, rx: &mut RxContext, host: &mut dyn Host) -> Result<bool, Broken> {
        let (kind, flags, len) = (record.header.kind, record.header.flags, record.header.len as usize);
        let layout =
            Layout::for_record(kind, flags, len).ok_or(Broken("a record too short for its flags"))?;
        let segment = self.ring.memory();
        let payload = segment
            .payload(record.start + layout.payload, len - layout.payload)
            .ok_or(Broken("a payload out of bounds"))?;
        let word = |at: usize| segment.word(record.start + at);
        if kind == PIECE {
            let id = self.landing.ok_or(Broken("a piece of no message"))?;
            if payload.is_empty() || payload.len() > rx.missing(id) {
                return Err(Broken("a piece longer than its message"));
            }
            if rx.land(host, id, &payload) {
                self.landing = None;
            }
            return Ok(true);
        }
        if self.landing.is_some() {
            return Err(Broken("a message within a message"));
        }
        let envelope = |len| Envelope {
            peer: self.key,
            source: self.source,
            tag: layout.tag.map(word),
            len,
            data: layout.data.map(word),
            arrival: 0,
        };
        match (kind, layout.total) {
            (WHOLE, _) => Ok(rx.deliver(host, envelope(payload.len()), &payload)),
            (BEGIN, Some(at)) => {
                let total = usize::try_from(word(at)).unwrap_or(usize::MAX);
                if total <= payload.len() || total > MAX_MESSAGE {
                    return Err(Broken("a message length out of bounds"));
                }
                let Some(id) = rx.begin(host, envelope(total)) else { return Ok(false) };
                rx.land(host, id, &payload);
                self.landing = Some(id);
                Ok(true)
            }
            _ => Err(Broken("a record of unknown kind")),
        }
    }

    /// The socket is readable: rings, or how the peer ended.
    pub(crate) fn readable(&mut self) -> Option<DownReason> {
        for _ in 0..READS_PER_LOOK {
            match handshake::read_answer(&self.socket) {
                Read::Nothing => return None,
                Read::Message(Answer::Ring) => {}
                Read::Message(Answer::Goodbye) if !self.goodbye => self.goodbye = true,
                Read::Message(Answer::Leave) if !self.left => self.left = true,
                Read::HungUp if self.goodbye || self.left => return Some(DownReason::Closed),
                Read::HungUp => return Some(DownReason::Died),
                Read::Message(_) => return Some(DownReason::Protocol("a word only the receiver may say")),
                Read::Malformed(what) => return Some(DownReason::Protocol(what)),
            }
        }
        None
    }

    /// The peer gave up this connection, and goes on otherwise.
    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// How the peer ended, if it has.
    pub(crate) fn down(&self) -> Option<DownReason> {
        self.down
    }

    /// Whether everything the peer left has been taken.
    pub(crate) fn is_drained(&mut self) -> bool {
        matches!(self.ring.peek(), Ok(None) | Err(_)) || matches!(self.down, Some(DownReason::Protocol(_)))
    }

    /// The oldest record waits for a receive, or for room.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Ends the connection: a message that was arriving will never be complete.
    pub(crate) fn end(&mut self, rx: &mut RxContext, host: &mut dyn Host, error: Error) {
        if let Some(id) = self.landing.take() {
            rx.fail(host, id, error);
        }
    }

    /// Notes that the peer has ended. False when that was known.
    pub(crate) fn lost(&mut self, reason: DownReason) -> bool {
        let news = self.down.is_none();
        self.down.get_or_insert(reason);
        news
    }

    /// Stops watching the socket.
    pub(crate) fn unwatch(&self, wait: &dyn WaitSet) {
        wait.unwatch(self.socket.as_fd());
    }

    /// Says goodbye; the endpoint closes.
    pub(crate) fn farewell(&self) {
        handshake::send_answer(&self.socket, Answer::Goodbye);
    }

    /// Before sleeping: false when something could move now.
    pub(crate) fn arm(&mut self) -> bool {
        self.ring.arm() || self.held
    }

    pub(crate) fn disarm(&mut self) {
        self.ring.disarm();
    }
}
