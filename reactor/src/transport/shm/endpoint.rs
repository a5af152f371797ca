//! An endpoint over shared memory: its connections in both directions.
//!
//! A connectionless endpoint (`FI_EP_RDM`) listens at its name and connects to a peer with the
//! first operation for the peer. A connected endpoint (`FI_EP_MSG`) has one peer and does not
//! listen. [`ShmEndpointKind`] holds the state that only one type has. The domain calls an endpoint
//! under the domain's lock; fast-path sends lock a connection only (`connection_table`).
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | opening, deferred work, and progress of transmit operations |
//! | `calls` | the calls of the engine |
//! | `sending` | transmit operations, and the connections they use |
//! | `connect_retries` | connects that are tried again |
//! | `accept` | the listener of a connectionless endpoint, and handshakes |
//! | `rx_limits` | limits of incoming connections |
//! | `rx_pass` | polling incoming connections in a pass, and reports of posted receives |
//! | `acks` | acks and returned slots for senders |
//! | `disconnect` | the end of connections, and its events |
//! | `connected` | connected endpoints (`FI_EP_MSG`) |

mod accept;
mod acks;
mod calls;
mod connect_retries;
mod connected;
mod disconnect;
mod rx_limits;
mod rx_pass;
mod sending;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::stats::EndpointStats;
use fabric_core::transport::{EndpointContext, EngineContext, EpId, WaitSet};
use fabric_core::{Address, Result, SocketOptions};

use sending::TxPass;

use super::connection_table::ConnectionTable;
use super::control::ControlMessage;
use super::loans::ReceivedLoans;
use super::rx_connection::LocalEndpoint;
use super::rx_table::RxConnections;
use super::token::ShmToken;
use super::tx_settings::TxSettings;
use crate::sys::fork_guard::ForkGuard;
use crate::sys::thread_lock::ConnectionLockMode;

use accept::RdmListener;
use connect_retries::ConnectRetries;
use connected::MsgConnection;
use rx_limits::RxLimits;
use rx_pass::EndedRx;

/// Bytes of unexpected messages that an endpoint buffers before it stops reading from senders.
pub(super) const UNEXPECTED_BYTES: usize = 16 << 20;

/// What an endpoint is opened with.
#[derive(Clone)]
pub(crate) struct ShmConfig<'a> {
    /// Which threads lock the connections.
    pub(crate) lock_mode: ConnectionLockMode,
    pub(crate) info: &'a Info,
    pub(crate) tx_settings: TxSettings,
    pub(crate) wait_set: Arc<dyn WaitSet>,
    pub(crate) socket_options: SocketOptions,
    /// How many connections every pass polls even if they are idle.
    pub(crate) always_active: usize,
}

/// The type of an endpoint, with the state that only this type has.
enum ShmEndpointKind {
    /// Connectionless (`FI_EP_RDM`).
    Rdm(RdmListener),
    /// Connected (`FI_EP_MSG`).
    Msg(Box<MsgConnection>),
}

/// An endpoint of the transport.
pub(crate) struct ShmEndpoint {
    id: EpId,
    /// Name of the endpoint. That of an accepted endpoint is the name of its passive endpoint.
    name: Address,
    kind: ShmEndpointKind,
    local: LocalEndpoint,
    tx_settings: TxSettings,
    /// Counters of connections that were removed.
    counters: EndpointStats,
    fork_guard: ForkGuard,
    wait_set: Arc<dyn WaitSet>,
    /// The connections from peers and the pending handshakes, by `rx_index`.
    rx_connections: RxConnections,
    /// How many connections every pass polls even if they are idle.
    always_active: usize,
    /// Which connections count towards a limit.
    rx_limits: RxLimits,
    /// Incoming connections that have ended in this pass.
    ended_rx: Vec<EndedRx>,
    /// Whether a change of the receive queue calls `apply_rx_change_effects`: the queue is shared,
    /// or receives fail because the connection of a connected endpoint has ended.
    has_rx_change_effects: bool,
    /// Whether a connection was held after the last pass, so that the engine reports posts.
    has_held_rx: bool,
    /// Whether passes have skipped this endpoint since its last pass.
    is_idle: bool,
    /// The connections to peers, by [`FiAddr::index`](fabric_core::FiAddr::index): the `tx_index`.
    tx_connections: Arc<ConnectionTable>,
    /// Indices in `tx_connections` that are in use.
    tx_indices: Vec<usize>,
    /// Indices of connections with queued operations, or whose peer holds loans.
    tx_queued: Vec<usize>,
    /// Connections that are connected again later.
    connect_retries: ConnectRetries,
    /// Indices of connections whose peer must still be woken (`FI_MORE`).
    tx_unflushed: Vec<usize>,
}

impl ShmEndpoint {
    /// Opens a connectionless endpoint, which listens at this name.
    pub(crate) fn open(
        ctx: &EndpointContext<'_, impl EngineContext>,
        name: Address,
        config: ShmConfig<'_>,
    ) -> Result<Self> {
        let token = ShmToken::Listener.pack(ctx.ep());
        let listener = RdmListener::open(&name, &config.wait_set, token)?;
        Ok(Self::new(ctx, name, ShmEndpointKind::Rdm(listener), config))
    }

    fn new(
        ctx: &EndpointContext<'_, impl EngineContext>,
        name: Address,
        kind: ShmEndpointKind,
        config: ShmConfig<'_>,
    ) -> Self {
        let ShmConfig {
            lock_mode,
            info,
            tx_settings,
            wait_set,
            socket_options,
            always_active,
        } = config;
        let (id, caps) = (ctx.ep(), info.caps);
        Self {
            id,
            name,
            kind,
            local: LocalEndpoint {
                incarnation: RandomState::new().hash_one(id.0),
                is_rma_target: caps.is_rma_target(),
                rma_events: caps.contains(Caps::RMA_EVENT),
                cma_enabled: !tx_settings.single_copy.is_disabled(),
                received_loans: ReceivedLoans::new(tx_settings.loan_pool.clone()),
            },
            tx_settings,
            counters: EndpointStats::default(),
            fork_guard: ForkGuard::current_process(),
            wait_set,
            has_rx_change_effects: ctx.shares_rx(),
            rx_connections: RxConnections::default(),
            always_active,
            rx_limits: RxLimits::new(&socket_options),
            ended_rx: Vec::new(),
            has_held_rx: false,
            is_idle: false,
            tx_connections: Arc::new(ConnectionTable::new(lock_mode, info.ep.max_msg_size)),
            tx_indices: Vec::new(),
            tx_queued: Vec::new(),
            connect_retries: ConnectRetries::default(),
            tx_unflushed: Vec::new(),
        }
    }

    pub(crate) fn name(&self) -> &Address {
        &self.name
    }

    /// Notes whether passes skip this endpoint. While they do, the engine reports posted receives,
    /// so that a receive makes passes poll the endpoint again.
    #[cold]
    fn set_idle(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>, is_idle: bool) {
        self.is_idle = is_idle;
        self.update_post_reports(ctx);
    }

    /// Returns whether the next pass has to resume accepting or to fail receives.
    #[inline]
    fn has_deferred_work(&self) -> bool {
        match &self.kind {
            ShmEndpointKind::Rdm(listener) => listener.is_paused(),
            ShmEndpointKind::Msg(msg) => msg.has_recvs_to_fail,
        }
    }

    /// Resumes accepting, or fails receives, as far as possible now.
    #[cold]
    fn run_deferred_work(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        match self.kind {
            ShmEndpointKind::Rdm(_) => self.resume_accept(ctx),
            ShmEndpointKind::Msg(_) => self.fail_recvs(ctx),
        }
    }

    /// Sends queued operations of all connections. Returns the number of connections that
    /// progressed.
    fn progress_tx(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) -> u32 {
        let mut progressed = 0;
        let mut index = 0;
        while let Some(&tx_index) = self.tx_queued.get(index) {
            let pass = self.progress_tx_connection(ctx, tx_index);
            progressed += u32::from(pass.progressed);
            if pass.is_idle {
                self.tx_queued.swap_remove(index);
            } else {
                index += 1;
            }
        }
        progressed
    }

    /// Sends queued operations of one connection.
    fn progress_tx_connection(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_index: usize,
    ) -> TxPass {
        let Some(mut tx) = self.tx_connections.lock(tx_index) else {
            return TxPass {
                progressed: false,
                is_idle: true,
            };
        };
        let progress = tx.progress_queue(ctx);
        let is_idle = tx.is_idle();
        drop(tx);
        self.end_tx_pass(ctx, tx_index, progress, is_idle)
    }

    /// Returns the message that tells the peers that the endpoint closes. `None` if the endpoint is
    /// a connecting client: a passive endpoint would take the message for a malformed request.
    fn close_announcement(&self) -> Option<ControlMessage> {
        (!self.is_connecting()).then_some(ControlMessage::EndpointClosed)
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        self.rx_connections
            .established()
            .for_each(|rx| rx.close(ControlMessage::EndpointClosed));
        if let Some(message) = self.close_announcement() {
            self.for_each_tx(|tx| tx.announce_end(message));
        }
    }
}
