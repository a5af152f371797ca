//! The calls of the engine.

use fabric_core::buf::Payload;
use fabric_core::matching::PeerKey;
use fabric_core::stats::TransportStats;
use fabric_core::transport::{
    EngineContext, MulticastGroups, OpKey, TransportEndpoint, TrySend, TxOp, WaitToken,
};
use fabric_core::{Address, FiAddr, Result};

use super::endpoint::UdpEndpoint;

impl<E: EngineContext> TransportEndpoint<E> for UdpEndpoint {
    fn try_send(&mut self, engine: &mut E, tx_op: &TxOp, payload: Payload<'_>) -> Result<TrySend> {
        self.try_send(engine, tx_op, payload)
    }

    fn set_batched_op(&mut self, _: &mut E, op: OpKey, _: &TxOp, len: usize) {
        self.set_batched_op(op, len);
    }

    fn write_batched(&mut self, engine: &mut E) {
        self.flush(engine);
    }

    fn flush(&mut self, engine: &mut E) -> Result<()> {
        self.flush(engine);
        Ok(())
    }

    fn queue_send(&mut self, engine: &mut E, op: OpKey, tx_op: &TxOp) -> Result<()> {
        self.queue_send(engine, op, tx_op)
    }

    fn cancel(&mut self, _: &mut E, op: OpKey) -> bool {
        self.cancel(op)
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

    fn ready(&mut self, engine: &mut E, _: WaitToken) {
        self.ready(engine);
    }

    fn arm(&mut self, _: &mut E) -> bool {
        self.can_sleep()
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
