//! Receives whose message will never be complete, because its sender died or violated the protocol.
//!
//! A receive from any source keeps waiting, at its place in posting order: one failed sender must
//! not fail receives that other senders could match. A receive directed to the sender fails, and so
//! does a receive of a claimed message. Of a multi-receive only the part fails in which the message
//! was arriving.

use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, PostPlace, RecvSpec};
use crate::op::OpKey;

use super::RxQueue;
use super::engine::RxEngine;

/// What happens to a receive when its arriving message is lost.
#[derive(Clone, Copy, Debug)]
pub(super) enum OnLoss {
    /// The receive waits for the next message, at this place in posting order.
    Restore(PostPlace),
    /// The receive is part of a multi-receive from any source, and ends without a completion.
    Discard,
    /// The receive fails.
    Fail,
}

impl OnLoss {
    /// Returns the rule for a receive that was posted at this place and takes one message.
    pub(super) fn for_receive(place: PostPlace) -> Self {
        if place.is_directed() {
            Self::Fail
        } else {
            Self::Restore(place)
        }
    }

    /// Returns the place in posting order of a receive that waits for the next message.
    pub(super) fn place(self) -> Option<PostPlace> {
        match self {
            Self::Restore(place) => Some(place),
            Self::Discard | Self::Fail => None,
        }
    }

    /// Returns the rule for a part of a multi-receive with this spec.
    pub(super) fn for_part(spec: &RecvSpec) -> Self {
        if spec.from.is_some() {
            Self::Fail
        } else {
            Self::Discard
        }
    }
}

impl RxQueue {
    /// Restores, discards or fails a receive whose message will never be complete, as its
    /// [`OnLoss`] says; `placed` bytes of the message are in the receive's buffer.
    pub(super) fn on_message_lost(
        &mut self,
        engine: &mut impl RxEngine,
        (op, on_loss): (OpKey, OnLoss),
        (envelope, placed): (&Envelope, usize),
        error: Error,
    ) {
        match on_loss {
            OnLoss::Restore(place) => {
                engine.repost(op);
                self.restore(engine, op, place);
            }
            OnLoss::Discard => engine.discard_part(op),
            OnLoss::Fail => {
                let transfer = Outcome::received(envelope, placed).transfer;
                engine.complete(op, Outcome::partial(transfer, error));
            }
        }
    }

    /// Posts a receive again at its old place. The receive takes the earliest unexpected message
    /// that matches: it counts for the turns of held messages.
    fn restore(&mut self, engine: &mut impl RxEngine, op: OpKey, place: PostPlace) {
        self.other_changes += 1;
        let waiting = self.matcher.restore(place, op);
        let Some((envelope, message)) =
            waiting.and_then(|waiting| self.matcher.unexpected.take(waiting))
        else {
            self.record_post_key(op, place.key());
            // `RxEngine::repost` made the engine retry messages that transports hold.
            return;
        };
        self.matcher.posted.remove(place.key());
        self.count_passed(Some(place), envelope.arrival);
        self.deliver_to_receive(engine, (op, OnLoss::Restore(place)), envelope, message);
    }
}
