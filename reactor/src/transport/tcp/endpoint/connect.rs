//! Outbound connections: the first operation for a peer connects.
//!
//! The connection request is in the protocol of the peer's own earlier request, or else in the
//! endpoint's protocol. A peer that speaks only the other protocol refuses with a reply that shows
//! its protocol; this side then sends a request in that protocol (`retry_other_protocol`).

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use fabric_core::event::EventKind;
use fabric_core::tcp::{ByteOrder, ConnectReply, ConnectRequest, Negotiated, WireProtocol};
use fabric_core::transport::{EndpointContext, EngineContext};
use fabric_core::{Error, RefusalReason, Result};

use super::super::connect_attempt::{ConnectAttempt, ConnectContext, connect_error};
use super::super::handshake::{HandshakeStep, OutboundHandshake, RequestPayload};
use super::inbound::InboundSource;
use super::{ConnectionState, EndpointKind, HANDSHAKE_TIMEOUT, TcpEndpoint, TcpToken};
use crate::sys::uring::{OpId, TimedOutcome};

/// The first delay before a refused connect is retried. The delay doubles at each refusal, up to 64
/// times this.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(2);
/// Replaces timeouts that exceed the clock's range.
const MAX_TIMEOUT: Duration = Duration::from_secs(1 << 32);

impl TcpEndpoint {
    /// Starts the connect to a peer of an `FI_EP_RDM` endpoint whose connection sends will use.
    ///
    /// # Errors
    /// Failures that are known at once.
    pub(super) fn connect(&mut self, peer_index: usize) -> Result<()> {
        self.peers[peer_index].retry = None;
        let connection_index = self.start_rdm_connect(peer_index)?;
        self.peers[peer_index].connection = Some(connection_index);
        Ok(())
    }

    /// Starts a connect to a peer of an `FI_EP_RDM` endpoint, with a connection request in the
    /// peer's protocol. Returns the index of the connection.
    ///
    /// # Errors
    /// Failures that are known at once.
    pub(super) fn start_rdm_connect(&mut self, peer_index: usize) -> Result<usize> {
        let peer = &self.peers[peer_index];
        self.last_connection_id = self.last_connection_id.wrapping_add(1);
        let request = ConnectRequest::new(
            peer.protocol,
            self.local_addr.port(),
            self.instance,
            self.last_connection_id,
        );
        self.start_connect(
            peer_index,
            RequestPayload::Rdm(request, self.vendor_extension),
            HANDSHAKE_TIMEOUT,
        )
    }

    /// Starts a connect to a peer; the connection request with `payload` is sent when the socket is
    /// connected. `timeout` covers the connect and the handshake. Returns the index of the
    /// connection.
    ///
    /// # Errors
    /// Failures that are known at once.
    pub(super) fn start_connect(
        &mut self,
        peer_index: usize,
        payload: RequestPayload,
        timeout: Duration,
    ) -> Result<usize> {
        let peer = &self.peers[peer_index];
        let mut socket = self
            .network
            .open_socket(self.local_addr, peer.socket_addr, &self.socket_config)
            .map_err(|errno| {
                connect_error(self.local_addr, (&peer.address, peer.socket_addr), errno)
            })?;
        let token = TcpToken::Socket(self.connections.vacant_key() as u32).pack(self.id);
        let now = Instant::now();
        let deadline = now.checked_add(timeout).unwrap_or(now + MAX_TIMEOUT);
        let context = ConnectContext {
            local_addr: self.local_addr,
            wait_set: &self.wait_set,
            token,
            uring: self.uring.as_ref().map(|uring| &uring.ring),
        };
        let attempt = ConnectAttempt::start(
            &mut socket,
            (&peer.address, peer.socket_addr),
            deadline,
            &context,
        )?;
        let handshake = OutboundHandshake::new((peer_index, payload), socket, deadline, attempt);
        let connection_index = self
            .connections
            .insert(ConnectionState::Outbound(handshake));
        self.arm_connection_timer(connection_index);
        Ok(connection_index)
    }

    /// Handles a ready socket of an outbound handshake.
    pub(super) fn on_outbound_ready(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        let Some(ConnectionState::Outbound(handshake)) = self.connections.get_mut(connection_index)
        else {
            return;
        };
        let step = handshake.poll(
            &self.wait_set,
            TcpToken::Socket(connection_index as u32).pack(self.id),
        );
        self.on_handshake_step(ctx, connection_index, step);
    }

    /// Handles the completion of a connect in io_uring.
    pub(super) fn on_uring_connect(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        completion: (OpId, TimedOutcome),
    ) {
        let Some(ConnectionState::Outbound(handshake)) = self.connections.get_mut(connection_index)
        else {
            return;
        };
        let token = TcpToken::Socket(connection_index as u32).pack(self.id);
        let Some(step) = handshake.on_uring_connect(completion, &self.wait_set, token) else {
            return;
        };
        if matches!(step, HandshakeStep::Pending) {
            // From now on the timer, not the kernel, enforces the deadline.
            self.arm_connection_timer(connection_index);
        }
        self.on_handshake_step(ctx, connection_index, step);
    }

    /// Handles a step of an outbound handshake.
    pub(super) fn on_handshake_step(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        step: HandshakeStep,
    ) {
        if matches!(self.kind, EndpointKind::Msg(_)) {
            self.on_msg_handshake_step(ctx, connection_index, step);
        } else {
            self.on_rdm_handshake_step(ctx, connection_index, step);
        }
    }

    /// Handles a step of an outbound handshake of an `FI_EP_RDM` endpoint.
    fn on_rdm_handshake_step(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        step: HandshakeStep,
    ) {
        let Some(ConnectionState::Outbound(handshake)) = self.connections.get(connection_index)
        else {
            return;
        };
        let peer = handshake.peer;
        if self.peers[peer].verification == Some(connection_index) {
            return self.on_verification_step(ctx, (peer, connection_index), step);
        }
        match step {
            HandshakeStep::Pending => {}
            HandshakeStep::TimedOut => {
                let error = Error::TimedOut(self.peers[peer].address.clone());
                self.remove_outbound(ctx, connection_index, &error);
            }
            HandshakeStep::Failed(failure) => {
                let error = failure.into_error(
                    self.local_addr,
                    (&self.peers[peer].address, self.peers[peer].socket_addr),
                );
                self.remove_outbound(ctx, connection_index, &error);
            }
            HandshakeStep::Reply(ConnectReply::AlreadyConnected, ..) => {
                // Both sides connect, or the peer still has a connection that this side has lost.
                self.take_outbound(connection_index);
                self.peers[peer].connection = None;
                self.schedule_retry(ctx, peer);
            }
            HandshakeStep::Reply(ConnectReply::RetryWith(protocol), ..) => {
                self.take_outbound(connection_index);
                self.peers[peer].connection = None;
                self.retry_other_protocol(ctx, peer, protocol);
            }
            HandshakeStep::Reply(ConnectReply::Rejected, ..) | HandshakeStep::Answer(_) => {
                let error = Error::ConnectionRefused {
                    peer: self.peers[peer].address.clone(),
                    reason: RefusalReason::Resources,
                };
                self.remove_outbound(ctx, connection_index, &error);
            }
            HandshakeStep::Reply(
                ConnectReply::Accepted(negotiated, instance),
                byte_order,
                trailing_bytes,
            ) => self.establish_outbound(
                ctx,
                connection_index,
                (negotiated, instance),
                (byte_order, trailing_bytes),
            ),
        }
    }

    /// Establishes the connection of an outbound handshake that the peer has accepted. Sends to
    /// the peer use this connection. `byte_order` is that of the peer's reply, which
    /// `trailing_bytes` followed.
    pub(super) fn establish_outbound(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        (negotiated, instance): (Negotiated, Option<u32>),
        (byte_order, trailing_bytes): (ByteOrder, Vec<u8>),
    ) {
        let Some(ConnectionState::Outbound(handshake)) = self.connections.get(connection_index)
        else {
            return;
        };
        // A connection with a peer that the program has not inserted counts as an accepted one:
        // the peer has claimed the address.
        let peer = &self.peers[handshake.peer];
        let is_inserted = ctx.fi_addr_of(&peer.address).is_some();
        let counted_source = (!is_inserted).then(|| InboundSource::new(peer.socket_addr));
        if let Some(source) = counted_source
            && let Err(error) = self.make_inbound_room(ctx, source)
        {
            self.remove_outbound(ctx, connection_index, &error);
            return ctx.event(EventKind::InboundRefused { error, count: 1 });
        }
        let Some(handshake) = self.take_outbound(connection_index) else {
            return;
        };
        let peer = handshake.peer;
        let connection_index = self.add_connection(
            ctx,
            (peer, instance),
            handshake.into_socket(),
            (negotiated, ByteOrder::NATIVE.negotiate(byte_order)),
            trailing_bytes,
        );
        if let Some(connection) = self.established_mut(connection_index) {
            connection.expect_simultaneous_request();
        }
        if let Some(source) = counted_source {
            self.count_inbound(ctx, connection_index, source);
        }
        self.peers[peer].connection = Some(connection_index);
        self.progress_tx(ctx, peer);
    }

    /// Takes an outbound handshake that has ended.
    pub(super) fn take_outbound(&mut self, connection_index: usize) -> Option<OutboundHandshake> {
        let ConnectionState::Outbound(_) = self.connections.get(connection_index)? else {
            return None;
        };
        self.verifications.end(connection_index);
        match self.connections.remove(connection_index) {
            ConnectionState::Outbound(handshake) => Some(handshake),
            _ => None,
        }
    }

    /// Removes a failed attempt, and fails the operations that waited for it.
    pub(super) fn remove_outbound(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        error: &Error,
    ) {
        let Some(handshake) = self.take_outbound(connection_index) else {
            return;
        };
        if self.peers[handshake.peer].connection == Some(connection_index) {
            self.peers[handshake.peer].connection = None;
            self.fail_sends(ctx, handshake.peer, error);
        }
        self.drop_unused_peer(handshake.peer);
    }

    /// Cancels an attempt to connect that is no longer needed, unless the connection request was
    /// sent.
    pub(super) fn cancel_connect(&mut self, peer: usize) {
        if let Some(connection_index) = self.peers[peer].connection
            && let Some(ConnectionState::Outbound(handshake)) =
                self.connections.get(connection_index)
            && handshake.is_connecting()
        {
            self.take_outbound(connection_index);
            self.peers[peer].connection = None;
        }
    }

    /// Sends the request again in the protocol that the peer asks for, after a delay if the peer
    /// has asked before.
    fn retry_other_protocol(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer_index: usize,
        protocol: WireProtocol,
    ) {
        let peer = &mut self.peers[peer_index];
        peer.protocol = protocol;
        if std::mem::replace(&mut peer.switched_protocol, true) {
            return self.schedule_retry(ctx, peer_index);
        }
        if !peer.tx_queue.is_empty()
            && let Err(error) = self.connect(peer_index)
        {
            self.fail_sends(ctx, peer_index, &error);
        }
        self.drop_unused_peer(peer_index);
    }

    /// Schedules another request after a delay, or fails the queued operations if the retry
    /// deadline has passed. Without queued operations there is no retry.
    fn schedule_retry(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer_index: usize,
    ) {
        let now = Instant::now();
        let peer = &mut self.peers[peer_index];
        if peer.tx_queue.is_empty() {
            // The next send connects at once.
            peer.retry = None;
            return self.drop_unused_peer(peer_index);
        }
        if peer.retry_deadline.is_some_and(|deadline| deadline < now) {
            let error = Error::ConnectionRefused {
                peer: peer.address.clone(),
                reason: RefusalReason::Resources,
            };
            return self.fail_sends(ctx, peer_index, &error);
        }
        let delay = peer.retry.map_or(INITIAL_RETRY_DELAY, |(_, delay)| {
            (delay * 2).min(INITIAL_RETRY_DELAY * 64)
        });
        // Two endpoints that connect to each other must not retry in lockstep.
        let jitter = RandomState::new().hash_one(peer_index) % 1000;
        let retry_at = now + delay + Duration::from_micros(jitter);
        peer.retry = Some((retry_at, delay));
        self.retry_deadlines.set(peer_index, retry_at);
        self.arm_timer();
    }
}
