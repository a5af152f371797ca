//! The listener of a connectionless endpoint, and the handshakes of peers that connect.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use fabric_core::event::EventKind;
use fabric_core::rx::BudgetGroup;
use fabric_core::transport::{EndpointContext, EngineContext, WaitSet};
use fabric_core::{Address, Error, RefusalReason, Result};

use super::super::control::{self, ControlMessage};
use super::super::rx_connection::{
    self, AcceptBudget, Accepted, HandshakeOutcome, PendingHandshake, ReceivedHello,
};
use super::super::socket::ShmListener;
use super::super::token::ShmToken;
use super::{ShmEndpoint, ShmEndpointKind};
use crate::sys::closer;
use crate::sys::fd_limit::part_of_descriptors;
use crate::sys::fd_reserve;
use crate::sys::os_error::os_error;
use crate::transport::connected_peer::ConnectedPeer;

/// Returns the limit of pending handshakes of the process: 64, or less if the process may have
/// fewer than 1,024 descriptors. At the limit further connections stay in the backlog until a
/// handshake ends, or until the oldest one has been pending for [`HANDSHAKE_TIMEOUT`] and is
/// evicted.
fn max_pending_handshakes() -> usize {
    part_of_descriptors(16, 64)
}
/// Returns the share of one peer process in the pending handshakes of this process: a quarter. Over
/// it, connections of the peer process are refused, and so leave the backlog to others.
fn max_handshakes_with_one() -> usize {
    (max_pending_handshakes() / 4).max(1)
}
/// Time that a peer has for its hello before another peer may evict its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// The listener of a connectionless endpoint.
///
/// While the listener is not watched, connections stay in the backlog, because the queue of the
/// closing threads was full. Each pass tries to resume.
pub(super) struct RdmListener {
    socket: ShmListener,
    /// Closed for a moment when this process has no descriptor left, so that a connection can be
    /// accepted and rejected.
    reserve_fd: Option<OwnedFd>,
}

impl RdmListener {
    /// Listens at this name; the domain's epoll set reports `token` for a new connection.
    pub(super) fn open(name: &Address, wait_set: &Arc<dyn WaitSet>, token: u64) -> Result<Self> {
        let mut socket = ShmListener::open(name)?;
        socket.watch(wait_set, token)?;
        Ok(Self {
            socket,
            reserve_fd: fd_reserve::create().ok(),
        })
    }

    pub(super) fn is_paused(&self) -> bool {
        !self.socket.is_watched()
    }
}

impl ShmEndpoint {
    /// Accepts connections of the backlog, or refuses them, within an [`AcceptBudget`].
    ///
    /// A handshake takes a round trip, so many may be pending at once. At the limit of pending
    /// handshakes the listener stays readable and keeps the domain awake.
    pub(super) fn accept(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let max_of_process = max_pending_handshakes();
        let max_with_one = max_handshakes_with_one();
        let mut budget = AcceptBudget::new();
        while budget.has_more() {
            let ShmEndpointKind::Rdm(listener) = &mut self.kind else {
                return;
            };
            if closer::register_if_full(&self.wait_set) {
                return listener.socket.unwatch();
            }
            if !self
                .rx_connections
                .make_handshake_room(max_of_process, HANDSHAKE_TIMEOUT)
            {
                return;
            }
            if listener.reserve_fd.is_none() {
                listener.reserve_fd = fd_reserve::create().ok();
            }
            let rx_connections = &mut self.rx_connections;
            let is_at_share = |process| {
                PendingHandshake::count_with(process) >= max_with_one
                    && !rx_connections.make_room_at_share(process, HANDSHAKE_TIMEOUT)
            };
            match rx_connection::accept(&listener.socket, &mut budget, is_at_share) {
                Ok(Some(Accepted::Refused(error))) => {
                    ctx.event(EventKind::InboundRefused { error, count: 1 });
                }
                Ok(Some(Accepted::AtShare)) => {
                    self.rx_limits.count_refused();
                    let error = rx_connection::too_many_handshakes(max_with_one);
                    ctx.event(EventKind::InboundRefused { error, count: 1 });
                }
                Ok(Some(Accepted::Disconnected)) => {}
                Ok(Some(Accepted::Admitted(mut socket, peer))) => {
                    let rx_index = self.rx_connections.reserve();
                    let token = ShmToken::Rx(rx_index as u32).pack(self.id);
                    if socket.watch(&self.wait_set, token).is_ok() {
                        let handshake = PendingHandshake::new(socket, peer);
                        self.poll_handshake(ctx, rx_index, handshake);
                    } else {
                        self.rx_connections.release(rx_index);
                    }
                }
                Ok(None) => return,
                Err(errno) => {
                    // Most likely this process has no descriptor left. A connection that stayed in
                    // the backlog would keep the listener readable and the domain awake, so the
                    // connection is rejected.
                    listener.reserve_fd = None;
                    if let Ok(Some(socket)) = listener.socket.accept() {
                        let error = os_error("accept4")(errno);
                        ctx.event(EventKind::InboundRefused { error, count: 1 });
                        control::send_control(
                            &socket,
                            ControlMessage::Reject(RefusalReason::Resources),
                        );
                    }
                    listener.reserve_fd = fd_reserve::create().ok();
                    self.rx_limits.count_refused();
                    return;
                }
            }
        }
    }

    /// Resumes accepting if the queue of the closing threads has room. Otherwise, or if the
    /// listener cannot be watched, a later pass tries again.
    #[cold]
    pub(super) fn resume_accept(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let token = ShmToken::Listener.pack(self.id);
        let ShmEndpointKind::Rdm(listener) = &mut self.kind else {
            return;
        };
        if !closer::register_if_full(&self.wait_set)
            && listener.socket.watch(&self.wait_set, token).is_ok()
        {
            self.accept(ctx);
        }
    }

    /// Handles a readable socket of an incoming connection or a pending handshake.
    pub(super) fn on_rx_ready(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        rx_index: usize,
    ) {
        if let Some(handshake) = self.rx_connections.take_handshake(rx_index) {
            return self.poll_handshake(ctx, rx_index, handshake);
        }
        self.rx_connections.activate(rx_index);
        if let Some(reason) = self
            .rx_connections
            .get_mut(rx_index)
            .and_then(|peer| peer.on_readable(ctx))
        {
            self.on_rx_ended(ctx, rx_index, reason);
        }
    }

    /// Advances a handshake, and adds the connection if it is established.
    fn poll_handshake(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        rx_index: usize,
        handshake: PendingHandshake,
    ) {
        let refusal = match handshake.poll_handshake() {
            HandshakeOutcome::Pending(handshake) => {
                return self.rx_connections.insert_handshake(rx_index, handshake);
            }
            HandshakeOutcome::Received(hello) => match self.on_hello(ctx, rx_index, hello) {
                Ok(()) => return,
                Err(error) => Some(error),
            },
            HandshakeOutcome::Rejected(error) => {
                if matches!(error, Error::Os { .. }) {
                    // No descriptor was free for what the hello carries.
                    self.rx_limits.count_refused();
                }
                Some(error)
            }
            HandshakeOutcome::Disconnected => None,
        };
        self.rx_connections.release(rx_index);
        if let Some(error) = refusal {
            ctx.event(EventKind::InboundRefused { error, count: 1 });
        }
    }

    /// Accepts a peer whose hello is valid, if the peer is within the limits.
    ///
    /// # Errors
    /// The local error, if the connection was rejected.
    fn on_hello(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        rx_index: usize,
        hello: ReceivedHello,
    ) -> Result<()> {
        let process = hello.process();
        let is_exempt = self.is_exempt(ctx, &hello);
        if !is_exempt && let Err(error) = self.make_rx_room(ctx, process) {
            hello.reject_for_resources();
            return Err(error);
        }
        // A process can have the names of inserted peers that are not running.
        let addr = ctx.fi_addr_of(hello.from());
        let has_own_share = addr.is_some_and(|addr| self.leads_to(addr, process));
        let mut rx = hello.accept(self.local.clone())?;
        let (name, incarnation) = (rx.peer_address.clone(), rx.identity.into());
        rx.peer = ConnectedPeer::connect(ctx, self.rx_connections.generate_key(), &name);
        rx.peer.report_connected(ctx, &name, Some(incarnation));
        let source = rx.peer.source();
        if !is_exempt {
            self.rx_limits.add(rx_index, process);
        }
        if !has_own_share && let Some(group) = budget_group(process) {
            ctx.set_budget_group(rx.peer.key(), group);
        }
        self.rx_connections.insert_established(rx_index, rx);
        ctx.event(EventKind::PeerConnected { peer: name, source });
        Ok(())
    }
}

/// Returns the group of a peer that the program has not inserted: the peers of its process.
/// Endpoints of this process have a share each.
fn budget_group(process: Option<u64>) -> Option<BudgetGroup> {
    let is_own = process == Some(std::process::id().into());
    (!is_own).then(|| BudgetGroup(process.map_or(u128::MAX, u128::from)))
}
