//! Messages that arrive in pieces, and where the pieces go.

use crate::buf::{CopySource, PooledBuf};
use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, UnexpectedKey};
use crate::transport::{EngineContext, OpKey};

use super::acks::ack_match;
use super::claim::ClaimId;
use super::lost::Filling;
use super::multi::MatchResult;
use super::{RxQueue, UNEXPECTED_OVERHEAD, UnexpectedMessage};

/// A message that is arriving in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialId(pub(super) usize);

#[derive(Debug)]
pub(super) struct PartialMessage {
    pub(super) envelope: Envelope,
    pub(super) received: usize,
    /// Bytes were lost in the middle: what still arrives does not join on and is lost too.
    pub(super) truncated: bool,
    pub(super) target: PartialTarget,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PartialTarget {
    Receive {
        op: OpKey,
        capacity: usize,
        written: usize,
    },
    Buffer(UnexpectedKey),
    Claim(ClaimId),
    /// The message is discarded as it arrives: it was claimed and discarded, or its receive had no
    /// memory for it.
    Discard,
}

impl PartialMessage {
    /// Nothing of it has arrived.
    pub(super) fn new(envelope: Envelope, target: PartialTarget) -> Self {
        Self {
            envelope,
            received: 0,
            truncated: false,
            target,
        }
    }
}

impl RxQueue {
    /// A message begins to arrive in pieces. `None`: no receive takes it, and there is no room to
    /// buffer it.
    ///
    /// Memory for all of it is reserved now, so that no piece moves those before it. A receive for
    /// which that cannot be had fails with [`Error::OutOfMemory`] and has taken the message.
    pub fn begin_partial(
        &mut self,
        host: &mut dyn EngineContext,
        mut envelope: Envelope,
    ) -> Option<PartialId> {
        let matched = match self.take_match_multi(host, &envelope) {
            MatchResult::Receive(receive) => Some(receive),
            MatchResult::NoReceive
                if self.fits_budget(envelope.len) || self.is_probed(&envelope) =>
            {
                None
            }
            MatchResult::Blocked | MatchResult::NoReceive => {
                self.decline();
                return None;
            }
        };
        envelope.arrival = self.matcher.next_arrival();
        let slot = self.partials.vacant_entry();
        let id = slot.key();
        let mut refused = None;
        let target = match matched {
            Some((op, on_loss)) => {
                ack_match(&mut self.pending_acks, &mut envelope);
                match host.begin_fill(op, envelope.len) {
                    Ok(room) => {
                        self.partial_receives.push(Filling {
                            op,
                            landing: id,
                            on_loss,
                        });
                        PartialTarget::Receive {
                            op,
                            capacity: room,
                            written: 0,
                        }
                    }
                    Err(error) => {
                        refused = Some((op, error));
                        PartialTarget::Discard
                    }
                }
            }
            None => {
                let mut bytes = PooledBuf::empty(&self.pool);
                if bytes.begin_fill(envelope.len).is_err() {
                    self.decline();
                    return None;
                }
                self.budget_used += envelope.len + UNEXPECTED_OVERHEAD;
                PartialTarget::Buffer(self.matcher.add_unexpected(
                    envelope.clone(),
                    UnexpectedMessage {
                        bytes,
                        peer_memory: None,
                        partial: Some(id),
                    },
                ))
            }
        };
        slot.insert(PartialMessage::new(envelope.clone(), target));
        if let Some((op, error)) = refused {
            self.refuse(host, op, &envelope, error);
        }
        if matched.is_none() {
            self.check_probes(host);
        }
        Some(PartialId(id))
    }

    /// How many bytes of this message have not arrived yet.
    #[must_use]
    pub fn remaining(&self, id: PartialId) -> usize {
        self.partials
            .get(id.0)
            .map_or(0, |landing| landing.envelope.len - landing.received)
    }

    /// A piece arrives; at most [`RxQueue::remaining`] bytes of it are taken. True when the message
    /// is complete, and `id` is then no longer valid.
    pub fn append(
        &mut self,
        host: &mut dyn EngineContext,
        id: PartialId,
        piece: &dyn CopySource,
    ) -> bool {
        let count = piece.len().min(self.remaining(id));
        self.write_piece(host, id, piece, count);
        self.advance(host, id, count)
    }

    /// Puts the next bytes of a message where they belong, if there is room for them.
    pub(super) fn write_piece(
        &mut self,
        host: &mut dyn EngineContext,
        id: PartialId,
        piece: &dyn CopySource,
        count: usize,
    ) {
        let Some(landing) = self.partials.get(id.0).filter(|landing| !landing.truncated) else {
            return;
        };
        match landing.target {
            PartialTarget::Receive {
                op,
                capacity: room,
                written: placed,
            } => host.write_at(op, placed, piece, 0, count.min(room - placed)),
            unreceived => {
                if let Some(message) = self.unexpected_mut(unreceived) {
                    extend_from_source(&mut message.bytes, piece);
                }
            }
        }
    }

    /// The bytes that were placed last are good. True when the message is complete.
    pub(super) fn advance(
        &mut self,
        host: &mut dyn EngineContext,
        id: PartialId,
        count: usize,
    ) -> bool {
        let Some(landing) = self.partials.get_mut(id.0) else {
            return true;
        };
        landing.received += count;
        if let PartialTarget::Receive {
            capacity: room,
            written: placed,
            ..
        } = &mut landing.target
            && !landing.truncated
        {
            *placed += count.min(*room - *placed);
        }
        let complete = landing.received == landing.envelope.len;
        if complete {
            let landing = self.partials.remove(id.0);
            match landing.target {
                PartialTarget::Receive {
                    op,
                    written: placed,
                    ..
                } => {
                    self.take_filling(op);
                    host.complete(op, Outcome::received(&landing.envelope, placed));
                    self.queue_ack(&landing.envelope);
                }
                unreceived => {
                    if let Some(message) = self.unexpected_mut(unreceived) {
                        message.partial = None;
                    }
                }
            }
        }
        complete
    }

    /// The message whose pieces go there, as long as no receive has it.
    fn unexpected_mut(&mut self, target: PartialTarget) -> Option<&mut UnexpectedMessage> {
        match target {
            PartialTarget::Buffer(key) => self.matcher.message_mut(key).map(|(_, message)| message),
            PartialTarget::Claim(claim) => self.claims.message(claim),
            PartialTarget::Receive { .. } | PartialTarget::Discard => None,
        }
    }

    /// The rest of this message will never come, and what there is of it is discarded. The receive
    /// that took it goes on waiting if it accepts messages of any source; otherwise it fails.
    pub fn fail_partial(&mut self, host: &mut dyn EngineContext, id: PartialId, error: Error) {
        let Some(landing) = self.partials.try_remove(id.0) else {
            return;
        };
        match landing.target {
            PartialTarget::Receive {
                op,
                written: placed,
                ..
            } => {
                self.lost(host, op, (&landing.envelope, placed), error);
            }
            PartialTarget::Buffer(key) => {
                if self.matcher.take_message(key).is_some() {
                    self.budget_used = self
                        .budget_used
                        .saturating_sub(landing.envelope.len + UNEXPECTED_OVERHEAD);
                }
            }
            PartialTarget::Claim(claim) => self.fail_claim(claim, error),
            PartialTarget::Discard => {}
        }
    }
}

pub(super) fn extend_from_source(bytes: &mut PooledBuf, source: &dyn CopySource) {
    let at = bytes.len();
    bytes.grow(at, source.len());
    crate::buf::append(bytes.vec_mut(), at, source, 0, source.len());
}
