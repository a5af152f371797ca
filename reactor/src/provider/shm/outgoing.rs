//! A connection to a peer: what this endpoint sends there.
//!
//! It is made with the first operation for the peer. Until the peer has answered, and whenever its ring is full,
//! operations wait in the queue; otherwise messages go into the ring at once.

mod confirmed;
mod lent;
mod onesided;
mod sleep;
mod spread;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::event::DownReason;
use fabric_core::flags::Access;
use fabric_core::matching::Receipt;
use fabric_core::mr::Reached;
use fabric_core::provider::{Host, OpKey, SendSpec, WaitSet};
use fabric_core::stats::Moved;
use fabric_core::{Address, Error, FiAddr, Result};

use super::area::Area;
use super::desk::Desk;
use super::handshake::{self, Grant, READS_PER_LOOK, Read, Said, Word};
use super::incoming::Identity;
use super::loans::Borrowed;
use super::receipts::Receipts;
pub(crate) use super::record::ALIGNED as PLAIN;
use super::record::{BEGIN, DATA, Layout, PIECE, TAGGED, WHOLE, total_word};
use super::ring::{HEADER, Producer, Reader};
use super::segment::Segment;
use super::socket::{self, Socket};
use super::windows::{Window, Windows};
use super::{Means, fetch};
use spread::Stop;
pub(crate) use spread::at_first;

/// Lines of a new segment: 128 KiB of them.
const LINES: usize = 2048;
/// Bytes moved for one peer in one pass.
const BYTES_PER_PASS: usize = 64 * 1024;
/// Bytes of a peer's memory accessed in one go. Longer accesses go on with every pass.
const ACCESS_AT_ONCE: usize = 256 * 1024;
/// The longest record of a notice.
const NOTICE_BYTES: usize = 64;
/// Payload of one record of a longer message.
const PIECE_BYTES: usize = 8 * 1024;

/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Whom it leads to.
    pub(crate) peer: Address,
    pub(crate) addr: FiAddr,
    link: Link,
    /// The end of this endpoint at the other end will be no news.
    reported: Option<Identity>,
    queue: VecDeque<Queued>,
    means: Means,
    /// What was done over connections that have ended, and without the domain.
    done: Doings,
    /// Operations without the domain.
    pub(crate) express: u64,
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
    socket: Socket,
    /// Which endpoint this leads to; its incarnation is known once it has welcomed this one.
    identity: Identity,
    ring: Producer<Segment>,
    /// The peer's memory, as far as it was mapped.
    windows: Windows,
    /// What the peer has of ours.
    borrowed: Borrowed,
    /// Messages that the peer is to confirm.
    receipts: Receipts,
    /// Messages of so many bytes are the peer's to fetch.
    fetched_from: usize,
    /// Where the peer answers what it is asked to do, once it was asked anything.
    desk: Option<Desk>,
    done: Doings,
}

/// What was done for a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doings {
    /// Without the domain.
    pub(crate) sent: Moved,
    pub(crate) written: Moved,
    pub(crate) atomics: Moved,
    pub(crate) doorbells: u64,
    pub(crate) lent: u64,
    pub(crate) pieces: Moved,
    pub(crate) single_copy: Moved,
    pub(crate) fetched: Moved,
}

impl std::ops::AddAssign for Doings {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.written += other.written;
        self.atomics += other.atomics;
        self.doorbells += other.doorbells;
        self.lent += other.lent;
        self.pieces += other.pieces;
        self.single_copy += other.single_copy;
        self.fetched += other.fetched;
    }
}

#[derive(Debug)]
struct Queued {
    op: OpKey,
    spec: SendSpec,
    sent: usize,
    /// Its length, once it was looked at.
    total: Option<usize>,
    begun: bool,
    /// The peer is to fetch it.
    offered: bool,
    /// The receipt that the peer is to confirm, once it has begun.
    receipt: Option<u32>,
    /// How far it is among its places, if it has several.
    stop: Stop,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// It is in the ring.
    Done,
    /// Not now, or not in one piece.
    NoRoom,
    /// The peer's endpoint has closed.
    Closed,
}

/// What became of the queue in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pumped {
    Moved,
    Idle,
    /// The peer's endpoint has closed.
    Closed,
}

impl Queued {
    /// Whether it is to reach the region of this key.
    fn wants(&self, key: u64) -> bool {
        self.spec.remote.is_some_and(|remote| remote.key == key)
    }

    fn is_done(&self) -> bool {
        self.total == Some(self.sent)
    }
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) error: Error,
    pub(crate) reason: DownReason,
    /// Which endpoint was at the other end, if it had welcomed this one.
    pub(crate) identity: Option<Identity>,
}

impl Outgoing {
    pub(crate) fn new(peer: Address, addr: FiAddr, means: Means) -> Self {
        Self {
            peer,
            addr,
            link: Link::Gone,
            reported: None,
            queue: VecDeque::new(),
            means,
            done: Doings::default(),
            express: 0,
        }
    }

    /// Whether the peer is to hear of this access, which it may have closed to.
    pub(crate) fn tells(&mut self, spec: &SendSpec) -> bool {
        match (&mut self.link, &spec.remote) {
            (Link::Live(wires), Some(remote)) => {
                wires.windows.get(remote.key).is_some_and(|window| window.tells(spec))
            }
            _ => false,
        }
    }

    /// Counts what was done without the domain.
    #[inline]
    pub(crate) fn count(&mut self, kind: OpKind, len: usize) {
        self.express += 1;
        match kind {
            OpKind::Send => self.done.sent.add(len),
            OpKind::Write => self.done.written.add(len),
            _ => self.done.atomics.add(len),
        }
    }

    /// Puts a message into the ring, or bytes into the peer's memory, if nothing stands in the way.
    ///
    /// # Errors
    /// Those of the access.
    #[inline]
    pub(crate) fn send_now(&mut self, spec: &SendSpec, payload: Payload<'_>) -> Result<Push> {
        let Some(wires) = self.at_once() else { return Ok(Push::NoRoom) };
        match spec.kind {
            // It ends when the peer says so.
            OpKind::Send if spec.level.is_confirmed() => Ok(Push::NoRoom),
            OpKind::Send => {
                let lent = spec.loan.and_then(|key| wires.lend(spec, key, payload.whole()?, None));
                Ok(lent.unwrap_or_else(|| wires.whole(spec, payload)))
            }
            OpKind::Write if spec.spread.is_some() => Ok(Push::NoRoom),
            OpKind::Write => wires.access_now(spec, payload.len(), |window, at, _| window.write(at, payload)),
            _ => Ok(Push::NoRoom),
        }
    }

    /// Sends a short message without anything but its bytes, and counts it.
    #[inline(always)] // on the way of a small message
    pub(crate) fn plain_now(&mut self, bytes: &[u8]) -> Push {
        let Link::Live(wires) = &mut self.link else { return Push::NoRoom };
        if !self.queue.is_empty() {
            return Push::NoRoom;
        }
        let pushed = wires.plain(bytes, false);
        if pushed == Push::Done {
            self.express += 1;
            self.done.sent.add(bytes.len());
        }
        pushed
    }

    /// Wakes the peer for what it was sent with `more`.
    pub(crate) fn flush(&mut self) -> Push {
        match &mut self.link {
            Link::Live(wires) => wires.wake(),
            Link::Waiting(_) | Link::Gone => Push::Done,
        }
    }

    /// Reads the peer's memory if nothing stands in the way.
    ///
    /// # Errors
    /// Those of the access.
    pub(crate) fn read_now(&mut self, spec: &SendSpec, into: &mut AnyBuf) -> Result<Push> {
        let Some(wires) = self.at_once().filter(|_| spec.spread.is_none()) else { return Ok(Push::NoRoom) };
        let len = spec.remote.map_or(0, |remote| remote.len);
        wires.access_now(spec, len, |window, at, remote| window.read(at, remote.len, into))
    }

    /// Executes an atomic operation if nothing stands in the way.
    ///
    /// # Errors
    /// Those of the access.
    pub(crate) fn atomic_now(&mut self, spec: &SendSpec, operands: &[u8], result: &mut [u8]) -> Result<Push> {
        let Some(wires) = self.at_once() else { return Ok(Push::NoRoom) };
        let len = spec.remote.map_or(0, |remote| remote.len);
        wires.access_now(spec, len, |window, at, remote| window.execute(at, remote, operands, result))
    }

    /// A region of the peer's that has been accessed.
    pub(crate) fn reach(&mut self, key: u64) -> Result<Option<Reached>> {
        match &mut self.link {
            Link::Live(wires) => wires.windows.reach(key),
            Link::Waiting(_) | Link::Gone => Ok(None),
        }
    }

    /// The connection, if it is there and nothing waits for it.
    #[inline]
    fn at_once(&mut self) -> Option<&mut Wires> {
        match &mut self.link {
            Link::Live(wires) if self.queue.is_empty() => Some(wires),
            _ => None,
        }
    }

    /// Appends an operation.
    pub(crate) fn queue(&mut self, op: OpKey, spec: SendSpec) {
        // Nobody knows when it will move, so it wakes the peer by itself.
        let spec = SendSpec { more: false, ..spec };
        let (begun, offered) = (false, false);
        self.queue.push_back(Queued {
            op,
            spec,
            sent: 0,
            total: None,
            begun,
            offered,
            receipt: None,
            stop: Stop::default(),
        });
    }

    /// Takes an operation back of which nothing was sent.
    pub(crate) fn cancel(&mut self, op: OpKey) -> bool {
        let at = self.queue.iter().position(|queued| queued.op == op && !queued.begun);
        let cancelled = at.is_some_and(|at| self.queue.remove(at).is_some());
        if let (true, Link::Live(wires)) = (cancelled, &mut self.link) {
            let queue = &self.queue;
            let wanted = |key| queue.iter().any(|queued| queued.wants(key));
            wires.windows.forget_denials(wanted);
        }
        cancelled
    }

    /// Nothing is queued, and nothing waits until the peer has fetched or confirmed it.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.awaits_peer()
    }

    fn awaits_peer(&self) -> bool {
        matches!(&self.link, Link::Live(wires) if wires.awaits_peer())
    }

    /// Makes the connection if there is none.
    pub(crate) fn dial(
        &mut self,
        from: &Address,
        incarnation: u64,
        token: u64,
        wait: &Arc<dyn WaitSet>,
    ) -> Result<()> {
        if !matches!(self.link, Link::Gone) {
            return Ok(());
        }
        let (mut socket, peer) = Socket::connect(&self.peer)?;
        let (segment, memory) = Segment::create(LINES)?;
        if self.means.single_copy_from != usize::MAX {
            let (at, value) = fetch::probe();
            segment.set_probe(at, value);
        }
        handshake::send_hello(&socket, &self.peer, from, incarnation, LINES, memory.as_fd())?;
        socket.watch(wait, token)?;
        let ring = Producer::new(segment);
        self.reported = None;
        let identity = Identity { process: peer.process, incarnation: 0 };
        self.link = Link::Waiting(Wires {
            socket,
            identity,
            ring,
            windows: Windows::default(),
            borrowed: Borrowed::new(self.means.loans.clone()),
            receipts: Receipts::default(),
            fetched_from: usize::MAX,
            desk: None,
            done: Doings::default(),
        });
        Ok(())
    }

    /// Moves queued operations into the ring, as far as they fit.
    pub(crate) fn pump(&mut self, host: &mut dyn Host) -> Pumped {
        let Link::Live(wires) = &mut self.link else { return Pumped::Idle };
        let mut bytes = 0;
        let mut moved = wires.awaits_peer() && (wires.end_fetched(host) | wires.end_confirmed(host));
        while bytes < BYTES_PER_PASS
            && let Some(front) = self.queue.front_mut()
        {
            let before = front.sent;
            let pushed = match wires.advance(front, host) {
                Ok(pushed) => pushed,
                Err(error) => {
                    let op = front.op;
                    self.queue.pop_front();
                    host.complete(op, Outcome::failed(error));
                    moved = true;
                    continue;
                }
            };
            moved |= pushed == Push::Done;
            bytes += front.sent - before;
            if pushed == Push::Done && front.offered {
                // It ends when the peer has fetched it.
                self.queue.pop_front();
            } else if pushed == Push::Done && front.is_done() {
                let transfer = Transfer::sent(front.sent, front.spec.tag);
                let (op, receipt) = (front.op, front.receipt);
                if front.spec.remote.is_none() && front.sent > PIECE_BYTES && front.begun {
                    wires.done.pieces.add(front.sent);
                }
                self.queue.pop_front();
                match receipt {
                    None => host.complete(op, Outcome::ok(transfer)),
                    Some(number) => wires.sent_with(number, host),
                }
            } else if pushed == Push::Closed {
                return Pumped::Closed;
            } else if pushed == Push::NoRoom {
                break;
            }
        }
        if moved { Pumped::Moved } else { Pumped::Idle }
    }

    /// The socket is readable: an answer, a ring, or the end.
    pub(crate) fn readable(&mut self) -> Option<Ended> {
        for _ in 0..READS_PER_LOOK {
            let (Link::Waiting(wires) | Link::Live(wires)) = &self.link else { return None };
            let was_live = matches!(self.link, Link::Live(_));
            let identity = wires.identity;
            let peer = self.peer.clone();
            let gone = |reason| (Error::PeerGone(peer.clone()), reason);
            let broke = |what: &'static str| {
                (Error::Protocol { peer: peer.clone(), what: what.into() }, DownReason::Protocol(what))
            };
            let (error, reason) = match handshake::read_said(&wires.socket) {
                Read::Nothing => return None,
                Read::Message(Said::Word(Word::Ring)) if was_live => continue,
                Read::Message(Said::Grant(grant)) => {
                    if self.granted(grant) {
                        continue;
                    }
                    broke("memory nobody has asked for")
                }
                Read::Message(Said::Word(Word::Denied(key))) => {
                    if self.answered(key, Err("is unknown")) {
                        continue;
                    }
                    broke("an answer to what nobody has asked")
                }
                Read::Message(Said::Lost(key)) => {
                    if self.answered(key, Err("came without memory: out of descriptors")) {
                        continue;
                    }
                    broke("memory nobody has asked for")
                }
                Read::Message(Said::Word(Word::Served(key, heeds))) => {
                    if self.served(key, heeds) {
                        continue;
                    }
                    broke("an answer to what nobody has asked")
                }
                Read::Message(Said::Word(Word::Welcome(incarnation))) if !was_live => {
                    if let Link::Waiting(mut wires) = std::mem::replace(&mut self.link, Link::Gone) {
                        wires.identity.incarnation = incarnation;
                        if wires.ring.memory().is_reached() {
                            wires.fetched_from = self.means.single_copy_from.max(PIECE_BYTES + 1);
                        }
                        self.link = Link::Live(wires);
                    }
                    continue;
                }
                Read::Message(Said::Word(Word::Refused(reason))) => {
                    (Error::Refused { peer: peer.clone(), reason }, DownReason::Closed)
                }
                Read::Message(Said::Word(Word::Goodbye)) => gone(DownReason::Closed),
                Read::HungUp => gone(DownReason::Died),
                Read::Message(Said::Word(Word::Welcome(_))) => broke("a second welcome"),
                Read::Message(Said::Word(Word::Ring)) => broke("a ring before the welcome"),
                Read::Message(Said::Word(Word::Leave | Word::Map(_) | Word::Forget(_))) => {
                    broke("a word only the sender may say")
                }
                Read::Malformed(what) => broke(what),
                Read::OtherVersion(_) => broke("another version"),
                Read::NoRoom => broke("descriptors with what is no grant"),
            };
            return Some(Ended { error, reason, identity: was_live.then_some(identity) });
        }
        None
    }

    /// The peer has sent memory; false when it was not asked for it.
    fn granted(&mut self, grant: Grant<OwnedFd>) -> bool {
        let Grant { key, len, access, base, heeds, memory } = grant;
        let window = Area::adopt(&memory, len, access.contains(Access::REMOTE_WRITE));
        socket::discard(vec![memory]);
        self.answered(key, window.map(|area| Window { key, area: Arc::new(area), access, base, heeds }))
    }

    fn served(&mut self, key: u64, heeds: bool) -> bool {
        let Link::Live(wires) = &mut self.link else { return false };
        let asked = wires.windows.awaits(key);
        if asked {
            wires.windows.served(key, heeds);
        }
        asked
    }

    fn answered(&mut self, key: u64, window: Result<Window, &'static str>) -> bool {
        let Link::Live(wires) = &mut self.link else { return false };
        let asked = wires.windows.awaits(key);
        if asked {
            wires.windows.answered(key, window, self.queue.iter().any(|queued| queued.wants(key)));
        }
        asked
    }

    /// Somebody has told of the end of this endpoint already. One that has not welcomed this one yet may turn out to be it.
    pub(crate) fn report(&mut self, identity: Identity) {
        if self.identity().is_none_or(|own| own == identity) {
            self.reported = Some(identity);
        }
    }

    pub(crate) fn is_reported(&self, identity: Identity) -> bool {
        self.reported == Some(identity)
    }

    /// Which endpoint is at the other end, once it has welcomed this one.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match &self.link {
            Link::Live(wires) => Some(wires.identity),
            Link::Waiting(_) | Link::Gone => None,
        }
    }

    /// Whether the peer copies long messages straight from here.
    pub(crate) fn is_reached(&self) -> bool {
        matches!(&self.link, Link::Live(wires) if wires.fetched_from != usize::MAX)
    }

    /// Ends the connection; queued operations fail.
    pub(crate) fn end(&mut self, host: &mut dyn Host, error: &Error) {
        if let Link::Live(wires) = &mut self.link {
            wires.end_offered(host, error);
            wires.end_unconfirmed(host, error);
        }
        self.done = self.done();
        self.link = Link::Gone;
        for queued in std::mem::take(&mut self.queue) {
            let transfer = Transfer::sent(queued.sent, queued.spec.tag);
            host.complete(queued.op, Outcome::cut(transfer, error.clone()));
        }
    }

    /// What was done for the peer.
    pub(crate) fn done(&self) -> Doings {
        let mut done = self.done;
        if let Link::Waiting(wires) | Link::Live(wires) = &self.link {
            done += wires.done;
        }
        done
    }

    /// Loans that the peer has.
    pub(crate) fn out(&self) -> usize {
        if let Link::Live(wires) = &self.link { wires.borrowed.out() } else { 0 }
    }

    /// Takes back what the peer has given back of what was lent to it.
    pub(crate) fn collect(&mut self) {
        if let Link::Live(wires) = &mut self.link {
            wires.borrowed.collect(wires.ring.memory());
        }
    }

    /// Says goodbye, because the endpoint closes, or that only this connection is given up.
    pub(crate) fn farewell(&self, word: Word) {
        if let Link::Waiting(wires) | Link::Live(wires) = &self.link {
            handshake::say(&wires.socket, word);
        }
    }

    /// Before sleeping: false when something could move now.
    pub(crate) fn arm(&mut self) -> bool {
        match &mut self.link {
            Link::Live(wires) => wires.arm(self.queue.front()),
            Link::Waiting(_) | Link::Gone => true,
        }
    }

    pub(crate) fn disarm(&mut self) {
        if let Link::Live(wires) = &self.link
            && !self.is_idle()
        {
            wires.ring.disarm();
        }
    }
}

impl Wires {
    /// Sends a message that has nothing but its bytes, fewer than [`PLAIN`].
    #[inline(always)] // on the way of a small message
    fn plain(&mut self, bytes: &[u8], more: bool) -> Push {
        if self.ring.push(WHOLE, 0, HEADER + bytes.len(), |record| record.put(HEADER, bytes)) {
            self.pushed(more)
        } else {
            Push::NoRoom
        }
    }

    /// A record was published: wakes the peer, unless `more` follows.
    #[inline]
    fn pushed(&mut self, more: bool) -> Push {
        if !more {
            return self.wake();
        }
        if self.ring.is_closed() { Push::Closed } else { Push::Done }
    }

    /// Sends a message in one record, unless it is too long for one.
    #[inline]
    fn whole(&mut self, spec: &SendSpec, payload: Payload<'_>) -> Push {
        match payload {
            Payload::Whole(bytes) if bytes.len() < PLAIN && spec.tag.is_none() && spec.data.is_none() => {
                self.plain(bytes, spec.more)
            }
            _ if payload.len() > PIECE_BYTES => Push::NoRoom,
            _ => self.push(WHOLE, spec, 0, payload),
        }
    }

    /// Moves the front operation on.
    fn advance(&mut self, front: &mut Queued, host: &mut dyn Host) -> Result<Push> {
        match front.spec.remote {
            Some(remote) => return self.access_on(front, &remote, host),
            None if front.spec.kind != OpKind::Send => {
                front.total = Some(0);
                return Ok(Push::Done);
            }
            None => {}
        }
        let payload = host.payload(front.op);
        front.total = Some(payload.len());
        let receipt = self.receipt_for(front)?;
        let loan = front.spec.loan.filter(|_| !front.begun);
        let lent = loan.and_then(|key| self.lend(&front.spec, key, payload.whole()?, receipt));
        let may_fetch = lent.is_none()
            && payload.len() >= self.fetched_from
            && !front.begun
            && host.is_ordinary(front.op);
        let offered =
            payload.whole().filter(|_| may_fetch).and_then(|bytes| self.offer(front, bytes, receipt));
        let (pushed, count) = if let Some(pushed) = lent {
            (pushed, payload.len())
        } else if let Some(pushed) = offered {
            front.offered = pushed == Push::Done;
            (pushed, 0)
        } else if !front.begun && payload.len() <= PIECE_BYTES && receipt.is_none() {
            (self.whole(&front.spec, payload), payload.len())
        } else {
            let kind = if front.begun { PIECE } else { BEGIN };
            let piece = payload.part(front.sent, (payload.len() - front.sent).min(PIECE_BYTES));
            (self.push(kind, &front.spec, total_word(payload.len(), receipt), piece), piece.len())
        };
        if pushed == Push::Done {
            if let Some(Receipt { number, .. }) = receipt {
                self.receipts.expect(number, front.op, Transfer::sent(payload.len(), front.spec.tag));
                front.receipt = Some(number);
            }
            front.begun = true;
            front.sent += count;
        }
        Ok(pushed)
    }

    /// Publishes a record of this kind; `total` says how long the whole message is, for its beginning.
    #[inline]
    fn push(&mut self, kind: u8, spec: &SendSpec, total: u64, payload: Payload<'_>) -> Push {
        let flags = if kind == PIECE { 0 } else { flags_of(spec) };
        self.record(kind, flags, spec, total, payload)
    }

    #[inline(always)] // on the way of a small message
    fn record(&mut self, kind: u8, flags: u8, spec: &SendSpec, total: u64, payload: Payload<'_>) -> Push {
        let layout = Layout::for_payload(kind, flags, payload.len());
        let pushed = self.ring.push(kind, flags, layout.payload + payload.len(), |record| {
            if let (Some(at), Some(tag)) = (layout.tag, spec.tag) {
                record.put(at, &tag.to_le_bytes());
            }
            if let (Some(at), Some(data)) = (layout.data, spec.data) {
                record.put(at, &data.to_le_bytes());
            }
            if let Some(at) = layout.total {
                record.put(at, &total.to_le_bytes());
            }
            match payload {
                Payload::Whole(bytes) => record.put(layout.payload, bytes),
                pieces => pieces.for_each(|at, piece| record.put(layout.payload + at, piece)),
            }
        });
        if !pushed {
            return Push::NoRoom;
        }
        self.pushed(spec.more)
    }

    /// Wakes the peer if it sleeps.
    #[inline]
    fn wake(&mut self) -> Push {
        match self.ring.reader() {
            Reader::Awake => Push::Done,
            Reader::Asleep => {
                handshake::say(&self.socket, Word::Ring);
                self.done.doorbells += 1;
                Push::Done
            }
            Reader::Closed => Push::Closed,
        }
    }
}

fn flags_of(spec: &SendSpec) -> u8 {
    (if spec.tag.is_some() { TAGGED } else { 0 }) | (if spec.data.is_some() { DATA } else { 0 })
}
