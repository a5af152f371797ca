//! The calls of the engine.

use fabric_core::buf::Payload;
use fabric_core::matching::PeerKey;
use fabric_core::stats::TransportStats;
use fabric_core::transport::{
    ConnectionRequests, EndpointConnection, EndpointContext, EngineContext, OpKey,
    TransportEndpoint, TrySend, TxOp, WaitToken,
};
use fabric_core::{Address, FiAddr, Result};

use super::{EndpointKind, TcpEndpoint};

impl<E: EngineContext> TransportEndpoint<E> for TcpEndpoint {
    fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let result = self.try_send(ctx, tx_op, payload);
        self.submit();
        result
    }

    fn set_batched_op(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
        len: usize,
    ) {
        self.set_batched_op(ctx, op, tx_op, len);
    }

    fn write_batched(&mut self, ctx: &mut EndpointContext<'_, E>) {
        self.flush(ctx);
        self.submit();
    }

    fn flush(&mut self, ctx: &mut EndpointContext<'_, E>) -> Result<()> {
        self.flush(ctx);
        self.submit();
        Ok(())
    }

    fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        let queued = self.queue_send(ctx, op, tx_op);
        self.submit();
        queued
    }

    fn cancel(&mut self, ctx: &mut EndpointContext<'_, E>, op: OpKey) -> bool {
        self.cancel(ctx, op)
    }

    fn on_rx_queue_changed(&mut self, ctx: &mut EndpointContext<'_, E>) {
        self.on_rx_queue_changed(ctx);
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

    fn is_idle(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool {
        TcpEndpoint::is_idle(self, ctx)
    }

    fn ready(&mut self, ctx: &mut EndpointContext<'_, E>, token: WaitToken) {
        self.ready(ctx, token.into());
    }

    fn arm(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool {
        self.arm(ctx)
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

    fn requests(&mut self) -> Option<&mut dyn ConnectionRequests<E>> {
        match self.kind {
            EndpointKind::Passive(_) => Some(self),
            _ => None,
        }
    }

    fn connection(&mut self) -> Option<&mut dyn EndpointConnection<E>> {
        match self.kind {
            EndpointKind::Msg(_) => Some(self),
            _ => None,
        }
    }
}
