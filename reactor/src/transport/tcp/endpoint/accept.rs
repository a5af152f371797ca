//! Inbound connections: accepted sockets, and connection requests to `FI_EP_RDM` endpoints.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fabric_core::Error;
use fabric_core::event::EventKind;
use fabric_core::tcp::{
    ByteOrder, CmKind, ExistingConnection, Resolution, resolve_simultaneous_connect,
};
use fabric_core::transport::{EndpointContext, EngineContext};

use super::super::handshake::{InboundHandshake, ParsedRequest};
use super::super::linger;
use super::inbound_handshakes::InboundSource;
use super::{EndpointKind, HANDSHAKE_TIMEOUT, TcpEndpoint, TcpToken};

/// Maximum number of connections that an endpoint accepts each time its listener is ready: messages
/// of other peers wait meanwhile.
const MAX_ACCEPTS_PER_EVENT: usize = 8;
/// Maximum number of pending inbound handshakes of one source, and of all.
const MAX_PENDING_HANDSHAKES: (usize, usize) = (64, 256);
/// Maximum numbers of pending inbound handshakes of a passive endpoint, all of whose peers may
/// connect at the same time.
const MAX_PASSIVE_PENDING_HANDSHAKES: (usize, usize) = (256, 512);
/// Delay before an endpoint accepts again after accepting has failed, for example because the
/// process ran out of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Whether a listener is watched, so that its endpoint accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerState {
    Watched,
    /// Not watched, because the queue of connection requests is full. The endpoint accepts again
    /// when the program has taken half of the requests.
    RequestQueueFull,
    /// Not watched, because accepting or watching the listener has failed. The endpoint tries again
    /// at this time.
    RetryAt(Instant),
}

impl ListenerState {
    /// Returns the state after an error.
    fn after_error() -> Self {
        Self::RetryAt(Instant::now() + ACCEPT_RETRY_DELAY)
    }

    /// Returns the time of the next try, for the endpoint's timer.
    pub(super) fn retry_at(self) -> Option<Instant> {
        match self {
            Self::RetryAt(at) => Some(at),
            Self::Watched | Self::RequestQueueFull => None,
        }
    }
}

impl EndpointKind {
    /// Returns the limits of pending inbound handshakes of one source, and of all.
    pub(super) fn max_handshakes(&self) -> (usize, usize) {
        match self {
            Self::Passive(_) => MAX_PASSIVE_PENDING_HANDSHAKES,
            Self::Rdm | Self::Msg(_) => MAX_PENDING_HANDSHAKES,
        }
    }
}

impl TcpEndpoint {
    /// Accepts the connections in the backlog. Accepting pauses while the queue of connection
    /// requests is full, and after an error.
    pub(super) fn accept(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        for _ in 0..MAX_ACCEPTS_PER_EVENT {
            let Some(listener) = &self.listener else {
                return;
            };
            if self.kind.is_request_queue_full() {
                listener.unwatch(&*self.wait_set);
                self.listener_state = ListenerState::RequestQueueFull;
                return;
            }
            match listener.accept(self.local_addr, &self.socket_config) {
                Ok(Some((socket, from))) => {
                    let Ok(peer) = self.network.address(from) else {
                        continue;
                    };
                    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
                    self.on_accepted(ctx, InboundHandshake::new(socket, (from, peer), deadline));
                }
                Ok(None) => return,
                Err(errno) => {
                    // The connections in the backlog keep the listener readable, so a watched
                    // listener would wake the domain again and again.
                    listener.unwatch(&*self.wait_set);
                    self.listener_state = ListenerState::after_error();
                    self.arm_timer();
                    let error = Error::os("accept4", errno.raw_os_error());
                    return ctx.event(EventKind::InboundRefused { error, count: 1 });
                }
            }
        }
    }

    /// Accepts again after a pause. If the listener cannot be watched, the timer retries; the
    /// caller arms the timer.
    pub(super) fn resume_accept(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let Some(listener) = &self.listener else {
            return;
        };
        match listener.watch(&*self.wait_set, TcpToken::Listener.pack(self.id)) {
            Ok(()) => {
                self.listener_state = ListenerState::Watched;
                self.accept(ctx);
            }
            Err(_) => self.listener_state = ListenerState::after_error(),
        }
    }

    /// Adds the inbound handshake of an accepted socket, and evicts another if there are too many.
    fn on_accepted(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        mut handshake: InboundHandshake,
    ) {
        let token = TcpToken::Socket(self.connections.next_index() as u32).pack(self.id);
        if handshake.watch(&self.wait_set, token).is_err() {
            return;
        }
        let (connection_index, evicted) = self.connections.add_inbound(handshake);
        self.on_inbound_ready(ctx, connection_index);
        // The new handshake may have ended, which has made room.
        if self.connections.inbound_mut(connection_index).is_some() {
            self.arm_timer();
            if let Some(evicted) = evicted {
                self.remove_inbound(ctx, evicted, None);
            }
        }
    }

    /// Removes an inbound handshake, and reports the error, if any, as an event.
    pub(super) fn remove_inbound(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        error: Option<Error>,
    ) {
        drop(self.connections.take_inbound(connection_index));
        if let Some(error) = error {
            ctx.event(EventKind::InboundRefused { error, count: 1 });
        }
    }

    /// Handles a ready socket of an inbound handshake: reads the connection request, and accepts or
    /// rejects it.
    pub(super) fn on_inbound_ready(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        if matches!(self.kind, EndpointKind::Passive(_)) {
            return self.read_connreq(ctx, connection_index);
        }
        let Some(handshake) = self.connections.inbound_mut(connection_index) else {
            return;
        };
        let ParsedRequest {
            byte_order,
            request,
            vendor_extension,
            trailing_bytes,
        } = match handshake.poll() {
            Ok(None) => return,
            Ok(Some(parsed)) => parsed,
            Err(error) => return self.remove_inbound(ctx, connection_index, error),
        };
        let Some(handshake) = self.connections.take_inbound(connection_index) else {
            return;
        };
        let listen_addr = SocketAddr::new(handshake.peer_addr.ip(), request.port());
        let Ok(name) = self.network.address(listen_addr) else {
            return;
        };
        let mut peer = self.find_or_add_peer(listen_addr, &name);
        if self.is_closed_by_peer(peer) {
            self.retire_connection(ctx, peer);
            // `retire_connection` may have removed the peer.
            peer = self.find_or_add_peer(listen_addr, &name);
        }
        let resolution = resolve_simultaneous_connect(
            self.local_addr,
            listen_addr,
            &request,
            self.existing_connection(peer),
            self.is_own_connect(peer, handshake.peer_addr),
        );
        // A connection with a peer that the program has inserted does not count towards a limit.
        let mut counted_source = None;
        if matches!(resolution, Resolution::Accept | Resolution::Replace)
            && ctx.fi_addr_of(&name).is_none()
        {
            let source = InboundSource::new(handshake.peer_addr);
            if let Err(error) = self.make_inbound_room(ctx, source) {
                handshake.send_control(CmKind::Reject, None, &request.reject_for_resources());
                linger::close_rejected(handshake.into_socket());
                ctx.event(EventKind::InboundRefused { error, count: 1 });
                return self.drop_unused_peer(peer);
            }
            counted_source = Some(source);
        }
        match resolution {
            Resolution::Accept | Resolution::AcceptLoopback => {}
            Resolution::Replace => self.retire_connection(ctx, peer),
            Resolution::Reject | Resolution::RejectAndVerify => {
                handshake.send_control(CmKind::Reject, None, &request.reject());
                linger::close_rejected(handshake.into_socket());
                if resolution == Resolution::RejectAndVerify {
                    self.verify_connection(peer, request.instance());
                }
                return self.drop_unused_peer(peer);
            }
        }
        // Accepts the request. A libfabric peer gets a reply without the vendor extension.
        self.last_connection_id = self.last_connection_id.wrapping_add(1);
        let (accepted, accepted_protocol) =
            request.accept(self.instance, self.last_connection_id, vendor_extension);
        let reply_extension = request
            .vendor_extension(self.vendor_extension)
            .filter(|_| vendor_extension.is_some());
        if !handshake.send_control(CmKind::Accept, reply_extension, &accepted) {
            return self.on_accept_failed(ctx, listen_addr);
        }
        let negotiated = (accepted_protocol, ByteOrder::NATIVE.negotiate(byte_order));
        let peer = self.find_or_add_peer(listen_addr, &name);
        let peer_and_instance = (peer, Some(request.instance()));
        let connection = self.add_connection(
            ctx,
            peer_and_instance,
            handshake.into_socket(),
            negotiated,
            trailing_bytes,
        );
        if let Some(source) = counted_source {
            self.count_inbound(ctx, connection, source);
        }
        if resolution != Resolution::AcceptLoopback {
            // Later connects to this peer use the protocol of its request.
            self.peers[peer].set_protocol(request.protocol());
            self.peers[peer].set_tx_connection(connection);
            self.progress_tx(ctx, peer);
        }
    }

    /// Checks that one more connection of a source may be established. At a limit, connections that
    /// their peers have closed or replaced are closed, and their messages, which wait for a receive
    /// or for the budget, are discarded.
    ///
    /// # Errors
    /// As `InboundConnections::check_room`; the refusal is
    /// counted.
    pub(super) fn make_inbound_room(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        source: InboundSource,
    ) -> Result<(), Error> {
        if self.connections.check_room(source).is_ok() {
            return Ok(());
        }
        for index in self.connections.next_to_check(source) {
            if let Some(connection) = self.connections.established(index)
                && (self.peers[connection.peer_index].is_replaced(index)
                    || connection.has_held_messages() && connection.is_closed_by_peer())
            {
                self.close_and_discard_held(ctx, index);
            }
        }
        let room = self.connections.check_room(source);
        if room.is_err() {
            self.connections.count_refused();
        }
        room
    }

    /// Counts an established connection towards the limits of its source, and sets the source of
    /// the peer's messages.
    pub(super) fn count_inbound(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
        source: InboundSource,
    ) {
        self.connections.count_inbound(connection_index, source);
        if let Some(connection) = self.connections.established(connection_index) {
            ctx.set_budget_group(connection.peer.key(), source.into());
        }
    }

    /// Returns the connection with a peer that sends use, or the attempt to connect.
    fn existing_connection(&self, peer: usize) -> ExistingConnection {
        let peer = &self.peers[peer];
        let connecting = peer.connecting();
        match connecting.and_then(|connecting| self.connections.outbound(connecting)) {
            Some(handshake) => ExistingConnection::Connecting(handshake.protocol()),
            None if peer.tx_connection().is_some() => ExistingConnection::Connected,
            None => ExistingConnection::None,
        }
    }

    /// Returns whether a connection that was accepted from this address is this endpoint's own
    /// attempt to connect to itself.
    fn is_own_connect(&self, peer: usize, from: SocketAddr) -> bool {
        let connecting = self.peers[peer].connecting();
        let handshake = connecting.and_then(|connecting| self.connections.outbound(connecting));
        handshake.is_some_and(|handshake| handshake.connects_from(from))
    }

    /// Handles that the accept could not be sent: connects if operations wait for the peer, because
    /// this side's own attempt may have been replaced.
    fn on_accept_failed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        listen_addr: SocketAddr,
    ) {
        let Some(peer_index) = self.peers.at(listen_addr) else {
            return;
        };
        let peer = &self.peers[peer_index];
        if !peer.tx_queue.is_empty()
            && peer.must_connect()
            && let Err(error) = self.connect(peer_index)
        {
            self.fail_sends(ctx, peer_index, &error);
        }
        self.drop_unused_peer(peer_index);
    }
}
