//! Messages that arrive in pieces, and where the pieces go.

use crate::buf::{PooledBuf, Source};
use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, WaitKey};
use crate::provider::{Host, OpKey};

use super::claim::ClaimId;
use super::lost::Filling;
use super::multi::Match;
use super::receipts::confirm_match;
use super::{OVERHEAD, RxContext, Unexpected};

/// A message that is arriving in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LandingId(pub(super) usize);

#[derive(Debug)]
pub(super) struct Landing {
    pub(super) envelope: Envelope,
    pub(super) arrived: usize,
    /// Bytes were lost in the middle: what still arrives does not join on and is lost too.
    pub(super) cut: bool,
    pub(super) target: Target,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Receive {
        op: OpKey,
        room: usize,
        placed: usize,
    },
    Buffer(WaitKey),
    Claim(ClaimId),
    /// The message is discarded as it arrives: it was claimed and discarded, or its receive had no
    /// memory for it.
    Nobody,
}

impl Landing {
    /// Nothing of it has arrived.
    pub(super) fn new(envelope: Envelope, target: Target) -> Self {
        Self {
            envelope,
            arrived: 0,
            cut: false,
            target,
        }
    }
}

impl RxContext {
    /// A message begins to arrive in pieces. `None`: no receive takes it, and there is no room to
    /// buffer it.
    ///
    /// Memory for all of it is reserved now, so that no piece moves those before it. A receive for
    /// which that cannot be had fails with [`Error::OutOfMemory`] and has taken the message.
    pub fn begin(&mut self, host: &mut dyn Host, mut envelope: Envelope) -> Option<LandingId> {
        let matched = match self.matched_among(host, &envelope) {
            Match::Receive(receive) => Some(receive),
            Match::Nobody if self.admits(envelope.len) || self.is_sought(&envelope) => None,
            Match::Held | Match::Nobody => {
                self.decline();
                return None;
            }
        };
        envelope.arrival = self.matcher.next_arrival();
        let slot = self.landings.vacant_entry();
        let id = slot.key();
        let mut refused = None;
        let target = match matched {
            Some((op, on_loss)) => {
                confirm_match(&mut self.receipts, &mut envelope);
                match host.expect(op, envelope.len) {
                    Ok(room) => {
                        self.filling.push(Filling {
                            op,
                            landing: id,
                            on_loss,
                        });
                        Target::Receive {
                            op,
                            room,
                            placed: 0,
                        }
                    }
                    Err(error) => {
                        refused = Some((op, error));
                        Target::Nobody
                    }
                }
            }
            None => {
                let mut bytes = PooledBuf::empty(&self.pool);
                if bytes.expect(envelope.len).is_err() {
                    self.decline();
                    return None;
                }
                self.used += envelope.len + OVERHEAD;
                Target::Buffer(self.matcher.wait(
                    envelope.clone(),
                    Unexpected {
                        bytes,
                        lent: None,
                        landing: Some(id),
                    },
                ))
            }
        };
        slot.insert(Landing::new(envelope.clone(), target));
        if let Some((op, error)) = refused {
            self.refuse(host, op, &envelope, error);
        }
        if matched.is_none() {
            self.noticed(host);
        }
        Some(LandingId(id))
    }

    /// How many bytes of this message have not arrived yet.
    #[must_use]
    pub fn missing(&self, id: LandingId) -> usize {
        self.landings
            .get(id.0)
            .map_or(0, |landing| landing.envelope.len - landing.arrived)
    }

    /// A piece arrives; at most [`RxContext::missing`] bytes of it are taken. True when the message
    /// is complete, and `id` is then no longer valid.
    pub fn land(&mut self, host: &mut dyn Host, id: LandingId, piece: &dyn Source) -> bool {
        let count = piece.len().min(self.missing(id));
        self.place(host, id, piece, count);
        self.arrived(host, id, count)
    }

    /// Puts the next bytes of a message where they belong, if there is room for them.
    pub(super) fn place(
        &mut self,
        host: &mut dyn Host,
        id: LandingId,
        piece: &dyn Source,
        count: usize,
    ) {
        let Some(landing) = self.landings.get(id.0).filter(|landing| !landing.cut) else {
            return;
        };
        match landing.target {
            Target::Receive { op, room, placed } => {
                host.place(op, placed, piece, 0, count.min(room - placed))
            }
            unreceived => {
                if let Some(message) = self.unreceived(unreceived) {
                    append(&mut message.bytes, piece);
                }
            }
        }
    }

    /// The bytes that were placed last are good. True when the message is complete.
    pub(super) fn arrived(&mut self, host: &mut dyn Host, id: LandingId, count: usize) -> bool {
        let Some(landing) = self.landings.get_mut(id.0) else {
            return true;
        };
        landing.arrived += count;
        if let Target::Receive { room, placed, .. } = &mut landing.target
            && !landing.cut
        {
            *placed += count.min(*room - *placed);
        }
        let complete = landing.arrived == landing.envelope.len;
        if complete {
            let landing = self.landings.remove(id.0);
            match landing.target {
                Target::Receive { op, placed, .. } => {
                    self.take_filling(op);
                    host.complete(op, Outcome::received(&landing.envelope, placed));
                    self.owe_receipt(&landing.envelope);
                }
                unreceived => {
                    if let Some(message) = self.unreceived(unreceived) {
                        message.landing = None;
                    }
                }
            }
        }
        complete
    }

    /// The message whose pieces go there, as long as no receive has it.
    fn unreceived(&mut self, target: Target) -> Option<&mut Unexpected> {
        match target {
            Target::Buffer(key) => self.matcher.message_mut(key).map(|(_, message)| message),
            Target::Claim(claim) => self.asked.message(claim),
            Target::Receive { .. } | Target::Nobody => None,
        }
    }

    /// The rest of this message will never come, and what there is of it is discarded. The receive
    /// that took it goes on waiting if it accepts messages of any source; otherwise it fails.
    pub fn fail(&mut self, host: &mut dyn Host, id: LandingId, error: Error) {
        let Some(landing) = self.landings.try_remove(id.0) else {
            return;
        };
        match landing.target {
            Target::Receive { op, placed, .. } => {
                self.lost(host, op, (&landing.envelope, placed), error);
            }
            Target::Buffer(key) => {
                if self.matcher.take_message(key).is_some() {
                    self.used = self.used.saturating_sub(landing.envelope.len + OVERHEAD);
                }
            }
            Target::Claim(claim) => self.cut_claim(claim, error),
            Target::Nobody => {}
        }
    }
}

pub(super) fn append(bytes: &mut PooledBuf, source: &dyn Source) {
    let at = bytes.len();
    bytes.grow(at, source.len());
    crate::buf::append(bytes.vec_mut(), at, source, 0, source.len());
}
