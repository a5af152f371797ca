//! Receives whose message will never be complete: its sender is gone, or broke the protocol.
//!
//! A receive that accepts messages of any source goes on waiting, at its place in posting order:
//! one sender must not end what others are waited for. A receive that names the sender fails, and
//! so does one that was given a claimed message. Of a receive of several messages only the part
//! ends in which the message was arriving.

use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, PostPlace, RecvSpec};
use crate::transport::{EngineContext, OpKey};

use super::RxQueue;

/// What becomes of a receive when the message that is arriving in it is lost.
#[derive(Clone, Copy, Debug)]
pub(super) enum OnLoss {
    /// It waits for the next message, at this place in posting order.
    Restore(PostPlace),
    /// It is part of a receive of several messages of any source, and ends unreported.
    Discard,
    /// It fails.
    Fail,
}

impl OnLoss {
    /// Of a receive that was posted at this place.
    pub(super) fn of(place: PostPlace) -> Self {
        if place.is_directed() {
            Self::Fail
        } else {
            Self::Restore(place)
        }
    }

    /// Of a part of a receive of several messages.
    pub(super) fn of_part(spec: &RecvSpec) -> Self {
        if spec.from.is_some() {
            Self::Fail
        } else {
            Self::Discard
        }
    }
}

/// A message that is arriving in a receive.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) op: OpKey,
    /// The landing that fills it.
    pub(super) landing: usize,
    pub(super) on_loss: OnLoss,
}

impl RxQueue {
    /// Nothing arrives in this receive any more.
    pub(super) fn take_filling(&mut self, op: OpKey) -> Option<Filling> {
        let at = self
            .partial_receives
            .iter()
            .position(|filling| filling.op == op)?;
        Some(self.partial_receives.swap_remove(at))
    }

    /// The rest of the message that was arriving in this receive will never come; `placed` bytes
    /// of it are in the receive's buffer.
    pub(super) fn lost(
        &mut self,
        host: &mut dyn EngineContext,
        op: OpKey,
        (envelope, placed): (&Envelope, usize),
        error: Error,
    ) {
        let on_loss = self
            .take_filling(op)
            .map_or(OnLoss::Fail, |filling| filling.on_loss);
        match on_loss {
            OnLoss::Restore(place) => {
                host.rearm(op);
                self.restore(host, op, place);
            }
            OnLoss::Discard => host.discard_part(op),
            OnLoss::Fail => {
                let transfer = Outcome::received(envelope, placed).transfer;
                host.complete(op, Outcome::partial(transfer, error));
            }
        }
    }

    /// Posts a receive again at its old place. It takes the earliest message that waits for it.
    fn restore(&mut self, host: &mut dyn EngineContext, op: OpKey, place: PostPlace) {
        let (key, waiting) = self.matcher.restore(place, op);
        let Some((envelope, message)) =
            waiting.and_then(|waiting| self.matcher.take_message(waiting))
        else {
            self.record_post_key(op, key);
            // A message that another peer holds back may be for it.
            return host.request_rearm();
        };
        self.matcher.remove_posted(key);
        self.deliver_buffered(host, (op, OnLoss::Restore(place)), envelope, message);
    }
}
