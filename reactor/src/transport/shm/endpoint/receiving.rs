//! Receive operations, and the address handles of senders.

use fabric_core::buf::PooledBuf;
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::rx::RxQueue;
use fabric_core::transport::{EngineContext, OpKey};
use fabric_core::{Address, Error, FiAddr};

use super::super::control::ControlMessage;
use super::ShmEndpoint;
use super::disconnect::end_tx_connection;

impl ShmEndpoint {
    #[inline(always)] // fast path of small messages
    pub(crate) fn post_recv(&mut self, engine: &mut impl EngineContext, op: OpKey, spec: RecvSpec) {
        self.rx.own.post(engine, op, spec);
        self.on_rx_queue_changed(engine);
    }

    pub(crate) fn post_multi_recv(
        &mut self,
        engine: &mut impl EngineContext,
        op: OpKey,
        spec: RecvSpec,
    ) {
        self.rx.own.post_multi(engine, op, spec);
        self.on_rx_queue_changed(engine);
    }

    pub(crate) fn rx_queue(&mut self) -> &mut RxQueue {
        &mut self.rx.own
    }

    /// Handles a change of the receive queue: a receive was posted, a message was discarded, or a
    /// message of a shared receive queue was copied.
    pub(crate) fn on_rx_queue_changed(&mut self, engine: &mut impl EngineContext) {
        if self.has_rx_hook {
            self.run_rx_hook(engine);
        }
        self.send_acks();
        if self.rx.own.has_work() {
            // The copy must progress even if no local task waits, because the sender waits.
            engine.request_progress();
            engine.request_rearm();
        }
        if self.message_held {
            self.retry_held(engine);
        }
    }

    #[cold]
    fn run_rx_hook(&mut self, engine: &mut impl EngineContext) {
        if self.rx.is_shared() {
            self.send_shared_acks(engine);
        } else {
            self.fail_recvs(engine);
        }
    }

    /// Cancels a posted receive, or a queued transmit operation of which nothing was sent. Returns
    /// whether the operation was cancelled.
    pub(crate) fn cancel(&mut self, engine: &mut impl EngineContext, op: OpKey) -> bool {
        if self.rx.own.cancel(engine, op) {
            return true;
        }
        let is_cancelled = |tx_index: &usize| {
            self.tx_connections
                .lock(*tx_index)
                .is_some_and(|mut tx| tx.cancel(op))
        };
        let Some(tx_index) = self.tx_queued.iter().copied().find(is_cancelled) else {
            return false;
        };
        // Operations queued behind the cancelled one may go now.
        self.progress_tx_connection(engine, tx_index);
        engine.request_rearm();
        true
    }

    pub(crate) fn detach_recv(&mut self, engine: &mut impl EngineContext, op: OpKey) {
        self.rx.own.detach(engine, op);
    }

    pub(crate) fn requeue_message(
        &mut self,
        engine: &mut impl EngineContext,
        envelope: Envelope,
        bytes: PooledBuf,
    ) {
        // The sender's address handle may have been inserted or removed since the message arrived.
        let mut peers = self.rx_connections.peers();
        let peer = peers.find(|peer| peer.peer_key == envelope.peer);
        let source = peer.and_then(|peer| peer.source);
        self.rx.own.requeue_message(engine, envelope, source, bytes);
    }

    pub(crate) fn holds_messages_from(&self, source: FiAddr) -> bool {
        self.rx.own.holds_messages_from(source)
    }

    pub(crate) fn address_inserted(
        &mut self,
        engine: &mut impl EngineContext,
        addr: FiAddr,
        address: &Address,
    ) {
        let expected = engine.incarnation_of(self.id, addr);
        let rx = &mut self.rx.own;
        self.rx_connections.for_each_at(address, |peer| {
            let is_expected = expected.is_none_or(|expected| expected == peer.identity.into());
            if peer.source.is_none() && is_expected {
                peer.source = Some(addr);
                rx.assign_source(engine, peer.peer_key, addr);
            }
        });
        if let Some(mut tx) = self.tx_connection(addr) {
            // An address that the application has inserted stands for any incarnation.
            tx.expected = expected;
        }
        self.rx.own.address_inserted(engine, addr, address);
    }

    pub(crate) fn address_removed(&mut self, engine: &mut impl EngineContext, addr: FiAddr) {
        self.rx.own.clear_source(engine, addr);
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
            end_tx_connection(&mut tx, self.id, engine, &Error::StaleAddress(addr));
            self.counters += tx.counters();
        }
        // Receives that have failed no longer match, so a held message may match another receive.
        self.on_rx_queue_changed(engine);
    }
}
