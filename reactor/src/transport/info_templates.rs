//! Infos that shm, tcp and udp complete into the offers of their providers.

use fabric_core::flags::{Caps, MrMode, OpFlags};
use fabric_core::info::{AvType, EpType, Info, Version};
use fabric_core::transport::MAX_PRIVATE_DATA;

/// The version of every provider.
pub(crate) const PROVIDER_VERSION: Version = Version::new(0, 1);
/// The objects of a class that a domain may have: any number, up to the limits of the system.
const UNLIMITED: usize = usize::MAX;
/// Number of transmit and receive contexts that share nothing but the lock of the domain, and of
/// endpoints that share one receive context: a recommendation, not a limit.
const ADVISED_CONTEXTS: usize = 1024;
/// Default `tx_attr.size` and `rx_attr.size`: outstanding sends and posted receives of an endpoint.
const DEFAULT_QUEUE_SIZE: usize = 1024;
/// Default `iov_limit`: buffers of one vectored operation.
const IOV_LIMIT: usize = 64;
/// Segments of a memory region, as many as libfabric's `shm` offers.
const MR_IOV_LIMIT: usize = 4;

/// Returns an info for untagged messages (`FI_MSG`). Fabric and domain have the provider's name.
pub(super) fn base_info(provider: &str, caps: Caps) -> Info {
    let mut info = Info::template(provider, provider, provider);
    info.fabric.provider_version = PROVIDER_VERSION;
    let msg_caps = Caps::MSG | Caps::MSG_DIRECTIONS | Caps::SOURCE | Caps::SOURCE_ERR;
    info.caps = caps | msg_caps | Caps::HMEM;
    info.domain.caps = caps & (Caps::LOCAL_COMM | Caps::REMOTE_COMM);
    info.domain.av_type = Some(AvType::Table);
    info.domain.mr_mode = MrMode::SCALABLE;
    info.domain.cq_cnt = UNLIMITED;
    info.domain.ep_cnt = UNLIMITED;
    info.domain.tx_ctx_cnt = ADVISED_CONTEXTS;
    info.domain.rx_ctx_cnt = ADVISED_CONTEXTS;
    info.domain.cntr_cnt = UNLIMITED;
    info.domain.max_err_data = MAX_PRIVATE_DATA;
    info.tx.op_flags = OpFlags::COMPLETION | OpFlags::INJECT_COMPLETE;
    info.tx.size = DEFAULT_QUEUE_SIZE;
    info.tx.iov_limit = IOV_LIMIT;
    info.rx.op_flags = OpFlags::COMPLETION;
    info.rx.size = DEFAULT_QUEUE_SIZE;
    info.rx.iov_limit = IOV_LIMIT;
    info
}

/// Returns an info for reliable connectionless endpoints (`FI_EP_RDM`) with tagged and untagged
/// messages, RMA and atomics.
pub(super) fn reliable_info(provider: &str, caps: Caps) -> Info {
    let recv_caps = Caps::DIRECTED_RECV | Caps::MULTI_RECV | Caps::TAGGED_MULTI_RECV;
    let rma_caps = Caps::RMA | Caps::ATOMIC | Caps::RMA_DIRECTIONS | Caps::RMA_EVENT;
    let mut info = base_info(
        provider,
        caps | Caps::TAGGED | recv_caps | rma_caps | Caps::FENCE,
    );
    info.domain.mr_mode = MrMode::SCALABLE.union(MrMode::BASIC);
    info.domain.mr_cnt = UNLIMITED;
    info.domain.mr_iov_limit = MR_IOV_LIMIT;
    info.domain.cq_data_size = 8;
    info.domain.max_ep_srx_ctx = ADVISED_CONTEXTS;
    info.ep.ep_type = EpType::Rdm;
    info.ep.mem_tag_format = u64::MAX;
    info.ep.max_order_raw_size = usize::MAX;
    info.ep.max_order_waw_size = usize::MAX;
    info.tx.inject_size = 4096;
    info
}

/// Converts an info into one for connected endpoints (`FI_EP_MSG`): a single peer needs neither
/// directed receives nor a source address nor an address vector.
pub(super) fn with_msg_endpoints(mut info: Info) -> Info {
    info.caps -= Caps::DIRECTED_RECV | Caps::SOURCE | Caps::SOURCE_ERR;
    info.domain.av_type = None;
    info.ep.ep_type = EpType::Msg;
    info
}
