//! The calls of the engine.

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::matching::PeerKey;
use fabric_core::stats::TransportStats;
use fabric_core::transport::{
    ConnectionRequests, EndpointConnection, EngineContext, OpKey, TransportEndpoint, TrySend, TxOp,
    WaitToken,
};
use fabric_core::{Address, FiAddr, Result};

use super::{EndpointKind, TcpEndpoint};

impl<E: EngineContext> TransportEndpoint<E> for TcpEndpoint {
    fn try_send(&mut self, engine: &mut E, tx_op: &TxOp, payload: Payload<'_>) -> Result<TrySend> {
        let result = self.try_send(engine, tx_op, payload);
        self.submit();
        result
    }

    /// Reads need a round trip, so they never complete inline.
    fn try_read(&mut self, _: &mut E, _: &TxOp, _: &mut AnyBuf) -> Result<TrySend> {
        Ok(TrySend::WouldBlock)
    }

    fn try_atomic(&mut self, _: &mut E, _: &TxOp, _: &[u8], _: &mut [u8]) -> Result<TrySend> {
        Ok(TrySend::WouldBlock)
    }

    fn set_batched_op(&mut self, engine: &mut E, op: OpKey, tx_op: &TxOp, len: usize) {
        self.set_batched_op(engine, op, tx_op, len);
    }

    fn write_batched(&mut self, engine: &mut E) {
        self.flush(engine);
        self.submit();
    }

    fn flush(&mut self, engine: &mut E) -> Result<()> {
        self.flush(engine);
        self.submit();
        Ok(())
    }

    fn queue_send(&mut self, engine: &mut E, op: OpKey, tx_op: &TxOp) -> Result<()> {
        let queued = self.queue_send(engine, op, tx_op);
        self.submit();
        queued
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

    fn progress(&mut self, engine: &mut E, _active_endpoints: usize) -> bool {
        self.progress(engine)
    }

    fn is_idle(&mut self, engine: &mut E) -> bool {
        TcpEndpoint::is_idle(self, engine)
    }

    fn ready(&mut self, engine: &mut E, token: WaitToken) {
        self.ready(engine, token.into());
    }

    fn arm(&mut self, engine: &mut E) -> bool {
        self.arm(engine)
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
