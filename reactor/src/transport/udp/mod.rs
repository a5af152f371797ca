//! The transport udp, with the wire format of libfabric's provider udp: a message is the payload of
//! one datagram, without a header.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: the calls of the engine, its sockets, receiving |
//! | `sending`, `send_batch` | sends: immediate, queued, or batched for one `sendmmsg` |
//! | `senders` | the senders of received datagrams |
//! | `socket` | sockets: bound, watched, joined to multicast groups |
//!
//! A send is one `sendto`. Without room in the socket the operation waits in the endpoint's queue,
//! and the socket is watched for room. Messages posted with `FI_MORE` are batched (`send_batch`)
//! and sent with one `sendmmsg`. A pass fills a `DatagramBatch` with one `recvmmsg` for each
//! socket; `senders` maps each source address to an address handle, and the receive queue matches
//! the message. A message beyond the budget of the receive queue is dropped and counted. Each
//! multicast group has a socket of its own: Linux delivers the datagrams of a group only to sockets
//! that are bound to the group or to no address.
//!
//! Decision: sockets are not connected. One socket serves all peers. The kernel reports the late
//! (ICMP) errors of a datagram only on connected sockets, where a late error could be mistaken for
//! the error of another send. The table of senders is bounded: a new sender evicts an idle one.

mod destinations;
mod endpoint;
mod send_batch;
mod senders;
mod sending;
mod socket;

use std::sync::Arc;

use fabric_core::flags::{Access, Caps, OpFlags};
use fabric_core::info::{AddrFormat, EpType, Hints, Info, Protocol};
use fabric_core::mr::RegionMemory;
use fabric_core::transport::{
    DomainConfig, DomainResources, EndpointContext, EngineContext, ModelSettings, OpenDomain,
    Transport, TransportDomain, TransportEndpoint, WaitSet,
};
use fabric_core::{Address, Error, Result, Scheme, SocketOptions};

use crate::sys::datagrams::MAX_MESSAGE;
use crate::transport::info_templates;
use crate::transport::net::SocketConfig;

use endpoint::{UNEXPECTED_BYTES, UdpEndpoint};

/// The transport of the provider `udp`.
#[derive(Clone, Copy, Debug)]
pub struct UdpTransport;

/// The error of calls that register memory.
const NO_REGIONS: Error = Error::NotSupported("memory regions over udp (FI_RMA); use shm or tcp");

impl Transport for UdpTransport {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn offers(&self, _: &Hints) -> Result<Vec<Info>> {
        let mut info = info_templates::base_info(
            "udp",
            Caps::MULTICAST | Caps::LOCAL_COMM | Caps::REMOTE_COMM,
        );
        info.addr_format = AddrFormat::SockaddrIp;
        info.ep.ep_type = EpType::Dgram;
        info.ep.protocol = Some(Protocol::Udp);
        info.ep.max_msg_size = MAX_MESSAGE;
        // A send completes when the kernel has accepted the datagram: FI_TRANSMIT_COMPLETE.
        info.tx.op_flags |= OpFlags::TRANSMIT_COMPLETE;
        info.tx.inject_size = MAX_MESSAGE;
        Ok(info.for_both_progress_models().into())
    }

    fn check_has_regions(&self) -> Result<()> {
        Err(NO_REGIONS)
    }

    fn alloc(&self, _: usize, _: Access) -> Result<Arc<dyn RegionMemory>> {
        Err(NO_REGIONS)
    }
}

impl<E: EngineContext, L> OpenDomain<E, L> for UdpTransport {
    fn open_domain(
        &self,
        _info: &Info,
        resources: DomainResources<L>,
        config: &DomainConfig,
    ) -> Result<Box<dyn TransportDomain<E>>> {
        Ok(Box::new(UdpDomain {
            wait_set: resources.wait_set,
            options: config.socket_options.clone(),
            batches_messages: ModelSettings::of(config.message_model).batches_datagrams(),
        }))
    }
}

/// A domain of the transport: what its endpoints share.
struct UdpDomain {
    wait_set: Arc<dyn WaitSet>,
    options: SocketOptions,
    /// Whether messages that are posted one by one leave with the next pass.
    batches_messages: bool,
}

impl<E: EngineContext> TransportDomain<E> for UdpDomain {
    fn open_endpoint(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<(Box<dyn TransportEndpoint<E>>, Address)> {
        if ctx.shares_rx() {
            return Err(Error::NotSupported("shared receive contexts over udp"));
        }
        if let Some(at) = at {
            at.check_scheme(Scheme::Udp)?;
        }
        let config = SocketConfig::from_info(&self.options, info)?;
        let mut endpoint = UdpEndpoint::open(ctx.ep(), info, (at, config), self.wait_set.clone())?;
        if self.batches_messages {
            endpoint.batch_messages();
        }
        ctx.set_drops_declined();
        let name = endpoint.name().clone();
        Ok((Box::new(endpoint), name))
    }

    fn unexpected_budget(&self) -> usize {
        UNEXPECTED_BYTES
    }

    fn describe(&self) -> String {
        "udp".into()
    }
}
