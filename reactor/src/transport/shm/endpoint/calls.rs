//! The calls of the engine.

use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::matching::PeerKey;
use fabric_core::mr::{DirectRegion, RmaIov};
use fabric_core::stats::TransportStats;
use fabric_core::transport::{
    EndpointConnection, EngineContext, FastPath, OpKey, SentLoans, TransportEndpoint, TrySend,
    TxOp, WaitToken,
};
use fabric_core::{Address, FiAddr, Result};

use super::{ShmEndpoint, ShmEndpointKind};

impl<E: EngineContext> TransportEndpoint<E> for ShmEndpoint {
    fn try_send(&mut self, engine: &mut E, tx_op: &TxOp, payload: Payload<'_>) -> Result<TrySend> {
        self.try_send(engine, tx_op, payload)
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

    fn flush(&mut self, engine: &mut E) -> Result<()> {
        self.flush(engine)
    }

    fn try_read(&mut self, engine: &mut E, tx_op: &TxOp, into: &mut AnyBuf) -> Result<TrySend> {
        self.try_inline(engine, tx_op, |tx| tx.try_read(tx_op, into))
    }

    fn try_atomic(
        &mut self,
        engine: &mut E,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        self.try_inline(engine, tx_op, |tx| tx.try_atomic(tx_op, operands, result))
    }

    fn direct_region(&mut self, _: &mut E, peer: FiAddr, key: u64) -> Result<Option<DirectRegion>> {
        self.region_handle(peer, key)
    }

    fn queue_send(&mut self, engine: &mut E, op: OpKey, tx_op: &TxOp) -> Result<()> {
        self.queue_send(engine, op, tx_op)
    }

    fn cancel(&mut self, engine: &mut E, op: OpKey) -> bool {
        self.cancel(engine, op)
    }

    fn on_rx_queue_changed(&mut self, engine: &mut E) {
        self.on_rx_queue_changed(engine);
    }

    fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        self.source_of(peer)
    }

    fn address_inserted(&mut self, engine: &mut E, addr: FiAddr, address: &Address) {
        self.address_inserted(engine, addr, address);
    }

    fn address_removed(&mut self, engine: &mut E, addr: FiAddr) {
        self.address_removed(engine, addr);
    }

    fn fast_path(&self) -> Option<Arc<dyn FastPath>> {
        Some(self.fast_path())
    }

    fn progress(&mut self, engine: &mut E, active_endpoints: usize) -> bool {
        self.progress(engine, active_endpoints)
    }

    fn is_idle(&mut self, engine: &mut E) -> bool {
        self.is_quiescent(engine)
    }

    fn on_idle(&mut self, engine: &mut E) {
        self.set_idle(engine, true);
    }

    fn ready(&mut self, engine: &mut E, token: WaitToken) {
        self.ready(engine, token.into());
    }

    fn arm(&mut self, engine: &mut E) -> bool {
        self.arm(engine)
    }

    fn disarm(&mut self) {
        self.disarm();
    }

    fn close(&mut self, engine: &mut E) {
        self.close(engine);
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
    fn shutdown(&mut self, engine: &mut E) {
        self.shutdown(engine);
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
