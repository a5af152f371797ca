//! TCP, with the wire protocol of libfabric's tcp provider.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: listener, connections |
//! | `connect_attempt` | connecting, by a system call or by io_uring |
//! | `handshake` | a connection before both sides have agreed |
//! | `connection` | an established connection: bytes in, bytes out |
//! | `io_backend` | epoll or io_uring, and the domain's io_uring instance |
//! | `network`, `ip_network` | a network below the endpoints; the network of the kernel |
//! | `read_memory` | the memory into which an endpoint reads |
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
mod ip_network;
mod linger;
mod network;
mod read_memory;
mod socket;

use std::sync::Arc;

use fabric_core::flags::{Access, Caps, MsgOrder, OpFlags};
use fabric_core::info::{AddrFormat, Hints, Info, Protocol};
use fabric_core::mr::{LocalMemory, RegionMemory};
use fabric_core::tcp::{MAX_MESSAGE, MAX_RMA_IOV};
use fabric_core::transport::{
    ConnectParams, ConnectionManagement, DomainConfig, DomainResources, EndpointContext,
    EngineContext, EpId, ModelSettings, OpenDomain, Transport, TransportDomain, TransportEndpoint,
    WaitSet,
};
use fabric_core::{Address, Result, Scheme, SocketOptions};

use crate::transport::info_templates;
use crate::transport::net::SocketConfig;

use interfaces::InterfaceAddress;
use io_backend::IoBackend;
use ip_network::IpNetwork;

pub(super) use endpoint::{EndpointResources, TcpEndpoint, UNEXPECTED_BYTES};
pub(super) use network::{Listener, Network, ReadSchedule};
pub(super) use socket::TcpSocket;
#[cfg(all(test, not(loom)))]
pub(super) use socket::{ReadResult, WriteResult};

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
    fn offers(&self, _: &Hints) -> Result<Vec<Info>> {
        let mut any = rdm_info("tcp", Caps::LOCAL_COMM | Caps::REMOTE_COMM);
        any.addr_format = AddrFormat::SockaddrIp;
        any.ep.protocol = Some(Protocol::Tcp);
        any.ep.protocol_version = 3;
        let with_network = |network: InterfaceAddress| {
            let mut info = any.clone();
            info.fabric.name = network.to_string();
            let source = (network.ip, 0).into();
            info.addr_format = AddrFormat::of_socket_addr(source);
            info.src_addr = Address::from_socket_addr(Scheme::Tcp, source).ok();
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
        Ok([native, connected, rxm].concat())
    }

    fn alloc(&self, len: usize, _: Access) -> Result<Arc<dyn RegionMemory>> {
        Ok(Arc::new(LocalMemory::new(len)?))
    }
}

impl<E: EngineContext, L> OpenDomain<E, L> for TcpTransport {
    fn open_domain(
        &self,
        info: &Info,
        resources: DomainResources<L>,
        config: &DomainConfig,
    ) -> Result<Box<dyn TransportDomain<E>>> {
        let wait_set = resources.wait_set;
        let progress = info.domain.data_progress;
        let model_settings = ModelSettings::of(config.message_model);
        let open = match model_settings.requires_uring() {
            true => IoBackend::open_reserved,
            false => IoBackend::open,
        };
        let io_backend = open(wait_set.clone(), progress, config.socket_io)?;
        congestion::validate(&config.socket_options)?;
        Ok(Box::new(TcpDomain {
            wait_set,
            io_backend,
            options: config.socket_options.clone(),
            model_settings,
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

/// Returns the offer of a provider for `FI_EP_RDM` endpoints, without protocol.
pub(super) fn rdm_info(provider: &str, caps: Caps) -> Info {
    let mut info = info_templates::reliable_info(provider, caps);
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

/// A domain of the transport: what its endpoints share.
struct TcpDomain {
    wait_set: Arc<dyn WaitSet>,
    io_backend: IoBackend,
    options: SocketOptions,
    model_settings: ModelSettings,
}

impl TcpDomain {
    /// Returns what an endpoint with this info gets, without the io_uring instance.
    fn resources(&self, info: &Info) -> Result<EndpointResources> {
        Ok(EndpointResources {
            network: Arc::new(IpNetwork),
            wait_set: self.wait_set.clone(),
            socket_config: SocketConfig::from_info(&self.options, info)?,
            uring: None,
            batching: self.model_settings.stream_batching(),
        })
    }
}

impl<E: EngineContext> TransportDomain<E> for TcpDomain {
    fn open_endpoint(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<(Box<dyn TransportEndpoint<E>>, Address)> {
        let mut resources = self.resources(info)?;
        resources.uring = self.io_backend.open_endpoint(ctx.ep());
        let endpoint = TcpEndpoint::open_rdm(ctx.ep(), (info, at), resources)?;
        let name = endpoint.name().clone();
        Ok((Box::new(endpoint), name))
    }

    fn unexpected_budget(&self) -> usize {
        UNEXPECTED_BYTES
    }

    /// A domain may have many connected endpoints, most of them idle.
    fn always_active(&self) -> usize {
        self.model_settings.polled_idle_endpoints()
    }

    fn shares_descriptor(&self) -> bool {
        true
    }

    fn collect_shared(&mut self, engine: &mut E, ready: &mut Vec<EpId>) {
        self.io_backend.collect(engine, ready);
    }

    fn shared_ready(&mut self) {
        self.io_backend.clear_event();
    }

    fn submit_shared(&mut self) {
        self.io_backend.submit();
    }

    fn arm_shared(&mut self) -> bool {
        self.io_backend.arm()
    }

    fn connection_management(&mut self) -> Option<&mut dyn ConnectionManagement<E>> {
        Some(self)
    }

    fn describe(&self) -> String {
        format!("tcp over {}", self.io_backend.name())
    }
}

impl<E: EngineContext> ConnectionManagement<E> for TcpDomain {
    fn listen(
        &mut self,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<(Box<dyn TransportEndpoint<E>>, Address)> {
        let endpoint = TcpEndpoint::open_passive(ep, (info, at), self.resources(info)?)?;
        let name = endpoint.name().clone();
        Ok((Box::new(endpoint), name))
    }

    fn open_connected(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        info: &Info,
        params: ConnectParams<'_>,
    ) -> Result<Box<dyn TransportEndpoint<E>>> {
        let mut resources = self.resources(info)?;
        resources.uring = self.io_backend.open_endpoint(ctx.ep());
        let endpoint = TcpEndpoint::open_connected(ctx, info.caps, params, resources)?;
        // With io_uring, arming submits the multishot receive of the new connection.
        ctx.request_rearm();
        Ok(Box::new(endpoint))
    }
}
