//! What senders wait to hear of their messages.
//!
//! A message can come with a [`AckRequest`](crate::matching::Receipt): its sender has not ended it,
//! and waits for word that a receive has taken it, or has all of it. That word is said once for
//! each message, whatever becomes of it afterwards: a receive that is dropped unseen gives its
//! message to the next, and the sender hears nothing new. A message that is discarded has met the
//! application as well. One that can never be complete brings its sender no word, but the end of
//! its connection.
//!
//! The words are collected here, and the provider passes them on when it has nothing else to do
//! with the context.

use crate::completion::CompletionLevel;
use crate::matching::{Envelope, PeerKey};

use super::RxQueue;

impl RxQueue {
    /// A message was received, all of it that there was room for, or discarded: its sender hears of
    /// it, if it waits for that.
    #[inline]
    pub(super) fn queue_ack(&mut self, envelope: &Envelope) {
        if let Some(receipt) = envelope.ack {
            self.pending_acks.push((envelope.peer, receipt.number));
        }
    }

    /// Whether there is something to tell senders.
    #[must_use]
    #[inline]
    pub fn has_pending_acks(&self) -> bool {
        !self.pending_acks.is_empty()
    }

    /// There is nobody left to tell.
    pub fn clear_acks(&mut self) {
        self.pending_acks.clear();
    }

    /// Something to tell a sender: which, and the number of its receipt.
    pub fn pop_ack(&mut self) -> Option<(PeerKey, u32)> {
        self.pending_acks.pop()
    }
}

/// A receive has taken a message that is not all there: that may be what its sender waits for.
pub(super) fn ack_match(receipts: &mut Vec<(PeerKey, u32)>, envelope: &mut Envelope) {
    if let Some(receipt) = envelope
        .ack
        .take_if(|receipt| receipt.level == CompletionLevel::Matched)
    {
        receipts.push((envelope.peer, receipt.number));
    }
}
