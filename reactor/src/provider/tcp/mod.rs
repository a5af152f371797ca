//! TCP, on the wire of libfabric's provider of that name.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: where peers connect, its connections, its receive context |
//! | `greeting` | a connection before it is one |
//! | `link`, `lane`, `onesided` | a connection: bytes in, bytes out; what of it is in the ring; memory of either side |
//! | `io` | which way sockets are waited for, and the ring of a domain |
//! | `socket` | system calls that never block |
//! | `congestion` | how fast connections may send |
//! | `networks` | the networks this machine is in |
//! | `farewell` | how a connection is closed without losing what was sent |

mod congestion;
mod endpoint;
mod farewell;
mod greeting;
mod io;
mod link;
mod networks;
mod socket;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload, PooledBuf};
use fabric_core::completion::Outcome;
use fabric_core::flags::{Access, Caps, MrMode, MsgOrder, OpFlags};
use fabric_core::info::{AvType, EpType, Info, Progress, Protocol, Version};
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::mr::{LocalMemory, Memory};
use fabric_core::provider::{
    EpId, Host, OpKey, Provider, ProviderDomain, SendNow, SendSpec, SocketIo, WaitSet,
};
use fabric_core::rx::{Receiving, RxContext};
use fabric_core::stats::ProviderStats;
use fabric_core::tcp::{Dialect, MAX_MESSAGE, MOST_ROWS};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme, SocketOptions};

use crate::provider::net::Tuning;
use crate::provider::origin::Origin;

use endpoint::{Endpoint, Token};
use io::Io;
use networks::Network;

/// The provider `tcp`.
#[derive(Clone, Copy, Debug)]
pub struct TcpProvider;

impl Provider for TcpProvider {
    fn name(&self) -> &'static str {
        "tcp"
    }

    /// Twice the same for any network, under manual and under automatic progress: who states no wish gets the first.
    /// Behind them the same for each network this machine is in, and behind all these the same as endpoints that ask in RXM.
    fn offers(&self) -> Vec<Info> {
        let any = offer();
        let of = |network: Network| {
            let mut info = any.clone();
            info.fabric.name = network.to_string();
            info.src_addr = Address::of_socket(Scheme::Tcp, (network.ip, 0).into()).ok();
            info.domain.name = network.interface;
            info
        };
        let offers = std::iter::once(any.clone()).chain(networks::all().into_iter().map(of));
        let native: Vec<_> = offers.flat_map(|info| [info.clone(), automatic(info)]).collect();
        let rxm: Vec<_> = native.iter().cloned().map(layered).collect();
        native.into_iter().chain(rxm).collect()
    }

    fn alloc(&self, len: usize, _: Access) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(LocalMemory::new(len)?))
    }

    fn open_domain(&self, info: &Info, wait: Arc<dyn WaitSet>) -> Result<Box<dyn ProviderDomain>> {
        let progress = info.domain.data_progress;
        let io = Io::new(wait.clone(), progress);
        let options = SocketOptions::default();
        Ok(Box::new(TcpDomain { wait, endpoints: Vec::new(), io, options, origin: Origin::here() }))
    }
}

/// Everything but what comes behind a read: that is answered when there is room, and may see what came later.
const ORDER: MsgOrder = MsgOrder::RAR
    .union(MsgOrder::RAW)
    .union(MsgOrder::RAS)
    .union(MsgOrder::WAW)
    .union(MsgOrder::WAS)
    .union(MsgOrder::SAW)
    .union(MsgOrder::SAS);

/// What every network allows, under manual progress.
fn offer() -> Info {
    let mut info = Info::template("tcp", "tcp", "tcp");
    info.fabric.provider_version = Version::new(0, 1);
    info.caps = Caps::MSG
        | Caps::TAGGED
        | Caps::SEND
        | Caps::RECV
        | Caps::DIRECTED_RECV
        | Caps::MULTI_RECV
        | Caps::TAGGED_MULTI_RECV
        | Caps::SOURCE
        | Caps::FENCE
        | Caps::RMA
        | Caps::ATOMIC
        | Caps::RMA_DIRECTIONS
        | Caps::RMA_EVENT
        | Caps::LOCAL_COMM
        | Caps::REMOTE_COMM;
    info.domain.caps = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    info.domain.av_type = Some(AvType::Table);
    info.domain.mr_mode = MrMode::SCALABLE.union(MrMode::BASIC);
    info.domain.mr_key_size = 8;
    info.domain.cq_data_size = 8;
    info.domain.cq_cnt = 1024;
    info.domain.ep_cnt = 1024;
    info.domain.tx_ctx_cnt = 1024;
    info.domain.rx_ctx_cnt = 1024;
    info.domain.max_ep_tx_ctx = 1;
    info.domain.max_ep_rx_ctx = 1;
    info.domain.max_ep_srx_ctx = 1024;
    info.domain.cntr_cnt = 1024;
    info.domain.mr_iov_limit = 1;
    info.domain.mr_cnt = 1 << 16;
    info.ep.ep_type = EpType::Rdm;
    info.ep.protocol = Some(Protocol::Tcp);
    info.ep.protocol_version = 3;
    info.ep.max_msg_size = MAX_MESSAGE;
    info.ep.mem_tag_format = u64::MAX;
    info.ep.max_order_raw_size = usize::MAX;
    info.ep.max_order_waw_size = usize::MAX;
    info.ep.tx_ctx_cnt = 1;
    info.ep.rx_ctx_cnt = 1;
    // A message counts as sent when this machine's network has taken it, and as delivered when the peer's endpoint has said
    // that it has all of it. When a receive takes it nobody says.
    info.tx.op_flags = OpFlags::COMPLETION | OpFlags::INJECT_COMPLETE | OpFlags::DELIVERY_COMPLETE;
    info.rx.op_flags = OpFlags::COMPLETION;
    info.tx.msg_order = ORDER;
    info.tx.inject_size = 4096;
    info.tx.size = 1024;
    info.tx.iov_limit = 64;
    info.tx.rma_iov_limit = MOST_ROWS;
    info.rx.msg_order = ORDER;
    info.rx.size = 1024;
    info.rx.iov_limit = 64;
    info
}

/// The same, of endpoints that ask for connections in RXM. Whoever asks them is answered in its own dialect.
fn layered(mut info: Info) -> Info {
    info.ep.protocol = Some(Protocol::Rxm);
    // What goes wrong there ends the connection in this dialect, and atomic operations have a form of their own in it.
    info.caps.remove(Caps::RMA | Caps::ATOMIC | Caps::RMA_DIRECTIONS | Caps::RMA_EVENT);
    // Nothing asks for it there.
    info.tx.op_flags.remove(OpFlags::DELIVERY_COMPLETE);
    // The version that libfabric gives it.
    info.ep.protocol_version = 1;
    info
}

fn automatic(mut info: Info) -> Info {
    (info.domain.control_progress, info.domain.data_progress) = (Progress::Auto, Progress::Auto);
    info
}

/// The data path of a domain: its endpoints.
struct TcpDomain {
    wait: Arc<dyn WaitSet>,
    endpoints: Vec<Endpoint>,
    io: Io,
    options: SocketOptions,
    /// Nothing is moved in a forked child: the connections are its parent's.
    origin: Origin,
}

impl TcpDomain {
    fn ep(&mut self, ep: EpId) -> Result<&mut Endpoint> {
        if !self.origin.is_here() {
            return Err(Error::Closed(Class::Endpoint));
        }
        let mut endpoints = self.endpoints.iter_mut();
        endpoints.find(|endpoint| endpoint.id() == ep).ok_or(Error::Closed(Class::Endpoint))
    }
}

impl TcpDomain {
    /// Hands out what the ring has done. Returns whether it has done anything.
    fn reap(&mut self) -> bool {
        let mut any = false;
        while let Some(completion) = self.io.next() {
            any = true;
            let (ep, token) = Token::unpack(completion.owner);
            let mut endpoints = self.endpoints.iter_mut();
            if let Some(endpoint) = endpoints.find(|endpoint| endpoint.id() == ep)
                && let Token::Socket(at) = token
            {
                endpoint.completed(at as usize, completion);
            }
        }
        any
    }
}

impl ProviderDomain for TcpDomain {
    fn socket_io(&mut self, io: SocketIo) -> Result<()> {
        self.io.choose(io)
    }

    fn socket_options(&mut self, options: &SocketOptions) -> Result<()> {
        options.check()?;
        congestion::check(options)?;
        self.options = options.clone();
        Ok(())
    }

    fn open_endpoint(
        &mut self,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
        receiving: Receiving<'_>,
    ) -> Result<Address> {
        if let Some(at) = at.filter(|at| at.scheme() != Scheme::Tcp) {
            return Err(Error::WrongScheme { provider: "tcp", address: at.clone() });
        }
        // Without an address of its own: any port in the network that was chosen, or else inside this machine.
        let chosen = info.src_addr.as_ref().and_then(Address::socket);
        let any = SocketAddr::new(chosen.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |at| at.ip()), 0);
        let at = at.and_then(Address::socket).unwrap_or(any);
        let tuning = Tuning::of(&self.options, info)?;
        let dialect = if info.ep.protocol == Some(Protocol::Rxm) { Dialect::Rxm } else { Dialect::Native };
        let ring = self.io.ring()?;
        let mut opened = Endpoint::open(ep, (at, tuning), self.wait.clone(), receiving, ring, dialect)?;
        if info.caps.contains(Caps::RMA_EVENT) {
            opened.heed();
        }
        let name = opened.name().clone();
        self.endpoints.push(opened);
        Ok(name)
    }

    fn close_endpoint(&mut self, host: &mut dyn Host, ep: EpId) {
        if let Some(at) = self.endpoints.iter().position(|endpoint| endpoint.id() == ep) {
            self.endpoints.swap_remove(at).close(host);
        }
    }

    fn send_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow> {
        let sent = self.ep(ep)?.send_now(host, spec, payload);
        // Nobody else may look for long.
        self.io.submit();
        sent
    }

    /// Asked for over the wire: never at once.
    fn read_now(&mut self, _: &mut dyn Host, _: EpId, _: &SendSpec, _: &mut AnyBuf) -> Result<SendNow> {
        Ok(SendNow::Queue)
    }

    fn atomic_now(
        &mut self,
        _: &mut dyn Host,
        _: EpId,
        _: &SendSpec,
        _: &[u8],
        _: &mut [u8],
    ) -> Result<SendNow> {
        Ok(SendNow::Queue)
    }

    fn region_closed(&mut self, _key: u64) {
        // Who waits for it waits in vain.
        if self.endpoints.iter().any(Endpoint::is_waited_for) {
            self.wait.kick();
        }
    }

    fn flush(&mut self, _: &mut dyn Host, ep: EpId) -> Result<()> {
        self.ep(ep)?.flush();
        self.io.submit();
        Ok(())
    }

    fn queue_send(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: &SendSpec) -> Result<()> {
        let queued = self.ep(ep)?.queue_send(host, op, spec);
        self.io.submit();
        queued
    }

    fn post_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.ep(ep) {
            Ok(endpoint) => endpoint.post_recv(host, op, spec),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
    }

    fn post_multi_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.ep(ep) {
            Ok(endpoint) => endpoint.post_multi_recv(host, op, spec),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
    }

    fn receive_side(&mut self, ep: EpId) -> Option<&mut RxContext> {
        self.ep(ep).ok().map(Endpoint::receive_side)
    }

    fn received(&mut self, host: &mut dyn Host, ep: EpId) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.received(host);
        }
    }

    fn cancel(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) -> bool {
        self.ep(ep).is_ok_and(|endpoint| endpoint.cancel(host, op))
    }

    fn abandon_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.abandon_recv(host, op);
        }
    }

    fn put_back(&mut self, host: &mut dyn Host, ep: EpId, envelope: Envelope, bytes: PooledBuf) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.put_back(host, envelope, bytes);
        }
    }

    fn address_inserted(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr, address: &Address) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.address_inserted(host, addr, address);
        }
    }

    fn address_removed(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.address_removed(host, addr);
        }
    }

    fn holds(&self, ep: EpId, source: FiAddr) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.id() == ep && endpoint.holds(source))
    }

    fn progress(&mut self, host: &mut dyn Host) -> bool {
        if !self.origin.is_here() {
            return false;
        }
        let completed = self.reap();
        let moved =
            self.endpoints.iter_mut().fold(completed, |moved, endpoint| moved | endpoint.progress(host));
        self.io.submit();
        moved
    }

    fn ready(&mut self, host: &mut dyn Host, token: u64) {
        if !self.origin.is_here() {
            return;
        }
        let (ep, token) = Token::unpack(token);
        if token == Token::Ring {
            self.io.heard();
            self.progress(host);
            return;
        }
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.ready(host, token);
        }
    }

    fn arm(&mut self) -> bool {
        !self.origin.is_here() || self.endpoints.iter_mut().all(Endpoint::arm) && self.io.sleeps()
    }

    /// Sockets tell of news whether anybody polls or not, and connections that listen go on until somebody looks for long.
    fn disarm(&mut self) {}

    fn stats(&self, ep: EpId) -> ProviderStats {
        let mut endpoints = self.endpoints.iter();
        endpoints.find(|endpoint| endpoint.id() == ep).map_or_else(ProviderStats::default, Endpoint::stats)
    }

    fn describe(&self) -> String {
        let endpoints: Vec<_> = self.endpoints.iter().map(Endpoint::describe).collect();
        format!("tcp over {} [{}]", self.io.name(), endpoints.join(", "))
    }
}
