//! An endpoint of the simulated network: its two halves, and when it may sleep.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload};
use crate::error::Result;
use crate::matching::PeerKey;
use crate::mr::DirectRegion;
use crate::stats::TransportStats;
use crate::transport::{
    EndpointContext, EngineContext, OpKey, TransportEndpoint, TrySend, TxOp, WaitSet, WaitToken,
};

use super::inbound::Inbound;
use super::net::{self, NodeId};
use super::outbound::Outbound;

/// An endpoint of a domain.
pub(super) struct SimEndpoint {
    node: NodeId,
    wait: Arc<dyn WaitSet>,
    inbound: Inbound,
    outbound: Outbound,
    /// The engine sleeps or is about to: peers wake the wait set.
    armed: bool,
}

impl SimEndpoint {
    pub(super) fn new(node: NodeId, wait: Arc<dyn WaitSet>) -> Self {
        Self {
            node,
            wait,
            inbound: Inbound::new(node),
            outbound: Outbound::new(node),
            armed: false,
        }
    }

    /// Sends the acks that a change of the receive queue has queued, and wakes the engine if the
    /// change has made a declined message acceptable, for which no peer rings the doorbell.
    fn after_rx_change(&self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        self.inbound.send_acks(ctx);
        if self.armed && self.inbound.would_accept_declined(ctx) {
            self.wait.wake();
        }
    }

    fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
        net::arm(self.node, armed);
    }
}

impl<E: EngineContext> TransportEndpoint<E> for SimEndpoint {
    fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        self.outbound.try_send(ctx, tx_op, payload)
    }

    fn try_read(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        into: &mut AnyBuf,
    ) -> Result<TrySend> {
        self.outbound.try_read(ctx, tx_op, into)
    }

    fn try_atomic(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        self.outbound.try_atomic(ctx, tx_op, operands, result)
    }

    fn direct_region(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        self.outbound.direct_region(ctx, peer, key)
    }

    fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        self.outbound.queue(ctx, op, tx_op)
    }

    fn on_rx_queue_changed(&mut self, ctx: &mut EndpointContext<'_, E>) {
        // Unexpected messages may be left for further passes.
        ctx.request_rearm();
        self.after_rx_change(ctx);
    }

    fn cancel(&mut self, ctx: &mut EndpointContext<'_, E>, op: OpKey) -> bool {
        if self.outbound.cancel(op) {
            // Operations queued behind the canceled one may be sent now.
            self.outbound.flush(ctx);
            ctx.request_rearm();
            return true;
        }
        false
    }

    fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        self.inbound.source_of(peer)
    }

    fn address_inserted(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        addr: FiAddr,
        address: &Address,
    ) {
        self.inbound.address_inserted(ctx, addr, address);
        self.after_rx_change(ctx);
    }

    fn address_removed(&mut self, ctx: &mut EndpointContext<'_, E>, addr: FiAddr) {
        self.inbound.address_removed(addr);
        self.after_rx_change(ctx);
    }

    fn progress(&mut self, ctx: &mut EndpointContext<'_, E>, _active_endpoints: usize) -> bool {
        let mut moved = self.outbound.flush(ctx);
        let pass = self.inbound.pass(ctx);
        moved |= pass.moved;
        // No doorbell rings when a packet becomes due. A thread that was woken by the arrival of a
        // packet must not sleep before the packet is due, so at an armed endpoint a delayed packet
        // counts as progress.
        moved || (self.armed && pass.delayed)
    }

    fn ready(&mut self, _: &mut EndpointContext<'_, E>, _: WaitToken) {}

    fn arm(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool {
        self.set_armed(true);
        let has_work = net::has_pending(self.node)
            || ctx.rx_has_work()
            || self.inbound.would_accept_declined(ctx)
            || self.outbound.can_flush();
        if has_work {
            self.set_armed(false);
        }
        !has_work
    }

    fn disarm(&mut self) {
        self.set_armed(false);
    }

    fn close(&mut self, ctx: &mut EndpointContext<'_, E>) {
        net::close(self.node);
        self.outbound.close(ctx);
        self.inbound.close(ctx);
    }

    fn stats(&self) -> TransportStats {
        TransportStats {
            peers: self.inbound.peer_count(),
            ..TransportStats::default()
        }
    }

    fn describe(&self) -> String {
        format!(
            "{} peers, {} queued sends",
            self.inbound.peer_count(),
            self.outbound.queued_sends()
        )
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        net::close(self.node);
    }
}
