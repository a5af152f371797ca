//! A transport inside one process, with seeded delay and fragmentation: for tests of programs, and
//! for running a program without a network.
//!
//! | file | subject |
//! |---|---|
//! | `config` | traffic parameters in an endpoint's name |
//! | `mr_mode` | required bits of `mr_mode` in a domain's name |
//! | `network` | the network: which endpoints listen, and the streams between them |
//!
//! The endpoints are those of the transport `tcp`: handshake, frames, flow control and one-sided
//! operations are the same code. The streams are pairs of connected sockets inside the process.
//! The receiving end of a stream delays each read by a number of progress passes, and shortens
//! some reads to a few bytes, so that frames are split at any byte. Bytes of one sender stay in
//! order; those of different senders overtake each other.
//!
//! Delays and lengths depend only on the seed in the receiver's name, the sender's name, and the
//! number of reads before. A test that names its endpoints and polls them in the same order on
//! one thread sees the same interleaving, however many other tests run in the process.

mod config;
mod mr_mode;
mod network;

use std::sync::Arc;

use fabric_core::flags::{Access, Caps, MrMode};
use fabric_core::info::{Hints, Info, Protocol};
use fabric_core::mr::{LocalMemory, RAW_KEY_LEN, RegionMemory};
use fabric_core::transport::{
    DomainConfig, DomainResources, EndpointContext, EngineContext, MessageModel, ModelSettings,
    OpenDomain, Transport, TransportDomain, TransportEndpoint, WaitSet,
};
use fabric_core::{Address, Error, Result};

use super::net::SocketConfig;
use super::tcp::{self, EndpointResources, TcpEndpoint};
use crate::sys::process_memory::is_accessible;

use network::SimNetwork;

const NAME: &str = "sim";

/// The transport of the provider `sim`, which is offered only to hints that name `sim`.
///
/// An address reads `sim://LABEL`, `sim://LABEL@SEED`, `sim://LABEL@SEED+DELAY` or
/// `sim://LABEL@SEED+DELAY+CAPACITY`, in decimal numbers: the seed of the delays (0), the maximum
/// delay of a read in progress passes of the receiver (3), and the capacity of each stream to the
/// endpoint in units of 16 KiB (16). The numbers are part of the name, so peers write them too. An
/// endpoint that is opened with an empty label gets a generated one, with the same numbers.
///
/// The domain `sim` requires nothing of memory registration. A domain whose name goes on with bits
/// of `mr_mode`, as `sim+PROV_KEY+ENDPOINT`, requires them. It is offered to hints with its name.
#[derive(Clone, Copy, Debug)]
pub struct SimTransport;

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_offered_by_name_only(&self) -> bool {
        true
    }

    fn offers(&self, hints: &Hints) -> Result<Vec<Info>> {
        let mut info = tcp::rdm_info(NAME, Caps::LOCAL_COMM);
        info.ep.protocol = Some(Protocol::Sim);
        info.ep.protocol_version = 1;
        if let Some(domain) = &hints.domain_name
            && let Some(required) = mr_mode::required_bits(domain)?
        {
            info.domain.name.clone_from(domain);
            info.domain.mr_mode |= required;
            if required.contains(MrMode::RAW) {
                info.domain.mr_key_size = RAW_KEY_LEN;
            }
        }
        Ok(info.for_both_progress_models().into())
    }

    fn alloc(&self, len: usize, _: Access) -> Result<Arc<dyn RegionMemory>> {
        Ok(Arc::new(LocalMemory::new(len)?))
    }

    fn check_allocated(&self, address: u64, len: usize) -> Result<()> {
        if is_accessible(address, len) {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "buffer to register",
            why: "not all its bytes are backed by pages (FI_MR_ALLOCATED)".into(),
        })
    }
}

impl<E: EngineContext, L> OpenDomain<E, L> for SimTransport {
    fn open_domain(
        &self,
        _: &Info,
        resources: DomainResources<L>,
        _: &DomainConfig,
    ) -> Result<Box<dyn TransportDomain<E>>> {
        Ok(Box::new(SimDomain {
            wait_set: resources.wait_set,
        }))
    }
}

/// A domain of the transport.
struct SimDomain {
    wait_set: Arc<dyn WaitSet>,
}

impl<E: EngineContext> TransportDomain<E> for SimDomain {
    fn open_endpoint(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<(Box<dyn TransportEndpoint<E>>, Address)> {
        let resources = EndpointResources {
            network: Arc::new(SimNetwork),
            wait_set: self.wait_set.clone(),
            socket_config: SocketConfig::default(),
            uring: None,
            batching: ModelSettings::of(MessageModel::Default).stream_batching(),
        };
        let endpoint = TcpEndpoint::open_rdm(ctx.ep(), (info, at), resources)?;
        let name = endpoint.name().clone();
        Ok((Box::new(endpoint), name))
    }

    fn unexpected_budget(&self) -> usize {
        tcp::UNEXPECTED_BYTES
    }

    fn describe(&self) -> String {
        NAME.into()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
