//! A pass over the callers: what they have sent goes to where the endpoint receives.

use fabric_core::event::DownReason;
use fabric_core::rx::RxQueue;
use fabric_core::transport::EngineContext;

use super::super::rx_connection::RxConnection;
use super::super::rx_table::RxConnections;
use super::ShmEndpoint;

/// What a pass over the callers has found.
#[derive(Default)]
struct RxPass {
    moved: bool,
    /// The oldest message of one of them waits for a receive.
    message_held: bool,
    /// Those that have ended, and what was wrong with what they wrote.
    ended: Vec<(usize, Option<&'static str>)>,
}

impl RxPass {
    /// Takes what callers have sent: of the attended, and of one of those left alone.
    #[inline(always)] // fast path of small messages
    fn poll_connections(
        &mut self,
        callers: &mut RxConnections,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
    ) {
        let mut number = 0;
        let pass = callers.begin_pass();
        while let Some((at, peer)) = callers.active_mut(number) {
            if self.poll_connection(at, peer, rx, host) {
                peer.last_active = pass;
            }
            number += 1;
        }
        if let Some(at) = callers.next_idle() {
            self.poll_idle(at, callers, rx, host);
        }
    }

    #[cold]
    fn poll_idle(
        &mut self,
        at: usize,
        callers: &mut RxConnections,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
    ) {
        let Some(peer) = callers.get_mut(at) else {
            return;
        };
        let moved = self.poll_connection(at, peer, rx, host);
        callers.on_idle_polled(at, moved);
    }

    /// Takes what this caller has sent; true when there was something.
    #[inline(always)] // fast path of small messages
    fn poll_connection(
        &mut self,
        at: usize,
        peer: &mut RxConnection,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
    ) -> bool {
        let news = match peer.poll_ring(rx, host) {
            Ok(news) => news,
            Err(broken) => {
                self.ended.push((at, Some(broken.0)));
                false
            }
        };
        self.moved |= news;
        self.message_held |= peer.has_held_message();
        if peer.down_reason().is_some() && peer.is_drained() {
            self.ended.push((at, None));
        }
        news
    }
}

impl ShmEndpoint {
    /// Takes what callers have sent.
    #[inline(always)] // fast path of small messages
    pub(super) fn progress_rx(&mut self, host: &mut dyn EngineContext) -> bool {
        let mut found = RxPass::default();
        if self.rx.is_shared() {
            self.progress_shared_rx(&mut found, host);
        } else {
            found.poll_connections(&mut self.rx_connections, &mut self.rx.own, host);
        }
        self.message_held = found.message_held;
        self.send_acks();
        if !found.ended.is_empty() {
            self.remove_ended_rx(found.ended, host);
            return true;
        }
        found.moved
    }

    /// Takes it to where others take theirs as well.
    #[cold]
    fn progress_shared_rx(&mut self, found: &mut RxPass, host: &mut dyn EngineContext) {
        let callers = &mut self.rx_connections;
        self.rx
            .with_queue(|rx| found.poll_connections(callers, rx, host));
    }

    #[cold]
    fn remove_ended_rx(
        &mut self,
        over: Vec<(usize, Option<&'static str>)>,
        host: &mut dyn EngineContext,
    ) {
        for (at, broken) in over {
            if let Some(what) = broken {
                self.on_rx_ended(host, at, DownReason::Protocol(what));
            }
            self.remove_rx_connection(host, at);
        }
    }

    /// A message that waited for a receive may be taken now.
    #[cold]
    pub(super) fn retry_held(&mut self, host: &mut dyn EngineContext) {
        self.progress_rx(host);
        host.request_rearm();
    }
}
