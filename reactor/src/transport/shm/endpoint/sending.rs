//! Transmit operations, and the connections they use.

use std::sync::Arc;

use fabric_core::buf::Payload;
use fabric_core::event::DownReason;
use fabric_core::mr::DirectRegion;
use fabric_core::transport::{EngineContext, FastPath, OpKey, TrySend, TxOp};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result, Scheme};

use super::super::connection_table::ConnectionGuard;
use super::super::record::ALIGN_PAYLOAD_FROM;
use super::super::tx_connection::{self, ConnectionEnd, PushOutcome, TxConnection};
use super::{ShmEndpoint, ShmToken};

impl ShmEndpoint {
    pub(crate) fn try_send(
        &mut self,
        engine: &mut impl EngineContext,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        if let Payload::Contiguous(bytes) = payload
            && bytes.len() < ALIGN_PAYLOAD_FROM
            && tx_op.is_plain()
        {
            return self.try_inline(engine, tx_op, |tx| Ok(tx.push_plain(bytes, tx_op.more)));
        }
        self.try_inline(engine, tx_op, |tx| tx.try_send(tx_op, payload))
    }

    /// Executes an operation now or not at all.
    #[inline]
    pub(crate) fn try_inline(
        &mut self,
        engine: &mut impl EngineContext,
        tx_op: &TxOp,
        act: impl FnOnce(&mut TxConnection) -> Result<PushOutcome>,
    ) -> Result<TrySend> {
        let peer_index = tx_op.peer.index();
        let Some(mut tx) = self.tx_connection(tx_op.peer) else {
            return engine
                .address_of(self.id, tx_op.peer)
                .map(|_| TrySend::WouldBlock);
        };
        let pushed = act(&mut tx)?;
        drop(tx);
        match pushed {
            PushOutcome::Pushed => {
                if tx_op.more && !self.tx_unflushed.contains(&peer_index) {
                    self.tx_unflushed.push(peer_index);
                }
                Ok(TrySend::Done)
            }
            PushOutcome::WouldBlock => Ok(TrySend::WouldBlock),
            PushOutcome::Closed => Err(self.on_tx_peer_closed(engine, peer_index)),
        }
    }

    /// Returns the mapping of a peer's region, if the region was mapped by an access before.
    pub(crate) fn region_handle(&mut self, peer: FiAddr, key: u64) -> Result<Option<DirectRegion>> {
        self.tx_connection(peer)
            .map_or(Ok(None), |mut tx| tx.region_handle(key))
    }

    /// Queues an operation, connecting to the peer if needed.
    pub(crate) fn queue_send(
        &mut self,
        engine: &mut impl EngineContext,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        let peer_index = tx_op.peer.index();
        if self.tx_connection(tx_op.peer).is_none() {
            let peer = engine.address_of(self.id, tx_op.peer)?;
            if let Some(error) = self.disconnect_error() {
                return Err(error);
            }
            peer.check_scheme(Scheme::Shm)?;
            self.tx_connections.insert(
                peer_index,
                TxConnection::new(peer, tx_op.peer, self.tx_settings.clone()),
            );
            self.tx_indices.push(peer_index);
        }
        self.connect(engine, peer_index)?;
        if let Some(mut tx) = self.tx_connections.lock(peer_index) {
            tx.enqueue(op, tx_connection::at_start(tx_op, engine));
        }
        if !self.tx_queued.contains(&peer_index) {
            self.tx_queued.push(peer_index);
        }
        self.progress_tx_connection(engine, peer_index);
        if !self.is_tx_idle(peer_index) {
            engine.request_rearm();
        }
        Ok(())
    }

    /// Wakes the peers that were sent messages with `FI_MORE`.
    pub(crate) fn flush(&mut self, engine: &mut impl EngineContext) -> Result<()> {
        let mut flushed = Ok(());
        while let Some(peer_index) = self.tx_unflushed.pop() {
            let pushed = self
                .tx_connections
                .lock(peer_index)
                .map(|mut tx| tx.flush());
            if pushed == Some(PushOutcome::Closed) {
                flushed = Err(self.on_tx_peer_closed(engine, peer_index));
            }
        }
        flushed
    }

    /// Collects the chunks and buffers that peers have returned.
    pub(crate) fn collect_returned_loans(&mut self) {
        self.for_each_tx(TxConnection::collect_returned);
    }

    /// Polls the connections of peers that hold loans, which somebody waits for.
    pub(crate) fn watch_loans(&mut self) {
        for &at in &self.tx_indices {
            if !self.tx_queued.contains(&at) && !self.is_tx_idle(at) {
                self.tx_queued.push(at);
            }
        }
    }

    /// Connects to the peer at this index, unless a connection exists.
    fn connect(&mut self, engine: &impl EngineContext, peer_index: usize) -> Result<()> {
        let token = ShmToken::Tx(peer_index as u32).pack(self.id);
        let Some(mut tx) = self.tx_connections.lock(peer_index) else {
            return Ok(());
        };
        if tx.is_closed() {
            if let Some(error) = self.disconnect_error() {
                return Err(error);
            }
            engine.address_of(self.id, tx.addr)?;
            tx.expected = engine.incarnation_of(self.id, tx.addr);
        }
        tx.connect(&self.name, self.local.incarnation, token, &self.wait_set)
    }

    /// Handles a peer whose endpoint has closed according to its ring; its socket will report it
    /// too.
    #[cold]
    pub(super) fn on_tx_peer_closed(
        &mut self,
        engine: &mut impl EngineContext,
        peer_index: usize,
    ) -> Error {
        let Some(tx) = self.tx_connections.lock(peer_index) else {
            return Error::Closed(Class::Endpoint);
        };
        let error = Error::PeerGone(tx.peer_address.clone());
        let identity = tx.identity();
        drop(tx);
        self.on_tx_ended(
            engine,
            peer_index,
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
            .filter_map(|&peer_index| self.tx_connections.lock(peer_index))
            .for_each(|mut tx| act(&mut tx));
    }

    pub(super) fn is_tx_idle(&self, peer_index: usize) -> bool {
        self.tx_connections
            .lock(peer_index)
            .is_none_or(|tx| tx.is_idle())
    }

    /// Returns the fast path, which does not need the domain's lock.
    pub(crate) fn fast_path(&self) -> Arc<dyn FastPath> {
        self.tx_connections.clone()
    }
}
