//! Changes of the receive queue and of address handles.

use fabric_core::matching::PeerKey;
use fabric_core::transport::{EndpointContext, EngineContext};
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

    /// Returns the address handle of a connected peer.
    pub(crate) fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        let mut peers = self.rx_connections.established();
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
        for peer in self.rx_connections.established_mut() {
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
