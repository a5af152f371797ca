//! A transport inside one process, with seeded delay and reordering: for tests of programs, and for
//! running a program without a network.
//!
//! | file | subject |
//! |---|---|
//! | `config` | traffic parameters in an endpoint's name: [`SimConfig`] |
//! | `net` | the network: which endpoints exist, and the packets between them |
//! | `domain` | opening of endpoints, and the regions of a domain |
//! | `endpoint` | an endpoint, and when it may sleep |
//! | `inbound` | the receiving half of an endpoint |
//! | `outbound` | the sending half of an endpoint |
//! | `rma_iov` | RMA operations with several remote ranges |
//! | `window` | direct access to a region of a peer |
//!
//! # Delivery
//!
//! A message is copied into the network in packets of at most 16 KiB. Each packet has a delay in
//! progress passes of the receiver, drawn by a pseudo-random generator; the packet is *due* when
//! the passes have been made. Packets of one sender never overtake each other (`FI_ORDER_SAS`),
//! those of different senders do. No packet is lost or duplicated: the endpoints are reliable.
//!
//! The delay of a packet depends only on the seed in the receiver's name, the sender's name, and
//! how many packets the sender has sent to the receiver before. A test that names its endpoints and
//! makes the same calls in the same order sees the same interleaving, however many other tests run
//! in the process.
//!
//! # Backpressure
//!
//! The packets from one endpoint to another are in a *channel* of bounded capacity. A sender
//! without room queues its messages, and continues when the receiver has accepted packets. A
//! receiver that has neither a matching receive nor budget for a message leaves the message at the
//! head of the channel. The declined message blocks its sender, and no other.

mod config;
mod domain;
mod endpoint;
mod inbound;
mod net;
mod outbound;
mod rma_iov;
mod window;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::flags::{Access, Caps, MrMode, MsgOrder, OpFlags};
use crate::info::{AvType, EpType, Info, Protocol, Version};
use crate::mr::{LocalMemory, RegionMemory};
use crate::transport::{EngineContext, OpenDomain, Transport, TransportDomain, WaitSet};

pub use config::SimConfig;

/// The simulated network; its addresses read `sim://NAME`, see [`SimConfig`].
///
/// # Two offers
///
/// The transport supports manual and automatic progress. Negotiation rejects an offer that provides
/// less than the hint requests, and takes the progress model from the offer if there is no hint. A
/// single offer of manual progress could not satisfy a hint for automatic progress; a single offer
/// of automatic progress would start a thread for every program without a hint. So there are two
/// offers, which differ in the progress model only: manual first, the default without a hint, and
/// automatic second. Every transport that leaves progress to the engine makes two such offers.
///
/// ```
/// use fabric_core::info::{Hints, Progress, select};
/// use fabric_core::transport::Transport;
/// use fabric_core::sim::SimTransport;
///
/// let offers = SimTransport.offers();
/// assert_eq!(select(&Hints::new(), &offers)?[0].domain.data_progress, Progress::Manual);
/// let auto = Hints::new().data_progress(Progress::Auto);
/// assert_eq!(select(&auto, &offers)?[0].domain.data_progress, Progress::Auto);
/// # Ok::<(), fabric_core::info::NoMatch>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SimTransport;

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_offered_by_name_only(&self) -> bool {
        true
    }

    fn offers(&self) -> Vec<Info> {
        base_offer().for_both_progress_models().into()
    }

    fn alloc(&self, len: usize, _: Access) -> Result<Arc<dyn RegionMemory>> {
        Ok(Arc::new(LocalMemory::new(len)?))
    }
}

impl<E: EngineContext> OpenDomain<E> for SimTransport {
    fn open_domain(
        &self,
        info: &Info,
        wait: Arc<dyn WaitSet>,
    ) -> Result<Box<dyn TransportDomain<E>>> {
        if info.fabric.provider != NAME {
            let why = format!(
                "info is of provider {:?}, not {NAME:?}",
                info.fabric.provider
            );
            return Err(Error::Invalid { what: "info", why });
        }
        if info.ep.ep_type != EpType::Rdm {
            return Err(Error::NotSupported("endpoint types other than FI_EP_RDM"));
        }
        if !CAPS.contains(info.caps) {
            let why = format!(
                "{NAME} does not offer the capabilities {:?}; pass an info from discover",
                info.caps.difference(CAPS)
            );
            return Err(Error::Invalid { what: "info", why });
        }
        Ok(Box::new(domain::SimDomain::new(wait)))
    }
}

fn base_offer() -> Info {
    let mut info = Info::template(NAME, NAME, NAME);
    info.caps = CAPS;
    info.fabric.provider_version = Version::new(0, 1);

    info.domain.av_type = Some(AvType::Table);
    info.domain.mr_mode = MrMode::SCALABLE.union(MrMode::BASIC);
    info.domain.cq_data_size = 8;
    info.domain.cq_cnt = OBJECT_COUNT;
    info.domain.cntr_cnt = OBJECT_COUNT;
    info.domain.ep_cnt = OBJECT_COUNT;
    info.domain.max_ep_srx_ctx = OBJECT_COUNT;
    info.domain.caps = Caps::LOCAL_COMM;

    info.ep.ep_type = EpType::Rdm;
    info.ep.protocol = Some(Protocol::Sim);
    info.ep.protocol_version = 1;
    info.ep.max_msg_size = 1 << 30;
    info.ep.mem_tag_format = u64::MAX;
    info.ep.max_order_raw_size = usize::MAX;
    info.ep.max_order_war_size = usize::MAX;
    info.ep.max_order_waw_size = usize::MAX;

    info.tx.caps = CAPS.difference(RX_ONLY_CAPS);
    info.tx.op_flags = OpFlags::COMPLETION
        | OpFlags::INJECT_COMPLETE
        | OpFlags::TRANSMIT_COMPLETE
        | OpFlags::MATCH_COMPLETE
        | OpFlags::DELIVERY_COMPLETE;
    info.tx.msg_order = ORDER;
    info.tx.inject_size = 4096;
    info.tx.size = 256;
    info.tx.iov_limit = IOV_LIMIT;
    info.tx.rma_iov_limit = IOV_LIMIT;

    info.rx.caps = CAPS.difference(
        Caps::SEND
            .union(Caps::READ)
            .union(Caps::WRITE)
            .union(Caps::FENCE),
    );
    info.rx.op_flags = OpFlags::COMPLETION;
    info.rx.msg_order = ORDER;
    info.rx.size = 1024;
    info.rx.iov_limit = IOV_LIMIT;
    info
}

/// Message order of the endpoints. RMA operations are ordered after earlier RMA operations, and
/// sends after all earlier operations. RMA operations may take effect before earlier messages
/// arrive.
const ORDER: MsgOrder = MsgOrder::SAS
    .union(MsgOrder::SAW)
    .union(MsgOrder::SAR)
    .union(MsgOrder::RAR)
    .union(MsgOrder::RAW)
    .union(MsgOrder::WAR)
    .union(MsgOrder::WAW);

const NAME: &str = "sim";

const CAPS: Caps = Caps::MSG
    .union(Caps::TAGGED)
    .union(Caps::MSG_DIRECTIONS)
    .union(Caps::DIRECTED_RECV)
    .union(Caps::MULTI_RECV)
    .union(Caps::TAGGED_MULTI_RECV)
    .union(Caps::SOURCE)
    .union(Caps::RMA)
    .union(Caps::ATOMIC)
    .union(Caps::FENCE)
    .union(Caps::RMA_DIRECTIONS)
    .union(Caps::RMA_EVENT)
    .union(Caps::LOCAL_COMM);

const RX_ONLY_CAPS: Caps = Caps::RECV
    .union(Caps::DIRECTED_RECV)
    .union(Caps::MULTI_RECV)
    .union(Caps::TAGGED_MULTI_RECV)
    .union(Caps::SOURCE)
    .union(Caps::REMOTE_READ)
    .union(Caps::REMOTE_WRITE)
    .union(Caps::RMA_EVENT);

/// Maximum number of buffers of a message, and of remote ranges of an RMA operation.
const IOV_LIMIT: usize = 16;

/// Advisory number of endpoints, and of each kind of queue and counter, of a domain.
const OBJECT_COUNT: usize = 1024;
