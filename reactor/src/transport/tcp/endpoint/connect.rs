//! Outbound connections: the first operation for a peer connects.
//!
//! The connection request is in the protocol of the peer's own earlier request, or else in the
//! endpoint's protocol. A peer that speaks only the other protocol refuses with a reply that shows
//! its protocol; this side then sends a request in that protocol (`retry_other_protocol`).

use std::time::{Duration, Instant};

use fabric_core::event::EventKind;
use fabric_core::tcp::{ByteOrder, ConnectReply, ConnectRequest, Negotiated};
use fabric_core::transport::{EndpointContext, EngineContext};
use fabric_core::{Error, RefusalReason, Result};

use super::super::connect_attempt::{ConnectAttempt, ConnectContext, connect_error};
use super::super::handshake::{HandshakeStep, OutboundHandshake, RequestPayload};
use super::inbound_handshakes::InboundSource;
use super::peer::AfterRefusal;
use super::{EndpointKind, HANDSHAKE_TIMEOUT, TcpEndpoint, TcpToken};
use crate::sys::uring::{OpId, TimedOutcome};

/// Replaces timeouts that exceed the clock's range.
const MAX_TIMEOUT: Duration = Duration::from_secs(1 << 32);

impl TcpEndpoint {
    /// Starts the connect to a peer of an `FI_EP_RDM` endpoint whose connection sends will use.
    ///
    /// # Errors
    /// Failures that are known at once.
    pub(super) fn connect(&mut self, peer_index: usize) -> Result<()> {
        let connection_index = self.start_rdm_connect(peer_index, None)?;
        self.peers[peer_index].set_connecting(connection_index);
        Ok(())
    }

    /// Starts a connect to a peer of an `FI_EP_RDM` endpoint, with a connection request in the
    /// peer's protocol. `claimed_by` is the source of the claim that the connect verifies. Returns
    /// the index of the connection.
    ///
    /// # Errors
    /// Failures that are known at once.
    pub(super) fn start_rdm_connect(
        &mut self,
        peer_index: usize,
        claimed_by: Option<InboundSource>,
    ) -> Result<usize> {
        let peer = &self.peers[peer_index];
        self.last_connection_id = self.last_connection_id.wrapping_add(1);
        let request = ConnectRequest::new(
            peer.protocol(),
            self.local_addr.port(),
            self.instance,
            self.last_connection_id,
        );
        self.start_connect(
            peer_index,
            RequestPayload::Rdm(request, self.vendor_extension),
            (HANDSHAKE_TIMEOUT, claimed_by),
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
        (timeout, claimed_by): (Duration, Option<InboundSource>),
    ) -> Result<usize> {
        let peer = &self.peers[peer_index];
        let mut socket = self
            .network
            .open_socket(self.local_addr, peer.socket_addr, &self.socket_config)
            .map_err(|errno| {
                connect_error(self.local_addr, (&peer.address, peer.socket_addr), errno)
            })?;
        let token = TcpToken::Socket(self.connections.next_index() as u32).pack(self.id);
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
        let connection_index = self.connections.add_outbound(handshake, claimed_by);
        self.arm_timer();
        Ok(connection_index)
    }

    /// Handles a ready socket of an outbound handshake.
    pub(super) fn on_outbound_ready(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        let Some(handshake) = self.connections.outbound_mut(connection_index) else {
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
        let Some(handshake) = self.connections.outbound_mut(connection_index) else {
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
        let Some(handshake) = self.connections.outbound(connection_index) else {
            return;
        };
        let peer = handshake.peer;
        if self.peers[peer].is_verification(connection_index) {
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
                self.connections.take_outbound(connection_index);
                let next = self.peers[peer].on_refused();
                self.after_refusal(ctx, peer, next);
            }
            HandshakeStep::Reply(ConnectReply::RetryWith(protocol), ..) => {
                self.connections.take_outbound(connection_index);
                let next = self.peers[peer].on_other_protocol(protocol);
                self.after_refusal(ctx, peer, next);
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
        let Some(handshake) = self.connections.outbound(connection_index) else {
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
        let Some(handshake) = self.connections.take_outbound(connection_index) else {
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
        if let Some(connection) = self.connections.established_mut(connection_index) {
            connection.expect_simultaneous_request();
        }
        if let Some(source) = counted_source {
            self.count_inbound(ctx, connection_index, source);
        }
        self.peers[peer].set_tx_connection(connection_index);
        self.progress_tx(ctx, peer);
    }

    /// Removes a failed attempt, and fails the operations that waited for it.
    pub(super) fn remove_outbound(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        error: &Error,
    ) {
        let Some(handshake) = self.connections.take_outbound(connection_index) else {
            return;
        };
        if self.peers[handshake.peer].connecting() == Some(connection_index) {
            self.peers[handshake.peer].end_connecting();
            self.fail_sends(ctx, handshake.peer, error);
        }
        self.drop_unused_peer(handshake.peer);
    }

    /// Cancels an attempt to connect that is no longer needed, unless the connection request was
    /// sent.
    pub(super) fn cancel_connect(&mut self, peer: usize) {
        if let Some(connection_index) = self.peers[peer].connecting()
            && let Some(handshake) = self.connections.outbound(connection_index)
            && handshake.is_connecting()
        {
            self.connections.take_outbound(connection_index);
            self.peers[peer].end_connecting();
        }
    }

    /// Does what follows from a refused attempt to connect.
    fn after_refusal(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer_index: usize,
        next: AfterRefusal,
    ) {
        match next {
            AfterRefusal::Idle => {}
            AfterRefusal::ConnectNow => {
                if let Err(error) = self.connect(peer_index) {
                    self.fail_sends(ctx, peer_index, &error);
                }
            }
            AfterRefusal::RetryAt(at) => {
                self.peers.schedule_retry(peer_index, at);
                self.arm_timer();
            }
            AfterRefusal::GiveUp => {
                let error = Error::ConnectionRefused {
                    peer: self.peers[peer_index].address.clone(),
                    reason: RefusalReason::Resources,
                };
                self.fail_sends(ctx, peer_index, &error);
            }
        }
        self.drop_unused_peer(peer_index);
    }
}
