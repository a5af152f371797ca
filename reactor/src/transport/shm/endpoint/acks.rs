//! Acks and returned slots: what an endpoint reports to the senders of its messages.

use fabric_core::event::DownReason;
use fabric_core::rx::RxQueue;
use fabric_core::transport::EngineContext;

use super::ShmEndpoint;

impl ShmEndpoint {
    /// Sends pending acks to their senders.
    #[inline]
    pub(super) fn send_acks(&mut self, rx: &mut RxQueue) {
        if rx.has_unsent_acks() {
            self.send_all_acks(rx);
        }
    }

    #[cold]
    fn send_all_acks(&mut self, rx: &mut RxQueue) {
        while let Some((key, ack)) = rx.pop_ack(self.id) {
            if let Some(peer) = self
                .rx_connections
                .peers_mut()
                .find(|peer| peer.peer_key == key)
            {
                peer.send_ack(ack);
            }
        }
    }

    /// Copies one chunk of a message from its sender's memory; the sender is woken after the last
    /// one.
    #[cold]
    pub(super) fn progress_copies(&mut self, engine: &mut impl EngineContext) -> bool {
        let (copied, has_work) = engine.with_rx(self.id, |rx, engine| {
            let copied = rx.copy_next_chunk(engine);
            self.send_acks(rx);
            (copied, rx.has_work())
        });
        self.wake_for_returned_slots(engine);
        if has_work {
            // The sender waits for the copy even if no local task does.
            engine.request_progress();
        }
        copied
    }

    /// Wakes the peers that wait for returned slots.
    pub(super) fn wake_for_returned_slots(&mut self, engine: &mut impl EngineContext) {
        let mut ended = Vec::new();
        self.rx_connections.for_each_peer(|connection_index, peer| {
            if peer.down_reason().is_none()
                && let Err(reason) = peer.wake_for_returned_slots()
            {
                ended.push((connection_index, reason));
            }
        });
        for (connection_index, reason) in ended {
            self.on_rx_ended(engine, connection_index, reason);
            // Records that a dead peer left in its ring are still received.
            if let DownReason::Protocol(_) = reason {
                self.remove_rx_connection(engine, connection_index);
            }
        }
    }
}
