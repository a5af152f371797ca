//! Messages that end when the peer has said so.

use fabric_core::completion::Outcome;
use fabric_core::matching::AckRequest;
use fabric_core::transport::EngineContext;
use fabric_core::{Error, Resource, Result};

use super::QueuedTx;
use super::channel::TxChannel;

impl TxChannel {
    /// The receipt that the peer is to confirm of this message, with its first record.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is no more of them.
    pub(super) fn ack_for(&self, front: &QueuedTx) -> Result<Option<AckRequest>> {
        let level = front.spec.level;
        if front.started || !level.needs_ack() {
            return Ok(None);
        }
        let number = self
            .pending_acks
            .vacant_id()
            .ok_or(Error::WouldBlock(Resource::TransmitCredit))?;
        Ok(Some(AckRequest { number, level }))
    }

    /// Nothing of the message with this receipt is needed here any more.
    pub(super) fn mark_sent(&mut self, receipt: u32, host: &mut dyn EngineContext) {
        if let Some(message) = self.pending_acks.mark_sent(receipt) {
            host.complete(message.op, Outcome::ok(message.transfer));
        } else if let Some(op) = self.pending_acks.op(receipt) {
            host.has_left(op);
        }
    }

    /// Ends what the peer has confirmed. Returns whether there was anything.
    pub(super) fn complete_acked(&mut self, host: &mut dyn EngineContext) -> bool {
        let mut any = false;
        self.pending_acks
            .collect_acked(self.ring.memory(), |message| {
                any = true;
                host.complete(message.op, Outcome::ok(message.transfer));
            });
        any
    }

    /// The connection ends: what the peer has not confirmed by now it will not.
    pub(super) fn fail_unacked(&mut self, host: &mut dyn EngineContext, error: &Error) {
        if self.pending_acks.is_empty() {
            return;
        }
        // What was said to the parent of a forked child is for the parent.
        if self.socket.in_original_process() {
            self.complete_acked(host);
        }
        // Those that were not sent wait elsewhere as well, and end there.
        for message in self.pending_acks.take_unacked() {
            host.complete(
                message.op,
                Outcome::partial(message.transfer, error.clone()),
            );
        }
    }
}
