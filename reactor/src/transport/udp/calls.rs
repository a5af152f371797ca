//! The calls of the engine.

use fabric_core::buf::Payload;
use fabric_core::matching::PeerKey;
use fabric_core::stats::TransportStats;
use fabric_core::transport::{
    EndpointContext, EngineContext, MulticastGroups, OpKey, TransportEndpoint, TrySend, TxOp,
    WaitToken,
};
use fabric_core::{Address, FiAddr, Result};

use super::endpoint::UdpEndpoint;

impl<E: EngineContext> TransportEndpoint<E> for UdpEndpoint {
    fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        self.try_send(ctx, tx_op, payload)
    }

    fn set_batched_op(&mut self, _: &mut EndpointContext<'_, E>, op: OpKey, _: &TxOp, len: usize) {
        self.set_batched_op(op, len);
    }

    fn write_batched(&mut self, ctx: &mut EndpointContext<'_, E>) {
        self.flush(ctx);
    }

    fn flush(&mut self, ctx: &mut EndpointContext<'_, E>) -> Result<()> {
        self.flush(ctx);
        Ok(())
    }

    fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        self.queue_send(ctx, op, tx_op)
    }

    fn cancel(&mut self, _: &mut EndpointContext<'_, E>, op: OpKey) -> bool {
        self.cancel(op)
    }

    fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        self.source_of(peer)
    }

    fn address_inserted(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        addr: FiAddr,
        address: &Address,
    ) {
        self.address_inserted(ctx, addr, address);
    }

    fn address_removed(&mut self, ctx: &mut EndpointContext<'_, E>, addr: FiAddr) {
        self.address_removed(ctx, addr);
    }

    fn progress(&mut self, ctx: &mut EndpointContext<'_, E>, _active_endpoints: usize) -> bool {
        self.progress(ctx)
    }

    fn ready(&mut self, ctx: &mut EndpointContext<'_, E>, _: WaitToken) {
        self.ready(ctx);
    }

    fn arm(&mut self, _: &mut EndpointContext<'_, E>) -> bool {
        self.can_sleep()
    }

    fn close(&mut self, ctx: &mut EndpointContext<'_, E>) {
        self.close(ctx);
    }

    fn stats(&self) -> TransportStats {
        self.stats()
    }

    fn describe(&self) -> String {
        self.describe()
    }

    fn multicast(&mut self) -> Option<&mut dyn MulticastGroups> {
        Some(self)
    }
}

impl MulticastGroups for UdpEndpoint {
    fn join_group(&mut self, group: &Address) -> Result<u32> {
        self.join_group(group)
    }

    fn leave_group(&mut self, group: u32) {
        self.leave_group(group);
    }
}
