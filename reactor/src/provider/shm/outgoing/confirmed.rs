//! Messages that end when the peer has said so.

use fabric_core::completion::Outcome;
use fabric_core::matching::Receipt;
use fabric_core::provider::Host;
use fabric_core::{Error, Result, Scarce};

use super::Queued;
use super::wires::Wires;

impl Wires {
    /// The receipt that the peer is to confirm of this message, with its first record.
    ///
    /// # Errors
    /// [`Error::Again`] when there is no more of them.
    pub(super) fn receipt_for(&self, front: &Queued) -> Result<Option<Receipt>> {
        let level = front.spec.level;
        if front.begun || !level.is_confirmed() {
            return Ok(None);
        }
        let number = self
            .receipts
            .vacant()
            .ok_or(Error::Again(Scarce::TransmitCredit))?;
        Ok(Some(Receipt { number, level }))
    }

    /// Nothing of the message with this receipt is needed here any more.
    pub(super) fn sent_with(&mut self, receipt: u32, host: &mut dyn Host) {
        if let Some(message) = self.receipts.sent(receipt) {
            host.complete(message.op, Outcome::ok(message.transfer));
        } else if let Some(op) = self.receipts.op(receipt) {
            host.has_left(op);
        }
    }

    /// Ends what the peer has confirmed. Returns whether there was anything.
    pub(super) fn end_confirmed(&mut self, host: &mut dyn Host) -> bool {
        let mut any = false;
        self.receipts.collect(self.ring.memory(), |message| {
            any = true;
            host.complete(message.op, Outcome::ok(message.transfer));
        });
        any
    }

    /// The connection ends: what the peer has not confirmed by now it will not.
    pub(super) fn end_unconfirmed(&mut self, host: &mut dyn Host, error: &Error) {
        if self.receipts.is_empty() {
            return;
        }
        // What was said to the parent of a forked child is for the parent.
        if self.socket.is_ours() {
            self.end_confirmed(host);
        }
        // Those that were not sent wait elsewhere as well, and end there.
        for message in self.receipts.abandoned() {
            host.complete(message.op, Outcome::cut(message.transfer, error.clone()));
        }
    }
}
