//! The attributes of a fabric, a domain, an endpoint and its two contexts, as a provider offers
//! them.

use std::fmt;

use crate::flags::{Caps, Mode, MrMode, MsgOrder, OpFlags};

use super::level::{AvType, EpType, Progress, Protocol, ResourceMgmt, Threading, TrafficClass};

/// The libfabric API whose vocabulary this crate knows in full.
pub const API_VERSION: Version = Version::new(2, 5);

/// As a count of contexts of an endpoint: the context is shared with other endpoints.
#[doc(alias = "FI_SHARED_CONTEXT")]
pub const SHARED_CONTEXT: usize = usize::MAX;

/// A version of an API or of a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "FI_VERSION")]
pub struct Version {
    /// Changes when something breaks.
    pub major: u16,
    /// Changes when something is added.
    pub minor: u16,
}

impl Version {
    /// The version `major.minor`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Which fabric, and who provides it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_fabric_attr")]
pub struct FabricAttr {
    /// The name of the fabric: endpoints of one fabric can reach each other.
    pub name: String,
    /// The name of the provider.
    #[doc(alias = "prov_name")]
    pub provider: String,
    /// The version of the provider.
    #[doc(alias = "prov_version")]
    pub provider_version: Version,
    /// The API version: in an offer the newest the provider knows, in a result the one that was
    /// asked for.
    pub api_version: Version,
}

/// The domain: what its objects share, and how many of them are worth having.
///
/// Counts describe the provider, not the machine: memory, descriptors and limits of the system may
/// end earlier.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_domain_attr")]
pub struct DomainAttr {
    /// The id of an open instance of this domain, if there is one.
    pub domain: Option<u64>,
    /// The name of the domain; equal names mean the same device.
    pub name: String,
    /// Which calls the application has to serialise.
    pub threading: Threading,
    /// Who moves control operations forward: address vectors, memory registration, connections.
    pub control_progress: Progress,
    /// Who moves data transfers forward. 2.x has this one field for both.
    pub data_progress: Progress,
    /// Whether overruns are prevented.
    pub resource_mgmt: ResourceMgmt,
    /// The kind of address vectors; `None` when either will do.
    pub av_type: Option<AvType>,
    /// Duties of memory registration. An offer may also name [`MrMode::BASIC`] or
    /// [`MrMode::SCALABLE`] to say which of the two old modes it supports; without either, what its
    /// duties allow is supported.
    pub mr_mode: MrMode,
    /// Size of a remote memory key, in bytes.
    pub mr_key_size: usize,
    /// Size of the data a transfer can put into the target's completion queue, in bytes; 0 for
    /// none, else 4 or more.
    pub cq_data_size: usize,
    /// Completion queues the domain serves well.
    pub cq_cnt: usize,
    /// Endpoints that can be addressed.
    pub ep_cnt: usize,
    /// Transmit contexts that work in parallel; more of them share.
    pub tx_ctx_cnt: usize,
    /// Receive contexts that work in parallel; more of them share.
    pub rx_ctx_cnt: usize,
    /// Transmit contexts one endpoint can have.
    pub max_ep_tx_ctx: usize,
    /// Receive contexts one endpoint can have.
    pub max_ep_rx_ctx: usize,
    /// Endpoints that can share one transmit context; 0 when none can.
    pub max_ep_stx_ctx: usize,
    /// Endpoints that can share one receive context; 0 when none can.
    pub max_ep_srx_ctx: usize,
    /// Counters the domain serves well.
    pub cntr_cnt: usize,
    /// Pieces of memory one registration can join.
    pub mr_iov_limit: usize,
    /// Capabilities of the domain, all of them secondary in 1.17.
    pub caps: Caps,
    /// Duties of the application in this domain.
    pub mode: Mode,
    /// The key that endpoints and regions of this domain carry by default. Only owners of equal
    /// keys can talk.
    pub auth_key: Option<Vec<u8>>,
    /// The size of such a key in bytes: the only size the provider takes, 0 when it takes none. In
    /// a result the length of `auth_key`, where one was asked for.
    pub auth_key_size: usize,
    /// Bytes of provider data that can come with an error.
    pub max_err_data: usize,
    /// Memory regions the domain serves well.
    pub mr_cnt: usize,
    /// The traffic class of endpoints that name none.
    pub tclass: Option<TrafficClass>,
    /// Keys one connectionless endpoint can use. Since 1.20.
    pub max_ep_auth_key: usize,
    /// The largest value of a counter; 0 in an offer for "all 64 bits". Since 2.5.
    pub max_cntr_value: u64,
    /// The largest error value of a counter; 0 in an offer for "all 64 bits". Since 2.5.
    pub max_err_cntr_value: u64,
}

impl Default for DomainAttr {
    /// One context each way, 64-bit keys, safe threading, manual progress, overruns prevented;
    /// nothing else.
    fn default() -> Self {
        Self {
            domain: None,
            name: String::new(),
            threading: Threading::default(),
            control_progress: Progress::default(),
            data_progress: Progress::default(),
            resource_mgmt: ResourceMgmt::default(),
            av_type: None,
            mr_mode: MrMode::empty(),
            mr_key_size: 8,
            cq_data_size: 0,
            cq_cnt: 1,
            ep_cnt: 1,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            max_ep_stx_ctx: 0,
            max_ep_srx_ctx: 0,
            cntr_cnt: 0,
            mr_iov_limit: 1,
            caps: Caps::empty(),
            mode: Mode::empty(),
            auth_key: None,
            auth_key_size: 0,
            max_err_data: 0,
            mr_cnt: 0,
            tclass: None,
            max_ep_auth_key: 0,
            max_cntr_value: 0,
            max_err_cntr_value: 0,
        }
    }
}

/// The endpoint as a whole.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_ep_attr")]
pub struct EpAttr {
    /// The kind of endpoint.
    #[doc(alias = "type")]
    pub ep_type: EpType,
    /// What it speaks on the wire; `None` when that is nobody's business.
    pub protocol: Option<Protocol>,
    /// The newest version of the protocol it speaks.
    pub protocol_version: u32,
    /// The largest single transfer, in bytes: a longer message is not sent, and of a longer one
    /// that arrives the rest is lost.
    pub max_msg_size: usize,
    /// Bytes in front of every message buffer that belong to the provider; 0 without
    /// [`Mode::MSG_PREFIX`].
    pub msg_prefix_size: usize,
    /// Up to this many bytes, data read lies in order behind data written; 0 for no such promise,
    /// `usize::MAX` for any size.
    pub max_order_raw_size: usize,
    /// As `max_order_raw_size`, for writes behind reads.
    pub max_order_war_size: usize,
    /// As `max_order_raw_size`, for writes behind writes.
    pub max_order_waw_size: usize,
    /// Which bits of a tag can be used: all below and including the highest one set here.
    pub mem_tag_format: u64,
    /// Transmit contexts; `usize::MAX` for one that is shared (`FI_SHARED_CONTEXT`).
    pub tx_ctx_cnt: usize,
    /// Receive contexts; `usize::MAX` for one that is shared (`FI_SHARED_CONTEXT`).
    pub rx_ctx_cnt: usize,
    /// The key of this endpoint; `None` for that of the domain.
    pub auth_key: Option<Vec<u8>>,
    /// The only size of key the provider takes, in bytes; 0 when it takes none.
    pub auth_key_size: usize,
}

impl Default for EpAttr {
    /// One context each way and tags of 64 bits; nothing else.
    fn default() -> Self {
        Self {
            ep_type: EpType::default(),
            protocol: None,
            protocol_version: 0,
            max_msg_size: 0,
            msg_prefix_size: 0,
            max_order_raw_size: 0,
            max_order_war_size: 0,
            max_order_waw_size: 0,
            mem_tag_format: 0xaaaa_aaaa_aaaa_aaaa,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            auth_key: None,
            auth_key_size: 0,
        }
    }
}

/// The transmit context.
///
/// The `comp_order` of 1.17 is left out: completions come in the order the operations finish, and
/// 2.x demands 0.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_tx_attr")]
pub struct TxAttr {
    /// What this context can do; directions of receiving mean nothing here.
    pub caps: Caps,
    /// Duties of the application with operations of this context.
    pub mode: Mode,
    /// In an offer, flags that can be made the default; in a result, those that are.
    pub op_flags: OpFlags,
    /// Which operations keep their order.
    pub msg_order: MsgOrder,
    /// The largest message whose buffer is free when the call returns, in bytes.
    pub inject_size: usize,
    /// Operations that can be outstanding.
    pub size: usize,
    /// Pieces of memory one operation can gather.
    pub iov_limit: usize,
    /// Remote pieces of memory one operation can touch.
    pub rma_iov_limit: usize,
    /// The traffic class; `None` for that of the domain.
    pub tclass: Option<TrafficClass>,
}

impl Default for TxAttr {
    /// One piece of memory per operation; nothing else.
    fn default() -> Self {
        Self {
            caps: Caps::empty(),
            mode: Mode::empty(),
            op_flags: OpFlags::empty(),
            msg_order: MsgOrder::empty(),
            inject_size: 0,
            size: 0,
            iov_limit: 1,
            rma_iov_limit: 1,
            tclass: None,
        }
    }
}

/// The receive context.
///
/// The `comp_order` and `total_buffered_recv` of 1.17 are left out: 2.x demands 0 for both.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_rx_attr")]
pub struct RxAttr {
    /// What this context can do; directions of sending mean nothing here.
    pub caps: Caps,
    /// Duties of the application with operations of this context.
    pub mode: Mode,
    /// In an offer, flags that can be made the default; in a result, those that are.
    pub op_flags: OpFlags,
    /// In which order arriving operations are looked at; a pair is kept when the sender keeps it
    /// too.
    pub msg_order: MsgOrder,
    /// Receives that can be posted.
    pub size: usize,
    /// Pieces of memory one receive can scatter to.
    pub iov_limit: usize,
}

impl Default for RxAttr {
    /// One piece of memory per receive; nothing else.
    fn default() -> Self {
        Self {
            caps: Caps::empty(),
            mode: Mode::empty(),
            op_flags: OpFlags::empty(),
            msg_order: MsgOrder::empty(),
            size: 0,
            iov_limit: 1,
        }
    }
}
