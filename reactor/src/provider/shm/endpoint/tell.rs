//! What senders are told of their messages.

use fabric_core::event::DownReason;
use fabric_core::provider::Host;

use super::Endpoint;

impl Endpoint {
    /// Tells senders what they wait to hear of their messages.
    #[inline]
    pub(super) fn confirm(&mut self) {
        if self.rx.own.owes_receipts() {
            self.confirm_all();
        }
    }

    #[cold]
    fn confirm_all(&mut self) {
        while let Some((key, receipt)) = self.rx.own.next_receipt() {
            if let Some(peer) = self.callers.peers_mut().find(|peer| peer.key == key) {
                peer.confirm(receipt);
            }
        }
    }

    /// Tells senders of what has become of their messages in a context that is shared.
    #[cold]
    pub(super) fn tell_of_shared(&mut self, host: &mut dyn Host) {
        self.rx.gather();
        self.acknowledge(host);
    }

    /// Copies a piece of what lies with its sender, who is told when that was the last.
    #[cold]
    pub(super) fn copy_on(&mut self, host: &mut dyn Host) -> bool {
        let copied = self.rx.own.copy_on(host);
        self.confirm();
        self.acknowledge(host);
        if self.rx.own.has_chores() {
            // Its sender waits, whoever waits here.
            host.goes_on();
        }
        copied
    }

    /// Tells peers of what was copied from them, if they wait for that.
    fn acknowledge(&mut self, host: &mut dyn Host) {
        let mut ended = Vec::new();
        self.callers.each(|at, peer| {
            if peer.down().is_none()
                && let Err(reason) = peer.acknowledge()
            {
                ended.push((at, reason));
            }
        });
        for (at, reason) in ended {
            self.caller_ended(host, at, reason);
            // What one that died has left in the ring is still taken.
            if let DownReason::Protocol(_) = reason {
                self.end_caller(host, at);
            }
        }
    }
}
