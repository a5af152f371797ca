//! Acks and returned slots, which an endpoint reports to the senders of its messages. A slot is
//! returned when its loan was dropped or its single-copy message was copied.

use fabric_core::event::DownReason;
use fabric_core::transport::{EndpointContext, EngineContext};

use super::ShmEndpoint;

impl ShmEndpoint {
    /// Sends pending acks to their senders.
    #[inline]
    pub(super) fn send_acks(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        if ctx.has_unsent_acks() {
            self.send_all_acks(ctx);
        }
    }

    #[cold]
    fn send_all_acks(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        while let Some((key, ack)) = ctx.pop_ack() {
            if let Some(rx_index) = self.rx_connections.index_of(key)
                && let Some(peer) = self.rx_connections.get_mut(rx_index)
            {
                peer.send_ack(ack);
            }
        }
    }

    /// Copies one chunk of a message from its sender's memory; after the last chunk wakes the
    /// sender. Returns whether anything was copied.
    #[cold]
    pub(super) fn progress_copies(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let copied = ctx.copy_next_chunk();
        self.send_acks(ctx);
        let has_work = ctx.rx_has_work();
        self.wake_for_returned_slots(ctx);
        if has_work {
            // The copy must progress even if no local task waits, because the sender waits.
            ctx.request_pass();
        }
        copied
    }

    /// Wakes the peers that wait for returned slots.
    pub(super) fn wake_for_returned_slots(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        let mut ended = Vec::new();
        self.rx_connections.for_each_established(|rx_index, peer| {
            if peer.down_reason().is_none()
                && let Err(reason) = peer.wake_for_returned_slots()
            {
                ended.push((rx_index, reason));
            }
        });
        for (rx_index, reason) in ended {
            self.on_rx_ended(ctx, rx_index, reason);
            // Records that a dead peer left in its ring are still received.
            if let DownReason::Protocol(_) = reason {
                self.remove_rx_connection(ctx, rx_index);
            }
        }
    }
}
