//! The calls of the engine.

use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::matching::PeerKey;
use fabric_core::mr::{DirectRegion, RmaIov};
use fabric_core::stats::TransportStats;
use fabric_core::transport::{
    EndpointConnection, EndpointContext, EngineContext, FastPath, OpKey, SentLoans,
    TransportEndpoint, TrySend, TxOp, WaitToken,
};
use fabric_core::{Address, FiAddr, Result};

use super::{ShmEndpoint, ShmEndpointKind};

impl<E: EngineContext> TransportEndpoint<E> for ShmEndpoint {
    fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        self.try_send(ctx, tx_op, payload)
    }

    fn try_send_plain(&mut self, peer: FiAddr, messages: &[&[u8]]) -> usize {
        self.try_send_plain(peer, messages)
    }

    fn try_write_plain(&mut self, peer: FiAddr, writes: &[(RmaIov, &[u8])]) -> usize {
        self.try_write_plain(peer, writes)
    }

    #[inline]
    fn try_recv(
        &mut self,
        from: Option<FiAddr>,
        room: usize,
        into: &mut AnyBuf,
    ) -> Option<(usize, Option<FiAddr>)> {
        self.try_recv(from, room, into)
    }

    fn flush(&mut self, ctx: &mut EndpointContext<'_, E>) -> Result<()> {
        self.flush(ctx)
    }

    fn try_read(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        into: &mut AnyBuf,
    ) -> Result<TrySend> {
        self.try_inline(ctx, tx_op, |tx| tx.try_read(tx_op, into))
    }

    fn try_atomic(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        self.try_inline(ctx, tx_op, |tx| tx.try_atomic(tx_op, operands, result))
    }

    fn direct_region(
        &mut self,
        _: &mut EndpointContext<'_, E>,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        self.region_handle(peer, key)
    }

    fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        self.queue_send(ctx, op, tx_op)
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

    fn fast_path(&self) -> Option<Arc<dyn FastPath>> {
        Some(self.fast_path())
    }

    fn progress(&mut self, ctx: &mut EndpointContext<'_, E>, active_endpoints: usize) -> bool {
        self.progress(ctx, active_endpoints)
    }

    fn is_idle(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool {
        self.is_quiescent(ctx)
    }

    fn on_idle(&mut self, ctx: &mut EndpointContext<'_, E>) {
        self.set_idle(ctx, true);
    }

    fn ready(&mut self, ctx: &mut EndpointContext<'_, E>, token: WaitToken) {
        self.ready(ctx, token.into());
    }

    fn arm(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool {
        self.arm(ctx)
    }

    fn disarm(&mut self) {
        self.disarm();
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

    fn connection(&mut self) -> Option<&mut dyn EndpointConnection<E>> {
        match self.kind {
            ShmEndpointKind::Msg(_) => Some(self),
            ShmEndpointKind::Rdm(_) => None,
        }
    }

    fn sent_loans(&mut self) -> Option<&mut dyn SentLoans> {
        Some(self)
    }
}

impl<E: EngineContext> EndpointConnection<E> for ShmEndpoint {
    fn shutdown(&mut self, ctx: &mut EndpointContext<'_, E>) {
        self.shutdown(ctx);
    }
}

impl SentLoans for ShmEndpoint {
    fn collect(&mut self) {
        self.collect_returned_loans();
    }

    fn watch(&mut self) -> bool {
        self.watch_loans()
    }
}
