//! A pass over incoming connections: their messages go to the receive queue.

use fabric_core::event::DownReason;
use fabric_core::rx::RxQueue;
use fabric_core::transport::EngineContext;

use super::super::rx_connection::RxConnection;
use super::super::rx_table::RxConnections;
use super::ShmEndpoint;

/// Result of a pass over the incoming connections.
#[derive(Default)]
pub(super) struct RxPass {
    /// Whether there were any records.
    pub(super) progressed: bool,
    /// Whether messages in a queue of the endpoint's own are to be copied from the memory of their
    /// senders. The engine copies those of a shared queue.
    pub(super) has_copies: bool,
    /// Whether the oldest message of some connection waits for a receive.
    message_held: bool,
    /// Connections that have ended, with the protocol violation if there was one.
    ended: Vec<(usize, Option<&'static str>)>,
}

impl RxPass {
    /// Polls all active connections, and one idle connection.
    #[inline(always)] // fast path of small messages
    fn poll_connections(
        &mut self,
        connections: &mut RxConnections,
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) {
        let mut index = 0;
        let pass_id = connections.begin_pass();
        while let Some((connection_index, peer)) = connections.active_mut(index) {
            if self.poll_connection(connection_index, peer, rx, engine) {
                peer.last_active = pass_id;
            }
            index += 1;
        }
        if let Some(connection_index) = connections.next_idle() {
            self.poll_idle(connection_index, connections, rx, engine);
        }
    }

    #[cold]
    fn poll_idle(
        &mut self,
        connection_index: usize,
        connections: &mut RxConnections,
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) {
        let Some(peer) = connections.get_mut(connection_index) else {
            return;
        };
        let progressed = self.poll_connection(connection_index, peer, rx, engine);
        connections.on_idle_polled(connection_index, progressed);
    }

    /// Receives the records of this connection. Returns whether there were any.
    #[inline(always)] // fast path of small messages
    fn poll_connection(
        &mut self,
        connection_index: usize,
        peer: &mut RxConnection,
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) -> bool {
        let progressed = match peer.poll_ring(rx, engine) {
            Ok(progressed) => progressed,
            Err(violation) => {
                self.ended.push((connection_index, Some(violation.0)));
                false
            }
        };
        self.progressed |= progressed;
        self.message_held |= peer.has_held_message();
        if peer.down_reason().is_some() && peer.is_drained() {
            self.ended.push((connection_index, None));
        }
        progressed
    }
}

impl ShmEndpoint {
    /// Receives the records of the incoming connections.
    #[inline(always)] // fast path of small messages
    pub(super) fn progress_rx(&mut self, engine: &mut impl EngineContext) -> RxPass {
        let mut pass = RxPass::default();
        engine.with_rx(self.id, |rx, engine| {
            pass.progressed = rx.drain_unexpected(engine);
            pass.poll_connections(&mut self.rx_connections, rx, engine);
            self.send_acks(rx);
            pass.has_copies = rx.has_work() && !rx.is_shared();
        });
        self.message_held = pass.message_held;
        if !pass.ended.is_empty() {
            self.remove_ended_rx(std::mem::take(&mut pass.ended), engine);
            pass.progressed = true;
        }
        pass
    }

    #[cold]
    fn remove_ended_rx(
        &mut self,
        ended: Vec<(usize, Option<&'static str>)>,
        engine: &mut impl EngineContext,
    ) {
        for (connection_index, violation) in ended {
            if let Some(what) = violation {
                self.on_rx_ended(engine, connection_index, DownReason::Protocol(what));
            }
            self.remove_rx_connection(engine, connection_index);
        }
    }

    /// Polls again because a message that waited for a receive may be delivered now.
    #[cold]
    pub(super) fn retry_held(&mut self, engine: &mut impl EngineContext) {
        self.progress_rx(engine);
        engine.request_rearm();
    }
}
