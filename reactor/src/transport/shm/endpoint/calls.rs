//! The calls of the engine.

use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::completion::Transfer;
use fabric_core::extension::{ConnectionInfo, ShmInfo};
use fabric_core::matching::{PeerKey, RecvSpec};
use fabric_core::mr::{DirectRegion, RmaIov};
use fabric_core::stats::EndpointStats;
use fabric_core::transport::{
    BlockableFastPath, Disconnect, EndpointConnection, EndpointContext, EngineContext, OpKey,
    SentLoans, TransportEndpoint, TrySend, TxOp, WaitToken,
};
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use super::super::connection_table::ConnectionGuard;
use super::super::control::ControlMessage;
use super::super::record::ALIGN_PAYLOAD_FROM;
use super::super::rx_connection::RxConnection;
use super::super::token::ShmToken;
use super::super::tx_connection::{self, PushOutcome, TxConnection};
use super::disconnect::end_tx_connection;
use super::{ShmEndpoint, ShmEndpointKind};

impl<E: EngineContext> TransportEndpoint<E> for ShmEndpoint {
    fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        if let Payload::Contiguous(bytes) = payload
            && bytes.len() < ALIGN_PAYLOAD_FROM
            && tx_op.is_plain()
        {
            return self.try_inline(ctx, tx_op, |tx| Ok(tx.push_short(bytes, tx_op.more)));
        }
        self.try_inline(ctx, tx_op, |tx| tx.try_send(tx_op, payload, true))
    }

    fn try_send_plain(&mut self, peer: FiAddr, messages: &[&[u8]]) -> usize {
        let Some(mut tx) = self.tx_connection(peer) else {
            return 0;
        };
        let sent = tx.push_short_together(messages);
        drop(tx);
        if sent > 0 {
            self.mark_unflushed(peer.index());
        }
        sent
    }

    fn try_write_plain(&mut self, peer: FiAddr, writes: &[(RmaIov, &[u8])]) -> usize {
        let Some(mut tx) = self.tx_connection(peer) else {
            return 0;
        };
        let executed = tx.write_together(writes);
        drop(tx);
        if executed > 0 {
            self.mark_unflushed(peer.index());
        }
        executed
    }

    #[inline]
    fn try_recv(
        &mut self,
        from: Option<FiAddr>,
        max_len: usize,
        into: &mut AnyBuf,
    ) -> Option<(usize, Option<FiAddr>)> {
        self.rx_connections
            .poll_next(|peer| peer.try_recv(from, max_len, into))
    }

    fn try_recv_tagged(
        &mut self,
        spec: &RecvSpec,
        max_len: usize,
        into: &mut AnyBuf,
    ) -> Option<Transfer> {
        self.rx_connections
            .poll_next(|peer| peer.try_recv_tagged(spec, max_len, into))
    }

    fn flush(&mut self, ctx: &mut EndpointContext<'_, E>) -> Result<()> {
        let mut result = Ok(());
        while let Some(tx_index) = self.tx_unflushed.pop() {
            let flushed = self.tx_connections.lock(tx_index).map(|mut tx| tx.flush());
            if flushed == Some(PushOutcome::Closed) {
                result = Err(self.on_tx_peer_closed(ctx, tx_index));
            }
        }
        result
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
        self.try_inline(ctx, tx_op, |tx| {
            tx.try_atomic(tx_op, operands, result, true)
        })
    }

    fn direct_region(
        &mut self,
        _: &mut EndpointContext<'_, E>,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        self.tx_connection(peer)
            .map_or(Ok(None), |mut tx| tx.region_handle(key))
    }

    fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        let tx_index = tx_op.peer.index();
        let create = || {
            let peer = ctx.address_of(tx_op.peer)?;
            if let Some(error) = self.disconnect_error() {
                return Err(error);
            }
            peer.check_scheme(Scheme::Shm)?;
            let settings = self.tx_settings.clone();
            Ok(TxConnection::new(peer, tx_op.peer, settings))
        };
        let (mut tx, is_new) = self.tx_connections.lock_or_insert(tx_op.peer, create)?;
        if is_new {
            self.tx_indices.push(tx_index);
        }
        self.connect(ctx, &mut tx)?;
        if tx.next_try().is_some() {
            drop(tx);
            self.add_connect_retry(tx_index)?;
            tx = match self.tx_connections.lock(tx_index) {
                Some(tx) => tx,
                None => return Err(Error::StaleAddress(tx_op.peer)),
            };
        }
        tx.enqueue(op, tx_connection::at_start(tx_op, ctx));
        let progress = tx.progress_queue(ctx);
        let is_idle = tx.is_idle();
        drop(tx);
        if !self.end_tx_pass(ctx, tx_index, progress, is_idle).is_idle {
            if !self.tx_queued.contains(&tx_index) {
                self.tx_queued.push(tx_index);
            }
            ctx.request_rearm();
        }
        Ok(())
    }

    fn cancel(&mut self, ctx: &mut EndpointContext<'_, E>, op: OpKey, peer: FiAddr) -> bool {
        let is_canceled = |mut tx: ConnectionGuard<'_>| tx.cancel(op);
        if !self.tx_connection(peer).is_some_and(is_canceled) {
            return false;
        }
        // Operations queued behind the canceled one may go now.
        self.progress_tx_connection(ctx, peer.index());
        ctx.request_rearm();
        true
    }

    fn queued_ops(&self, _: &EndpointContext<'_, E>, peer: FiAddr, into: &mut Vec<OpKey>) {
        if let Some(tx) = self.tx_connection(peer) {
            into.extend(tx.unstarted_ops());
        }
    }

    fn on_rx_queue_changed(&mut self, ctx: &mut EndpointContext<'_, E>) {
        self.is_idle = false;
        if self.has_rx_change_effects {
            self.apply_rx_change_effects(ctx);
        }
        self.update_post_reports(ctx);
        self.send_acks(ctx);
        if ctx.rx_has_work() {
            // The copy must progress even if no local task waits, because the sender waits.
            ctx.request_pass();
            ctx.request_rearm();
        }
        if self.rx_connections.has_held() {
            self.retry_held(ctx);
        }
    }

    fn receive_held(&mut self, ctx: &mut EndpointContext<'_, E>, peer: PeerKey) {
        if let Some(rx_index) = self.rx_connections.index_of(peer) {
            self.receive_held_from(ctx, rx_index);
        }
    }

    fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        let rx_index = self.rx_connections.index_of(peer)?;
        self.rx_connections.get(rx_index)?.peer.source()
    }

    fn address_inserted(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        addr: FiAddr,
        address: &Address,
    ) {
        let expected = ctx.incarnation_of(addr);
        self.rx_connections.for_each_at(address, |_, rx| {
            if expected.is_none_or(|expected| expected == rx.identity.into()) {
                rx.peer.assign_source(ctx, addr);
            }
        });
        if self.rx_connections.has_held() {
            // Held messages of the peer may match directed receives now.
            ctx.request_rearm();
        }
        if let Some(mut tx) = self.tx_connection(addr) {
            // An address that the application has inserted stands for any incarnation.
            tx.expected_incarnation = expected;
        }
    }

    fn address_removed(&mut self, ctx: &mut EndpointContext<'_, E>, addr: FiAddr) {
        for rx in self.rx_connections.established_mut() {
            rx.peer.on_address_removed(addr);
        }
        let tx_index = addr.index();
        if self.tx_connection(addr).is_some()
            && let Some(mut tx) = self.tx_connections.remove(tx_index)
        {
            self.tx_indices.retain(|connected| *connected != tx_index);
            self.tx_queued.retain(|queued| *queued != tx_index);
            let stale = Error::StaleAddress(addr);
            end_tx_connection(&mut tx, ctx, &stale, Some(ControlMessage::Disconnect));
            self.counters.add(&tx.counters());
        }
    }

    fn fast_path(&self) -> Option<Arc<dyn BlockableFastPath>> {
        Some(self.tx_connections.clone())
    }

    fn progress(&mut self, ctx: &mut EndpointContext<'_, E>, active_endpoints: usize) -> u32 {
        if self.is_idle {
            self.set_idle(ctx, false);
        }
        if self.has_deferred_work() {
            self.run_deferred_work(ctx);
        }
        let pass = self.progress_rx(ctx);
        let mut moved = pass.moved;
        // Copies run after the records that have just arrived, so that a long copy does not delay
        // them.
        moved += u32::from(pass.has_copies && self.progress_copies(ctx));
        let active_count = self.rx_connections.active_count().max(active_endpoints);
        if active_count > self.always_active {
            moved += u32::from(self.rx_connections.demote_idle(active_count));
        }
        if !self.tx_queued.is_empty() {
            moved += self.progress_tx(ctx);
        }
        moved
    }

    fn is_idle(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool {
        self.rx_connections.active_count() == 0
            && self.tx_queued.is_empty()
            && !self.rx_connections.has_held()
            && !self.has_deferred_work()
            && !ctx.rx_has_work()
            && !ctx.waits_for_cq_room()
    }

    fn on_idle(&mut self, ctx: &mut EndpointContext<'_, E>) {
        self.set_idle(ctx, true);
    }

    fn ready(&mut self, ctx: &mut EndpointContext<'_, E>, token: WaitToken) {
        match token.into() {
            ShmToken::Listener => self.accept(ctx),
            ShmToken::Rx(rx_index) => self.on_rx_ready(ctx, rx_index as usize),
            ShmToken::Timer => match self.kind {
                ShmEndpointKind::Rdm(_) => self.retry_connects(ctx),
                ShmEndpointKind::Msg(_) => self.on_attempt_timer(ctx),
            },
            ShmToken::Tx(_) if self.is_connecting() => self.on_connect_readable(ctx),
            ShmToken::Tx(tx_index) => {
                let tx_index = tx_index as usize;
                let Some(mut tx) = self.tx_connections.lock(tx_index) else {
                    return;
                };
                let end = tx.on_readable();
                let must_retry = tx.next_try().is_some();
                drop(tx);
                if let Some(end) = end {
                    self.on_tx_ended(ctx, tx_index, end);
                } else if must_retry && let Err(error) = self.add_connect_retry(tx_index) {
                    self.on_connect_refused(ctx, tx_index, error);
                }
            }
        }
    }

    fn arm(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool {
        let has_work = ctx.rx_has_work();
        let is_due = self
            .rx_connections
            .next_due(ctx.changes_for_held())
            .is_some();
        let mut is_quiet = !(has_work | is_due) & self.rx_connections.arm();
        for &tx_index in &self.tx_queued {
            is_quiet &= self
                .tx_connections
                .lock(tx_index)
                .is_none_or(|mut tx| tx.arm());
        }
        is_quiet
    }

    fn disarm(&mut self) {
        self.rx_connections.disarm();
        for &tx_index in &self.tx_queued {
            if let Some(mut tx) = self.tx_connections.lock(tx_index) {
                tx.disarm();
            }
        }
    }

    fn disconnect(&mut self, ctx: &mut EndpointContext<'_, E>, disconnect: Disconnect<'_>) -> bool {
        self.end_connections(ctx, disconnect)
    }

    fn close(&mut self, ctx: &mut EndpointContext<'_, E>) {
        // Messages that are dropped now were not received, so they are not acknowledged.
        self.rx_connections
            .established()
            .for_each(RxConnection::stop_cma);
        self.send_acks(ctx);
        for rx in self.rx_connections.established() {
            rx.peer.report_disconnected(ctx);
        }
        let announcement = self.close_announcement();
        self.for_each_tx(|tx| end_tx_connection(tx, ctx, &Error::Canceled, announcement));
        // A thread that still has the fast path finds no connection in the table.
        self.tx_indices
            .drain(..)
            .for_each(|tx_index| drop(self.tx_connections.remove(tx_index)));
    }

    fn add_stats(&self, stats: &mut EndpointStats) {
        stats.add(&self.counters);
        self.for_each_tx(|tx| stats.add(&tx.counters()));
        for peer in self.rx_connections.established() {
            stats.doorbells += peer.doorbells;
            stats.single_copy_rx += peer.cma_stats().unwrap_or_default();
            stats.peers += 1;
        }
        stats.inbound_refused += self.rx_limits.refused();
        stats.held_connections += self.rx_connections.held_count();
    }

    fn connection_info(
        &mut self,
        ctx: &EndpointContext<'_, E>,
        peer: FiAddr,
    ) -> Result<Option<ConnectionInfo>> {
        let name = ctx.address_of(peer)?;
        let mut info = ShmInfo::default();
        if let Some(tx) = self.tx_connection(peer) {
            tx.add_info(&mut info);
        }
        self.rx_connections
            .for_each_at(&name, |_, rx| rx.add_info(&mut info));
        Ok((info.segments > 0).then_some(ConnectionInfo::Shm(info)))
    }

    fn describe(&self) -> String {
        let cma_peers = self
            .rx_connections
            .established()
            .filter(|peer| peer.cma_stats().is_some())
            .count();
        let mut cma_connections = 0;
        self.for_each_tx(|tx| cma_connections += usize::from(tx.uses_cma()));
        format!(
            "{} ({} incoming connections, {} active, {} outgoing, single copy: {}, \
             from {cma_peers} and to {cma_connections} peers)",
            self.name,
            self.rx_connections.len(),
            self.rx_connections.active_count(),
            self.tx_indices.len(),
            self.tx_settings.single_copy,
        )
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

impl SentLoans for ShmEndpoint {
    fn collect(&mut self) {
        self.for_each_tx(TxConnection::collect_returned);
    }

    fn watch(&mut self) -> bool {
        for &tx_index in &self.tx_indices {
            if !self.tx_queued.contains(&tx_index) && !self.is_tx_idle(tx_index) {
                self.tx_queued.push(tx_index);
            }
        }
        !self.tx_queued.is_empty()
    }
}
