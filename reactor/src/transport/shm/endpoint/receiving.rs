//! Changes of the receive queue and of address handles, and canceling of sends.

use fabric_core::matching::PeerKey;
use fabric_core::transport::{EndpointContext, EngineContext, OpKey};
use fabric_core::{Address, Error, FiAddr};

use super::super::control::ControlMessage;
use super::ShmEndpoint;
use super::disconnect::end_tx_connection;

impl ShmEndpoint {
    /// Handles a change of the receive queue: a receive was posted, a message was discarded, or a
    /// message of a shared receive queue was copied.
    #[inline(always)] // fast path of small messages
    pub(crate) fn on_rx_queue_changed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        self.is_idle = false;
        if self.has_rx_change_effects {
            self.apply_rx_change_effects(ctx);
        }
        self.update_post_reports(ctx);
        self.send_acks(ctx);
        if ctx.rx_has_work() {
            // The copy must progress even if no local task waits, because the sender waits.
            ctx.request_progress();
            ctx.request_rearm();
        }
        if self.message_held {
            self.retry_held(ctx);
        }
    }

    /// Sets whether the engine reports posted receives: if this endpoint holds a message back, is
    /// idle, or has other effects to apply.
    #[cold]
    pub(super) fn update_post_reports(&self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        ctx.set_post_reports(self.message_held || self.has_rx_change_effects || self.is_idle);
    }

    #[cold]
    fn apply_rx_change_effects(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        if ctx.shares_rx() {
            self.wake_for_returned_slots(ctx);
        } else {
            self.fail_recvs(ctx);
        }
    }

    /// Cancels a queued transmit operation of which nothing was sent. Returns whether the operation
    /// was canceled.
    pub(crate) fn cancel(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        op: OpKey,
    ) -> bool {
        let is_canceled = |tx_index: &usize| {
            self.tx_connections
                .lock(*tx_index)
                .is_some_and(|mut tx| tx.cancel(op))
        };
        let Some(tx_index) = self.tx_queued.iter().copied().find(is_canceled) else {
            return false;
        };
        // Operations queued behind the canceled one may go now.
        self.progress_tx_connection(ctx, tx_index);
        ctx.request_rearm();
        true
    }

    /// Returns the address handle of a connected peer.
    pub(crate) fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        let mut peers = self.rx_connections.peers();
        peers.find(|known| known.peer_key == peer)?.source
    }

    pub(crate) fn address_inserted(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        addr: FiAddr,
        address: &Address,
    ) {
        let expected = ctx.incarnation_of(addr);
        self.rx_connections.for_each_at(address, |peer| {
            let is_expected = expected.is_none_or(|expected| expected == peer.identity.into());
            if peer.source.is_none() && is_expected {
                peer.source = Some(addr);
                ctx.assign_source(peer.peer_key, addr);
            }
        });
        if let Some(mut tx) = self.tx_connection(addr) {
            // An address that the application has inserted stands for any incarnation.
            tx.expected_incarnation = expected;
        }
    }

    pub(crate) fn address_removed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        addr: FiAddr,
    ) {
        for peer in self.rx_connections.peers_mut() {
            peer.source = peer.source.filter(|source| *source != addr);
        }
        let tx_index = addr.index();
        if self.tx_connection(addr).is_some()
            && let Some(mut tx) = self.tx_connections.remove(tx_index)
        {
            self.tx_indices.retain(|connected| *connected != tx_index);
            self.tx_queued.retain(|queued| *queued != tx_index);
            tx.send_control(ControlMessage::Disconnect);
            end_tx_connection(&mut tx, ctx, &Error::StaleAddress(addr));
            self.counters += tx.counters();
        }
    }
}
