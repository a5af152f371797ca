//! An endpoint over TCP: a listener, one connection with each peer, and a receive queue. A passive
//! endpoint has no peers; a connected endpoint has one, and no listener.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the endpoint |
//! | `calls` | the calls of the engine: sends, passes, changes of addresses |
//! | `connections` | the connections in all phases: active ones, held messages, deadlines |
//! | `peer` | a peer: the connection that sends use, or the way to one |
//! | `peer_table` | the peers, by address and by handle |
//! | `sending` | transmit queues of peers |
//! | `connect`, `accept` | outbound and inbound handshakes |
//! | `inbound_handshakes` | pending inbound handshakes, counted by source |
//! | `established` | established connections: added, closed |
//! | `verify` | established connections whose peer's address a new request claims |
//! | `replaced` | earlier connections with a peer that has a new one |
//! | `passive`, `connected` | passive endpoints; connected endpoints (`FI_EP_MSG`) |
//! | `timer`, `deadlines` | deadlines |

mod accept;
mod calls;
mod connect;
mod connected;
mod connections;
mod deadlines;
mod established;
#[cfg(all(test, not(loom)))]
mod held_tests;
mod inbound_handshakes;
mod passive;
mod peer;
mod peer_table;
mod replaced;
mod sending;
mod timer;
mod verify;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fabric_core::flags::Caps;
use fabric_core::info::{Info, Protocol};
use fabric_core::tcp::{VendorExtension, WireProtocol};
use fabric_core::transport::{Batching, EndpointContext, EngineContext, EpId, WaitSet, WaitToken};
use fabric_core::{Address, Result};

use super::connection::TcpConnection;
use super::io_backend::EndpointUring;
use super::linger;
use super::network::{Listener, Network};
use crate::sys::uring::{CompletionKind, ReleasedBuffer, UringCompletion, ZeroCopyOutcome};
use crate::transport::inbound_limits::InboundLimits;
use crate::transport::net::SocketConfig;

use accept::ListenerState;
use connected::MsgEndpointState;
use connections::{ConnectionState, Connections};
pub(super) use inbound_handshakes::InboundSource;
use passive::ConnReqQueue;
use peer_table::PeerTable;
use timer::DeadlineTimer;

/// Bytes of unexpected messages that an endpoint buffers before it holds messages unread.
pub(crate) const UNEXPECTED_BYTES: usize = 16 << 20;
/// Maximum bytes of one read.
const SCRATCH_LEN: usize = 128 << 10;
/// Time limit for a peer to send its request, to reply, and to accept after refusals because both
/// sides connect.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The use of a watched descriptor. The domain's epoll set reports a ready descriptor with the
/// packed token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpToken {
    Listener,
    Timer,
    /// The connection with this index, in any phase.
    Socket(u32),
}

impl TcpToken {
    pub(super) fn pack(self, ep: EpId) -> u64 {
        let (kind, id) = match self {
            Self::Listener => (0, 0),
            Self::Timer => (1, 0),
            Self::Socket(index) => (2, index),
        };
        WaitToken { kind, ep, id }.pack()
    }
}

impl From<WaitToken> for TcpToken {
    fn from(token: WaitToken) -> Self {
        match token.kind {
            0 => Self::Listener,
            1 => Self::Timer,
            _ => Self::Socket(token.id),
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

/// What an endpoint gets from its domain.
pub(crate) struct EndpointResources {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) wait_set: Arc<dyn WaitSet>,
    pub(crate) socket_config: SocketConfig,
    /// The io_uring instance, if that is the backend.
    pub(crate) uring: Option<EndpointUring>,
    /// When connections write messages that are posted one by one.
    pub(crate) batching: Batching,
}

/// An endpoint over TCP.
pub(crate) struct TcpEndpoint {
    id: EpId,
    network: Arc<dyn Network>,
    name: Address,
    local_addr: SocketAddr,
    socket_config: SocketConfig,
    /// A random number that distinguishes this endpoint from earlier ones at its address; never 0.
    instance: u32,
    kind: EndpointKind,
    listener: Option<Box<dyn Listener>>,
    wait_set: Arc<dyn WaitSet>,
    connections: Connections,
    peers: PeerTable,
    listener_state: ListenerState,
    /// The connection id in the last request or accept of this side, which the peer's RXM packets
    /// carry.
    last_connection_id: u32,
    /// The protocol of the first request to a peer.
    protocol: WireProtocol,
    timer: DeadlineTimer,
    /// The io_uring instance, if that is the backend.
    uring: Option<EndpointUring>,
    batching: Batching,
    /// Whether peers may access memory of the domain.
    is_rma_target: bool,
    /// Whether the endpoint wants an event for each access (`FI_RMA_EVENT`).
    rma_events: bool,
    /// The vendor extension of this endpoint's control messages, where the protocol has room for
    /// it.
    vendor_extension: VendorExtension,
    /// Number of sends that the kernel made in place.
    zero_copy: u64,
    /// Number of zero-copy sends whose bytes the kernel has copied.
    zero_copy_fallbacks: u64,
}

impl TcpEndpoint {
    /// Opens an `FI_EP_RDM` endpoint, which sends its first request to a peer in the protocol of
    /// the info.
    pub(crate) fn open_rdm(
        id: EpId,
        (info, at): (&Info, Option<&Address>),
        resources: EndpointResources,
    ) -> Result<Self> {
        let mut endpoint = Self::listening(id, EndpointKind::Rdm, (info, at), resources)?;
        if info.ep.protocol == Some(Protocol::Rxm) {
            endpoint.protocol = WireProtocol::Rxm;
        }
        endpoint.connections.set_read_len(SCRATCH_LEN);
        endpoint.set_caps(info.caps);
        Ok(endpoint)
    }

    /// Returns an endpoint that listens.
    fn listening(
        id: EpId,
        kind: EndpointKind,
        (info, at): (&Info, Option<&Address>),
        resources: EndpointResources,
    ) -> Result<Self> {
        let network = resources.network.clone();
        let (listener, name) = network.listen(info, at, &resources.socket_config)?;
        let local_addr = network.socket_addr(&name)?;
        let mut endpoint = Self::new(id, (local_addr, name), kind, resources);
        listener.watch(&*endpoint.wait_set, TcpToken::Listener.pack(id))?;
        endpoint.listener = Some(listener);
        endpoint.open_timer()?;
        Ok(endpoint)
    }

    /// Returns an endpoint without listener, timer and connections.
    fn new(
        id: EpId,
        (local_addr, name): (SocketAddr, Address),
        kind: EndpointKind,
        EndpointResources {
            network,
            wait_set,
            socket_config,
            uring,
            batching,
        }: EndpointResources,
    ) -> Self {
        let max_handshakes = kind.max_handshakes();
        let of_one_source = "inbound connections from one address";
        let limits = InboundLimits::new(&socket_config.options, of_one_source, 1);
        Self {
            id,
            network,
            name,
            local_addr,
            socket_config,
            instance: (RandomState::new().hash_one(id.0) as u32 >> 1).max(1),
            kind,
            listener: None,
            wait_set,
            connections: Connections::new(limits, max_handshakes),
            peers: PeerTable::default(),
            listener_state: ListenerState::Watched,
            last_connection_id: 0,
            protocol: WireProtocol::Native,
            timer: DeadlineTimer::default(),
            uring,
            batching,
            is_rma_target: false,
            rma_events: false,
            vendor_extension: VendorExtension::from_caps(Caps::empty()),
            zero_copy: 0,
            zero_copy_fallbacks: 0,
        }
    }

    /// Sets what the endpoint's capabilities allow peers: remote access, and the features of the
    /// vendor extension.
    pub(crate) fn set_caps(&mut self, caps: Caps) {
        (self.is_rma_target, self.rma_events) =
            (caps.is_rma_target(), caps.contains(Caps::RMA_EVENT));
        self.vendor_extension = VendorExtension::from_caps(caps);
    }

    /// Opens the timer before there is a deadline: later the process may be out of descriptors.
    fn open_timer(&mut self) -> Result<()> {
        let token = TcpToken::Timer.pack(self.id);
        self.timer.open(&self.wait_set, token)
    }

    /// Returns the endpoint's address (`fi_getname`).
    pub(crate) fn name(&self) -> &Address {
        &self.name
    }

    /// Returns the established connection with a peer that sends use.
    #[inline]
    fn tx_connection_mut(&mut self, peer_index: usize) -> Option<&mut TcpConnection> {
        let connection = self.peers[peer_index].tx_connection()?;
        self.connections.established_mut(connection)
    }

    /// Handles a ready socket. The pass that follows polls an established connection.
    fn socket_ready(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        match self.connections.get(connection_index) {
            Some(ConnectionState::Established(_)) => {
                if let Some(connection) = self.connections.established_mut(connection_index) {
                    connection.reset_idle();
                    connection.clear_write_blocked();
                    connection.check_peer_closed();
                    self.connections.mark_active(connection_index);
                }
            }
            Some(ConnectionState::Outbound(_)) => self.on_outbound_ready(ctx, connection_index),
            Some(ConnectionState::Inbound(_)) => self.on_inbound_ready(ctx, connection_index),
            None => {}
        }
    }

    /// Handles the completions of io_uring for this endpoint. Returns whether there was any.
    fn handle_uring_completions(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let mut any = false;
        while let Some(completion) = self.uring.as_ref().and_then(EndpointUring::next_completion) {
            any = true;
            if let TcpToken::Socket(index) = WaitToken::unpack(completion.owner).into() {
                self.on_uring_completion(index as usize, completion, ctx);
            }
        }
        any
    }

    /// Submits what this endpoint has queued in io_uring: the next pass, which would submit it, may
    /// be much later.
    pub(super) fn submit(&self) {
        if let Some(uring) = &self.uring {
            uring.submit();
        }
    }

    /// Handles a completion of io_uring for a connection, or for an attempt to connect.
    fn on_uring_completion(
        &mut self,
        connection_index: usize,
        completion: UringCompletion,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
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
            return self.on_uring_connect(ctx, connection_index, (completion.op_id, outcome));
        }
        let Some(connection) = self.connections.established_mut(connection_index) else {
            return;
        };
        let peer = &mut self.peers[connection.peer_index];
        let mut no_sends = VecDeque::new();
        connection.on_uring_completion(
            completion,
            if peer.tx_connection() == Some(connection_index) {
                &mut peer.tx_queue
            } else {
                &mut no_sends
            },
            ctx,
        );
        connection.reset_idle();
        self.connections.mark_active(connection_index);
    }

    /// Prepares the active connections for sleep. The others were prepared when they ceased to be
    /// active. Returns false when there is input already.
    fn arm_uring_recv(&mut self) -> bool {
        let mut all_armed = true;
        let mut position = 0;
        while self.uring.is_some()
            && let Some(connection_index) = self.connections.active_at(position)
        {
            if let Some(connection) = self.connections.established_mut(connection_index) {
                all_armed &= connection.arm_uring_recv();
            }
            position += 1;
        }
        all_armed
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.unwatch(&*self.wait_set);
        }
        self.timer.close();
        for connection in self.connections.drain_established() {
            let (socket, unsent) = connection.into_socket();
            linger::close(socket, &unsent);
        }
    }
}
