//! A connection from a peer: what it sends to this endpoint.

mod meet;
mod memory;

use std::sync::Arc;

use fabric_core::buf::Source;
use fabric_core::completion::Transfer;
use fabric_core::event::DownReason;
use fabric_core::matching::{Envelope, PeerKey};
use fabric_core::provider::{Deed, EpId, Host, Incarnation};
use fabric_core::rx::{LandingId, RxContext};
use fabric_core::{Address, Error, FiAddr};

use super::area::Area;
use super::desk::{REQUEST_BYTES, Request};
use super::fetch::Reach;
use super::handshake::{self, READS_PER_LOOK, Read, Said, Word};
use super::loans::{Adopted, Foreign};
use super::record::{
    BEGIN, FETCH, HAS_READ, LOAN, Layout, NOTICE, PIECE, PLACE_BYTES, REQUEST, WHOLE,
    from_total_word, plain_payload,
};
use super::ring::{Broken, Consumer, Glance, Record};
use super::segment::{Payload, Segment};
use super::socket::Socket;

pub(crate) use meet::{Met, Stranger};

/// Records and bytes taken from one peer in one pass.
const RECORDS_PER_PASS: usize = 64;
const BYTES_PER_PASS: usize = 64 * 1024;
/// The longest message a peer may announce.
pub(crate) const MAX_MESSAGE: usize = 1 << 40;

/// Which endpoint a connection leads to. Names are only claimed, and used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The process, as the kernel says; unknown in another process namespace.
    pub(crate) process: Option<i32>,
    /// A random number of the endpoint's, as it says.
    pub(crate) incarnation: u64,
}

impl From<Identity> for Incarnation {
    fn from(identity: Identity) -> Self {
        let process = identity.process.unwrap_or_default();
        Self(u128::from(identity.incarnation) | (process as u128) << 64 & (u128::MAX >> 1))
    }
}

/// The endpoint that a connection leads to.
#[derive(Clone, Debug)]
pub(crate) struct Here {
    pub(crate) ep: EpId,
    /// A random number that tells it from others of its name.
    pub(crate) incarnation: u64,
    /// Peers may reach memory of its domain, and it wants to hear of everything that they do there.
    pub(crate) is_target: bool,
    pub(crate) heeds: bool,
    /// It copies long messages straight from its peers, where it can.
    pub(crate) fetches: bool,
    /// What peers lend to it.
    pub(crate) adopted: Adopted,
}

/// A connection from a peer.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) peer: Address,
    pub(crate) key: PeerKey,
    pub(crate) source: Option<FiAddr>,
    /// Its number when it connected.
    pub(crate) number: Option<FiAddr>,
    pub(crate) identity: Identity,
    here: Here,
    socket: Socket,
    ring: Consumer<Segment>,
    /// Memory that the peer lends, by its name.
    lent: Vec<(u64, Arc<Foreign>)>,
    /// Its own memory, if that can be read from here.
    reach: Option<Arc<Reach>>,
    /// Where it is answered what it asks for.
    desk: Option<Area>,
    /// The message that is arriving in pieces.
    landing: Option<LandingId>,
    /// The oldest record waits for a receive, or for room.
    held: bool,
    /// The peer has said goodbye, or that it gives up this connection only.
    goodbye: bool,
    left: bool,
    /// The peer has ended; what it left in the ring is still delivered.
    down: Option<DownReason>,
    /// How often the peer slept and was woken.
    pub(crate) doorbells: u64,
    /// The pass in which something of it was taken last.
    pub(crate) heard: u32,
    /// It is not looked at in every pass, and rings.
    pub(crate) alone: bool,
}

impl Incoming {
    fn new(
        peer: Address,
        identity: Identity,
        here: Here,
        segment: Segment,
        socket: Socket,
        key: PeerKey,
    ) -> Self {
        Self {
            peer,
            key,
            source: None,
            number: None,
            identity,
            here,
            socket,
            ring: Consumer::new(segment),
            lent: Vec::new(),
            reach: None,
            desk: None,
            landing: None,
            held: false,
            goodbye: false,
            left: false,
            down: None,
            doorbells: 0,
            heard: 0,
            alone: false,
        }
    }

    /// Takes what has arrived, as far as it is wanted. Returns whether anything moved.
    #[inline(always)] // on the way of a small message
    pub(crate) fn pump(&mut self, rx: &mut RxContext, host: &mut dyn Host) -> Result<bool, Broken> {
        self.held = false;
        let mut bytes = 0;
        for taken in 0..RECORDS_PER_PASS {
            match self.ring.glance(WHOLE) {
                Glance::Nothing => return Ok(taken > 0),
                Glance::Plain { start, len, lines } if self.landing.is_none() => {
                    if lines > 1 {
                        self.ring.memory().expect(start, len);
                    }
                    let at = plain_payload(len);
                    let payload = self.ring.memory().payload(start + at, len - at);
                    let payload = payload.ok_or(Broken("a payload out of bounds"))?;
                    if !rx.deliver_plain(host, self.key, self.source, &payload) {
                        self.held = true;
                        return Ok(taken > 0);
                    }
                    if self.ring.consume_lines(u64::from(lines)) {
                        self.ring_peer();
                    }
                    bytes += len;
                    if bytes > BYTES_PER_PASS {
                        break;
                    }
                }
                _ => return self.pump_all(rx, host, (taken, bytes)),
            }
        }
        Ok(true)
    }

    /// Likewise, whatever it is, after so many records and bytes of this pass.
    fn pump_all(
        &mut self,
        rx: &mut RxContext,
        host: &mut dyn Host,
        (taken, mut bytes): (usize, usize),
    ) -> Result<bool, Broken> {
        let mut moved = taken > 0;
        for _ in taken..RECORDS_PER_PASS {
            let Some(record) = self.ring.peek()? else {
                break;
            };
            self.ring
                .memory()
                .expect(record.start, record.header.len as usize);
            if !self.take(record, rx, host)? {
                self.held = true;
                break;
            }
            moved = true;
            if self.ring.consume(record) {
                self.ring_peer();
            }
            bytes += record.header.len as usize;
            if bytes > BYTES_PER_PASS {
                break;
            }
        }
        Ok(moved)
    }

    /// Wakes the peer.
    #[cold]
    fn ring_peer(&mut self) {
        handshake::say(&self.socket, Word::Ring);
        self.doorbells += 1;
    }

    /// Where the parts of a record lie, and its payload.
    #[inline(always)] // on the way of a small message
    fn parts(&self, record: Record) -> Result<(Layout, Payload<'_>), Broken> {
        let (kind, flags, len) = (
            record.header.kind,
            record.header.flags,
            record.header.len as usize,
        );
        let layout = Layout::for_record(kind, flags, len)
            .ok_or(Broken("a record too short for its flags"))?;
        let payload = self
            .ring
            .memory()
            .payload(record.start + layout.payload, len - layout.payload);
        Ok((layout, payload.ok_or(Broken("a payload out of bounds"))?))
    }

    /// What is known of a message of `len` bytes, from its first record.
    #[inline(always)] // likewise
    fn envelope(&self, record: Record, layout: Layout, len: usize) -> Envelope {
        let word = |at: usize| self.ring.memory().word(record.start + at);
        Envelope {
            peer: self.key,
            source: self.source,
            tag: layout.tag.map(word),
            len,
            data: layout.data.map(word),
            arrival: 0,
            receipt: None,
        }
    }

    /// Takes one record; false when it has to stay.
    #[inline(always)] // likewise
    fn take(
        &mut self,
        record: Record,
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> Result<bool, Broken> {
        if self.landing.is_some() || record.header.kind != WHOLE {
            return self.take_other(record, rx, host);
        }
        let (layout, payload) = self.parts(record)?;
        Ok(rx.deliver(host, self.envelope(record, layout, payload.len()), &payload))
    }

    /// Takes a record that is not a message by itself.
    fn take_other(
        &mut self,
        record: Record,
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> Result<bool, Broken> {
        let (layout, payload) = self.parts(record)?;
        let word = |at: usize| self.ring.memory().word(record.start + at);
        let total = layout.total.map(word);
        match record.header.kind {
            PIECE => {
                let id = self.landing.ok_or(Broken("a piece of no message"))?;
                if payload.is_empty() || payload.len() > rx.missing(id) {
                    return Err(Broken("a piece longer than its message"));
                }
                if rx.land(host, id, &payload) {
                    self.landing = None;
                }
                Ok(true)
            }
            _ if self.landing.is_some() => Err(Broken("a message within a message")),
            NOTICE => {
                if !self.here.is_target || payload.len() != 8 {
                    return Err(Broken(
                        "a notice to an endpoint without memory, or of another length",
                    ));
                }
                let deed = if record.header.flags & HAS_READ != 0 {
                    Deed::Read
                } else {
                    Deed::Write
                };
                let len = usize::try_from(total.unwrap_or(0)).unwrap_or(usize::MAX);
                let transfer = Transfer::written(len, layout.data.map(word), self.source);
                Ok(host.done_to_us(self.here.ep, word(layout.payload), deed, transfer))
            }
            REQUEST => {
                if payload.len() != REQUEST_BYTES || !self.here.is_target {
                    return Err(Broken(
                        "a request to an endpoint without memory, or of another length",
                    ));
                }
                let request = Request::from_words(|at| word(layout.payload + 8 * at));
                self.serve(
                    &request.ok_or(Broken("a request for what cannot be done"))?,
                    host,
                )
            }
            kind @ (LOAN | FETCH) => {
                if payload.len() != PLACE_BYTES {
                    return Err(Broken("a loan of another length"));
                }
                let (len, receipt) = from_total_word(total.unwrap_or(u64::MAX));
                let slot = usize::try_from(word(layout.payload + 8)).unwrap_or(usize::MAX);
                let place = (word(layout.payload), slot);
                let envelope = Envelope {
                    receipt,
                    ..self.envelope(record, layout, len)
                };
                if kind == LOAN {
                    self.borrow(envelope, place, rx, host)
                } else {
                    self.fetch(envelope, place, rx, host)
                }
            }
            BEGIN if let Some(total) = total => {
                let (total, receipt) = from_total_word(total);
                let envelope = Envelope {
                    receipt,
                    ..self.envelope(record, layout, total)
                };
                if receipt.is_some() && total == payload.len() {
                    return Ok(rx.deliver(host, envelope, &payload));
                }
                if total <= payload.len() || total > MAX_MESSAGE {
                    return Err(Broken("a message length out of bounds"));
                }
                let Some(id) = rx.begin(host, envelope) else {
                    return Ok(false);
                };
                rx.land(host, id, &payload);
                self.landing = Some(id);
                Ok(true)
            }
            _ => Err(Broken("a record of unknown kind")),
        }
    }

    /// The socket is readable: rings, questions, or how the peer ended.
    pub(crate) fn readable(&mut self, host: &dyn Host) -> Option<DownReason> {
        for _ in 0..READS_PER_LOOK {
            match handshake::read_said(&self.socket) {
                Read::Nothing => return None,
                Read::Message(Said::Grant(grant)) => {
                    if let Err(what) = self.granted(grant) {
                        return Some(DownReason::Protocol(what));
                    }
                }
                Read::Message(Said::Word(Word::Ring)) => {}
                Read::Message(Said::Word(Word::Goodbye)) if !self.goodbye => self.goodbye = true,
                Read::Message(Said::Word(Word::Leave)) if !self.left => self.left = true,
                Read::Message(Said::Word(Word::Map(key))) => {
                    if !self.answer(host, key) {
                        return Some(DownReason::Protocol(
                            "questions without reading the answers",
                        ));
                    }
                }
                Read::Message(Said::Word(Word::Forget(key))) => {
                    self.lent.retain(|(lent, _)| *lent != key)
                }
                Read::Message(Said::Lost(_)) | Read::NoRoom => {
                    return Some(DownReason::Protocol(
                        "memory to lend for which there was no descriptor",
                    ));
                }
                Read::HungUp if self.goodbye || self.left => return Some(DownReason::Closed),
                Read::HungUp => return Some(DownReason::Died),
                Read::Message(_) => {
                    return Some(DownReason::Protocol("a word only the receiver may say"));
                }
                Read::Malformed(what) => return Some(DownReason::Protocol(what)),
                Read::OtherVersion(_) => return Some(DownReason::Protocol("another version")),
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
        matches!(self.ring.peek(), Ok(None) | Err(_))
            || matches!(self.down, Some(DownReason::Protocol(_)))
    }

    /// The oldest record waits for a receive, or for room.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Whether nothing stands in the way of waiting until it rings.
    pub(crate) fn may_be_left(&self) -> bool {
        !self.held && self.down.is_none()
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
    pub(crate) fn unwatch(&mut self) {
        self.socket.unwatch();
    }

    /// The endpoint closes: nothing is read any more.
    pub(crate) fn farewell(&self) {
        self.stop_fetching();
        self.ring.close();
        handshake::say(&self.socket, Word::Goodbye);
    }

    /// Before sleeping: false when something could move now.
    pub(crate) fn arm(&mut self) -> bool {
        self.ring.arm() || self.held
    }

    pub(crate) fn disarm(&mut self) {
        self.ring.disarm();
    }
}
