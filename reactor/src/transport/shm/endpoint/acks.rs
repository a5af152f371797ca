//! What senders are told of their messages.

use fabric_core::event::DownReason;
use fabric_core::transport::EngineContext;

use super::ShmEndpoint;

impl ShmEndpoint {
    /// Tells senders what they wait to hear of their messages.
    #[inline]
    pub(super) fn send_acks(&mut self) {
        if self.rx.own.has_pending_acks() {
            self.send_all_acks();
        }
    }

    #[cold]
    fn send_all_acks(&mut self) {
        while let Some((key, receipt)) = self.rx.own.pop_ack() {
            if let Some(peer) = self
                .rx_connections
                .peers_mut()
                .find(|peer| peer.peer_key == key)
            {
                peer.send_ack(receipt);
            }
        }
    }

    /// Tells senders of what has become of their messages in a context that is shared.
    #[cold]
    pub(super) fn send_shared_acks(&mut self, host: &mut dyn EngineContext) {
        self.rx.collect_acks();
        self.wake_for_returned_slots(host);
    }

    /// Copies a piece of what lies with its sender, who is told when that was the last.
    #[cold]
    pub(super) fn progress_copies(&mut self, host: &mut dyn EngineContext) -> bool {
        let copied = self.rx.own.copy_next_chunk(host);
        self.send_acks();
        self.wake_for_returned_slots(host);
        if self.rx.own.has_work() {
            // Its sender waits, whoever waits here.
            host.request_progress();
        }
        copied
    }

    /// Tells peers of what was copied from them, if they wait for that.
    fn wake_for_returned_slots(&mut self, host: &mut dyn EngineContext) {
        let mut ended = Vec::new();
        self.rx_connections.for_each_peer(|at, peer| {
            if peer.down_reason().is_none()
                && let Err(reason) = peer.wake_for_returned_slots()
            {
                ended.push((at, reason));
            }
        });
        for (at, reason) in ended {
            self.on_rx_ended(host, at, reason);
            // What one that died has left in the ring is still taken.
            if let DownReason::Protocol(_) = reason {
                self.remove_rx_connection(host, at);
            }
        }
    }
}
