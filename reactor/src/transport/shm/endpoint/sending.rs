//! Transmit operations, and the connections they use.

use std::sync::Arc;

use fabric_core::buf::Payload;
use fabric_core::event::DownReason;
use fabric_core::mr::DirectRegion;
use fabric_core::transport::{EngineContext, FastPath, OpKey, TrySend, TxOp};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result, Scheme};

use super::super::connection_table::ConnectionGuard;
use super::super::tx_connection::{self, ConnectionEnd, PushOutcome, TxConnection};
use super::{ShmEndpoint, ShmToken};

impl ShmEndpoint {
    pub(crate) fn try_send(
        &mut self,
        host: &mut dyn EngineContext,
        spec: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        self.try_now(host, spec, |tx| tx.try_send(spec, payload))
    }

    /// Executes an operation now or not at all.
    #[inline]
    pub(crate) fn try_now(
        &mut self,
        host: &mut dyn EngineContext,
        spec: &TxOp,
        act: impl FnOnce(&mut TxConnection) -> Result<PushOutcome>,
    ) -> Result<TrySend> {
        let at = spec.peer.index();
        let Some(mut tx) = self.tx_connection(spec.peer) else {
            return host
                .address_of(self.id, spec.peer)
                .map(|_| TrySend::WouldBlock);
        };
        let pushed = act(&mut tx)?;
        drop(tx);
        match pushed {
            PushOutcome::Done => {
                if spec.more && !self.tx_unflushed.contains(&at) {
                    self.tx_unflushed.push(at);
                }
                Ok(TrySend::Done)
            }
            PushOutcome::WouldBlock => Ok(TrySend::WouldBlock),
            PushOutcome::Closed => Err(self.on_tx_peer_closed(host, at)),
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
        host: &mut dyn EngineContext,
        op: OpKey,
        spec: &TxOp,
    ) -> Result<()> {
        let at = spec.peer.index();
        if self.tx_connection(spec.peer).is_none() {
            let peer = host.address_of(self.id, spec.peer)?;
            if peer.scheme() != Scheme::Shm {
                return Err(Error::WrongScheme {
                    provider: "shm",
                    address: peer,
                });
            }
            self.tx_connections.insert(
                at,
                TxConnection::new(peer, spec.peer, self.tx_resources.clone()),
            );
            self.tx_indices.push(at);
        }
        self.connect(host, at)?;
        if let Some(mut tx) = self.tx_connections.lock(at) {
            tx.enqueue(op, tx_connection::at_start(spec, host));
        }
        if !self.tx_queued.contains(&at) {
            self.tx_queued.push(at);
        }
        self.progress_tx_connection(host, at);
        if !self.is_tx_idle(at) {
            host.request_rearm();
        }
        Ok(())
    }

    /// Wakes the peers that were sent messages with `FI_MORE`.
    pub(crate) fn flush(&mut self, host: &mut dyn EngineContext) -> Result<()> {
        let mut flushed = Ok(());
        while let Some(at) = self.tx_unflushed.pop() {
            let pushed = self.tx_connections.lock(at).map(|mut tx| tx.flush());
            if pushed == Some(PushOutcome::Closed) {
                flushed = Err(self.on_tx_peer_closed(host, at));
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
    fn connect(&mut self, host: &dyn EngineContext, at: usize) -> Result<()> {
        let token = ShmToken::Tx(at as u32).pack(self.id);
        let Some(mut tx) = self.tx_connections.lock(at) else {
            return Ok(());
        };
        if tx.is_gone() {
            host.address_of(self.id, tx.addr)?;
            tx.expected = host.incarnation_of(self.id, tx.addr);
        }
        tx.connect(&self.name, self.local.incarnation, token, &self.wait_set)
    }

    /// Handles a peer whose endpoint has closed according to its ring; its socket will report it
    /// too.
    #[cold]
    pub(super) fn on_tx_peer_closed(&mut self, host: &mut dyn EngineContext, at: usize) -> Error {
        let Some(tx) = self.tx_connections.lock(at) else {
            return Error::Closed(Class::Endpoint);
        };
        let error = Error::PeerGone(tx.peer_address.clone());
        let identity = tx.identity();
        drop(tx);
        self.on_tx_ended(
            host,
            at,
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
            .filter_map(|&at| self.tx_connections.lock(at))
            .for_each(|mut tx| act(&mut tx));
    }

    pub(super) fn is_tx_idle(&self, at: usize) -> bool {
        self.tx_connections.lock(at).is_none_or(|tx| tx.is_idle())
    }

    /// Returns the fast path, which does not need the domain's lock.
    pub(crate) fn fast_path(&self) -> Arc<dyn FastPath> {
        self.tx_connections.clone()
    }
}
