//! A pass over incoming connections: their messages go to the receive queue.

use fabric_core::event::DownReason;
use fabric_core::rx::RxQueue;
use fabric_core::transport::EngineContext;

use super::super::rx_connection::RxConnection;
use super::super::rx_table::RxConnections;
use super::ShmEndpoint;

/// Result of a pass over the incoming connections.
#[derive(Default)]
struct RxPass {
    progressed: bool,
    /// Whether the oldest message of some connection waits for a receive.
    message_held: bool,
    /// Indices of connections that have ended, and the protocol violation if there was one.
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
        while let Some((rx_index, peer)) = connections.active_mut(index) {
            if self.poll_connection(rx_index, peer, rx, engine) {
                peer.last_active = pass_id;
            }
            index += 1;
        }
        if let Some(rx_index) = connections.next_idle() {
            self.poll_idle(rx_index, connections, rx, engine);
        }
    }

    /// Polls an idle connection, which becomes active if it has a record.
    #[cold]
    fn poll_idle(
        &mut self,
        rx_index: usize,
        connections: &mut RxConnections,
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) {
        let Some(peer) = connections.get_mut(rx_index) else {
            return;
        };
        let progressed = self.poll_connection(rx_index, peer, rx, engine);
        connections.on_idle_polled(rx_index, progressed);
    }

    /// Receives records of one connection. Returns whether there were any.
    #[inline(always)] // fast path of small messages
    fn poll_connection(
        &mut self,
        rx_index: usize,
        peer: &mut RxConnection,
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) -> bool {
        let progressed = match peer.poll_ring(rx, engine) {
            Ok(progressed) => progressed,
            Err(violation) => {
                self.ended.push((rx_index, Some(violation.0)));
                false
            }
        };
        self.progressed |= progressed;
        self.message_held |= peer.has_held_message();
        if peer.down_reason().is_some() && peer.is_drained() {
            self.ended.push((rx_index, None));
        }
        progressed
    }
}

impl ShmEndpoint {
    /// Makes a pass over the incoming connections and removes those that have ended. Returns
    /// whether anything progressed.
    #[inline(always)] // fast path of small messages
    pub(super) fn progress_rx(&mut self, engine: &mut impl EngineContext) -> bool {
        let mut pass = RxPass::default();
        if self.rx.is_shared() {
            self.progress_shared_rx(&mut pass, engine);
        } else {
            pass.poll_connections(&mut self.rx_connections, &mut self.rx.own, engine);
        }
        self.message_held = pass.message_held;
        self.send_acks();
        if !pass.ended.is_empty() {
            self.remove_ended_rx(pass.ended, engine);
            return true;
        }
        pass.progressed
    }

    /// Makes a pass that receives into the shared receive queue.
    #[cold]
    fn progress_shared_rx(&mut self, pass: &mut RxPass, engine: &mut impl EngineContext) {
        let connections = &mut self.rx_connections;
        self.rx
            .with_queue(|rx| pass.poll_connections(connections, rx, engine));
    }

    /// Ends the connections that have violated the protocol, and removes all connections that a
    /// pass has reported as ended.
    #[cold]
    fn remove_ended_rx(
        &mut self,
        ended: Vec<(usize, Option<&'static str>)>,
        engine: &mut impl EngineContext,
    ) {
        for (rx_index, violation) in ended {
            if let Some(what) = violation {
                self.on_rx_ended(engine, rx_index, DownReason::Protocol(what));
            }
            self.remove_rx_connection(engine, rx_index);
        }
    }

    /// Polls again because a message that waited for a receive may be delivered now.
    #[cold]
    pub(super) fn retry_held(&mut self, engine: &mut impl EngineContext) {
        self.progress_rx(engine);
        engine.request_rearm();
    }
}
