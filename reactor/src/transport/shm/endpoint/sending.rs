//! Transmit operations: inline, queued and canceled, and the connections they use.

use std::sync::Arc;

use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::event::DownReason;
use fabric_core::mr::{DirectRegion, RmaIov};
use fabric_core::transport::{EndpointContext, EngineContext, FastPath, OpKey, TrySend, TxOp};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result, Scheme};

use super::super::connection_table::ConnectionGuard;
use super::super::record::ALIGN_PAYLOAD_FROM;
use super::super::tx_connection::{self, ConnectionEnd, PushOutcome, TxConnection};
use super::{ShmEndpoint, ShmToken};

impl ShmEndpoint {
    pub(crate) fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        if let Payload::Contiguous(bytes) = payload
            && bytes.len() < ALIGN_PAYLOAD_FROM
            && tx_op.is_plain()
        {
            return self.try_inline(ctx, tx_op, |tx| Ok(tx.push_plain(bytes, tx_op.more)));
        }
        self.try_inline(ctx, tx_op, |tx| tx.try_send(tx_op, payload))
    }

    /// Sends short messages with `FI_MORE`, until one is not short or finds no room or no peer.
    /// Returns the number of messages sent.
    pub(crate) fn try_send_plain(&mut self, peer: FiAddr, messages: &[&[u8]]) -> usize {
        let Some(mut tx) = self.tx_connection(peer) else {
            return 0;
        };
        let mut sent = 0;
        for message in messages {
            if message.len() >= ALIGN_PAYLOAD_FROM
                || tx.push_plain(message, true) != PushOutcome::Pushed
            {
                break;
            }
            sent += 1;
        }
        drop(tx);
        if sent > 0 {
            self.mark_unflushed(peer.index());
        }
        sent
    }

    /// Writes to memory of the peer with `FI_MORE`, until one write cannot be executed at once.
    /// Returns the number of writes executed.
    pub(crate) fn try_write_plain(&mut self, peer: FiAddr, writes: &[(RmaIov, &[u8])]) -> usize {
        let Some(mut tx) = self.tx_connection(peer) else {
            return 0;
        };
        let executed = writes.iter().take_while(|(remote, bytes)| {
            let tx_op = TxOp {
                more: true,
                ..TxOp::one_sided(OpKind::Write, peer, *remote)
            };
            // An error is found again when the write is posted by itself.
            tx.try_send(&tx_op, Payload::Contiguous(bytes)) == Ok(PushOutcome::Pushed)
        });
        let executed = executed.count();
        drop(tx);
        if executed > 0 {
            self.mark_unflushed(peer.index());
        }
        executed
    }

    /// Notes that a peer must be woken at the end of the batch.
    fn mark_unflushed(&mut self, tx_index: usize) {
        if !self.tx_unflushed.contains(&tx_index) {
            self.tx_unflushed.push(tx_index);
        }
    }

    /// Executes an operation on the connection to its peer, if the connection exists and has room
    /// now. Nothing is queued.
    #[inline]
    pub(crate) fn try_inline(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_op: &TxOp,
        act: impl FnOnce(&mut TxConnection) -> Result<PushOutcome>,
    ) -> Result<TrySend> {
        let tx_index = tx_op.peer.index();
        let Some(mut tx) = self.tx_connection(tx_op.peer) else {
            return ctx.address_of(tx_op.peer).map(|_| TrySend::WouldBlock);
        };
        let pushed = act(&mut tx)?;
        drop(tx);
        match pushed {
            PushOutcome::Pushed => {
                if tx_op.more {
                    self.mark_unflushed(tx_index);
                }
                Ok(TrySend::Done)
            }
            PushOutcome::WouldBlock => Ok(TrySend::WouldBlock),
            PushOutcome::Closed => Err(self.on_tx_peer_closed(ctx, tx_index)),
        }
    }

    /// Returns the mapping of a peer's region, if an access has mapped the region.
    pub(crate) fn region_handle(&mut self, peer: FiAddr, key: u64) -> Result<Option<DirectRegion>> {
        self.tx_connection(peer)
            .map_or(Ok(None), |mut tx| tx.region_handle(key))
    }

    /// Queues an operation, connecting to the peer if needed.
    pub(crate) fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        let tx_index = tx_op.peer.index();
        if self.tx_connection(tx_op.peer).is_none() {
            let peer = ctx.address_of(tx_op.peer)?;
            if let Some(error) = self.disconnect_error() {
                return Err(error);
            }
            peer.check_scheme(Scheme::Shm)?;
            self.tx_connections.insert(
                tx_index,
                TxConnection::new(peer, tx_op.peer, self.tx_settings.clone()),
            );
            self.tx_indices.push(tx_index);
        }
        self.connect(ctx, tx_index)?;
        if let Some(mut tx) = self.tx_connections.lock(tx_index) {
            tx.enqueue(op, tx_connection::at_start(tx_op, ctx));
        }
        if !self.tx_queued.contains(&tx_index) {
            self.tx_queued.push(tx_index);
        }
        self.progress_tx_connection(ctx, tx_index);
        if !self.is_tx_idle(tx_index) {
            ctx.request_rearm();
        }
        Ok(())
    }

    /// Cancels a queued transmit operation of which nothing was sent. Returns whether the operation
    /// was canceled.
    pub(crate) fn cancel(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        op: OpKey,
    ) -> bool {
        let is_canceled = |tx_index: &usize| {
            self.tx_connections
                .lock(*tx_index)
                .is_some_and(|mut tx| tx.cancel(op))
        };
        let Some(tx_index) = self.tx_queued.iter().copied().find(is_canceled) else {
            return false;
        };
        // Operations queued behind the canceled one may go now.
        self.progress_tx_connection(ctx, tx_index);
        ctx.request_rearm();
        true
    }

    /// Wakes the peers that were sent messages with `FI_MORE`.
    ///
    /// # Errors
    /// The error of the last peer whose endpoint has closed.
    pub(crate) fn flush(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<()> {
        let mut result = Ok(());
        while let Some(tx_index) = self.tx_unflushed.pop() {
            let flushed = self.tx_connections.lock(tx_index).map(|mut tx| tx.flush());
            if flushed == Some(PushOutcome::Closed) {
                result = Err(self.on_tx_peer_closed(ctx, tx_index));
            }
        }
        result
    }

    /// Collects the loans and the buffers of single-copy sends that peers have returned.
    pub(crate) fn collect_returned_loans(&mut self) {
        self.for_each_tx(TxConnection::collect_returned);
    }

    /// Makes passes poll the connections whose peers hold loans or owe acks, because a task waits
    /// for the return of a loan. Returns whether there are any.
    pub(crate) fn watch_loans(&mut self) -> bool {
        for &tx_index in &self.tx_indices {
            if !self.tx_queued.contains(&tx_index) && !self.is_tx_idle(tx_index) {
                self.tx_queued.push(tx_index);
            }
        }
        !self.tx_queued.is_empty()
    }

    /// Connects to the peer at this index, unless a connection exists.
    fn connect(
        &mut self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        tx_index: usize,
    ) -> Result<()> {
        let token = ShmToken::Tx(tx_index as u32).pack(self.id);
        let Some(mut tx) = self.tx_connections.lock(tx_index) else {
            return Ok(());
        };
        if tx.is_closed() {
            if let Some(error) = self.disconnect_error() {
                return Err(error);
            }
            ctx.address_of(tx.addr)?;
            tx.expected_incarnation = ctx.incarnation_of(tx.addr);
        }
        tx.connect(&self.name, self.local.incarnation, token, &self.wait_set)
    }

    /// Handles a peer whose endpoint has marked its ring as closed. Returns the error for the
    /// operation. The socket of the peer will report the end too.
    #[cold]
    pub(super) fn on_tx_peer_closed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_index: usize,
    ) -> Error {
        let Some(tx) = self.tx_connections.lock(tx_index) else {
            return Error::Closed(Class::Endpoint);
        };
        let error = Error::PeerGone(tx.peer_address.clone());
        let identity = tx.identity();
        drop(tx);
        self.on_tx_ended(
            ctx,
            tx_index,
            ConnectionEnd {
                error: error.clone(),
                reason: DownReason::Closed,
                identity,
            },
        );
        error
    }

    /// Returns the connection to a peer, if there is one.
    #[inline]
    pub(super) fn tx_connection(&self, addr: FiAddr) -> Option<ConnectionGuard<'_>> {
        self.tx_connections
            .lock(addr.index())
            .filter(|tx| tx.addr == addr)
    }

    /// Calls `act` with every connection to a peer.
    pub(super) fn for_each_tx(&self, mut act: impl FnMut(&mut TxConnection)) {
        self.tx_indices
            .iter()
            .filter_map(|&tx_index| self.tx_connections.lock(tx_index))
            .for_each(|mut tx| act(&mut tx));
    }

    /// Returns whether a connection has no queued operation and waits for nothing from the peer;
    /// true if there is no connection.
    pub(super) fn is_tx_idle(&self, tx_index: usize) -> bool {
        self.tx_connections
            .lock(tx_index)
            .is_none_or(|tx| tx.is_idle())
    }

    /// Returns the fast path, which does not need the domain's lock.
    pub(crate) fn fast_path(&self) -> Arc<dyn FastPath> {
        self.tx_connections.clone()
    }
}
