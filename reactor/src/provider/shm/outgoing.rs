//! A connection to a peer: what this endpoint sends there.
//!
//! It is made with the first operation for the peer. Until the peer has answered, and whenever its
//! ring is full, operations wait in the queue; otherwise messages go into the ring at once.

mod confirmed;
mod lent;
mod onesided;
mod said;
mod sleep;
mod spread;
mod wires;

use std::collections::VecDeque;
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::mr::Reached;
use fabric_core::provider::{Host, Incarnation, OpKey, SendSpec, WaitSet};
use fabric_core::stats::Moved;
use fabric_core::{Address, Error, FiAddr, Result};

use super::Means;
use super::handshake::{self, Word};
use super::incoming::Identity;
pub(crate) use super::record::ALIGNED as PLAIN;
pub(crate) use said::Parting;
use spread::Stop;
pub(crate) use spread::at_first;
use wires::{PIECE_BYTES, Wires};

/// Bytes moved for one peer in one pass.
const BYTES_PER_PASS: usize = 64 * 1024;
/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Whom it leads to.
    pub(crate) peer: Address,
    pub(crate) addr: FiAddr,
    /// Which endpoint it must lead to; `None` if whichever has the name.
    pub(crate) expected: Option<Incarnation>,
    standing: Standing,
    /// The end of this endpoint at the other end will be no news.
    reported: Option<Identity>,
    queue: VecDeque<Queued>,
    means: Means,
    /// What was done over connections that have ended, and without the domain.
    done: Doings,
    /// Operations without the domain.
    pub(crate) express: u64,
}

/// How far a connection has come.
#[derive(Debug)]
enum Standing {
    /// The peer has not answered.
    Waiting(Wires),
    Live(Wires),
    /// Ended; a new one is made for the next operation.
    Gone,
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

impl Outgoing {
    pub(crate) fn new(peer: Address, addr: FiAddr, means: Means) -> Self {
        Self {
            peer,
            addr,
            expected: None,
            standing: Standing::Gone,
            reported: None,
            queue: VecDeque::new(),
            means,
            done: Doings::default(),
            express: 0,
        }
    }

    /// Whether the peer is to hear of this access, which it may have closed to.
    pub(crate) fn tells(&mut self, spec: &SendSpec) -> bool {
        match (&mut self.standing, &spec.remote) {
            (Standing::Live(wires), Some(remote)) => wires
                .windows
                .get(remote.key)
                .is_some_and(|window| window.tells(spec)),
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
        let Some(wires) = self.at_once() else {
            return Ok(Push::NoRoom);
        };
        match spec.kind {
            // It ends when the peer says so.
            OpKind::Send if spec.level.is_confirmed() => Ok(Push::NoRoom),
            OpKind::Send => {
                let lent = spec
                    .loan
                    .and_then(|key| wires.lend(spec, key, payload.whole()?, None));
                Ok(lent.unwrap_or_else(|| wires.whole(spec, payload)))
            }
            OpKind::Write if spec.spread.is_some() => Ok(Push::NoRoom),
            OpKind::Write => wires.access_now(spec, payload.len(), |window, at, _| {
                window.write(at, payload)
            }),
            _ => Ok(Push::NoRoom),
        }
    }

    /// Sends a short message without anything but its bytes, and counts it.
    #[inline(always)] // on the way of a small message
    pub(crate) fn plain_now(&mut self, bytes: &[u8]) -> Push {
        let Standing::Live(wires) = &mut self.standing else {
            return Push::NoRoom;
        };
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
        match &mut self.standing {
            Standing::Live(wires) => wires.wake(),
            Standing::Waiting(_) | Standing::Gone => Push::Done,
        }
    }

    /// Reads the peer's memory if nothing stands in the way.
    ///
    /// # Errors
    /// Those of the access.
    pub(crate) fn read_now(&mut self, spec: &SendSpec, into: &mut AnyBuf) -> Result<Push> {
        let Some(wires) = self.at_once().filter(|_| spec.spread.is_none()) else {
            return Ok(Push::NoRoom);
        };
        let len = spec.remote.map_or(0, |remote| remote.len);
        wires.access_now(spec, len, |window, at, remote| {
            window.read(at, remote.len, into)
        })
    }

    /// Executes an atomic operation if nothing stands in the way.
    ///
    /// # Errors
    /// Those of the access.
    pub(crate) fn atomic_now(
        &mut self,
        spec: &SendSpec,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<Push> {
        let Some(wires) = self.at_once() else {
            return Ok(Push::NoRoom);
        };
        let len = spec.remote.map_or(0, |remote| remote.len);
        wires.access_now(spec, len, |window, at, remote| {
            window.execute(at, remote, operands, result)
        })
    }

    /// A region of the peer's that has been accessed.
    pub(crate) fn reach(&mut self, key: u64) -> Result<Option<Reached>> {
        match &mut self.standing {
            Standing::Live(wires) => wires.windows.reach(key),
            Standing::Waiting(_) | Standing::Gone => Ok(None),
        }
    }

    /// The connection, if it is there and nothing waits for it.
    #[inline]
    fn at_once(&mut self) -> Option<&mut Wires> {
        match &mut self.standing {
            Standing::Live(wires) if self.queue.is_empty() => Some(wires),
            _ => None,
        }
    }

    /// Appends an operation.
    pub(crate) fn queue(&mut self, op: OpKey, spec: SendSpec) {
        // Nobody knows when it will move, so it wakes the peer by itself.
        let spec = SendSpec {
            more: false,
            ..spec
        };
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
        let at = self
            .queue
            .iter()
            .position(|queued| queued.op == op && !queued.begun);
        let cancelled = at.is_some_and(|at| self.queue.remove(at).is_some());
        if let (true, Standing::Live(wires)) = (cancelled, &mut self.standing) {
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
        matches!(&self.standing, Standing::Live(wires) if wires.awaits_peer())
    }

    /// Whether there is no connection, and none is being made.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.standing, Standing::Gone)
    }

    /// Makes the connection if there is none.
    pub(crate) fn dial(
        &mut self,
        from: &Address,
        incarnation: u64,
        token: u64,
        wait: &Arc<dyn WaitSet>,
    ) -> Result<()> {
        if matches!(self.standing, Standing::Gone) {
            let mut wires = Wires::lay(&self.peer, from, incarnation, &self.means)?;
            wires.socket.watch(wait, token)?;
            self.reported = None;
            self.standing = Standing::Waiting(wires);
        }
        Ok(())
    }

    /// Moves queued operations into the ring, as far as they fit.
    pub(crate) fn pump(&mut self, host: &mut dyn Host) -> Pumped {
        let Standing::Live(wires) = &mut self.standing else {
            return Pumped::Idle;
        };
        let mut bytes = 0;
        let mut moved =
            wires.awaits_peer() && (wires.end_fetched(host) | wires.end_confirmed(host));
        while bytes < BYTES_PER_PASS
            && let alone = self.queue.len() == 1
            && let Some(front) = self.queue.front_mut()
        {
            let before = front.sent;
            let pushed = match wires.advance(front, alone, host) {
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

    /// Somebody has told of the end of this endpoint already. One that has not welcomed this one
    /// yet may turn out to be it.
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
        match &self.standing {
            Standing::Live(wires) => Some(wires.identity),
            Standing::Waiting(_) | Standing::Gone => None,
        }
    }

    /// Whether the peer copies long messages straight from here.
    pub(crate) fn is_reached(&self) -> bool {
        matches!(&self.standing, Standing::Live(wires) if !wires.fetched.is_none())
    }

    /// Ends the connection; queued operations fail.
    pub(crate) fn end(&mut self, host: &mut dyn Host, error: &Error) {
        if let Standing::Live(wires) = &mut self.standing {
            wires.windows.end(error);
            wires.end_offered(host, error);
            wires.end_unconfirmed(host, error);
        }
        self.done = self.done();
        self.standing = Standing::Gone;
        for queued in std::mem::take(&mut self.queue) {
            let transfer = Transfer::sent(queued.sent, queued.spec.tag);
            host.complete(queued.op, Outcome::cut(transfer, error.clone()));
        }
    }

    /// What was done for the peer.
    pub(crate) fn done(&self) -> Doings {
        let mut done = self.done;
        if let Standing::Waiting(wires) | Standing::Live(wires) = &self.standing {
            done += wires.done;
        }
        done
    }

    /// Loans that the peer has.
    pub(crate) fn out(&self) -> usize {
        if let Standing::Live(wires) = &self.standing {
            wires.borrowed.out()
        } else {
            0
        }
    }

    /// Takes back what the peer has given back of what was lent to it.
    pub(crate) fn collect(&mut self) {
        if let Standing::Live(wires) = &mut self.standing {
            wires.borrowed.collect(wires.ring.memory());
        }
    }

    /// Says goodbye, because the endpoint closes, or that only this connection is given up.
    pub(crate) fn farewell(&self, word: Word) {
        if let Standing::Waiting(wires) | Standing::Live(wires) = &self.standing {
            handshake::say(&wires.socket, word);
        }
    }

    /// Before sleeping: false when something could move now.
    pub(crate) fn arm(&mut self) -> bool {
        match &mut self.standing {
            Standing::Live(wires) => wires.arm(self.queue.front()),
            Standing::Waiting(_) | Standing::Gone => true,
        }
    }

    pub(crate) fn disarm(&mut self) {
        if let Standing::Live(wires) = &self.standing
            && !self.is_idle()
        {
            wires.ring.disarm();
        }
    }
}
