//! A connection to a peer: what this endpoint sends there.
//!
//! It is made with the first operation for the peer. Until the peer has answered, and whenever its ring is full,
//! operations wait in the queue; otherwise messages go into the ring at once.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::event::DownReason;
use fabric_core::provider::{Host, OpKey, SendSpec, WaitSet};
use fabric_core::{Address, Error, FiAddr, Result};

use super::handshake::{self, Answer, Read};
use super::record::{BEGIN, DATA, Layout, PIECE, TAGGED, WHOLE};
use super::ring::Producer;
use super::segment::Segment;

/// Lines of a new segment: 128 KiB of them.
const LINES: usize = 2048;
/// Bytes moved for one peer in one pass.
const BYTES_PER_PASS: usize = 64 * 1024;
/// Payload of one record of a longer message.
const PIECE_BYTES: usize = 8 * 1024;

/// Messages read from a socket in one go.
pub(crate) const READS_PER_LOOK: usize = 64;

/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Whom it leads to.
    pub(crate) peer: Address,
    pub(crate) addr: FiAddr,
    link: Link,
    /// The end of this connection will be no news.
    reported: bool,
    queue: VecDeque<Queued>,
}

#[derive(Debug)]
enum Link {
    Waiting(Wires),
    Live(Wires),
    /// Ended; a new one is made for the next operation.
    Gone,
}

#[derive(Debug)]
struct Wires {
    socket: OwnedFd,
    /// The process at the other end.
    process: i32,
    ring: Producer<Segment>,
}

#[derive(Debug)]
struct Queued {
    op: OpKey,
    spec: SendSpec,
    sent: usize,
    begun: bool,
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) error: Error,
    pub(crate) reason: DownReason,
    /// The process at the other end, if it had welcomed this endpoint before.
    pub(crate) process: Option<i32>,
}

impl Outgoing {
    pub(crate) fn new(peer: Address, addr: FiAddr) -> Self {
        Self { peer, addr, link: Link::Gone, reported: false, queue: VecDeque::new() }
    }

    /// Puts a message into the ring if nothing stands in the way.
    pub(crate) fn send_now(&mut self, spec: &SendSpec, payload: &[u8]) -> bool {
        let Link::Live(wires) = &mut self.link else { return false };
        self.queue.is_empty() && spec.kind == OpKind::Send && wires.whole(spec, payload)
    }

    /// Appends an operation.
    pub(crate) fn queue(&mut self, op: OpKey, spec: SendSpec) {
        self.queue.push_back(Queued { op, spec, sent: 0, begun: false });
    }

    /// Takes an operation back of which nothing was sent.
    pub(crate) fn cancel(&mut self, op: OpKey) -> bool {
        let at = self.queue.iter().position(|queued| queued.op == op && !queued.begun);
        at.is_some_and(|at| self.queue.remove(at).is_some())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Makes the connection if there is none.
    pub(crate) fn dial(&mut self, from: &Address, token: u64, wait: &dyn WaitSet) -> Result<()> {
        if !matches!(self.link, Link::Gone) {
            return Ok(());
        }
        let (socket, peer) = handshake::connect(&self.peer)?;
        let (segment, memory) = Segment::create(LINES)?;
        handshake::send_hello(&socket, &self.peer, from, LINES, memory.as_fd())?;
        wait.watch(socket.as_fd(), token)
            .map_err(|error| Error::os("epoll_ctl", error.raw_os_error().unwrap_or_default()))?;
        let ring = Producer::new(segment);
        self.reported = false;
        self.link = Link::Waiting(Wires { socket, process: peer.process, ring });
        Ok(())
    }

    /// Moves queued operations into the ring, as far as they fit. Returns whether anything moved.
    pub(crate) fn pump(&mut self, host: &mut dyn Host) -> bool {
        let Link::Live(wires) = &mut self.link else { return false };
        let mut bytes = 0;
        let mut moved = false;
        while bytes < BYTES_PER_PASS
            && let Some(front) = self.queue.front_mut()
        {
            let before = front.sent;
            let (progressed, done) = wires.advance(front, host);
            moved |= progressed;
            bytes += front.sent - before;
            if done {
                let transfer = Transfer::sent(front.sent, front.spec.tag);
                let op = front.op;
                self.queue.pop_front();
                host.complete(op, Outcome::ok(transfer));
            } else if !progressed {
                break;
            }
        }
        moved
    }

    /// The socket is readable: an answer, a ring, or the end.
    pub(crate) fn readable(&mut self) -> Option<Ended> {
        for _ in 0..READS_PER_LOOK {
            let (Link::Waiting(wires) | Link::Live(wires)) = &self.link else { return None };
            let was_live = matches!(self.link, Link::Live(_));
            let process = wires.process;
            let gone = |reason| (Error::PeerGone(self.peer.clone()), reason);
            let broke = |what: &'static str| {
                let peer = self.peer.clone();
                (Error::Protocol { peer, what: what.into() }, DownReason::Protocol(what))
            };
            let (error, reason) = match handshake::read_answer(&wires.socket) {
                Read::Nothing => return None,
                Read::Message(Answer::Ring) if was_live => continue,
                Read::Message(Answer::Welcome) if !was_live => {
                    if let Link::Waiting(wires) = std::mem::replace(&mut self.link, Link::Gone) {
                        self.link = Link::Live(wires);
                    }
                    continue;
                }
                Read::Message(Answer::Refused(reason)) => {
                    (Error::Refused { peer: self.peer.clone(), reason }, DownReason::Closed)
                }
                Read::Message(Answer::Goodbye) => gone(DownReason::Closed),
                Read::HungUp => gone(DownReason::Died),
                Read::Message(Answer::Welcome) => broke("a second welcome"),
                Read::Message(Answer::Ring) => broke("a ring before the welcome"),
                Read::Message(Answer::Leave) => broke("a word only the sender may say"),
                Read::Malformed(what) => broke(what),
            };
            return Some(Ended { error, reason, process: was_live.then_some(process) });
        }
        None
    }

    /// Somebody has told of the peer's end already.
    pub(crate) fn report(&mut self) {
        self.reported = true;
    }

    pub(crate) fn is_reported(&self) -> bool {
        self.reported
    }

    /// The process at the other end, while there is a connection.
    pub(crate) fn process(&self) -> Option<i32> {
        match &self.link {
            Link::Waiting(wires) | Link::Live(wires) => Some(wires.process),
            Link::Gone => None,
        }
    }

    /// Ends the connection; queued operations fail.
    pub(crate) fn end(&mut self, host: &mut dyn Host, wait: &dyn WaitSet, error: &Error) {
        if let Link::Waiting(wires) | Link::Live(wires) = std::mem::replace(&mut self.link, Link::Gone) {
            wait.unwatch(wires.socket.as_fd());
        }
        for queued in std::mem::take(&mut self.queue) {
            let transfer = Transfer::sent(queued.sent, queued.spec.tag);
            host.complete(queued.op, Outcome::cut(transfer, error.clone()));
        }
    }

    /// Says goodbye, because the endpoint closes, or that only this connection is given up.
    pub(crate) fn farewell(&self, word: Answer) {
        if let Link::Waiting(wires) | Link::Live(wires) = &self.link {
            handshake::send_answer(&wires.socket, word);
        }
    }

    /// Before sleeping: false when something could move now.
    pub(crate) fn arm(&mut self) -> bool {
        match &mut self.link {
            Link::Live(wires) => match self.queue.front() {
                None => true,
                Some(_) => {
                    let longest = wires.ring.shape().longest();
                    wires.ring.arm(longest)
                }
            },
            Link::Waiting(_) | Link::Gone => true,
        }
    }

    pub(crate) fn disarm(&mut self) {
        if let Link::Live(wires) = &self.link
            && !self.queue.is_empty()
        {
            wires.ring.disarm();
        }
    }
}

impl Wires {
    /// Sends a message in one record; false when it is too long for one, or there is no room.
    fn whole(&mut self, spec: &SendSpec, payload: &[u8]) -> bool {
        if payload.len() > PIECE_BYTES || !self.push(WHOLE, spec, 0, payload) {
            return false;
        }
        self.ring_bell();
        true
    }

    /// Moves the front operation on: whether anything moved, and whether it is done.
    fn advance(&mut self, front: &mut Queued, host: &mut dyn Host) -> (bool, bool) {
        if front.spec.kind != OpKind::Send {
            return (true, true);
        }
        let payload = host.payload(front.op);
        let total = payload.len();
        if !front.begun && total <= PIECE_BYTES {
            let done = self.whole(&front.spec, payload);
            if done {
                front.sent = total;
            }
            return (done, done);
        }
        let kind = if front.begun { PIECE } else { BEGIN };
        let piece = &payload[front.sent..total.min(front.sent + PIECE_BYTES)];
        if !self.push(kind, &front.spec, total as u64, piece) {
            return (false, false);
        }
        self.ring_bell();
        front.begun = true;
        front.sent += piece.len();
        (true, front.sent == total)
    }

    /// Publishes a record of this kind; `total` is the length of the whole message, for its beginning.
    #[inline]
    fn push(&mut self, kind: u8, spec: &SendSpec, total: u64, payload: &[u8]) -> bool {
        let flags = if kind == PIECE { 0 } else { flags_of(spec) };
        let layout = Layout::for_payload(kind, flags, payload.len());
        self.ring.push(kind, flags, layout.payload + payload.len(), |record| {
            if let (Some(at), Some(tag)) = (layout.tag, spec.tag) {
                record.put(at, &tag.to_le_bytes());
            }
            if let (Some(at), Some(data)) = (layout.data, spec.data) {
                record.put(at, &data.to_le_bytes());
            }
            if let Some(at) = layout.total {
                record.put(at, &total.to_le_bytes());
            }
            record.put(layout.payload, payload);
        })
    }

    fn ring_bell(&self) {
        if self.ring.must_ring() {
            handshake::send_answer(&self.socket, Answer::Ring);
        }
    }
}

fn flags_of(spec: &SendSpec) -> u8 {
    (if spec.tag.is_some() { TAGGED } else { 0 }) | (if spec.data.is_some() { DATA } else { 0 })
}
