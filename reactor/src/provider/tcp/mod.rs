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
mod dialing;
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
use fabric_core::flags::{Access, Caps, MsgOrder, OpFlags};
use fabric_core::info::{EpType, Info, Protocol};
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::mr::{LocalMemory, Memory};
use fabric_core::provider::{
    EpId, Host, Meeting, OpKey, Provider, ProviderDomain, Request, SendNow, SendSpec, SocketIo,
    WaitSet,
};
use fabric_core::rx::{Receiving, RxContext};
use fabric_core::stats::ProviderStats;
use fabric_core::tcp::{Dialect, MAX_MESSAGE, MOST_ROWS};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme, SocketOptions};

use crate::provider::net::Tuning;
use crate::provider::offers;
use crate::provider::origin::Origin;
use crate::uring::{Released, What};

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

    /// First what any network allows. Behind it the same for each network this machine is in,
    /// behind those all of it for connected endpoints, and last all of the first kind for endpoints
    /// that ask in RXM.
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
        let native: Vec<_> = offers.flat_map(Info::under_either_progress).collect();
        let connected: Vec<_> = native.iter().cloned().map(connected).collect();
        let rxm: Vec<_> = native.iter().cloned().map(layered).collect();
        [native, connected, rxm].concat()
    }

    fn alloc(&self, len: usize, _: Access) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(LocalMemory::new(len)?))
    }

    fn open_domain(&self, info: &Info, wait: Arc<dyn WaitSet>) -> Result<Box<dyn ProviderDomain>> {
        let progress = info.domain.data_progress;
        let io = Io::new(wait.clone(), progress);
        let (endpoints, attended, options) = (Vec::new(), Vec::new(), SocketOptions::default());
        Ok(Box::new(TcpDomain {
            wait,
            endpoints,
            attended,
            io,
            options,
            origin: Origin::here(),
        }))
    }
}

/// Everything but what comes behind a read: that is answered when there is room, and may see what
/// came later.
const ORDER: MsgOrder = MsgOrder::RAR
    .union(MsgOrder::RAW)
    .union(MsgOrder::RAS)
    .union(MsgOrder::WAW)
    .union(MsgOrder::WAS)
    .union(MsgOrder::SAW)
    .union(MsgOrder::SAS);

/// What every network allows.
fn offer() -> Info {
    let mut info = offers::reliable("tcp", Caps::LOCAL_COMM | Caps::REMOTE_COMM);
    info.ep.protocol = Some(Protocol::Tcp);
    info.ep.protocol_version = 3;
    info.ep.max_msg_size = MAX_MESSAGE;
    // A message counts as sent when the kernel has all its bytes, and as delivered when the
    // peer's endpoint has said that it has all of it. When a receive takes it nobody says.
    info.tx.op_flags |= OpFlags::DELIVERY_COMPLETE;
    info.tx.msg_order = ORDER;
    info.tx.rma_iov_limit = MOST_ROWS;
    info.rx.msg_order = ORDER;
    info
}

/// The same, of endpoints that ask for connections in RXM. Whoever asks them is answered in its own
/// dialect.
fn layered(mut info: Info) -> Info {
    info.ep.protocol = Some(Protocol::Rxm);
    // Nothing asks for it there.
    info.tx.op_flags.remove(OpFlags::DELIVERY_COMPLETE);
    // The version that libfabric gives it.
    info.ep.protocol_version = 1;
    info
}

/// The same for endpoints that are connected with one peer. There is nobody to choose from, and
/// there are no addresses to number.
fn connected(mut info: Info) -> Info {
    info.caps -= Caps::DIRECTED_RECV | Caps::SOURCE;
    info.domain.av_type = None;
    info.ep.ep_type = EpType::Msg;
    info
}

/// Where an endpoint is to listen. Without an address of its own: at any port in the network that
/// was chosen, or else inside this machine.
fn place(info: &Info, at: Option<&Address>) -> Result<SocketAddr> {
    if let Some(at) = at.filter(|at| at.scheme() != Scheme::Tcp) {
        return Err(Error::WrongScheme {
            provider: "tcp",
            address: at.clone(),
        });
    }
    let chosen = info.src_addr.as_ref().and_then(Address::socket);
    let any = SocketAddr::new(
        chosen.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |at| at.ip()),
        0,
    );
    Ok(at.and_then(Address::socket).unwrap_or(any))
}

/// The data path of a domain: its endpoints.
struct TcpDomain {
    wait: Arc<dyn WaitSet>,
    /// In the order of their numbers, which grow.
    endpoints: Vec<Endpoint>,
    /// Numbers of those that passes look at: connections with one peer each may be many, and mostly
    /// quiet.
    attended: Vec<EpId>,
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
        let at = self.position(ep).ok_or(Error::Closed(Class::Endpoint))?;
        let endpoint = &mut self.endpoints[at];
        if !endpoint.is_attended {
            endpoint.is_attended = true;
            self.attended.push(ep);
        }
        Ok(endpoint)
    }

    /// Where the endpoint is: mostly there is but one.
    #[inline]
    fn position(&self, ep: EpId) -> Option<usize> {
        match &self.endpoints[..] {
            [one] => (one.id() == ep).then_some(0),
            many => many.binary_search_by_key(&ep, Endpoint::id).ok(),
        }
    }

    /// A new endpoint, in the order of their numbers.
    fn add(&mut self, mut opened: Endpoint) {
        opened.is_attended = true;
        self.attended.push(opened.id());
        let at = self
            .endpoints
            .partition_point(|endpoint| endpoint.id() < opened.id());
        self.endpoints.insert(at, opened);
    }

    /// Does something with each endpoint that passes look at. Those that are quiet afterwards are
    /// not looked at any more, until something happens.
    fn each_attended(&mut self, mut act: impl FnMut(&mut Endpoint)) {
        let mut index = 0;
        while let Some(&ep) = self.attended.get(index) {
            let Some(at) = self.position(ep) else {
                self.attended.swap_remove(index);
                continue;
            };
            let endpoint = &mut self.endpoints[at];
            act(endpoint);
            if endpoint.is_quiet() {
                endpoint.is_attended = false;
                self.attended.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Hands out what the ring has done. Returns whether it has done anything.
    fn reap(&mut self, host: &mut dyn Host) -> bool {
        let mut any = false;
        while let Some(mut completion) = self.io.next() {
            any = true;
            if let What::Released(Released { op, buf, .. }) = &mut completion.what {
                // Whatever has become of its connection.
                host.restore(*op, std::mem::take(buf));
            }
            let (ep, token) = Token::unpack(completion.owner);
            if let Token::Socket(at) = token
                && let Ok(endpoint) = self.ep(ep)
            {
                endpoint.completed(at as usize, completion, host);
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
        let place = (place(info, at)?, Tuning::of(&self.options, info)?);
        let dialect = if info.ep.protocol == Some(Protocol::Rxm) {
            Dialect::Rxm
        } else {
            Dialect::Native
        };
        let mut opened = Endpoint::open(
            ep,
            place,
            self.wait.clone(),
            receiving,
            self.io.ring()?,
            dialect,
        )?;
        opened.serve(info.caps);
        let name = opened.name().clone();
        self.add(opened);
        Ok(name)
    }

    fn listen(&mut self, ep: EpId, info: &Info, at: Option<&Address>) -> Result<Address> {
        let opened = Endpoint::passive(
            ep,
            (place(info, at)?, Tuning::of(&self.options, info)?),
            self.wait.clone(),
        )?;
        let name = opened.name().clone();
        self.add(opened);
        Ok(name)
    }

    fn take_request(&mut self, host: &mut dyn Host, ep: EpId) -> Option<Request> {
        self.ep(ep).ok()?.take_request(host)
    }

    fn open_connected(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        info: &Info,
        meeting: Meeting<'_>,
        receiving: Receiving<'_>,
    ) -> Result<()> {
        let parts = (self.wait.clone(), receiving, self.io.ring()?);
        let tuning = Tuning::of(&self.options, info)?;
        let opened = Endpoint::single(host, (ep, info.caps, tuning), meeting, parts)?;
        self.add(opened);
        // Where a ring is to tell of what comes, the connection has to be put there.
        host.unsettled();
        Ok(())
    }

    fn shutdown(&mut self, host: &mut dyn Host, ep: EpId) -> Result<()> {
        self.ep(ep)?.shutdown(host)
    }

    fn close_endpoint(&mut self, host: &mut dyn Host, ep: EpId) {
        if let Some(at) = self.position(ep) {
            self.endpoints.remove(at).close(host);
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
    fn read_now(
        &mut self,
        _: &mut dyn Host,
        _: EpId,
        _: &SendSpec,
        _: &mut AnyBuf,
    ) -> Result<SendNow> {
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

    fn collected(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: &SendSpec, len: usize) {
        match self.ep(ep) {
            Ok(endpoint) => endpoint.collected(host, op, spec, len),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
    }

    fn write_collected(&mut self, host: &mut dyn Host, ep: EpId) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.flush(host);
            self.io.submit();
        }
    }

    fn flush(&mut self, host: &mut dyn Host, ep: EpId) -> Result<()> {
        self.ep(ep)?.flush(host);
        self.io.submit();
        Ok(())
    }

    fn queue_send(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        op: OpKey,
        spec: &SendSpec,
    ) -> Result<()> {
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

    fn receive_side_changed(&mut self, host: &mut dyn Host, ep: EpId) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.receive_side_changed(host);
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
        self.position(ep)
            .is_some_and(|at| self.endpoints[at].holds(source))
    }

    fn progress(&mut self, host: &mut dyn Host) -> bool {
        if !self.origin.is_here() {
            return false;
        }
        let mut moved = self.reap(host);
        self.each_attended(|endpoint| moved |= endpoint.progress(host));
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
        if !self.origin.is_here() {
            return true;
        }
        let mut is_armed = true;
        self.each_attended(|endpoint| is_armed = is_armed && endpoint.arm());
        is_armed && self.io.sleeps()
    }

    /// Sockets tell of news whether anybody polls or not, and connections that listen go on until
    /// somebody looks for long.
    fn disarm(&mut self) {}

    fn stats(&self, ep: EpId) -> ProviderStats {
        self.position(ep)
            .map_or_else(ProviderStats::default, |at| self.endpoints[at].stats())
    }

    fn describe(&self) -> String {
        let endpoints: Vec<_> = self.endpoints.iter().map(Endpoint::describe).collect();
        format!("tcp over {} [{}]", self.io.name(), endpoints.join(", "))
    }
}
