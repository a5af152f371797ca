//! Transmit operations, and the connections they use.

use fabric_core::event::DownReason;
use fabric_core::transport::{EndpointContext, EngineContext, TrySend, TxOp};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result};

use super::super::connection_table::ConnectionGuard;
use super::super::token::ShmToken;
use super::super::tx_connection::{
    ConnectionEnd, LocalEnd, PushOutcome, QueueProgress, TxConnection,
};
use super::ShmEndpoint;

/// The result of a pass over the queue of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxPass {
    /// Whether an operation was sent in part, or completed, or the peer has closed.
    pub(super) progressed: bool,
    /// Whether no operation is queued and nothing is awaited from the peer.
    pub(super) is_idle: bool,
}

impl ShmEndpoint {
    /// Notes that a peer must be woken at the end of the batch.
    pub(super) fn mark_unflushed(&mut self, tx_index: usize) {
        if !self.tx_unflushed.contains(&tx_index) {
            self.tx_unflushed.push(tx_index);
        }
    }

    /// Executes an operation on the connection to its peer, if the connection exists and has room
    /// now. Nothing is queued.
    #[inline]
    pub(super) fn try_inline(
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

    /// Connects a connection to its peer if it is closed. The caller sees to the next try, if there
    /// is [one](TxConnection::next_try).
    pub(super) fn connect(
        &self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        tx: &mut TxConnection,
    ) -> Result<()> {
        if tx.is_closed() {
            if let Some(error) = self.disconnect_error() {
                return Err(error);
            }
            ctx.address_of(tx.addr)?;
            tx.expected_incarnation = ctx.incarnation_of(tx.addr);
        }
        tx.connect(self.local_end(tx.addr.index()))
    }

    /// Returns this end of the connection at `tx_index`, for its connect.
    pub(super) fn local_end(&self, tx_index: usize) -> LocalEnd<'_> {
        LocalEnd {
            name: &self.name,
            incarnation: self.local.incarnation,
            token: ShmToken::Tx(tx_index as u32).pack(self.id),
            wait_set: &self.wait_set,
        }
    }

    /// Handles the result of a pass over the queue of a connection, after which the connection was
    /// idle or not.
    pub(super) fn end_tx_pass(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_index: usize,
        progress: QueueProgress,
        is_idle: bool,
    ) -> TxPass {
        let is_closed = progress == QueueProgress::Closed;
        if is_closed {
            self.on_tx_peer_closed(ctx, tx_index);
        }
        TxPass {
            progressed: progress != QueueProgress::Idle,
            is_idle: if is_closed {
                self.is_tx_idle(tx_index)
            } else {
                is_idle
            },
        }
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
        self.tx_connections.lock_peer(addr)
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
}
