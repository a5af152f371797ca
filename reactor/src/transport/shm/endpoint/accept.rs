//! Accepting connections from peers, and their handshakes.

use std::os::fd::AsFd;
use std::time::Duration;

use fabric_core::event::EventKind;
use fabric_core::matching::PeerKey;
use fabric_core::transport::EngineContext;
use fabric_core::{Error, RefusalReason};

use super::super::control::{self, ControlMessage};
use super::super::rx_connection::{HandshakeOutcome, PendingHandshake};
use super::super::{closer, socket};
use super::{ShmEndpoint, ShmToken};

/// Connections accepted in one poll.
const ACCEPTS_PER_POLL: usize = 64;
/// Pending handshakes of an endpoint. At this limit further connections stay in the backlog until a
/// handshake ends, or until the oldest one has been pending for [`HANDSHAKE_TIMEOUT`] and is
/// evicted.
const MAX_PENDING_HANDSHAKES: usize = 64;
/// Time that a peer has for its hello when others wait for its place.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);

impl ShmEndpoint {
    /// Accepts waiting connections, up to [`ACCEPTS_PER_POLL`].
    ///
    /// A handshake takes a round trip, so peers that connect at the same time are pending together.
    /// None of them is evicted before it had time to answer. Meanwhile the listener stays ready and
    /// keeps the domain awake.
    pub(super) fn accept(&mut self, engine: &mut impl EngineContext) {
        self.reserve_fd = self.reserve_fd.take().or_else(|| socket::reserve_fd().ok());
        for _ in 0..ACCEPTS_PER_POLL {
            if closer::register_if_full(&self.wait_set) {
                return self.stop_accepting();
            }
            if !self
                .rx_connections
                .make_handshake_room(MAX_PENDING_HANDSHAKES, HANDSHAKE_TIMEOUT)
            {
                return;
            }
            let Some(listener) = &self.listener else {
                return;
            };
            match listener.accept() {
                Ok(Some(mut socket)) => {
                    let connection_index = self.rx_connections.vacant_key();
                    let token = ShmToken::Rx(connection_index as u32).pack(self.id);
                    if socket.watch(&self.wait_set, token).is_ok() {
                        self.rx_connections
                            .insert_handshake(PendingHandshake::new(socket));
                        self.on_rx_ready(engine, connection_index);
                    }
                }
                Ok(None) => return,
                Err(errno) => {
                    // Most likely this process has no descriptor left. The connection must not stay
                    // in the backlog: it would keep the listener ready, and the domain awake.
                    self.reserve_fd = None;
                    if let Ok(Some(socket)) = listener.accept() {
                        let error = Error::os("accept4", errno.raw_os_error());
                        engine.event(self.id, EventKind::InboundRefused { error });
                        control::send_control(
                            &socket,
                            ControlMessage::Reject(RefusalReason::Resources),
                        );
                    }
                    self.reserve_fd = socket::reserve_fd().ok();
                    return;
                }
            }
        }
    }

    /// Stops accepting: connections wait in the kernel's backlog until descriptors can be closed.
    #[cold]
    fn stop_accepting(&mut self) {
        if let Some(listener) = &self.listener {
            self.wait_set.unwatch(listener.as_fd());
            self.resume_due = true;
        }
    }

    /// Resumes accepting if the closing threads have room.
    #[cold]
    pub(super) fn accept_again(&mut self, engine: &mut impl EngineContext) {
        let token = ShmToken::Listener.pack(self.id);
        let Some(listener) = &self.listener else {
            return;
        };
        // The queue may be full again: the endpoint registers again then.
        if closer::register_if_full(&self.wait_set)
            || self.wait_set.watch(listener.as_fd(), token).is_err()
        {
            return;
        }
        self.resume_due = false;
        self.accept(engine);
    }

    /// Handles a readable socket of an incoming connection or pending handshake.
    pub(super) fn on_rx_ready(&mut self, engine: &mut impl EngineContext, connection_index: usize) {
        if let Some(handshake) = self.rx_connections.take_handshake(connection_index) {
            return self.poll_handshake(engine, handshake);
        }
        self.rx_connections.activate(connection_index);
        if let Some(reason) = self
            .rx_connections
            .get_mut(connection_index)
            .and_then(|peer| peer.on_readable(engine))
        {
            self.on_rx_ended(engine, connection_index, reason);
            self.progress_rx(engine);
        }
    }

    /// Advances a handshake, and adds the connection if it is established.
    fn poll_handshake(&mut self, engine: &mut impl EngineContext, handshake: PendingHandshake) {
        self.last_peer_key += 1;
        match handshake.poll_handshake(PeerKey(self.last_peer_key), self.local.clone()) {
            HandshakeOutcome::Pending(handshake) => self.rx_connections.insert_handshake(handshake),
            HandshakeOutcome::Established(mut peer) => {
                let incarnation = Some(peer.identity.into());
                peer.initial_addr = engine.peer_connected(self.id, &peer.peer_address, incarnation);
                peer.source = peer.initial_addr;
                let (name, source) = (peer.peer_address.clone(), peer.source);
                peer.peer_key = self.rx.peer_connected(engine, peer.peer_key, &name);
                self.rx_connections.insert_established(peer);
                engine.event(self.id, EventKind::PeerConnected { peer: name, source });
                self.progress_rx(engine);
            }
            HandshakeOutcome::Rejected(error) => {
                engine.event(self.id, EventKind::InboundRefused { error })
            }
            HandshakeOutcome::Disconnected => {}
        }
    }
}
