//! TCP, on the wire of libfabric's provider of that name.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: where peers connect, its connections, its receive context |
//! | `dialing` | attempts to connect, by the call or by the ring |
//! | `greeting` | a connection before it is one |
//! | `link` | a connection: bytes in, bytes out |
//! | `io` | which way sockets are waited for, and the ring of a domain |
//! | `socket` | system calls that never block |
//! | `congestion` | how fast connections may send |
//! | `networks` | the networks this machine is in |
//! | `farewell` | how a connection is closed without losing what was sent |

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

use fabric_core::buf::{AnyBuf, Payload, PooledBuf};
use fabric_core::completion::Outcome;
use fabric_core::flags::{Access, Caps, MsgOrder, OpFlags};
use fabric_core::info::{EpType, Info, Protocol};
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::mr::{LocalMemory, RegionMemory};
use fabric_core::rx::{RxQueue, RxSource};
use fabric_core::stats::TransportStats;
use fabric_core::tcp::{MAX_MESSAGE, MAX_RMA_IOV, WireProtocol};
use fabric_core::transport::{
    ConnReq, ConnectParams, EngineContext, EpId, OpKey, SocketIo, Transport, TransportDomain,
    TrySend, TxOp, WaitSet,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme, SocketOptions};

use crate::transport::fork_guard::ForkGuard;
use crate::transport::info_templates;
use crate::transport::net::SocketConfig;
use crate::uring::{CompletionKind, ReleasedBuffer};

use endpoint::{TcpEndpoint, TcpToken};
use interfaces::InterfaceAddress;
use io_backend::IoBackend;

/// The provider `tcp`.
#[derive(Clone, Copy, Debug)]
pub struct TcpTransport;

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    /// First what any network allows. Behind it the same for each network this machine is in,
    /// behind those all of it for connected endpoints, and last all of the first kind for endpoints
    /// that ask in RXM.
    fn offers(&self) -> Vec<Info> {
        let any = base_info();
        let of = |network: InterfaceAddress| {
            let mut info = any.clone();
            info.fabric.name = network.to_string();
            info.src_addr = Address::from_socket_addr(Scheme::Tcp, (network.ip, 0).into()).ok();
            info.domain.name = network.interface;
            info
        };
        let offers = std::iter::once(any.clone()).chain(interfaces::list().into_iter().map(of));
        let native: Vec<_> = offers.flat_map(Info::for_both_progress_models).collect();
        let connected: Vec<_> = native.iter().cloned().map(with_msg_endpoints).collect();
        let rxm: Vec<_> = native.iter().cloned().map(with_rxm_protocol).collect();
        [native, connected, rxm].concat()
    }

    fn alloc(&self, len: usize, _: Access) -> Result<Arc<dyn RegionMemory>> {
        Ok(Arc::new(LocalMemory::new(len)?))
    }

    fn open_domain(&self, info: &Info, wait: Arc<dyn WaitSet>) -> Result<Box<dyn TransportDomain>> {
        let progress = info.domain.data_progress;
        let io = IoBackend::new(wait.clone(), progress);
        let (endpoints, attended, options) = (Vec::new(), Vec::new(), SocketOptions::default());
        Ok(Box::new(TcpDomain {
            wait_set: wait,
            endpoints,
            active: attended,
            io_backend: io,
            options,
            fork_guard: ForkGuard::current_process(),
        }))
    }
}

/// Everything but what comes behind a read: that is answered when there is room, and may see what
/// came later.
const MSG_ORDER: MsgOrder = MsgOrder::RAR
    .union(MsgOrder::RAW)
    .union(MsgOrder::RAS)
    .union(MsgOrder::WAW)
    .union(MsgOrder::WAS)
    .union(MsgOrder::SAW)
    .union(MsgOrder::SAS);

/// What every network allows.
fn base_info() -> Info {
    let mut info = info_templates::reliable_info("tcp", Caps::LOCAL_COMM | Caps::REMOTE_COMM);
    info.ep.protocol = Some(Protocol::Tcp);
    info.ep.protocol_version = 3;
    info.ep.max_msg_size = MAX_MESSAGE;
    // A message counts as sent when the kernel has all its bytes, and as delivered when the
    // peer's endpoint has said that it has all of it. When a receive takes it nobody says.
    info.tx.op_flags |= OpFlags::DELIVERY_COMPLETE;
    info.tx.msg_order = MSG_ORDER;
    info.tx.rma_iov_limit = MAX_RMA_IOV;
    info.rx.msg_order = MSG_ORDER;
    info
}

/// The same, of endpoints that ask for connections in RXM. Whoever asks them is answered in its own
/// dialect.
fn with_rxm_protocol(mut info: Info) -> Info {
    info.ep.protocol = Some(Protocol::Rxm);
    // Nothing asks for it there.
    info.tx.op_flags.remove(OpFlags::DELIVERY_COMPLETE);
    // The version that libfabric gives it.
    info.ep.protocol_version = 1;
    info
}

/// The same for endpoints that are connected with one peer. There is nobody to choose from, and
/// there are no addresses to number.
fn with_msg_endpoints(mut info: Info) -> Info {
    info.caps -= Caps::DIRECTED_RECV | Caps::SOURCE;
    info.domain.av_type = None;
    info.ep.ep_type = EpType::Msg;
    info
}

/// Where an endpoint is to listen. Without an address of its own: at any port in the network that
/// was chosen, or else inside this machine.
fn listen_address(info: &Info, at: Option<&Address>) -> Result<SocketAddr> {
    if let Some(at) = at.filter(|at| at.scheme() != Scheme::Tcp) {
        return Err(Error::WrongScheme {
            provider: "tcp",
            address: at.clone(),
        });
    }
    let chosen = info.src_addr.as_ref().and_then(Address::socket_addr);
    let any = SocketAddr::new(
        chosen.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |at| at.ip()),
        0,
    );
    Ok(at.and_then(Address::socket_addr).unwrap_or(any))
}

/// The data path of a domain: its endpoints.
struct TcpDomain {
    wait_set: Arc<dyn WaitSet>,
    /// In the order of their numbers, which grow.
    endpoints: Vec<TcpEndpoint>,
    /// Numbers of those that passes look at: connections with one peer each may be many, and mostly
    /// quiet.
    active: Vec<EpId>,
    io_backend: IoBackend,
    options: SocketOptions,
    /// Nothing is moved in a forked child: the connections are its parent's.
    fork_guard: ForkGuard,
}

impl TcpDomain {
    fn active_endpoint(&mut self, ep: EpId) -> Result<&mut TcpEndpoint> {
        if !self.fork_guard.in_original_process() {
            return Err(Error::Closed(Class::Endpoint));
        }
        let at = self
            .endpoint_index(ep)
            .ok_or(Error::Closed(Class::Endpoint))?;
        let endpoint = &mut self.endpoints[at];
        if !endpoint.is_active {
            endpoint.is_active = true;
            self.active.push(ep);
        }
        Ok(endpoint)
    }

    /// Where the endpoint is: mostly there is but one.
    #[inline]
    fn endpoint_index(&self, ep: EpId) -> Option<usize> {
        match &self.endpoints[..] {
            [one] => (one.id() == ep).then_some(0),
            many => many.binary_search_by_key(&ep, TcpEndpoint::id).ok(),
        }
    }

    /// A new endpoint, in the order of their numbers.
    fn insert_endpoint(&mut self, mut opened: TcpEndpoint) {
        opened.is_active = true;
        self.active.push(opened.id());
        let at = self
            .endpoints
            .partition_point(|endpoint| endpoint.id() < opened.id());
        self.endpoints.insert(at, opened);
    }

    /// Does something with each endpoint that passes look at. Those that are quiet afterwards are
    /// not looked at any more, until something happens.
    fn for_each_active(&mut self, mut act: impl FnMut(&mut TcpEndpoint)) {
        let mut index = 0;
        while let Some(&ep) = self.active.get(index) {
            let Some(at) = self.endpoint_index(ep) else {
                self.active.swap_remove(index);
                continue;
            };
            let endpoint = &mut self.endpoints[at];
            act(endpoint);
            if endpoint.is_idle() {
                endpoint.is_active = false;
                self.active.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Hands out what the ring has done. Returns whether it has done anything.
    fn reap(&mut self, host: &mut dyn EngineContext) -> bool {
        let mut any = false;
        while let Some(mut completion) = self.io_backend.next_completion() {
            any = true;
            if let CompletionKind::BufferReleased(ReleasedBuffer { op, buf, .. }) =
                &mut completion.kind
            {
                // Whatever has become of its connection.
                host.return_buffer(*op, std::mem::take(buf));
            }
            let (ep, token) = TcpToken::unpack(completion.owner);
            if let TcpToken::Socket(at) = token
                && let Ok(endpoint) = self.active_endpoint(ep)
            {
                endpoint.on_uring_completion(at as usize, completion, host);
            }
        }
        any
    }
}

impl TransportDomain for TcpDomain {
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
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
        receiving: RxSource<'_>,
    ) -> Result<Address> {
        let place = (
            listen_address(info, at)?,
            SocketConfig::from_info(&self.options, info)?,
        );
        let dialect = if info.ep.protocol == Some(Protocol::Rxm) {
            WireProtocol::Rxm
        } else {
            WireProtocol::Native
        };
        let mut opened = TcpEndpoint::open_rdm(
            ep,
            place,
            self.wait_set.clone(),
            receiving,
            self.io_backend.uring()?,
            dialect,
        )?;
        opened.set_caps(info.caps);
        let name = opened.name().clone();
        self.insert_endpoint(opened);
        Ok(name)
    }

    fn listen(&mut self, ep: EpId, info: &Info, at: Option<&Address>) -> Result<Address> {
        let opened = TcpEndpoint::open_passive(
            ep,
            (
                listen_address(info, at)?,
                SocketConfig::from_info(&self.options, info)?,
            ),
            self.wait_set.clone(),
        )?;
        let name = opened.name().clone();
        self.insert_endpoint(opened);
        Ok(name)
    }

    fn take_connreq(&mut self, host: &mut dyn EngineContext, ep: EpId) -> Option<ConnReq> {
        self.active_endpoint(ep).ok()?.take_connreq(host)
    }

    fn open_connected(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        info: &Info,
        meeting: ConnectParams<'_>,
        receiving: RxSource<'_>,
    ) -> Result<()> {
        let parts = (self.wait_set.clone(), receiving, self.io_backend.uring()?);
        let tuning = SocketConfig::from_info(&self.options, info)?;
        let opened = TcpEndpoint::open_connected(host, (ep, info.caps, tuning), meeting, parts)?;
        self.insert_endpoint(opened);
        // Where a ring is to tell of what comes, the connection has to be put there.
        host.request_rearm();
        Ok(())
    }

    fn shutdown(&mut self, host: &mut dyn EngineContext, ep: EpId) -> Result<()> {
        self.active_endpoint(ep)?.shutdown(host)
    }

    fn close_endpoint(&mut self, host: &mut dyn EngineContext, ep: EpId) {
        if let Some(at) = self.endpoint_index(ep) {
            self.endpoints.remove(at).close(host);
        }
    }

    fn try_send(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        spec: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let sent = self.active_endpoint(ep)?.try_send(host, spec, payload);
        // Nobody else may look for long.
        self.io_backend.submit();
        sent
    }

    /// Asked for over the wire: never at once.
    fn try_read(
        &mut self,
        _: &mut dyn EngineContext,
        _: EpId,
        _: &TxOp,
        _: &mut AnyBuf,
    ) -> Result<TrySend> {
        Ok(TrySend::WouldBlock)
    }

    fn try_atomic(
        &mut self,
        _: &mut dyn EngineContext,
        _: EpId,
        _: &TxOp,
        _: &[u8],
        _: &mut [u8],
    ) -> Result<TrySend> {
        Ok(TrySend::WouldBlock)
    }

    fn region_closed(&mut self, _key: u64) {
        // Who waits for it waits in vain.
        if self.endpoints.iter().any(TcpEndpoint::awaits_region) {
            self.wait_set.wake();
        }
    }

    fn collected(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        op: OpKey,
        spec: &TxOp,
        len: usize,
    ) {
        match self.active_endpoint(ep) {
            Ok(endpoint) => endpoint.collected(host, op, spec, len),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
    }

    fn write_collected(&mut self, host: &mut dyn EngineContext, ep: EpId) {
        if let Ok(endpoint) = self.active_endpoint(ep) {
            endpoint.flush(host);
            self.io_backend.submit();
        }
    }

    fn flush(&mut self, host: &mut dyn EngineContext, ep: EpId) -> Result<()> {
        self.active_endpoint(ep)?.flush(host);
        self.io_backend.submit();
        Ok(())
    }

    fn queue_send(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        op: OpKey,
        spec: &TxOp,
    ) -> Result<()> {
        let queued = self.active_endpoint(ep)?.queue_send(host, op, spec);
        self.io_backend.submit();
        queued
    }

    fn post_recv(&mut self, host: &mut dyn EngineContext, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.active_endpoint(ep) {
            Ok(endpoint) => endpoint.post_recv(host, op, spec),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
    }

    fn post_multi_recv(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        op: OpKey,
        spec: RecvSpec,
    ) {
        match self.active_endpoint(ep) {
            Ok(endpoint) => endpoint.post_multi_recv(host, op, spec),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
    }

    fn rx_queue(&mut self, ep: EpId) -> Option<&mut RxQueue> {
        self.active_endpoint(ep).ok().map(TcpEndpoint::rx_queue)
    }

    fn on_rx_queue_changed(&mut self, host: &mut dyn EngineContext, ep: EpId) {
        if let Ok(endpoint) = self.active_endpoint(ep) {
            endpoint.on_rx_queue_changed(host);
        }
    }

    fn cancel(&mut self, host: &mut dyn EngineContext, ep: EpId, op: OpKey) -> bool {
        self.active_endpoint(ep)
            .is_ok_and(|endpoint| endpoint.cancel(host, op))
    }

    fn detach_recv(&mut self, host: &mut dyn EngineContext, ep: EpId, op: OpKey) {
        if let Ok(endpoint) = self.active_endpoint(ep) {
            endpoint.detach_recv(host, op);
        }
    }

    fn requeue_message(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        envelope: Envelope,
        bytes: PooledBuf,
    ) {
        if let Ok(endpoint) = self.active_endpoint(ep) {
            endpoint.requeue_message(host, envelope, bytes);
        }
    }

    fn address_inserted(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        addr: FiAddr,
        address: &Address,
    ) {
        if let Ok(endpoint) = self.active_endpoint(ep) {
            endpoint.address_inserted(host, addr, address);
        }
    }

    fn address_removed(&mut self, host: &mut dyn EngineContext, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.active_endpoint(ep) {
            endpoint.address_removed(host, addr);
        }
    }

    fn holds_messages_from(&self, ep: EpId, source: FiAddr) -> bool {
        self.endpoint_index(ep)
            .is_some_and(|at| self.endpoints[at].holds_messages_from(source))
    }

    fn progress(&mut self, host: &mut dyn EngineContext) -> bool {
        if !self.fork_guard.in_original_process() {
            return false;
        }
        let mut moved = self.reap(host);
        self.for_each_active(|endpoint| moved |= endpoint.progress(host));
        self.io_backend.submit();
        moved
    }

    fn ready(&mut self, host: &mut dyn EngineContext, token: u64) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        let (ep, token) = TcpToken::unpack(token);
        if token == TcpToken::Uring {
            self.io_backend.clear_event();
            self.progress(host);
            return;
        }
        if let Ok(endpoint) = self.active_endpoint(ep) {
            endpoint.ready(host, token);
        }
    }

    fn arm(&mut self) -> bool {
        if !self.fork_guard.in_original_process() {
            return true;
        }
        let mut is_armed = true;
        self.for_each_active(|endpoint| is_armed = is_armed && endpoint.arm());
        is_armed && self.io_backend.arm()
    }

    /// Sockets tell of news whether anybody polls or not, and connections that listen go on until
    /// somebody looks for long.
    fn disarm(&mut self) {}

    fn stats(&self, ep: EpId) -> TransportStats {
        self.endpoint_index(ep)
            .map_or_else(TransportStats::default, |at| self.endpoints[at].stats())
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
