//! A pass over incoming connections: their messages go to the receive queue, whose changes the
//! engine reports.

use fabric_core::event::DownReason;
use fabric_core::transport::{EndpointContext, EngineContext};

use super::super::rx_connection::RxConnection;
use super::super::rx_table::RxConnections;
use super::ShmEndpoint;
use crate::transport::held_connections::TRIES_PER_PASS;

/// Result of a pass over the incoming connections.
#[derive(Default)]
pub(super) struct RxPass {
    /// Number of connections that had records, and of other steps.
    pub(super) moved: u32,
    /// Whether messages in a queue of the endpoint's own are to be copied from the memory of their
    /// senders. The engine copies those of a shared queue.
    pub(super) has_copies: bool,
    /// Whether a polled connection has left its oldest record in the ring.
    any_held: bool,
}

/// A connection that has ended, and the protocol violation if there was one.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedRx {
    rx_index: usize,
    violation: Option<&'static str>,
}

impl RxPass {
    /// Polls all active connections, then some of the held ones and one idle connection. Adds those
    /// that have ended to `ended`.
    #[inline(always)] // fast path of small messages
    fn poll_connections<E: EngineContext>(
        &mut self,
        (connections, ended): (&mut RxConnections, &mut Vec<EndedRx>),
        ctx: &mut EndpointContext<'_, E>,
    ) {
        let mut position = 0;
        let pass_id = connections.begin_pass();
        while let Some((rx_index, slot)) = connections.active_mut(position) {
            if self.poll_connection((rx_index, &mut slot.rx), ended, ctx) {
                slot.last_active = pass_id;
            }
            position += 1;
        }
        if self.any_held {
            // An earlier number: the connections are tried once more in this pass.
            connections.hold_active(ctx.changes_for_held().wrapping_sub(1));
        }
        if connections.has_held() {
            self.try_held((connections, ended), ctx);
        }
        if let Some(rx_index) = connections.next_idle() {
            self.poll_idle(rx_index, (connections, ended), ctx);
        }
    }

    /// Polls an idle connection, which becomes active if it has a record.
    #[cold]
    fn poll_idle<E: EngineContext>(
        &mut self,
        rx_index: usize,
        (connections, ended): (&mut RxConnections, &mut Vec<EndedRx>),
        ctx: &mut EndpointContext<'_, E>,
    ) {
        let Some(peer) = connections.get_mut(rx_index) else {
            return;
        };
        let progressed = self.poll_connection((rx_index, peer), ended, ctx);
        connections.on_idle_polled(rx_index, progressed);
    }

    /// Tries the held connections that are due, at most [`TRIES_PER_PASS`].
    #[cold]
    #[inline(never)] // inlined, it makes passes over idle connections longer
    fn try_held<E: EngineContext>(
        &mut self,
        (connections, ended): (&mut RxConnections, &mut Vec<EndedRx>),
        ctx: &mut EndpointContext<'_, E>,
    ) {
        for _ in 0..TRIES_PER_PASS {
            let changes = ctx.changes_for_held();
            let Some(rx_index) = connections.next_due(changes) else {
                return;
            };
            self.try_one((connections, ended), (rx_index, changes), ctx);
        }
        // The others are tried in the next pass.
        let is_due = connections.next_due(ctx.changes_for_held()).is_some();
        self.moved += u32::from(is_due);
    }

    /// Tries one held connection. There were `changes` before.
    #[cold]
    fn try_one<E: EngineContext>(
        &mut self,
        (connections, ended): (&mut RxConnections, &mut Vec<EndedRx>),
        (rx_index, changes): (usize, u64),
        ctx: &mut EndpointContext<'_, E>,
    ) {
        connections.try_held((rx_index, changes), |rx_index, peer| {
            self.poll_connection((rx_index, peer), ended, ctx)
        });
    }

    /// Receives records of one connection. Returns whether there were any.
    #[inline(always)] // fast path of small messages
    fn poll_connection<E: EngineContext>(
        &mut self,
        (rx_index, peer): (usize, &mut RxConnection),
        ended: &mut Vec<EndedRx>,
        ctx: &mut EndpointContext<'_, E>,
    ) -> bool {
        let (progressed, violation) = match peer.poll_ring(ctx) {
            Ok(progressed) => (progressed, None),
            Err(violation) => (false, Some(violation.0)),
        };
        self.moved += u32::from(progressed);
        self.any_held |= peer.has_held_record();
        if violation.is_some() || peer.down_reason().is_some() && peer.is_drained() {
            ended.push(EndedRx {
                rx_index,
                violation,
            });
        }
        progressed
    }
}

impl ShmEndpoint {
    /// Makes a pass over the incoming connections and removes those that have ended. Returns the
    /// result of the pass.
    #[inline(always)] // fast path of small messages
    pub(super) fn progress_rx(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> RxPass {
        let mut pass = RxPass::default();
        let connections = (&mut self.rx_connections, &mut self.ended_rx);
        pass.poll_connections(connections, ctx);
        self.finish_pass(&mut pass, ctx);
        pass
    }

    /// Handles what a pass has found, after the connections were polled.
    #[inline(always)] // fast path of small messages
    fn finish_pass(
        &mut self,
        pass: &mut RxPass,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        if pass.any_held && ctx.has_peers_over_budget() {
            self.report_peers_over_budget(ctx);
        }
        let has_held = self.rx_connections.has_held();
        if self.has_held_rx != has_held {
            self.has_held_rx = has_held;
            self.update_post_reports(ctx);
        }
        if ctx.rx_has_work() {
            self.send_acks(ctx);
            pass.has_copies = ctx.rx_has_work() && !ctx.shares_rx();
        }
        if !self.ended_rx.is_empty() {
            self.remove_ended_rx(ctx);
            pass.moved += 1;
        }
    }

    /// Reports the peers whose messages the budget has declined.
    #[cold]
    fn report_peers_over_budget(&self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        ctx.report_peers_over_budget(|key| {
            let rx_index = self.rx_connections.index_of(key)?;
            let rx = self.rx_connections.get(rx_index)?;
            Some((rx.peer_address.clone(), rx.peer.source()))
        });
    }

    /// Ends the connections that have violated the protocol, and removes all connections that a
    /// pass has reported as ended.
    #[cold]
    fn remove_ended_rx(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        for ended in std::mem::take(&mut self.ended_rx) {
            if let Some(what) = ended.violation {
                self.on_rx_ended(ctx, ended.rx_index, DownReason::Protocol(what));
            }
            self.remove_rx_connection(ctx, ended.rx_index);
        }
    }

    /// Tries held connections because the receive queue may accept messages that it has declined.
    /// They are tried before the active ones. Otherwise a new message of an active connection could
    /// take the posted receive before an older held message.
    #[cold]
    pub(super) fn retry_held(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let connections = (&mut self.rx_connections, &mut self.ended_rx);
        let mut pass = RxPass::default();
        pass.try_held(connections, ctx);
        self.finish_pass(&mut pass, ctx);
        ctx.request_rearm();
    }

    /// Tries one held connection, whose message the receive queue accepts now.
    #[cold]
    pub(super) fn receive_held_from(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        rx_index: usize,
    ) {
        let connections = (&mut self.rx_connections, &mut self.ended_rx);
        let mut pass = RxPass::default();
        pass.try_one(connections, (rx_index, ctx.changes_for_held()), ctx);
        self.finish_pass(&mut pass, ctx);
        ctx.request_rearm();
    }

    /// Sets whether the engine reports posted receives: if this endpoint holds a message, is
    /// idle, or has other effects to apply.
    #[cold]
    pub(super) fn update_post_reports(&self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        ctx.set_post_reports(self.has_held_rx || self.has_rx_change_effects || self.is_idle);
    }

    #[cold]
    pub(super) fn apply_rx_change_effects(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        if ctx.shares_rx() {
            self.wake_for_returned_slots(ctx);
        } else {
            self.fail_recvs(ctx);
        }
    }
}
