//! Messages that arrive in pieces, or are copied in chunks, and the buffers that the bytes go to.

use crate::buf::{CopySource, PooledBuf};
use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, UnexpectedKey};
use crate::transport::{EngineContext, OpKey, PartialId};

use super::acks::ack_match;
use super::claim::ClaimId;
use super::lost::PartialReceive;
use super::multi::MatchResult;
use super::{RxQueue, UNEXPECTED_OVERHEAD, UnexpectedMessage};

/// A message that is arriving in pieces.
#[derive(Debug)]
pub(super) struct PartialMessage {
    pub(super) envelope: Envelope,
    /// Bytes that have arrived, including those that did not fit into the target.
    pub(super) received: usize,
    /// Bytes in the middle were lost: later pieces are not contiguous and are lost too.
    pub(super) truncated: bool,
    pub(super) target: PartialTarget,
}

/// The buffer that the pieces of a message go to.
#[derive(Clone, Copy, Debug)]
pub(super) enum PartialTarget {
    /// The buffer of a receive.
    Receive {
        op: OpKey,
        /// Bytes of the message that the receive accepts.
        capacity: usize,
        /// Bytes of the message that are in the buffer.
        written: usize,
    },
    /// The pooled buffer of an unexpected message.
    Buffer(UnexpectedKey),
    /// The pooled buffer of a claimed message.
    Claim(ClaimId),
    /// Pieces are discarded as they arrive: the message was claimed and discarded, or its receive
    /// had no memory for it.
    Discard,
}

impl PartialMessage {
    /// Creates a message of which no byte has arrived.
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
    /// Begins a message that arrives in pieces. Returns `None` when the message is declined, as
    /// [`deliver`](Self::deliver) returns false.
    ///
    /// Memory for the whole message is reserved now, so that no piece reallocates the buffer. A
    /// receive whose memory cannot be reserved fails with [`Error::OutOfMemory`], and the message
    /// is discarded as it arrives.
    pub fn begin_partial(
        &mut self,
        engine: &mut impl EngineContext,
        mut envelope: Envelope,
    ) -> Option<PartialId> {
        let matched = match self.take_match_multi(engine, &envelope) {
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
        let id = PartialId(slot.key());
        let mut failed = None;
        let target = match matched {
            Some((op, on_loss)) => {
                ack_match(&mut self.unsent_acks, &mut envelope);
                match engine.begin_fill(op, envelope.len) {
                    Ok(capacity) => {
                        self.partial_receives.push(PartialReceive {
                            op,
                            partial: id,
                            on_loss,
                        });
                        PartialTarget::Receive {
                            op,
                            capacity,
                            written: 0,
                        }
                    }
                    Err(error) => {
                        failed = Some((op, error));
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
        if let Some((op, error)) = failed {
            self.fail_without_memory(engine, op, &envelope, error);
        }
        if matched.is_none() {
            self.check_probes(engine);
        }
        Some(id)
    }

    /// Returns how many bytes of this message have not arrived yet.
    #[must_use]
    pub fn remaining(&self, id: PartialId) -> usize {
        self.partials
            .get(id.0)
            .map_or(0, |partial| partial.envelope.len - partial.received)
    }

    /// Appends a piece; at most [`RxQueue::remaining`] bytes of it are used. Returns true when the
    /// message is complete, and `id` is then no longer valid.
    pub fn append(
        &mut self,
        engine: &mut impl EngineContext,
        id: PartialId,
        piece: &dyn CopySource,
    ) -> bool {
        let count = piece.len().min(self.remaining(id));
        self.write_piece(engine, id, piece, count);
        self.advance(engine, id, count)
    }

    /// Writes the next `count` bytes of a message to its target, as far as the target has room.
    /// [`advance`](Self::advance) must follow.
    pub(super) fn write_piece(
        &mut self,
        engine: &mut impl EngineContext,
        id: PartialId,
        piece: &dyn CopySource,
        count: usize,
    ) {
        let Some(partial) = self.partials.get(id.0).filter(|partial| !partial.truncated) else {
            return;
        };
        match partial.target {
            PartialTarget::Receive {
                op,
                capacity,
                written,
            } => engine.write_at(op, written, piece, 0, count.min(capacity - written)),
            target => {
                if let Some(message) = self.unexpected_mut(target) {
                    append_copy(&mut message.bytes, piece);
                }
            }
        }
    }

    /// Accounts for the `count` bytes that [`write_piece`](Self::write_piece) wrote last, once the
    /// caller has checked their source. Returns true when the message is complete.
    pub(super) fn advance(
        &mut self,
        engine: &mut impl EngineContext,
        id: PartialId,
        count: usize,
    ) -> bool {
        let Some(partial) = self.partials.get_mut(id.0) else {
            return true;
        };
        partial.received += count;
        if let PartialTarget::Receive {
            capacity, written, ..
        } = &mut partial.target
            && !partial.truncated
        {
            *written += count.min(*capacity - *written);
        }
        let complete = partial.received == partial.envelope.len;
        if complete {
            let partial = self.partials.remove(id.0);
            match partial.target {
                PartialTarget::Receive { op, written, .. } => {
                    self.take_partial_receive(op);
                    engine.complete(op, Outcome::received(&partial.envelope, written));
                    self.queue_ack(&partial.envelope);
                }
                target => {
                    if let Some(message) = self.unexpected_mut(target) {
                        message.partial = None;
                    }
                }
            }
        }
        complete
    }

    /// Returns the unexpected or claimed message whose buffer is this target; `None` for another
    /// target.
    fn unexpected_mut(&mut self, target: PartialTarget) -> Option<&mut UnexpectedMessage> {
        match target {
            PartialTarget::Buffer(key) => self.matcher.message_mut(key).map(|(_, message)| message),
            PartialTarget::Claim(claim) => self.claims.message(claim),
            PartialTarget::Receive { .. } | PartialTarget::Discard => None,
        }
    }

    /// Discards a message whose rest will never arrive. Its receive waits for another message or
    /// fails, as the head of `lost.rs` says; a claim keeps the bytes that have arrived.
    pub fn fail_partial(&mut self, engine: &mut impl EngineContext, id: PartialId, error: Error) {
        let Some(partial) = self.partials.try_remove(id.0) else {
            return;
        };
        match partial.target {
            PartialTarget::Receive { op, written, .. } => {
                self.on_message_lost(engine, op, (&partial.envelope, written), error);
            }
            PartialTarget::Buffer(key) => {
                if self.matcher.take_message(key).is_some() {
                    self.budget_used = self
                        .budget_used
                        .saturating_sub(partial.envelope.len + UNEXPECTED_OVERHEAD);
                }
            }
            PartialTarget::Claim(claim) => self.fail_claim(claim, error),
            PartialTarget::Discard => {}
        }
    }
}

/// Appends a copy of `bytes` to a pooled buffer.
pub(super) fn append_copy(buffer: &mut PooledBuf, bytes: &dyn CopySource) {
    let end = buffer.len();
    buffer.grow(end, bytes.len());
    crate::buf::append(buffer.vec_mut(), end, bytes, 0, bytes.len());
}
