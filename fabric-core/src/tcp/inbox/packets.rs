//! Packets of RXM: messages within messages.

use crate::matching::Envelope;
use crate::provider::Host;
use crate::rx::RxContext;
use crate::tcp::rxm::{
    Atomic, EAGER, Fetch, OFFER, PREFIX, Packet, PacketKind, Status, Step, decode_offer,
};
use crate::tcp::{Broken, Frame, MAX_MESSAGE, atomics};

use super::{Found, Inbox, Landing, Taken, Who};

/// A packet whose prefix has come.
struct Opened<'a> {
    packet: Packet,
    /// Bytes of the headers.
    headers: usize,
    /// Bytes behind the prefix, whether they have come or not.
    body: usize,
    /// Those of them that have.
    bytes: &'a [u8],
}

impl<'a> Opened<'a> {
    /// All behind the prefix, of what is never longer than one packet; `None` while some of it is
    /// missing.
    fn whole(&self) -> Result<Option<&'a [u8]>, Broken> {
        if self.body > EAGER {
            return Err(Broken(
                "an atomic operation, or a response, that is longer than a packet",
            ));
        }
        Ok((self.bytes.len() == self.body).then_some(self.bytes))
    }
}

impl Inbox {
    /// A message is a packet. False when nothing more is to be done now.
    pub(super) fn take_packet(
        &mut self,
        found: &Found<'_>,
        who: Who,
        rx: &mut RxContext,
        host: &mut dyn Host,
        taken: &mut Taken,
    ) -> Result<bool, Broken> {
        let Some(opened) = open(found.frame, found.header, found.bytes)? else {
            return Ok(false);
        };
        let Some(rxm) = &mut self.rxm else {
            return Ok(false);
        };
        let packet = opened.packet;
        rxm.check(&packet)?;
        let envelope = envelope(&packet, who)?;
        match packet.kind {
            PacketKind::Eager if opened.body != envelope.len => {
                Err(Broken("a message that is not as long as it says"))
            }
            PacketKind::Eager => {
                let found = Found {
                    header: opened.headers,
                    ..*found
                };
                Ok(self.message(&found, envelope, rx, host, taken))
            }
            PacketKind::Segment(step, ..) => {
                if step == Step::First {
                    rxm.may_begin(&packet, opened.body as u64)?;
                    let Some(landing) = rx.begin(host, envelope) else {
                        taken.held = true;
                        return Ok(false);
                    };
                    rxm.begin(&packet, landing);
                }
                let id = rxm.part(&packet, step, opened.body as u64)?;
                taken.bytes += opened.headers;
                self.landing = Some(Landing::Message {
                    id,
                    left: opened.body,
                    owes: found.frame.owes(),
                });
                Ok(true)
            }
            PacketKind::Offer => {
                if opened.body != OFFER {
                    return Err(Broken("a rendezvous that is longer or shorter than one"));
                }
                let Some(offer) = opened.bytes.first_chunk() else {
                    return Ok(false);
                };
                let rows = decode_offer(offer, packet.len)?;
                if rxm.is_over() {
                    taken.bytes += opened.headers + opened.body;
                    return Ok(true);
                }
                let Some(landing) = rx.begin(host, envelope) else {
                    taken.held = true;
                    return Ok(false);
                };
                rxm.fetch(Fetch::new(landing, packet.message, rows, packet.len));
                Ok(self.took(found, &opened, taken))
            }
            PacketKind::Atomic(atomic) => self.atomic(found, &opened, atomic, who, host, taken),
            PacketKind::Response(_) => {
                let Some(body) = opened.whole()? else {
                    return Ok(false);
                };
                let response = Status::decode(body)?;
                self.asked.responded(packet.message, response, host)?;
                Ok(self.took(found, &opened, taken))
            }
            PacketKind::Done if opened.body > 0 => {
                Err(Broken("word of a message with something in it"))
            }
            PacketKind::Done => {
                self.replies.taken(packet.message, host)?;
                Ok(self.took(found, &opened, taken))
            }
        }
    }

    /// An atomic operation on memory of this side. False when it has to wait, or more of it has to
    /// come.
    fn atomic(
        &mut self,
        found: &Found<'_>,
        opened: &Opened<'_>,
        atomic: Atomic,
        who: Who,
        host: &mut dyn Host,
        taken: &mut Taken,
    ) -> Result<bool, Broken> {
        if self.replies.is_full() {
            taken.is_full = true;
            return Ok(false);
        }
        let Some(body) = opened.whole()? else {
            return Ok(false);
        };
        let stuck = atomics::packet(
            (&opened.packet, atomic),
            body,
            who.1,
            &mut self.replies,
            host,
        )?;
        if stuck.is_some() {
            (self.stuck, taken.held) = (stuck, true);
            return Ok(false);
        }
        Ok(self.took(found, opened, taken))
    }

    /// All of a packet was taken. What it owes keeps its place behind answers. True: there may be
    /// more.
    fn took(&mut self, found: &Found<'_>, opened: &Opened<'_>, taken: &mut Taken) -> bool {
        taken.bytes += opened.headers + opened.body;
        taken.owed.extend(self.replies.behind(found.frame.owes()));
        true
    }

    /// The message that begins with this frame.
    pub(super) fn packet_envelope(
        frame: &Frame,
        header: usize,
        bytes: &[u8],
        who: Who,
    ) -> Option<Envelope> {
        envelope(&open(frame, header, bytes).ok()??.packet, who).ok()
    }
}

/// The packet behind this header; `None` while some of its prefix is missing.
fn open<'a>(frame: &Frame, header: usize, bytes: &'a [u8]) -> Result<Option<Opened<'a>>, Broken> {
    let body = frame
        .payload
        .checked_sub(PREFIX as u64)
        .and_then(|body| usize::try_from(body).ok());
    let Some(body) = body.filter(|body| *body <= MAX_MESSAGE) else {
        return Err(Broken("a packet without a prefix, or longer than memory"));
    };
    let Some((prefix, behind)) = bytes
        .get(header..)
        .and_then(|bytes| bytes.split_first_chunk())
    else {
        return Ok(None);
    };
    let packet = Packet::decode(prefix)?;
    let bytes = &behind[..behind.len().min(body)];
    Ok(Some(Opened {
        packet,
        headers: header + PREFIX,
        body,
        bytes,
    }))
}

/// What the receive context is shown. It counts arrivals.
fn envelope(packet: &Packet, (peer, source): Who) -> Result<Envelope, Broken> {
    let Some(len) = usize::try_from(packet.len)
        .ok()
        .filter(|len| *len <= MAX_MESSAGE)
    else {
        return Err(Broken("a message longer than memory"));
    };
    Ok(Envelope {
        peer,
        source,
        tag: packet.tag,
        len,
        data: packet.data,
        arrival: 0,
        receipt: None,
    })
}
