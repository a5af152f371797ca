//! An endpoint over TCP: a listener, one connection with each peer, and a receive queue. A passive
//! endpoint has no peers; a connected endpoint has one, and no listener.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the endpoint, its passes and its end |
//! | `sending`, `receiving` | sends and receives |
//! | `connect`, `accept` | outbound and inbound handshakes |
//! | `connections` | established connections: added, closed |
//! | `passive`, `connected` | passive endpoints; connected endpoints (`FI_EP_MSG`) |
//! | `timer` | deadlines |

mod accept;
mod connect;
mod connected;
mod connections;
mod passive;
mod receiving;
mod sending;
mod timer;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_core::flags::Caps;
use fabric_core::rx::RxQueue;
use fabric_core::stats::TransportStats;
use fabric_core::tcp::{VendorExtension, WireProtocol};
use fabric_core::transport::{EngineContext, EpId, WaitSet};
use fabric_core::{Address, Error, FiAddr, Result, Scheme};
use slab::Slab;

use super::connection::{QueuedTxOp, TcpConnection};
use super::handshake::{InboundHandshake, OutboundHandshake};
use super::linger;
use super::socket::TcpListener;
use crate::transport::net::SocketConfig;
use crate::transport::timer::Timer;
use crate::transport::token;
use crate::uring::{CompletionKind, ReleasedBuffer, SharedUring, UringCompletion, ZeroCopyOutcome};

use connected::MsgEndpointState;
use passive::ConnReqQueue;

/// Bytes of unexpected messages that an endpoint buffers before it holds messages unread.
pub(super) const UNEXPECTED_BYTES: usize = 16 << 20;
/// Maximum bytes of one read.
const SCRATCH_LEN: usize = 128 << 10;
/// Time limit for a peer to send its request, to reply, and to accept after refusals because both
/// sides connect.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a descriptor of an endpoint is for, packed into the token with which it is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpToken {
    Listener,
    Timer,
    Socket(u32),
    /// The io_uring instance of the domain, regardless of the endpoint.
    Uring,
}

impl TcpToken {
    pub(super) fn pack(self, ep: EpId) -> u64 {
        match self {
            Self::Listener => token::pack(0, ep, 0),
            Self::Timer => token::pack(1, ep, 0),
            Self::Socket(id) => token::pack(2, ep, id),
            Self::Uring => token::pack(3, ep, 0),
        }
    }

    pub(crate) fn unpack(token: u64) -> (EpId, Self) {
        let (kind, ep, id) = token::unpack(token);
        let what = match kind {
            0 => Self::Listener,
            1 => Self::Timer,
            3 => Self::Uring,
            _ => Self::Socket(id),
        };
        (ep, what)
    }
}

/// A connection in one of its phases.
enum ConnectionState {
    /// Accepted; the peer's connection request has not arrived.
    Inbound(InboundHandshake),
    /// This side connects, and waits for the reply.
    Outbound(OutboundHandshake),
    Established(Box<TcpConnection>),
}

/// A peer to which this endpoint is connected, or has something to send.
#[derive(Debug)]
struct TcpPeer {
    address: Address,
    socket_addr: SocketAddr,
    /// The peer's address handle, if something was sent to it.
    fi_addr: Option<FiAddr>,
    /// Index of the connection that sends use.
    connection: Option<usize>,
    /// Indices of all established connections with the peer.
    established: Vec<usize>,
    tx_queue: VecDeque<QueuedTxOp>,
    /// When to retry, and the last delay, while the peer refuses because both sides connect.
    retry: Option<(Instant, Duration)>,
    /// When to stop retrying.
    retry_deadline: Option<Instant>,
    /// The protocol of the peer, as far as it is known.
    protocol: WireProtocol,
    /// Whether the peer has already asked for the other protocol.
    switched_protocol: bool,
}

impl TcpPeer {
    /// Returns a peer without connection.
    fn new(address: Address, socket_addr: SocketAddr, protocol: WireProtocol) -> Self {
        Self {
            address,
            socket_addr,
            fi_addr: None,
            connection: None,
            established: Vec::new(),
            tx_queue: VecDeque::new(),
            retry: None,
            retry_deadline: None,
            protocol,
            switched_protocol: false,
        }
    }
}

/// The type of an endpoint.
enum EndpointKind {
    /// `FI_EP_RDM`: connects to the peers it sends to, and accepts inbound connections.
    Rdm,
    /// A passive endpoint (`fi_passive_ep`): queues connection requests.
    Passive(ConnReqQueue),
    /// `FI_EP_MSG`: connected with one peer.
    Msg(MsgEndpointState),
}

/// An endpoint over TCP.
pub(crate) struct TcpEndpoint {
    id: EpId,
    name: Address,
    local_addr: SocketAddr,
    socket_config: SocketConfig,
    /// A random number that distinguishes incarnations of an endpoint; never 0.
    instance: u32,
    kind: EndpointKind,
    listener: Option<TcpListener>,
    wait_set: Arc<dyn WaitSet>,
    connections: Slab<ConnectionState>,
    peers: Slab<TcpPeer>,
    peer_by_socket_addr: HashMap<SocketAddr, usize>,
    /// Position in `peers`, by the index of the address handle.
    peer_by_fi_addr: Vec<Option<usize>>,
    /// Connections that every pass polls.
    active_connections: Vec<usize>,
    /// Inbound handshakes, the oldest first.
    inbound: VecDeque<usize>,
    /// When to accept again after the process ran out of descriptors.
    accept_retry_at: Option<Instant>,
    next_peer_key: u32,
    /// The connection id of the last request or accept, which RXM packets quote.
    next_connection_id: u32,
    /// The protocol of the first request to a peer.
    protocol: WireProtocol,
    scratch: Box<[u8]>,
    /// The timer of all deadlines; `None` if the endpoint has none.
    timer: Option<Timer>,
    /// Whether passes poll this endpoint.
    pub(super) is_active: bool,
    /// The io_uring instance, if that is the backend.
    uring: Option<SharedUring>,
    /// Whether peers may access memory of the domain.
    is_rma_target: bool,
    /// Whether the endpoint wants an event for each access (`FI_RMA_EVENT`).
    rma_events: bool,
    /// The vendor extension of this endpoint's control messages, where the protocol has room for
    /// it.
    vendor_extension: VendorExtension,
    /// Sends that the hardware took from their buffer.
    zero_copy: u64,
    /// Zero-copy sends that the kernel has copied.
    zero_copy_fallbacks: u64,
}

impl TcpEndpoint {
    pub(crate) fn open_rdm(
        id: EpId,
        (listen_addr, config): (SocketAddr, SocketConfig),
        wait_set: Arc<dyn WaitSet>,
        uring: Option<SharedUring>,
        protocol: WireProtocol,
    ) -> Result<Self> {
        let kind = EndpointKind::Rdm;
        let mut endpoint = Self::new(id, (listen_addr, config), kind, (wait_set, uring))?;
        endpoint.protocol = protocol;
        endpoint.scratch = vec![0; SCRATCH_LEN].into();
        endpoint.start_listening(listen_addr)?;
        Ok(endpoint)
    }

    /// Returns an endpoint without listener and connections.
    fn new(
        id: EpId,
        (listen_addr, config): (SocketAddr, SocketConfig),
        kind: EndpointKind,
        (wait_set, uring): (Arc<dyn WaitSet>, Option<SharedUring>),
    ) -> Result<Self> {
        Ok(Self {
            id,
            name: Address::from_socket_addr(Scheme::Tcp, listen_addr)?,
            local_addr: listen_addr,
            socket_config: config,
            instance: (RandomState::new().hash_one(id.0) as u32 >> 1).max(1),
            kind,
            listener: None,
            wait_set,
            connections: Slab::new(),
            peers: Slab::new(),
            peer_by_socket_addr: HashMap::new(),
            peer_by_fi_addr: Vec::new(),
            active_connections: Vec::new(),
            inbound: VecDeque::new(),
            accept_retry_at: None,
            next_peer_key: 0,
            next_connection_id: 0,
            protocol: WireProtocol::Native,
            scratch: Box::default(),
            timer: None,
            is_active: false,
            uring,
            is_rma_target: false,
            rma_events: false,
            vendor_extension: VendorExtension::from_caps(Caps::empty()),
            zero_copy: 0,
            zero_copy_fallbacks: 0,
        })
    }

    /// Sets the capabilities that concern one-sided operations.
    pub(crate) fn set_caps(&mut self, caps: Caps) {
        (self.is_rma_target, self.rma_events) =
            (caps.is_rma_target(), caps.contains(Caps::RMA_EVENT));
        self.vendor_extension = VendorExtension::from_caps(caps);
    }

    /// Starts to listen, and sets the endpoint's address.
    fn start_listening(&mut self, listen_addr: SocketAddr) -> Result<()> {
        let (listener, listen_addr) = TcpListener::open(listen_addr, &self.socket_config)?;
        (self.local_addr, self.name) = (
            listen_addr,
            Address::from_socket_addr(Scheme::Tcp, listen_addr)?,
        );
        listener.watch(&*self.wait_set, TcpToken::Listener.pack(self.id))?;
        self.listener = Some(listener);
        self.open_timer()
    }

    /// Opens the timer early: later the process may be out of descriptors.
    fn open_timer(&mut self) -> Result<()> {
        let timer = Timer::new()?;
        timer.watch(&*self.wait_set, TcpToken::Timer.pack(self.id))?;
        self.timer = Some(timer);
        Ok(())
    }

    fn close_timer(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.unwatch(&*self.wait_set);
        }
    }

    pub(crate) fn id(&self) -> EpId {
        self.id
    }

    pub(crate) fn name(&self) -> &Address {
        &self.name
    }

    fn established(&self) -> impl Iterator<Item = &TcpConnection> {
        self.connections.iter().filter_map(|(_, state)| {
            if let ConnectionState::Established(connection) = state {
                Some(&**connection)
            } else {
                None
            }
        })
    }

    pub(crate) fn progress(&mut self, engine: &mut impl EngineContext) -> bool {
        let mut moved = engine.with_rx(self.id, RxQueue::drain_unexpected);
        self.fail_recvs_if_disconnected(engine);
        moved |= engine.with_rx(self.id, |rx, engine| {
            !rx.is_shared() && rx.has_work() && rx.copy_next_chunk(engine)
        });
        let mut index = 0;
        while let Some(&connection_index) = self.active_connections.get(index) {
            let Some(ConnectionState::Established(connection)) =
                self.connections.get_mut(connection_index)
            else {
                self.active_connections.swap_remove(index);
                continue;
            };
            let peer = connection.peer;
            moved |= engine.with_rx(self.id, |rx, engine| {
                connection.progress_rx(&mut self.scratch, rx, engine)
            });
            // An endpoint that sends to itself has a second connection, for what it receives.
            let mut no_sends = VecDeque::new();
            let is_tx_connection = self.peers[peer].connection == Some(connection_index);
            let queue = if is_tx_connection {
                &mut self.peers[peer].tx_queue
            } else {
                &mut no_sends
            };
            moved |= connection.progress_tx(queue, engine);
            if connection.awaits_rendezvous() && connection.has_held_messages() {
                self.fail_rendezvous_recvs(engine, connection_index);
                moved = true;
            } else if connection.end_reason().is_some() && !connection.has_held_messages() {
                self.close_connection(engine, connection_index);
                moved = true;
            } else if connection.write_closed() && is_tx_connection {
                // Received data may still be taken; nothing can be sent there any more.
                self.on_write_closed(engine, connection_index);
                moved = true;
                index += 1;
            } else if connection.needs_progress() || !self.peers[peer].tx_queue.is_empty() {
                index += 1;
            } else if connection.arm_uring_recv() {
                connection.is_active = false;
                self.active_connections.swap_remove(index);
            } else {
                index += 1;
            }
        }
        moved
    }

    /// Returns whether passes may skip this endpoint until something happens. Connected and passive
    /// endpoints may be many.
    pub(crate) fn is_idle(&self, engine: &mut impl EngineContext) -> bool {
        let is_busy = |rx: &mut RxQueue, _: &mut _| !rx.is_shared() && rx.is_busy();
        self.active_connections.is_empty()
            && !matches!(self.kind, EndpointKind::Rdm)
            && !engine.with_rx(self.id, is_busy)
    }

    pub(crate) fn ready(&mut self, engine: &mut impl EngineContext, token: TcpToken) {
        match token {
            TcpToken::Listener => self.accept(engine),
            TcpToken::Timer => self.on_timer(engine),
            TcpToken::Socket(connection_index) => {
                self.socket_ready(engine, connection_index as usize)
            }
            TcpToken::Uring => {}
        }
    }

    fn socket_ready(&mut self, engine: &mut impl EngineContext, connection_index: usize) {
        match self.connections.get_mut(connection_index) {
            Some(ConnectionState::Established(connection)) => {
                connection.reset_idle();
                connection.clear_write_blocked();
                self.mark_active(connection_index);
                self.progress(engine);
            }
            Some(ConnectionState::Outbound(_)) => self.on_outbound_ready(engine, connection_index),
            Some(ConnectionState::Inbound(_)) => self.on_inbound_ready(engine, connection_index),
            None => {}
        }
    }

    /// Dispatches a completion of a connection, or of an attempt to connect.
    pub(crate) fn on_uring_completion(
        &mut self,
        connection_index: usize,
        completion: UringCompletion,
        engine: &mut impl EngineContext,
    ) {
        if let CompletionKind::BufferReleased(ReleasedBuffer {
            zero_copy: Some(outcome),
            ..
        }) = &completion.kind
        {
            self.zero_copy += u64::from(*outcome == ZeroCopyOutcome::ZeroCopy);
            self.zero_copy_fallbacks += u64::from(*outcome == ZeroCopyOutcome::Copied);
        }
        if let CompletionKind::Timed(outcome) = completion.kind {
            return self.on_uring_connect(engine, connection_index, (completion.op_id, outcome));
        }
        let Some(ConnectionState::Established(connection)) =
            self.connections.get_mut(connection_index)
        else {
            return;
        };
        let peer = &mut self.peers[connection.peer];
        let mut no_sends = VecDeque::new();
        connection.on_uring_completion(
            completion,
            if peer.connection == Some(connection_index) {
                &mut peer.tx_queue
            } else {
                &mut no_sends
            },
            engine,
        );
        connection.reset_idle();
        self.mark_active(connection_index);
    }

    pub(crate) fn close(mut self, engine: &mut impl EngineContext) {
        let peers: Vec<_> = self
            .peers
            .iter()
            .map(|(peer_index, _)| peer_index)
            .collect();
        for peer_index in peers {
            self.fail_sends(engine, peer_index, &Error::Canceled);
        }
        let connections: Vec<_> = self
            .connections
            .iter()
            .map(|(connection_index, _)| connection_index)
            .collect();
        for connection_index in connections {
            self.flush_or_fail_unwritten(engine, connection_index, &Error::Canceled);
        }
        for (_, state) in &mut self.connections {
            if let ConnectionState::Established(connection) = state {
                connection.fail_requests(engine, &Error::Canceled);
                engine.peer_disconnected(self.id, connection.addr_at_connect);
            }
        }
    }

    /// Returns whether anything waits for memory that its owner may be using.
    pub(crate) fn awaits_region(&self) -> bool {
        self.established()
            .any(|connection| connection.has_held_messages() || connection.has_pending_responses())
    }

    pub(crate) fn arm(&mut self, engine: &mut impl EngineContext) -> bool {
        // Epoll reports ready sockets, but no event reports bytes that could be sent now.
        let is_blocked = |peer: &TcpPeer| match peer
            .connection
            .and_then(|connection_index| self.connections.get(connection_index))
        {
            Some(ConnectionState::Established(connection)) => {
                peer.tx_queue.is_empty()
                    || connection.is_write_blocked()
                    || connection.is_uring_sending()
                    || connection.is_response_stalled()
                    || connection.awaits_atomic_responses(&peer.tx_queue)
            }
            _ => true,
        };
        !engine.with_rx(self.id, |rx, _| rx.has_work())
            && self
                .established()
                .all(|connection| connection.is_flushed() && !connection.has_local_work())
            && self.peers.iter().all(|(_, peer)| is_blocked(peer))
            && self.arm_uring_recv()
    }

    /// Prepares every connection for sleep. False when there is input already.
    fn arm_uring_recv(&mut self) -> bool {
        if self.uring.is_none() {
            return true;
        }
        let connections = self.connections.iter_mut();
        connections.fold(true, |quiet, (_, state)| match state {
            ConnectionState::Established(connection) => connection.arm_uring_recv() && quiet,
            _ => quiet,
        })
    }

    pub(crate) fn stats(&self) -> TransportStats {
        let (zero_copy, zero_copy_fallbacks) = (self.zero_copy, self.zero_copy_fallbacks);
        TransportStats {
            peers: self.established().count(),
            zero_copy,
            zero_copy_fallbacks,
            ..TransportStats::default()
        }
    }

    pub(crate) fn describe(&self) -> String {
        if let EndpointKind::Passive(requests) = &self.kind {
            return format!("{} ({} requests)", self.name, requests.len());
        }
        let connections = self.established().count();
        format!("{} ({connections} connections)", self.name)
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.unwatch(&*self.wait_set);
        }
        self.close_timer();
        for state in self.connections.drain() {
            if let ConnectionState::Established(connection) = state {
                let (socket, unsent) = connection.into_socket();
                linger::close(socket, &unsent);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_for_all_endpoints() {
        for ep in [0, 1, 1 << 28, u32::MAX].map(EpId) {
            for token in [
                TcpToken::Listener,
                TcpToken::Timer,
                TcpToken::Socket(0),
                TcpToken::Socket((1 << 30) - 1),
                TcpToken::Uring,
            ] {
                assert_eq!(TcpToken::unpack(token.pack(ep)), (ep, token));
            }
        }
    }
}
