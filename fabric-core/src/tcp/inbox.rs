//! A stream of bytes becomes messages.

use crate::address::FiAddr;
use crate::atomic::MAX_ATOMIC;
use crate::matching::{Envelope, PeerKey};
use crate::provider::{EpId, Host};
use crate::rx::{LandingId, RxContext};

use super::frame::VERDICT;
use super::rxm::Incoming;
use super::serving::verdict;
use super::writes::{Headway, Stuck, Write};
use super::{Asked, Broken, Frame, FrameKind, Order, Owed, Replies, Row, Rows, atomics};

mod aside;
mod packets;

use aside::Aside;

/// The longest message that is taken: more than any memory, and far from where sums of lengths
/// would end.
pub const MAX_MESSAGE: usize = 1 << 40;
/// Bytes of the operands and comparands of one atomic operation.
const MOST_OPERANDS: u64 = 2 * MAX_ATOMIC as u64;

/// The receiving half of a connection. Takes bytes as they come, split anywhere.
#[derive(Debug)]
pub struct Inbox {
    order: Order,
    /// Messages may have tags.
    has_tags: bool,
    /// The frame whose bytes come next.
    landing: Option<Landing>,
    /// Why what comes next is held, unless it is a message.
    stuck: Option<Stuck>,
    /// What this side has asked of the peer.
    pub asked: Asked,
    /// What this side owes the peer.
    pub replies: Replies,
    /// Messages are packets of the other dialect.
    rxm: Option<Box<Incoming>>,
    /// Messages of that dialect that wait, and hold up nothing else.
    aside: Aside,
    patience: Patience,
}

/// Whether a message that comes while no receive is posted stays where it is for another look: the
/// program is often about to post some, and a message that nobody has asked for costs a buffer and
/// a copy more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// It is buffered.
    #[default]
    None,
    /// It stays if a receive has taken a message before it in this look: it has stayed once.
    Spent,
    /// It stays.
    Left,
}

#[derive(Debug)]
enum Landing {
    Message {
        id: LandingId,
        left: usize,
        owes: Option<Owed>,
    },
    /// Memory of this side is written.
    Write(Write),
    /// What was asked for, and so much of it has come.
    Answer {
        have: usize,
        len: usize,
        is_checked: bool,
    },
}

/// Who sends, and its number.
type Who = (PeerKey, Option<FiAddr>);

/// A frame among the bytes that have come.
#[derive(Clone, Copy)]
struct Found<'a> {
    frame: &'a Frame,
    /// Bytes before those of the message.
    header: usize,
    /// All that have come, from its beginning.
    bytes: &'a [u8],
}

/// What was made of some bytes.
#[derive(Debug, Default)]
pub struct Taken {
    /// How many were used. The rest is to be shown again, with more behind it.
    pub bytes: usize,
    /// What comes next cannot be taken now: a message that is nobody's, and for which there is no
    /// room; a write to memory that its owner has in hand, or of which it cannot be told. It stays
    /// where it is.
    pub held: bool,
    /// So many answers are owed that no more is listened to: to be shown again when some have left.
    pub is_full: bool,
    /// A message was left for another look, which is to follow without news.
    pub is_put_off: bool,
    /// Acknowledgements the peer is to get.
    pub owed: Vec<Owed>,
    /// Messages that were offered and are here, by their numbers, which the peer is to be told.
    pub fetched: Vec<u64>,
}

impl Inbox {
    /// Of a connection whose peer writes integers like this.
    #[must_use]
    pub fn new(order: Order) -> Self {
        let (asked, replies) = (Asked::default(), Replies::new());
        let aside = Aside::default();
        let patience = Patience::None;
        Self {
            order,
            has_tags: true,
            landing: None,
            stuck: None,
            asked,
            replies,
            rxm: None,
            aside,
            patience,
        }
    }

    /// The same, of a connection on which RXM is spoken.
    #[must_use]
    pub fn of_rxm(order: Order, rxm: Incoming) -> Self {
        Self {
            rxm: Some(Box::new(rxm)),
            ..Self::new(order)
        }
    }

    /// Whether bytes of a message that was offered are to be asked for.
    #[must_use]
    pub fn wants(&self) -> bool {
        self.rxm.as_ref().is_some_and(|rxm| rxm.wants())
    }

    /// Asks for the next bytes of a message that was offered: the place, which the peer is to be
    /// asked for at once.
    pub fn ask(&mut self) -> Option<Row> {
        let row = self.rxm.as_mut()?.ask()?;
        self.asked.expect_piece(row.len as usize);
        Some(row)
    }

    /// Takes tagged messages for a breach of the rules from now on: nobody could receive one.
    pub fn refuse_tags(&mut self) {
        self.has_tags = false;
    }

    /// What it needs to know to serve the memory of this side: the endpoint, whether peers may
    /// reach memory through it, and whether it wants to hear of everything that is done to it.
    pub fn serve(&mut self, ep: EpId, is_target: bool, heeds: bool) {
        (self.replies.ep, self.replies.is_target, self.replies.heeds) = (ep, is_target, heeds);
    }

    /// The peer is one of this library, and understands what no other does.
    pub fn kin(&mut self) {
        self.replies.is_kin = true;
    }

    /// For how much longer messages stay where they are while no receive is posted.
    pub fn be_patient(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Takes in what can be.
    ///
    /// # Errors
    /// What the peer did wrong; what came before it has been taken in.
    pub fn take(
        &mut self,
        bytes: &[u8],
        who: Who,
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> Result<Taken, Broken> {
        let source = who.1;
        let mut taken = Taken::default();
        self.stuck = None;
        let is_rxm = self.rxm.is_some();
        if is_rxm {
            self.take_aside(who, rx, host, &mut taken)?;
        }
        loop {
            let rest = &bytes[taken.bytes..];
            if let Some(landing) = &mut self.landing {
                let Landing::Message { id, left, owes } = landing else {
                    if self.land(rest, source, &mut taken, (rx, host))? {
                        continue;
                    }
                    return Ok(taken);
                };
                let count = (*left).min(rest.len());
                if count == 0 {
                    return Ok(taken);
                }
                rx.land(host, *id, &&rest[..count]);
                *left -= count;
                taken.bytes += count;
                if *left == 0 {
                    let owed = owes.take();
                    self.landing = None;
                    taken.owed.extend(self.replies.behind(owed));
                }
                continue;
            }
            let Some((frame, header)) = Frame::decode_in(rest, self.order, is_rxm)? else {
                return Ok(taken);
            };
            let found = Found {
                frame: &frame,
                header,
                bytes: rest,
            };
            let goes_on = match frame.kind {
                FrameKind::Tagged(_) if !self.has_tags => {
                    return Err(Broken(
                        "a tagged message, which this endpoint does not take",
                    ));
                }
                FrameKind::Message | FrameKind::Tagged(_) if is_rxm => {
                    self.take_or_keep(&found, who, rx, host, &mut taken)?
                }
                FrameKind::Message | FrameKind::Tagged(_) => {
                    self.message(&found, envelope(&frame, who)?, rx, host, &mut taken)
                }
                _ => self.one_sided(&frame, (rest, header), source, &mut taken, host)?,
            };
            if !goes_on {
                return Ok(taken);
            }
        }
    }

    /// A message, or its beginning. False when it has to wait.
    #[inline(always)] // on the way of a small message
    fn message(
        &mut self,
        found: &Found<'_>,
        envelope: Envelope,
        rx: &mut RxContext,
        host: &mut dyn Host,
        taken: &mut Taken,
    ) -> bool {
        let len = envelope.len;
        if let Some(message) = found
            .bytes
            .get(found.header..)
            .and_then(|rest| rest.get(..len))
        {
            match self.patience {
                Patience::None => {}
                _ if rx.has_receives() => self.patience = Patience::Left,
                Patience::Spent => {}
                Patience::Left => {
                    taken.is_put_off = true;
                    return false;
                }
            }
            if !rx.deliver(host, envelope, &message) {
                taken.held = true;
                return false;
            }
            taken.bytes += found.header + len;
            if let Some(owed) = found.frame.owes() {
                taken.owed.extend(self.replies.behind(Some(owed)));
            }
        } else {
            let Some(id) = rx.begin(host, envelope) else {
                taken.held = true;
                return false;
            };
            taken.bytes += found.header;
            self.landing = Some(Landing::Message {
                id,
                left: len,
                owes: found.frame.owes(),
            });
        }
        true
    }

    /// A frame begins that is no message. False when more of it has to come first, or it has to
    /// wait.
    #[cold]
    fn one_sided(
        &mut self,
        frame: &Frame,
        (bytes, header): (&[u8], usize),
        source: Option<FiAddr>,
        taken: &mut Taken,
        host: &mut dyn Host,
    ) -> Result<bool, Broken> {
        let rows = |count| Rows::decode(&bytes[..header], usize::from(count), self.order);
        match frame.kind {
            FrameKind::Message | FrameKind::Tagged(_) => {}
            FrameKind::Ack => self.asked.acked(host)?,
            FrameKind::Read(_) | FrameKind::Atomic(_) if self.replies.is_full() => {
                taken.is_full = true;
                return Ok(false);
            }
            FrameKind::Read(count) => self.replies.question(&rows(count), host)?,
            FrameKind::Write(count) => {
                match Write::begin(frame, &rows(count), &self.replies, host)? {
                    Ok(write) => self.landing = Some(Landing::Write(write)),
                    Err(stuck) => {
                        (self.stuck, taken.held) = (Some(stuck), true);
                        return Ok(false);
                    }
                }
            }
            FrameKind::Atomic(spec) => {
                if frame.payload > MOST_OPERANDS {
                    return Err(Broken(
                        "an atomic operation with more operands than there may be",
                    ));
                }
                let Some(operands) = bytes.get(header..header + frame.payload as usize) else {
                    return Ok(false);
                };
                match atomics::frame(
                    (frame, spec),
                    &rows(1),
                    operands,
                    source,
                    &mut self.replies,
                    host,
                )? {
                    Headway::Done(used, owed) => {
                        taken.bytes += used;
                        taken.owed.extend(self.replies.behind(owed));
                    }
                    Headway::More(_) => return Ok(false),
                    Headway::Stuck(.., stuck) => {
                        (self.stuck, taken.held) = (Some(stuck), true);
                        return Ok(false);
                    }
                }
            }
            FrameKind::Answer | FrameKind::Checked => {
                let is_checked = frame.kind == FrameKind::Checked;
                let more = if is_checked { VERDICT as u64 } else { 0 };
                let len = frame
                    .payload
                    .checked_sub(more)
                    .ok_or(Broken("an answer without a verdict"))?;
                let len = self.asked.begins(len)?;
                self.landing = Some(Landing::Answer {
                    have: 0,
                    len,
                    is_checked,
                });
            }
            FrameKind::Refused(ref denial) => self.asked.refused(**denial, host)?,
        }
        taken.bytes += header;
        Ok(true)
    }

    /// Bytes of a frame that is no message. False when more of them have to come first, or they
    /// have to wait.
    #[cold]
    fn land(
        &mut self,
        bytes: &[u8],
        source: Option<FiAddr>,
        taken: &mut Taken,
        (rx, host): (&mut RxContext, &mut dyn Host),
    ) -> Result<bool, Broken> {
        match &mut self.landing {
            Some(Landing::Write(write)) => match write.take(bytes, source, &self.replies, host)? {
                Headway::More(used) => {
                    taken.bytes += used;
                    return Ok(false);
                }
                Headway::Done(used, owed) => {
                    taken.bytes += used;
                    taken.owed.extend(self.replies.behind(owed));
                }
                Headway::Stuck(used, owed, stuck) => {
                    taken.bytes += used;
                    taken.owed.extend(self.replies.behind(owed));
                    (self.stuck, taken.held) = (Some(stuck), true);
                    return Ok(false);
                }
            },
            Some(Landing::Answer {
                have,
                len,
                is_checked,
            }) => {
                let count = bytes.len().min(*len - *have);
                if count > 0 {
                    let is_placed = self.asked.place(*have, &bytes[..count], host);
                    if !is_placed && let Some(id) = self.rxm.as_ref().and_then(|rxm| rxm.awaited())
                    {
                        rx.land(host, id, &&bytes[..count]);
                    }
                    *have += count;
                    taken.bytes += count;
                }
                if *have < *len {
                    return Ok(false);
                }
                let mut denied = None;
                if *is_checked {
                    let Some(words) = bytes.get(count..count + VERDICT) else {
                        return Ok(false);
                    };
                    let mut words = words
                        .as_chunks::<8>()
                        .0
                        .iter()
                        .map(|word| self.order.u64(*word));
                    let mut next = || words.next().unwrap_or_default();
                    denied = verdict([next(), next()]);
                    taken.bytes += VERDICT;
                }
                if !self.asked.answered(denied, host)
                    && let Some(rxm) = &mut self.rxm
                {
                    taken.fetched.extend(rxm.arrived(*len as u64));
                }
            }
            _ => {}
        }
        self.landing = None;
        Ok(true)
    }

    /// Whether a message has begun to arrive and has not ended.
    #[must_use]
    pub fn is_arriving(&self) -> bool {
        self.landing.is_some() || self.rxm.as_ref().is_some_and(|rxm| rxm.is_arriving())
    }

    /// The messages that have begun to arrive and will not end. What else has begun is forgotten.
    #[must_use]
    pub fn end(&mut self) -> Vec<LandingId> {
        let mut begun = self.rxm.as_mut().map_or_else(Vec::new, |rxm| rxm.end());
        if let Some(Landing::Message { id, .. }) = self.landing.take()
            && !begun.contains(&id)
        {
            begun.push(id);
        }
        begun
    }

    /// Whether what waits at the start of these bytes, of which `take` has said that it was held,
    /// can be taken now.
    #[must_use]
    pub fn is_wanted(
        &mut self,
        bytes: &[u8],
        who: Who,
        rx: &RxContext,
        host: &mut dyn Host,
    ) -> bool {
        match (&self.stuck, &mut self.landing) {
            (Some(Stuck::Memory(memory)), _) => {
                let is_there = memory.begin();
                if is_there {
                    memory.end();
                }
                return is_there || !memory.is_open();
            }
            (Some(Stuck::Notice), Some(Landing::Write(write))) => {
                return write.tell(who.1, &self.replies, host);
            }
            _ => {}
        }
        if self.has_aside() {
            return self.is_aside_wanted(who, rx);
        }
        self.waiting(bytes, who)
            .is_some_and(|envelope| rx.would_take(&envelope))
    }
}

/// What the receive context is shown. It counts arrivals.
fn envelope(frame: &Frame, (peer, source): Who) -> Result<Envelope, Broken> {
    let Some(len) = usize::try_from(frame.payload)
        .ok()
        .filter(|len| *len <= MAX_MESSAGE)
    else {
        return Err(Broken("a message longer than memory"));
    };
    let tag = if let FrameKind::Tagged(tag) = frame.kind {
        Some(tag)
    } else {
        None
    };
    Ok(Envelope {
        peer,
        source,
        tag,
        len,
        data: frame.data,
        arrival: 0,
        receipt: None,
    })
}
