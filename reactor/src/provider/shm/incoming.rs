//! A connection from a peer: what it sends to this endpoint.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric_core::buf::{LentMemory, Source};
use fabric_core::completion::Transfer;
use fabric_core::event::DownReason;
use fabric_core::flags::Access;
use fabric_core::matching::{Envelope, PeerKey};
use fabric_core::provider::{Deed, EpId, Host};
use fabric_core::rx::{LandingId, RxContext};
use fabric_core::stats::Moved;
use fabric_core::{Address, Error, FiAddr, Refusal, Scheme};
use rustix::io::Errno;

use super::area::{Area, Lent};
use super::desk::{self, REQUEST_BYTES, Request};
use super::fetch::{Fetch, Reach};
use super::handshake::{self, Grant, READS_PER_LOOK, Read, Said, VERSION, Word};
use super::loans::{self, Adopted, Borrow, Foreign, Keep, Offer};
use super::record::{
    ALIGNED, BEGIN, FETCH, HAS_READ, LOAN, Layout, NOTICE, PIECE, PLACE_BYTES, REQUEST, WHOLE,
    from_total_word,
};
use super::ring::{Broken, Consumer, Glance, HEADER, LINE, Record};
use super::segment::{Payload, Segment, Unfit};
use super::socket::{self, Socket};

/// Records and bytes taken from one peer in one pass.
const RECORDS_PER_PASS: usize = 64;
const BYTES_PER_PASS: usize = 64 * 1024;
/// How often the socket is read for memory that a record speaks of: more words than it has room for.
const LOOKS_FOR_MEMORY: usize = 32;
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

/// A connection that has not said hello yet.
#[derive(Debug)]
pub(crate) struct Stranger {
    pub(crate) socket: Socket,
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
    /// Reads the hello and answers it, as this endpoint.
    pub(crate) fn meet(self, key: PeerKey, here: Here) -> Met {
        let refuse = |socket: &Socket, reason: Refusal, error: Error| {
            handshake::say(socket, Word::Refused(reason));
            Met::Refused(error)
        };
        let ours = rustix::process::geteuid().as_raw();
        let peer = match self.socket.credentials() {
            Ok(peer) if peer.user == ours => peer,
            Ok(peer) => {
                let error = Error::OtherUser { peer: nameless(peer.process), theirs: peer.user, ours };
                return refuse(&self.socket, Refusal::User, error);
            }
            Err(error) => return refuse(&self.socket, Refusal::Malformed, error),
        };
        let broke = |what: &'static str| Error::Protocol { peer: nameless(peer.process), what: what.into() };
        let hello = match handshake::read_hello(&self.socket) {
            Read::Nothing => return Met::Later(self),
            Read::HungUp => return Met::Left,
            Read::NoRoom => {
                return refuse(
                    &self.socket,
                    Refusal::Resources,
                    Error::os("recvmsg", Errno::MFILE.raw_os_error()),
                );
            }
            Read::Message(hello) => hello,
            Read::Malformed(what) => return refuse(&self.socket, Refusal::Malformed, broke(what)),
            Read::OtherVersion(theirs) => {
                let reason = Refusal::Version { theirs, ours: VERSION };
                let error = Error::Refused { peer: nameless(peer.process), reason };
                return refuse(&self.socket, reason, error);
            }
        };
        match Segment::adopt(&hello.segment, hello.lines) {
            Ok(segment) => {
                let process = peer.process.filter(|_| here.fetches);
                let reach = process.and_then(|id| Reach::new(&hello.from, id, &self.socket, &segment));
                if reach.is_some() {
                    segment.set_reached();
                }
                handshake::say(&self.socket, Word::Welcome(here.incarnation));
                let identity = Identity { process: peer.process, incarnation: hello.incarnation };
                let mut peer = Incoming::new(hello.from, identity, here, segment, self.socket, key);
                peer.reach = reach.map(Arc::new);
                Met::Peer(Box::new(peer))
            }
            Err(Unfit::Malformed(what)) => {
                let error = Error::Protocol { peer: hello.from, what: what.into() };
                refuse(&self.socket, Refusal::Malformed, error)
            }
            Err(Unfit::NoRoom(error)) => refuse(&self.socket, Refusal::Resources, error),
        }
    }
}

/// Offers a message that lies with its sender; false when nobody wants it now.
fn offer<M: Keep + LentMemory>(
    rx: &mut RxContext,
    host: &mut dyn Host,
    envelope: Envelope,
    message: M,
) -> bool {
    let offer = Offer(Arc::new(message));
    let taken = rx.lend(host, envelope, &offer);
    if !taken {
        // It stays where it is: the record is looked at again.
        Arc::into_inner(offer.0).into_iter().for_each(Keep::keep);
    }
    taken
}

/// Something to call a process by that has not told its name.
fn nameless(process: Option<i32>) -> Address {
    let process = process.map_or("unknown".into(), |process| process.to_string());
    Address::new(Scheme::Shm, &format!("process-{process}"))
        .unwrap_or_else(|_| unreachable!("a short plain name"))
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
        for taken in 0..RECORDS_PER_PASS {
            match self.ring.glance(WHOLE) {
                Glance::Nothing => return Ok(taken > 0),
                Glance::Line { start, len } if self.landing.is_none() => {
                    let payload = self.ring.memory().payload(start, len);
                    let payload = payload.ok_or(Broken("a payload out of bounds"))?;
                    if !rx.deliver_plain(host, self.key, self.source, &payload) {
                        self.held = true;
                        return Ok(taken > 0);
                    }
                    if self.ring.consume_line() {
                        self.ring_peer();
                    }
                }
                _ => return self.pump_all(rx, host).map(|moved| moved || taken > 0),
            }
        }
        Ok(true)
    }

    /// Likewise, whatever it is.
    fn pump_all(&mut self, rx: &mut RxContext, host: &mut dyn Host) -> Result<bool, Broken> {
        let mut bytes = 0;
        let mut moved = false;
        for _ in 0..RECORDS_PER_PASS {
            let Some(record) = self.ring.peek()? else { break };
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
        let (kind, flags, len) = (record.header.kind, record.header.flags, record.header.len as usize);
        let layout =
            Layout::for_record(kind, flags, len).ok_or(Broken("a record too short for its flags"))?;
        let payload = self.ring.memory().payload(record.start + layout.payload, len - layout.payload);
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
    fn take(&mut self, record: Record, rx: &mut RxContext, host: &mut dyn Host) -> Result<bool, Broken> {
        if self.landing.is_some() {
            return self.take_other(record, rx, host);
        }
        if record.header.is_plain(WHOLE, LINE + ALIGNED) {
            let len = record.header.len as usize - HEADER;
            let payload = self.ring.memory().payload(record.start + HEADER, len);
            let payload = payload.ok_or(Broken("a payload out of bounds"))?;
            return Ok(rx.deliver_plain(host, self.key, self.source, &payload));
        }
        if record.header.kind != WHOLE {
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
        let (kind, flags) = (record.header.kind, record.header.flags);
        let (layout, payload) = self.parts(record)?;
        let segment = self.ring.memory();
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
        if kind == NOTICE {
            if !self.here.is_target || payload.len() != 8 {
                return Err(Broken("a notice to an endpoint without memory, or of another length"));
            }
            let len = layout.total.map_or(0, word);
            let deed = if flags & HAS_READ != 0 { Deed::Read } else { Deed::Write };
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let transfer = Transfer::written(len, layout.data.map(word), self.source);
            return Ok(host.done_to_us(self.here.ep, word(layout.payload), deed, transfer));
        }
        if kind == REQUEST {
            if payload.len() != REQUEST_BYTES || !self.here.is_target {
                return Err(Broken("a request to an endpoint without memory, or of another length"));
            }
            let words = |at: usize| word(layout.payload + 8 * at);
            let request = Request::from_words(words).ok_or(Broken("a request for what cannot be done"))?;
            return self.serve(&request, host);
        }
        let envelope = |len| self.envelope(record, layout, len);
        if kind == LOAN || kind == FETCH {
            if payload.len() != PLACE_BYTES {
                return Err(Broken("a loan of another length"));
            }
            let (len, receipt) = from_total_word(layout.total.map_or(u64::MAX, word));
            let slot = usize::try_from(word(layout.payload + 8)).unwrap_or(usize::MAX);
            let (envelope, place) = (Envelope { receipt, ..envelope(len) }, (word(layout.payload), slot));
            return match kind {
                LOAN => self.borrow(envelope, place, rx, host),
                _ => self.fetch(envelope, place, rx, host),
            };
        }
        match (kind, layout.total) {
            (BEGIN, Some(at)) => {
                let (total, receipt) = from_total_word(word(at));
                let envelope = Envelope { receipt, ..envelope(total) };
                if receipt.is_some() && total == payload.len() {
                    return Ok(rx.deliver(host, envelope, &payload));
                }
                if total <= payload.len() || total > MAX_MESSAGE {
                    return Err(Broken("a message length out of bounds"));
                }
                let Some(id) = rx.begin(host, envelope) else { return Ok(false) };
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
                        return Some(DownReason::Protocol("questions without reading the answers"));
                    }
                }
                Read::Message(Said::Word(Word::Forget(key))) => self.lent.retain(|(lent, _)| *lent != key),
                Read::Message(Said::Lost(_)) | Read::NoRoom => {
                    return Some(DownReason::Protocol("memory to lend for which there was no descriptor"));
                }
                Read::HungUp if self.goodbye || self.left => return Some(DownReason::Closed),
                Read::HungUp => return Some(DownReason::Died),
                Read::Message(_) => return Some(DownReason::Protocol("a word only the receiver may say")),
                Read::Malformed(what) => return Some(DownReason::Protocol(what)),
                Read::OtherVersion(_) => return Some(DownReason::Protocol("another version")),
            }
        }
        None
    }

    /// The peer has sent memory that it is going to lend, or a desk.
    fn granted(&mut self, grant: Grant<OwnedFd>) -> Result<(), &'static str> {
        if grant.access.contains(Access::REMOTE_WRITE) {
            let area = Area::adopt(&grant.memory, grant.len, true);
            socket::discard(vec![grant.memory]);
            let is_desk = grant.len == desk::DESK && self.desk.is_none() && self.here.is_target;
            self.desk = Some(is_desk.then_some(area?).ok_or("a desk of another size, or a second one")?);
            return Ok(());
        }
        let area = if grant.len > loans::MOST_BYTES {
            Err("more memory than anybody lends")
        } else {
            Area::adopt(&grant.memory, grant.len, false)
        };
        socket::discard(vec![grant.memory]);
        if self.lent.len() >= loans::MOST_LENT {
            return Err("too much memory to lend");
        }
        let area = self.here.adopted.adopt(area?).ok_or("too much memory to lend")?;
        match self.lent.binary_search_by_key(&grant.key, |(key, _)| *key) {
            Ok(_) => return Err("the same memory twice"),
            Err(at) => self.lent.insert(at, (grant.key, area)),
        }
        Ok(())
    }

    /// Takes a message that lies in memory which the peer has lent; false when it has to stay.
    fn borrow(
        &mut self,
        envelope: Envelope,
        (key, slot): (u64, usize),
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> Result<bool, Broken> {
        let find = |lent: &[(u64, Arc<Foreign>)]| {
            lent.binary_search_by_key(&key, |(key, _)| *key).ok().map(|at| lent[at].1.clone())
        };
        let area = match find(&self.lent) {
            Some(area) => area,
            None => {
                // It was sent before the record, behind other words. That the peer has hung up is found again.
                for _ in 0..LOOKS_FOR_MEMORY {
                    match self.readable(host) {
                        Some(DownReason::Protocol(what)) => return Err(Broken(what)),
                        None if find(&self.lent).is_none() => {}
                        _ => break,
                    }
                }
                find(&self.lent).ok_or(Broken("a loan of unknown memory"))?
            }
        };
        let segment = self.ring.memory().clone();
        let borrow = Borrow::new(area, envelope.len, segment, slot).ok_or(Broken("a loan out of bounds"))?;
        Ok(offer(rx, host, envelope, borrow))
    }

    /// Takes a message that lies in the peer's own memory; false when it has to stay.
    fn fetch(
        &mut self,
        envelope: Envelope,
        (at, slot): (u64, usize),
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> Result<bool, Broken> {
        let reach = self.reach.clone().ok_or(Broken("a message in memory that cannot be read"))?;
        if self.down.is_some() {
            // It went with its sender, who was not told that it arrived.
            return Ok(true);
        }
        let fetch = Fetch::new(reach, at, envelope.len, slot).ok_or(Broken("a message out of bounds"))?;
        Ok(offer(rx, host, envelope, fetch))
    }

    /// Does what the peer asks for, and answers; false when it has to wait.
    fn serve(&mut self, request: &Request, host: &dyn Host) -> Result<bool, Broken> {
        if self.desk.is_none() {
            // It was sent before the record, behind other words.
            for _ in 0..LOOKS_FOR_MEMORY {
                match self.readable(host) {
                    Some(DownReason::Protocol(what)) => return Err(Broken(what)),
                    None if self.desk.is_none() => {}
                    _ => break,
                }
            }
        }
        let desk = self.desk.as_ref().ok_or(Broken("a request without a desk"))?;
        let served = request.serve(desk, host);
        if served && self.ring.starves() {
            handshake::say(&self.socket, Word::Ring);
            self.doorbells += 1;
        }
        Ok(served)
    }

    /// Tells the peer of the messages that were fetched, if it waits for that.
    ///
    /// # Errors
    /// How the peer ended, if it has.
    pub(crate) fn acknowledge(&mut self) -> Result<(), DownReason> {
        let Some(reach) = &self.reach else { return Ok(()) };
        if reach.has_given()? && self.ring.starves() {
            self.ring_peer();
        }
        Ok(())
    }

    /// Tells the peer what it waits to hear of the message with this receipt.
    pub(crate) fn confirm(&mut self, receipt: u32) {
        self.ring.memory().confirm(receipt as usize);
        if self.ring.starves() {
            self.ring_peer();
        }
    }

    /// What was fetched from there; nothing when that cannot be done.
    pub(crate) fn fetched(&self) -> Option<Moved> {
        self.reach.as_ref().map(|reach| reach.fetched())
    }

    /// Nothing is fetched any more, and what was not has not arrived.
    pub(crate) fn stop_fetching(&self) {
        if let Some(reach) = &self.reach {
            reach.end();
        }
    }

    /// Says what a key stands for to peers of this endpoint; false when the peer leaves no room for answers.
    fn answer(&self, host: &dyn Host, key: u64) -> bool {
        let denied = || handshake::try_say(&self.socket, Word::Denied(key));
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let known = host.region(key).filter(|region| region.access.intersects(remote));
        let Some(region) = known.filter(|_| self.here.is_target) else { return denied() };
        if region.memory.is_served() {
            return handshake::try_say(&self.socket, Word::Served(key, self.here.heeds || region.heeds));
        }
        let memory: &dyn Any = &*region.memory;
        let Some(lent) = memory.downcast_ref::<Lent>() else { return denied() };
        let (len, access, heeds) = (region.memory.len(), region.access, self.here.heeds || region.heeds);
        let grant = Grant { key, len, access, base: region.base, heeds, memory: lent.fd() };
        match handshake::send_grant(&self.socket, &grant) {
            Ok(()) => true,
            Err(Errno::AGAIN) => false,
            // Too many descriptors are on their way, or the peer has ended.
            Err(_) => denied(),
        }
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
