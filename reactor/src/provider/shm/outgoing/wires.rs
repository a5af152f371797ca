//! The connection itself: the ring that the peer reads, the socket beside it, and what both sides
//! have of each other.

use std::os::fd::{AsFd, OwnedFd};

use fabric_core::buf::Payload;
use fabric_core::completion::{OpKind, Transfer};
use fabric_core::matching::Receipt;
use fabric_core::provider::{Host, SendSpec};
use fabric_core::{Address, Result};

use super::super::desk::Desk;
use super::super::handshake::{self, Word};
use super::super::incoming::Identity;
use super::super::loans::Borrowed;
use super::super::receipts::Receipts;
use super::super::record::{BEGIN, DATA, Layout, PIECE, TAGGED, WHOLE, total_word};
use super::super::ring::{HEADER, Producer, Reader};
use super::super::segment::Segment;
use super::super::socket::Socket;
use super::super::windows::Windows;
use super::super::{Means, fetch};
use super::{Doings, PLAIN, Push, Queued};

/// Lines of a new segment: 128 KiB of them.
const LINES: usize = 2048;
/// Bytes of a peer's memory accessed in one go. Longer accesses go on with every pass.
pub(super) const ACCESS_AT_ONCE: usize = 256 * 1024;
/// The longest record of a notice.
pub(super) const NOTICE_BYTES: usize = 64;
/// Payload of one record of a longer message.
pub(super) const PIECE_BYTES: usize = 8 * 1024;

/// The hello of a connection whose peer is not ready for it yet.
#[derive(Debug)]
struct Hello {
    from: Address,
    incarnation: u64,
    segment: OwnedFd,
}

#[derive(Debug)]
pub(super) struct Wires {
    hello: Option<Hello>,
    pub(super) socket: Socket,
    /// Which endpoint this leads to; its incarnation is known once it has welcomed this one.
    pub(super) identity: Identity,
    pub(super) ring: Producer<Segment>,
    /// The peer's memory, as far as it was mapped.
    pub(super) windows: Windows,
    /// What the peer has of ours.
    pub(super) borrowed: Borrowed,
    /// Messages that the peer is to confirm.
    pub(super) receipts: Receipts,
    /// Which messages are the peer's to fetch.
    pub(super) fetched: fetch::Which,
    /// Where the peer answers what it is asked to do, once it was asked anything.
    pub(super) desk: Option<Desk>,
    pub(super) done: Doings,
}

impl Wires {
    /// Connects to the peer, and gives it a segment.
    pub(super) fn lay(
        peer: &Address,
        from: &Address,
        incarnation: u64,
        means: &Means,
    ) -> Result<Self> {
        let (socket, at) = Socket::connect(peer)?;
        let (segment, memory) = Segment::create(LINES)?;
        if !means.fetched.is_none() {
            let (at, value) = fetch::probe();
            segment.set_probe(at, value);
        }
        Ok(Self {
            hello: Some(Hello {
                from: from.clone(),
                incarnation,
                segment: memory,
            }),
            socket,
            identity: Identity {
                process: at.process,
                incarnation: 0,
            },
            ring: Producer::new(segment),
            windows: Windows::default(),
            borrowed: Borrowed::new(means.loans.clone()),
            receipts: Receipts::default(),
            fetched: fetch::Which::from(usize::MAX),
            desk: None,
            done: Doings::default(),
        })
    }

    /// Says hello, with the segment; false if that was done before.
    ///
    /// # Errors
    /// Those of [`handshake::send_hello`].
    pub(super) fn greet(&mut self, peer: &Address) -> Result<bool> {
        let Some(hello) = self.hello.take() else {
            return Ok(false);
        };
        let (from, segment) = (&hello.from, hello.segment.as_fd());
        handshake::send_hello(&self.socket, peer, from, hello.incarnation, LINES, segment)?;
        Ok(true)
    }

    /// Whether the hello was sent.
    pub(super) fn has_greeted(&self) -> bool {
        self.hello.is_none()
    }

    /// The peer has taken the segment, and says which endpoint of its name it is.
    pub(super) fn welcomed(&mut self, incarnation: u64, fetched: fetch::Which) {
        self.identity.incarnation = incarnation;
        if self.ring.memory().is_reached() {
            self.fetched = fetch::Which {
                from: fetched.from.max(PIECE_BYTES + 1),
                ..fetched
            };
        }
    }

    /// Sends a message that has nothing but its bytes, fewer than [`PLAIN`].
    #[inline(always)] // on the way of a small message
    pub(super) fn plain(&mut self, bytes: &[u8], more: bool) -> Push {
        if self.ring.push(WHOLE, 0, HEADER + bytes.len(), |record| {
            record.put(HEADER, bytes)
        }) {
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
        if self.ring.is_closed() {
            Push::Closed
        } else {
            Push::Done
        }
    }

    /// Sends a message in one record, unless it is too long for one.
    #[inline]
    pub(super) fn whole(&mut self, spec: &SendSpec, payload: Payload<'_>) -> Push {
        match payload {
            Payload::Whole(bytes)
                if bytes.len() < PLAIN && spec.tag.is_none() && spec.data.is_none() =>
            {
                self.plain(bytes, spec.more)
            }
            _ if payload.len() > PIECE_BYTES => Push::NoRoom,
            _ => self.push(WHOLE, spec, 0, payload),
        }
    }

    /// Moves the front operation on; `alone`, when nothing is queued behind it.
    pub(super) fn advance(
        &mut self,
        front: &mut Queued,
        alone: bool,
        host: &mut dyn Host,
    ) -> Result<Push> {
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
            && self
                .fetched
                .has(payload.len(), alone && !self.borrowed.is_fetching())
            && !front.begun
            && host.is_ordinary(front.op);
        let offered = payload
            .whole()
            .filter(|_| may_fetch)
            .and_then(|bytes| self.offer(front, bytes, receipt));
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
            (
                self.push(kind, &front.spec, total_word(payload.len(), receipt), piece),
                piece.len(),
            )
        };
        if pushed == Push::Done {
            if let Some(Receipt { number, .. }) = receipt {
                self.receipts.expect(
                    number,
                    front.op,
                    Transfer::sent(payload.len(), front.spec.tag),
                );
                front.receipt = Some(number);
            }
            front.begun = true;
            front.sent += count;
        }
        Ok(pushed)
    }

    /// Publishes a record of this kind; `total` says how long the whole message is, for its
    /// beginning.
    #[inline]
    fn push(&mut self, kind: u8, spec: &SendSpec, total: u64, payload: Payload<'_>) -> Push {
        let flags = if kind == PIECE { 0 } else { flags_of(spec) };
        self.record(kind, flags, spec, total, payload)
    }

    #[inline(always)] // on the way of a small message
    pub(super) fn record(
        &mut self,
        kind: u8,
        flags: u8,
        spec: &SendSpec,
        total: u64,
        payload: Payload<'_>,
    ) -> Push {
        let layout = Layout::for_payload(kind, flags, payload.len());
        let pushed = self
            .ring
            .push(kind, flags, layout.payload + payload.len(), |record| {
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
    pub(super) fn wake(&mut self) -> Push {
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

pub(super) fn flags_of(spec: &SendSpec) -> u8 {
    (if spec.tag.is_some() { TAGGED } else { 0 }) | (if spec.data.is_some() { DATA } else { 0 })
}
