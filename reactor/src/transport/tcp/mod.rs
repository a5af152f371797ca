//! TCP, with the wire protocol of libfabric's tcp provider.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: listener, connections |
//! | `connect_attempt` | connecting, by a system call or by io_uring |
//! | `handshake` | a connection before both sides have agreed |
//! | `connection` | an established connection: bytes in, bytes out |
//! | `io_backend` | epoll or io_uring, and the domain's io_uring instance |
//! | `socket` | sockets, and calls on them that do not block |
//! | `congestion` | congestion control |
//! | `interfaces` | networks of this machine |
//! | `linger` | closing connections that have unsent bytes |
//!
//! Passes poll only active endpoints: a connected endpoint that is idle costs nothing until
//! something is posted or its socket is ready.
//!
//! Decision: every write requests an ack, because a one-sided operation completes when the memory
//! has been accessed, over every transport. libfabric requests an ack only for delivery completion.
//! An ack is a header of 16 bytes; without acks a write to a peer that has died would succeed.

mod congestion;
mod connect_attempt;
mod connection;
mod endpoint;
mod handshake;
mod interfaces;
mod io_backend;
mod linger;
mod socket;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::completion::Outcome;
use fabric_core::flags::{Access, Caps, MsgOrder, OpFlags};
use fabric_core::info::{Info, Protocol};
use fabric_core::matching::PeerKey;
use fabric_core::mr::{LocalMemory, RegionMemory};
use fabric_core::stats::TransportStats;
use fabric_core::tcp::{MAX_MESSAGE, MAX_RMA_IOV, WireProtocol};
use fabric_core::transport::{
    ConnReq, ConnectParams, EngineContext, EpId, OpKey, OpenDomain, SocketIo, Transport,
    TransportDomain, TrySend, TxOp, WaitSet,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme, SocketOptions};

use crate::sys::fork_guard::ForkGuard;
use crate::sys::uring::{CompletionKind, ReleasedBuffer};
use crate::transport::info_templates;
use crate::transport::net::SocketConfig;

use endpoint::{TcpEndpoint, TcpToken, UNEXPECTED_BYTES};
use interfaces::InterfaceAddress;
use io_backend::IoBackend;

/// The transport of the provider `tcp`.
#[derive(Clone, Copy, Debug)]
pub struct TcpTransport;

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    /// Returns the offers in this order: one for any network, one for each network of this machine,
    /// both kinds again for connected endpoints (`FI_EP_MSG`), and both kinds again for endpoints
    /// that connect with RXM.
    fn offers(&self) -> Vec<Info> {
        let any = base_info();
        let with_network = |network: InterfaceAddress| {
            let mut info = any.clone();
            info.fabric.name = network.to_string();
            info.src_addr = Address::from_socket_addr(Scheme::Tcp, (network.ip, 0).into()).ok();
            info.domain.name = network.interface;
            info
        };
        let offers =
            std::iter::once(any.clone()).chain(interfaces::list().into_iter().map(with_network));
        let native: Vec<_> = offers.flat_map(Info::for_both_progress_models).collect();
        let connected: Vec<_> = native
            .iter()
            .cloned()
            .map(info_templates::with_msg_endpoints)
            .collect();
        let rxm: Vec<_> = native.iter().cloned().map(with_rxm_protocol).collect();
        [native, connected, rxm].concat()
    }

    fn alloc(&self, len: usize, _: Access) -> Result<Arc<dyn RegionMemory>> {
        Ok(Arc::new(LocalMemory::new(len)?))
    }
}

impl<E: EngineContext> OpenDomain<E> for TcpTransport {
    fn open_domain(
        &self,
        info: &Info,
        wait_set: Arc<dyn WaitSet>,
    ) -> Result<Box<dyn TransportDomain<E>>> {
        let progress = info.domain.data_progress;
        let io_backend = IoBackend::new(wait_set.clone(), progress);
        let (endpoints, active, options) = (Vec::new(), Vec::new(), SocketOptions::default());
        Ok(Box::new(TcpDomain {
            wait_set,
            endpoints,
            active,
            io_backend,
            options,
            fork_guard: ForkGuard::current_process(),
        }))
    }
}

/// Every order except writes and sends after reads (`FI_ORDER_WAR`, `FI_ORDER_SAR`): a read is
/// answered when the socket has room, and may observe a later write.
const MSG_ORDER: MsgOrder = MsgOrder::RAR
    .union(MsgOrder::RAW)
    .union(MsgOrder::RAS)
    .union(MsgOrder::WAW)
    .union(MsgOrder::WAS)
    .union(MsgOrder::SAW)
    .union(MsgOrder::SAS);

/// Returns the offer that is not restricted to one network, for `FI_EP_RDM` endpoints.
fn base_info() -> Info {
    let mut info = info_templates::reliable_info("tcp", Caps::LOCAL_COMM | Caps::REMOTE_COMM);
    info.ep.protocol = Some(Protocol::Tcp);
    info.ep.protocol_version = 3;
    info.ep.max_msg_size = MAX_MESSAGE;
    // A send completes when the kernel has all its bytes, and with FI_DELIVERY_COMPLETE when the
    // peer's endpoint has acknowledged the whole message. No frame reports that a receive matched,
    // so FI_MATCH_COMPLETE is not offered.
    info.tx.op_flags |= OpFlags::DELIVERY_COMPLETE;
    info.tx.msg_order = MSG_ORDER;
    info.tx.rma_iov_limit = MAX_RMA_IOV;
    info.rx.msg_order = MSG_ORDER;
    info
}

/// Turns an offer into one for endpoints that connect with RXM. An inbound connection request is
/// always answered in the protocol of the request.
fn with_rxm_protocol(mut info: Info) -> Info {
    info.ep.protocol = Some(Protocol::Rxm);
    // RXM has no frame that requests an acknowledgement.
    info.tx.op_flags.remove(OpFlags::DELIVERY_COMPLETE);
    // libfabric's protocol version of RXM.
    info.ep.protocol_version = 1;
    info
}

/// Returns the address to listen at: `at`, or else any port of the offer's source address, or else
/// any port of the IPv4 loopback address.
///
/// # Errors
/// `at` has another scheme than `tcp`.
fn listen_address(info: &Info, at: Option<&Address>) -> Result<SocketAddr> {
    if let Some(at) = at {
        at.check_scheme(Scheme::Tcp)?;
    }
    let offered = info.src_addr.as_ref().and_then(Address::socket_addr);
    let any_port = SocketAddr::new(
        offered.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |offered| offered.ip()),
        0,
    );
    Ok(at.and_then(Address::socket_addr).unwrap_or(any_port))
}

/// The data path of a domain: its endpoints and their I/O backend.
struct TcpDomain {
    wait_set: Arc<dyn WaitSet>,
    /// Sorted by id, for a binary search.
    endpoints: Vec<TcpEndpoint>,
    /// Ids of the endpoints that passes poll: a domain may have many connected endpoints, most of
    /// them idle.
    active: Vec<EpId>,
    io_backend: IoBackend,
    /// The socket options of endpoints that are opened from now on.
    options: SocketOptions,
    /// A forked child makes no progress: the connections belong to the parent.
    fork_guard: ForkGuard,
}

impl TcpDomain {
    /// Returns an endpoint, and lets the next passes poll the endpoint.
    ///
    /// # Errors
    /// [`Error::Closed`] if the endpoint is not open, or in a forked child process.
    fn activate_endpoint(&mut self, ep: EpId) -> Result<&mut TcpEndpoint> {
        if !self.fork_guard.in_original_process() {
            return Err(Error::Closed(Class::Endpoint));
        }
        let index = self
            .endpoint_index(ep)
            .ok_or(Error::Closed(Class::Endpoint))?;
        let endpoint = &mut self.endpoints[index];
        if !endpoint.is_active {
            endpoint.is_active = true;
            self.active.push(ep);
        }
        Ok(endpoint)
    }

    /// Returns the index of an endpoint in `endpoints`. A single endpoint is found without a
    /// search.
    #[inline]
    fn endpoint_index(&self, ep: EpId) -> Option<usize> {
        match &self.endpoints[..] {
            [one] => (one.id() == ep).then_some(0),
            many => many.binary_search_by_key(&ep, TcpEndpoint::id).ok(),
        }
    }

    /// Inserts a new endpoint into the sorted list, as an active endpoint.
    fn insert_endpoint(&mut self, mut endpoint: TcpEndpoint) {
        endpoint.is_active = true;
        self.active.push(endpoint.id());
        let index = self
            .endpoints
            .partition_point(|other| other.id() < endpoint.id());
        self.endpoints.insert(index, endpoint);
    }

    /// Calls `act` with each active endpoint. An endpoint that is idle afterwards is not polled
    /// until something happens.
    fn for_each_active<E: EngineContext>(
        &mut self,
        engine: &mut E,
        mut act: impl FnMut(&mut TcpEndpoint, &mut E),
    ) {
        let mut position = 0;
        while let Some(&ep) = self.active.get(position) {
            let Some(index) = self.endpoint_index(ep) else {
                self.active.swap_remove(position);
                continue;
            };
            let endpoint = &mut self.endpoints[index];
            act(endpoint, engine);
            if endpoint.is_idle(engine) {
                endpoint.is_active = false;
                self.active.swap_remove(position);
            } else {
                position += 1;
            }
        }
    }

    /// Dispatches the completions of io_uring to their endpoints. Returns whether there was any.
    fn reap(&mut self, engine: &mut impl EngineContext) -> bool {
        let mut any = false;
        while let Some(mut completion) = self.io_backend.next_completion() {
            any = true;
            if let CompletionKind::BufferReleased(ReleasedBuffer { op, buf, .. }) =
                &mut completion.kind
            {
                // The buffer returns to its operation even if the connection is gone.
                engine.return_buffer(*op, std::mem::take(buf));
            }
            let (ep, token) = TcpToken::unpack(completion.owner);
            if let TcpToken::Socket(connection_index) = token
                && let Ok(endpoint) = self.activate_endpoint(ep)
            {
                endpoint.on_uring_completion(connection_index as usize, completion, engine);
            }
        }
        any
    }
}

impl<E: EngineContext> TransportDomain<E> for TcpDomain {
    fn set_socket_io(&mut self, io: SocketIo) -> Result<()> {
        self.io_backend.select(io)
    }

    fn set_socket_options(&mut self, options: &SocketOptions) -> Result<()> {
        options.check()?;
        congestion::validate(options)?;
        self.options = options.clone();
        Ok(())
    }

    fn open_endpoint(
        &mut self,
        _: &mut E,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<Address> {
        let bind_params = (
            listen_address(info, at)?,
            SocketConfig::from_info(&self.options, info)?,
        );
        let protocol = if info.ep.protocol == Some(Protocol::Rxm) {
            WireProtocol::Rxm
        } else {
            WireProtocol::Native
        };
        let mut endpoint = TcpEndpoint::open_rdm(
            ep,
            bind_params,
            self.wait_set.clone(),
            self.io_backend.uring()?,
            protocol,
        )?;
        endpoint.set_caps(info.caps);
        let name = endpoint.name().clone();
        self.insert_endpoint(endpoint);
        Ok(name)
    }

    fn listen(&mut self, ep: EpId, info: &Info, at: Option<&Address>) -> Result<Address> {
        let endpoint = TcpEndpoint::open_passive(
            ep,
            (
                listen_address(info, at)?,
                SocketConfig::from_info(&self.options, info)?,
            ),
            self.wait_set.clone(),
        )?;
        let name = endpoint.name().clone();
        self.insert_endpoint(endpoint);
        Ok(name)
    }

    fn take_connreq(&mut self, engine: &mut E, ep: EpId) -> Option<ConnReq> {
        self.activate_endpoint(ep).ok()?.take_connreq(engine)
    }

    fn open_connected(
        &mut self,
        engine: &mut E,
        ep: EpId,
        info: &Info,
        params: ConnectParams<'_>,
    ) -> Result<()> {
        let resources = (self.wait_set.clone(), self.io_backend.uring()?);
        let config = SocketConfig::from_info(&self.options, info)?;
        let endpoint =
            TcpEndpoint::open_connected(engine, (ep, info.caps, config), params, resources)?;
        self.insert_endpoint(endpoint);
        // With io_uring, arming submits the multishot receive of the new connection.
        engine.request_rearm();
        Ok(())
    }

    fn shutdown(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        self.activate_endpoint(ep)?.shutdown(engine)
    }

    fn close_endpoint(&mut self, engine: &mut E, ep: EpId) {
        if let Some(index) = self.endpoint_index(ep) {
            self.endpoints.remove(index).close(engine);
        }
    }

    fn try_send(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let result = self.activate_endpoint(ep)?.try_send(engine, tx_op, payload);
        // The next pass, which would submit the send, may be much later.
        self.io_backend.submit();
        result
    }

    /// Reads need a round trip, so they never complete inline.
    fn try_read(&mut self, _: &mut E, _: EpId, _: &TxOp, _: &mut AnyBuf) -> Result<TrySend> {
        Ok(TrySend::WouldBlock)
    }

    fn try_atomic(
        &mut self,
        _: &mut E,
        _: EpId,
        _: &TxOp,
        _: &[u8],
        _: &mut [u8],
    ) -> Result<TrySend> {
        Ok(TrySend::WouldBlock)
    }

    fn region_closed(&mut self, _key: u64) {
        // A response to a peer may wait for the region.
        if self.endpoints.iter().any(TcpEndpoint::awaits_region) {
            self.wait_set.wake();
        }
    }

    fn set_batched_op(&mut self, engine: &mut E, ep: EpId, op: OpKey, tx_op: &TxOp, len: usize) {
        match self.activate_endpoint(ep) {
            Ok(endpoint) => endpoint.set_batched_op(engine, op, tx_op, len),
            Err(error) => engine.complete(op, Outcome::failed(error)),
        }
    }

    fn write_batched(&mut self, engine: &mut E, ep: EpId) {
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.flush(engine);
            self.io_backend.submit();
        }
    }

    fn flush(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        self.activate_endpoint(ep)?.flush(engine);
        self.io_backend.submit();
        Ok(())
    }

    fn queue_send(&mut self, engine: &mut E, ep: EpId, op: OpKey, tx_op: &TxOp) -> Result<()> {
        let queued = self.activate_endpoint(ep)?.queue_send(engine, op, tx_op);
        self.io_backend.submit();
        queued
    }

    fn unexpected_budget(&self) -> usize {
        UNEXPECTED_BYTES
    }

    fn on_rx_queue_changed(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        self.activate_endpoint(ep)?.on_rx_queue_changed(engine);
        Ok(())
    }

    fn cancel(&mut self, engine: &mut E, ep: EpId, op: OpKey) -> bool {
        self.activate_endpoint(ep)
            .is_ok_and(|endpoint| endpoint.cancel(engine, op))
    }

    fn source_of(&self, ep: EpId, peer: PeerKey) -> Option<FiAddr> {
        self.endpoints[self.endpoint_index(ep)?].source_of(peer)
    }

    fn address_inserted(&mut self, engine: &mut E, ep: EpId, addr: FiAddr, address: &Address) {
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.address_inserted(engine, addr, address);
        }
    }

    fn address_removed(&mut self, engine: &mut E, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.address_removed(engine, addr);
        }
    }

    fn progress(&mut self, engine: &mut E) -> bool {
        if !self.fork_guard.in_original_process() {
            return false;
        }
        let mut moved = self.reap(engine);
        self.for_each_active(engine, |endpoint, engine| {
            moved |= endpoint.progress(engine);
        });
        self.io_backend.submit();
        moved
    }

    fn ready(&mut self, engine: &mut E, token: u64) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        let (ep, token) = TcpToken::unpack(token);
        if token == TcpToken::Uring {
            self.io_backend.clear_event();
            self.progress(engine);
            return;
        }
        if let Ok(endpoint) = self.activate_endpoint(ep) {
            endpoint.ready(engine, token);
        }
    }

    fn arm(&mut self, engine: &mut E) -> bool {
        if !self.fork_guard.in_original_process() {
            return true;
        }
        let mut is_armed = true;
        self.for_each_active(engine, |endpoint, engine| {
            is_armed = is_armed && endpoint.arm(engine);
        });
        is_armed && self.io_backend.arm()
    }

    /// Does nothing: epoll reports readiness whether or not a thread polls, and a connection stops
    /// its armed receive after some passes without input.
    fn disarm(&mut self) {}

    fn stats(&self, ep: EpId) -> TransportStats {
        self.endpoint_index(ep)
            .map_or_else(TransportStats::default, |index| {
                self.endpoints[index].stats()
            })
    }

    fn describe(&self) -> String {
        let endpoints: Vec<_> = self.endpoints.iter().map(TcpEndpoint::describe).collect();
        format!(
            "tcp over {} [{}]",
            self.io_backend.name(),
            endpoints.join(", ")
        )
    }
}
