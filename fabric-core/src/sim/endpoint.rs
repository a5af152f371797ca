//! An endpoint of the simulated network: its two halves, and when it may sleep.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload};
use crate::error::Result;
use crate::matching::PeerKey;
use crate::mr::DirectRegion;
use crate::stats::TransportStats;
use crate::transport::{
    EngineContext, EpId, OpKey, RxStatus, TransportEndpoint, TrySend, TxOp, WaitSet, WaitToken,
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
    pub(super) fn new(ep: EpId, node: NodeId, wait: Arc<dyn WaitSet>) -> Self {
        Self {
            node,
            wait,
            inbound: Inbound::new(ep, node),
            outbound: Outbound::new(ep, node),
            armed: false,
        }
    }

    /// Sends the acks that a change of the receive queue has queued, and wakes the engine if the
    /// change has made a declined message acceptable, for which no peer rings the doorbell.
    fn after_rx_change(&self, engine: &mut impl EngineContext) {
        self.inbound.send_acks(engine);
        if self.armed && self.inbound.would_accept_declined(engine) {
            self.wait.wake();
        }
    }

    fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
        net::arm(self.node, armed);
    }
}

impl<E: EngineContext> TransportEndpoint<E> for SimEndpoint {
    fn try_send(&mut self, engine: &mut E, tx_op: &TxOp, payload: Payload<'_>) -> Result<TrySend> {
        self.outbound.try_send(engine, tx_op, payload)
    }

    fn try_read(&mut self, engine: &mut E, tx_op: &TxOp, into: &mut AnyBuf) -> Result<TrySend> {
        self.outbound.try_read(engine, tx_op, into)
    }

    fn try_atomic(
        &mut self,
        engine: &mut E,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        self.outbound.try_atomic(engine, tx_op, operands, result)
    }

    fn direct_region(
        &mut self,
        engine: &mut E,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        self.outbound.direct_region(engine, peer, key)
    }

    fn queue_send(&mut self, engine: &mut E, op: OpKey, tx_op: &TxOp) -> Result<()> {
        self.outbound.queue(engine, op, tx_op)
    }

    fn on_rx_queue_changed(&mut self, engine: &mut E) {
        // Unexpected messages may be left for further passes.
        engine.request_rearm();
        self.after_rx_change(engine);
    }

    fn cancel(&mut self, engine: &mut E, op: OpKey) -> bool {
        if self.outbound.cancel(op) {
            // Operations queued behind the canceled one may be sent now.
            self.outbound.flush(engine);
            engine.request_rearm();
            return true;
        }
        false
    }

    fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        self.inbound.source_of(peer)
    }

    fn address_inserted(&mut self, engine: &mut E, addr: FiAddr, address: &Address) {
        self.inbound.address_inserted(engine, addr, address);
        self.after_rx_change(engine);
    }

    fn address_removed(&mut self, engine: &mut E, addr: FiAddr) {
        self.inbound.address_removed(addr);
        self.after_rx_change(engine);
    }

    fn progress(&mut self, engine: &mut E, _active_endpoints: usize) -> bool {
        let mut moved = self.outbound.flush(engine);
        let pass = self.inbound.pass(engine);
        moved |= pass.moved;
        // No doorbell rings when a packet becomes due. A thread that was woken by the arrival of a
        // packet must not sleep before the packet is due, so at an armed endpoint a delayed packet
        // counts as progress.
        moved || (self.armed && pass.delayed)
    }

    fn ready(&mut self, _: &mut E, _: WaitToken) {}

    fn arm(&mut self, engine: &mut E) -> bool {
        self.set_armed(true);
        let has_work = net::has_pending(self.node)
            || engine.with_rx(self.inbound.ep(), |rx, _| rx.has_work())
            || self.inbound.would_accept_declined(engine)
            || self.outbound.can_flush();
        if has_work {
            self.set_armed(false);
        }
        !has_work
    }

    fn disarm(&mut self) {
        self.set_armed(false);
    }

    fn close(&mut self, engine: &mut E) {
        net::close(self.node);
        self.outbound.close(engine);
        self.inbound.close(engine);
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
